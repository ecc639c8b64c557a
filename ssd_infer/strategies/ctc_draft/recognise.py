"""From samples to tokens: features, one encoder pass, then any of the decoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ssd_infer.families.speech.encoding import encode
from ssd_infer.families.speech.result import Decoded, Timer
from ssd_infer.strategies.ctc_draft.ctc import confidence, posteriors
from ssd_infer.strategies.ctc_draft.ctc_params import CTCDraftParams
from ssd_infer.strategies.ctc_draft.decode import decode, special_ids


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
