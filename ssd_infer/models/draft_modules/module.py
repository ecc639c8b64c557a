"""What all forms of draft modules share: a body, a norm of their own, and rows of the target's head."""

from __future__ import annotations

import copy
import weakref

import torch
from torch import Tensor, nn

from ssd_infer.checkpoint.draft_spec import DraftSpec
from ssd_infer.engine.heads.rows import HeadRows, restricted_reason, rows_of
from ssd_infer.engine.kernels.products import product
from ssd_infer.engine.target import Target
from ssd_infer.errors import UnsupportedModelError
from ssd_infer.models.draft_modules.bodies import Thin, make_body, source_layer


class DraftModule(nn.Module):
    """Parameters of a draft module; those of the target are looked at and never held."""

    ids: Tensor | None
    """Tokens that the module looks at `(K,)`, ascending; None for all."""
    row_weight: Tensor | None
    row_bias: Tensor | None
    serial = -1
    """Number of a module that a model drafts with."""

    def __init__(self, spec: DraftSpec, target: Target, ids: Tensor | None) -> None:
        """Copy what `spec` names from `target`; raises UnsupportedModelError where it has no such part."""
        super().__init__()
        self.spec = spec
        self.body = self.make_body(target)
        self.norm = copy.deepcopy(target.norm)
        self.source = 0 if self.thin else source_layer(target, spec)
        """The layer whose positions and masks the body takes."""
        self.register_buffer("ids", None if ids is None else ids.to(target.device))
        self._look_at(target)
        self.requires_grad_(requires_grad=True)

    def make_body(self, target: Target) -> nn.Module:
        """Return what `spec` names, made of parts of `target`."""
        return make_body(target, self.spec)

    @property
    def thin(self) -> bool:
        """Tell whether the body attends to nothing, and so keeps no keys."""
        return isinstance(self.body, Thin)

    def _look_at(self, target: Target) -> None:
        """Take the rows of the head that are looked at: copies where they are some, or own, else the head as it is."""
        # A reference that does not keep the model alive, and is no submodule: its weights are not this module's.
        self.__dict__["_head"] = weakref.ref(target.model.get_output_embeddings())  # type: ignore[operator]
        self.__dict__["_leave"] = target._leave or _as_it_is
        whole = self.ids is None and not self.spec.own_rows
        if not whole and (reason := restricted_reason(target)) is not None:
            raise UnsupportedModelError(f"{target.name}: no rows of its head can be taken: {reason}")
        rows = HeadRows(torch.empty(0), None) if whole else self._rows(target)
        parts = {"row_weight": None if whole else rows.weight, "row_bias": rows.bias}
        for name, part in parts.items():
            if self.spec.own_rows and part is not None:
                setattr(self, name, nn.Parameter(part.clone()))
            else:
                self.register_buffer(name, part, persistent=False)

    def _rows(self, target: Target) -> HeadRows:
        ids = torch.arange(target.vocab_size, device=target.device) if self.ids is None else self.ids
        return rows_of(target, ids)

    def rows(self) -> tuple[Tensor, Tensor | None]:
        """Return weight `(K, d)` and bias `(K,)` of the rows that are looked at."""
        if self.row_weight is not None:
            return self.row_weight, self.row_bias
        head = self.__dict__["_head"]()
        if head is None:
            raise RuntimeError("the model this draft module belongs to was deleted")
        return head.weight, head.bias

    def leave(self, logits: Tensor) -> Tensor:
        """Return what comes after the head of `(…, K)`: some families scale logits, or bound them."""
        found: Tensor = self.__dict__["_leave"](logits)
        return found

    def logits(self, normed: Tensor) -> Tensor:
        """Return `(…, K)` logits of normed states `(…, d)`: exact rows of the target's head, or own ones."""
        weight, bias = self.rows()
        return self.leave(
            product(normed, weight.to(normed.dtype), bias if bias is None else bias.to(normed.dtype))
        )


def _as_it_is(logits: Tensor) -> Tensor:
    return logits
