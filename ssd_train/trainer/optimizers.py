"""Muon for the layers' matrices with AdamW for everything else, as one optimizer.

Muon orthogonalises the momentum of a matrix before applying it (Jordan et al., 2024). It is for hidden matrices only:
embeddings, head, norms and the routers of a mixture of experts keep AdamW. On the small models of the embedded default
it reaches a given loss in far fewer steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ssd_train.config.schema import Root
from ssd_train.trainer.muon import StackedMuon


class MuonAdamW(torch.optim.Optimizer):
    """Several optimizers behind one face: groups, state and schedule are theirs, joined.

    A scheduler scales the groups of all, each from its own learning rate.
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        """Join `parts`; the joined groups are the very dictionaries of theirs."""
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._rejoin()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of all; a closure is evaluated once, before any moves a weight."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore all."""
        for part, saved in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(saved)
        self._rejoin()

    def _rejoin(self) -> None:
        """Share groups and state with the parts; loading replaces a part's groups, so this follows it."""
        self.param_groups = [group for part in self.parts for group in part.param_groups]
        self.state = _JoinedState(self.parts)  # type: ignore[assignment]


class _JoinedState(dict[Tensor, Any]):
    """A live view of the parts' state: what accelerate and torch look up by parameter."""

    def __init__(self, parts: tuple[torch.optim.Optimizer, ...]) -> None:
        super().__init__()
        self._parts = parts

    def __getitem__(self, parameter: Tensor) -> Any:
        for part in self._parts:
            if parameter in part.state:
                return part.state[parameter]
        raise KeyError(parameter)

    def __len__(self) -> int:
        return sum(len(part.state) for part in self._parts)


def custom_optimizer(cfg: Root) -> tuple[Any, dict[str, Any]] | None:
    """Return what the Trainer takes as `optimizer_cls_and_kwargs`, or None for optimizers it knows by name."""
    if cfg.optim.name != "muon":
        return None
    return (lambda: build_muon), {"cfg": cfg}


def build_muon(model: nn.Module, cfg: Root) -> MuonAdamW:
    """Give hidden matrices to Muon and everything else to AdamW; weight decay spares vectors."""
    hidden, stacks, tables, vectors = _split(model)
    train, optim = cfg.train, cfg.optim
    rate, momentum, decay = (
        optim.muon_learning_rate,
        optim.muon_momentum,
        train.weight_decay * optim.muon_decay_share,
    )
    # Matrices and stacks stay two optimizers: checkpoints know them apart, from when torch's Muon took the matrices.
    kinds = [hidden, stacks] if stacks else [hidden]
    muon = [StackedMuon(kind, lr=rate, momentum=momentum, weight_decay=decay) for kind in kinds]
    groups = [{"params": tables, "weight_decay": 0.0}, {"params": vectors, "weight_decay": 0.0}]
    betas = (train.adam_beta1, train.adam_beta2)
    adamw = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=train.learning_rate,
        betas=betas,
        eps=cfg.optim.epsilon,
    )
    return MuonAdamW(*muon, adamw)


def _split(model: nn.Module) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    """Return (matrices inside layers, stacks of experts, tables and routers, vectors) that are trained."""
    outside = {
        id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()
    }
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    outside |= set() if head is None else {id(p) for p in head.parameters()}
    outside |= {id(p) for module in model.modules() if hasattr(module, "top_k") for p in module.parameters()}
    trained: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    hidden = [p for p in trained if p.dim() == 2 and id(p) not in outside]
    stacks = [p for p in trained if p.dim() == 3]
    inside = {id(p) for p in (*hidden, *stacks)}
    tables = [p for p in trained if p.dim() != 1 and id(p) not in inside]
    return hidden, stacks, tables, [p for p in trained if p.dim() == 1]
