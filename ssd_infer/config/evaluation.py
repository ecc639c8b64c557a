"""Settings of one evaluation: which checkpoint, which drafts, which prompts, how long.

`python -m ssd_infer checkpoint=DIR` fills them from `conf/evaluate.yaml`; a training run fills them from its
own `eval` node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from ssd_infer.checkpoint.options import LoadOptions, is_hub_name
from ssd_infer.checkpoint.steps import checkpoint_folders
from ssd_infer.config.checks import Checks, suggest
from ssd_infer.config.loading import (
    QuantisationSettings,
    check_checkpoint,
    check_loading,
    options_of,
    what_is_there,
)

DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("float32", "bfloat16", "float16", "float64")
LAST_SEED = 2**32 - 1
"""Numpy, which transformers seeds as well, takes none above it."""
TASKS = (
    "auto",
    "stdlib_prose",
    "stdlib_code",
    "categories",
    "long_continuation",
    "copy",
    "needle",
    "task_shift",
)
FILE_TASKS = ("file", "spec_bench", "speed_bench")
"""What a task from a file begins with, before `:PATH`."""


@dataclass(slots=True)
class EvalOptions:
    """What an evaluation does with a checkpoint, whoever asks for it; a training run sets them under `eval`."""

    draft: str = "all"
    """`all`, a family such as `skip_layer`, or the name of one draft strategy."""
    draft_params: dict[str, Any] = field(default_factory=dict)
    """Parameters of that one strategy; what is left out is `auto`."""
    tasks: list[str] = field(default_factory=lambda: ["auto"])
    """Prompt sets: auto, stdlib_prose, stdlib_code, categories, long_continuation, copy, needle, file:PATH,
    spec_bench:PATH or speed_bench:PATH; beside one of them task_shift, streams of prose, code and dialogue."""
    samples: int = 64
    """Prompts of each task; more of them tell more than repeats."""
    prompt_tokens: int = 64
    """Longest prompt in tokens; those of categories, spec_bench and speed_bench are kept whole."""
    max_new_tokens: int = 128
    """Tokens decoded for each prompt."""
    repeats: int = 1
    """Timed repetitions of each prompt, after all prompts had their turn."""
    batch_size: int = 1
    """Rows decoded together in the timed runs."""
    contexts: list[int] = field(default_factory=list)
    """Prompt lengths of the sweep: every draft asked for beside plain decoding, greedily; empty: no sweep."""
    batches: list[int] = field(default_factory=lambda: [1])
    """Batch sizes of that sweep."""
    temperatures: list[float] = field(default_factory=lambda: [0.0, 1.0])
    """Temperatures decoded at; 0 is greedy."""
    top_k: int = 0
    """Keep the k most probable tokens when sampling; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens with this much probability when sampling."""
    expert_budget: float = 0.0
    """Keep at most this share of a mixture's routed experts in memory, the others on disk; 0 keeps all in memory."""
    max_minutes: float = 0.0
    """Be done after this long, dealt out to the phases beforehand (60 % and more to measuring); 0 sets no limit."""
    search_seconds: float = 0.0
    """Longest search of one strategy before it is timed; 0 takes a twentieth of `max_minutes`, a minute at most."""
    peers: bool = True
    """Time what a user would pick instead too: prompt lookup and `assistant_early_exit`."""
    grid: bool = True
    """Measure a grid of exit layers and draft lengths for the heat map."""


@dataclass(slots=True)
class EvalSettings(EvalOptions):
    """Everything `ssd_infer.evaluation.evaluate` needs to know."""

    checkpoint: str = MISSING
    """Directory of the checkpoint, as `save_pretrained` writes it."""
    watch: str | None = None
    """Run directory whose checkpoints are evaluated as they appear; takes the place of `checkpoint` and `out`."""
    watch_poll_seconds: float = 30.0
    """watch: look for a new checkpoint every so many seconds."""
    watch_idle_minutes: float = 0.0
    """watch: end after so long without a new checkpoint; 0 waits until the training is over."""
    out: str | None = None
    """Directory of the report; null means `report/` inside the checkpoint."""
    dtype: str = "float32"
    """Precision of weights and arithmetic: float32, bfloat16, float16 or float64."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    adapter: str | None = None
    """LoRA adapter that joins the checkpoint, unmerged: its directory."""
    revision: str | None = None
    """Branch, tag or commit, where `checkpoint` is a name on the hub instead of a directory."""
    device_map: Any = None
    """auto, or modules and their devices ({model.layers.0: cpu, model.layers.1: disk}); takes the place of `device`."""
    max_memory: Any = None
    """device_map=auto: most memory of each device, such as {cpu: 2GB}."""
    offload_folder: str | None = None
    """device_map: where modules on disk are kept, for weights that are no safetensors."""
    attn_implementation: str | None = None
    """sdpa or eager; null leaves transformers' choice."""
    quantization_config: QuantisationSettings = field(default_factory=QuantisationSettings)
    """How weights are quantised while they load."""
    cache_dir: str | None = None
    """Where what comes from the hub is kept; null is the hub's own cache."""
    token: str | None = None
    """Token of the hub; null takes HF_TOKEN or the one that is logged in."""
    gguf_file: str | None = None
    """GGUF file inside the checkpoint's directory, whose weights are dequantised."""
    threads: int = 0
    """CPU threads of torch; 0 leaves torch's choice."""
    seed: int = 0
    """Seed of prompt choice and sampling."""

    def loading(self) -> LoadOptions:
        """Return how the checkpoint is loaded, beside its precision and device."""
        return options_of(self)


def check_options(settings: EvalOptions, checks: Checks) -> None:
    """Note every broken rule of what an evaluation does, whoever asks for it."""
    for key in ("samples", "prompt_tokens", "max_new_tokens", "repeats", "batch_size"):
        checks.at_least(key, getattr(settings, key), 1)
    for key in ("max_minutes", "top_k", "search_seconds"):
        checks.at_least(key, getattr(settings, key), 0)
    checks.within("expert_budget", settings.expert_budget, 0, 1)
    checks.require(0 < settings.top_p <= 1, "top_p", "must be above 0 and at most 1", settings.top_p)
    _check_lists(settings, checks)
    _check_tasks(settings, checks)


def _check_lists(settings: EvalOptions, checks: Checks) -> None:
    checks.require(len(settings.batches) > 0, "batches", "must not be empty", [], "try [1,4]")
    for key in ("contexts", "batches"):
        for index, value in enumerate(getattr(settings, key)):
            checks.at_least(f"{key}.{index}", value, 1)
    checks.require(len(settings.temperatures) > 0, "temperatures", "must not be empty", [], "try [0,1]")
    for index, temperature in enumerate(settings.temperatures):
        checks.at_least(f"temperatures.{index}", temperature, 0, "0 is greedy")


def _check_tasks(settings: EvalOptions, checks: Checks) -> None:
    checks.require(
        len(settings.tasks) > 0, "tasks", "must name at least one task", settings.tasks, "try [auto]"
    )
    alone = list(settings.tasks) == ["task_shift"]
    rule = "times nothing by itself"
    checks.require(not alone, "tasks", rule, settings.tasks, "try [auto,task_shift]")
    for index, task in enumerate(settings.tasks):
        _check_task(f"tasks.{index}", task, checks)
    for kind in FILE_TASKS[1:]:
        given = [task for task in settings.tasks if task.startswith(f"{kind}:")]
        checks.require(len(given) < 2, "tasks", f"may name one {kind}: file", given, "put them into one file")


def _check_task(key: str, task: str, checks: Checks) -> None:
    """Check that a task is known, and that its file is there."""
    kind, colon, path = task.partition(":")
    if colon and kind in FILE_TASKS:
        checks.require(Path(path).expanduser().is_file(), key, "there is no such file", task)
    else:
        near = suggest(task, [*TASKS, *(f"{kind}:PATH" for kind in FILE_TASKS)])
        checks.require(task in TASKS, key, "is not a task", task, near)


def validate(settings: EvalSettings, checks: Checks) -> None:
    """Note every broken rule of `settings` in `checks`; loads no weights and imports no torch."""
    if settings.watch is None:
        near = _near(Path(settings.checkpoint).expanduser())
        check_checkpoint(settings.checkpoint, settings.loading(), near, checks)
    else:
        _check_watch(settings, checks)
    check_loading(settings.loading(), settings.device, settings.expert_budget, checks)
    check_options(settings, checks)
    checks.at_least("threads", settings.threads, 0)
    checks.within("seed", settings.seed, 0, LAST_SEED)
    checks.choice("dtype", settings.dtype, DTYPES)
    checks.choice("device", settings.device.partition(":")[0], DEVICES)


def _check_watch(settings: EvalSettings, checks: Checks) -> None:
    """Check that a run can be watched; it need not have begun."""
    assert settings.watch is not None
    rule = "must be a run directory, outputs/RECIPE/RUN_NAME, or the place of one still to come"
    path = Path(settings.watch).expanduser()
    checks.require(not path.exists() or path.is_dir(), "watch", rule, settings.watch)
    rule = "goes to reports/ of the run that is watched"
    checks.require(settings.out is None, "out", rule, settings.out, "leave it out")
    checks.above_zero("watch_poll_seconds", settings.watch_poll_seconds)
    checks.at_least("watch_idle_minutes", settings.watch_idle_minutes, 0)


def _near(path: Path) -> str:
    """Suggest the newest checkpoint inside the run directory `path`, or the first part of it that is missing."""
    steps = [step for step in checkpoint_folders(path / "checkpoints") if (step / "config.json").is_file()]
    if steps:
        return f"that is a run; try checkpoint={steps[-1]}"
    missing = [part for part in (path, *path.parents) if not part.exists()]
    hub = "; for a name on the hub add revision=main" if is_hub_name(str(path)) else ""
    return f"{missing[-1]} does not exist{hub}" if missing else what_is_there(path)
