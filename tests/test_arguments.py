"""Arguments of every entry point: None means off; a wrong type or range is named before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ssd_infer
from ssd_infer.errors import ConfigError
from ssd_infer.models.asr_processor import ASRFeatureExtractor, CTCASRProcessor, character_tokenizer
from tests.conftest import build_model
from tests.families.diffusion.support import build as build_diffusion
from tests.families.speech.support import MELS, tiny_asr

Call = Callable[..., Any]
NAN, INF = float("nan"), float("inf")
HUGE = 10**5000
"""Longer than Python prints."""
NO_INTEGER: tuple[Any, ...] = (
    True,
    2.0,
    "3",
    [3],
    {},
    object(),
    np.bool_(1),
    np.float32(2),
    torch.tensor(2.0),
)

EVERYWHERE: list[tuple[str, tuple[Any, ...]]] = [
    ("max_new_tokens", (None, *NO_INTEGER, 0, -1, np.int64(0), torch.tensor([4]))),
    ("do_sample", (1, 0, "yes", [True], torch.tensor(1))),
    (
        "temperature",
        ("1", True, [1.0], INF, -INF, NAN, 0.0, -1, 1j, HUGE, torch.tensor([1.0]), np.float64("nan")),
    ),
    ("top_k", (*NO_INTEGER, -1, INF)),
    ("top_p", ("0.5", True, [0.5], 0.0, -0.5, 1.5, NAN, INF)),
    ("seed", (*NO_INTEGER, -1, 2**63, 2**70, HUGE)),
    ("eos_token_id", ("</s>", [None], [2.0], [True], -2, [3, -2], {3: 4}, 2.5, torch.tensor([2.0]), [[3]])),
    ("draft", (5, True, ["early_exit"], b"early_exit", "nonesuch", "")),
    ("draft_params", ("gamma", 3, [("gamma", 3)], {1: 2}, {"gama": 3}, {"gamma": 0}, {"gamma": True})),
    ("streamer", (5, "print", object())),
    ("model", (None, "gpt2", 5, torch.nn.Linear(2, 2))),
]
"""Argument → values that no entry point takes."""
CAUSAL: list[tuple[str, tuple[Any, ...]]] = [
    (
        "stop_sequences",
        ([5], 5, "stop", ["stop"], [[5.0]], [[]], [[True]], [[None]], [[-1]], {5: 6}, [5, [6]]),
    ),
    ("sampler", ({"order": "random"}, 5)),
]
PROMPTS: tuple[Any, ...] = (
    None,
    5,
    "text",
    b"text",
    {},
    [],
    [[]],
    [[2, None]],
    [[2, True]],
    [[2, 3.0]],
    ["text"],
    [5, [6]],
    [[[2]]],
    torch.zeros(1, 2, 3, dtype=torch.long),
    torch.zeros(1, 2, dtype=torch.long, device="meta"),
    [torch.zeros(2, dtype=torch.long, device="meta")],
    torch.tensor([[2.0, 3.0]]),
    torch.tensor([[True, False]]),
    torch.tensor([[2j]]),
    torch.tensor(3),
    np.array([["a"]]),
    np.array([[None]]),
    [torch.tensor([[2, 3], [4, 5]])],
    torch.zeros(1, 0, dtype=torch.long),
)
MASKS: tuple[Any, ...] = (
    5,
    "11",
    [[1]],
    [1],
    [["1", "1"]],
    [[1, 2]],
    [[1, None]],
    [[0.5, 1]],
    [[0, 0]],
    torch.full((1, 2), NAN),
    torch.tensor([[0.0, -3e38]]),
    torch.ones(1, 1, 2, 2),
    torch.ones(1, 2, device="meta"),
    np.ones((2, 2)),
    {"attention_mask": 1},
)


@pytest.fixture(scope="module")
def causal() -> Call:
    """Return `ssd_infer.generate` on a causal model."""
    model = build_model()
    return lambda **given: ssd_infer.generate(
        **{"model": model, "input_ids": [[2, 3]], "max_new_tokens": 4} | given
    )


@pytest.fixture(scope="module")
def diffusion() -> Call:
    """Return `ssd_infer.generate` on a diffusion model."""
    model = build_diffusion(0)
    return lambda **given: ssd_infer.generate(
        **{"model": model, "input_ids": [[2, 3]], "max_new_tokens": 4} | given
    )


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Call:
    """Return `ssd_infer.transcribe` on a speech model."""
    folder = tmp_path_factory.mktemp("speech")
    tiny_asr(0, 31, eos=1.0).float().save_pretrained(folder)
    extractor = ASRFeatureExtractor(feature_size=MELS, sampling_rate=16000)
    CTCASRProcessor(extractor, character_tokenizer()).save_pretrained(folder)
    loaded = ssd_infer.load(folder, dtype="float32", device="cpu")
    wave = np.random.default_rng(0).normal(0, 0.1, 16000).astype(np.float32)
    return lambda **given: ssd_infer.transcribe(
        **{"model": loaded, "audio": wave, "sampling_rate": 16000} | given
    )


def cases(*tables: list[tuple[str, tuple[Any, ...]]]) -> list[Any]:
    """Return one test case a value, named by argument and value."""
    return [
        pytest.param(name, value, id=f"{name}-{number}-{type(value).__name__}")
        for table in tables
        for name, values in table
        for number, value in enumerate(values)
    ]


def refused(call: Call, name: str, value: Any) -> None:
    """Check that `value` is refused by the name of its argument, with a rule and a remedy, in a line or more."""
    more = {"do_sample": True} if name in ("temperature", "top_k", "top_p", "seed") else {}
    more |= {"draft": "early_exit"} if name == "draft_params" else {}
    with pytest.raises(ConfigError) as caught:
        call(**more | {name: value})
    problem = caught.value.problems[0]
    assert problem.key.split(".")[0].split("[")[0] == name
    assert problem.rule
    assert str(caught.value).startswith(name)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(("name", "value"), cases(EVERYWHERE, CAUSAL))
def test_a_causal_model_refuses_it(causal: Call, name: str, value: Any) -> None:
    refused(causal, name, value)


@pytest.mark.parametrize(
    ("name", "value"), cases(EVERYWHERE, CAUSAL[:1], [("sampler", (5, {"ordr": 1}, {"steps": True}))])
)
def test_a_diffusion_model_refuses_it(diffusion: Call, name: str, value: Any) -> None:
    if name == "draft_params":
        with pytest.raises(ConfigError, match="draft_params"):
            diffusion(draft="fewer_steps", draft_params=value)
    else:
        refused(diffusion, name, value)


@pytest.mark.parametrize(
    ("name", "value"), cases([("input_ids", PROMPTS), ("attention_mask", MASKS)]), ids=None
)
def test_prompts_and_masks_that_are_none(causal: Call, diffusion: Call, name: str, value: Any) -> None:
    given = {"input_ids": torch.tensor([[2, 3]]), name: value}
    for call in (causal, diffusion):
        with pytest.raises(ConfigError) as caught:
            call(**given)
        keys = [problem.key.split("[")[0] for problem in caught.value.problems]
        assert keys[0] in (name, "input_ids")  # a mask of zeros leaves an empty prompt


SPEECH: list[tuple[str, tuple[Any, ...]]] = [
    ("audio", (None, 5, 0.5, b"RIFF", {}, {"array": [0.1]}, object(), [], [None], [{}], torch.tensor(0.5))),
    ("sampling_rate", ("16000", 16000.0, True, [16000], object(), NAN, None)),
    ("segment_seconds", ("a", True, [5], 0.0, -1, 0.4, NAN, INF, HUGE)),
    ("batch_size", (*NO_INTEGER, None, 0, -1)),
    ("draft", (5, True, ["ctc_draft"], "nonesuch", "early_exit")),
    ("draft_params", (3, "theta", {1: 2}, {"theta": 1})),
    ("model", (None, "x", 5, torch.nn.Linear(2, 2))),
]


@pytest.mark.parametrize(("name", "value"), cases(SPEECH))
def test_transcribe_refuses_it(speech: Call, name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        speech(**({"draft": "ctc_draft"} if name == "draft_params" else {}) | {name: value})
    assert caught.value.problems[0].key.split(".")[0].split("[")[0] == name


HF: list[tuple[str, tuple[Any, ...]]] = [
    ("seed", (*NO_INTEGER, -1, 2**63)),
    ("draft", (5, True, "nonesuch")),
    ("draft_params", (3, "gamma", {1: 2}, {"gama": 3}, {"gamma": 0})),
    ("token_streamer", (5, "print")),
]


@pytest.mark.parametrize(("name", "value"), cases(HF))
def test_hf_generate_refuses_it(name: str, value: Any) -> None:
    given = {"draft_params": {"exit_layer": 2, "gamma": 2}} | {name: value}
    with pytest.raises(ConfigError) as caught:
        build_model().generate(
            torch.tensor([[2, 3]]),
            max_new_tokens=4,
            do_sample=False,
            custom_generate=ssd_infer.hf_generate,
            **given,
        )
    assert caught.value.problems[0].key.split(".")[0] == name


def test_all_problems_of_a_call_come_together(causal: Call, diffusion: Call, speech: Call) -> None:
    wrong = {
        "model": None,
        "max_new_tokens": True,
        "temperature": "1",
        "top_k": 2.0,
        "top_p": "x",
        "seed": -1,
        "eos_token_id": [None],
        "stop_sequences": [5],
        "draft": 5,
        "streamer": 7,
    }
    for call in (causal, diffusion):
        with pytest.raises(ConfigError) as caught:
            call(**wrong)
        assert {problem.key.split("[")[0] for problem in caught.value.problems} == set(wrong)
    heard = {
        "model": None,
        "audio": 5,
        "sampling_rate": "x",
        "segment_seconds": "x",
        "batch_size": 0,
        "draft": 5,
    }
    with pytest.raises(ConfigError) as caught:
        speech(**heard)
    assert {problem.key for problem in caught.value.problems} == set(heard)


def test_problems_of_a_draft_come_with_the_others(causal: Call, diffusion: Call) -> None:
    with pytest.raises(ConfigError) as caught:
        causal(draft="early_exit", draft_params={"gama": 2}, max_new_tokens=0)
    assert {problem.key for problem in caught.value.problems} == {"draft_params.gama", "max_new_tokens"}
    with pytest.raises(ConfigError) as caught:
        diffusion(draft="fewer_steps", draft_params={"gamma": 0}, max_new_tokens=0, sampler={"ordr": 1})
    assert {problem.key for problem in caught.value.problems} == {
        "draft_params.gamma",
        "max_new_tokens",
        "sampler.ordr",
    }


class Unprintable:
    """An object whose own description raises."""

    def __repr__(self) -> str:
        """Raise."""
        raise RuntimeError("no description")


def test_what_cannot_be_described_is_named_by_its_type(causal: Call) -> None:
    with pytest.raises(ConfigError, match="Unprintable object"):
        causal(max_new_tokens=Unprintable())


@pytest.mark.parametrize("tiny", [1e-300, 1e-46, 1e-12])
def test_the_smallest_nucleus_holds_the_most_likely_token(causal: Call, tiny: float) -> None:
    assert causal(do_sample=True, top_p=tiny, seed=1).sequences == causal().sequences


def test_parameters_of_drafts_may_be_numbers_of_other_libraries(causal: Call, diffusion: Call) -> None:
    given = {"exit_layer": np.int64(2), "gamma": torch.tensor(2), "confidence": np.float32(0.5)}
    out = causal(draft="early_exit", draft_params=given)
    assert out.draft_params == {"exit_layer": 2, "gamma": 2, "confidence": 0.5}
    given = {"skip_attention": np.array([1]), "skip_mlp": [np.int64(1)], "gamma": 2, "confidence": 0.0}
    out = causal(draft="skip_set", draft_params=given | {"aim": 0.5, "guard": 0.0})
    assert (out.draft_params["skip_attention"], out.draft_params["skip_mlp"]) == ([1], [1])
    chain = {"drafter": "ssd_chain", "gamma": np.int64(2)}
    assert diffusion(draft="fewer_steps", draft_params=chain).draft_params["gamma"] == 2


@pytest.mark.parametrize("value", [np.array([1, 2]), np.array([]), torch.tensor([1, 2])], ids=str)
def test_several_numbers_for_one_are_refused(causal: Call, diffusion: Call, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"draft_params\.gamma: must be an integer"):
        causal(draft="early_exit", draft_params={"gamma": value})
    with pytest.raises(ConfigError, match=r"draft_params\.gamma: must be an integer"):
        diffusion(draft="fewer_steps", draft_params={"drafter": "ssd_chain", "gamma": value})


OFF: list[dict[str, Any]] = [
    {"temperature": None, "top_k": None, "top_p": None},
    {"temperature": np.float32(1.0), "top_k": np.int64(0), "top_p": torch.tensor(1.0)},
    {"temperature": 1, "top_k": torch.tensor(0), "top_p": 1},
    {"do_sample": np.bool_(1), "seed": np.uint32(3)},
    {"do_sample": torch.tensor(data=True), "seed": torch.tensor(3), "max_new_tokens": np.int32(4)},
    {"stop_sequences": None, "draft": None, "draft_params": None, "streamer": None},
    {"stop_sequences": [], "draft_params": {}, "eos_token_id": []},
]


@pytest.mark.parametrize("given", OFF, ids=[str(number) for number in range(len(OFF))])
def test_none_is_off_and_numbers_of_other_libraries_count(
    causal: Call, diffusion: Call, given: dict[str, Any]
) -> None:
    for call in (causal, diffusion):
        plain = call(do_sample=True, seed=3)
        assert call(**{"do_sample": True, "seed": 3} | given).sequences == plain.sequences
        assert call(do_sample=None).sequences == call().sequences


@pytest.mark.parametrize(
    "mask",
    [[[0, 1, 1], [1, 1, 1]], ((0, 1, 1), (1, 1, 1)), [[False, True, True], [True, True, True]]],
    ids=["list", "tuple", "bool"],
)
def test_a_mask_may_be_a_list(causal: Call, diffusion: Call, mask: Any) -> None:
    ids = torch.tensor([[0, 2, 3], [4, 5, 6]])
    forms = (mask, torch.tensor(mask), np.array(mask), torch.tensor(mask).float())
    for call in (causal, diffusion):
        expected = call(input_ids=[[2, 3], [4, 5, 6]]).sequences
        for form in forms:
            assert call(input_ids=ids, attention_mask=form).sequences == expected
            assert call(input_ids=ids.numpy(), attention_mask=form).sequences == expected


def test_rows_of_other_libraries_are_prompts(causal: Call) -> None:
    expected = causal(input_ids=[[2, 3]]).sequences
    forms: list[Any] = [
        np.array([[2, 3]]),
        np.array([2, 3]),
        [np.array([2, 3])],
        [np.int64(2), np.int64(3)],
        [torch.tensor(2), torch.tensor(3)],
        [[torch.tensor(2), 3]],
        ((2, 3),),
    ]
    assert all(causal(input_ids=form).sequences == expected for form in forms)


def test_ends_come_in_many_forms(causal: Call) -> None:
    end = causal(max_new_tokens=8).sequences[0][3]
    expected = causal(max_new_tokens=8, eos_token_id=end).sequences
    assert expected != causal(max_new_tokens=8).sequences
    forms: list[Any] = [
        [end],
        (end,),
        {end},
        np.int64(end),
        np.array([end]),
        torch.tensor(end),
        torch.tensor([end]),
    ]
    assert all(causal(max_new_tokens=8, eos_token_id=form).sequences == expected for form in forms)
    free = causal(max_new_tokens=8).sequences
    assert all(causal(max_new_tokens=8, eos_token_id=form).sequences == free for form in ([], (), -1))
    stops: list[Any] = [[[end]], ((end,),), [np.array([end])], [torch.tensor([end])], torch.tensor([[end]])]
    assert all(causal(max_new_tokens=8, stop_sequences=form).sequences == expected for form in stops)
