"""Draft `early_exit`: the first E layers and the shared head draft; layers E..L verify from the stored exit states.

LayerSkip (arXiv 2404.16710) section 4.3. Keys and values of the first E layers are the target's own, so one cache
serves both, and the verify pass runs those layers only for the last drafted token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from ssd_infer.engine.session import Session
from ssd_infer.engine.target import Target
from ssd_infer.strategies.base import DraftParams, Resolved
from ssd_infer.strategies.early_exit import EARLY_EXIT
from ssd_infer.strategies.early_exit.exit_params import EarlyExitParams
from ssd_infer.strategies.early_exit.exit_trees import resolve_early_exit
from ssd_infer.strategies.early_exit.forced import study_forced
from ssd_infer.strategies.early_exit.grid import study_grid
from ssd_infer.strategies.early_exit.study_report import forced_tables, grid_plots
from ssd_infer.strategies.head_report import head_tables
from ssd_infer.strategies.stepwise import Stepwise
from ssd_infer.strategies.study import Study
from ssd_infer.tuning.tree_costs import most_nodes
from ssd_infer.tuning.tree_shapes import shape_of

if TYPE_CHECKING:
    from ssd_infer.report.table import Plot, Table
    from ssd_infer.strategies.study import StudyContext


class EarlyExit(Stepwise):
    """Draft with the first E layers, at most γ tokens a round."""

    info = EARLY_EXIT
    Params = EarlyExitParams

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Bind to `session`; `params` must have no `auto` left."""
        super().__init__(session, params)
        resolved = cast(EarlyExitParams, params)
        self.exit_layer = self.resume_layer = int(resolved.exit_layer)
        self.gamma = int(resolved.gamma)
        self.confidence = 0.0 if resolved.confidence == "auto" else resolved.confidence
        self.shape = shape_of(session.target, resolved.tree, resolved.shares, self.gamma)

    def step(self, token: Tensor, offset: int) -> Tensor:
        """Run the first E layers on one `token` `(B,)` a row; return exit states `(B, 1, d)`."""
        session, target = self.session, self.session.target
        window = session.window(1, offset)
        hidden = target.embed_at(token.unsqueeze(1), window, session.cache)
        return target.run(hidden, window, session.cache, 0, self.exit_layer)

    @classmethod
    def applicable(cls, target: Target) -> str | None:
        """Need at least two layers: one to exit after, one to verify with."""
        return (
            None
            if target.num_layers >= 2
            else "the model has a single layer, so there is nothing to exit from"
        )

    @classmethod
    def studies(cls, context: StudyContext) -> list[Study]:
        """Study the grid of exits and draft lengths, and what many prompts predict of a row that drafts."""
        if cls.info is not EARLY_EXIT or isinstance(context.target, str) or context.target.num_layers < 2:
            return []
        grid = context.wanted or context.settings.draft.startswith(EARLY_EXIT.name)
        found = [Study("grid", study_grid, "start")] if grid else []
        if context.params is None or context.params.get("tree", 1) != 1:
            return found
        return [*found, Study("teacher_forced", study_forced)]

    @classmethod
    def tables(cls, row: Mapping[str, Any]) -> list[Table]:
        """Show its head, and what many prompts predict."""
        return [*head_tables(row), *forced_tables(row)]

    @classmethod
    def plots(cls, row: Mapping[str, Any]) -> list[Plot]:
        """Draw the grid."""
        return grid_plots(row)

    @classmethod
    def head_depth(cls, target: Target, params: DraftParams) -> int:
        """Return E."""
        del target
        return int(cast(EarlyExitParams, params).exit_layer)

    @classmethod
    def max_draft(cls, params: DraftParams) -> int:
        """Return γ, or the nodes of a tree."""
        found = cast(EarlyExitParams, params)
        return max(int(found.gamma), most_nodes(found.tree))

    @classmethod
    def resolve(
        cls, target: Target, params: DraftParams, prompts: list[list[int]], do_sample: bool
    ) -> Resolved:
        """Choose E and γ by predicted speedup on a calibration of `prompts`; plain decoding when none exceeds 1."""
        return resolve_early_exit(target, cast(EarlyExitParams, params), prompts, do_sample)
