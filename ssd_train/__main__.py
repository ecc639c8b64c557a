"""Train a model that can draft for itself.

    python -m ssd_train +recipe=layerskip [key=value ...]

The same arguments follow `accelerate launch -m ssd_train`, `torchrun --nproc_per_node N -m ssd_train`,
`deepspeed --module ssd_train` and `srun`; `engine=` says how the processes share the work.

Smoke run on a CPU, seconds long:

    python -m ssd_train +recipe=layerskip model=tiny data.block_size=64 train.max_steps=2 tracking=none \
        eval.enabled=false run_name=smoke
"""

from __future__ import annotations

import hashlib
import sys

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ssd_infer.cli.launch import USER_ERROR, launch
from ssd_infer.config.compose import to_settings
from ssd_train.cli.recipe_list import print_recipes
from ssd_train.cli.register import register
from ssd_train.cli.validate import MAX_NAME_BYTES, validate
from ssd_train.config.schema import Root
from ssd_train.recipes.registry import config_folders

_LISTS = ("eval.tasks", "recipe.early_exit.exits", "recipe.exits", "data.prompts")


def settings_of(cfg: DictConfig) -> Root:
    """Return the typed and validated run that `cfg` describes; raise `ConfigError` with all its problems."""
    return to_settings(cfg, Root, validate)


def run(cfg: DictConfig) -> int:
    """Train as `cfg` says; without a recipe list the recipes instead, and return the exit code."""
    if HydraConfig.get().runtime.choices.get("recipe") is None:
        print_recipes()
        return USER_ERROR
    settings = settings_of(cfg)
    settings.run_name = _run_name(settings.run_name)
    if settings.print_config:
        print(OmegaConf.to_yaml(OmegaConf.structured(settings), resolve=True), end="")
        return 0
    from ssd_train.run import train

    train(settings)
    return 0


def _run_name(name: str) -> str:
    """Return `name`, made different for every job of a sweep so that none resumes another's run."""
    hydra = HydraConfig.get()
    if hydra.mode != RunMode.MULTIRUN or _swept_keys() == {"run_name"} or not hydra.job.override_dirname:
        return name
    full = f"{name}-{hydra.job.override_dirname.replace('/', '-')}"
    if len(full.encode()) <= MAX_NAME_BYTES:
        return full
    return f"{name}-{hashlib.sha256(full.encode()).hexdigest()[:12]}"


def _swept_keys() -> set[str]:
    """Return the keys the command line gives several values."""
    overrides = OverridesParser.create().parse_overrides(get_args_parser().parse_args().overrides)
    return {override.key_or_group for override in overrides if override.is_sweep_override()}


def main() -> None:
    """Run the command line and exit with its code."""
    # The `deepspeed` launcher adds --local_rank=N, which the environment says as well.
    sys.argv[1:] = [argument for argument in sys.argv[1:] if not argument.startswith("--local_rank=")]
    register()
    sys.exit(launch("train", run, settings_of, _LISTS, config_folders()))


if __name__ == "__main__":
    main()
