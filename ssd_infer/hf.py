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

from ssd_infer.bridge import Prepared, following, self_speculate
from ssd_infer.engine.request import read_draft
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.strategies import registry as drafts
from ssd_infer.strategies.base import Strategy
from ssd_infer.strategies.early_exit.bundle import bundle


def hf_generate(
    model: nn.Module,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    draft: str | None = "early_exit",
    draft_params: Mapping[str, Any] | None = None,
    seed: int | None = None,
    token_streamer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Decode for `model.generate(custom_generate=hf_generate)`; returns what `generate` returns, `(B, T + new)` ids.

    It is the path of `ssd_infer.generate`, under what `generate` prepared: temperature, top-k, top-p (its own
    defaults and those of the generation config apply), EOS, lengths, `num_return_sequences` when sampling, padding;
    and every rule about the score of a next token, at every position as `generate`'s own loop would apply it, also
    `prefix_allowed_tokens_fn` and a caller's own `logits_processor` of transformers' classes. One of another class is
    followed where the class says `stateless = True`: what it returns depends on the ids and scores of a row alone.
    `draft=None` decodes plainly. `streamer` follows the decoding block by block; `token_streamer` is its other name.
    `return_dict_in_generate` returns an object that holds `sequences` and nothing else. What says how transformers
    would compute (`use_cache`, an unquantised `cache_implementation`, compilation) has no effect and changes no token.

    Raises ConfigError by name for everything else that would be dropped: beams, guidance, watermarks, constraints,
    other ways to draft, outputs beside tokens, `inputs_embeds`, unusual `position_ids`, a cache to read or extend.
    """
    with following(token_streamer) as stream:
        call = Prepared(input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs)
        return self_speculate(model, call, _strategy(draft), draft_params, seed, stream)


def _strategy(draft: Any) -> type[Strategy] | None:
    """Return the strategy called `draft`; ConfigError where there is none."""
    problems: list[Problem] = []
    name, _ = read_draft(draft, None, problems)
    if problems:
        raise ConfigError(problems)
    return None if name is None else drafts.get(name)


def write_custom_generate(checkpoint: str | Path, draft_params: Mapping[str, Any] | None = None) -> Path:
    """Write `custom_generate/generate.py` into `checkpoint`: this engine and `early_exit` in one file.

    `draft_params` become its defaults. Returns the file. The file needs torch and transformers only.
    """
    folder = Path(checkpoint) / "custom_generate"
    folder.mkdir(exist_ok=True)
    path = folder / "generate.py"
    path.write_text(bundle(dict(draft_params or {})), encoding="utf-8")
    return path
