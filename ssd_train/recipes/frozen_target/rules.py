"""Rules of the frozen-target recipe."""

from __future__ import annotations

from ssd_infer.config.checks import Checks
from ssd_train.config.draft_losses import LOSSES
from ssd_train.config.rules_inputs import check_exits, layer_count
from ssd_train.config.schema import HFModelConfig, Root
from ssd_train.recipes.frozen_target.settings import FrozenTargetConfig

FORMS = ("exit", "mtp", "heads")
MODULES = ("rank", "attention", "attention_mlp", "layer")
DTYPES = ("auto", "float32", "bfloat16")


def check_frozen_target(cfg: Root, checks: Checks) -> None:
    """Check the module's form and size, its loss, and that there is a target to leave as it is."""
    recipe = cfg.recipe
    assert isinstance(recipe, FrozenTargetConfig)
    checks.choice("form", recipe.form, FORMS)
    checks.choice("module", recipe.module, MODULES)
    checks.choice("loss", recipe.loss, LOSSES)
    checks.choice("target_dtype", recipe.target_dtype, DTYPES)
    for key in ("rank", "mlp_width", "rollout", "heads", "chunk_tokens"):
        checks.at_least(key, getattr(recipe, key), 1)
    checks.at_least("rows", recipe.rows, 0, "0 looks at all of them")
    checks.at_least("patience", recipe.patience, 0)
    checks.within("step_decay", recipe.step_decay, 0, 1)
    if recipe.form == "heads":
        rule, remedy = "must be rank: a head attends to nothing", "set recipe.module=rank"
        checks.require(recipe.module == "rank", "module", rule, recipe.module, remedy)
    if recipe.form == "exit":
        check_exits(recipe.exits, layer_count(cfg.model), checks)
    else:
        rule, remedy = "belongs to recipe.form=exit", "remove it"
        checks.require(recipe.exits is None, "exits", rule, recipe.exits, remedy)
        rule = "must be at least 3: the first draft is of the token after the next"
        fits = cfg.data.block_size >= 3
        Checks("", checks.problems).require(fits, "data.block_size", rule, cfg.data.block_size, "try 256")
    _check_beside(cfg, checks)


def _check_beside(cfg: Root, checks: Checks) -> None:
    """Check what stands under other keys: the target, and how the module is trained and saved."""
    root = Checks("", checks.problems)
    rule = "must be hf: this recipe trains beside a model that exists"
    pretrained = isinstance(cfg.model, HFModelConfig)
    root.require(pretrained, "model.kind", rule, cfg.model.kind, "use model=hf model.name=DIR")
    rule = "must be float32, in which a module of a few megabytes is kept"
    for key, value in (("dtype", cfg.dtype), ("train.save_dtype", cfg.train.save_dtype)):
        remedy = "recipe.target_dtype says how the target computes" if key == "dtype" else "leave it out"
        root.require(value == "float32", key, rule, value, remedy)
    rule = "has no meaning here: the target's activations are not kept"
    recomputes = cfg.train.activation_checkpointing
    root.require(not recomputes, "train.activation_checkpointing", rule, recomputes, "leave it out")
    rule = "cuts weights over processes, and a module of a few megabytes is used whole"
    cut, remedy = cfg.engine.name == "deepspeed_zero3", "use engine=ddp, fsdp2 or deepspeed_zero2"
    root.require(not cut, "engine.name", rule, cfg.engine.name, remedy)
