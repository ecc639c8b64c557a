"""What drafters that run a skip set have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ssd_infer.engine.sublayers import SkipSet, View, skip_view
from ssd_infer.engine.window import Window
from ssd_infer.strategies.head_report import head_tables
from ssd_infer.strategies.skip_layers.search_report import search_tables
from ssd_infer.strategies.stepwise import Stepwise
from ssd_infer.strategies.stream_report import stream_plots, stream_tables

if TYPE_CHECKING:
    from ssd_infer.report.table import Plot, Table


class ViewDraft(Stepwise):
    """Draft with the target's layers, some sublayers left out.

    Up to the first skipped sublayer the draft is the target: verification goes on from there. The keys of all later
    layers are written again by the verify pass, so no draft key of theirs survives a round.
    """

    skips: SkipSet = SkipSet()
    view: View = ()
    _own: Tensor

    @classmethod
    def tables(cls, row: Mapping[str, Any]) -> list[Table]:
        """Show its search, its head, and acceptance along the streams."""
        return [*search_tables(row), *head_tables(row), *stream_tables(row)]

    @classmethod
    def plots(cls, row: Mapping[str, Any]) -> list[Plot]:
        """Draw acceptance along the streams."""
        return stream_plots(row)

    def use(self, skips: SkipSet) -> None:
        """Draft with `skips` from now on."""
        self.skips = skips
        self.view = skip_view(self.session.target, skips)
        self.resume_layer = skips.first(self.session.target.num_layers)

    def step(self, token: Tensor, offset: int) -> Tensor:
        """Run the kept sublayers on one `token` `(B,)` a row; return `(B, 1, d)`."""
        session, target, resume = self.session, self.session.target, self.resume_layer
        window = session.window(1, offset)
        hidden = target.embed_at(token.unsqueeze(1), window, session.cache)
        self._own = target.run(hidden, window, session.cache, 0, resume)
        return target.run(self._own, window, session.cache, resume, layers=self.view)

    def beyond(self, own: Tensor, window: Window) -> Tensor:
        """Run the kept sublayers from the first layer with a skipped one on."""
        session = self.session
        return session.target.run(own, window, session.cache, self.resume_layer, layers=self.view)

    def own_states(self, hidden: Tensor) -> Tensor:
        """Return the states before the first layer with a skipped sublayer."""
        return self._own
