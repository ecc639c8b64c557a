"""Record what the code does, so that a move which changes nothing can be seen to change nothing.

    python tests/house/record.py             record everything anew, into tests/house/recorded/ (a few minutes)
    python tests/house/record.py PART FILE   record one part into FILE: tokens, report or losses

tokens: what every strategy decodes from 64 prompts, greedy and sampled, and how much it drafted (tiny models of fixed
seed in float64, and the checkpoints of tests/fixtures/before_house).
report: the report.json of a fixed checkpoint under a clock that work drives.
losses: the first steps of every recipe.

Only what users may rely on is called: `ssd_infer.generate`, `transcribe`, `evaluate`, and the command lines.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OLD = HERE.parent / "fixtures" / "before_house"
RECORDED = HERE / "recorded"
TICK = 0.001
PROMPTS, BATCH, NEW = 64, 8, 14

CAUSAL: dict[str, dict[str, Any]] = {
    "early_exit": {"exit_layer": 2, "gamma": 3},
    "early_exit+del": {"gamma": 4, "guard": 0.0},
    "early_exit+ngram": {"exit_layer": 2, "gamma": 3},
    "ngram": {"gamma": 4},
    "skip_set": {"skip_attention": [2, 3], "skip_mlp": [3], "gamma": 4, "guard": 0.0},
    "skip_set+bayes": {"skip_attention": [1, 4], "skip_mlp": [2], "gamma": 3, "guard": 0.0, "adapt": False},
    "sparse_attention": {"selector": "quest", "ratio": 0.3, "min_budget": 4, "gamma": 4},
    "swift": {"gamma": 5, "share": 0.9, "fruitless": 0.9, "worth": 1.0},
}
MODULES: dict[str, dict[str, Any]] = {
    "exit_module": {"gamma": 3, "confidence": 0.0},
    "exit_module+ngram": {"gamma": 3, "confidence": 0.0, "tree": 6},
    "heads": {"gamma": 3, "confidence": 0.0, "tree": 6},
    "heads+ngram": {"gamma": 3, "confidence": 0.0, "tree": 6},
    "mtp": {"gamma": 3, "confidence": 0.0},
    "mtp+ngram": {"gamma": 3, "confidence": 0.0, "tree": 1},
}
"""Drafts that need a module beside the model: here one that nobody has trained."""
EXPERTS: dict[str, dict[str, Any]] = {
    "reduced_experts": {"k_draft": 1, "gamma": 3},
    "reduced_experts+adaptive": {"k_draft": 1, "gamma": 3, "mode": "adaptive", "tau_accept": 0.5},
}
DIFFUSION = ("ssd_chain", "spiffy")
SPEECH = (None, "ctc_draft", "ctc_draft:lossless", "ctc_draft:verify_only", "ctc_draft:gate_only", "ctc_only")
COMMON = "device=cpu threads=1 tracking=none eval.enabled=false output_root=. run_name=run train.eval_steps=0"
TEXT = "data=local data.path=text.txt data.block_size=24 data.tokenizer_vocab=300 train.batch_size=4"
SHAPE = "model.num_layers=3 model.hidden_size=16 model.intermediate_size=32 model.num_heads=2 model.max_length=128"
SOUND = (
    "data=manifest data.path=clips/manifest.jsonl data.sampling_rate=8000 data.validation_share=0.3 "
    "data.join_clips=[2,3] data.strings=12 data.heldout_strings=3 data.batch_seconds=4.0 "
    "model.encoder_layers=2 model.encoder_size=16 model.encoder_heads=2 model.encoder_ffn=24 model.conv_channels=4 "
    "model.mel_bins=16 model.decoder_layers=2 model.decoder_size=16 model.decoder_heads=2 model.decoder_ffn=24"
)
RECIPES = {
    "plain": f"model=tiny {SHAPE} model.num_kv_heads=1 {TEXT}",
    "layerskip": f"model=tiny {SHAPE} model.num_kv_heads=1 recipe.early_exit.exits=[1,2] {TEXT}",
    "layerskip_continual": f"model.name={(OLD / 'text/layerskip/run/checkpoints/step-3').as_posix()} {TEXT}",
    "moe": f"model=tiny_moe {SHAPE} model.num_kv_heads=1 {TEXT}",
    "diffusion": f"{SHAPE} model.num_kv_heads=1 recipe.block_size=4 {TEXT}",
    "asr_ctc": SOUND,
    "frozen_target": f"model.name={(OLD / 'text/layerskip/run/checkpoints/step-3').as_posix()} recipe.exits=[1] "
    f"recipe.rows=0 recipe.target_dtype=float32 {TEXT}",
}
STEPS = 4


def main(arguments: Sequence[str]) -> None:
    """Record everything, or one part into a file."""
    if not arguments:
        for part in PARTS:
            record(part, RECORDED / f"{part}.json")
            print(f"recorded {part}", flush=True)
        return
    part, file = arguments
    found = PARTS[part]()
    Path(file).write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")


def record(part: str, file: Path) -> None:
    """Record a part in a process of its own."""
    surroundings = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
    }
    command = [sys.executable, str(Path(__file__).resolve()), part, str(file.resolve())]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"recording {part} failed:\n{done.stderr[-4000:]}")


def stop_the_clock() -> None:
    """Let time be work: a clock goes on by `TICK` for each product with a weight, and a little for each reading.

    So a draft that runs fewer layers is cheaper, as it should be, and nothing depends on the machine. Call it before
    the library is imported.
    """
    now = [0.0]

    def read() -> float:
        now[0] += TICK / 100
        return now[0]

    for name in ("perf_counter", "monotonic", "process_time"):
        setattr(time, name, read)
    time.perf_counter_ns = lambda: round(
        1e9 * now[0]
    )  # reading it takes no time: it only says when tokens came
    import torch

    def work(module: torch.nn.Module, _: Any) -> None:
        weight = getattr(module, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.dim() == 2:
            now[0] += TICK

    torch.nn.modules.module.register_module_forward_pre_hook(work)


def tokens() -> dict[str, Any]:
    """Return, for each strategy, digests of its tokens and what it drafted."""
    stop_the_clock()
    import ssd_infer

    found: dict[str, Any] = {}
    model, rows = _llama(), _prompts(97)
    for name, params in {"plain": {}, **CAUSAL}.items():
        found[name] = _generated(model, rows, None if name == "plain" else name, params)
    _put_modules(model)
    for name, params in MODULES.items():
        found[name] = _generated(model, rows, name, params)
    model = _experts()
    for name, params in {"plain": {}, **EXPERTS}.items():
        label = "plain of experts" if name == "plain" else name
        found[label] = _generated(model, rows, None if name == "plain" else name, params)
    denoiser = ssd_infer.load(OLD / "diffusion" / "model", dtype="float64", device="cpu")
    rows = _prompts(250)
    found["stepwise"] = _generated(denoiser, rows, None, {})
    for drafter in DIFFUSION:
        params = {"drafter": drafter, "gamma": 3}
        if drafter == "spiffy":
            params["graph"] = [[[0, 0]], [[0, 0], [0, 0]], [[1, 0]], [[0, 1]]]
        found[f"fewer_steps:{drafter}"] = _generated(denoiser, rows, "fewer_steps", params)
    found |= _speech()
    return found


def report() -> dict[str, Any]:
    """Return the report of the text checkpoint, without what belongs to a machine or a commit."""
    stop_the_clock()
    from ssd_infer.config.evaluation import EvalSettings
    from ssd_infer.evaluation import evaluate

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shutil.copytree(OLD / "text" / "layerskip" / "run" / "checkpoints" / "step-3", work / "step-3")
        shutil.copy(OLD / "text" / "prompts.jsonl", work)
        os.chdir(work)
        sys.argv = ["ssd_infer"]
        evaluate(
            EvalSettings(
                checkpoint="step-3",
                tasks=["file:prompts.jsonl"],
                out="report",
                samples=3,
                max_new_tokens=12,
                repeats=1,
                device="cpu",
                threads=1,
                grid=False,
            )
        )
        made: dict[str, Any] = json.loads((work / "report" / "report.json").read_text("utf-8"))
        os.chdir(ROOT)
    return normalised(made)


def normalised(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report without what belongs to a machine, an environment or a commit; numbers to six digits."""
    report["identity"]["git"] = None
    report["identity"]["command"] = ""
    report["identity"]["extra"] = {}
    for key in ("python", "torch", "transformers", "ssd", "cpu"):
        report["environment"][key] = ""
    rounded: dict[str, Any] = _rounded(report)
    return rounded


def losses() -> dict[str, Any]:
    """Return the losses of the first steps of every recipe."""
    found = {}
    for recipe, given in RECIPES.items():
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            shutil.copy(OLD / "text" / "text.txt", work)
            shutil.copytree(OLD / "speech" / "clips", work / "clips")
            steps = f"train.max_steps={STEPS} train.save_steps={STEPS} train.logging_steps=1"
            line = f"-m ssd_train +recipe={recipe} {given} {steps} {COMMON}"
            command = [sys.executable, *shlex.split(line)]
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr[-3000:]}")
            (metrics,) = work.glob("*/run/metrics.jsonl")
            lines = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
            found[recipe] = [line["loss"] for line in lines if "loss" in line]
    return found


PARTS: dict[str, Callable[[], dict[str, Any]]] = {"tokens": tokens, "report": report, "losses": losses}


def _prompts(vocabulary: int) -> list[list[int]]:
    """Return 64 prompts of 3 to 18 tokens."""
    import torch

    chance = torch.Generator().manual_seed(5)
    lengths = torch.randint(3, 19, (PROMPTS,), generator=chance).tolist()
    return [torch.randint(3, vocabulary, (length,), generator=chance).tolist() for length in lengths]


def _generated(
    model: Any, rows: list[list[int]], draft: str | None, params: dict[str, Any]
) -> dict[str, Any]:
    """Decode all rows in ragged batches, greedy and sampled."""
    import ssd_infer

    found: dict[str, Any] = {}
    samplings: dict[str, dict[str, Any]] = {
        "greedy": {},
        "sampled": {"do_sample": True, "temperature": 0.8, "top_k": 20},
    }
    for label, sampling in samplings.items():
        sequences: list[list[int]] = []
        counts = {"rounds": 0, "drafted": 0, "accepted": 0}
        for start in range(0, len(rows), BATCH):
            out = ssd_infer.generate(
                model,
                rows[start : start + BATCH],
                draft=draft,
                draft_params=dict(params) if draft else None,
                max_new_tokens=NEW,
                seed=start,
                **sampling,
            )
            sequences += out.sequences
            for key in counts:
                counts[key] += getattr(out.stats.total, key)
        found[label] = {"sha256": _digest(sequences), "first": sequences[0], **counts}
    return found


def _speech() -> dict[str, Any]:
    """Transcribe the held-out speech of the old checkpoint with every draft."""
    import ssd_infer

    loaded = ssd_infer.load(OLD / "speech" / "run" / "checkpoints" / "step-4", dtype="float64", device="cpu")
    waves = sorted(map(str, (OLD / "speech" / "run" / "heldout").rglob("*.wav")))
    found = {}
    for name in SPEECH:
        out = ssd_infer.transcribe(loaded, waves, draft=name, batch_size=4)
        found[f"speech:{name}"] = {"texts": out.texts, "routes": out.routes}
    return found


def _llama() -> Any:
    """Build a Llama of random weights whose deep layers contribute less, so that its drafts are fair."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    return _sharpened(LlamaForCausalLM(config))


def _put_modules(model: Any) -> None:
    """Put a module of every form beside `model`, each as it begins."""
    from ssd_infer.checkpoint.draft_spec import DraftSpec
    from ssd_infer.models.draft_modules.build import build
    from ssd_infer.models.draft_modules.files import put_beside

    for given in (
        {"form": "exit", "module": "layer", "exit_layer": 2},
        {"form": "mtp", "module": "attention", "rollout": 1},
        {"form": "heads", "module": "rank", "rank": 4, "heads": 3},
    ):
        put_beside(model, build(DraftSpec(**given), model))


def _experts() -> Any:
    """Build a mixture of experts of random weights."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=8,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        initializer_range=0.1,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = _sharpened(Qwen3MoeForCausalLM(config))
    model.set_experts_implementation("eager")  # the grouped product knows no float64
    return model


def _sharpened(model: Any) -> Any:
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(0.5)
        model.get_output_embeddings().weight.mul_(8)
    return model.double().eval()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main(sys.argv[1:])
