"""Rules of the speech recipe."""

from __future__ import annotations

from ssd_infer.config.checks import Checks
from ssd_train.config.schema import Root
from ssd_train.recipes.asr_ctc.settings import ASRCTCConfig

STAGES = ("joint", "two_stage")
NORMALISERS = ("token", "utterance")


def check_asr_ctc(cfg: Root, checks: Checks) -> None:
    """Check the recipe's own settings."""
    recipe = cfg.recipe
    assert isinstance(recipe, ASRCTCConfig)
    for key in ("ctc_weight", "inter_weight", "encoder_share", "collapse_share"):
        checks.within(key, getattr(recipe, key), 0, 1)
    checks.within("label_smoothing", recipe.label_smoothing, 0, 1, open_end=True)
    checks.choice("normalise", recipe.normalise, NORMALISERS)
    checks.choice("stages", recipe.stages, STAGES)
    augment, ready = checks.under("spec_augment"), checks.under("readiness")
    for key in ("frequency_masks", "frequency_width", "time_masks", "time_width"):
        augment.at_least(key, getattr(recipe.spec_augment, key), 0)
    augment.within("time_share", recipe.spec_augment.time_share, 0, 1)
    augment.within("formant_shift", recipe.spec_augment.formant_shift, 0, 1)
    ready.within("corrupt_prefix", recipe.readiness.corrupt_prefix, 0, 1)
    ready.within("corrupt_rate", recipe.readiness.corrupt_rate, 0, 1)
    ready.at_least("agreement_weight", recipe.readiness.agreement_weight, 0)
