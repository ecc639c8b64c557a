"""DRAFTs of the lossless engine: which future states a call checks beside the next one. One file each."""

from __future__ import annotations

from ssd_infer.families.diffusion.draft import StateDrafter
from ssd_infer.strategies.fewer_steps.coarse_draft import CoarseDraft
from ssd_infer.strategies.fewer_steps.freedave import FreeDave
from ssd_infer.strategies.fewer_steps.spiffy import Spiffy
from ssd_infer.strategies.fewer_steps.ssd_chain import SSDChain
from ssd_infer.strategies.fewer_steps.ssd_tree import SSDTree

DRAFTERS: dict[str, type[StateDrafter]] = {
    drafter.name: drafter for drafter in (SSDChain, SSDTree, FreeDave, CoarseDraft, Spiffy)
}
"""By name, in the order a report lists them."""

__all__ = ["DRAFTERS", "StateDrafter"]
