"""A report by category, from the checkpoint's own tokenizer and chat template to its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.corpus.categories import CATEGORIES, read_category
from ssd_infer.errors import DataError
from ssd_infer.evaluation import bench, evaluate
from ssd_infer.report.schema import validate
from ssd_infer.strategies.early_exit.exit_calibration import ExitProfile
from tests.conftest import build_model
from tests.registered import know_only

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module", autouse=True)
def one_strategy() -> Iterator[None]:
    """Measure one strategy, told that it gains, so that it drafts whatever the clock says of so small a model."""
    with pytest.MonkeyPatch.context() as patch:
        know_only(patch, ("early_exit",))
        predict = ExitProfile.best
        patch.setattr(ExitProfile, "best", lambda *given: replace(predict(*given), speedup=1.5))
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a small model, a tokenizer of words and signs, and a chat template."""
    folder = tmp_path_factory.mktemp("categories")
    build_model(layers=3, eos_token_id=2, vocab_size=600, max_position_embeddings=1024).save_pretrained(
        folder
    )
    words = dict.fromkeys(["<unk>", "<bos>", "<eos>", "<user>", "<assistant>"])
    for name in CATEGORIES:
        for messages in read_category(name).measured:
            words |= dict.fromkeys(word for message in messages for word in message.split())
    known = {word: place for place, word in enumerate(list(words)[:600])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", additional_special_tokens=["<user>", "<assistant>"]
    )
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
    return folder


def settings(folder: Path, **changes: Any) -> EvalSettings:
    base: dict[str, Any] = {
        "checkpoint": str(folder),
        "tasks": ["categories"],
        "samples": 1,
        "max_new_tokens": 6,
        "temperatures": [0.0],
        "draft": "early_exit",
        "threads": 1,
        "device": "cpu",
        "grid": False,
        "peers": False,
    }
    return EvalSettings(**(base | changes))


def test_every_category_has_its_figures(checkpoint: Path, tmp_path: Path) -> None:
    report = evaluate(settings(checkpoint, out=str(tmp_path)))
    validate(report)
    names = [f"categories/{name}" for name in CATEGORIES]
    row = next(row for row in report["strategies"] if row["name"] == "early_exit")
    assert row["lossless"]["verdict"] == "pass"
    assert [task["name"] for task in row["per_task"]] == names
    for task in row["per_task"]:
        assert task["speedup"] > 0
        assert 0 <= task["alpha"] <= 1 <= task["tau"]
        assert 0 < task["extra"]["repetition"]["distinct_3"] <= 1
    assert [task["name"] for task in report["protocol"]["tasks"]] == names
    assert {task["extra"]["written_by"] for task in report["protocol"]["tasks"]} == {"chat template"}
    # The longest is far beyond prompt_tokens, whose default is 64, and whole all the same.
    assert max(task["prompt_tokens"] for task in report["protocol"]["tasks"]) > 200
    assert not any("chosen on measured" in line for line in report["verdict"]["warnings"])
    page = (tmp_path / "report.html").read_text("utf-8")
    assert all(word in page for word in ("Speedup by task", "question answering", "multilingual"))


def test_prompts_begin_and_end_as_the_template_says(checkpoint: Path) -> None:
    opened = bench.open_context(settings(checkpoint), lambda line: None)
    user, assistant = 3, 4
    for task in opened.tasks:
        for prompt in (*task.prompts, *task.held_back):
            assert prompt[0] == user
            assert prompt[-1] == assistant
    messages = [{"role": "user", "content": read_category("coding").measured[0][0]}]
    theirs = opened.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
    assert opened.tasks[0].prompts[0] == list(theirs["input_ids"])
    chat = opened.tasks[-1].prompts[0]
    assert (chat.count(user), chat.count(assistant)) == (2, 2)
    measured = [prompt for task in opened.tasks for prompt in task.prompts]
    assert len(opened.calibration) == bench.CALIBRATION_PROMPTS
    assert not any(prompt in measured for prompt in opened.calibration)


def test_a_malformed_file_is_refused_before_the_weights_load(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(settings: EvalSettings) -> None:
        raise AssertionError("the weights were loaded")

    monkeypatch.setattr(bench, "_load", load)
    path = tmp_path / "question.jsonl"
    path.write_text('{"category": "qa", "turns": ["a"]}\n{"category": "qa"}\n')
    for name in (f"spec_bench:{path}", f"speed_bench:{path}", f"file:{path}"):
        with pytest.raises(DataError, match=r"question\.jsonl:[12]"):
            evaluate(settings(checkpoint, tasks=[name], out=str(tmp_path / "report")))
