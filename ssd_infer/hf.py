"""Self-speculation from transformers' own `generate`.

    model.generate(ids, custom_generate=ssd_infer.hf_generate, draft="early_exit", draft_params={...})

and, for people who have transformers but not this toolkit, a `custom_generate/generate.py` inside the checkpoint:

    model.generate(ids, custom_generate=CHECKPOINT, trust_remote_code=True)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ssd_infer.bridge import following, self_speculate
from ssd_infer.engine.request import read_draft
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.strategies import registry as drafts


def hf_generate(
    model: nn.Module,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    draft: str = "early_exit",
    draft_params: Mapping[str, Any] | None = None,
    seed: int | None = None,
    token_streamer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Decode for `model.generate(custom_generate=hf_generate)`; returns what `generate` returns, `(B, T + new)` ids.

    Temperature, top-k, top-p, EOS and lengths are those `generate` prepared. `streamer` follows the decoding block by
    block; `token_streamer` is its other name. Raises ConfigError for options that change scores in other ways (beams,
    penalties, constraints), since drafts would not go through them.
    """
    with following(token_streamer) as stream:
        problems: list[Problem] = []
        name, _ = read_draft(draft, None, problems)
        if problems or name is None:
            raise ConfigError(problems or [Problem("draft", "must name a draft", None, "try 'early_exit'")])
        strategy = drafts.get(name)
        mask = model_kwargs.get("attention_mask")
        return self_speculate(
            model,
            input_ids,
            mask,
            logits_processor,
            stopping_criteria,
            generation_config,
            strategy,
            draft_params,
            seed,
            stream,
        )


def write_custom_generate(checkpoint: str | Path, draft_params: Mapping[str, Any] | None = None) -> Path:
    """Write `custom_generate/generate.py` into `checkpoint`: this engine and `early_exit` in one file.

    `draft_params` become its defaults. Returns the file. The file needs torch and transformers only.
    """
    from ssd_infer.strategies.early_exit.bundle import bundle

    folder = Path(checkpoint) / "custom_generate"
    folder.mkdir(exist_ok=True)
    path = folder / "generate.py"
    path.write_text(bundle(dict(draft_params or {})), encoding="utf-8")
    return path
