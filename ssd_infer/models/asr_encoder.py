"""The speech encoder: transformers' Fast-Conformer with frame-wise norms and a CTC tap between its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.parakeet.configuration_parakeet import ParakeetEncoderConfig
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoder, ParakeetEncoderBlock

from ssd_infer.models.asr_conformer import Convolution, RelativeAttention, Subsampling
from ssd_infer.models.asr_positions import relative_sinusoids, within
from ssd_infer.models.ctc_asr_config import encoder_lengths


@dataclass(slots=True)
class EncoderOutput:
    """What the encoder knows of a batch; frames at and after `lengths` are padding."""

    hidden: Tensor
    """`(B, T, d)`."""
    lengths: Tensor
    """int64 `(B,)`: valid frames of each row, on the device of `hidden`."""
    ctc_logits: Tensor
    """`(B, T, V)`, blank included."""
    inter_ctc_logits: dict[int, Tensor] = field(default_factory=dict)
    """`(B, T, V)` after the first l layers, by l."""

    @property
    def mask(self) -> Tensor:
        """Valid frames, bool `(B, T)`."""
        return within(self.lengths, self.hidden.shape[1])

    def select(self, rows: Sequence[int] | Tensor) -> EncoderOutput:
        """Return the rows `rows`, in that order, cut to the longest of them."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.hidden.device)
        lengths = self.lengths[index]
        end = int(lengths.max()) if len(index) else 0
        inter = {layer: logits[index, :end] for layer, logits in self.inter_ctc_logits.items()}
        return EncoderOutput(self.hidden[index, :end], lengths, self.ctc_logits[index, :end], inter)


@dataclass(slots=True)
class CTCTap:
    """What blocks do with the CTC head while the encoder runs; one object a pass, so the modules keep no state."""

    head: nn.Linear
    layers: Sequence[int]
    """Layer counts l after which the head looks."""
    conditioning: nn.Linear | None
    logits: dict[int, Tensor] = field(default_factory=dict)

    def __call__(self, depth: int, hidden: Tensor) -> Tensor:
        """Note the logits after `depth` layers; return `hidden` plus what the head said (arXiv 2104.02724, eq. 10)."""
        logits = self.head(hidden)
        self.logits[depth] = logits
        return (
            hidden if self.conditioning is None else hidden + self.conditioning(torch.softmax(logits, dim=-1))
        )


class TappedBlock(ParakeetEncoderBlock):
    """A Fast-Conformer block that lets a `CTCTap` look at its output."""

    def __init__(self, config: ParakeetEncoderConfig, layer_idx: int) -> None:
        """Build block `layer_idx`, counted from 0."""
        super().__init__(config, layer_idx)
        self.depth = layer_idx + 1
        self.self_attn = RelativeAttention(config, layer_idx)
        self.conv = Convolution(config)

    def forward(  # type: ignore[override]
        self, hidden: Tensor, positions: Tensor, mask: Tensor | None = None, tap: CTCTap | None = None
    ) -> Tensor:
        """Run the block `(B, T, d)`, then the tap where it wants to look."""
        hidden = torch.add(hidden, self.feed_forward1(self.norm_feed_forward1(hidden)), alpha=0.5)
        hidden = hidden + self.self_attn(self.norm_self_att(hidden), positions, mask)
        hidden = hidden + self.conv(self.norm_conv(hidden), mask)
        hidden = torch.add(hidden, self.feed_forward2(self.norm_feed_forward2(hidden)), alpha=0.5)
        hidden = self.norm_out(hidden)
        return tap(self.depth, hidden) if tap is not None and self.depth in tap.layers else hidden


class ASREncoder(ParakeetEncoder):
    """Fast-Conformer encoder whose output depends on nothing but the utterance itself."""

    def __init__(self, config: ParakeetEncoderConfig) -> None:
        """Build the encoder with tapped blocks in place of the plain ones."""
        super().__init__(config)
        del self.encode_positions
        self.subsampling = Subsampling(config)
        self.layers = nn.ModuleList(TappedBlock(config, index) for index in range(config.num_hidden_layers))
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, features: Tensor, lengths: Tensor | None = None, tap: CTCTap | None = None) -> Tensor:
        """Return frames `(B, T, d)` of `features` `(B, F, mel)`, whose row b holds `lengths[b]` of audio; None: all."""
        hidden: Tensor = self.subsampling(features, lengths) * self.input_scale
        mask = None
        if lengths is not None:
            mask = within(encoder_lengths(self.config, lengths), hidden.shape[1])
        length, width = hidden.shape[1:]
        positions = relative_sinusoids(length, width, hidden.device).to(hidden.dtype)
        hidden = functional.dropout(hidden, self.dropout, self.training)
        for block in self.layers:
            hidden = block(hidden, positions, mask, tap=tap)
        return hidden
