"""The small cross-attention decoder: verifies a whole draft in one pass, with a key/value cache of its own per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssd_infer.models.asr_encoder import EncoderOutput
from ssd_infer.models.asr_positions import positions_of_tokens, sinusoids
from ssd_infer.models.asr_state import CrossState, SelfCache
from ssd_infer.models.ctc_asr_config import CTCASRConfig


class CrossAttentionDecoder(nn.Module):
    """Pre-norm transformer decoder over the encoder's frames; the interface every decoder here has.

    `start` reads the audio, `step` appends tokens to the cache and scores what follows each of them, `forward` scores
    whole transcripts for training. Token ids are the CTC head's ids; `step` never lets blank, BOS or padding win.
    """

    def __init__(self, config: CTCASRConfig) -> None:
        """Build embeddings, layers and head; the audio enters through `memory`."""
        super().__init__()
        width = config.decoder_hidden_size
        self.conditioned, self.blank = config.condition_decoder, config.blank_token_id
        self.bos, self.eos = int(config.bos_token_id), int(config.eos_token_id)
        self.embed = nn.Embedding(config.vocab_size, width)
        self.memory = Memory(config)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, config.vocab_size)
        self.dropout = config.decoder_dropout
        self.forbidden = sorted(
            {i for i in (config.blank_token_id, config.bos_token_id, config.pad_token_id) if i is not None}
            - {config.eos_token_id}
        )

    @property
    def prompt(self) -> list[int]:
        """Tokens every transcript starts from."""
        return [self.bos]

    def forward(self, tokens: Tensor, encoded: EncoderOutput) -> Tensor:
        """Return logits `(B, U, V)` of what follows each of `tokens` `(B, U)`, without cache or forbidden ids."""
        memory, mask = self.memory(encoded), encoded.mask[:, None, None, :]
        hidden = functional.dropout(self._embed(tokens, 0, tokens.shape[1]), self.dropout, self.training)
        for layer in self._layers():
            hidden = layer(hidden, memory, mask, None)
        logits: Tensor = self.head(self.norm(hidden))
        return logits

    def start(self, encoded: EncoderOutput) -> CrossState:
        """Return an empty state for every row of `encoded`; keys and values of the audio are computed here, once."""
        memory = self.memory(encoded)
        audio = [layer.cross.keys_values(memory) for layer in self._layers()]
        ragged = encoded.hidden.shape[0] > 1
        return CrossState(audio, encoded.mask[:, None, None, :] if ragged else None, encoded.hidden.shape[0])

    def step(self, state: CrossState, tokens: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Append `tokens` `(B, n)` and return logits `(B, n, V)` of what follows each; forbidden ids get −inf.

        Row b takes its first `counts[b]` tokens (all n when None); logits after them are meaningless. Rows may hold
        different numbers of tokens: each has its own positions, cache slots and mask.
        """
        cache = state.aim(tokens.shape[1], tokens.device)
        hidden = self._embed(tokens, cache.positions, cache.end)
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, state.audio[index], state.audio_mask, cache.layer(index))
        state.advance(tokens.shape[1], counts)
        logits: Tensor = self.head(self.norm(hidden))
        logits[..., self.forbidden] = -torch.inf
        return logits

    def _layers(self) -> list[DecoderLayer]:
        return cast("list[DecoderLayer]", list(self.layers))

    def _embed(self, tokens: Tensor, positions: int | Tensor, end: int) -> Tensor:
        """Return embeddings plus positions, all below `end`; an int is the first position of every row."""
        embedded: Tensor = self.embed(tokens)
        table = sinusoids(end, embedded.shape[-1], embedded.device).to(embedded.dtype)
        return embedded + (table[positions:] if isinstance(positions, int) else table[positions])


class Memory(nn.Module):
    """What the decoder attends to: frames, where they lie in time, and what the CTC head reads in them.

    With conditioning, a frame also carries its CTC posterior and the position, in tokens, that the greedy CTC path has
    reached there. Cross-attention is then monotonic from the start, which a decoder of this size is slow to learn.
    """

    def __init__(self, config: CTCASRConfig) -> None:
        """Project the encoder's width to the decoder's."""
        super().__init__()
        width = config.decoder_hidden_size
        self.project = nn.Linear(config.encoder_width, width)
        self.posterior = nn.Linear(config.vocab_size, width, bias=False) if config.condition_decoder else None
        self.place = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.blank = config.blank_token_id

    def forward(self, encoded: EncoderOutput) -> Tensor:
        """Return memory `(B, T, d)`."""
        memory: Tensor = self.project(encoded.hidden)
        width, device, frames = memory.shape[-1], memory.device, memory.shape[1]
        memory = memory + self.place(sinusoids(frames, width, device).to(memory.dtype))
        if self.posterior is None:
            return self.norm(memory)  # type: ignore[no-any-return]
        probabilities = torch.softmax(encoded.ctc_logits, dim=-1)
        table = sinusoids(frames + 1, width, device).to(memory.dtype)
        reached = table[positions_of_tokens(encoded.ctc_logits, self.blank)]
        return self.norm(memory + self.posterior(probabilities)) + reached  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Self-attention over tokens, cross-attention to the audio, feed-forward; each behind a LayerNorm."""

    def __init__(self, config: CTCASRConfig) -> None:
        """Build one layer."""
        super().__init__()
        width = config.decoder_hidden_size
        self.norm_self, self.norm_cross, self.norm_ffn = (nn.LayerNorm(width) for _ in range(3))
        self.attention = SelfAttention(width, config.decoder_heads)
        self.cross = CrossAttention(width, config.decoder_heads)
        self.up, self.down = (
            nn.Linear(width, config.decoder_ffn_size),
            nn.Linear(config.decoder_ffn_size, width),
        )
        self.dropout = config.decoder_dropout

    def forward(
        self, hidden: Tensor, audio: Tensor | tuple[Tensor, Tensor], audio_mask: Tensor | None, cache: Any
    ) -> Tensor:
        """Return hidden states `(B, n, d)`; `cache` None means whole transcripts at once.

        `audio` is the memory or its keys and values; in training the memory, because a sharded layer is whole only
        inside its own forward.
        """
        if isinstance(audio, Tensor):
            audio = self.cross.keys_values(audio)
        hidden = hidden + self._drop(self.attention(self.norm_self(hidden), cache))
        hidden = hidden + self._drop(self.cross(self.norm_cross(hidden), audio, audio_mask))
        return hidden + self._drop(self.down(functional.silu(self.up(self.norm_ffn(hidden)))))

    def _drop(self, hidden: Tensor) -> Tensor:
        return functional.dropout(hidden, self.dropout) if self.training and self.dropout > 0 else hidden


class SelfAttention(nn.Module):
    """Causal multi-head attention; with a cache, over each row's own past."""

    def __init__(self, width: int, heads: int) -> None:
        """Build the fused projection of queries, keys and values."""
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, hidden: Tensor, cache: SelfCache | None) -> Tensor:
        """Return `(B, n, d)`."""
        batch, length, width = hidden.shape
        parts = self.qkv(hidden).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        if cache is None:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            key, value = cache.update(key, value)
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=cache.mask)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return projected


class CrossAttention(nn.Module):
    """Multi-head attention to keys and values computed once per utterance."""

    def __init__(self, width: int, heads: int) -> None:
        """Build the projections."""
        super().__init__()
        self.heads = heads
        self.query, self.kv, self.out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values `(B, H, T, d/H)` of `memory`."""
        batch, frames, _ = memory.shape
        keys, values = self.kv(memory).view(batch, frames, 2, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return keys, values

    def forward(self, hidden: Tensor, audio: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Return `(B, n, d)`."""
        batch, length, width = hidden.shape
        query = self.query(hidden).view(batch, length, self.heads, -1).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(query, *audio, attn_mask=mask)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return projected
