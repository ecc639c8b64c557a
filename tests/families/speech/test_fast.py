"""The views a speech model decodes through: the same numbers, the same weights, and the faster product really runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ssd_infer.engine.kernels import products
from ssd_infer.families.speech import fast
from ssd_infer.families.speech.fast import FastModel, fastest
from ssd_infer.strategies.ctc_draft.ctc_params import NAMES, parse
from ssd_infer.strategies.ctc_draft.decode import decode
from tests.families.speech.support import encode, plain, tiny_asr

VOCAB = 13
RAGGED = [61, 180, 40, 97]

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let every product pay; note the rows of those oneDNN computes."""
    rows: list[int] = []
    operation = products._onednn()

    def noted(hidden: torch.Tensor, *rest: Any) -> torch.Tensor:
        rows.append(hidden.numel() // hidden.shape[-1])
        done: torch.Tensor = operation(hidden, *rest)
        return done

    monkeypatch.setattr(products, "_WORK", 1)
    monkeypatch.setattr(products, "onednn_pays", lambda threads: True)
    monkeypatch.setattr(products, "_onednn", lambda: noted)
    monkeypatch.setattr(fast, "onednn_pays", lambda threads: True)
    return rows


@torch.inference_mode()
def features(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    mels = model.config.encoder_config().num_mel_bins
    waves = [torch.randn(count, mels, generator=generator) for count in RAGGED]
    return torch.nn.utils.rnn.pad_sequence(waves, batch_first=True), torch.tensor(RAGGED)


def test_the_encoder_computes_the_same(calls: list[int]) -> None:
    model = tiny_asr(0, VOCAB).float()
    quick = fastest(model)
    assert isinstance(quick, FastModel)
    with torch.no_grad():
        before = len(calls)
        found = quick.encode(*features(model))
        assert len(calls) > before + 20, "linear layers and convolutions of one frame's width"
        calls.clear()
    want = model.encode(*features(model))
    assert not calls, "with gradients nothing changes"
    assert found.lengths.tolist() == want.lengths.tolist()
    torch.testing.assert_close(found.hidden, want.hidden.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.ctc_logits, want.ctc_logits.detach(), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [None, *NAMES])
def test_every_decoder_gives_the_same_tokens(calls: list[int], name: str | None) -> None:
    model = tiny_asr(0, VOCAB, eos=1.0).float()
    given = (
        {"theta_ctc": None}
        if name == "ctc_draft"
        else {"theta_ctc": 0.0}
        if name == "ctc_draft:gate_only"
        else {}
    )
    params = None if name is None else parse(name, given, VOCAB)
    with torch.inference_mode():
        encoded = model.encode(*features(model))
        want = [row.tokens for row in decode(model, encoded, name, params).rows]
        calls.clear()
        assert [row.tokens for row in decode(fastest(model), encoded, name, params).rows] == want
    assert bool(calls) == (name != "ctc_draft:ctc_only")


def test_narrow_passes_stay_with_the_library_that_is_faster_for_them(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_asr(0, VOCAB, eos=1.0).float()
    monkeypatch.setattr(products, "_WORK", fast.NARROW * 16 * 48 + 1)
    quick = fastest(model)
    with torch.inference_mode():
        state = quick.decoder.start(model.encode(*features(model)))
        monkeypatch.setattr(products, "_WORK", 1)
        calls.clear()
        quick.decoder.step(state, torch.ones(4, fast.NARROW // 4, dtype=torch.long))
        assert not calls
        quick.decoder.step(state, torch.ones(4, fast.NARROW // 4 + 1, dtype=torch.long))
        assert set(calls) == {fast.NARROW + 4}


def test_the_weights_are_shared_and_the_model_is_left_alone(calls: list[int]) -> None:
    model = tiny_asr(0, VOCAB).float()
    quick, layers = fastest(model), dict(model.named_modules())
    with torch.inference_mode():
        before = quick.encode(*features(model)).ctc_logits
        model.ctc_head.weight.add_(0.5)
        after = quick.encode(*features(model)).ctc_logits
    assert not torch.equal(before, after)
    assert all(module is layers[name] for name, module in model.named_modules())
    assert (quick.device, quick.dtype, quick.training) == (model.device, torch.float32, False)
    model.train()
    with pytest.raises(RuntimeError, match=r"model\.eval\(\)"):
        decode(quick, encode(tiny_asr(0, VOCAB), [60]), None)


def test_a_machine_where_it_does_not_pay_decodes_with_the_model_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fast, "onednn_pays", lambda threads: False)
    model = tiny_asr(0, VOCAB)
    assert fastest(model) is model
    assert plain(fastest(model), encode(model, [60])) == plain(model, encode(model, [60]))
