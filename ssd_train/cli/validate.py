"""Rules of a training configuration that types alone cannot state; all broken ones are reported together."""

from __future__ import annotations

import re

from ssd_infer.config.checks import Checks
from ssd_infer.config.evaluation import DEVICES, LAST_SEED, check_options
from ssd_infer.strategies.registry import draft_problem
from ssd_train.config.engines import ENGINES, SHARDING, zero_stage
from ssd_train.config.rules_inputs import check_data, check_model
from ssd_train.config.rules_own_text import check_writer
from ssd_train.config.rules_speech import check_fit
from ssd_train.config.schema import Root, TrainConfig
from ssd_train.recipes.registry import check_recipe, model_kind

SCHEDULERS = ("cosine", "linear", "constant", "warmup_stable_decay")
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "muon")
TRACKERS = ("wandb", "tensorboard", "mlflow", "trackio", "none")
DTYPES = ("float32", "bfloat16", "float16")
MAX_NAME_BYTES = 200
"""Longest name of a run: file systems end at 255 bytes, and lock files and dry runs add to it."""


def validate(cfg: Root, checks: Checks) -> None:
    """Note every broken rule of `cfg` in `checks`; touches no weights and imports no torch."""
    _check_run(cfg, checks)
    _check_train(cfg.train, checks.under("train"))
    _check_eval_draft(cfg, checks.under("eval"))
    check_options(cfg.eval, checks.under("eval"))
    check_model(cfg, checks.under("model"))
    check_data(cfg.data, checks.under("data"))
    check_writer(cfg, checks.under("data"))
    check_recipe(cfg, checks.under("recipe"))
    check_fit(cfg, checks, speech=model_kind(cfg.recipe.kind) == "speech")
    narrow = cfg.train.save_dtype in ("bfloat16", "float16")
    rule = "cannot round the weight average a checkpoint holds (recipe.ema > 0)"
    averaged = getattr(cfg.recipe, "ema", 0.0) > 0
    remedy = "use train.save_dtype=float32"
    checks.under("train").require(not (narrow and averaged), "save_dtype", rule, cfg.train.save_dtype, remedy)
    checks.under("optim").choice("name", cfg.optim.name, OPTIMIZERS)
    checks.under("optim").above_zero("epsilon", cfg.optim.epsilon)
    checks.under("optim").above_zero("muon_learning_rate", cfg.optim.muon_learning_rate)
    checks.under("optim").within("muon_momentum", cfg.optim.muon_momentum, 0, 1, open_end=True)
    checks.under("optim").at_least("muon_decay_share", cfg.optim.muon_decay_share, 0)
    _check_engine(cfg, checks)
    checks.under("tracking").choice("name", cfg.tracking.name, TRACKERS)
    checks.under("tracking").choice("mode", cfg.tracking.mode, ("auto", "online", "offline", "disabled"))


def _check_eval_draft(cfg: Root, checks: Checks) -> None:
    """Check that the report on a checkpoint of this recipe can be asked for this draft, by the report's own rule."""
    problem = draft_problem(cfg.eval.draft, model_kind(cfg.recipe.kind))
    if problem is not None:
        checks.fail("draft", problem.rule, cfg.eval.draft, problem.remedy)


def _check_engine(cfg: Root, checks: Checks) -> None:
    """Check that engine, optimizer and offloading go together."""
    engine, under = cfg.engine, checks.under("engine")
    if not under.choice("name", engine.name, ENGINES):
        return
    under.above_zero("timeout_minutes", engine.timeout_minutes)
    reports, limit = cfg.eval.enabled and cfg.eval.every_checkpoint, cfg.eval.max_minutes
    rule = f"must exceed eval.max_minutes, {limit:g}: other processes wait while the first reports on a checkpoint"
    waits = reports and engine.name != "single"
    outlasts = 0 < limit < engine.timeout_minutes
    remedy = "set eval.max_minutes=4, or eval.every_checkpoint=false and python -m ssd_infer watch=RUN_DIR"
    under.require(outlasts or not waits, "timeout_minutes", rule, engine.timeout_minutes, remedy)
    offloads = engine.name in SHARDING and engine.name != "deepspeed_zero1"
    rule = f"is not something engine {engine.name} can do"
    remedy = "use engine=fsdp2_offload, deepspeed_zero2_offload or deepspeed_zero3_offload"
    under.require(offloads or not engine.cpu_offload, "cpu_offload", rule, engine.cpu_offload, remedy)
    only = not engine.deepspeed or zero_stage(engine.name) > 0
    under.require(
        only, "deepspeed", f"has no meaning with engine={engine.name}", engine.deepspeed, "remove it"
    )
    if engine.name in SHARDING:
        rule = f"needs whole matrices, and engine={engine.name} cuts them into shards"
        whole = cfg.optim.name not in ("muon", "adafactor")
        checks.under("optim").require(whole, "name", rule, cfg.optim.name, "use optim=adamw")
        ema = getattr(cfg.recipe, "ema", 0.0)
        checks.under("recipe").require(ema == 0, "ema", rule, ema, "set recipe.ema=0, or use engine=ddp")


def _check_run(cfg: Root, checks: Checks) -> None:
    """Check the keys of the root itself."""
    for key, name in (("recipe_name", cfg.recipe_name), ("run_name", cfg.run_name)):
        good = re.fullmatch(r"\w[^/\\\0]*", name) is not None and _is_unicode(name)
        checks.require(good, key, "must be one directory name that begins with a letter or digit", name)
        short = len(name.encode(errors="replace")) <= MAX_NAME_BYTES
        checks.require(short, key, f"must be at most {MAX_NAME_BYTES} bytes long", name, "shorten it")
    checks.require(bool(cfg.output_root), "output_root", "must not be empty", cfg.output_root, "try outputs")
    checks.within("seed", cfg.seed, 0, LAST_SEED)
    checks.at_least("threads", cfg.threads, 0)
    checks.choice("resume", cfg.resume, ("auto", "never"))
    checks.choice("device", cfg.device.partition(":")[0], DEVICES)
    checks.choice("dtype", cfg.dtype, DTYPES)


def _is_unicode(text: str) -> bool:
    """Tell whether `text` can be written: bytes of a command line that are not UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_train(train: TrainConfig, checks: Checks) -> None:
    """Check counts, rates and the schedule."""
    for key in ("max_steps", "batch_size", "grad_accum", "save_steps", "logging_steps", "eval_batches"):
        checks.at_least(key, getattr(train, key), 1)
    for key in ("eval_steps", "keep_last", "num_workers", "weight_decay", "max_grad_norm", "max_minutes"):
        checks.at_least(key, getattr(train, key), 0)
    checks.above_zero("learning_rate", train.learning_rate)
    checks.within("adam_beta1", train.adam_beta1, 0, 1, open_end=True)
    checks.within("adam_beta2", train.adam_beta2, 0, 1, open_end=True)
    checks.choice("save_dtype", train.save_dtype, ("auto", *DTYPES))
    checks.choice("lr_scheduler", train.lr_scheduler, SCHEDULERS)
    _check_warmup(train, checks)


def _check_warmup(train: TrainConfig, checks: Checks) -> None:
    """Check that the warm-up is a share of the run or a whole number of its steps."""
    steps = train.warmup_steps
    if not checks.at_least("warmup_steps", steps, 0) or steps < 1:
        return
    checks.require(
        steps == int(steps), "warmup_steps", "must be whole from 1 upwards", steps, "a share is below 1"
    )
    rule = f"must be below train.max_steps, {train.max_steps}"
    checks.require(steps < train.max_steps, "warmup_steps", rule, steps, "try 0.05, a share of the run")
