"""What the causal recipes share: run the model once, predict from several depths, measure every exit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ssd_train.losses.chunked import ExitTerm, LossSums, chunked_exit_loss
from ssd_train.losses.measure import acceptance_length, measure_exits
from ssd_train.models.exits import ExitModel
from ssd_train.recipes.base import Batch, Ratio, Recipe, StepContext, is_whole, label_mask, next_tokens

TAU_GAMMA = 4
"""Draft length of the simulated acceptance length."""


@dataclass(slots=True)
class States:
    """Flattened hidden states `(N, d)` of the counted positions, ready for the head, and their labels `(N,)`."""

    final: Tensor
    exits: list[Tensor]
    labels: Tensor


class CausalRecipe(Recipe):
    """Next-token prediction with a chunked head; subclasses say which exits take part, and how."""

    chunk_tokens: int = 512
    exits: ExitModel

    def prepare(self, model: nn.Module) -> None:
        """Find layers, norm and head; raises UnsupportedModelError where exits cannot share them."""
        self.exits = ExitModel(model)
        self.exits.check()

    def denominator(self, batch: Batch) -> Tensor:
        """Return the number of predicted tokens."""
        return label_mask(batch).sum()

    def measured_layers(self) -> list[int]:
        """Return the layers whose exits are measured on validation data: all but the last."""
        return list(range(self.exits.num_layers - 1))

    def reference_exit(self) -> int:
        """Return the exit E whose simulated acceptance length stands for the checkpoint."""
        return max(1, self.exits.num_layers // 4)

    def evaluate(self, model: nn.Module, inputs: Batch, context: StepContext) -> dict[str, Ratio]:
        """Measure loss, and for every exit loss, agreement, overlap and simulated acceptance length."""
        layers = self.measured_layers()
        with torch.no_grad():
            states = self.states(model, inputs, layers)
        metrics = self.draft_metrics(states, inputs, [f"exit_{layer + 1}" for layer in layers])
        if layers:
            metrics["tau_sim"] = metrics[f"exit_{self.reference_exit()}_tau"]
        return metrics

    @torch.no_grad()
    def draft_metrics(self, states: States, inputs: Batch, names: Sequence[str]) -> dict[str, Ratio]:
        """Measure the model's loss, and under each of `names` what `states.exits` are worth as drafts, in order."""
        head = self.exits.head
        seen = measure_exits(
            states.final,
            states.exits,
            states.labels,
            head.weight,
            head.bias,
            chunk_tokens=self.chunk_tokens,
        )
        count = torch.as_tensor(states.labels.numel(), device=states.labels.device)
        metrics: dict[str, Ratio] = {"loss": (seen.final, count)}
        rows = [int(length) for length in label_mask(inputs).sum(1)]
        for place, name in enumerate(names):
            metrics[f"{name}_loss"] = (seen.cross_entropy[place], count)
            metrics[f"{name}_agreement"] = (seen.match[place].sum(), count)
            metrics[f"{name}_overlap"] = (seen.overlap[place].sum(), count)
            metrics[f"{name}_tau"] = acceptance(seen.match[place], rows)
        return metrics

    def states(
        self,
        model: nn.Module,
        inputs: Batch,
        layers: Sequence[int],
        *,
        detach_norm: bool = False,
    ) -> States:
        """Run `model` once on `inputs` and return what the exits of `layers` predict from."""
        # An unpadded batch passes no mask at all, which keeps attention on its fast causal path.
        passed = {name: inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
        with self.exits.tapping(layers) as taps:
            model(**passed, use_cache=False, logits_to_keep=1)
        assert taps.final is not None
        mask = None if is_whole(inputs) else label_mask(inputs)
        exits = [self.exits.normed(_counted(taps.layer[layer], mask), detach=detach_norm) for layer in layers]
        labels = next_tokens(inputs)
        return States(_counted(taps.final, mask), exits, labels.reshape(-1) if mask is None else labels[mask])

    def loss(
        self,
        states: States,
        terms: Sequence[ExitTerm],
        *,
        final_weight: float,
        detach_head: bool,
        detailed: bool,
    ) -> LossSums:
        """Return the summed chunked loss of `states`."""
        return chunked_exit_loss(
            states.final,
            states.exits,
            states.labels,
            self.exits.head.weight,
            self.exits.head.bias,
            terms,
            final_weight=final_weight,
            chunk_tokens=self.chunk_tokens,
            detach_head=detach_head,
            count_agreement=detailed,
        )


def _counted(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Return the rows `(N, d)` of hidden states `(B, T, d)` whose prediction counts; None counts all."""
    shifted = hidden[:, :-1]
    return shifted.reshape(-1, hidden.shape[-1]) if mask is None else shifted[mask]


def acceptance(match: Tensor, rows: Sequence[int]) -> Ratio:
    """Return the ratio of the simulated acceptance length over all starts of all rows."""
    starts = [acceptance_length(row, TAU_GAMMA) for row in match.split(list(rows)) if row.numel()]
    total = (
        torch.stack([row.sum() for row in starts]).sum()
        if starts
        else match.new_zeros((), dtype=torch.float32)
    )
    return total, torch.as_tensor(sum(row.numel() for row in starts), device=match.device)
