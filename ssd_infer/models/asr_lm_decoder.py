"""The decoder of the paper's form (arXiv 2603.11243): a projector turns frames into embeddings a causal LM reads."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, DynamicCache

from ssd_infer.models.asr_encoder import EncoderOutput
from ssd_infer.models.ctc_asr_config import CTCASRConfig


class CausalLMDecoder(nn.Module):
    """A causal LM behind a projector; same interface as `CrossAttentionDecoder`.

    The LM sees [audio | BOS | tokens]. Rows of different lengths share its cache through a mask with holes: a slot that
    a row rolled back stays, invisible, and positions count visible slots only.
    """

    def __init__(self, config: CTCASRConfig) -> None:
        """Build the projector and the LM, with LoRA adapters when the configuration has some (needs `peft`)."""
        super().__init__()
        lm_config = config.language_model_config()
        self.lm: Any = AutoModelForCausalLM.from_config(lm_config)
        if config.lora:
            from peft import LoraConfig, inject_adapter_in_model

            self.lm = inject_adapter_in_model(LoraConfig(task_type="CAUSAL_LM", **config.lora), self.lm)
        self.projector = Projector(config, lm_config.hidden_size)
        self.bos, self.eos = int(config.bos_token_id), int(config.eos_token_id)
        special = {config.blank_token_id, config.bos_token_id, config.pad_token_id} - {config.eos_token_id}
        rows = self.lm.get_input_embeddings().num_embeddings
        self.forbidden = sorted(i for i in special if i is not None and i < rows)

    @property
    def prompt(self) -> list[int]:
        """Tokens every transcript starts from."""
        return [self.bos]

    def forward(self, tokens: Tensor, encoded: EncoderOutput) -> Tensor:
        """Return logits `(B, U, V)` of what follows each of `tokens` `(B, U)`, for training."""
        audio, valid = self.projector(encoded)
        text = self.lm.get_input_embeddings()(tokens)
        mask = torch.cat([valid, valid.new_ones(tokens.shape)], dim=1)
        out = self.lm(
            inputs_embeds=torch.cat([audio, text], dim=1),
            attention_mask=mask.long(),
            position_ids=_positions(mask),
            use_cache=False,
        )
        logits: Tensor = out.logits[:, audio.shape[1] :]
        return logits

    def start(self, encoded: EncoderOutput) -> LMState:
        """Return a state that holds the audio and no tokens."""
        audio, valid = self.projector(encoded)
        cache = DynamicCache()
        self.lm.base_model(
            inputs_embeds=audio,
            attention_mask=valid.long(),
            position_ids=_positions(valid),
            **{_cache_name(self.lm): cache},
            use_cache=True,
        )
        return LMState(cache, valid)

    def step(self, state: LMState, tokens: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Append `tokens` `(B, n)` and return logits `(B, n, V)` of what follows each; forbidden ids get −inf.

        Row b takes its first `counts[b]` tokens (all n when None); logits after them are meaningless.
        """
        width = tokens.shape[1]
        taken = [width] * len(state.lengths) if counts is None else list(counts)
        mask, positions = state.extend(width, taken)
        out = self.lm(
            input_ids=tokens,
            attention_mask=mask.long(),
            position_ids=positions,
            **{_cache_name(self.lm): state.cache},
            use_cache=True,
        )
        logits: Tensor = out.logits
        logits[..., self.forbidden] = -torch.inf
        return logits


class Projector(nn.Module):
    """Stack neighbouring frames and map them into the LM's embedding space with a two-layer MLP."""

    def __init__(self, config: CTCASRConfig, width: int) -> None:
        """Map `projector_stride` encoder frames to one embedding of `width`."""
        super().__init__()
        self.stride = config.projector_stride
        self.norm = nn.LayerNorm(config.encoder_width * self.stride)
        self.inner = nn.Linear(config.encoder_width * self.stride, config.projector_hidden_size)
        self.outer = nn.Linear(config.projector_hidden_size, width)

    def forward(self, encoded: EncoderOutput) -> tuple[Tensor, Tensor]:
        """Return embeddings `(B, ⌈T/stride⌉, d)` and bool `(B, ⌈T/stride⌉)`: which of them hold audio."""
        hidden = encoded.hidden.masked_fill(~encoded.mask[:, :, None], 0.0)
        hidden = functional.pad(hidden, (0, 0, 0, -hidden.shape[1] % self.stride))
        stacked = hidden.reshape(hidden.shape[0], -1, hidden.shape[2] * self.stride)
        valid = torch.arange(stacked.shape[1], device=hidden.device) * self.stride < encoded.lengths[:, None]
        return self.outer(functional.silu(self.inner(self.norm(stacked)))), valid


class LMState:
    """The LM's cache and, per row, which of its slots count; `lengths` are the tokens a row holds, audio excluded."""

    def __init__(self, cache: DynamicCache, audio: Tensor) -> None:
        """Begin after the audio slots `audio`, bool `(B, S)`."""
        self.cache, self.valid, self.audio_slots = cache, audio, audio.shape[1]
        self.lengths: list[int] = [0] * audio.shape[0]

    def extend(self, width: int, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Add `width` slots, `counts[b]` visible in row b; return mask `(B, S)` and positions `(B, width)`."""
        if len(counts) != len(self.lengths) or any(not 0 <= count <= width for count in counts):
            raise ValueError(
                f"counts: needs one number from 0 to {width} for each of {len(self.lengths)} rows (got {counts})"
            )
        device = self.valid.device
        steps = torch.arange(width, device=device)
        new = steps < torch.tensor(list(counts), device=device)[:, None]
        positions = self.valid.sum(dim=1, keepdim=True) + steps
        # A row's surplus tokens are visible to themselves alone: a query without any key would be undefined.
        mask = torch.cat([self.valid, torch.ones_like(new)], dim=1)
        self.valid = torch.cat([self.valid, new], dim=1)
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        return mask, positions

    def crop(self, lengths: Sequence[int]) -> None:
        """Keep the first `lengths[b]` tokens of row b; raises ValueError for more than it holds."""
        kept = list(lengths)
        if len(kept) != len(self.lengths) or any(
            not 0 <= new <= old for new, old in zip(kept, self.lengths, strict=False)
        ):
            raise ValueError(f"lengths: must not exceed those held, {self.lengths} (got {kept})")
        text = self.valid[:, self.audio_slots :]
        limit = torch.tensor(kept, device=self.valid.device)[:, None]
        self.valid = torch.cat(
            [self.valid[:, : self.audio_slots], text & (text.cumsum(dim=1) <= limit)], dim=1
        )
        self.lengths = kept
        self._trim()

    def _trim(self) -> None:
        """Drop trailing slots that no row sees any more."""
        used = self.valid.any(dim=0).nonzero()
        end = max(int(used[-1]) + 1 if len(used) else 0, self.audio_slots)
        surplus = self.valid.shape[1] - end
        if surplus > 0:
            self.cache.crop(-surplus)
            self.valid = self.valid[:, :end]

    def select(self, rows: Sequence[int]) -> None:
        """Keep the rows `rows`, in that order."""
        order = list(rows)
        index = torch.tensor(order, dtype=torch.long, device=self.valid.device)
        self.cache.batch_select_indices(index)
        self.valid = self.valid[index]
        self.lengths = [self.lengths[row] for row in order]


def _positions(mask: Tensor) -> Tensor:
    """Return int64 positions `(B, S)` that count visible slots; invisible ones get 0."""
    return (mask.long().cumsum(dim=1) - 1).clamp_min(0)


def _cache_name(lm: nn.Module) -> str:
    """Return what this transformers calls the cache argument (`past_key_values` before it is renamed)."""
    return "cache" if "cache" in inspect.signature(type(lm).forward).parameters else "past_key_values"
