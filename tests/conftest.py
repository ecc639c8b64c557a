"""Fixtures shared by all tests; torch is imported only where a model is asked for."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")

pytest_plugins = ("tests.commands",)

FAMILIES = ("llama", "qwen3", "mistral", "olmo2")


class ModelFactory(Protocol):
    """Build a small model of random weights in evaluation mode."""

    def __call__(
        self, family: str = "llama", *, layers: int = 4, seed: int = 0, **changes: Any
    ) -> PreTrainedModel: ...


def build_model(family: str = "llama", *, layers: int = 4, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Build a small model of `family` from `seed`; `changes` override its configuration."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,  # wide enough that the most probable token is no tie
        "bos_token_id": 1,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **(shape | changes))
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture
def tiny_model() -> ModelFactory:
    """Return the factory of small models."""
    return build_model


def pytest_report_header() -> str:
    """Say which end of the supported range is under test."""
    return ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "hydra-core"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is no accelerator."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an accelerator"))
