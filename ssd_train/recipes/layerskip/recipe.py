"""LayerSkip (arXiv 2404.16710): layer dropout and a shared early-exit loss, with self-distillation beside it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from ssd_infer.errors import ConfigError, Problem
from ssd_train.config.schema import Root
from ssd_train.losses.chunked import ExitTerm, LossSums
from ssd_train.losses.weights import normalised_weights
from ssd_train.models import build as models
from ssd_train.recipes.base import Batch, Ratio, StepContext, StepOutput
from ssd_train.recipes.causal import CausalRecipe
from ssd_train.recipes.layerskip.dropout import dropping, survivors
from ssd_train.recipes.layerskip.model_check import check_model
from ssd_train.recipes.layerskip.schedules import dropout_probability, enabled_layers
from ssd_train.recipes.layerskip.settings import EarlyExitConfig, LayerSkipConfig


class LayerSkipRecipe(CausalRecipe):
    """Train one model whose first layers can draft for all of them."""

    name = "layerskip"

    def __init__(self, config: LayerSkipConfig) -> None:
        """Keep the settings."""
        self.config = config
        self.chunk_tokens = config.early_exit.chunk_tokens
        self._dropping = ExitStack()

    def check(self, cfg: Root) -> None:
        """Check layers, exits and positions of the model before anything is written; raises SSDError."""
        check_model(cfg, models.check(cfg))

    def prepare(self, model: nn.Module) -> None:
        """Find the exits; raises ConfigError if a configured exit is not inside the model."""
        super().prepare(model)
        last, settings = self.exits.num_layers - 1, self.config.early_exit
        chosen, key = settings.exits or [], "recipe.early_exit.exits"
        outside = [exit_ for exit_ in chosen if not 1 <= exit_ <= last]
        if outside:
            rule = f"every exit must lie in 1..{last}, below the model's {last + 1} layers"
            raise ConfigError([Problem(key, rule, outside, "remove these")])
        if 1 in chosen and settings.weights != "uniform":
            rule = f"exit 1 has weight e(0) = 0 with weights={settings.weights}, so it would never be trained"
            remedy = "set recipe.early_exit.weights=uniform, or leave exit 1 out"
            raise ConfigError([Problem(key, rule, chosen, remedy)])

    def step(self, model: nn.Module, inputs: Batch, context: StepContext) -> StepOutput:
        """Return the summed loss J = Σ w(t, l)·(…) of one micro-batch, its layers dropped as the schedule says."""
        weights = self.weights(context)
        last = self.exits.num_layers - 1
        terms = {
            layer: self.term(weight) for layer, weight in weights.items() if layer != last and weight > 0
        }
        kept = self.kept(inputs["input_ids"].shape[0], context)
        self.after_backward()
        # A layer nobody runs gets a gradient of zero and not none: Adam must see the same on any number of processes.
        self._dropping.enter_context(dropping(self.exits.layers, kept, touch_empty=True))
        detach = self.config.early_exit.detach_head
        states = self.states(model, inputs, list(terms), detach_norm=detach)
        sums = self.loss(
            states,
            list(terms.values()),
            final_weight=weights[last],
            detach_head=detach,
            detailed=context.detailed,
        )
        denom = self.denominator(inputs)
        terms_logged, metrics = _ratios(sums, list(terms), denom)
        return StepOutput(sums.total, denom, metrics, terms_logged)

    def after_backward(self) -> None:
        """Let every layer run all samples again.

        Before transformers 5.24 a recomputed layer goes through its `forward` once more, so the shadows stay until
        the backward pass is over.
        """
        self._dropping.close()

    def evaluate(self, model: nn.Module, inputs: Batch, context: StepContext) -> dict[str, Ratio]:
        """Measure every exit with all layers on."""
        self.after_backward()
        return super().evaluate(model, inputs, context)

    def weights(self, context: StepContext) -> dict[int, float]:
        """Return w(t, l) of the layers whose exit is on at this step."""
        settings = self.config.early_exit
        on = enabled_layers(
            settings.curriculum,
            self.exits.num_layers,
            context.global_step,
            context.max_steps,
            settings.period,
            None if settings.exits is None else [exit_ - 1 for exit_ in settings.exits],
        )
        return normalised_weights(on, self.exits.num_layers, settings.e_scale, settings.weights)

    def kept(self, batch: int, context: StepContext) -> list[Tensor | None]:
        """Return the samples that run each layer at this step, None where all do."""
        settings, total = self.config.layer_dropout, self.exits.num_layers
        p_max = settings.p_max if settings.enabled else 0.0
        probabilities = [
            dropout_probability(
                layer,
                total,
                context.global_step,
                context.max_steps,
                p_max,
                settings.layer_scale,
                settings.time_scale,
            )
            for layer in range(total)
        ]
        return survivors(probabilities, context.seed, context.global_step, batch, context.sample_offset)

    def term(self, weight: float) -> ExitTerm:
        """Return the loss of one exit whose share of the whole is `weight`."""
        return exit_term(self.config.early_exit, weight)

    def reference_exit(self) -> int:
        """Return the first configured exit, or a quarter of the depth."""
        configured = self.config.early_exit.exits
        return min(configured) if configured else super().reference_exit()

    def metadata(self) -> dict[str, Any]:
        """Return the recipe's name and settings."""
        return {"name": self.name, "settings": asdict(self.config)}


def exit_term(settings: EarlyExitConfig, weight: float) -> ExitTerm:
    """Return the terms of an exit: cross-entropy, distillation, and agreement (never detached), times `weight`."""
    parts: list[tuple[str, float, bool]] = []
    into_teacher = not settings.detach_teacher
    share = weight * settings.distill_weight
    if share > 0 and settings.distill_direction == "both":
        parts += [("forward", share / 2, into_teacher), ("reverse", share / 2, into_teacher)]
    elif share > 0:
        parts.append((settings.distill_direction, share, into_teacher))
    if settings.agreement_weight > 0:
        parts.append(("tv", weight * settings.agreement_weight, True))
    return ExitTerm(weight * settings.ce_weight, tuple(parts))


def _ratios(sums: LossSums, layers: list[int], denom: Tensor) -> tuple[dict[str, Ratio], dict[str, Ratio]]:
    """Return (loss terms, metrics) under the names exits have when decoding: exit E is the output of layer E-1."""
    terms: dict[str, Ratio] = {"final_loss": (sums.final, denom)}
    metrics: dict[str, Ratio] = {}
    for index, layer in enumerate(layers):
        name = f"exit_{layer + 1}"
        terms[f"{name}_loss"] = (sums.cross_entropy[index], denom)
        for kind, value in sums.divergence[index].items():
            terms[f"{name}_{kind}"] = (value, denom)
        if sums.agreed:
            metrics[f"{name}_agreement"] = (sums.agreed[index], denom)
    return terms, metrics
