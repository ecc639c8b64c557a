"""A family from outside the package: registered for a model class with other names, and decoded exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

import ssd_infer
from ssd_infer.checkpoint import families
from ssd_infer.checkpoint.families import Family, family_names, family_of, unregister_family
from ssd_infer.engine.families.base import CausalFamily, Enter, Found, Leave, Parts, Sublayers
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError, UnsupportedModelError
from tests.engine.causal_families import NEWEST
from tests.engine.test_families import greedy

VOCAB, WIDTH, HEADS = 41, 16, 2
by_its_name = pytest.mark.skipif(not NEWEST, reason="the toy returns its cache under the name of 5.24")


class ToyConfig(PretrainedConfig):  # type: ignore[misc]
    """What a toy is made of."""

    model_type = "ssd_toy"

    def __init__(self, scale: float = 3.0, **more: Any) -> None:
        self.scale, self.vocab_size, self.num_hidden_layers = scale, VOCAB, 4
        super().__init__(**more)


class Mixer(nn.Module):
    """Attention with keys and values in a cache, and no notion of position but the order of tokens."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None, cache: Any) -> tuple[Tensor, None]:
        query, key, value = self.qkv(hidden).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        key, value = cache.update(key, value, self.index)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
        return self.out(mixed.transpose(1, 2).flatten(2)), None


class Block(nn.Module):
    """Two sublayers after norms."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixer = Mixer(index)
        self.ffn = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, hidden: Tensor, attention_mask: Tensor | None, cache: Any, **_: Any) -> Tensor:
        hidden = hidden + self.mixer(self.norm_1(hidden), attention_mask=attention_mask, cache=cache)[0]
        out: Tensor = hidden + self.ffn(self.norm_2(hidden))
        return out


class Backbone(nn.Module):
    """What lies between token ids and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(index) for index in range(4))
        self.last_norm = nn.LayerNorm(WIDTH)


class ToyLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A model of a type that nobody knows, which scales embeddings up and logits down."""

    config_class = ToyConfig

    def __init__(self, config: ToyConfig) -> None:
        super().__init__(config)
        self.backbone, self.lm_head = Backbone(), nn.Linear(WIDTH, VOCAB)
        self.post_init()

    def forward(
        self, input_ids: Tensor, past_key_values: Any = None, cache: Any = None, **_: Any
    ) -> CausalLMOutputWithPast:
        held = cache if cache is not None else past_key_values
        held = DynamicCache() if held is None else held
        past = held.get_seq_length()
        hidden = self.backbone.tokens(input_ids) * self.config.scale
        slots = torch.arange(past + input_ids.shape[1])
        mask = torch.zeros(input_ids.shape[1], len(slots)).masked_fill(
            slots > slots[past:, None], torch.finfo(torch.float32).min
        )
        for block in self.backbone.blocks:
            hidden = block(hidden, attention_mask=mask[None, None], cache=held)
        logits = self.lm_head(self.backbone.last_norm(hidden)) / self.config.scale
        return CausalLMOutputWithPast(logits=logits, past_key_values=held)


def enter(found: Found) -> Enter:
    """Scale embeddings."""
    return lambda ids, _window, _cache: found.embedding(ids) * found.config.scale


def leave(found: Found) -> Leave:
    """Scale logits."""
    return lambda logits: logits / found.config.scale


TOY = CausalFamily(
    name="toy",
    model_types=("ssd_toy",),
    parts=Parts(base=("backbone",), embedding="tokens", layers="blocks", norm=("last_norm",), rotary=None),
    sublayers=Sublayers(attention="mixer", mlp="ffn", serving={"attention": ("norm_1",), "mlp": ("norm_2",)}),
    masks=True,
    enter=enter,
    leave=leave,
)
DRAFTS: list[tuple[str | None, dict[str, Any]]] = [
    (None, {}),
    ("early_exit", {"exit_layer": 2, "gamma": 3}),
    ("skip_set", {"skip_attention": [1, 2], "skip_mlp": [2], "gamma": 4, "confidence": 0.0}),
]


@pytest.fixture
def toy() -> Iterator[ToyLM]:
    """Return a toy whose deep blocks add little; no family of it is known after the test."""
    torch.manual_seed(3)
    model = ToyLM(ToyConfig()).eval()
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(4 if part.dim() > 1 else 1)
        for block in model.backbone.blocks[2:]:
            block.mixer.out.weight.mul_(0.1)
            block.ffn[2].weight.mul_(0.1)
    yield model
    unregister_family("toy")


@by_its_name
def test_a_registered_family_decodes_exactly(toy: ToyLM) -> None:
    with pytest.raises(
        UnsupportedModelError, match="cannot be decoded layer by layer here: it has no base model"
    ):
        ssd_infer.generate(toy, [[3, 4]], max_new_tokens=2)
    assert ssd_infer.register_family(TOY) is TOY
    rows = [torch.arange(3, 3 + length) for length in (9, 4, 6)]
    expected = greedy(toy, rows, 14)
    for draft, params in DRAFTS:
        out = ssd_infer.generate(
            toy, rows, draft=draft, draft_params=params, max_new_tokens=14, eos_token_id=[]
        )
        assert out.sequences == expected, draft
        assert draft is None or out.stats.total.accepted > 0


@by_its_name
def test_a_family_that_is_wrong_is_found_out(toy: ToyLM) -> None:
    wrong = CausalFamily(
        name="toy",
        model_types=("ssd_toy",),
        parts=TOY.parts,
        sublayers=TOY.sublayers,
        masks=True,
        enter=enter,
    )
    ssd_infer.register_family(wrong)
    with pytest.raises(UnsupportedModelError, match="differs from its own forward"):
        Target.of(toy)


def test_names_and_types_of_families_are_taken_once() -> None:
    assert "gpt2" in family_names()
    with pytest.raises(ConfigError, match=r"family\.name: is the name of another family"):
        ssd_infer.register_family(CausalFamily(name="gpt2", model_types=("mine",)))
    with pytest.raises(ConfigError, match=r"family\.model_types: belongs to another family"):
        ssd_infer.register_family(CausalFamily(name="mine", model_types=("gpt2",)))
    with pytest.raises(ConfigError, match=r"family\.kind: must be one of causal, diffusion, speech"):
        ssd_infer.register_family(Family(name="mine", model_types=("mine",), kind="music"))
    with pytest.raises(ConfigError, match="must name at least one model_type"):
        ssd_infer.register_family(Family(name="mine", model_types=()))
    with pytest.raises(ConfigError, match="must be a Family"):
        ssd_infer.register_family("mine")  # type: ignore[arg-type]


def test_families_of_other_kinds_are_kept_apart() -> None:
    speech = Family(name="toy", model_types=("ssd_toy",), kind="speech")
    try:
        ssd_infer.register_family(speech)
        assert family_of("ssd_toy", "speech") is speech
        assert family_of("ssd_toy") is None
        assert "toy" in family_names("speech")
        assert "toy" not in family_names()
    finally:
        unregister_family("toy")


class Point:
    """An entry point as importlib.metadata gives it."""

    def __init__(self, name: str, found: Any) -> None:
        self.name, self.value, self._found = name, "beside.it:FAMILY", found

    def load(self) -> Any:
        """Return what it names, or raise what importing it raises."""
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (ImportError("no torch"), "cannot be imported"),
        (CausalFamily(name="other", model_types=("x",)), "calls itself"),
        ("text", "must be a Family"),
    ],
)
def test_a_broken_package_beside_this_one_is_named(
    monkeypatch: pytest.MonkeyPatch, found: Any, said: str
) -> None:
    monkeypatch.setattr(families, "_family_points", lambda: (Point("beside", found),))
    with pytest.raises(ConfigError, match=said):
        family_of("no such type")


def test_a_family_of_a_package_beside_this_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = CausalFamily(name="beside", model_types=("beside_type",))
    monkeypatch.setattr(families, "_family_points", lambda: (Point("beside", beside),))
    assert family_of("beside_type") is beside
    assert family_of("gpt2") is not beside
    assert "beside" in family_names()


def test_what_a_family_of_ours_claims_is_what_it_says() -> None:
    for entry in families.FAMILIES_OF_OURS:
        family = families._imported(entry)
        assert (family.name, family.model_types, family.kind) == (entry.name, entry.model_types, entry.kind)
