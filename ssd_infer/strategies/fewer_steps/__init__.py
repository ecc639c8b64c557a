"""Fewer steps: drafted future states of a diffusion model are verified in one call."""

from __future__ import annotations

from ssd_infer.strategies.info import Entry, StrategyInfo

DRAFTERS = ("ssd_chain", "ssd_tree", "freedave", "coarse_draft", "spiffy")
NEEDS = "it drafts for diffusion language models, and this checkpoint decodes autoregressively"
FEWER_STEPS = StrategyInfo("fewer_steps", "diffusion", "fewer_steps", DRAFTERS, needs=NEEDS, order=50)
ENTRIES = (Entry(FEWER_STEPS, "ssd_infer.strategies.fewer_steps.step_strategy:FewerSteps"),)
