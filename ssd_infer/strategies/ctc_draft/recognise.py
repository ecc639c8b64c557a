"""From samples to tokens: features, one encoder pass, then any of the decoders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ssd_infer.families.speech.result import Decoded, Timer
from ssd_infer.strategies.ctc_draft.ctc import confidence, posteriors
from ssd_infer.strategies.ctc_draft.ctc_params import CTCDraftParams
from ssd_infer.strategies.ctc_draft.decode import decode, special_ids


@torch.inference_mode()
def encode(model: Any, processor: Any, waves: Sequence[Tensor], timer: Timer) -> Any:
    """Return the encoder's output for mono `waves` `(N_i,)` at the processor's rate, batched and right-padded."""
    with timer.phase("features"):
        batch = processor.feature_extractor(list(waves))
    with timer.phase("encode"):
        features = batch["input_features"].to(device=model.device, dtype=model.dtype)
        return model.encode(features, batch["feature_lengths"])


def recognise(
    model: Any,
    processor: Any,
    waves: Sequence[Tensor],
    method: str | None,
    params: CTCDraftParams | None = None,
) -> tuple[Decoded, Any]:
    """Return the decoded batch, all phases timed, and the encoder's output it came from."""
    timer = Timer()
    encoded = encode(model, processor, waves, timer)
    decoded = decode(model, encoded, method, params)
    for phase, seconds in timer.seconds.items():
        decoded.timer.seconds[phase] += seconds
    return decoded, encoded


@torch.inference_mode()
def confidences(model: Any, encoded: Any) -> list[float]:
    """Return how sure the CTC head is of each row, in [0, 1]; the same figure whatever decoder ran."""
    config = model.config
    table = posteriors(encoded.ctc_logits, special_ids(config))
    return confidence(table, encoded.lengths, config.blank_token_id)


def batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield indices in batches of at most `size`, utterances of like length together, longest first."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for start in range(0, len(order), size):
        yield order[start : start + size]
