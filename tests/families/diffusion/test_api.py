"""What `ssd_infer.generate` promises for diffusion checkpoints, and what it refuses in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.errors import ConfigError
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.strategies.fewer_steps.generate import generate
from tests.conftest import build_model
from tests.families.diffusion.support import BIDIRECTIONAL, BLOCK_CAUSAL, MASK, build, prompts


def test_a_saved_checkpoint_decodes_like_the_model_it_was(tmp_path: Path) -> None:
    model, rows = build(0, dtype=torch.float32), prompts((3, 8))
    model.save_pretrained(tmp_path)
    loaded = ssd_infer.load(tmp_path, device="cpu")
    assert loaded.kind == "diffusion"
    expected = ssd_infer.generate(model, rows, max_new_tokens=9)
    found = ssd_infer.generate(loaded, rows, draft="fewer_steps", draft_params={"gamma": 3}, max_new_tokens=9)
    assert found.sequences == expected.sequences
    assert [len(row) for row in found.sequences] == [9, 9]


def test_auto_settles_every_parameter_and_says_so() -> None:
    model, rows = build(0, block=8), prompts((3, 8))
    expected = ssd_infer.generate(model, rows, max_new_tokens=16)
    for drafter in ("auto", "ssd_chain", "ssd_tree", "spiffy", "freedave", "coarse_draft"):
        out = ssd_infer.generate(
            model, rows, draft="fewer_steps", draft_params={"drafter": drafter}, max_new_tokens=16
        )
        assert out.sequences == expected.sequences
        assert out.draft is None or isinstance(out.draft_params["gamma"], int)
        assert out.draft is not None or "no length of draft" in out.note


@pytest.mark.parametrize(
    ("objective", "block", "tokens", "sampler"),
    [
        (BLOCK_CAUSAL, 8, 16, {"steps": 6}),
        (BIDIRECTIONAL, 0, 12, {"steps": 6, "block_length": 4}),
        (BIDIRECTIONAL, 0, 12, {"steps": 5}),
    ],
)
def test_auto_calibrates_whatever_number_of_steps_the_call_takes(
    objective: str, block: int, tokens: int, sampler: dict[str, Any]
) -> None:
    model, rows = build(0, objective, block), prompts((3, 11))
    expected = ssd_infer.generate(model, rows, max_new_tokens=tokens, sampler=sampler)
    found = ssd_infer.generate(model, rows, draft="fewer_steps", max_new_tokens=tokens, sampler=sampler)
    assert found.sequences == expected.sequences


@pytest.mark.parametrize(("objective", "block"), [(BLOCK_CAUSAL, 8), (BIDIRECTIONAL, 0)])
@pytest.mark.parametrize(("room", "length", "tokens"), [(64, 3, 16), (32, 31, 1), (16, 8, 8)])
def test_auto_calibrates_within_the_positions_of_a_short_model(
    objective: str, block: int, room: int, length: int, tokens: int
) -> None:
    model, rows = build(0, objective, block), prompts((length,))
    model.config.backbone_config.max_position_embeddings = room
    expected = ssd_infer.generate(model, rows, max_new_tokens=tokens)
    found = ssd_infer.generate(model, rows, draft="fewer_steps", max_new_tokens=tokens)
    assert found.sequences == expected.sequences


def test_as_many_steps_as_tokens_is_one_token_a_step_wherever_the_prompt_ends() -> None:
    model, rows = build(0, block=8), prompts((11,))
    expected = ssd_infer.generate(model, rows, max_new_tokens=16)
    found = ssd_infer.generate(model, rows, max_new_tokens=16, sampler={"steps": 16})
    assert found.sequences == expected.sequences
    assert found.stats.report["nfe"] == expected.stats.report["nfe"]


def test_statistics_follow_the_definitions() -> None:
    model, rows = build(0, block=8), prompts((8,))
    params = {"drafter": "ssd_chain", "gamma": 7}
    out = ssd_infer.generate(model, rows, draft="fewer_steps", draft_params=params, max_new_tokens=16)
    total, report = out.stats.total, out.stats.report
    assert total.emitted == 16
    assert report["nfe"] == total.forwards["target"] == total.rounds + 1
    assert total.tau == pytest.approx(total.accepted / total.rounds + 1)
    assert report["tokens_per_nfe"] == 16 / report["nfe"]
    never_evaluated = 1 + total.rounds + total.drafted - report["rows"]  # drafted states that end the row
    assert 0 <= never_evaluated <= total.rounds
    plain = ssd_infer.generate(model, rows, max_new_tokens=16).stats
    assert (plain.report["nfe"], plain.report["rows"], plain.total.drafted) == (16, 16, 0)


def test_streams_in_order_and_stops_at_eos() -> None:
    model, rows = build(1, block=4), prompts((3, 6))
    plain = ssd_infer.generate(model, rows, max_new_tokens=16)
    eos = plain.sequences[0][5]
    parts: dict[int, list[int]] = {0: [], 1: []}
    out = ssd_infer.generate(
        model,
        rows,
        draft="fewer_steps",
        draft_params={"drafter": "ssd_chain", "gamma": 3},
        max_new_tokens=16,
        eos_token_id=eos,
        streamer=lambda row, tokens: parts[row].extend(tokens),
    )
    stepwise = ssd_infer.generate(model, rows, max_new_tokens=16, eos_token_id=eos)
    assert out.sequences == stepwise.sequences == [parts[0], parts[1]]
    assert out.sequences[0][-1] == eos
    assert out.sequences[0].index(eos) == len(out.sequences[0]) - 1


def test_sampling_repeats_with_its_seed_and_float32_noise_is_flagged() -> None:
    model, rows = build(0), prompts((4,))
    arguments: dict[str, Any] = {"max_new_tokens": 12, "do_sample": True, "seed": 5}
    first = generate(model, rows, **arguments)
    assert generate(model, rows, **arguments).sequences == first.sequences
    assert generate(model, rows, **(arguments | {"seed": 6})).sequences != first.sequences
    assert first.stats.report["warnings"] == []
    flagged = generate(model, rows, sampler={"noise_dtype": "float32"}, **arguments)
    assert "effective temperature" in flagged.stats.report["warnings"][0]


def test_lossy_samplers_are_named() -> None:
    out = generate(build(0), prompts((4,)), max_new_tokens=8, sampler={"rule": "threshold", "threshold": 0.5})
    assert "at once" in out.stats.report["warnings"][0]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"sampler": {"block_length": 5}}, "sampler.block_length: must divide max_new_tokens, 12"),
        ({"sampler": {"block_length": 4, "steps": 10}}, "sampler.steps: must be a multiple of the 3 blocks"),
        ({"sampler": {"cache": "exact"}}, "sampler.cache: needs a model trained in blocks"),
        ({"sampler": {"order": "middle"}}, "sampler.order: must be one of"),
        ({"sampler": {"stepz": 3}}, "sampler.stepz: is no field"),
        ({"sampler": {"threshold": "high"}}, "sampler.threshold: must lie between 0 and 1"),
        ({"sampler": {"steps": True}}, "sampler.steps: must be an integer >= 1"),
        ({"sampler": "confidence"}, "sampler: must map field names to values"),
        ({"sampler": SamplerSettings(order="middle")}, "sampler.order: must be one of"),  # type: ignore[arg-type]
        ({"seed": 1.5}, "seed: must be an integer"),
        ({"draft": "fewer_steps", "draft_params": ["gamma"]}, "draft_params: must map names to values"),
        (
            {"draft": "fewer_steps", "draft_params": {"drafter": "spiffy", "gamma": 2, "graph": [[["x"]]]}},
            "draft_params.graph: must be a list of paths",
        ),
        (
            {"draft": "fewer_steps", "draft_params": {"drafter": "spiffy", "gamma": 2, "graph": [[[0, 2]]]}},
            "draft_params.graph: must be a list of paths",
        ),
        ({"sampler": {"threshold": 1.5, "rule": "threshold"}}, "sampler.threshold: must lie between 0 and 1"),
        ({"max_new_tokens": 0}, "max_new_tokens: must be an integer >= 1"),
        ({"max_new_tokens": 200}, "max_new_tokens: must leave prompt and output within the model's 128"),
        ({"stop_sequences": [[1]]}, "stop_sequences: are not supported"),
        ({"draft": "early_exit"}, "draft: does not apply to a diffusion model"),
        ({"draft_params": {"gamma": 3}}, "draft_params: need a draft"),
        (
            {"draft": "fewer_steps", "draft_params": {"gamma": 0}},
            "draft_params.gamma: must be an integer >= 1",
        ),
        (
            {"draft": "fewer_steps", "draft_params": {"drafter": "x"}},
            "draft_params.drafter: must be auto or one of",
        ),
        (
            {"draft": "fewer_steps", "draft_params": {"width": 2}},
            "draft_params.width: is no parameter of auto",
        ),
    ],
)
def test_bad_arguments_are_one_clear_sentence(changes: dict[str, Any], key: str) -> None:
    arguments: dict[str, Any] = {"max_new_tokens": 12} | changes
    with pytest.raises(ConfigError) as error:
        generate(build(0, BIDIRECTIONAL, 4), prompts((4,)), **arguments)
    assert str(error.value).startswith(key)
    assert "\n" not in str(error.value)


def test_prompts_must_not_hold_the_mask_token() -> None:
    with pytest.raises(ConfigError, match="must not hold the mask token"):
        ssd_infer.generate(build(0), [[1, MASK]], max_new_tokens=4)


def test_a_causal_checkpoint_passed_as_diffusion_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a masked-diffusion model"):
        generate(build_model(), [[1, 2]], max_new_tokens=4)
    with pytest.raises(ConfigError, match="fewer_steps"):
        ssd_infer.generate(build_model(), [[1, 2]], draft="fewer_steps", max_new_tokens=4)


def test_a_model_without_a_mask_token_is_refused() -> None:
    model = build(0)
    model.config.mask_token_id = None
    with pytest.raises(ConfigError, match="must name the vocabulary's mask token"):
        generate(model, [[1, 2]], max_new_tokens=4)


def test_sampling_on_a_device_without_float64_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from ssd_infer.families.diffusion.denoiser import Denoiser

    model = build(0, dtype=torch.float32)
    Denoiser.of(model)
    monkeypatch.setattr(Denoiser, "device", property(lambda self: torch.device("mps")))
    with pytest.raises(ConfigError, match="needs float64, which mps has not"):
        generate(model, [[1, 2]], max_new_tokens=4, do_sample=True)


def test_the_model_is_left_as_it_was() -> None:
    model = build(0).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ssd_infer.generate(model, prompts((4,)), draft="fewer_steps", max_new_tokens=8)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
