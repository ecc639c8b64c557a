"""Tiny models, texts and configurations for the tests of training."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ssd_train.config.schema import (
    EvalConfig,
    HFModelConfig,
    LocalTextConfig,
    Root,
    ScratchModelConfig,
    TrackingConfig,
    TrainConfig,
)
from ssd_train.recipes.layerskip.settings import EarlyExitConfig, LayerDropoutConfig, LayerSkipConfig
from ssd_train.recipes.plain.settings import PlainConfig

VOCAB = 97


def tiny_llama(
    layers: int = 4, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> LlamaForCausalLM:
    """Return a Llama of width 32 with weights large enough that its layers matter."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "initializer_range": 0.1,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).to(dtype)


def tokens(rows: int, length: int = 12, seed: int = 1) -> torch.Tensor:
    """Return random token ids `(rows, length)`."""
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def llama_tokenizer(template: str = "<s> $A", **tokens: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer in the manner of Llama: `<s>` before every text (as `template` says), `</s>` its end token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["alpha beta gamma exit layer draft"] * 9, trainer=trainer)
    marks = [(name, backend.token_to_id(name)) for name in ("<s>", "</s>") if name in template]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=marks)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **{"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": ["<|im_end|>"], **tokens},
    )


def base_model(directory: Path, **changes: Any) -> HFModelConfig:
    """Save a tiny causal model with such a tokenizer below `directory` and return the option that names it."""
    settings = {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, **changes}
    tiny_llama(**settings).save_pretrained(directory / "base")
    llama_tokenizer().save_pretrained(directory / "base")
    return HFModelConfig(name=str(directory / "base"))


class Samples(torch.utils.data.Dataset):
    """Given samples, one dictionary each."""

    def __init__(self, samples: list[dict[str, torch.Tensor]]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.samples[index]


def write_text(directory: Path) -> Path:
    """Write a small text to learn from, the same every time."""
    path = directory / "text.txt"
    words = ["alpha", "beta", "gamma", "delta", "exit", "layer", "draft", "token", "verify", "skip"]
    lines = [" ".join(words[(i * j + j) % len(words)] for j in range(3 + i % 9)) for i in range(900)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def tiny_root(directory: Path, *, plain: bool = False, **train: Any) -> Root:
    """Return a run of a four-layer model on a small text below `directory`, layer dropout and exits on."""
    settings: dict[str, Any] = {
        "max_steps": 8,
        "batch_size": 4,
        "save_steps": 3,
        "logging_steps": 2,
        "eval_steps": 0,
        "eval_batches": 2,
        "learning_rate": 5e-3,
        "lr_scheduler": "cosine",
    }
    layerskip = LayerSkipConfig(
        layer_dropout=LayerDropoutConfig(p_max=0.4, time_scale="exp"),
        early_exit=EarlyExitConfig(period=2, distill_weight=0.5, chunk_tokens=32),
    )
    return Root(
        recipe_name="plain" if plain else "layerskip",
        output_root=str(directory / "outputs"),
        device="cpu",
        threads=1,
        train=TrainConfig(**{**settings, **train}),
        eval=EvalConfig(enabled=False),
        model=ScratchModelConfig(
            num_layers=4,
            hidden_size=32,
            intermediate_size=48,
            num_heads=4,
            num_kv_heads=2,
            max_length=64,
            vocab_size=300,
        ),
        data=LocalTextConfig(path=str(write_text(directory)), block_size=24, tokenizer_vocab=300),
        tracking=TrackingConfig(name="none"),
        recipe=PlainConfig() if plain else layerskip,
    )


def with_train(cfg: Root, **changes: Any) -> Root:
    """Return `cfg` with some of its `train` settings changed."""
    return replace(cfg, train=replace(cfg.train, **changes))


def in_processes(target: Callable[..., None], *arguments: tuple[Any, ...]) -> list[int]:
    """Run `target` once for each tuple of arguments, each in a fresh process, together; return the exit codes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ssd_train.run"])
    processes = [context.Process(target=target, args=args) for args in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        if process.is_alive():
            process.kill()
    return [process.exitcode if process.exitcode is not None else -1 for process in processes]


def train_until_killed(cfg: Root, where: str, step: int) -> None:
    """Train, and die by SIGKILL in the middle of `step`, or in the middle of its save."""
    from ssd_train import run
    from ssd_train.recipes.layerskip.recipe import LayerSkipRecipe
    from ssd_train.runs import checkpoints

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if where == "step":
        whole_step = LayerSkipRecipe.step

        def fatal_step(self: LayerSkipRecipe, model: Any, inputs: Any, context: Any) -> Any:
            out = whole_step(self, model, inputs, context)
            if context.global_step == step:
                die()
            return out

        LayerSkipRecipe.step = fatal_step  # type: ignore[method-assign]
    else:
        whole_seal = checkpoints.seal

        def fatal_seal(directory: Path) -> None:
            if directory.name.endswith(f"step-{step}"):
                (directory / "model.safetensors").write_bytes(b"half a file")
                die()
            whole_seal(directory)

        checkpoints.seal = fatal_seal
    run.train(cfg)
