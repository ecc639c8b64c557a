"""Which rows of the head a draft looks at: those the target's own text will want, chosen once a run and kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ssd_infer.atomic import write_bytes
from ssd_infer.checkpoint.always_ids import always_ids, ending_ids, within
from ssd_infer.checkpoint.content import loaded_from
from ssd_infer.errors import CheckpointError, ConfigError, Problem
from ssd_infer.models.draft_modules.build import ascending
from ssd_infer.tuning.head_ground import own_text
from ssd_train.losses.draft_teacher import Teacher, mass
from ssd_train.recipes.base import TrainingData, label_mask
from ssd_train.recipes.frozen_target.forms import counted
from ssd_train.recipes.frozen_target.frozen import Frozen

FILE = "draft_rows.safetensors"
POSITIONS = 8192
"""Positions of own text whose distributions are added up, at most."""
_ANEW = "the run's checkpoints look at the tokens it held: copy it again, or start a run of another name"
_PROMPT, _PROMPTS, _BATCH = 64, 16, 8


def chosen_ids(frozen: Frozen, data: TrainingData, rows: int, run_dir: Path) -> Tensor | None:
    """Return the ids `(rows,)` that drafts of this run look at, ascending; None for the whole vocabulary.

    The first process to come chooses, behind a lock, and the run keeps what it chose. Raises ConfigError where fewer
    rows are asked for than every draft needs.
    """
    if not 0 < rows < frozen.target.vocab_size:
        return None
    run_dir.mkdir(parents=True, exist_ok=True)
    file = run_dir / FILE
    with FileLock(str(run_dir / ".rows.lock")):
        if not file.exists():
            write_bytes(file, save({"ids": _chosen(frozen, data, rows)}))
    return _kept(file, rows, frozen.target.vocab_size)


def _kept(file: Path, rows: int, vocabulary: int) -> Tensor:
    try:
        ids = load_file(file)["ids"]
    except (OSError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{file}: is damaged ({error}); {_ANEW}") from error
    if not ascending(ids, rows, vocabulary):
        raise CheckpointError(f"{file}: holds no {rows} ascending ids below {vocabulary}; {_ANEW}")
    return ids


def _chosen(frozen: Frozen, data: TrainingData, rows: int) -> Tensor:
    target, model = frozen.target, frozen.model
    ends = ending_ids(getattr(model, "generation_config", None), getattr(model, "config", None))
    front = within([*ends, *always_ids(loaded_from(target.config))], target.vocab_size)
    if len(front) > rows:
        rule = f"must be at least {len(front)}: ends of text, bytes, digits and blanks belong in every draft"
        raise ConfigError([Problem("recipe.rows", rule, rows, f"try recipe.rows={2 * len(front)}")])
    total = expected_mass(frozen, data)
    total[torch.tensor(front, dtype=torch.long)] = torch.inf
    return total.sort(descending=True, stable=True).indices[:rows].sort().values


@torch.no_grad()
def expected_mass(frozen: Frozen, data: TrainingData) -> Tensor:
    """Return Σ_t p_t(v) in float64 `(V,)` along text of the target's own."""
    depth, target = frozen.target.num_layers, frozen.target
    total = torch.zeros(target.vocab_size, dtype=torch.float64, device=target.device)
    seen = 0
    for batch in _own_batches(frozen, data):
        row, token = counted(label_mask(batch))
        states = target.normed(frozen.hear(batch, [depth]).states[depth][row, token])
        total += mass(Teacher(states, frozen.head, torch.arange(0, device=target.device)))
        seen += len(row)
        if seen >= POSITIONS:
            break
    return total.cpu()


def _own_batches(frozen: Frozen, data: TrainingData) -> Iterator[dict[str, Tensor]]:
    """Yield batches whose labels are what the target wrote: what the run trains on, or text made here and now."""
    own = getattr(data, "own", None)
    device = frozen.target.device
    if own is not None:
        for first in range(0, len(own), _BATCH):
            samples = [own[at] for at in range(first, min(first + _BATCH, len(own)))]
            yield {name: torch.stack([s[name] for s in samples]).to(device) for name in samples[0]}
        return
    for prompt, text in own_text(frozen.target, _prompts(data)):
        ids = torch.tensor([[*prompt, *text]], device=device)
        labels = ids.clone()
        labels[:, : len(prompt)] = -100
        yield {"input_ids": ids, "labels": labels}


def _prompts(data: TrainingData) -> list[list[int]]:
    """Return beginnings of training samples, spread over all of them."""
    train: Any = data.train
    count = min(_PROMPTS, len(train))
    places = [index * len(train) // count for index in range(count)]
    return [train[place]["input_ids"][:_PROMPT].tolist() for place in places]
