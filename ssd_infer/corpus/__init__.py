"""Prompt sets of an evaluation, and the embedded corpus they and the training data are cut from."""

from ssd_infer.corpus.prompts import (
    build_tasks,
    calibrated_on_measured,
    calibration_prompts,
    check_prompt_files,
    held_out_ids,
)
from ssd_infer.corpus.task import Task

__all__ = [
    "Task",
    "build_tasks",
    "calibrated_on_measured",
    "calibration_prompts",
    "check_prompt_files",
    "held_out_ids",
]
