"""Speech recognition whose CTC head drafts for the decoder."""

from __future__ import annotations

from ssd_train.recipes.asr_ctc.rules import check_asr_ctc
from ssd_train.recipes.asr_ctc.settings import ASRCTCConfig
from ssd_train.recipes.info import RecipeInfo

INFO = RecipeInfo(
    "asr_ctc", "speech", ASRCTCConfig, check_asr_ctc, "ssd_train.recipes.asr_ctc.recipe:ASRCTCRecipe"
)
