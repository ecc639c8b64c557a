"""A complete report with invented figures, for tests of the renderers."""

from __future__ import annotations

from typing import Any

FAMILIES = {
    "early_exit": "skip_layer",
    "skip_set": "skip_layer",
    "swift": "skip_layer",
    "reduced_experts": "reduced_experts",
    "sparse_attention": "sparse_attention",
    "fewer_steps": "fewer_steps",
    "ctc_draft": "ctc_draft",
}
"""Row name to group, in the order of a report."""

HOSTILE = '<script>alert("x")</script> | `tick` $a_b$ [link](http://x) ]]> \n# head & 你好'


def measured_row(name: str, speedup: float, alpha: float, **changes: Any) -> dict[str, Any]:
    """Build a row with status ok; keyword arguments replace whole fields."""
    histogram = [30, 25, 20, 45]
    rounds, accepted = sum(histogram), sum(k * n for k, n in enumerate(histogram))
    row: dict[str, Any] = {
        "name": name,
        "family": FAMILIES[name.split(":")[0]],
        "params": {"exit_layer": 2, "gamma": 3},
        "status": "ok",
        "reason": None,
        "lossless": {"claimed": True, "verdict": "pass", "detail": "32 of 32 outputs equal"},
        "acceptance": {
            "rounds": rounds,
            "drafted": 3 * rounds,
            "accepted": accepted,
            "alpha": alpha,
            "tau": 1 + accepted / rounds,
            "histogram": histogram,
            "per_position": [alpha, alpha * 0.94, alpha * 0.9],
        },
        "speed": {
            "tokens_per_second": 90.0 * speedup,
            "speedup": speedup,
            "ci95": [speedup - 0.07, speedup + 0.06],
            "predicted_speedup": speedup + 0.05,
            "against": "ssd_plain",
        },
        "cost": {
            "draft_ratio_c": 0.21,
            "verify_ratio": 1.1,
            "forwards": {"target": rounds, "draft": 3 * rounds},
        },
        "memory": {"extra_bytes": 4096},
        "extra": {
            "repetition": {"distinct_1": 0.6, "distinct_2": 0.8, "distinct_3": 0.91, "longest_repeat": 4},
            "latency": {"ttft_ms": 12.5, "itl_ms_p50": 10.0 / speedup, "itl_ms_p95": 150.0 / speedup},
        },
        "per_task": [
            {
                "name": task,
                "tokens_per_second": 90.0 * speedup,
                "speedup": speedup + shift,
                "ci95": [speedup + shift - 0.1, speedup + shift + 0.1],
                "alpha": alpha,
                "tau": 2.2,
            }
            for task, shift in (("stdlib_code", 0.1), ("stdlib_prose", -0.1))
        ],
    }
    return row | changes


def absent_row(
    name: str, status: str = "not_applicable", reason: str = "this checkpoint has no experts"
) -> dict[str, Any]:
    """Build a row that carries a reason instead of figures."""
    return measured_row(name, 1.0, 0.5) | {
        "params": {},
        "status": status,
        "reason": reason,
        "lossless": {"claimed": True, "verdict": "not_run", "detail": "nothing was decoded"},
        "acceptance": {
            "rounds": 0,
            "drafted": 0,
            "accepted": 0,
            "alpha": None,
            "tau": None,
            "histogram": [],
            "per_position": [],
        },
        "speed": {
            "tokens_per_second": None,
            "speedup": None,
            "ci95": None,
            "predicted_speedup": None,
            "against": None,
        },
        "cost": {"draft_ratio_c": None, "verify_ratio": None, "forwards": {"target": 0, "draft": 0}},
        "memory": {"extra_bytes": None},
        "extra": {},
        "per_task": [],
    }


def sample_report(checkpoint: str = "outputs/layerskip/demo/checkpoints/step-1200") -> dict[str, Any]:
    """Build a valid report: three measured rows, the other names not applicable, two peers, twelve exits."""
    early = measured_row("early_exit", 1.62, 0.71)
    early["extra"]["grid"] = {
        "predicted": [
            {"exit_layer": e, "gamma": g, "speedup": 1.75 - 0.06 * e - 0.04 * (g - 3) ** 2}
            for e in (1, 2, 3, 4, 6, 8)
            for g in (1, 2, 3, 4, 6)
        ],
        "measured": [
            {"exit_layer": e, "gamma": g, "speedup": 1.68 - 0.06 * e - 0.05 * (g - 3) ** 2}
            for e, g in ((1, 2), (2, 2), (2, 3), (2, 4), (3, 3))
        ],
    }
    rows = [early, measured_row("early_exit:ngram", 1.94, 0.66), measured_row("early_exit:t1", 1.31, 0.52)]
    rows[1]["extra"]["stream"] = {
        "task": "stdlib_code",
        "prompt": "def f(x):\n    ",
        "pieces": ["return", " x", " +", " 1", "\n"],
        "blocks": [[1, 0], [3, 2], [2, 1]],
        "tokens": 128,
    }
    rows += [absent_row(name) for name in FAMILIES if name != "early_exit"]
    return {
        "schema_version": "2.0",
        "identity": {
            "checkpoint": checkpoint,
            "weights_sha256": "ab" * 32,
            "recipe": "layerskip",
            "step": 1200,
            "config": {},
            "command": f"python -m ssd_infer checkpoint={checkpoint}",
            "git": {"sha": "0123abc", "dirty": False},
        },
        "environment": {
            "python": "3.11.9",
            "torch": "2.13.0",
            "transformers": "5.24.0",
            "ssd": "0.1.0",
            "device": "cpu",
            "cpu": "Some CPU @ 2.0 GHz",
            "threads": 2,
            "dtype": "float32",
            "seed": 0,
        },
        "protocol": {
            "tasks": [
                {
                    "name": "stdlib_code",
                    "samples": 8,
                    "prompt_tokens": 64,
                    "new_tokens": 128,
                    "extra": {"prompts_sha256": "cd" * 32},
                },
                {"name": "stdlib_prose", "samples": 8, "prompt_tokens": 64, "new_tokens": 128},
            ],
            "batch_size": 1,
            "sampling": {"temperatures": [0.0, 1.0], "top_k": 0, "top_p": 1.0},
            "repeats": 3,
            "timer": "time.perf_counter",
        },
        "baselines": [
            {
                "name": "ssd_plain",
                "tokens_per_second": 91.0,
                "seconds": 22.5,
                "tokens": 2048,
                "extra": {"latency": {"ttft_ms": 11.0, "itl_ms_p50": 10.0, "itl_ms_p95": 12.0}},
            },
            {"name": "transformers_generate", "tokens_per_second": 74.0, "seconds": 27.7, "tokens": 2048},
            {
                "name": "ssd_plain:again",
                "tokens_per_second": 91.5,
                "seconds": 22.4,
                "tokens": 2048,
                "extra": {
                    "again": {"of": "ssd_plain", "speedup": 1.005, "ci95": [0.988, 1.021], "noise": 0.021}
                },
            },
        ],
        "peers": [
            {
                "name": "prompt_lookup",
                "tokens_per_second": 120.0,
                "speedup": 1.4,
                "verdict": "pass",
                "extra": {"ci95": [1.2, 1.6]},
            },
            {
                "name": "assistant_early_exit",
                "tokens_per_second": None,
                "speedup": None,
                "verdict": "not_run",
                "extra": {"reason": "IndexError: list index out of range"},
            },
        ],
        "strategies": rows,
        "quality": {
            "source": "validation",
            "tokens": 4096,
            "exits": [
                {
                    "layer": n,
                    "loss": 3.5 + 1.6 / n,
                    "perplexity": 33.0 + 90 / n,
                    "agreement": min(1.0, 0.42 + 0.05 * n),
                }
                for n in range(1, 13)
            ],
        },
        "verdict": {
            "best_strategy": "early_exit:ngram",
            "best_params": {"exit_layer": 2, "gamma": 3},
            "speedup": 1.94,
            "warnings": ["transformers' prompt lookup is faster on stdlib_code"],
        },
    }
