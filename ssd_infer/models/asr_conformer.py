"""The parts of a Fast-Conformer block, frames last but one throughout: what transformers' classes compute, faster.

Parameters, their names and shapes are those of transformers' Parakeet. A small model on a processor spends its time on
calls and copies rather than on arithmetic, and the encoder is what no way of drafting can save.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.parakeet.configuration_parakeet import ParakeetEncoderConfig
from transformers.models.parakeet.modeling_parakeet import (
    ParakeetEncoderAttention,
    ParakeetEncoderConvolutionModule,
    ParakeetEncoderSubsamplingConv2D,
)

from ssd_infer.engine.kernels.products import product
from ssd_infer.models.asr_positions import within


class FramewiseConv(nn.Conv1d):
    """A convolution of one frame's width, which is a linear map of the channels."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Map `(B, T, C)` to `(B, T, C')`."""
        return product(hidden, self.weight[:, :, 0], self.bias)


class PointwiseConv(nn.Conv2d):
    """A convolution of one place's width, channels last."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Map `(B, F, M, C)` to `(B, F, M, C')`."""
        return product(hidden, self.weight[:, :, 0, 0], self.bias)


class DepthwiseConv(nn.Conv2d):
    """A convolution of every channel by itself, channels last."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Map `(B, F, M, C)` to `(B, F', M', C)`."""
        return super().forward(hidden.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class PatchConv(nn.Conv2d):
    """The first convolution: one channel in, channels last out; a product with its patches."""

    def forward(self, features: Tensor) -> Tensor:
        """Map `(B, F, M)` to `(B, F', M', C)`.

        Frames are gathered first, so that a patch is one contiguous run of them: mel bins outside, frames inside.
        """
        across, along = cast("int", self.padding[1]), cast("int", self.padding[0])
        (frames, bins), (step, stride) = self.kernel_size, self.stride
        padded = functional.pad(features, (across, across, along, along))
        runs = padded.unfold(1, frames, step).flatten(2)
        patches = runs.unfold(2, frames * bins, frames * stride).contiguous()
        return product(patches, self.weight[:, 0].transpose(1, 2).flatten(1), self.bias)


class Subsampling(ParakeetEncoderSubsamplingConv2D):
    """Strided convolutions over time and frequency, then a projection of each frame."""

    def __init__(self, config: ParakeetEncoderConfig) -> None:
        """Build the layers under transformers' names."""
        super().__init__(config)
        for index, layer in enumerate(self.layers):
            if isinstance(layer, nn.Conv2d):
                self.layers[index] = _channels_last(layer)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return `(B, T, d)` of `features` `(B, F, mel)`, of which `lengths` `(B,)` are audio; None means all.

        Padding, and what is computed of it, is set to zero before a convolution could mix it with audio.
        """
        hidden = features
        if lengths is not None:
            hidden = features.masked_fill(~within(lengths, features.shape[1])[:, :, None], 0.0)
        for index, layer in enumerate(self.layers):
            if isinstance(layer, nn.ReLU):
                hidden = functional.relu_(hidden)
                continue
            hidden = layer(hidden)
            if lengths is None:
                continue
            lengths = self._get_output_length(lengths, cast("nn.Conv2d", layer))
            if not isinstance(layer, DepthwiseConv) and index + 2 < len(self.layers):
                hidden.mul_(within(lengths, hidden.shape[1])[:, :, None, None])
        projected: Tensor = self.linear(hidden.transpose(2, 3).flatten(2))
        return projected


def _channels_last(layer: nn.Conv2d) -> nn.Conv2d:
    form: Any = PatchConv if layer.in_channels == 1 else PointwiseConv
    if layer.in_channels > 1 and layer.groups == layer.in_channels:
        form = DepthwiseConv
    made: nn.Conv2d = form(
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,
        layer.stride,
        layer.padding,
        groups=layer.groups,
    )
    return made


class Convolution(ParakeetEncoderConvolutionModule):
    """The convolution module, with a norm over the channels of each frame in place of BatchNorm.

    Unlike BatchNorm, neither batch mates nor padding then have a say in what a frame becomes.
    """

    def __init__(self, config: ParakeetEncoderConfig) -> None:
        """Build the layers under transformers' names."""
        super().__init__(config)
        width, bias = config.hidden_size, config.convolution_bias
        self.pointwise_conv1 = FramewiseConv(width, 2 * width, 1, bias=bias)
        self.pointwise_conv2 = FramewiseConv(width, width, 1, bias=bias)
        self.norm = nn.LayerNorm(width)  # type: ignore[assignment]

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map `(B, T, d)`; frames outside the bool `mask` `(B, T)` are silent to their neighbours."""
        hidden = functional.glu(self.pointwise_conv1(hidden), dim=-1)
        if mask is not None:
            hidden = hidden * mask[:, :, None]
        mixed: Tensor = self.pointwise_conv2(self.activation(self.norm(self._over_time(hidden))))
        return mixed

    def _over_time(self, hidden: Tensor) -> Tensor:
        """Convolve every channel by itself; as an image one pixel high, channels last, it is not copied about."""
        conv: nn.Conv1d = self.depthwise_conv
        image = hidden[:, None].permute(0, 3, 1, 2)
        padding = (0, cast("int", conv.padding[0]))
        mixed = functional.conv2d(
            image, conv.weight[:, :, None], conv.bias, padding=padding, groups=conv.groups
        )
        return mixed.permute(0, 2, 3, 1).squeeze(1)


class RelativeAttention(ParakeetEncoderAttention):
    """Self-attention with relative positions (arXiv 1901.02860, section 3.3), computed once for all rows."""

    def forward(self, hidden: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map `(B, T, d)`; `positions` `(2T − 1, d)` run from T − 1 to 1 − T, `mask` `(B, T)` says which keys count."""
        batch, length, _ = hidden.shape
        query = self.q_proj(hidden).unflatten(-1, (-1, self.head_dim))
        key, value = (self._by_head(project(hidden)) for project in (self.k_proj, self.v_proj))
        content, place = ((query + bias).permute(2, 0, 1, 3) for bias in (self.bias_u, self.bias_v))
        relative = self.relative_k_proj(positions).unflatten(-1, (-1, self.head_dim)).permute(1, 2, 0)
        by_place = torch.bmm(place.flatten(1, 2), relative).unflatten(1, (batch, length))
        scores = torch.baddbmm(
            aligned(by_place).flatten(0, 1),
            content.flatten(0, 1),
            key.transpose(1, 2),
            beta=self.scaling,
            alpha=self.scaling,
        )
        if mask is not None:
            never = torch.finfo(scores.dtype).min / 2
            beyond = torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, never)
            scores.view(-1, batch, length, length).add_(beyond[:, None, :])
        weights = functional.dropout(torch.softmax(scores, dim=-1), self.attention_dropout, self.training)
        mixed = torch.bmm(weights, value).unflatten(0, (-1, batch)).permute(1, 2, 0, 3).flatten(2)
        projected: Tensor = self.o_proj(mixed)
        return projected

    def _by_head(self, hidden: Tensor) -> Tensor:
        """Return `(H·B, T, d/H)` of `(B, T, d)`."""
        heads: Tensor = hidden.unflatten(-1, (-1, self.head_dim))
        return heads.permute(2, 0, 1, 3).flatten(0, 1)


def aligned(scores: Tensor) -> Tensor:
    """Return `(..., T, T)`, a view of `scores` `(..., T, 2T − 1)` whose columns run from position T − 1 to 1 − T.

    Query t finds key s at position t − s, so each row begins one column before the one above it.
    """
    length, width = scores.shape[-2:]
    if length == 1:
        return scores
    flat = scores.flatten(-2)[..., length - 1 : length * width - 1]
    rows: Tensor = flat.unflatten(-1, (length, width - 1))
    return rows[..., :length]
