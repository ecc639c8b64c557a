"""The files of a checkpoint: the module to draft with, and all modules that training goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ssd_infer.checkpoint.draft_files import read_spec, save_draft
from ssd_infer.checkpoint.draft_spec import FACTS, has_draft
from ssd_infer.errors import CheckpointError
from ssd_train.recipes.frozen_target.trainee import Trainee, spec_name

TRAINING = "ssd_draft_training.safetensors"


def write(trainee: Trainee, state: Mapping[str, Tensor], kept: str, directory: Path) -> None:
    """Write module `kept` as `ssd_infer.load` reads it, and every module for a run that goes on.

    `state` has the whole weights of the trainee, which may itself hold shards.
    """
    module = trainee.whole(kept, state)
    save_draft(directory, module, module.spec)
    whole = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    save_file(whole, directory / TRAINING)


@torch.no_grad()
def read(trainee: Trainee, directory: Path) -> None:
    """Give `trainee` the weights that training goes on from.

    Raises CheckpointError where they belong to other rows of the head than this run looks at.
    """
    stored, own = load_file(directory / TRAINING), trainee.state_dict()
    others = [key for key in own if key.endswith(".ids") and not _same(own[key], stored.get(key))]
    if others:
        raise CheckpointError(
            f"{directory}: its drafts look at other tokens than draft_rows.safetensors of this run says; "
            "copy that file again, or start a run of another name"
        )
    trainee.load_state_dict(stored)


def _same(own: Tensor, stored: Tensor | None) -> bool:
    return stored is not None and torch.equal(own.cpu(), stored)


def kept_in(directory: Path) -> str | None:
    """Return the name of the module that a checkpoint was saved with; None where there is none."""
    return spec_name(read_spec(directory)) if has_draft(directory) and (directory / FACTS).exists() else None
