"""Everything transformers' generate accepts reaches hf_generate, or is refused by its name."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from transformers import DynamicCache, GenerationMixin
from transformers.generation import logits_process as processors
from transformers.generation import stopping_criteria as criteria

import ssd_infer
from ssd_infer.errors import ConfigError
from ssd_infer.strategies import run
from ssd_infer.strategies.early_exit.early_exit import EarlyExit
from tests.conftest import build_model

IDS = torch.tensor([[5, 6, 7, 5, 6]])
PARAMS = {"exit_layer": 2, "gamma": 3}


def generate(model: Any = None, ids: torch.Tensor = IDS, **options: Any) -> Any:
    """Decode through transformers with our function."""
    own: dict[str, Any] = {"do_sample": False, "max_new_tokens": 8, "draft_params": PARAMS}
    return (model or build_model()).generate(ids, custom_generate=ssd_infer.hf_generate, **own | options)


def theirs(model: Any = None, ids: torch.Tensor = IDS, **options: Any) -> Any:
    """Decode with transformers alone."""
    return (model or build_model()).generate(ids, **{"do_sample": False, "max_new_tokens": 8} | options)


class Custom(processors.LogitsProcessor):
    """A processor of the caller's own."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Change nothing."""
        return scores


class Ends(criteria.StoppingCriteria):
    """A criterion of the caller's own."""

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """End nothing."""
        return torch.zeros(len(input_ids), dtype=torch.bool)


def full_cache(model: Any) -> DynamicCache:
    """Return a cache that holds three tokens."""
    cache = DynamicCache()
    model(IDS[:, :3], past_key_values=cache)
    return cache


def embeds() -> torch.Tensor:
    """Return embeddings of the prompt."""
    found: torch.Tensor = build_model().get_input_embeddings()(IDS).detach()
    return found


def scorers(*items: Any) -> Any:
    """Return a list of logits processors."""
    return processors.LogitsProcessorList(items)


def enders(*items: Any) -> Any:
    """Return a list of stopping criteria."""
    return criteria.StoppingCriteriaList(items)


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "scores": ("output_scores", {"output_scores": True}),
    "scores in a dict": ("output_scores", {"output_scores": True, "return_dict_in_generate": True}),
    "logits": ("output_logits", {"output_logits": True, "return_dict_in_generate": True}),
    "attentions": ("output_attentions", {"output_attentions": True, "return_dict_in_generate": True}),
    "states": ("output_hidden_states", {"output_hidden_states": True, "return_dict_in_generate": True}),
    "positions": ("position_ids", {"position_ids": torch.tensor([[3, 4, 5, 6, 7]])}),
    "embeddings": ("inputs_embeds", {"inputs_embeds": embeds()}),
    "lookup": ("prompt_lookup_num_tokens", {"prompt_lookup_num_tokens": 3}),
    "exit": ("assistant_early_exit", {"assistant_early_exit": 2}),
    "assistant": ("assistant_model", {"assistant_model": build_model(layers=1)}),
    "empty cache": ("past_key_values", {"past_key_values": DynamicCache()}),
    "processor": ("logits_processor", {"logits_processor": scorers(Custom())}),
    "watermark": (
        "logits_processor",
        {"logits_processor": scorers(processors.WatermarkLogitsProcessor(97, "cpu"))},
    ),
    "a rule after a warper": (
        "logits_processor",
        {
            "do_sample": True,
            "top_k": 0,
            "logits_processor": scorers(
                processors.TopKLogitsWarper(5), processors.RepetitionPenaltyLogitsProcessor(1.5)
            ),
        },
    ),
    "two temperatures": (
        "logits_processor",
        {
            "do_sample": True,
            "temperature": 0.5,
            "logits_processor": scorers(processors.TemperatureLogitsWarper(0.5)),
        },
    ),
    "turned order": (
        "logits_processor",
        {
            "do_sample": True,
            "top_k": 0,
            "temperature": 0.5,
            "logits_processor": scorers(processors.TopPLogitsWarper(0.5)),
        },
    ),
    "kept tokens": (
        "logits_processor",
        {
            "do_sample": True,
            "top_k": 0,
            "logits_processor": scorers(processors.TopPLogitsWarper(0.5, min_tokens_to_keep=2)),
        },
    ),
    "criterion": ("stopping_criteria", {"stopping_criteria": enders(Ends())}),
    "time": (
        "stopping_criteria",
        {"stopping_criteria": enders(criteria.MaxTimeCriteria(5.0))},
    ),
    "beams": ("num_beams", {"num_beams": 2}),
    "no draft, but parameters": ("draft_params", {"draft": None}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_by_name(case: str) -> None:
    name, options = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        generate(**options)
    assert [problem.key for problem in caught.value.problems] == [name]
    assert all(problem.remedy for problem in caught.value.problems)


def test_a_cache_with_tokens_is_refused() -> None:
    model = build_model()
    with pytest.raises(ConfigError, match="past_key_values: would not be read or extended"):
        generate(model, past_key_values=full_cache(model))


def test_all_that_is_refused_comes_together() -> None:
    with pytest.raises(ConfigError) as caught:
        generate(output_logits=True, guidance_scale=1.5, seed=-1, prompt_lookup_num_tokens=2)
    keys = {problem.key for problem in caught.value.problems}
    assert keys == {"output_logits", "guidance_scale", "seed", "prompt_lookup_num_tokens"}


def test_inputs_of_the_model_are_not_dropped() -> None:
    with pytest.raises(ConfigError, match="token_type_ids: is an input of the model"):
        ssd_infer.hf_generate(
            build_model(),
            IDS,
            generation_config=theirs_config(),
            draft_params=PARAMS,
            token_type_ids=torch.ones_like(IDS),
        )


def theirs_config() -> Any:
    """Return a generation config as generate prepares it."""
    config, _ = build_model()._prepare_generation_config(None, max_length=12)
    return config


HONOURED: dict[str, dict[str, Any]] = {
    "usual positions": {"position_ids": torch.arange(5)[None]},
    "a shorter length": {"stopping_criteria": enders(criteria.MaxLengthCriteria(9))},
    "another end": {"stopping_criteria": enders(criteria.EosTokenCriteria([1]))},
    "max_length": {"max_length": 11, "max_new_tokens": None},
    "no cache": {"use_cache": False},
    "a static cache": {"cache_implementation": "static"},
    "a mask": {"attention_mask": torch.tensor([[0, 1, 1, 1, 1]])},
    "several ends": {"eos_token_id": [3, 9], "pad_token_id": 0},
    "no draft": {"draft": None, "draft_params": None},
    "nothing asked": {"output_scores": False, "num_return_sequences": 1, "synced_gpus": False},
}


@pytest.mark.parametrize("case", HONOURED)
def test_it_is_honoured(case: str) -> None:
    options = HONOURED[case]
    own = {name: value for name, value in options.items() if not name.startswith("draft")}
    if case == "another end":
        end = int(theirs()[0, 8])
        own = options = {"stopping_criteria": enders(criteria.EosTokenCriteria(end))}
        assert theirs(**own).shape[1] < theirs().shape[1]
    assert torch.equal(generate(**options), theirs(**own))


def test_a_dict_holds_the_sequences() -> None:
    assert torch.equal(generate(return_dict_in_generate=True).sequences, theirs())


def test_several_sampled_rows_differ_and_repeat() -> None:
    options = {"do_sample": True, "num_return_sequences": 4, "seed": 3, "top_k": 0}
    found = generate(**options)
    assert found.shape == (4, 13)
    assert len({tuple(row) for row in found.tolist()}) > 1
    assert torch.equal(found, generate(**options))


def test_it_takes_the_path_of_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation mode and the draft are those of `ssd_infer.generate`; attention is the engine's own choice."""
    model = build_model(attention_dropout=0.9)
    expected = theirs(model)
    model.train()
    seen: list[Any] = []
    real = run.decode

    def watched(*arguments: Any) -> Any:
        seen.append((arguments[2], model.training))
        return real(*arguments)

    monkeypatch.setattr(run, "decode", watched)
    assert torch.equal(generate(model), expected)
    assert model.training
    found = ssd_infer.generate(
        model, IDS, draft="early_exit", draft_params=PARAMS, max_new_tokens=8
    ).sequences
    assert found[0] == expected[0, 5:].tolist()
    assert seen == [(EarlyExit, False)] * 2


def test_sampling_is_that_of_generate() -> None:
    found = generate(do_sample=True, temperature=0.7, top_k=5, top_p=0.9, seed=4)
    ours = ssd_infer.generate(
        build_model(),
        IDS,
        draft="early_exit",
        draft_params=PARAMS,
        max_new_tokens=8,
        do_sample=True,
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        seed=4,
    )
    assert found[0, 5:].tolist() == ours.sequences[0]


def test_every_argument_of_generate_was_looked_at() -> None:
    known = {"self", "inputs", "generation_config", "logits_processor", "stopping_criteria", "kwargs"}
    known |= {"prefix_allowed_tokens_fn", "assistant_model", "streamer", "custom_generate"}
    known |= {"synced_gpus"}  # about processes, not tokens
    known |= {
        "negative_prompt_ids",
        "negative_prompt_attention_mask",
    }  # read with guidance_scale only, a rule
    assert set(inspect.signature(GenerationMixin.generate).parameters) <= known
