"""Interoperability with transformers' generate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ssd_infer
from ssd_infer.errors import ConfigError
from tests.conftest import ModelFactory
from tests.engine.test_exactness import prompts, reference

PARAMS = {"exit_layer": 2, "gamma": 4}


def test_custom_generate_callable_equals_greedy(tiny_model: ModelFactory) -> None:
    model, row = tiny_model(), prompts(1, 97)[0][None]
    expected = model.generate(row, do_sample=False, max_new_tokens=20)
    found = model.generate(
        row,
        do_sample=False,
        max_new_tokens=20,
        custom_generate=ssd_infer.hf_generate,
        draft="early_exit",
        draft_params=PARAMS,
    )
    assert torch.equal(found, expected)


def test_custom_generate_pads_rows_that_end_early(tiny_model: ModelFactory) -> None:
    model = tiny_model(vocab_size=13)
    ids = torch.tensor([[0, 0, 3, 4], [5, 6, 7, 8]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    eos = reference(model, [torch.tensor([3, 4])], 20)[0][6]
    options = {
        "attention_mask": mask,
        "do_sample": False,
        "max_new_tokens": 20,
        "eos_token_id": eos,
        "pad_token_id": 0,
    }
    expected = model.generate(ids, **options)
    found = model.generate(ids, **options, custom_generate=ssd_infer.hf_generate, draft_params=PARAMS)
    assert torch.equal(found, expected)


def test_sampling_options_reach_the_engine(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    ids = torch.tensor([[3, 4, 5]])
    options = {"do_sample": True, "temperature": 0.7, "top_k": 1, "max_new_tokens": 12}
    found = model.generate(ids, **options, custom_generate=ssd_infer.hf_generate, draft_params=PARAMS, seed=1)
    assert torch.equal(
        found, model.generate(ids, do_sample=False, max_new_tokens=12)
    )  # top-1 sampling is greedy


def test_a_streamer_gets_prompt_and_blocks(tiny_model: ModelFactory) -> None:
    seen: list[int] = []

    class Collect:
        def put(self, value: torch.Tensor) -> None:
            seen.extend(value.flatten().tolist())

        def end(self) -> None:
            seen.append(-1)

    found = tiny_model().generate(
        torch.tensor([[3, 4, 5]]),
        do_sample=False,
        max_new_tokens=9,
        custom_generate=ssd_infer.hf_generate,
        draft_params=PARAMS,
        token_streamer=Collect(),
    )
    assert seen == [*found[0].tolist(), -1]


@pytest.mark.parametrize("option", [{"guidance_scale": 1.3}, {"max_time": 4.0, "eos_token_id": 5}])
def test_options_that_drafts_would_not_see_are_refused(
    tiny_model: ModelFactory, option: dict[str, float]
) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(option))}: is a rule"):
        tiny_model().generate(
            torch.tensor([[3, 4]]),
            max_new_tokens=8,
            do_sample=False,
            **option,
            custom_generate=ssd_infer.hf_generate,
            draft_params=PARAMS,
        )


def test_checkpoint_speculates_without_the_toolkit(tiny_model: ModelFactory, tmp_path: Path) -> None:
    """The written file works in a process that cannot import ssd_infer."""
    model = tiny_model()
    model.save_pretrained(tmp_path / "ckpt")
    ssd_infer.write_custom_generate(tmp_path / "ckpt", PARAMS)
    script = (
        "import sys, torch\n"
        "sys.modules['ssd_infer'] = None\n"
        "from transformers import AutoModelForCausalLM\n"
        f"where = {str(tmp_path / 'ckpt')!r}\n"
        "model = AutoModelForCausalLM.from_pretrained(where).eval()\n"
        "ids = torch.tensor([[3, 4, 5]])\n"
        "calls = []\n"
        "model.model.layers[0].register_forward_hook(lambda *_: calls.append(0))\n"
        "a = model.generate(ids, do_sample=False, max_new_tokens=16)\n"
        "plain = len(calls)\n"
        "b = model.generate(ids, do_sample=False, max_new_tokens=16, custom_generate=where, trust_remote_code=True)\n"
        "assert torch.equal(a, b), (a, b)\n"
        "assert len(calls) - plain > 1\n"
        "print('identical')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"HF_HOME": str(tmp_path / "hf"), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.stdout.strip().endswith("identical"), done.stderr[-2000:]
