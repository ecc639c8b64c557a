"""Settings of the speech recipe."""

from __future__ import annotations

from dataclasses import dataclass, field

from ssd_train.config.schema import RecipeConfig


@dataclass(slots=True)
class SpecAugmentConfig:
    """Stripes of time and frequency hidden from the encoder (arXiv 1904.08779), and formants moved."""

    enabled: bool = True
    """Augment features while training."""
    formant_shift: float = 0.15
    """Largest relative shift of the formants, up or down, drawn anew each time an utterance is read; 0 moves none."""
    frequency_masks: int = 2
    """Stripes of mel bins."""
    frequency_width: int = 10
    """Widest stripe in mel bins."""
    time_masks: int = 2
    """Stripes of frames."""
    time_width: int = 40
    """Widest stripe in frames."""
    time_share: float = 0.06
    """Widest stripe as a share of the utterance; the smaller limit holds."""


@dataclass(slots=True)
class ReadinessConfig:
    """What makes the checkpoint ready for speculation, beyond training both heads."""

    corrupt_prefix: float = 0.0
    """Share of utterances whose decoder reads the CTC hypothesis, corrupted, and learns the best way on from there."""
    corrupt_rate: float = 0.05
    """Share of that hypothesis' tokens replaced at random."""
    agreement_weight: float = 0.0
    """Factor of KL(CTC ‖ decoder) on aligned tokens."""


@dataclass(slots=True)
class ASRCTCConfig(RecipeConfig):
    """Hybrid CTC/attention training whose CTC head drafts for the decoder (arXiv 2603.11243, 1609.06773)."""

    kind: str = "asr_ctc"
    """Always `asr_ctc`."""
    ctc_weight: float = 0.3
    """λ: weight of CTC against the decoder's cross-entropy."""
    inter_weight: float = 0.3
    """w: share of the CTC weight that goes to the intermediate layers."""
    label_smoothing: float = 0.1
    """Share of the decoder's target spread over the vocabulary."""
    normalise: str = "token"
    """What both losses are divided by: token (with EOS) or utterance."""
    stages: str = "joint"
    """joint, or two_stage: first encoder and CTC head, then the decoder on the frozen encoder (the paper's way)."""
    encoder_share: float = 0.6
    """Share of the steps in the first of two stages."""
    collapse_share: float = 0.5
    """Stop when CTC reads nothing but blanks after this share of the steps; 1 never stops."""
    spec_augment: SpecAugmentConfig = field(default_factory=SpecAugmentConfig)
    """Stripes hidden from the encoder."""
    readiness: ReadinessConfig = field(default_factory=ReadinessConfig)
    """Options for speculation."""
