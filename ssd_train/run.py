"""The story of a run, in one function: config → model → data → trainer → checkpoint → report."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainingArguments

from ssd_infer.atomic import write_text
from ssd_infer.checkpoint.manifest import read_record
from ssd_infer.checkpoint.provenance import command_line
from ssd_infer.checkpoint.steps import step_number
from ssd_infer.errors import DataError, SSDError
from ssd_train.config.engines import SHARDING
from ssd_train.config.schema import Root
from ssd_train.data.contents import contents
from ssd_train.data.tokenizer import vocabulary_hash
from ssd_train.distributed import elastic
from ssd_train.distributed.launcher import first_for_all, rank, require_shared, whole_weights
from ssd_train.losses.products import use_fast_products
from ssd_train.models import precision
from ssd_train.recipes import registry as recipes
from ssd_train.recipes.base import Recipe, TrainingData
from ssd_train.runs import preflight, provenance, tracking
from ssd_train.runs.arguments import on_device, training_arguments
from ssd_train.runs.checkpoints import CheckpointStore
from ssd_train.runs.identity import check_same_contents, check_same_run, identity
from ssd_train.runs.metrics import MetricsFile
from ssd_train.runs.places import check_places
from ssd_train.runs.reports import Reporter, check_asked
from ssd_train.trainer import early_stop, stopping
from ssd_train.trainer.failures import explained
from ssd_train.trainer.optimizers import custom_optimizer
from ssd_train.trainer.progress import ProgressCallback
from ssd_train.trainer.trainer import CheckpointExtras, SSDTrainer

logger = logging.getLogger(__name__)


def train(cfg: Root) -> Path:
    """Train as `cfg` says, or go on where the run directory stopped; return the run directory.

    Raises SSDError (one screen, nothing overwritten) for what the user can put right.
    """
    cfg = _at_home(cfg)
    check_places(cfg)
    if cfg.dry_run:
        return _dry_run(cfg)
    asked, cfg = cfg, on_device(cfg)
    recipe = recipes.build(cfg.recipe)
    recipe.check(cfg)
    check_asked(cfg)
    if cfg.threads > 0:
        torch.set_num_threads(cfg.threads)
    run_dir = cfg.run_dir
    args = training_arguments(cfg, run_dir)
    with ExitStack() as stack:
        checkpoint, held = _open_run(cfg, args, stack)
        recipe.run_samples = cfg.train.max_steps * elastic.step_samples(args)
        data = recipe.build_data(cfg, run_dir)
        _check_enough(cfg, args, data)
        with whole_weights(args):
            model = recipe.build_model(cfg, data)
            recipe.prepare(model)
        if cfg.engine.name not in SHARDING:
            use_fast_products(model)
        _announce(cfg, args, recipe, model, data.sample_tokens)
        tracker = stack.enter_context(tracking.start(cfg, run_dir))
        args.report_to = tracker.report_to
        trainer = SSDTrainer(
            model=model,
            args=args,
            recipe=recipe,
            train_dataset=data.train,
            validation_dataset=data.validation,
            processor=data.processor,
            collator=recipe.collator(data),
            store=CheckpointStore(run_dir, cfg.train.keep_last),
            metrics_file=MetricsFile(run_dir / "metrics.jsonl"),
            extras=_extras(cfg, recipe, held, data.processor),
            eval_samples=elastic.validation_samples(cfg.train, args),
            optimizer=custom_optimizer(cfg),
        )
        progress = ProgressCallback(elastic.step_samples(args) * data.sample_tokens)
        stack.callback(progress.close)
        trainer.add_callback(progress)
        trainer.add_callback(stopping.TimeLimit(trainer, cfg.train.max_minutes))
        trainer.add_callback(early_stop.EarlyStop(recipe.patience()))
        reporter = Reporter(asked, run_dir, tracker)
        trainer.on_checkpoint = reporter.every_checkpoint
        with trainer.stop:
            _fit(trainer, cfg, checkpoint)
            if trainer.is_world_process_zero() and trainer.stop.heard is None and not trainer.stop.stopping:
                with trainer.stop.interruptible():
                    reporter.final(trainer.store)
        if trainer.is_world_process_zero():
            stopping.note(run_dir, trainer.stop, trainer.state.global_step)
    return run_dir


def _at_home(cfg: Root) -> Root:
    """Return `cfg` with a leading ~ of the places it writes to replaced, which no shell did inside key=value."""
    cache = cfg.data.cache_dir
    data = (
        cfg.data if cache is None else dataclasses.replace(cfg.data, cache_dir=str(Path(cache).expanduser()))
    )
    return dataclasses.replace(cfg, output_root=str(Path(cfg.output_root).expanduser()), data=data)


def _open_run(cfg: Root, args: TrainingArguments, stack: ExitStack) -> tuple[Path | None, dict[str, str]]:
    """Prepare the run directory; return the checkpoint to continue from, and what the run's files hold.

    Raises SSDError when the system refuses.
    """
    try:
        return _prepare_run(cfg, args, stack)
    except OSError as error:
        raise SSDError(
            f"output_root: the run directory cannot be used (got {str(cfg.run_dir)!r}: {error.strerror or error}); "
            "set output_root to a directory you may write to"
        ) from error


def _prepare_run(cfg: Root, args: TrainingArguments, stack: ExitStack) -> tuple[Path | None, dict[str, str]]:
    """Lock the run directory, decide what to continue from, and write what the run is; return as `_open_run`.

    The first process does it for all: a checkpoint is hashed once, and the others see the same result or error.
    """
    checkpoint, held = first_for_all(args, lambda: _claim_run(cfg, stack))
    require_shared(args, cfg.run_dir / "config.yaml")
    if checkpoint is not None:
        elastic.adapt(args, cfg.engine.name, read_record(checkpoint))
    return checkpoint, held


def _claim_run(cfg: Root, stack: ExitStack) -> tuple[Path | None, dict[str, str]]:
    run_dir = cfg.run_dir
    stack.enter_context(_locked(run_dir))
    if cfg.resume == "never":
        stack.enter_context(_set_aside(run_dir))
    run_dir.mkdir(parents=True, exist_ok=True)
    store = CheckpointStore(run_dir, cfg.train.keep_last)
    store.clean()
    checkpoint = store.latest()
    step = 0 if checkpoint is None else step_number(checkpoint)
    record = None if checkpoint is None else read_record(checkpoint)
    if record is not None:
        check_same_run(cfg, record.get("identity", {}), step)
    held = contents(cfg)
    if record is not None:
        check_same_contents(cfg, held, record.get("contents"))
    store.set_aside_after(step)
    MetricsFile(run_dir / "metrics.jsonl").keep_until(step)
    (run_dir / stopping.STOPPED).unlink(missing_ok=True)
    write_text(run_dir / "config.yaml", config_text(cfg))
    _note_command(run_dir)
    return checkpoint, held


def _fit(trainer: SSDTrainer, cfg: Root, checkpoint: Path | None) -> None:
    """Train from `checkpoint` on, unless it is the end of the run already."""
    step = 0 if checkpoint is None else step_number(checkpoint)
    if checkpoint is not None:
        logger.info("continuing from %s", checkpoint)
        if trainer.is_world_process_zero():
            trainer.metrics_file.keep_until(step)
    if step >= cfg.train.max_steps:
        if trainer.is_world_process_zero():
            print(f"{cfg.run_dir}: all {step} steps are done; nothing to train")
        return
    patience = trainer.recipe.patience()
    if checkpoint is not None and early_stop.was_over(checkpoint, patience):
        if trainer.is_world_process_zero():
            print(f"{cfg.run_dir}: stopped early at step {step}; recipe.patience above {patience} goes on")
        return
    first_for_all(trainer.args, trainer.rehearse_save)
    with explained(cfg.run_dir, trainer.args.world_size):
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))


def _dry_run(cfg: Root) -> Path:
    """Build everything, take one step, validate and save aside, and leave no trace but the data cache."""
    aside = Path(cfg.output_root) / f".dry-run-{cfg.recipe_name}-{cfg.run_name}"
    trial = dataclasses.replace(
        cfg,
        dry_run=False,
        resume="auto",
        output_root=str(aside),
        train=dataclasses.replace(
            cfg.train, max_steps=1, max_minutes=0.0, save_steps=1, logging_steps=1, eval_steps=0
        ),
        eval=dataclasses.replace(cfg.eval, enabled=False, every_checkpoint=False),
        tracking=dataclasses.replace(cfg.tracking, name="none"),
        data=dataclasses.replace(
            cfg.data, cache_dir=cfg.data.cache_dir or str(Path(cfg.output_root) / ".cache")
        ),
    )
    first = rank() == 0
    if first:  # the other ranks look at the directory only after it
        shutil.rmtree(aside, ignore_errors=True)
    try:
        train(trial)
    finally:
        if first:
            shutil.rmtree(aside, ignore_errors=True)
    if first:
        print(f"dry run: one step trained, validated and saved; {cfg.run_dir} was not touched")
    return cfg.run_dir


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Hold the run directory for this process; the system lets go of it when the process dies, however it dies."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(str(run_dir.parent / f".{run_dir.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise SSDError(
            f"run_name: another process is training in {run_dir}; wait for it, stop it, or choose another run_name"
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _set_aside(run_dir: Path) -> Iterator[None]:
    """Move an earlier run of the same name away; it comes back when the new one fails before it trained a step."""
    if not run_dir.exists():
        yield
        return
    number = 1
    while (aside := run_dir.with_name(f"{run_dir.name}.previous-{number}")).exists():
        number += 1
    run_dir.rename(aside)
    logger.warning("resume=never: the earlier run is now in %s", aside)
    try:
        yield
    except SSDError:
        if not _has_trained(run_dir):
            shutil.rmtree(run_dir, ignore_errors=True)
        if not run_dir.exists():
            aside.rename(run_dir)
            logger.warning("the new run did not start: the earlier one is in %s again", run_dir)
        raise


def _has_trained(run_dir: Path) -> bool:
    """Tell whether a run left anything of its training: a line of metrics or a checkpoint."""
    metrics = run_dir / "metrics.jsonl"
    return (metrics.exists() and metrics.stat().st_size > 0) or any((run_dir / "checkpoints").glob("*"))


def _announce(
    cfg: Root, args: TrainingArguments, recipe: Recipe, model: nn.Module, sample_tokens: int
) -> None:
    """Print what the run will cost, on the first process."""
    if args.process_index == 0:
        found = preflight.costs(cfg, args, model, sample_tokens, recipe.bytes_beside(model))
        print(preflight.summary(cfg, args, found, recipe.describe_weights(cfg)), flush=True)


def _check_enough(cfg: Root, args: TrainingArguments, data: TrainingData) -> None:
    """Raise DataError when the data does not fill one batch on every process."""
    needed, count = cfg.train.batch_size * args.world_size, len(data.train)
    if count < needed:
        raise DataError(
            f"train.batch_size: one batch on every process needs {needed} samples and the data has {count} "
            f"({data.describe()}); lower it, make samples shorter, or give more data"
        )


def _extras(cfg: Root, recipe: Recipe, held: dict[str, str], processor: Any) -> CheckpointExtras:
    tokenizer = getattr(processor, "tokenizer", processor)
    known = isinstance(tokenizer, PreTrainedTokenizerBase)
    dtype = precision.saved_dtype(cfg)
    record: dict[str, Any] = {
        "recipe": recipe.metadata(),
        "identity": identity(cfg),
        "contents": held,
        "provenance": provenance.collect(cfg, vocabulary_hash(tokenizer) if known else None),
        "engine": cfg.engine.name,
        "precision": {"trained": "float32", "saved": dtype, "computed": cfg.dtype},
    }
    return CheckpointExtras(record, {"config.yaml": config_text(cfg)}, dtype)


def config_text(cfg: Root) -> str:
    """Return the resolved configuration as YAML."""
    text: str = yaml.safe_dump(dataclasses.asdict(cfg), sort_keys=False, allow_unicode=True)
    return text


def _note_command(run_dir: Path) -> None:
    """Keep the command of this start; the first line is the first one."""
    line = command_line(sys.argv)
    file = run_dir / "command.txt"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if not lines or lines[-1] != line:
        write_text(file, "\n".join([*lines, line]) + "\n")
