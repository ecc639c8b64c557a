"""Tiny causal models of many families with sharpened heads, their prompts, and greedy references that are kept."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import ssd_infer
from ssd_infer.engine.target import Target
from ssd_infer.offload.layout import moe_layers
from ssd_infer.strategies.base import Drafter
from ssd_infer.strategies.sparse_attention import sparse_costs
from ssd_infer.tuning.costs import Costs
from ssd_infer.tuning.sublayer_costs import SublayerCosts, remember_costs
from tests.conftest import build_model
from tests.fuzz.draft_modules import put_modules
from tests.fuzz.parameters import Scope
from tests.transformers_rules import processors

VOCABULARY, LONGEST = 29, 36
"""Small enough that n-grams repeat; most new tokens that a reference holds."""
_TIE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Least lead of a reference's best token over the second, of the largest logit: closer ones are no test of a draft."""
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
    "phi3": {},
    "olmo2": {},
    "starcoder2": {"sliding_window": 8},
    "stablelm": {},
    "granite": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 16},
    "qwen3_moe": _EXPERTS,
    "qwen2_moe": _EXPERTS | {"shared_expert_intermediate_size": 16},
    "offloaded": _EXPERTS,
    "gemma3_text": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": {},
    "bloom": {"attn_implementation": "eager"},
    "cohere": {"logit_scale": 0.25},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention"],
        **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
    "mamba2": {
        "attn_implementation": "eager",
        "num_heads": 8,
        "expand": 2,
        "state_size": 8,
        "chunk_size": 8,
        "n_groups": 1,
    },
}
"""By name, with what makes them tiny; `offloaded` is qwen3_moe with half its experts on disk.

`layer_types` are repeated as often as a model has layers.
"""
_SINGLE = ("lfm2", "qwen3_5_text", "mamba2")
"""Families that compute some of their states in float32, whatever the weights are."""
KINDS = ((torch.float32, "sdpa"), (torch.float64, "sdpa"), (torch.float64, "eager"))
"""Precisions and attention backends that variants go through."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A model by family and variant, which seeds its weights and chooses precision, backend and depth."""

    family: str
    variant: int = 0
    vocabulary: int = VOCABULARY


@dataclass(frozen=True, slots=True)
class Reference:
    """The greedy text after a prompt, and whether any of its choices was close to a tie."""

    text: tuple[int, ...]
    tied: bool


Rules = tuple[tuple[str, Any], ...]
"""Rules of generation, name and value."""


@dataclass(slots=True)
class Built:
    """A model with what was asked of it so far."""

    spec: Spec
    model: Any
    target: Target
    scope: Scope
    references: dict[tuple[int, ...], Reference] = field(default_factory=dict)
    folder: Any = None
    """Where the experts of an offloaded model lie, as long as the model lives."""

    def reference(self, prompt: tuple[int, ...]) -> Reference:
        """Return the greedy text of plain decoding after `prompt`, once the model's own forward has agreed to it."""
        if prompt not in self.references:
            self._refer([prompt])
        return self.references[prompt]

    def references_under(
        self, prompts: Sequence[tuple[int, ...]], rules: Rules, eos: tuple[int, ...], length: int
    ) -> list[Reference]:
        """Return greedy texts of at most `length` tokens under `rules`; AssertionError where transformers differs."""
        rows = [list(prompt) for prompt in prompts]
        out = ssd_infer.generate(
            self.model, rows, max_new_tokens=length, eos_token_id=list(eos), **dict(rules)
        )
        pairs = zip(prompts, out.sequences, strict=True)
        return [Reference(tuple(text), self._hangs(prompt, text, rules, eos)) for prompt, text in pairs]

    @torch.inference_mode()
    def _hangs(self, prompt: tuple[int, ...], text: list[int], rules: Rules, eos: tuple[int, ...]) -> bool:
        """Tell whether a text hangs on a tie; else each token is the best that transformers' processors leave."""
        logits = self.model(input_ids=torch.tensor([[*prompt, *text]]), use_cache=False).logits[0]
        scores = logits[len(prompt) - 1 : -1].float()
        made = processors(self.model, prompt, eos, **dict(rules))
        for at in range(len(text)):
            scores[at] = made(torch.tensor([[*prompt, *text[:at]]]), scores[at : at + 1])[0]
        best = scores.topk(2, dim=-1).values
        if bool(best[:, 0].isneginf().any()):  # nothing was left to choose
            return True
        size = scores.masked_fill(scores.isinf(), 0.0).abs().max()
        if bool((best[:, 0] - best[:, 1] < _TIE[torch.float32] * size).any()):
            return True
        assert scores.argmax(dim=-1).tolist() == text, (
            f"plain decoding of {self.spec} after {prompt}: {rules}"
        )
        return False

    def prepare(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Make the references of many prompts at once; the first also goes through transformers' `generate`."""
        missing = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self.references]
        if missing:
            self._refer(missing)
            first = next((prompt for prompt in missing if not self.references[prompt].tied), None)
            if first is not None:
                text = list(self.references[first].text)
                assert self._generated(first) == text, f"transformers' generate of {self.spec} after {first}"

    @torch.inference_mode()
    def _refer(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Decode plainly and compare with transformers; raises AssertionError where they differ.

        A text is greedy if each of its tokens is the argmax of the model's own forward pass over all that precedes it.
        """
        rows = [list(prompt) for prompt in prompts]
        out = ssd_infer.generate(self.model, rows, max_new_tokens=LONGEST, eos_token_id=[])
        for prompt, text in zip(prompts, out.sequences, strict=True):
            logits = self.model(input_ids=torch.tensor([[*prompt, *text]]), use_cache=False).logits[0]
            scores = logits[len(prompt) - 1 : -1].double()
            best = scores.topk(2, dim=-1).values
            close = best[:, 0] - best[:, 1] < _TIE[logits.dtype] * scores.abs().max()
            tied = bool(close.any())
            same = scores.argmax(dim=-1).tolist() == text
            assert tied or same, f"plain decoding of {self.spec} after {prompt}"
            self.references[prompt] = Reference(tuple(text), tied)

    def _generated(self, prompt: tuple[int, ...]) -> list[int]:
        ids = torch.tensor([prompt])
        found = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=LONGEST,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return list(found[0, len(prompt) :].tolist())


@functools.lru_cache(maxsize=96)
def built(spec: Spec) -> Built:
    """Build a model; a variant is the same model whenever it is asked for."""
    dtype, attention = KINDS[spec.variant % len(KINDS)]
    dtype = torch.float32 if spec.family in _SINGLE else dtype
    layers = 4 + spec.variant // 2 % 3
    family = "qwen3_moe" if spec.family == "offloaded" else spec.family
    changes = {"vocab_size": spec.vocabulary, "attn_implementation": attention} | FAMILIES[spec.family]
    if "layer_types" in changes:
        changes["layer_types"] = (changes["layer_types"] * layers)[:layers]
    model: Any = build_model(family, layers=layers, seed=spec.variant, tie_word_embeddings=False, **changes)
    _sharpen(model, spec)
    model = model.to(dtype)
    folder = None
    if "num_experts_per_tok" in FAMILIES[spec.family]:
        model.set_experts_implementation("eager")  # the grouped product knows no float64
    if spec.family == "offloaded":
        folder, model = _offloaded(model, dtype)
    target = Target.of(model)
    _price(target)
    put_modules(target.model, spec.variant)
    routed = moe_layers(target.layers)
    scope = Scope(layers, min((layer.top_k for layer in routed), default=1))
    return Built(spec, model, target, scope, folder=folder)


_ADDED = (
    *("o_proj.weight", "down_proj.weight", "post_feedforward_layernorm.weight", "c_proj.weight"),
    *("out_proj.weight", "dense.weight", "dense_4h_to_h.weight", "feed_forward.w2.weight"),
)
"""Weights whose output a layer adds to its input, by the end of their names."""


@torch.no_grad()
def _sharpen(model: Any, spec: Spec) -> None:
    """Make argmax no tie, and deep layers matter less, so that shallow and thinned drafts are sometimes right.

    Over a tiny vocabulary, which is for sampling, the head stays as it is.
    """
    layers = next(part for part in model.modules() if isinstance(part, torch.nn.ModuleList))
    for layer in layers[1:]:
        for name, weight in layer.named_parameters():
            if name.endswith(_ADDED):
                weight.mul_(0.35 + 0.15 * (spec.variant % 4))
    if spec.vocabulary == VOCABULARY:
        model.get_output_embeddings().weight.mul_(8)


def _offloaded(model: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    """Save `model` and load it with half of its experts on disk; return the folder's owner and the model."""
    from ssd_infer.offload.offload import load_offloaded, make_store

    folder = tempfile.TemporaryDirectory(prefix="fuzz-experts-")
    model.save_pretrained(folder.name)
    make_store(Path(folder.name))
    loaded = load_offloaded(Path(folder.name), 0.6)
    return folder, loaded.model.to(dtype)


class _Always:
    """A memo that knows one answer to everything."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def cached(self, *_: Any) -> Any:
        return self.value


def _price(target: Target) -> None:
    """Pretend that drafts are cheap and verifying costs what a step does, on every machine and in every run."""
    whole = Costs((1, 17), (20.0, 20.0), (0.0, 0.0), target.num_layers)
    costs = SublayerCosts(whole, 10.0, 10.0)
    for do_sample in (False, True):
        for power in range(7):
            remember_costs(target, costs, do_sample, 1 << power)
    cheap = sparse_costs.SparseCosts(
        plain=10.0, budgets=(1, 64), draft=(1.0, 1.5), select=(0.1, 0.1), widths=(1, 32), verify=(10.0, 12.0)
    )
    sparse_costs._known = _Always(cheap)  # type: ignore[assignment]


POOL = 16
"""Prompts of a model; those of another variant differ."""


def pool(spec: Spec) -> range:
    """Return the numbers of a model's prompts."""
    return range(POOL * spec.variant, POOL * (spec.variant + 1))


def prompt_of(index: int, vocabulary: int = VOCABULARY) -> tuple[int, ...]:
    """Return the prompt called `index`: 1 to 40 random tokens, every other one a pattern that repeats."""
    chance = torch.Generator().manual_seed(index)
    length = int(torch.randint(1, 41, (1,), generator=chance))
    period = int(torch.randint(1, 8, (1,), generator=chance)) if index % 2 else length
    pattern = torch.randint(3, vocabulary, (period,), generator=chance).tolist()
    return tuple((pattern * length)[:length])


def families_for(strategy: type[Drafter] | None, variants: range) -> list[Spec]:
    """Return the models of `variants` that a strategy applies to, all without one."""
    specs = [Spec(family, variant) for family in FAMILIES for variant in variants]
    return [spec for spec in specs if strategy is None or strategy.applicable(built(spec).target) is None]
