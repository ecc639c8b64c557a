"""The same command under every launcher, and the batch scripts with stand-ins for Slurm's commands."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from ssd_infer.errors import ConfigError
from ssd_train.cli.load import load_config
from ssd_train.distributed.launcher import check_launcher
from tests.train.support import write_text

ROOT = Path(__file__).resolve().parents[3]
SUBMIT = runpy.run_path(str(ROOT / "scripts" / "submit.py"))
RECIPES = sorted(path.parent.name for path in (ROOT / "recipes").glob("*/slurm"))
SRUN = """#!/usr/bin/env bash
# Start $FAKE_TASKS copies of the command, as srun does, without its own options.
while [[ $1 == --* ]]; do shift; done
export SLURM_NTASKS=$FAKE_TASKS
pids=()
for ((task = 0; task < FAKE_TASKS; task++)); do
  SLURM_PROCID=$task SLURM_LOCALID=$task "$@" & pids+=($!)
done
if [[ -n ${FAKE_SIGNAL_AT:-} ]]; then
  until [[ -e $FAKE_SIGNAL_AT ]]; do sleep 0.1; done
  kill -USR1 "${pids[@]}"
fi
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit $code
"""
SCONTROL = """#!/usr/bin/env bash
case $1 in show) echo 127.0.0.1 ;; requeue) echo "requeue $2" >> "$FAKE_LOG" ;; esac
"""


def settings(directory: Path, steps: int = 2) -> list[str]:
    """Return what makes a run small, on a text below `directory`."""
    return [
        "+recipe=layerskip",
        "model=tiny",
        "model.num_layers=3",
        "optim=adamw",
        "data=local",
        f"data.path={write_text(directory)}",
        "data.block_size=24",
        "data.tokenizer_vocab=300",
        "recipe.early_exit.exits=[2]",
        "device=cpu",
        "threads=1",
        f"train.max_steps={steps}",
        "train.batch_size=2",
        "train.eval_batches=1",
        "train.logging_steps=1",
        "eval.enabled=false",
        "tracking=none",
        f"output_root={directory / 'outputs'}",
    ]


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which launchers find this Python and this checkout."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    paths = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PATH": path, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("launcher", "engine"),
    [
        (["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"], "fsdp2"),
        (["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
          "--mixed_precision", "no", "--dynamo_backend", "no", "-m"], "ddp"),
        pytest.param(
            ["-m", "deepspeed.launcher.runner", "--num_gpus", "2", "--module"],
            "deepspeed_zero2",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("deepspeed") is None, reason="needs the extra deepspeed"
            ),
        ),
    ],
    ids=["torchrun", "accelerate", "deepspeed"],
)  # fmt: skip
def test_the_same_command_under_every_launcher(tmp_path: Path, launcher: list[str], engine: str) -> None:
    command = [sys.executable, *launcher, "ssd_train", *settings(tmp_path), f"engine={engine}"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    run_dir = tmp_path / "outputs" / "layerskip" / "default"
    record = json.loads((run_dir / "checkpoints" / "step-2" / "ssd.json").read_text())
    assert (record["engine"], record["world_size"]) == (engine, 2)
    assert done.stdout.count("engine      ") == 1


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which `srun` and `scontrol` are stand-ins."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    values = environment(
        SLURM_JOB_ID="77", SLURM_JOB_NODELIST="n1", FAKE_TASKS="2", FAKE_LOG=str(tmp_path / "log")
    )
    return {**values, "PATH": f"{folder}:{values['PATH']}"}


@pytest.mark.integration
def test_a_batch_script_is_stopped_requeues_itself_and_finishes(
    tmp_path: Path, slurm: dict[str, str]
) -> None:
    overrides = [*settings(tmp_path, steps=400), "engine=ddp", "train.save_steps=400"]
    script = SUBMIT["training_script"](SUBMIT["Job"]("t"), overrides)
    run_dir = tmp_path / "outputs" / "layerskip" / "default"
    signal_at = str(run_dir / "metrics.jsonl")
    first = subprocess.run(
        ["bash", "-s"], input=script, env={**slurm, "FAKE_SIGNAL_AT": signal_at}, text=True, timeout=400,
        capture_output=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert first.returncode == 0, first.stderr
    stopped = json.loads((run_dir / "stopped.json").read_text())
    assert stopped["signal"] == "SIGUSR1"
    assert (tmp_path / "log").read_text() == "requeue 77\n"
    last = stopped["step"] + 1
    again = script.replace("train.max_steps=400", f"train.max_steps={last}")
    second = subprocess.run(
        ["bash", "-s"],
        input=again,
        env=slurm,
        text=True,
        timeout=400,
        capture_output=True,
        check=False,
        cwd=ROOT,
    )
    assert second.returncode == 0, second.stderr
    assert not (run_dir / "stopped.json").exists()
    assert (run_dir / "checkpoints" / f"step-{last}").is_dir()


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_batch_scripts_of_the_recipes_are_what_submit_writes(recipe: str) -> None:
    for name, text in SUBMIT["templates"](recipe).items():
        assert (ROOT / "recipes" / recipe / "slurm" / name).read_text() == text


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_batch_scripts_are_valid_shell_and_valid_configurations(recipe: str) -> None:
    for text in SUBMIT["templates"](recipe).values():
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
        command = next(line for line in text.splitlines() if line.startswith("' ssd_train"))
        overrides = command.partition(" run_name=")[0].split()[2:]
        assert load_config(overrides).run_name == "default"


def test_submit_refuses_a_wrong_configuration_before_the_queue(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "scripts" / "submit.py"),
        "--print",
        "--",
        "+recipe=layerskip",
        "engine=ddp",
    ]
    good = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert good.returncode == 0, good.stderr
    assert f"cd {tmp_path}" in good.stdout
    bad = subprocess.run(
        [*command, "engine=fsdp2"], env=environment(), capture_output=True, text=True, check=False
    )
    assert bad.returncode == 2
    assert "optim.name: needs whole matrices" in bad.stderr
    for wrong in ("train.max_step=3", "((", "+recipe=moo"):
        bad = subprocess.run(
            [*command, wrong], env=environment(), capture_output=True, text=True, check=False
        )
        assert bad.returncode == 2
        assert "Traceback" not in bad.stderr
        assert wrong.partition("=")[0].lstrip("+") in bad.stderr


def test_a_launcher_does_not_overrule_engine_and_dtype_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    check_launcher("ddp", "float32")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    check_launcher("ddp", "bfloat16")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError) as caught:
        check_launcher("ddp", "float32")
    assert [problem.key for problem in caught.value.problems] == ["engine", "dtype"]
    assert "ACCELERATE_MIXED_PRECISION=bf16 besides (got 'float32')" in str(caught.value)


def test_submit_without_slurm_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "submit.py"), "--", "+recipe=layerskip"]
    done = subprocess.run(
        command, env={**environment(), "PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "sbatch: no such command here" in done.stderr


ECHO = """#!/usr/bin/env bash
# Stand in for srun: tell the shell above to stop, as a preemption does, work on a while, and leave a stopped run.
kill -TERM "$PPID"
sleep 1
mkdir -p "$FAKE_RUN"
echo "{}" > "$FAKE_RUN/stopped.json"
echo "$SRUN_CPUS_PER_TASK cores, $MASTER_ADDR:$MASTER_PORT, ${*: -2}" > "$FAKE_RUN/said"
"""


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ([], "out/layerskip/default"),
        (["run_name=other"], "out/layerskip/other"),
        (["output_root=there", "recipe_name=mine"], "there/mine/default"),
    ],
)
def test_a_preempted_shell_waits_and_requeues_whatever_the_run_is_called(
    tmp_path: Path, slurm: dict[str, str], given: list[str], place: str
) -> None:
    (tmp_path / "bin" / "srun").write_text(ECHO)
    script = SUBMIT["training_script"](SUBMIT["Job"]("t"), ["+recipe=layerskip", "output_root=out"])
    values = {**slurm, "FAKE_RUN": str(tmp_path / place), "SLURM_CPUS_PER_TASK": "3"}
    done = subprocess.run(
        ["bash", "-s", "--", *given], input=script, env=values, text=True, check=False, cwd=tmp_path,
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").read_text() == "requeue 77\n"
    assert (tmp_path / place / "said").read_text().startswith("3 cores, 127.0.0.1:20077")


def test_a_watcher_has_one_task(tmp_path: Path) -> None:
    script = SUBMIT["watch_script"](SUBMIT["Job"]("w", gpus=1), "outputs/layerskip/big", ["samples=4"])
    assert "#SBATCH --ntasks-per-node=1" in script
    assert "srun python -m ssd_infer watch=outputs/layerskip/big samples=4" in script
