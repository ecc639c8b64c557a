"""Rules of `generation_config` hold, are refused by name, or are switched off for all alike; none is passed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, WatermarkingConfig

import ssd_infer
from ssd_infer.engine import generation_rules
from ssd_infer.engine.generation_rules import in_force, notes_of, switched_off
from ssd_infer.engine.rule_values import FOLLOWED
from ssd_infer.errors import ConfigError, NoTokenError
from ssd_infer.evaluation.contenders import ours
from ssd_infer.evaluation.transformers_side import hf_baseline, hf_peers
from ssd_infer.strategies.study import Sampling
from tests.conftest import build_model
from tests.families.diffusion.support import build as build_diffusion
from tests.families.speech.support import tiny_asr

PROMPT = [5, 6, 7, 5, 6]
RULES: dict[str, Any] = {
    "repetition_penalty": 1.5,
    "encoder_repetition_penalty": 1.5,
    "no_repeat_ngram_size": 2,
    "encoder_no_repeat_ngram_size": 2,
    "min_length": 12,
    "min_new_tokens": 8,
    "suppress_tokens": list(range(40)),
    "begin_suppress_tokens": list(range(40)),
    "bad_words_ids": [[i] for i in range(40)],
    "sequence_bias": [[[5], -10.0]],
    "forced_bos_token_id": 3,
    "forced_eos_token_id": 3,
    "exponential_decay_length_penalty": (1, 1.5),
    "remove_invalid_values": True,
    "guidance_scale": 1.5,
    "watermarking_config": WatermarkingConfig(),
    "num_beams": 3,
    "num_beam_groups": 2,
    "diversity_penalty": 0.5,
    "constraints": ["x"],
    "force_words_ids": [[5]],
    "dola_layers": "low",
    "token_healing": True,
    "max_time": 5.0,
    "stop_strings": ["x"],
    "assistant_ensemble_weight": 0.5,
    "num_return_sequences": 2,
    "cache_implementation": "quantized",
}
DRAWN: dict[str, Any] = {
    "min_p": 0.2,
    "typical_p": 0.9,
    "top_h": 0.5,
    "epsilon_cutoff": 0.1,
    "eta_cutoff": 0.1,
}
GREEDY: dict[str, Any] = {"penalty_alpha": 0.6}
PASSED_OVER = {
    # said by the arguments of a call
    *("max_length", "max_new_tokens", "do_sample", "temperature", "top_k", "top_p"),
    *("eos_token_id", "pad_token_id", "bos_token_id", "decoder_start_token_id"),
    # of beams and assistants only
    *("early_stopping", "length_penalty", "low_memory", "is_assistant", "num_assistant_tokens"),
    *("num_assistant_tokens_schedule", "assistant_confidence_threshold", "max_matching_ngram_size"),
    *("assistant_lookbehind", "target_lookbehind", "speculation_type"),
    # how tokens are computed, not which
    *(
        "use_cache",
        "cache_config",
        "max_cache_len",
        "prefill_chunk_size",
        "compile_config",
        "disable_compile",
    ),
    *("continuous_batching_config", "renormalize_logits"),
    # what is returned beside tokens
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
    *("_from_model_config", "transformers_version"),
}
"""What a generation config may say that changes no token of ours."""


def ruled(rules: dict[str, Any]) -> Any:
    """Return a model whose generation config holds these rules."""
    model: Any = build_model()
    for name, value in rules.items():
        setattr(model.generation_config, name, value)
    return model


def every_rule(*, followed: bool) -> list[Any]:
    """Return rule, value and whether it needs sampling."""
    listed = [(RULES, False), (RULES, True), (DRAWN, True), (GREEDY, False)]
    return [
        pytest.param(name, value, drawn, id=f"{name}-{'drawn' if drawn else 'greedy'}")
        for table, drawn in listed
        for name, value in table.items()
        if (name in FOLLOWED) == followed
    ]


def test_everything_transformers_may_hold_is_classified() -> None:
    known = {*RULES, *DRAWN, *GREEDY, *PASSED_OVER, *generation_rules._MODES}
    assert set(vars(GenerationConfig())) <= known
    assert {*RULES, *DRAWN} >= FOLLOWED


@pytest.mark.parametrize(("name", "value", "drawn"), every_rule(followed=False))
@pytest.mark.parametrize("draft", [None, "early_exit"])
def test_a_rule_that_cannot_hold_is_refused_by_name(
    name: str, value: Any, drawn: bool, draft: str | None
) -> None:
    model = ruled({name: value})
    params = {"exit_layer": 2, "gamma": 3} if draft else None
    given: dict[str, Any] = {"draft": draft, "draft_params": params, "do_sample": drawn, "seed": 1}
    with pytest.raises(ConfigError) as caught:
        ssd_infer.generate(model, [PROMPT], max_new_tokens=8, **given)
    (problem,) = caught.value.problems
    assert problem.key == f"generation_config.{name}"
    assert "generation_rules='off'" in problem.remedy
    off = ssd_infer.generate(model, [PROMPT], max_new_tokens=8, generation_rules="off", **given)
    assert off.sequences == ssd_infer.generate(build_model(), [PROMPT], max_new_tokens=8, **given).sequences
    assert getattr(model.generation_config, name) is value
    if name != "cache_implementation":
        with pytest.raises(ConfigError) as caught:
            ssd_infer.generate(build_model(), [PROMPT], max_new_tokens=8, **given, **{name: value})
        assert [problem.key for problem in caught.value.problems] == [name]


HELD: dict[str, Any] = {
    "bad_words_ids": [[i] for i in range(2, 40)],
    "begin_suppress_tokens": [90],
    "encoder_no_repeat_ngram_size": 1,
    "encoder_repetition_penalty": 9.0,
    "sequence_bias": [[[90], -20.0]],
}
"""Values in place of those above: some that leave nothing to choose, or that need another prompt to be seen."""


@pytest.mark.parametrize(("name", "value", "drawn"), every_rule(followed=True))
@pytest.mark.parametrize("draft", [None, "early_exit"])
def test_a_rule_of_the_model_is_one_of_the_call(
    name: str, value: Any, drawn: bool, draft: str | None
) -> None:
    """The same rule in the config, in the call, in both, or off: an argument of the call goes first."""
    value = HELD.get(name, value)
    params = {"exit_layer": 2, "gamma": 3} if draft else None
    given: dict[str, Any] = {"draft": draft, "draft_params": params, "do_sample": drawn, "seed": 1}
    given |= {"max_new_tokens": 8, "eos_token_id": [3, 5]}
    model, bare, off = ruled({name: value}), build_model(), generation_rules.off_value(name)
    prompt = [[5]] if name == "forced_bos_token_id" else [PROMPT]

    def text(model: Any, **rules: Any) -> list[list[int]]:
        return ssd_infer.generate(model, prompt, **given, **rules).sequences

    held, free = text(model), text(bare)
    assert text(bare, **{name: value}) == held
    assert text(bare, **{name: value}, generation_rules="off") == held
    assert text(model, generation_rules="off") == free
    assert text(model, **{name: None}) == text(model, **{name: off}) == free
    loud = {
        "encoder_no_repeat_ngram_size",
        "remove_invalid_values",
        "min_length",
        "min_new_tokens",
        "exponential_decay_length_penalty",
    }
    assert (held == free) is False or name in loud or drawn
    assert getattr(model.generation_config, name) is value


@pytest.mark.parametrize(
    ("rules", "key"),
    [
        ({"repetition_penalty": "1.5"}, "repetition_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"no_repeat_ngram_size": 1.5}, "no_repeat_ngram_size"),
        ({"suppress_tokens": 5}, "suppress_tokens"),
        ({"suppress_tokens": ["a"]}, "suppress_tokens"),
        ({"bad_words_ids": [5]}, "bad_words_ids"),
        ({"bad_words_ids": [[]]}, "bad_words_ids"),
        ({"bad_words_ids": [[97]]}, "bad_words_ids"),
        ({"sequence_bias": {(5,): "much"}}, "sequence_bias"),
        ({"sequence_bias": [[[200], 1.0]]}, "sequence_bias"),
        ({"forced_eos_token_id": 97}, "forced_eos_token_id"),
        ({"forced_bos_token_id": 97}, "forced_bos_token_id"),
        ({"forced_bos_token_id": -2}, "forced_bos_token_id"),
        ({"remove_invalid_values": "yes"}, "remove_invalid_values"),
        ({"exponential_decay_length_penalty": 5}, "exponential_decay_length_penalty"),
        ({"exponential_decay_length_penalty": (1, 1.5)}, "exponential_decay_length_penalty"),
        ({"min_new_tokens": -1}, "min_new_tokens"),
        ({"min_p": 1.5, "do_sample": True}, "min_p"),
        ({"eta_cutoff": 1.0, "do_sample": True}, "eta_cutoff"),
        ({"repetition_penality": 1.5}, "repetition_penality"),
        ({"max_length": 20}, "max_length"),
    ],
)
def test_values_that_are_none_are_refused(rules: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ssd_infer.generate(build_model(), [PROMPT], max_new_tokens=4, **rules)
    assert [problem.key for problem in caught.value.problems] == [key]
    assert caught.value.problems[0].remedy


def test_what_is_switched_off_in_a_call_is_no_rule() -> None:
    off: dict[str, Any] = {
        "num_beams": 1,
        "guidance_scale": 1.0,
        "penalty_alpha": None,
        "repetition_penalty": 1.0,
    }
    found = ssd_infer.generate(build_model(), [PROMPT], max_new_tokens=4, **off)
    assert found.sequences == ssd_infer.generate(build_model(), [PROMPT], max_new_tokens=4).sequences


def test_a_misspelt_argument_is_told_its_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'repetition_penalty'"):
        ssd_infer.generate(build_model(), [PROMPT], max_new_tokens=4, repetition_penality=1.5)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="did you mean 'stop_sequences'"):
        ssd_infer.generate(build_model(), [PROMPT], max_new_tokens=4, stop_sequence=[[5]])  # type: ignore[call-arg]


@pytest.mark.parametrize("draft", [None, "early_exit", "ngram"])
def test_rules_that_leave_nothing_to_draw_say_so(draft: str | None) -> None:
    """`generate` ends in an error of torch there; greedy takes the first token, as it does."""
    model, params = build_model(), {"gamma": 3} if draft else None
    if draft == "early_exit":
        params = {"gamma": 3, "exit_layer": 2}
    rules: dict[str, Any] = {"suppress_tokens": list(range(97)), "draft": draft, "draft_params": params}
    with pytest.raises(NoTokenError, match="leave no token"):
        ssd_infer.generate(model, [PROMPT], max_new_tokens=4, do_sample=True, **rules)
    found = ssd_infer.generate(model, [PROMPT], max_new_tokens=4, **rules).sequences
    ids = torch.tensor([PROMPT])
    theirs = model.generate(ids, max_new_tokens=4, do_sample=False, suppress_tokens=list(range(97)))
    assert found == theirs[:, 5:].tolist()


def test_rules_of_the_other_way_to_choose_are_not_in_force() -> None:
    ssd_infer.generate(ruled(DRAWN), [PROMPT], max_new_tokens=2)
    ssd_infer.generate(ruled(GREEDY), [PROMPT], max_new_tokens=2, do_sample=True)


def test_neutral_values_are_no_rules() -> None:
    neutral = GenerationConfig._get_default_generation_params() | {
        "guidance_scale": 1.0,
        "penalty_alpha": 0.0,
        "min_p": 0.0,
        "min_new_tokens": 0,
        "suppress_tokens": [],
        "bad_words_ids": [],
        "sequence_bias": {},
        "cache_implementation": "static",
        "temperature": 0.5,
        "top_k": 5,
        "top_p": 0.5,
        "do_sample": True,
    }
    model = ruled(neutral)
    assert in_force(model.generation_config, do_sample=True) == {}
    assert in_force(model.generation_config, do_sample=False) == {}
    expected = ssd_infer.generate(build_model(), [PROMPT], max_new_tokens=6, do_sample=True, seed=1).sequences
    assert ssd_infer.generate(model, [PROMPT], max_new_tokens=6, do_sample=True, seed=1).sequences == expected


@pytest.mark.parametrize("value", [None, "on", True, 5, []])
def test_the_switch_has_two_values(value: Any) -> None:
    for model in (build_model(), build_diffusion(0)):
        with pytest.raises(ConfigError, match="generation_rules: must be 'model'"):
            ssd_infer.generate(model, [[2, 3]], max_new_tokens=4, generation_rules=value)


def test_other_kinds_refuse_rules_too() -> None:
    config = GenerationConfig(repetition_penalty=1.5)
    diffusion = build_diffusion(0)
    diffusion.generation_config = config
    with pytest.raises(ConfigError, match=r"generation_config\.repetition_penalty"):
        ssd_infer.generate(diffusion, [[2, 3]], max_new_tokens=4)
    with pytest.raises(ConfigError, match="min_new_tokens: is a rule that decoding a model of this kind"):
        ssd_infer.generate(build_diffusion(0), [[2, 3]], max_new_tokens=4, min_new_tokens=2)
    off = ssd_infer.generate(diffusion, [[2, 3]], max_new_tokens=4, generation_rules="off")
    assert off.sequences == ssd_infer.generate(build_diffusion(0), [[2, 3]], max_new_tokens=4).sequences
    speech = tiny_asr()
    speech.generation_config = config
    with pytest.raises(ConfigError, match=r"generation_config\.repetition_penalty"):
        ssd_infer.transcribe(speech, np.zeros(16000, np.float32), 16000)


HF: dict[str, Any] = {
    "max_time": 5.0,
    "guidance_scale": 1.5,
    "watermarking_config": WatermarkingConfig(),
    "num_beams": 2,
}


@pytest.mark.parametrize("name", HF)
@pytest.mark.parametrize("saved", [False, True])
def test_hf_generate_refuses_by_the_same_name(name: str, saved: bool) -> None:
    model = ruled({name: HF[name]} if saved else {})
    options = {} if saved else {name: HF[name]}
    with pytest.raises(ConfigError) as caught:
        model.generate(
            torch.tensor([PROMPT]),
            do_sample=False,
            max_new_tokens=6,
            eos_token_id=3,
            custom_generate=ssd_infer.hf_generate,
            draft_params={"exit_layer": 2, "gamma": 3},
            **options,
        )
    assert [problem.key for problem in caught.value.problems] == [name]


def test_a_direct_call_reads_the_config_it_is_handed() -> None:
    """Nobody prepared processors then: rules, temperature and top-k are read from the config itself."""
    model = build_model()
    config, _ = model._prepare_generation_config(None, max_length=12, suppress_tokens=[5, 6, 7])
    given = {"draft": None, "generation_config": config}
    found = ssd_infer.hf_generate(model, torch.tensor([PROMPT]), **given)
    expected = ssd_infer.generate(model, [PROMPT], max_new_tokens=7, suppress_tokens=[5, 6, 7])
    assert found[0, 5:].tolist() == expected.sequences[0]
    config, _ = model._prepare_generation_config(
        None, max_length=12, do_sample=True, temperature=0.5, top_k=3
    )
    found = ssd_infer.hf_generate(model, torch.tensor([PROMPT]), draft=None, generation_config=config, seed=4)
    expected = ssd_infer.generate(
        model, [PROMPT], max_new_tokens=7, do_sample=True, temperature=0.5, top_k=3, seed=4
    )
    assert found[0, 5:].tolist() == expected.sequences[0]


COMPARED = {
    "repetition_penalty": 1.5,
    "no_repeat_ngram_size": 2,
    "suppress_tokens": [5, 6],
    "min_p": 0.3,
    "num_return_sequences": 2,
    "return_dict_in_generate": True,
    "prompt_lookup_num_tokens": 3,
}


def test_a_report_compares_all_rows_without_the_rules() -> None:
    model, prompts = ruled(COMPARED | {"do_sample": True}), [PROMPT, [9, 8, 7]]
    before = model.generation_config.to_dict()
    greedy = Sampling()
    expected, _ = ours(build_model(), None, {}, greedy)(prompts, 12, 0)
    decodes = [
        ours(model, None, {}, greedy),
        ours(model, "early_exit", {"exit_layer": 2, "gamma": 3}, greedy),
        hf_baseline(model, greedy).decode,
    ]
    assert all(decode(prompts, 12, 0)[0] == expected for decode in decodes)
    for peer in hf_peers(model, greedy, 2):
        assert peer.decode(prompts[:1], 12, 0)[0] == expected[:1]
    drawn = Sampling(1.0, 0, 1.0)
    theirs = hf_baseline(model, drawn).decode(prompts, 6, 3)[0]
    assert theirs == hf_baseline(build_model(), drawn).decode(prompts, 6, 3)[0]
    assert model.generation_config.to_dict() == before


def test_a_report_says_what_it_left_out() -> None:
    notes = notes_of(ruled(COMPARED), {True, False})
    assert "generation_config.repetition_penalty=1.5 was switched off for every row" in notes
    assert len(notes) == len(COMPARED)
    assert len(notes_of(ruled(COMPARED), {False})) == len(COMPARED) - 1, "min_p is a rule of sampling"
    assert notes_of(build_model(), {True, False}) == []
    assert switched_off(build_model()) == {}


def test_the_written_file_follows_and_refuses_rules_as_well(tmp_path: Path) -> None:
    model = build_model()
    model.save_pretrained(tmp_path)
    ssd_infer.write_custom_generate(tmp_path, {"exit_layer": 2, "gamma": 3})
    options = {"max_new_tokens": 8, "do_sample": False}
    found = model.generate(
        torch.tensor([PROMPT]),
        repetition_penalty=1.5,
        custom_generate=str(tmp_path),
        trust_remote_code=True,
        **options,
    )
    expected = model.generate(torch.tensor([PROMPT]), repetition_penalty=1.5, **options)
    assert torch.equal(found, expected)
    assert not torch.equal(expected, model.generate(torch.tensor([PROMPT]), **options))
    with pytest.raises(Exception, match="guidance_scale: is a rule"):
        model.generate(
            torch.tensor([PROMPT]),
            guidance_scale=1.5,
            custom_generate=str(tmp_path),
            trust_remote_code=True,
            **options,
        )
