"""Prompt sets of an evaluation, and the embedded corpus they and the training data are cut from."""

from ssd_infer.corpus.prompts import Task, build_tasks, calibration_prompts, held_out_ids

__all__ = ["Task", "build_tasks", "calibration_prompts", "held_out_ids"]
