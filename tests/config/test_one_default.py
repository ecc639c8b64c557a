"""Every key has one default: the one its field has, not a second one in a YAML file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from omegaconf import MISSING, OmegaConf

from ssd_infer.checkpoint.options import LoadOptions
from ssd_infer.config.evaluation import EvalOptions, EvalSettings
from ssd_infer.config.loading import options_of
from ssd_train.config.schema import EvalConfig, Root

CONF = Path(__file__).resolve().parents[2] / "conf"


def with_default(schema: Any, prefix: str = "") -> set[str]:
    """Return the dotted keys of `schema` that have a default."""
    found = set()
    for item in dataclasses.fields(schema):
        value = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        if dataclasses.is_dataclass(value):
            found |= with_default(type(value), f"{prefix}{item.name}.")
        elif value != MISSING and value is not dataclasses.MISSING:
            found.add(prefix + item.name)
    return found


def said(file: str) -> set[str]:
    """Return the dotted keys that a primary configuration sets, Hydra's own aside."""
    tree = OmegaConf.to_container(OmegaConf.load(CONF / file))

    def flat(node: Any, prefix: str = "") -> set[str]:
        if not isinstance(node, dict):
            return {prefix}
        return {key for name, value in node.items() for key in flat(value, f"{prefix}.{name}".lstrip("."))}

    return {key for key in flat(tree) if not key.startswith(("hydra", "defaults"))}


@pytest.mark.parametrize(("file", "schema"), [("train.yaml", Root), ("evaluate.yaml", EvalSettings)])
def test_no_primary_configuration_repeats_a_default(file: str, schema: Any) -> None:
    assert {"train.max_steps", "eval.samples"} <= with_default(Root)
    assert said(file) & with_default(schema) == set()


def test_a_run_can_set_every_option_of_an_evaluation() -> None:
    options = {item.name for item in dataclasses.fields(EvalOptions)}
    assert {"temperatures", "batch_size", "draft_params", "top_p", "contexts", "peers"} <= options
    assert options < {item.name for item in dataclasses.fields(EvalConfig)}
    own = {item.name for item in dataclasses.fields(EvalSettings)} - options
    loading = {item.name for item in dataclasses.fields(LoadOptions)}
    assert own == {"checkpoint", "watch", "watch_poll_seconds", "watch_idle_minutes", "out", *ROOT, *loading}


def test_options_of_loading_have_one_default_wherever_they_are_given() -> None:
    """An empty text or mapping of a configuration is the None of a call."""
    assert options_of(EvalSettings()) == LoadOptions()


ROOT = ("dtype", "device", "threads", "seed")
"""What a report takes from its run."""
