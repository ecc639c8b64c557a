"""A speech model as it decodes fastest here: wide passes through the faster product, narrow ones as they are.

Encoding and verifying put hundreds of rows through small weights, plain decoding a few. What pays for the one does not
for the other, so each pass takes the view of the model that fits it. All views share the model's parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ssd_infer.engine.kernels.products import onednn_pays, product_view

NARROW = 32
"""Rows up to which a pass of the decoder is narrow."""
WIDE = 1 << 20
"""Rows for which every layer's product may pay; each decides again at every call."""


def fastest(model: Any) -> Any:
    """Return `model` or a stand-in for it that decodes the same, faster; make a new one when modules were replaced."""
    return FastModel(model) if onednn_pays(torch.get_num_threads()) else model


class FastModel:
    """What decoding asks of a speech model."""

    def __init__(self, model: Any) -> None:
        """Make the views of `model`, which must be in evaluation mode when it decodes."""
        self.config, self._model, self._wide = model.config, model, product_view(model, WIDE)
        self.decoder = FastDecoder(model.decoder, self._wide)

    @property
    def training(self) -> bool:
        """Tell whether the model is in training mode."""
        return bool(self._model.training)

    @property
    def device(self) -> torch.device:
        """Return where the model lives."""
        device: torch.device = self._model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Return the precision of its weights."""
        dtype: torch.dtype = self._model.dtype
        return dtype

    def encode(self, input_features: Tensor, lengths: Tensor | None = None) -> Any:
        """Encode as the model does."""
        return self._wide.encode(input_features, lengths)  # type: ignore[operator]


class FastDecoder:
    """What decoding asks of a decoder."""

    def __init__(self, decoder: Any, wide: Any) -> None:
        """Make the views of `decoder`; `wide` is the whole model's."""
        self.prompt, self.eos = decoder.prompt, decoder.eos
        self._decoder, self._wide = decoder, wide.decoder
        self._narrow: Any = product_view(decoder, NARROW)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the decoder's parameters."""
        yield from self._decoder.parameters()

    def start(self, encoded: Any) -> Any:
        """Read the audio as the decoder does."""
        return self._wide.start(encoded)

    def step(self, state: Any, tokens: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Append tokens and score what follows them as the decoder does."""
        view = self._narrow if tokens.numel() <= NARROW else self._wide
        scores: Tensor = view.step(state, tokens, counts)
        return scores
