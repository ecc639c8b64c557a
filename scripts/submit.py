"""Write a Slurm batch script of a training, or of the watcher that evaluates its checkpoints, and submit it.

    python scripts/submit.py --nodes 2 --gpus 8 --time 24:00:00 -- +recipe=layerskip engine=fsdp2 run_name=big
    python scripts/submit.py --watch outputs/layerskip/big --time 24:00:00 -- samples=16

`--print` shows the script instead. A stopped training (time limit, preemption) puts itself in the queue again and goes
on from its last checkpoint; `--no-requeue` leaves that out.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


@dataclass(frozen=True)
class Job:
    """What Slurm is asked for."""

    name: str
    nodes: int = 1
    gpus: int = 8
    """Accelerators of a node, each with a process of its own; 0 is one process a node on its cores."""
    cpus: int = 8
    """Cores of a process."""
    time: str = "24:00:00"
    grace: int = 180
    """Seconds before the time limit at which the training is told to save and stop."""
    requeue: bool = True
    extra: list[str] = field(default_factory=list)
    """Further `#SBATCH` options, such as `--partition=gpu`."""

    def header(self, *, tasks: int, signal: bool) -> str:
        """Return the `#SBATCH` lines."""
        options = [
            f"--job-name={self.name}",
            f"--nodes={self.nodes}",
            f"--ntasks-per-node={tasks}",
            *([f"--gpus-per-node={self.gpus}"] if self.gpus else []),
            f"--cpus-per-task={self.cpus}",
            f"--time={self.time}",
            "--output=slurm-%x-%j.out",
            "--open-mode=append",
            "--requeue" if self.requeue else "--no-requeue",
            *([f"--signal=USR1@{self.grace}"] if signal else []),
            *self.extra,
        ]
        return "\n".join(["#!/usr/bin/env bash", *(f"#SBATCH {option}" for option in options)])


_TRAIN = """
# A process an accelerator; Slurm's numbers become those torch.distributed reads. The signal before the time limit, and
# the one of a preemption, reach every process: it saves, and the script ends. What follows the script's name on the
# command line of sbatch is laid over the arguments below.
set -euo pipefail
trap : TERM  # a preemption tells this shell as well, which waits for the processes to save
{cd}MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
OMP_NUM_THREADS=${{SLURM_CPUS_PER_TASK:-1}}
SRUN_CPUS_PER_TASK=$OMP_NUM_THREADS  # Slurm 22.05 and later do not pass the cores of the job on to srun
export MASTER_ADDR MASTER_PORT OMP_NUM_THREADS SRUN_CPUS_PER_TASK
output_root={output_root} recipe_name={recipe_name} run_name=${{RUN_NAME:-{run_name}}}
for argument in "$@"; do
  case $argument in
    output_root=*) output_root=${{argument#*=}} ;;
    recipe_name=*) recipe_name=${{argument#*=}} ;;
    run_name=*) run_name=${{argument#*=}} ;;
  esac
done
{before}
srun --kill-on-bad-exit=1 bash -c '
  export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
  exec python -m ssd_train "$@"
' ssd_train {arguments} run_name="$run_name" "$@"{after}
"""

_BEFORE = """stopped=$output_root/$recipe_name/$run_name/stopped.json
rm -f "$stopped"  # of an earlier start
code=0
"""

_AFTER = """ || code=$?

if [[ -e $stopped ]]; then
  # Slurm may have put a preempted job in the queue itself; then this says so and changes nothing.
  scontrol requeue "$SLURM_JOB_ID" || echo "job $SLURM_JOB_ID was not requeued by its script" >&2
fi
exit $code"""

_WATCH = """
# Evaluates the checkpoints of a training as they appear; ends when the last one has its report.
set -euo pipefail
{cd}export SRUN_CPUS_PER_TASK=${{SLURM_CPUS_PER_TASK:-1}}
srun python -m ssd_infer watch={run_dir} {arguments}
"""


def training_script(job: Job, overrides: Sequence[str], directory: Path | None = None) -> str:
    """Return the batch script that trains with `overrides`, run in `directory`; raises ConfigError for wrong ones."""
    cfg = _configuration(overrides)
    body = _TRAIN.format(
        cd=_cd(directory),
        before=_BEFORE if job.requeue else "",
        after=_AFTER if job.requeue else "",
        run_name=shlex.quote(cfg.run_name),
        output_root=shlex.quote(cfg.output_root),
        recipe_name=shlex.quote(cfg.recipe_name),
        arguments=" ".join(shlex.quote(item) for item in overrides if not item.startswith("run_name=")),
    )
    return job.header(tasks=max(1, job.gpus), signal=True) + "\n" + body


def watch_script(job: Job, run_dir: str, overrides: Sequence[str], directory: Path | None = None) -> str:
    """Return the batch script that evaluates the checkpoints of `run_dir`."""
    arguments = " ".join(map(shlex.quote, overrides))
    body = _WATCH.format(cd=_cd(directory), run_dir=shlex.quote(run_dir), arguments=arguments)
    return job.header(tasks=1, signal=False) + "\n" + body.rstrip() + "\n"


def templates(recipe: str) -> dict[str, str]:
    """Return the batch scripts that stand in `recipes/RECIPE/slurm/`, by file name."""
    name, arguments = f"ssd-{recipe}", [f"+recipe={recipe}"]
    sharded = [*arguments, "engine=fsdp2", "optim=adamw", "dtype=bfloat16"]
    return {
        "single_node.sbatch": training_script(Job(name, requeue=False), [*arguments, "engine=ddp"]),
        "multi_node.sbatch": training_script(Job(name, nodes=2, requeue=False), sharded),
        "requeue.sbatch": training_script(Job(name, nodes=2, time="04:00:00"), sharded),
    }


def _cd(directory: Path | None) -> str:
    return "" if directory is None else f"cd {shlex.quote(str(directory))}\n"


def _configuration(overrides: Sequence[str]) -> Any:
    """Return what `python -m ssd_train OVERRIDES` would do; what is wrong with it is said now, not after the queue."""
    from hydra.errors import HydraException

    from ssd_infer.errors import SSDError
    from ssd_train.cli.load import load_config

    try:
        return load_config(overrides)
    except HydraException as error:
        raise SSDError(str(error)) from error


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=8, help="accelerators, and processes, of a node")
    parser.add_argument("--cpus", type=int, default=8, help="cores of a process")
    parser.add_argument("--time", default="24:00:00")
    parser.add_argument("--grace", type=int, default=180, help="seconds before the limit at which to save")
    parser.add_argument("--no-requeue", dest="requeue", action="store_false")
    parser.add_argument("--sbatch", action="append", default=[], metavar="OPTION", help="as --partition=gpu")
    parser.add_argument("--watch", metavar="RUN_DIR", help="evaluate the checkpoints of this run instead")
    parser.add_argument("--print", dest="show", action="store_true", help="show the script, submit nothing")
    parser.add_argument("--templates", action="store_true", help="write recipes/*/slurm/ and stop")
    parser.add_argument("overrides", nargs="*", help="after `--`: what follows python -m ssd_train")
    return parser.parse_args()


def main() -> int:
    """Run the command line and return the exit code; what the user must change is one screen, not a traceback."""
    from ssd_infer.cli.console import print_error
    from ssd_infer.errors import SSDError

    try:
        return _submit(_arguments())
    except SSDError as error:
        print_error(error)
        return 2


def _submit(options: argparse.Namespace) -> int:
    """Write the script that `options` ask for, and show or submit it; return the exit code."""
    from ssd_infer.errors import SSDError

    if options.templates:
        for recipe in sorted(path.parent.name for path in (ROOT / "recipes").glob("*/slurm/")):
            for name, text in templates(recipe).items():
                (ROOT / "recipes" / recipe / "slurm" / name).write_text(text, encoding="utf-8")
        return 0
    gpus = min(options.gpus, 1) if options.watch else options.gpus
    job = Job(
        "ssd",
        options.nodes,
        gpus,
        options.cpus,
        options.time,
        options.grace,
        options.requeue,
        [option if option.startswith("-") else f"--{option}" for option in options.sbatch],
    )
    if options.watch:
        script = watch_script(job, options.watch, options.overrides, Path.cwd())
    else:
        script = training_script(job, options.overrides, Path.cwd())
    if options.show:
        print(script, end="")
        return 0
    if shutil.which("sbatch") is None:
        raise SSDError(
            "sbatch: no such command here; submit from a login node of the cluster, or look with --print"
        )
    return subprocess.run(["sbatch"], input=script, text=True, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
