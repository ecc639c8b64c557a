"""A diffusion backbone whose rotary tables follow the canvas is refused, whatever its configuration calls them."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from ssd_infer.errors import UnsupportedModelError
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.models.masked_diffusion import MDMConfig, MDMForMaskedLM
from tests.engine.test_examination import Switching
from tests.families.diffusion.support import BLOCK_CAUSAL, VOCABULARY, build


def test_tables_that_follow_the_longest_position_are_refused() -> None:
    model: Any = build(0)
    assert Denoiser.of(model)
    model.model.rotary_emb = Switching(model.model.rotary_emb, 100, whole=True)
    with pytest.raises(UnsupportedModelError, match="depend on the other positions of a pass"):
        Denoiser.of(model)


def test_dynamic_scaling_is_refused_by_name() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    backbone = AutoConfig.for_model("llama", vocab_size=VOCABULARY, rope_parameters=rope, **shape)
    model = MDMForMaskedLM(MDMConfig(backbone, VOCABULARY - 1, BLOCK_CAUSAL, 4)).eval()
    with pytest.raises(UnsupportedModelError, match="'dynamic' depend on the longest position of a pass"):
        Denoiser.of(model)
