"""Settings of one evaluation: which checkpoint, which drafts, which prompts, how long.

`python -m ssd_infer checkpoint=DIR` fills them from `conf/evaluate.yaml`; a training run fills them from its
own `eval` node.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from omegaconf import MISSING

from ssd_infer.checkpoint.options import LoadOptions, is_hub_name, option_problems
from ssd_infer.checkpoint.steps import checkpoint_folders
from ssd_infer.config.checks import Checks, suggest

DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("float32", "bfloat16", "float16", "float64")
LAST_SEED = 2**32 - 1
"""Numpy, which transformers seeds as well, takes none above it."""
TASKS = ("auto", "stdlib_prose", "stdlib_code", "long_continuation", "copy", "needle", "task_shift")


@dataclass(slots=True)
class QuantisationSettings:
    """Fields of transformers' quantisation configurations; what is null is left to the method."""

    quant_method: str | None = None
    """torchao, bitsandbytes_8bit, bitsandbytes_4bit, hqq, quanto or another of transformers' methods."""
    quant_type: str | None = None
    """torchao: the class of its configuration, such as Int8WeightOnlyConfig."""
    quant_type_kwargs: Any = None
    """torchao: arguments of that class."""
    load_in_8bit: bool | None = None
    """bitsandbytes: 8 bits."""
    load_in_4bit: bool | None = None
    """bitsandbytes: 4 bits."""
    bnb_4bit_quant_type: str | None = None
    """bitsandbytes: fp4 or nf4."""
    bnb_4bit_use_double_quant: bool | None = None
    """bitsandbytes: quantise the constants as well."""
    weights: str | None = None
    """quanto: float8, int8, int4 or int2."""
    nbits: int | None = None
    """hqq: bits of a weight."""
    bits: int | None = None
    """gptq, awq and others: bits of a weight."""
    group_size: int | None = None
    """Weights that share a scale."""


@dataclass(slots=True)
class EvalSettings:
    """Everything `ssd_infer.evaluation.evaluate` needs to know."""

    checkpoint: str = MISSING
    """Directory of the checkpoint, as `save_pretrained` writes it."""
    watch: str | None = None
    """Run directory whose checkpoints are evaluated as they appear; takes the place of `checkpoint` and `out`."""
    watch_poll_seconds: float = 30.0
    """watch: look for a new checkpoint every so many seconds."""
    watch_idle_minutes: float = 0.0
    """watch: end after so long without a new checkpoint; 0 waits until the training is over."""
    draft: str = "all"
    """`all`, a family such as `skip_layer`, or the name of one draft strategy."""
    draft_params: dict[str, Any] = field(default_factory=dict)
    """Parameters of that one strategy; what is left out is `auto`."""
    tasks: list[str] = field(default_factory=lambda: ["auto"])
    """Prompt sets: auto, stdlib_prose, stdlib_code, long_continuation, copy, needle or file:PATH; beside one of them
    task_shift, streams of prose, code and dialogue."""
    out: str | None = None
    """Directory of the report; null means `report/` inside the checkpoint."""
    samples: int = 64
    """Prompts of each task; more of them tell more than repeats."""
    prompt_tokens: int = 64
    """Longest prompt in tokens."""
    max_new_tokens: int = 128
    """Tokens decoded for each prompt."""
    repeats: int = 1
    """Timed repetitions of each prompt, after all prompts had their turn."""
    batch_size: int = 1
    """Rows decoded together in the timed runs."""
    contexts: list[int] = field(default_factory=list)
    """Prompt lengths of the long-context sweep (sparse attention beside plain decoding); empty: no sweep."""
    batches: list[int] = field(default_factory=lambda: [1])
    """Batch sizes of that sweep."""
    temperatures: list[float] = field(default_factory=lambda: [0.0, 1.0])
    """Temperatures decoded at; 0 is greedy."""
    top_k: int = 0
    """Keep the k most probable tokens when sampling; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens with this much probability when sampling."""
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
    expert_budget: float = 0.0
    """Keep at most this share of a mixture's routed experts in memory, the others on disk; 0 keeps all in memory."""
    threads: int = 0
    """CPU threads of torch; 0 leaves torch's choice."""
    seed: int = 0
    """Seed of prompt choice and sampling."""
    max_minutes: float = 0.0
    """Be done after this long, dealt out to the phases beforehand (60 % and more to measuring); 0 sets no limit."""
    search_seconds: float = 0.0
    """Longest search of one strategy before it is timed; 0 takes a twentieth of `max_minutes`, a minute at most."""
    peers: bool = True
    """Time what a user would pick instead too: prompt lookup and `assistant_early_exit`."""
    grid: bool = True
    """Measure a grid of exit layers and draft lengths for the heat map."""

    def loading(self) -> LoadOptions:
        """Return how the checkpoint is loaded, beside its precision and device."""
        given = {item.name: getattr(self, item.name) or None for item in fields(LoadOptions)}
        quantised: Any = given["quantization_config"]
        found = asdict(quantised) if isinstance(quantised, QuantisationSettings) else dict(quantised or {})
        given["quantization_config"] = {key: value for key, value in found.items() if value is not None}
        memory = dict(given["max_memory"] or {})
        given["max_memory"] = {int(key) if str(key).isdecimal() else key: memory[key] for key in memory}
        return LoadOptions(**{key: value or None for key, value in given.items()})


class EvalProtocol(Protocol):
    """What the evaluation node of a run and the settings of an evaluation have in common."""

    tasks: list[str]
    samples: int
    max_new_tokens: int
    repeats: int
    max_minutes: float


def check_protocol(settings: EvalProtocol, checks: Checks) -> None:
    """Check tasks and counts."""
    for key in ("samples", "max_new_tokens", "repeats"):
        checks.at_least(key, getattr(settings, key), 1)
    checks.at_least("max_minutes", settings.max_minutes, 0)
    checks.require(
        len(settings.tasks) > 0, "tasks", "must name at least one task", settings.tasks, "try [auto]"
    )
    alone = list(settings.tasks) == ["task_shift"]
    rule = "times nothing by itself"
    checks.require(not alone, "tasks", rule, settings.tasks, "try [auto,task_shift]")
    for index, task in enumerate(settings.tasks):
        if task.startswith("file:"):
            exists = Path(task.removeprefix("file:")).expanduser().is_file()
            checks.require(exists, f"tasks.{index}", "there is no such file", task)
        else:
            rule = "is not a task"
            checks.require(task in TASKS, f"tasks.{index}", rule, task, suggest(task, [*TASKS, "file:PATH"]))


def validate(settings: EvalSettings, checks: Checks) -> None:
    """Note every broken rule of `settings` in `checks`; loads no weights and imports no torch."""
    if settings.watch is None:
        _check_checkpoint(settings, checks)
    else:
        _check_watch(settings, checks)
    _check_loading(settings, checks)
    check_protocol(settings, checks)
    for key in ("prompt_tokens", "batch_size"):
        checks.at_least(key, getattr(settings, key), 1)
    for key in ("threads", "top_k", "search_seconds"):
        checks.at_least(key, getattr(settings, key), 0)
    checks.within("seed", settings.seed, 0, LAST_SEED)
    checks.within("expert_budget", settings.expert_budget, 0, 1)
    checks.require(len(settings.batches) > 0, "batches", "must not be empty", [], "try [1,4]")
    for key in ("contexts", "batches"):
        for index, value in enumerate(getattr(settings, key)):
            checks.at_least(f"{key}.{index}", value, 1)
    checks.choice("dtype", settings.dtype, DTYPES)
    checks.choice("device", settings.device.partition(":")[0], DEVICES)
    checks.require(0 < settings.top_p <= 1, "top_p", "must be above 0 and at most 1", settings.top_p)
    checks.require(len(settings.temperatures) > 0, "temperatures", "must not be empty", [], "try [0,1]")
    for index, temperature in enumerate(settings.temperatures):
        checks.at_least(f"temperatures.{index}", temperature, 0, "0 is greedy")


def _check_checkpoint(settings: EvalSettings, checks: Checks) -> None:
    """Check that there is something to load: a directory, or a name on the hub with its revision."""
    path = Path(settings.checkpoint).expanduser()
    if settings.revision is not None and not path.exists():
        rule, remedy = (
            "must be a name on the hub, owner/name, where a revision is given",
            "leave revision out",
        )
        checks.require(is_hub_name(settings.checkpoint), "checkpoint", rule, settings.checkpoint, remedy)
        return
    rule = "belongs to a name on the hub, and the checkpoint is a directory"
    checks.require(settings.revision is None, "revision", rule, settings.revision, "leave it out")
    if settings.gguf_file is not None:
        rule = "must be a file inside the checkpoint's directory"
        checks.require((path / settings.gguf_file).is_file(), "gguf_file", rule, settings.gguf_file)
        return
    rule = "must be a directory with a config.json"
    good = (path / "config.json").is_file()
    checks.require(good, "checkpoint", rule, settings.checkpoint, _near(path))


def _check_loading(settings: EvalSettings, checks: Checks) -> None:
    """Check the options a checkpoint is loaded with, and that they go together."""
    options = settings.loading()
    checks.problems += option_problems(options, settings.device)
    alien = options.given().keys() - options.hub().keys()
    rule = "cannot be given where experts stay on disk"
    for key in sorted(alien) if settings.expert_budget else ():
        checks.fail(key, rule, getattr(settings, key), "leave out expert_budget or this")


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
    if missing:
        hub = "; for a name on the hub add revision=main" if is_hub_name(str(path)) else ""
        return f"{missing[-1]} does not exist{hub}"
    if (path / "adapter_config.json").is_file():
        return f"that is an adapter: give its model as the checkpoint, and adapter={path}"
    ggufs = sorted(path.glob("*.gguf"))
    return f"try gguf_file={ggufs[0].name}" if ggufs else "there is no config.json in it"
