"""The diffusion recipe: what a step computes, that splitting a step changes nothing, and that a run survives a stop."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

from ssd_infer.errors import ConfigError, DataError, UnsupportedModelError
from ssd_infer.families.diffusion.likelihood import denoiser_of, left_to_right_of_sequence
from ssd_infer.models.masked_diffusion import MDMConfig, block_causal
from ssd_train import run
from ssd_train.config.schema import HFModelConfig, ScratchModelConfig
from ssd_train.recipes import registry as recipes
from ssd_train.recipes.base import StepContext
from ssd_train.recipes.diffusion.recipe import DiffusionRecipe, _cut_some
from ssd_train.recipes.diffusion.settings import DiffusionConfig
from ssd_train.recipes.plain.settings import PlainConfig
from ssd_train.runs import checkpoints
from tests.train.diffusion_support import MASK, OBJECTIVES, diffusion_root, tiny_denoiser
from tests.train.ranks import curve, train_ranks
from tests.train.support import tiny_llama


def batch(name: str, rows: int = 8, length: int = 12) -> dict[str, Tensor]:
    """Return samples of unequal supervised lengths, padded where the objective can be."""
    ids = torch.randint(0, MASK, (rows, length), generator=torch.Generator().manual_seed(2))
    if name in ("drafts", "shifted"):
        return {"input_ids": ids}
    mask = torch.ones_like(ids)
    for row in range(rows):
        mask[row, length - (row * 5) % 8 :] = 0 if row else 1
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :2] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def prepared(name: str) -> tuple[DiffusionRecipe, Any]:
    recipe, model = recipes.build(OBJECTIVES[name]), tiny_denoiser(OBJECTIVES[name])
    recipe.prepare(model)
    assert isinstance(recipe, DiffusionRecipe)
    return recipe, model


def gradients(name: str, sizes: list[int]) -> tuple[float, list[Tensor]]:
    """Return the loss and gradients of one optimizer step whose samples come in micro-batches of `sizes`."""
    recipe, model = prepared(name)
    whole = batch(name)
    denom = recipe.denominator(whole)
    total, offset = 0.0, 0
    for size in sizes:
        part = {key: value[offset : offset + size] for key, value in whole.items()}
        context = StepContext(3, 10, seed=1, sample_offset=offset, step_samples=8)
        loss = recipe.step(model, part, context).loss_sum / denom
        loss.backward()
        total, offset = total + float(loss), offset + size
    return total, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_one_batch_of_eight_equals_four_of_two(name: str) -> None:
    whole, pieces = gradients(name, [8]), gradients(name, [2, 2, 2, 2])
    assert whole[0] == pytest.approx(pieces[0], rel=1e-5)
    assert whole[0] > 0
    torch.testing.assert_close(whole[1], pieces[1], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_unmasked_positions_add_nothing_to_the_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, model = prepared(name)
    inputs, context = batch(name), StepContext(0, 10)
    seen: list[Tensor] = []
    nll = DiffusionRecipe._nll

    def watched(self: DiffusionRecipe, states: Tensor, masked: Tensor, targets: Tensor) -> Tensor:
        seen.append(masked)
        return nll(self, states, masked, targets)

    monkeypatch.setattr(DiffusionRecipe, "_nll", watched)
    recipe.step(model, inputs, context)
    if "labels" in inputs:
        assert not any((masked & (inputs["labels"] == -100)).any() for masked in seen)
    assert any(masked.any() for masked in seen)


def test_blocks_of_one_token_at_time_one_are_the_autoregressive_loss() -> None:
    config = DiffusionConfig(block_size=1, eps=0.999, rate_low=0.9999999, rate_high=1.0)
    recipe, model = recipes.build(config), tiny_denoiser(config)
    recipe.prepare(model)
    ids = batch("drafts")["input_ids"]
    loss = recipe.step(model, {"input_ids": ids}, StepContext(0, 1)).loss_sum
    with torch.no_grad():
        chain = 0.0
        for place in range(ids.shape[1]):
            seen = torch.cat([ids[:, :place], torch.full((len(ids), 1), MASK)], 1)
            logp = model(seen).logits[:, -1].log_softmax(-1)
            chain -= float(logp.gather(1, ids[:, place, None]).sum())
    assert float(loss) == pytest.approx(chain, rel=1e-5)


@pytest.mark.parametrize("name", ["drafts", "shifted"])
def test_own_blocks_are_what_left_to_right_decoding_gives(name: str) -> None:
    recipe, model = prepared(name)
    ids = batch("drafts", rows=2)["input_ids"]
    own, predictions, nll = recipe.canvas.own_blocks(model, ids)
    for row in range(2):
        for start in (0, 4, 8):
            state = torch.cat([ids[row, :start], torch.full((4,), MASK)])
            for place in range(4):
                with torch.no_grad():
                    logits = model(state[None]).logits[0, start:]
                    if name == "shifted" and start:  # the clean blocks alone predict what follows them
                        hidden = model.model(state[None, :start], attention_mask=seen(start), is_causal=False)
                        logits[0] = model.predict(hidden.last_hidden_state[:, -1:])[0, 0]
                assert torch.equal(predictions[place, row * 3 + start // 4], logits.argmax(-1))
                expected = -logits[place].log_softmax(-1)[ids[row, start + place]]
                assert float(nll[row, start + place]) == pytest.approx(float(expected), rel=1e-4)
                state[start + place] = logits[place].argmax()
            assert torch.equal(own[row, start : start + 4], state[start:])


def seen(length: int, size: int = 4) -> Tensor:
    where = torch.arange(length)[None]
    return block_causal(where, where, size)[:, None]


def test_the_likelihood_of_a_shifted_block_model_is_that_of_its_decoding() -> None:
    recipe, model = prepared("shifted")
    ids = batch("shifted", rows=2)["input_ids"]
    _, _, nll = recipe.canvas.own_blocks(model, ids, ids)
    for row, expected in zip(ids, nll.sum(1), strict=True):
        found = left_to_right_of_sequence(denoiser_of(model), row, MASK, block_size=4)
        assert found == pytest.approx(float(expected), rel=1e-5)


def test_a_run_may_begin_with_next_token_prediction() -> None:
    recipe, model = prepared("shifted")
    inputs = batch("shifted")
    first = recipe.step(model, inputs, StepContext(2, 10))
    ids = inputs["input_ids"]
    mask = torch.ones(12, 12, dtype=torch.bool).tril()[None, None]
    logp = model.lm_head(model.model(ids, attention_mask=mask, is_causal=False).last_hidden_state)
    logp[..., MASK] = -torch.inf
    nll = -logp.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None]).sum()
    assert float(first.loss_sum) == pytest.approx(float(nll), rel=1e-5)
    assert set(first.loss_terms) == {"causal_loss"}
    assert set(recipe.step(model, inputs, StepContext(3, 10)).loss_terms) == {
        "denoising_loss",
        "own_block_loss",
    }


def test_evaluation_repeats_itself_and_simulates_acceptance() -> None:
    recipe, model = prepared("drafts")
    inputs = batch("drafts")
    first = recipe.evaluate(model, inputs, StepContext(0, 1))
    second = recipe.evaluate(model, inputs, StepContext(5, 9, seed=4))
    assert {"loss", "denoising_loss", "left_to_right_loss", "tau_sim"} == set(first)
    for name, (num, den) in first.items():
        assert (float(num), float(den)) == tuple(map(float, second[name])), name
    assert first["loss"] == first["left_to_right_loss"]
    num, den = first["tau_sim"]
    assert 1 <= float(num / den) <= 4


def test_one_sample_in_a_hundred_is_cut_and_always_the_same_one() -> None:
    samples = [{"input_ids": torch.randint(0, 90, (16,))} for _ in range(600)]
    found = _cut_some(samples)
    short = found["attention_mask"].sum(1) < 16
    assert 1 <= short.sum() <= 20
    index = int(short.nonzero()[0])
    assert torch.equal(_cut_some([samples[index]])["attention_mask"][0], found["attention_mask"][index])
    assert set(_cut_some([samples[int((~short).nonzero()[0])]])) == {"input_ids"}


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_stopping_and_repeating_the_command_changes_nothing(
    tmp_path: Path, ema: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(OBJECTIVES["drafts"], ema=ema)
    whole = run.train(diffusion_root(tmp_path, config))
    cfg = replace(diffusion_root(tmp_path, config), run_name="parts")
    save = checkpoints.CheckpointStore.annotate

    def interrupted(self: checkpoints.CheckpointStore, step: int, values: dict[str, Any]) -> None:
        save(self, step, values)
        if step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.CheckpointStore, "annotate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.train(cfg)
    monkeypatch.undo()
    torch.manual_seed(99)
    parts = run.train(cfg)
    assert curve(whole) == curve(parts)
    last = "checkpoints/step-6/model.safetensors"
    ours, theirs = load_file(whole / last), load_file(parts / last)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    training = whole / "checkpoints" / "step-6" / "ema_training_weights.safetensors"
    assert training.exists() == (ema > 0)
    if ema:
        raw = load_file(training)
        assert any(not torch.equal(raw[name], value) for name, value in ours.items())


def test_a_checkpoint_brings_model_class_and_mask_token(tmp_path: Path) -> None:
    done = run.train(diffusion_root(tmp_path, OBJECTIVES["drafts"], max_steps=1))
    checkpoint = done / "checkpoints" / "step-1"
    model, tokenizer = (
        AutoModelForMaskedLM.from_pretrained(checkpoint),
        AutoTokenizer.from_pretrained(checkpoint),
    )
    assert isinstance(model.config, MDMConfig)
    assert model.config.mask_token_id == tokenizer.mask_token_id == len(tokenizer) - 1
    assert len(tokenizer) <= model.config.vocab_size
    assert (model.config.order, model.config.block_size) == ("left_to_right", 4)
    assert (checkpoint / "masked_diffusion.py").exists()
    assert json.loads((checkpoint / "ssd.json").read_text())["tau_sim"] >= 1


@pytest.mark.integration
def test_two_ranks_equal_one_process_with_twice_the_batch(tmp_path: Path) -> None:
    config = OBJECTIVES["drafts"]
    cfg = diffusion_root(tmp_path, config, batch_size=2, max_steps=3, save_steps=3)
    cfg.data.validation_blocks = 4
    assert train_ranks(cfg) == [0, 0]
    single = run.train(replace(cfg, run_name="one", train=replace(cfg.train, batch_size=4)))
    for left, right in zip(curve(cfg.run_dir), curve(single), strict=True):
        for name in ("loss", "denoising_loss", "pair_divergence", "own_block_loss"):
            assert (name in left) == (name in right)
            if name in left:
                assert left[name] == pytest.approx(right[name], rel=1e-3), name


def saved_causal(tmp_path: Path, **changes: Any) -> Path:
    """Return a causal checkpoint with a tokenizer."""
    from ssd_train.data.tokenizer import train_bpe

    model = tiny_llama(vocab_size=270, **changes)
    model.save_pretrained(tmp_path / "causal")
    train_bpe(["alpha beta gamma"] * 9, 269, 64).save_pretrained(tmp_path / "causal")
    return tmp_path / "causal"


@pytest.mark.parametrize("tied", [True, False])
def test_a_causal_model_becomes_a_denoiser_that_keeps_its_shift(tmp_path: Path, tied: bool) -> None:
    path = saved_causal(tmp_path, tie_word_embeddings=tied)
    config = replace(OBJECTIVES["mdlm"], logit_shift=True)
    cfg = replace(diffusion_root(tmp_path, config, max_steps=1), model=HFModelConfig(name=str(path)))
    recipe = recipes.build(config)
    recipe.check(cfg)
    data = recipe.build_data(cfg, cfg.run_dir)
    model = recipe.build_model(cfg, data)
    assert model.config.logit_shift
    assert data.processor.mask_token_id == model.config.mask_token_id
    # One token sees only itself, so shifted prediction and causal one are the same function of it.
    ids = torch.tensor([[5, 5]])
    causal = tiny_llama(vocab_size=270, tie_word_embeddings=tied)
    one = causal.model(ids[:, :1]).last_hidden_state
    torch.testing.assert_close(model.model(ids[:, :1]).last_hidden_state, one)
    hidden = model.model(ids).last_hidden_state
    rows = min(len(causal.lm_head.weight), len(model.lm_head.weight), model.config.mask_token_id)
    expected = (hidden[:, 0] @ causal.lm_head.weight.t())[:, :rows]
    torch.testing.assert_close(model(ids).logits[:, 1, :rows], expected, rtol=1e-4, atol=1e-4)
    run.train(cfg)


def test_what_cannot_be_trained_so_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = saved_causal(tmp_path)
    cfg = replace(diffusion_root(tmp_path, OBJECTIVES["mdlm"]), model=HFModelConfig(name=str(path)))
    with pytest.raises(
        ConfigError, match=r"model\.name: is a causal llama checkpoint.*recipe\.logit_shift=true"
    ):
        run.train(cfg)
    mistral = replace(diffusion_root(tmp_path, OBJECTIVES["mdlm"]))
    assert isinstance(mistral.model, ScratchModelConfig)
    mistral = replace(mistral, model=replace(mistral.model, family="mistral"))
    with pytest.raises(UnsupportedModelError, match="mistral models are not supported as backbones"):
        run.train(mistral)
    named = diffusion_root(tmp_path, replace(OBJECTIVES["mdlm"], mask_token="<nothing>"))
    with pytest.raises(
        ConfigError, match=r"recipe\.mask_token: must be a token of the tokenizer's vocabulary"
    ):
        run.train(named)
    assert not (cfg.run_dir / "checkpoints").exists()


def test_a_checkpoint_trained_further_keeps_its_mask_token_and_its_positions(tmp_path: Path) -> None:
    config = OBJECTIVES["bd3lm"]
    done = run.train(diffusion_root(tmp_path, config, max_steps=1)) / "checkpoints" / "step-1"
    cfg = replace(diffusion_root(tmp_path, config, max_steps=1), model=HFModelConfig(name=str(done)))
    cfg = replace(cfg, run_name="further")
    assert (run.train(cfg) / "checkpoints" / "step-1").exists()
    other = replace(cfg, run_name="other", recipe=replace(config, mask_token="a"))
    with pytest.raises(ConfigError, match=r"recipe\.mask_token: must be the checkpoint's own mask token"):
        run.train(other)
    with pytest.raises(ConfigError, match=r"data\.block_size: must not exceed the model's 64 positions"):
        run.train(replace(cfg, run_name="long", data=replace(cfg.data, block_size=128)))
    with pytest.raises(UnsupportedModelError, match="recipe plain: a masked-diffusion checkpoint is no auto"):
        run.train(replace(cfg, run_name="causal", recipe_name="plain", recipe=PlainConfig()))
    text = tmp_path / "marked.txt"
    text.write_text("alpha <|mask|> beta gamma " * 900)
    spelt = replace(cfg.data, path=str(text), control_tokens="parse")
    marked = replace(cfg, run_name="marked", data=spelt)
    with pytest.raises(DataError, match=r"recipe\.mask_token: must not occur in the text.*<\|mask\|> beta"):
        run.train(marked)
    run.train(replace(marked, run_name="text", data=replace(spelt, control_tokens="text")))


def test_a_causal_beginning_on_answers_counts_every_example_once() -> None:
    config = replace(OBJECTIVES["llada_sft"], logit_shift=True, causal_share=0.5)
    recipe, model = recipes.build(config), tiny_denoiser(config)
    recipe.prepare(model)
    inputs = batch("llada_sft")
    loss = recipe.step(model, inputs, StepContext(0, 10)).loss_sum
    mask = torch.ones(12, 12, dtype=torch.bool).tril()[None, None] & (
        inputs["attention_mask"].bool()[:, None, None] | torch.eye(12, dtype=torch.bool)
    )
    with torch.no_grad():
        logp = model(inputs["input_ids"], attention_mask=mask).logits.log_softmax(-1)
    nll = -logp.gather(-1, inputs["input_ids"][..., None])[..., 0]
    learned = inputs["labels"] != -100
    expected = sum(float(row[here].mean()) for row, here in zip(nll, learned, strict=True) if here.any())
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_a_vocabulary_without_room_for_a_mask_token_is_refused(tmp_path: Path) -> None:
    from ssd_train.data.tokenizer import train_bpe

    train_bpe(["alpha beta gamma"] * 9, 262, 64).save_pretrained(tmp_path / "words")
    cfg = diffusion_root(tmp_path, OBJECTIVES["mdlm"])
    assert isinstance(cfg.model, ScratchModelConfig)
    size = len(AutoTokenizer.from_pretrained(tmp_path / "words"))
    cfg = replace(cfg, model=replace(cfg.model, tokenizer=str(tmp_path / "words"), vocab_size=size))
    with pytest.raises(
        DataError, match=rf"model\.vocab_size: the vocabulary has no room for a mask token.*={size + 1}"
    ):
        run.train(cfg)


def pairs_file(tmp_path: Path, extra: str = "") -> Path:
    lines = [json.dumps({"ask": f"alpha {i}", "text": "beta gamma " * (1 + i % 4)}) for i in range(30)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines) + "\n" + extra)
    return tmp_path / "pairs.jsonl"


def test_answers_are_learned_with_the_end_tokens_after_them_and_prompts_stay_clean(tmp_path: Path) -> None:
    path = saved_causal(tmp_path)
    config = replace(OBJECTIVES["llada_sft"], logit_shift=True)
    cfg = replace(diffusion_root(tmp_path, config, max_steps=2), model=HFModelConfig(name=str(path)))
    cfg.data = replace(cfg.data, path=str(pairs_file(tmp_path)), prompt_field="ask", block_size=48)
    recipe = recipes.build(config)
    data = recipe.build_data(cfg, cfg.run_dir)
    assert len(data.train) + len(data.validation) == 30
    sample, tokenizer = data.train[3], data.processor
    prompt = tokenizer(tokenizer.decode(sample["input_ids"][sample["labels"] == -100]))["input_ids"]
    learned = sample["labels"][sample["labels"] != -100]
    assert tokenizer.decode(prompt).startswith("alpha")
    assert tokenizer.decode(learned).startswith("beta gamma")
    assert learned[-1] == tokenizer.eos_token_id
    assert len(prompt) + len(learned) == 48
    run.train(cfg)


def test_pairs_that_are_none_are_refused_by_line(tmp_path: Path) -> None:
    path = saved_causal(tmp_path)
    config = replace(OBJECTIVES["llada_sft"], logit_shift=True)
    cfg = replace(diffusion_root(tmp_path, config), model=HFModelConfig(name=str(path)))
    with pytest.raises(
        ConfigError, match=r"recipe\.objective: learns answers to prompts.*data\.prompt_field"
    ):
        recipes.build(config).build_data(cfg, cfg.run_dir)
    for line, words in (
        ('{"ask": "x"}', r"data\.text_field: no such field in .*pairs\.jsonl:31 .*found ask"),
        ('{"text": "x"}', r"data\.prompt_field: no such field in .*pairs\.jsonl:31 .*found text"),
        ('{"ask": 1, "text": "x"}', r"data\.prompt_field: field 'ask' must hold text \(got int in .*:31"),
        ('{"ask": "x", ', r"data\.path: .*pairs\.jsonl:31 is not JSON"),
    ):
        cfg.data = replace(cfg.data, path=str(pairs_file(tmp_path, line)), prompt_field="ask")
        with pytest.raises(DataError, match=words):
            recipes.build(config).build_data(cfg, cfg.run_dir)
