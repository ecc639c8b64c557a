"""The masked-diffusion model class: what it sees, what it predicts, and that a checkpoint carries it along."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, DynamicCache

from ssd_infer.models.masked_diffusion import MDMConfig, MDMForMaskedLM, block_causal, shift_right

VOCAB, MASK = 97, 96


def build(family: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """Return a small model in evaluation mode; `changes` are settings of `MDMConfig`."""
    backbone = AutoConfig.for_model(
        family,
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.2,
        max_position_embeddings=64,
    )
    torch.manual_seed(seed)
    return MDMForMaskedLM(MDMConfig(backbone, mask_token_id=MASK, **changes)).to(dtype).eval()


def blocks(**changes: Any) -> Any:
    return build(objective="bd3lm", block_size=4, **changes)


def ids(rows: int = 2, length: int = 12, seed: int = 1) -> Tensor:
    return torch.randint(0, MASK, (rows, length), generator=torch.Generator().manual_seed(seed))


def depends(model: Any, tokens: Tensor) -> Tensor:
    """Return bool `(Q, K)`: whether the logits at q change when token k does."""
    with torch.no_grad():
        base = model(tokens).logits[0]
        rows = []
        for key in range(tokens.shape[1]):
            other = tokens.clone()
            other[0, key] = (other[0, key] + 1) % MASK
            rows.append((model(other).logits[0] - base).abs().amax(-1) > 1e-12)
    return torch.stack(rows, 1)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_sequence_model_sees_everything_and_a_block_model_no_later_block(family: str) -> None:
    assert depends(build(family), ids(1, 9)).all()
    where = torch.arange(10)[None]
    expected = block_causal(where, where, 4)[0]
    seen = depends(blocks(family=family), ids(1, 10))
    assert torch.equal(seen, expected)
    assert expected.sum() == 4 * 4 + 4 * 8 + 2 * 10


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_blocks_over_a_cache_equal_one_pass_and_so_they_do_again_after_a_crop(family: str) -> None:
    model, tokens = blocks(family=family), ids()
    whole = model(tokens).logits
    cache = DynamicCache(config=model.config.backbone_config)
    for start in (0, 4, 8):
        for again in (False, True):
            if again:
                cache.crop(-4)
            part = model(tokens[:, start : start + 4], past_key_values=cache).logits
            torch.testing.assert_close(part, whole[:, start : start + 4], rtol=1e-9, atol=1e-9)
    both = DynamicCache(config=model.config.backbone_config)
    model(tokens[:, :4], past_key_values=both)
    torch.testing.assert_close(
        model(tokens[:, 4:], past_key_values=both).logits, whole[:, 4:], rtol=1e-9, atol=1e-9
    )


@torch.no_grad()
def test_use_cache_hands_back_the_cache_it_wrote() -> None:
    model = blocks()
    out = model(ids(), use_cache=True)
    assert out.cache.get_seq_length() == 12
    assert model(ids()).cache is None


@torch.no_grad()
@pytest.mark.parametrize("make", [build, blocks])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(make: Any, side: str) -> None:
    model, tokens = make(), ids()
    pad, real = torch.zeros(2, 3, dtype=torch.long), torch.ones_like(tokens)
    order = (lambda a, b: [a, b]) if side == "left" else (lambda a, b: [b, a])
    padded, mask = torch.cat(order(pad, tokens), 1), torch.cat(order(pad, real), 1)
    kept = slice(3, None) if side == "left" else slice(0, 12)
    found = model(padded, attention_mask=mask).logits
    torch.testing.assert_close(found[:, kept], model(tokens).logits, rtol=1e-9, atol=1e-9)
    assert torch.isfinite(found).all()


@torch.no_grad()
@pytest.mark.parametrize(
    ("backend", "family"), [("eager", "llama"), ("eager", "qwen3"), ("flex_attention", "qwen3")]
)
def test_four_dimensional_masks_mean_the_same_to_every_backend(backend: str, family: str) -> None:
    model, tokens = build(family, dtype=torch.float32), ids()
    generator = torch.Generator().manual_seed(3)
    mask = (torch.rand(2, 1, 12, 12, generator=generator) < 0.5) | torch.eye(12, dtype=torch.bool)
    expected = model(tokens, attention_mask=mask).logits
    additive = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    torch.testing.assert_close(model(tokens, attention_mask=additive).logits, expected, rtol=1e-4, atol=1e-4)
    model.set_attn_implementation(backend)
    with torch.compiler.set_stance(
        "force_eager"
    ):  # flex attention's own code, without minutes of compiling it
        found = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    if backend == "eager":  # where True would be added as 1: the mask must matter at all
        assert not torch.allclose(model(tokens).logits, expected, atol=1e-2)
        torch.testing.assert_close(
            model(tokens, attention_mask=additive).logits, expected, rtol=1e-4, atol=1e-4
        )


@torch.no_grad()
def test_shifted_logits_are_the_unshifted_ones_a_position_later() -> None:
    plain, shifted = build(), build(logit_shift=True)
    shifted.load_state_dict(plain.state_dict())
    base, found = plain(ids()).logits, shifted(ids()).logits
    assert torch.equal(found[:, 1:], base[:, :-1])
    assert torch.equal(found[:, :1], base[:, :1])
    assert torch.equal(shift_right(base)[:, 1:], base[:, :-1])


def test_the_mask_token_has_no_probability_and_labels_are_not_shifted() -> None:
    model, tokens = build(dtype=torch.float32), ids()
    logits = model(tokens).logits
    assert (logits.softmax(-1)[..., MASK] == 0).all()
    labels = tokens.clone()
    labels[:, ::2] = -100
    nll = -logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0][:, 1::2].mean()
    torch.testing.assert_close(model(tokens, labels=labels).loss, nll)
    model(tokens, labels=labels).loss.backward()
    assert torch.isfinite(model.lm_head.weight.grad).all()


@torch.no_grad()
def test_only_the_wanted_logits_are_made() -> None:
    model = blocks()
    whole = model(ids()).logits
    torch.testing.assert_close(model(ids(), logits_to_keep=4).logits, whole[:, -4:])
    chosen = torch.tensor([2, 5])
    torch.testing.assert_close(model(ids(), logits_to_keep=chosen).logits, whole[:, chosen])


def test_auto_classes_know_it_and_settings_survive(tmp_path: Path) -> None:
    model = blocks(order="left_to_right", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, MDMConfig)
    assert (config.mask_token_id, config.block_size, config.order) == (MASK, 4, "left_to_right")
    assert config.backbone_config.is_causal is False
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (VOCAB, 32, 3)
    for auto in (AutoModelForMaskedLM, AutoModel):
        assert torch.equal(auto.from_pretrained(tmp_path)(ids()).logits, model(ids()).logits)


@pytest.mark.parametrize(
    "settings", [{"objective": "autoregressive"}, {"objective": "bd3lm"}, {"mask_token_id": VOCAB}]
)
def test_settings_no_model_can_have_are_refused(settings: dict[str, Any]) -> None:
    backbone = AutoConfig.for_model("llama", vocab_size=VOCAB)
    with pytest.raises(ValueError, match=r"got"):
        MDMConfig(backbone, **settings)


@pytest.mark.integration
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_fresh_process_without_the_toolkit_computes_the_same(tmp_path: Path, family: str) -> None:
    model = blocks(family=family, dtype=torch.float32)
    model.save_pretrained(tmp_path / "model")
    torch.save((ids(), model(ids()).logits.detach()), tmp_path / "expected.pt")
    code = (
        "import torch, sys\n"
        "from transformers import AutoModelForMaskedLM\n"
        "tokens, expected = torch.load('expected.pt')\n"
        "model = AutoModelForMaskedLM.from_pretrained('model', trust_remote_code=True)\n"
        "assert not any(name.startswith('ssd_') for name in sys.modules)\n"
        "assert torch.equal(model(tokens).logits, expected)\n"
        "assert model.lm_head.weight is model.model.embed_tokens.weight\n"
    )
    tf = str(Path(sys.modules["transformers"].__file__ or "").parents[1])
    env = os.environ | {
        "PYTHONPATH": tf,
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
