"""A masked-diffusion language model around any Llama- or Qwen3-type backbone.

This file is copied into every checkpoint and must work there alone: it needs torch and transformers, nothing else.

    AutoModelForMaskedLM.from_pretrained(CHECKPOINT, trust_remote_code=True)
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    DynamicCache,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import MaskedLMOutput

OBJECTIVES = ("mdlm", "llada", "llada_sft", "bd3lm", "complementary_block")
BLOCK_OBJECTIVES = ("bd3lm", "complementary_block")
"""Objectives whose models see earlier blocks and their own block, never later ones."""


class MDMConfig(PretrainedConfig):
    """Configuration: a backbone of transformers, the mask token, and how the model was trained."""

    model_type = "ssd_masked_diffusion"
    sub_configs = {"backbone_config": AutoConfig}  # noqa: RUF012 - the name and form transformers looks for

    def __init__(
        self,
        backbone_config: PretrainedConfig | dict[str, Any] | None = None,
        mask_token_id: int | None = None,
        objective: str = "mdlm",
        block_size: int = 0,
        logit_shift: bool = False,
        schedule: str = "log_linear",
        eps: float = 1e-3,
        order: str = "confidence",
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ) -> None:
        """Keep the settings; raises ValueError for those no model can have.

        `block_size` 0 means one block as long as the sequence. `order` is the order of revealing the model was trained
        for, `confidence` or `left_to_right`; samplers take it as their default.
        """
        if isinstance(backbone_config, dict):
            inner = dict(backbone_config)
            backbone_config = AutoConfig.for_model(inner.pop("model_type", "llama"), **inner)
        backbone = AutoConfig.for_model("llama") if backbone_config is None else backbone_config
        backbone.is_causal = False
        self.backbone_config = backbone
        self.mask_token_id = mask_token_id
        self.objective = objective
        self.block_size = block_size
        self.logit_shift = logit_shift
        self.schedule = schedule
        self.eps = eps
        self.order = order
        self.initializer_range = getattr(backbone, "initializer_range", 0.02)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            kwargs.setdefault(name, getattr(backbone, name, None))
            setattr(self, name, kwargs.pop(name))
        self.tie_word_embeddings = tie_word_embeddings
        super().__init__(**kwargs)
        self.tie_word_embeddings = tie_word_embeddings
        _check(self)

    @property
    def block_causal(self) -> bool:
        """Whether a position sees nothing of the blocks after its own."""
        return self.objective in BLOCK_OBJECTIVES

    @property
    def vocab_size(self) -> int:
        """Return the rows of the embedding, the mask token's among them."""
        return int(self.backbone_config.vocab_size)

    @property
    def hidden_size(self) -> int:
        """Return the width of the backbone."""
        return int(self.backbone_config.hidden_size)

    @property
    def num_hidden_layers(self) -> int:
        """Return the layers of the backbone."""
        return int(self.backbone_config.num_hidden_layers)

    @property
    def max_position_embeddings(self) -> int:
        """Return the longest sequence of the backbone."""
        return int(self.backbone_config.max_position_embeddings)


def _check(config: MDMConfig) -> None:
    """Raise ValueError for settings that contradict each other."""
    if config.objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)} (got {config.objective!r})")
    if config.block_causal and config.block_size < 1:
        raise ValueError(f"objective {config.objective} needs block_size >= 1 (got {config.block_size})")
    mask = config.mask_token_id
    if mask is not None and not 0 <= mask < config.vocab_size:
        raise ValueError(f"mask_token_id must lie below the vocabulary of {config.vocab_size} (got {mask})")


@dataclass
class MDMOutput(MaskedLMOutput):
    """`MaskedLMOutput` with the cache that was written, if any."""

    cache: Any = None


class MDMForMaskedLM(PreTrainedModel):
    """Predict every masked position from all tokens it may see (MDLM, arXiv 2406.07524; LLaDA, 2502.09992).

    Attention is bidirectional, or block-causal for models trained in blocks (BD3-LM, arXiv 2503.09573). The mask token
    itself is never predicted. With `logit_shift` (Dream, arXiv 2508.15487) hidden state i predicts token i+1.
    """

    config_class = MDMConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 - transformers' form
    main_input_name = "input_ids"

    def __init__(self, config: MDMConfig) -> None:
        """Build the backbone and the head with random weights."""
        super().__init__(config)
        self.model = AutoModel.from_config(config.backbone_config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        accepted = inspect.signature(type(self.model).forward).parameters
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding."""
        embedding: nn.Module = self.model.get_input_embeddings()
        return embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding."""
        self.model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        """Return the head."""
        head: nn.Module = self.lm_head
        return head

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace the head."""
        self.lm_head = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool = False,
        logits_to_keep: int | Tensor = 0,
        cache: Any = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return logits `(B, Q, V)` for every position, each for the token at that very position.

        `attention_mask` is None, `(B, K)` of ones and zeros over cache and input (padding on either side), or a 4-D
        mask `(B, 1, Q, K)`, bool (True may look) or additive. `past_key_values` (also called `cache`) holds earlier
        blocks and is extended by the input's keys; crop it to take them away again. With `logit_shift` the first
        position of the input has no predictor among the inputs and repeats its own prediction: begin a sequence with
        BOS, and after a cache take the last logits of the block before. `labels` `(B, Q)` are never shifted; -100 is
        left out of the mean cross-entropy. `logits_to_keep` keeps the last n positions, 0 all, a tensor those indices.
        """
        memory = cache if cache is not None else past_key_values
        if memory is None and use_cache:
            memory = DynamicCache(config=self.config.backbone_config)
        hidden_of = input_ids if input_ids is not None else inputs_embeds
        assert hidden_of is not None, "give input_ids or inputs_embeds"
        past = 0 if memory is None else int(memory.get_seq_length())
        mask, positions = self._attention(hidden_of, attention_mask, position_ids, past)
        out = self.model(
            input_ids=input_ids,
            inputs_embeds=inputs_embeds,
            attention_mask=mask,
            position_ids=positions,
            use_cache=memory is not None,
            is_causal=False,
            **{self._cache_name: memory},
            **kwargs,
        )
        logits = self.predict(out.last_hidden_state, logits_to_keep)
        loss = None if labels is None else self._cross_entropy(logits, labels)
        result = MDMOutput(loss, logits, out.hidden_states, out.attentions, memory)
        return result.to_tuple() if return_dict is False else result

    def predict(self, hidden: Tensor, logits_to_keep: int | Tensor = 0) -> Tensor:
        """Return the logits of hidden states `(B, Q, d)`, shifted if so trained; the mask token gets no probability."""
        states = shift_right(hidden) if self.config.logit_shift else hidden
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits: Tensor = self.lm_head(states[:, kept])
        if self.config.mask_token_id is not None:
            logits[..., self.config.mask_token_id] = torch.finfo(logits.dtype).min
        return logits

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    def _attention(
        self, inputs: Tensor, mask: Tensor | None, positions: Tensor | None, past: int
    ) -> tuple[Any, Tensor | None]:
        """Return the mask in the form the attention backend takes, and position ids."""
        if mask is not None and mask.dim() == 4:
            return self._for_backend(mask), positions
        length, block = inputs.shape[1], self.config.block_size
        padded = mask is not None and not bool(mask.all())
        if not padded:
            inside = past % block + length <= block if self.config.block_causal else True
            if inside and positions is None:
                return None, None  # one block, or all of a bidirectional canvas, sees everything
            key_positions = torch.arange(past + length, device=inputs.device)[None]
        else:
            assert mask is not None
            key_positions = mask.long().cumsum(-1).sub(1).clamp(min=0)
        if positions is not None:
            now = positions.expand(len(key_positions), -1) if len(positions) == 1 else positions
            before = key_positions[:, :past].expand(len(now), -1)
            key_positions = torch.cat([before, now], 1)
        queries = key_positions[:, past:]
        visible = torch.ones_like(key_positions, dtype=torch.bool)[:, None].expand(-1, length, -1)
        if self.config.block_causal:
            visible = block_causal(queries, key_positions, block)
        if padded:
            assert mask is not None
            visible = visible & mask[:, None].bool()
            visible = visible | torch.eye(past + length, device=inputs.device, dtype=torch.bool)[past:]
        return self._for_backend(visible[:, None]), queries

    def _for_backend(self, mask: Any) -> Any:
        """Return a bool mask in the backend's form; eager attention adds it to the scores, so True must become 0."""
        backend = self.config.backbone_config._attn_implementation
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            return mask
        if backend == "flex_attention":
            return _flex(mask)
        if backend != "eager":
            return mask
        dtype = self.lm_head.weight.dtype
        zeros = torch.zeros((), dtype=dtype, device=mask.device)
        return torch.where(mask, zeros, torch.finfo(dtype).min)


def shift_right(states: Tensor) -> Tensor:
    """Return `(B, Q, …)` with each position's value taken from the one before; the first keeps its own."""
    return torch.cat([states[:, :1], states[:, :-1]], 1)


def block_causal(queries: Tensor, keys: Tensor, block_size: int) -> Tensor:
    """Return bool `(B, Q, K)`: whether the block of query position `(B, Q)` is not before that of key `(B, K)`."""
    return queries[:, :, None] // block_size >= keys[:, None, :] // block_size


def _flex(mask: Tensor) -> Any:
    """Return flex attention's form of a bool mask `(B, 1, Q, K)`."""
    from torch.nn.attention.flex_attention import create_block_mask

    rows, _, queries, keys = mask.shape

    def visible(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask[row, 0, query, key]

    return create_block_mask(visible, rows, None, queries, keys, device=mask.device)


MDMConfig.register_for_auto_class()  # type: ignore[no-untyped-call]
MDMForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")  # type: ignore[no-untyped-call]
if (
    MDMConfig.model_type not in CONFIG_MAPPING
):  # a checkpoint's own copy of this file must not replace the toolkit's
    AutoConfig.register(MDMConfig.model_type, MDMConfig)
    for _auto in (AutoModel, AutoModelForMaskedLM):
        _auto.register(MDMConfig, MDMForMaskedLM)
