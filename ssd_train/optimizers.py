"""Muon for the layers' matrices with AdamW for everything else, as one optimizer.

Muon orthogonalises the momentum of a matrix before applying it (Jordan et al., 2024); torch ships it since 2.9. It
is for hidden matrices only: embeddings, head and norms keep AdamW. On the small deep models of the embedded default
it reaches a given loss in far fewer steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ssd_infer.errors import ConfigError, Problem
from ssd_train.config.schema import Root


class MuonAdamW(torch.optim.Optimizer):
    """Two optimizers behind one face: groups, state and schedule are theirs, joined.

    A scheduler scales the groups of both, each from its own learning rate.
    """

    def __init__(self, muon: torch.optim.Optimizer, adamw: torch.optim.Optimizer) -> None:
        """Join `muon` and `adamw`; the joined groups are the very dictionaries of the two."""
        self.parts = (muon, adamw)
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._rejoin()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of both; a closure is evaluated once, before either moves a weight."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the states of both."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore both."""
        for part, saved in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(saved)
        self._rejoin()

    def _rejoin(self) -> None:
        """Share groups and state with the parts; loading replaces a part's groups, so this follows it."""
        self.param_groups = [group for part in self.parts for group in part.param_groups]
        self.state = _JoinedState(self.parts)  # type: ignore[assignment]


class _JoinedState(dict[Tensor, Any]):
    """A live view of both parts' state: what accelerate and torch look up by parameter."""

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
    if not hasattr(torch.optim, "Muon"):
        raise ConfigError(
            [Problem("optim.name", "muon needs torch >= 2.9", torch.__version__, "use optim=adamw")]
        )
    return (lambda: build_muon), {"cfg": cfg}


def build_muon(model: nn.Module, cfg: Root) -> MuonAdamW:
    """Give hidden matrices to Muon and everything else to AdamW; weight decay spares vectors."""
    hidden, tables, vectors = _split(model)
    train = cfg.train
    muon = torch.optim.Muon(
        hidden,
        lr=cfg.optim.muon_learning_rate,
        momentum=cfg.optim.muon_momentum,
        weight_decay=train.weight_decay * cfg.optim.muon_decay_share,
    )
    groups = [{"params": tables, "weight_decay": 0.0}, {"params": vectors, "weight_decay": 0.0}]
    betas = (train.adam_beta1, train.adam_beta2)
    adamw = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=train.learning_rate,
        betas=betas,
        eps=cfg.optim.epsilon,
    )
    return MuonAdamW(muon, adamw)


def _split(model: nn.Module) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return (matrices inside layers, embedding and head tables, vectors) that are trained."""
    outside = {
        id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()
    }
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None  # type: ignore[operator]
    outside |= set() if head is None else {id(p) for p in head.parameters()}
    trained: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    hidden = [p for p in trained if p.dim() == 2 and id(p) not in outside]
    inside = {id(p) for p in hidden}
    tables = [p for p in trained if p.dim() != 1 and id(p) not in inside]
    return hidden, tables, [p for p in trained if p.dim() == 1]
