"""The speech recipe: accumulation, resume, two processes, stages, readiness options and what stops a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ssd_infer.checkpoint.load import load
from ssd_infer.errors import ConfigError, SSDError, UnsupportedModelError
from ssd_infer.models.ctc_asr import CTCASRModel
from ssd_train import run
from ssd_train.cli.load import load_config
from ssd_train.data.speech import collate
from ssd_train.recipes.asr_ctc.measures import accepted, error_ratio, greedy_hypotheses, word_error_ratio
from ssd_train.recipes.asr_ctc.model import build_processor, build_speech_model
from ssd_train.recipes.asr_ctc.readiness import corrupted_batch, gold_batch
from ssd_train.recipes.asr_ctc.recipe import ASRCTCRecipe
from ssd_train.recipes.asr_ctc.settings import ASRCTCConfig, ReadinessConfig, SpecAugmentConfig
from ssd_train.recipes.base import StepContext
from tests.train.speech_support import speech_model, speech_root, write_clips
from tests.train.support import in_processes

PLAIN = ASRCTCConfig(spec_augment=SpecAugmentConfig(enabled=False), label_smoothing=0.0)


def _model(**changes: Any) -> CTCASRModel:
    cfg = speech_model(**changes)
    return build_speech_model(cfg, build_processor(cfg, 8000), seed=0)


def _recipe(config: ASRCTCConfig = PLAIN, model: CTCASRModel | None = None) -> ASRCTCRecipe:
    recipe = ASRCTCRecipe(config)
    recipe.processor = build_processor(speech_model(), 8000)
    recipe.prepare(model or _model())
    return recipe


def _sample(frames: int, labels: list[int], seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {"features": torch.randn(frames, 20, generator=generator), "labels": labels}


SAMPLES = [
    _sample(60, [5, 6, 7], 1),
    _sample(44, [8], 2),
    _sample(80, [5, 5, 9, 4], 3),
    _sample(52, [6, 7], 4),
]


def _context(step: int = 0, **changes: Any) -> StepContext:
    return replace(StepContext(step, 100, detailed=True), **changes)


def _gradients(recipe: ASRCTCRecipe, batches: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    model = recipe.model
    model.zero_grad()
    whole = sum(recipe.denominator(batch) for batch in batches)
    for batch in batches:
        (recipe.step(model, batch, _context()).loss_sum / whole).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


RANDOM = ASRCTCConfig(
    spec_augment=SpecAugmentConfig(time_share=0.3),
    readiness=ReadinessConfig(corrupt_prefix=0.6, corrupt_rate=0.3),
)


@pytest.mark.parametrize("config", [PLAIN, replace(PLAIN, normalise="utterance"), RANDOM])
def test_accumulated_batches_are_one_large_batch(config: ASRCTCConfig) -> None:
    recipe = _recipe(config)
    once = _gradients(recipe, [collate(SAMPLES)])
    twice = _gradients(recipe, [collate(SAMPLES[:1]), collate(SAMPLES[1:])])
    assert once.keys() == twice.keys()
    for name, gradient in once.items():
        torch.testing.assert_close(twice[name], gradient, atol=2e-5, rtol=1e-3, msg=name)


def test_infeasible_utterances_leave_loss_and_denominator_alone() -> None:
    recipe = _recipe()
    good, short = collate(SAMPLES), collate([*SAMPLES, _sample(4, [5, 5, 5])])
    assert int(recipe.denominator(short)) == int(recipe.denominator(good)) == 10 + 4
    out = recipe.step(recipe.model, short, _context())
    torch.testing.assert_close(
        out.loss_sum, recipe.step(recipe.model, good, _context()).loss_sum, atol=1e-3, rtol=1e-4
    )
    assert [float(value) for value in out.metrics["ctc_infeasible_frac"]] == [1.0, 5.0]


def test_more_than_a_hundredth_of_infeasible_utterances_stops_the_run() -> None:
    recipe = _recipe()
    batch = collate([*SAMPLES * 10, _sample(4, [5, 5, 5])])
    for step in range(4):  # 164 utterances: too few to judge
        recipe.step(recipe.model, batch, _context(step))
    with pytest.raises(SSDError, match="more text than frames"):
        recipe.step(recipe.model, batch, _context(4))


def test_every_part_of_the_model_learns() -> None:
    recipe = _recipe()
    gradients = _gradients(recipe, [collate(SAMPLES)])
    assert {name for name, p in recipe.model.named_parameters() if p.requires_grad} == gradients.keys()
    still = [name for name, gradient in gradients.items() if not gradient.any()]
    assert still == []


def test_two_stages_train_one_part_each() -> None:
    recipe = _recipe(replace(PLAIN, stages="two_stage", encoder_share=0.5))
    model, batch = recipe.model, collate(SAMPLES)
    encoder = {id(parameter) for parameter in model.ctc_parameters()}
    for step, learns in ((0, True), (60, False)):
        model.zero_grad(set_to_none=True)
        recipe.step(model, batch, _context(step)).loss_sum.backward()
        recipe.after_backward()
        for name, parameter in model.named_parameters():
            moved = parameter.grad is not None and bool(parameter.grad.any())
            if id(parameter) in encoder:
                assert moved == learns, name
                assert learns or parameter.grad is None, name
            else:
                assert moved != learns, name


def test_a_head_that_says_nothing_stops_the_run() -> None:
    recipe = _recipe()
    with torch.no_grad():
        recipe.model.ctc_head.bias[0] = 50.0
    recipe.step(recipe.model, collate(SAMPLES), _context(10))
    with pytest.raises(SSDError, match="nothing but blanks"):
        recipe.step(recipe.model, collate(SAMPLES), _context(60))


def test_gold_batches_shift_by_one() -> None:
    batch = gold_batch(torch.tensor([[5, 6, 0], [7, 8, 9]]), torch.tensor([2, 3]), bos=1, eos=2)
    assert batch.inputs.tolist() == [[1, 5, 6, 2], [1, 7, 8, 9]]
    assert batch.targets.tolist() == [[5, 6, 2, 2], [7, 8, 9, 2]]
    assert batch.mask.tolist() == [[True, True, True, False], [True] * 4]


def test_corrupted_prefixes_are_judged_by_the_way_on() -> None:
    labels = [[5, 6, 7], [7, 8, 9]]
    gold = gold_batch(torch.tensor(labels), torch.tensor([3, 3]), bos=1, eos=2)
    rngs = [np.random.default_rng(seed) for seed in (0, 1)]
    same = corrupted_batch(gold, labels, [[5, 6, 7], [7, 8]], 1.0, 0.0, rngs)
    assert same.inputs[0].tolist() == gold.inputs[0].tolist()
    assert same.targets[0].tolist() == gold.targets[0].tolist()
    assert same.targets[1, :3].tolist() == [7, 8, 9]
    assert same.mask[1].tolist() == [True, True, True, False]
    none = corrupted_batch(gold, labels, [[5, 6, 7], [7, 8]], 0.0, 1.0, rngs)
    assert torch.equal(none.inputs, gold.inputs)
    noisy = corrupted_batch(gold, labels, [[5, 6, 7], [7, 8, 9]], 1.0, 1.0, rngs)
    assert not torch.equal(noisy.inputs, gold.inputs)
    assert torch.equal(gold.inputs[:, 0], noisy.inputs[:, 0])


def test_hypotheses_much_longer_than_their_label_keep_it() -> None:
    gold = gold_batch(torch.tensor([[5, 6]]), torch.tensor([2]), bos=1, eos=2)
    kept = corrupted_batch(gold, [[5, 6]], [[5] * 9], 1.0, 0.0, [np.random.default_rng(0)])
    assert torch.equal(kept.inputs, gold.inputs)


@pytest.mark.parametrize("ready", [{"corrupt_prefix": 0.5}, {"agreement_weight": 0.3}])
def test_readiness_options_give_every_part_a_gradient(ready: dict[str, float]) -> None:
    recipe = _recipe(replace(PLAIN, readiness=ReadinessConfig(**ready)))
    out = recipe.step(recipe.model, collate(SAMPLES), _context())
    assert torch.isfinite(out.loss_sum)
    assert ("agreement_loss" in out.loss_terms) == ("agreement_weight" in ready)
    out.loss_sum.backward()
    assert all(parameter.grad is not None for parameter in recipe.model.parameters())


def test_error_rates_count_words_and_tokens() -> None:
    assert word_error_ratio(["a b c", "x"], ["a c", "y z"]) == (1 + 2, 4)
    assert error_ratio([[1, 2]], [[1, 3, 2]]) == (1, 3)


def test_a_draft_is_accepted_up_to_the_first_token_the_decoder_would_not_say() -> None:
    model = _model().eval()
    batch = collate(SAMPLES[:1])
    with torch.no_grad():
        encoded = model.encode(batch["input_features"], batch["feature_lengths"])
        said: list[int] = []
        for _ in range(4):
            logits = model.decoder(torch.tensor([[model.decoder.bos, *said]]), encoded)
            said.append(int(logits[0, -1].argmax()))
        assert accepted(model, encoded, [said]) == (4, 4)
        wrong = [*said[:2], (said[2] + 1) % 31, said[3]]
        assert accepted(model, encoded, [wrong]) == (2, 4)


def test_hypotheses_collapse_before_blanks_drop_and_end_with_the_audio() -> None:
    path = torch.tensor([[5, 5, 0, 5, 6, 6], [0, 7, 7, 0, 9, 9]])
    logits = torch.nn.functional.one_hot(path, 10).float()
    assert greedy_hypotheses(logits, torch.tensor([6, 4]), 0) == [[5, 5, 6], [7]]


def test_other_models_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="model=ctc_asr"):
        ASRCTCRecipe(PLAIN).prepare(torch.nn.Linear(1, 1))


# -- whole runs -------------------------------------------------------------------------------------------------------


def _losses(cfg: Any) -> list[tuple[int, float]]:
    lines = (cfg.run_dir / "metrics.jsonl").read_text().splitlines()
    return [(row["step"], row["loss"]) for row in map(json.loads, lines) if "loss" in row]


def _weights(cfg: Any, step: int) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(cfg.run_dir / "checkpoints" / f"step-{step}" / "model.safetensors")


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    recipe = ASRCTCConfig(
        stages="two_stage",
        encoder_share=0.67,
        spec_augment=SpecAugmentConfig(time_share=0.2),
        readiness=ReadinessConfig(corrupt_prefix=0.5),
    )
    whole = speech_root(tmp_path / "a", recipe=recipe)
    parts = speech_root(tmp_path / "b", recipe=recipe)
    run.train(whole)
    _train_until(parts, 3)
    run.train(parts)
    assert _losses(parts) == _losses(whole)
    one, other = _weights(whole, 6), _weights(parts, 6)
    assert all(torch.equal(one[name], other[name]) for name in one)


def _train_until(cfg: Any, step: int) -> None:
    """Train and stop by an error right after the checkpoint of `step`."""
    original = ASRCTCRecipe.step

    def stopping(self: ASRCTCRecipe, model: Any, inputs: Any, context: StepContext) -> Any:
        if context.global_step == step:
            raise SSDError("stopped on purpose")
        return original(self, model, inputs, context)

    ASRCTCRecipe.step = stopping  # type: ignore[method-assign]
    try:
        with pytest.raises(SSDError, match="on purpose"):
            run.train(cfg)
    finally:
        ASRCTCRecipe.step = original  # type: ignore[method-assign]


def test_a_run_saves_what_loads_and_writes_its_held_out_sets(tmp_path: Path) -> None:
    cfg = speech_root(tmp_path, max_steps=2, save_steps=2)
    run.train(cfg)
    checkpoint = cfg.run_dir / "checkpoints" / "step-2"
    loaded = load(checkpoint)
    assert isinstance(loaded.model, CTCASRModel)
    assert loaded.processor.sampling_rate == 8000
    record = json.loads((checkpoint / "ssd.json").read_text())
    assert record["recipe"]["name"] == "asr_ctc"
    assert record["tau_sim"] >= 1.0
    assert (cfg.run_dir / "heldout" / "test" / "manifest.jsonl").exists()


def test_one_batch_is_learned_by_heart() -> None:
    torch.manual_seed(0)
    recipe = _recipe(replace(PLAIN, ctc_weight=0.5), _model(encoder_size=32, decoder_size=32, init_std=0.1))
    model, batch = recipe.model, collate(SAMPLES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 320)
    for step in range(320):
        out = recipe.step(model, batch, _context(step, max_steps=1000))
        (out.loss_sum / out.denom).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    with torch.no_grad():
        encoded = model.eval().encode(batch["input_features"], batch["feature_lengths"])
        metrics = recipe.evaluate(model, batch, _context())
    assert greedy_hypotheses(encoded.ctc_logits, encoded.lengths, 0) == [s["labels"] for s in SAMPLES]
    correct, total = metrics["token_accuracy"]
    assert int(correct) == int(total)


def _train_rank(rank: int, port: int, directory: str) -> None:
    import os

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    recipe = ASRCTCConfig(stages="two_stage", encoder_share=0.5)
    run.train(speech_root(Path(directory), recipe=recipe, max_steps=4, save_steps=4))


@pytest.mark.integration
def test_two_processes_share_a_run(tmp_path: Path) -> None:
    import socket

    write_clips(tmp_path / "clips")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert in_processes(_train_rank, (0, port, str(tmp_path)), (1, port, str(tmp_path))) == [0, 0]
    cfg = speech_root(tmp_path, max_steps=4)
    rows = [json.loads(line) for line in (cfg.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 4]
    record = json.loads((cfg.run_dir / "checkpoints/step-4/ssd.json").read_text())
    assert record["world_size"] == 2


# -- configuration ----------------------------------------------------------------------------------------------------


def test_the_recipe_composes_with_every_source(tmp_path: Path) -> None:
    path = write_clips(tmp_path)
    base = ["+recipe=asr_ctc", "tracking=none"]
    assert load_config(base).data.kind == "tts_speech"
    assert (
        load_config([*base, "data=manifest", f"data.path={path}", "data.join_clips=[3,7]"]).data.kind
        == "manifest"
    )
    assert load_config([*base, "data=asterisk", f"data.path={tmp_path}"]).data.kind == "asterisk"
    assert load_config([*base, "data=hub_speech", "data.name=x/y"]).data.kind == "hub_speech"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=stdlib_text"], "data.kind: must be speech"),
        (["model=tiny"], "model.kind: must be speech"),
        (["model.subsampling=3"], "model.subsampling: must be 2, 4 or 8"),
        (["model.encoder_heads=5"], "model.encoder_heads: must divide"),
        (["model.inter_ctc=[4]"], "model.inter_ctc: must lie between 1 and 3"),
        (["model.decoder=hf"], "model.decoder_name: must name"),
        (["model.decoder=rnn"], "model.decoder: must be one of"),
        (["data.heldout_voice=nanotts:en-US"], "data.heldout_voice: must not be a training voice"),
        (["data.speed=[2,1]"], "data.speed: must be"),
        (["data.sampling_rate=100"], "data.sampling_rate"),
        (["recipe.stages=three"], "recipe.stages: must be one of"),
        (["recipe.ctc_weight=2"], "recipe.ctc_weight: must be in"),
        (["recipe.readiness.corrupt_prefix=-1"], "recipe.readiness.corrupt_prefix"),
        (["recipe.spec_augment.formant_shift=2"], "recipe.spec_augment.formant_shift: must be in"),
        (["data=manifest", "data.path=/nowhere.jsonl"], "data.path: is no file"),
        (["data=asterisk", "data.path=/nowhere"], "data.path: is no directory"),
    ],
)
def test_rules_name_the_key(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        load_config(["+recipe=asr_ctc", *overrides])


def test_speech_belongs_to_its_recipe() -> None:
    with pytest.raises(ConfigError, match="is for recipe asr_ctc"):
        load_config(["+recipe=layerskip", "model=ctc_asr"])


@pytest.mark.parametrize("decoder", ["cross_attention", "lm"])
def test_both_forms_of_decoder_train(decoder: str) -> None:
    recipe = _recipe(model=_model(decoder=decoder))
    recipe.step(recipe.model, collate(SAMPLES), _context()).loss_sum.backward()
    assert any(p.grad is not None and p.grad.any() for p in recipe.model.decoder.parameters())


def test_a_pretrained_language_model_is_frozen_and_its_ids_are_the_ctc_heads(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from transformers import LlamaConfig, LlamaForCausalLM

    from ssd_infer.models.asr_processor import character_tokenizer

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    language = LlamaForCausalLM(LlamaConfig(vocab_size=31, **shape))
    language.save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    model = _model(decoder="hf", decoder_name=str(tmp_path), lora_rank=2)
    assert model.config.vocab_size == 32
    assert model.config.blank_token_id == 31
    weights = dict(model.decoder.lm.named_parameters())
    for name, parameter in language.named_parameters():
        own = weights.get(name, weights.get(name.replace("_proj.weight", "_proj.base_layer.weight")))
        assert torch.equal(own, parameter), name
        assert not own.requires_grad
    recipe = _recipe(model=model)
    recipe.step(model, collate(SAMPLES), _context()).loss_sum.backward()
    learned = {name for name, p in model.decoder.named_parameters() if p.grad is not None}
    assert learned
    assert all("lora_" in name or "projector" in name for name in learned)
