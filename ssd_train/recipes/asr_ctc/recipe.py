"""The speech recipe: encoder, CTC head and decoder learn together, so that the head drafts and the decoder verifies."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ssd_infer.errors import SSDError, UnsupportedModelError
from ssd_infer.models.ctc_asr import CTCASRModel, CTCASROutput, encoder_lengths
from ssd_train.config.schema import Root
from ssd_train.config.schema_speech import SpeechDataConfig, SpeechModelConfig
from ssd_train.data import speech
from ssd_train.losses.agreement import agreement_loss_sum
from ssd_train.losses.ctc import ctc_loss_sum, feasible
from ssd_train.losses.hybrid import HybridWeights, hybrid_loss
from ssd_train.losses.smoothed import correct, smoothed_cross_entropy_sum
from ssd_train.recipes.asr_ctc.augment import Stripes, spec_augment, warp_frequencies
from ssd_train.recipes.asr_ctc.measures import greedy_hypotheses, validation_metrics
from ssd_train.recipes.asr_ctc.model import build_processor, build_speech_model, speech_config
from ssd_train.recipes.asr_ctc.readiness import DecoderBatch, corrupted_batch, gold_batch
from ssd_train.recipes.asr_ctc.settings import ASRCTCConfig
from ssd_train.recipes.base import (
    Batch,
    Collator,
    Ratio,
    Recipe,
    StepContext,
    StepOutput,
    TrainingData,
)

INFEASIBLE_LIMIT = 0.01
"""Largest share of utterances too short for their label before the run stops."""
FRAMES_A_SECOND = 100
"""Feature frames in a second of audio."""
_WARM = 200
"""Utterances seen before that share is judged."""


class ASRCTCRecipe(Recipe):
    """Hybrid CTC/attention loss with intermediate CTC, jointly or in two stages."""

    name = "asr_ctc"

    def __init__(self, config: ASRCTCConfig) -> None:
        """Keep the settings."""
        self.config = config
        self.weights = HybridWeights(config.ctc_weight, config.inter_weight)
        augment = config.spec_augment
        self.stripes = Stripes(
            augment.frequency_masks,
            augment.frequency_width,
            augment.time_masks,
            augment.time_width,
            augment.time_share,
        )
        self.processor: Any = None
        self._frozen: list[nn.Parameter] = []
        self._seen = self._infeasible = 0

    # -- what is built ------------------------------------------------------------------------------------------

    def check(self, cfg: Root) -> None:
        """Nothing to look up before the data is there: the rules of the configuration have seen all of it."""

    def build_data(self, cfg: Root, run_dir: Path) -> TrainingData:
        """Return length-bucketed speech; the held-out sets go to `run_dir/heldout`."""
        model = cast("SpeechModelConfig", cfg.model)
        self.processor = build_processor(model, cast("SpeechDataConfig", cfg.data).sampling_rate)
        encoder = speech_config(model, self.processor).encoder_config()
        return cast("TrainingData", speech.build(cfg, run_dir, self.processor, encoder, self.run_samples))

    def build_model(self, cfg: Root, data: TrainingData) -> nn.Module:
        """Return the speech model, its random weights drawn from the run's seed alone."""
        longest = float(data.train.samples.frames.max()) / FRAMES_A_SECOND
        model = cast("SpeechModelConfig", cfg.model)
        return build_speech_model(model, data.processor, seed=cfg.seed, max_seconds=round(longest, 2))

    def collator(self, data: TrainingData) -> Collator:
        """Return what joins batches of utterances to one padded batch."""
        return speech.collate

    def prepare(self, model: nn.Module) -> None:
        """Keep the model; raises UnsupportedModelError for any other than `CTCASRModel`."""
        if not isinstance(model, CTCASRModel):
            raise UnsupportedModelError(
                f"recipe asr_ctc: trains speech models only (got {type(model).__name__}); use model=ctc_asr"
            )
        self.model = model

    # -- training -----------------------------------------------------------------------------------------------

    def denominator(self, batch: Batch) -> Tensor:
        """Return what both losses are divided by: tokens with EOS, or utterances; infeasible ones do not count."""
        keep = self._feasible(batch)
        if self.config.normalise == "utterance":
            return keep.sum()
        return torch.as_tensor(((batch["label_lengths"] + 1) * keep).sum())

    def step(self, model: nn.Module, inputs: Batch, context: StepContext) -> StepOutput:
        """Return the hybrid loss of one micro-batch."""
        keep = self._feasible(inputs)
        self._count(keep, context)
        generators = _generators(inputs, context)
        features, gold = self._augmented(inputs, generators), self._gold(inputs)
        second, joint = self._stage(context) == 2, self.config.stages == "joint"
        batch = self._decoder_batch(gold, inputs, features, generators) if joint or second else gold
        out = model(
            features,
            inputs["feature_lengths"],
            batch.inputs,
            detach_encoder=second,
        )
        terms, metrics = self._terms(out, inputs, batch, keep)
        denom = self.denominator(inputs)
        if joint:
            loss = hybrid_loss(terms["ctc_loss"], self._inter(terms), terms["smoothed"], self.weights)
        elif second:
            loss = terms["smoothed"] + 0.0 * self._everything()
        else:
            only = HybridWeights(1.0, self.weights.inter)
            loss = hybrid_loss(terms["ctc_loss"], self._inter(terms), terms["smoothed"], only)
        if self.config.readiness.agreement_weight > 0 and (joint or second):
            loss = loss + self._agreement(out, inputs, gold, keep, terms)
        if second:
            self._frozen = self.model.ctc_parameters()
        self._stop_at_collapse(out, context)
        logged = {name: (term.detach(), denom) for name, term in terms.items() if name != "smoothed"}
        return StepOutput(loss, denom, metrics, logged)

    def after_backward(self) -> None:
        """Leave the frozen encoder without gradient in the second stage, so that the optimizer passes it by."""
        for parameter in self._frozen:
            parameter.grad = None

    def _stage(self, context: StepContext) -> int:
        """Return 1 or 2; a pure function of the step, so that a resumed run is where it was."""
        first = self.config.encoder_share * context.max_steps
        return 2 if self.config.stages == "two_stage" and context.global_step >= first else 1

    def _feasible(self, batch: Batch) -> Tensor:
        frames = encoder_lengths(self.model.encoder.config, batch["feature_lengths"])
        return feasible(batch["labels"], batch["label_lengths"], frames)

    def _count(self, keep: Tensor, context: StepContext) -> None:
        """Stop when too many utterances of this run were too short for their labels."""
        self._seen += len(keep)
        self._infeasible += len(keep) - int(keep.sum())
        if self._seen >= _WARM and self._infeasible > INFEASIBLE_LIMIT * self._seen:
            raise SSDError(
                f"recipe asr_ctc, step {context.global_step + 1}: {self._infeasible} of {self._seen} utterances have "
                f"more text than frames, at most {INFEASIBLE_LIMIT:.0%} may; lower model.subsampling, or mend the data"
            )

    def _augmented(self, inputs: Batch, generators: list[np.random.Generator]) -> Tensor:
        features, augment = inputs["input_features"], self.config.spec_augment
        if not augment.enabled:
            return features
        if augment.formant_shift > 0:
            features = warp_frequencies(features, augment.formant_shift, self._band(), generators)
        return spec_augment(features, inputs["feature_lengths"], self.stripes, generators)

    def _band(self) -> tuple[float, float]:
        """Return the frequencies the mel bins lie between."""
        return self.processor.feature_extractor.band  # type: ignore[no-any-return]

    def _gold(self, inputs: Batch) -> DecoderBatch:
        decoder = self.model.decoder
        return gold_batch(inputs["labels"], inputs["label_lengths"], decoder.bos, decoder.eos)

    def _decoder_batch(
        self, gold: DecoderBatch, inputs: Batch, features: Tensor, generators: list[np.random.Generator]
    ) -> DecoderBatch:
        """Return what the decoder reads and should answer: the labels, and some corrupted CTC hypotheses."""
        ready = self.config.readiness
        if ready.corrupt_prefix == 0:
            return gold
        with torch.no_grad():
            encoded = self.model.encode(features, inputs["feature_lengths"])
        hypotheses = greedy_hypotheses(encoded.ctc_logits, encoded.lengths, self.model.config.blank_token_id)
        return corrupted_batch(
            gold, _label_lists(inputs), hypotheses, ready.corrupt_prefix, ready.corrupt_rate, generators
        )

    def _terms(
        self, out: CTCASROutput, inputs: Batch, batch: DecoderBatch, keep: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Ratio]]:
        """Return the terms of the loss, summed, and ratios to log."""
        assert out.ctc_logits is not None
        assert out.encoder_lengths is not None
        assert out.logits is not None
        blank, frames = self.model.config.blank_token_id, out.encoder_lengths
        labels, lengths = inputs["labels"], inputs["label_lengths"]
        terms = {"ctc_loss": ctc_loss_sum(out.ctc_logits, frames, labels, lengths, keep, blank)}
        for layer, logits in zip(self._layers(), out.inter_ctc_logits or (), strict=True):
            terms[f"inter_ctc_{layer}_loss"] = ctc_loss_sum(logits, frames, labels, lengths, keep, blank)
        mask = batch.mask & keep[:, None]
        terms["smoothed"], terms["ce_loss"] = smoothed_cross_entropy_sum(
            out.logits, batch.targets, mask, self.config.label_smoothing
        )
        valid = torch.arange(out.ctc_logits.shape[1], device=frames.device) < frames[:, None]
        blanks = (out.ctc_logits.argmax(dim=-1) == blank) & valid
        metrics = {
            "token_accuracy": (correct(out.logits, batch.targets, mask), mask.sum()),
            "ctc_blank_ratio": (blanks.sum(), valid.sum()),
            "ctc_infeasible_frac": ((~keep).sum(), torch.tensor(len(keep), device=keep.device)),
        }
        return terms, metrics

    def _layers(self) -> list[int]:
        return sorted(self.model.config.inter_ctc_layers)

    def _inter(self, terms: dict[str, Tensor]) -> list[Tensor]:
        return [terms[f"inter_ctc_{layer}_loss"] for layer in self._layers()]

    def _agreement(
        self, out: CTCASROutput, inputs: Batch, gold: DecoderBatch, keep: Tensor, terms: dict[str, Tensor]
    ) -> Tensor:
        """Return the weighted divergence of decoder and CTC head where the decoder has read the label."""
        assert out.ctc_logits is not None
        assert out.encoder_lengths is not None
        assert out.logits is not None
        lengths = torch.where(keep, inputs["label_lengths"], -1)
        blank = self.model.config.blank_token_id
        total, _ = agreement_loss_sum(
            out.ctc_logits, out.encoder_lengths, out.logits, inputs["labels"], lengths, blank
        )
        terms["agreement_loss"] = total
        return self.config.readiness.agreement_weight * total

    def _everything(self) -> Tensor:
        """Return the sum of all trained parameters: data-parallel ranks wait for a gradient of each."""
        return torch.stack([p.sum() for p in self.model.parameters() if p.requires_grad]).sum()

    def _stop_at_collapse(self, out: CTCASROutput, context: StepContext) -> None:
        """Stop a run whose CTC head has learned to say nothing (NVIDIA-NeMo/Speech#14583)."""
        if not context.detailed or context.global_step < self.config.collapse_share * context.max_steps:
            return
        assert out.ctc_logits is not None
        if bool((out.ctc_logits.argmax(dim=-1) == self.model.config.blank_token_id).all()):
            raise SSDError(
                f"recipe asr_ctc, step {context.global_step + 1}: the CTC head reads nothing but blanks, so there is "
                "no draft; train longer, raise train.learning_rate or recipe.ctc_weight, or use a smaller vocabulary"
            )

    # -- validation ---------------------------------------------------------------------------------------------

    def evaluate(self, model: nn.Module, inputs: Batch, context: StepContext) -> dict[str, Ratio]:
        """Measure the losses, error rates of the CTC transcript and how much of it the decoder would accept."""
        keep, gold = self._feasible(inputs), self._gold(inputs)
        with torch.no_grad():
            encoded = self.model.encode(inputs["input_features"], inputs["feature_lengths"])
            logits = self.model.decoder(gold.inputs, encoded)
            inter = tuple(encoded.inter_ctc_logits[layer] for layer in self._layers())
            out = CTCASROutput(logits, encoded.ctc_logits, inter, encoded.lengths)
            terms, metrics = self._terms(out, inputs, gold, keep)
            hypotheses = greedy_hypotheses(
                encoded.ctc_logits, encoded.lengths, self.model.config.blank_token_id
            )
            decode = None if self.processor is None else self.processor.decode
            metrics |= validation_metrics(self.model, encoded, _label_lists(inputs), hypotheses, decode)
        loss = hybrid_loss(terms["ctc_loss"], self._inter(terms), terms.pop("smoothed"), self.weights)
        denom = self.denominator(inputs)
        return {"loss": (loss, denom), **{name: (term, denom) for name, term in terms.items()}, **metrics}

    def metadata(self) -> dict[str, Any]:
        """Return what a checkpoint should say about how it was made."""
        return {"name": self.name, "stages": self.config.stages}


def _label_lists(inputs: Batch) -> list[list[int]]:
    rows = zip(inputs["labels"].tolist(), inputs["label_lengths"].tolist(), strict=True)
    return [row[:length] for row, length in rows]


def _generators(inputs: Batch, context: StepContext) -> list[np.random.Generator]:
    """Return a generator for each utterance, which follows from run, step and the utterance, wherever it is trained."""
    rows = zip(inputs["feature_lengths"].tolist(), _label_lists(inputs), strict=True)
    return [
        np.random.default_rng([context.seed, context.global_step, frames, *label]) for frames, label in rows
    ]
