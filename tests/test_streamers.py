"""Whoever follows a decoding hears its end exactly once: when it ends, when it raises, and when it is refused."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TextIteratorStreamer

import ssd_infer
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError
from ssd_infer.strategies.early_exit.early_exit import EarlyExit
from ssd_infer.strategies.fewer_steps import generate as diffusion_api
from tests.conftest import build_model
from tests.families.diffusion.support import build as build_diffusion
from tests.families.speech.support import tiny_asr

IDS = torch.tensor([[2, 3]])
PARAMS = {"exit_layer": 2, "gamma": 2}


class Words:
    """A tokenizer, as far as streamers use one."""

    def decode(self, ids: Any, **_: Any) -> str:
        """Return ids as words."""
        return "".join(f"{int(token)} " for token in ids)


class Counting(TextIteratorStreamer):
    """A streamer for a thread, which counts its ends; whoever waits for it gives up after ten seconds."""

    def __init__(self) -> None:
        super().__init__(Words(), timeout=10.0)  # type: ignore[arg-type]
        self.ends = 0

    def end(self) -> None:
        """Count, and end."""
        self.ends += 1
        super().end()


def causal(**given: Any) -> Any:
    """Decode with `ssd_infer.generate`."""
    return ssd_infer.generate(**{"model": build_model(), "input_ids": IDS, "max_new_tokens": 6} | given)


def diffusion(**given: Any) -> Any:
    """Decode with a diffusion model through `ssd_infer.generate`."""
    return ssd_infer.generate(**{"model": build_diffusion(0), "input_ids": IDS, "max_new_tokens": 4} | given)


def diffusion_itself(**given: Any) -> Any:
    """Decode with the generate of the kind."""
    return diffusion_api.generate(
        **{"model": build_diffusion(0), "input_ids": IDS, "max_new_tokens": 4} | given
    )


def hf(name: str) -> Callable[..., Any]:
    """Return a way to decode through transformers, the streamer under this name."""

    def call(**given: Any) -> Any:
        follower = {name: given.pop("streamer")}
        return build_model().generate(
            IDS,
            do_sample=False,
            custom_generate=ssd_infer.hf_generate,
            **{"draft": "early_exit", "draft_params": PARAMS, "max_new_tokens": 6} | follower | given,
        )

    return call


CALLS: dict[str, Callable[..., Any]] = {
    "generate": causal,
    "diffusion": diffusion,
    "diffusion itself": diffusion_itself,
    "hf streamer": hf("streamer"),
    "hf token_streamer": hf("token_streamer"),
}


def followed(call: Callable[..., Any], **given: Any) -> tuple[str, BaseException | None, int]:
    """Decode in a thread and read what it streams; return the text, what was raised, and how often it ended."""
    streamer = Counting()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            call(streamer=streamer, **given)
        except Exception as error:  # noqa: BLE001 -- what was raised is what is tested
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        text = "".join(streamer)
    except queue.Empty:
        pytest.fail(f"nobody ended the streamer; raised: {raised}")
    finally:
        thread.join()
    return text, raised[0] if raised else None, streamer.ends


@pytest.mark.parametrize("name", CALLS)
def test_a_decoding_that_ends_ends_its_streamer_once(name: str) -> None:
    text, raised, ends = followed(CALLS[name])
    assert (raised, ends) == (None, 1)
    assert text.startswith("2 3 ")
    assert len(text.split()) == 2 + (4 if name.startswith("diffusion") else 6)


@pytest.mark.parametrize("name", CALLS)
def test_a_decoding_that_raises_ends_its_streamer_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("it broke")

    monkeypatch.setattr(Target, "logits", broken)
    monkeypatch.setattr(EarlyExit, "step", broken)
    monkeypatch.setattr(diffusion_api, "decode", broken)
    monkeypatch.setattr(Target, "_check_exact", lambda _self: None)
    _, raised, ends = followed(CALLS[name])
    assert isinstance(raised, RuntimeError)
    assert ends == 1


class Illegible(Words):
    """A tokenizer that cannot decode what comes after the prompt."""

    def decode(self, ids: Any, **_: Any) -> str:
        """Decode two ids, and no more."""
        if len(ids) > 2:
            raise UnicodeError("no text")
        return super().decode(ids)


@pytest.mark.parametrize("name", CALLS)
def test_a_streamer_that_cannot_decode_is_let_go_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own end cannot decode either, and would leave whoever reads it waiting."""
    monkeypatch.setattr(Words, "__new__", lambda _cls: object.__new__(Illegible))
    text, raised, ends = followed(CALLS[name])
    assert text == "2 3 "
    assert isinstance(raised, UnicodeError)
    assert ends == 1


def test_what_the_decoding_raised_is_raised_and_not_what_its_end_ran_into() -> None:
    class Deaf:
        def put(self, _value: Any) -> None:
            raise ValueError("the first")

        def end(self) -> None:
            raise ValueError("the second")

    with pytest.raises(ValueError, match="the first"):
        causal(streamer=Deaf())


REFUSED: list[dict[str, Any]] = [
    {"draft": 5},
    {"draft": "nonesuch"},
    {"draft_params": {"gama": 1}},
    {"seed": -1},
    {"max_new_tokens": 0},
    {"input_ids": [[97000]]},
    {"model": None},
]


PAIRS = [
    pytest.param(name, given, id=f"{name}-{number}")
    for name in CALLS
    for number, given in enumerate(REFUSED)
    if not name.startswith("hf")
    or given.keys() & {"draft", "draft_params", "seed"}  # transformers has the others
]


@pytest.mark.parametrize(("name", "given"), PAIRS)
def test_a_refused_call_ends_its_streamer_once(name: str, given: dict[str, Any]) -> None:
    _, raised, ends = followed(CALLS[name], **given)
    assert isinstance(raised, ConfigError)
    assert ends == 1


def test_speech_refuses_and_ends_its_streamer() -> None:
    def call(streamer: Any) -> Any:
        return ssd_infer.generate(tiny_asr(), IDS, max_new_tokens=2, streamer=streamer)

    _, raised, ends = followed(call)
    assert isinstance(raised, ConfigError)
    assert ends == 1


def test_two_streamers_are_refused_and_both_end() -> None:
    first, second = Counting(), Counting()
    with pytest.raises(ConfigError, match="token_streamer: must be given once"):
        hf("streamer")(streamer=first, token_streamer=second)
    assert (first.ends, second.ends) == (1, 1)


def test_the_written_file_follows_a_streamer_too(tmp_path: Path) -> None:
    model = build_model()
    model.save_pretrained(tmp_path)
    ssd_infer.write_custom_generate(tmp_path, PARAMS)

    def call(streamer: Any, **given: Any) -> Any:
        return model.generate(
            IDS,
            do_sample=False,
            max_new_tokens=6,
            streamer=streamer,
            custom_generate=str(tmp_path),
            trust_remote_code=True,
            **given,
        )

    text, raised, ends = followed(call)
    assert (raised, ends, len(text.split())) == (None, 1, 8)
    _, raised, ends = followed(call, draft_params={"gama": 1})
    assert raised is not None
    assert ends == 1
