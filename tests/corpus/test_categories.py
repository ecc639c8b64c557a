"""The embedded prompts by category: as many as promised, whole, and never measured where parameters are chosen."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from ssd_infer.corpus import build_tasks, calibration_prompts
from ssd_infer.corpus.categories import CATEGORIES, PLAIN, read_category
from ssd_infer.corpus.chat import encode_messages, plain_text
from ssd_infer.errors import DataError
from tests.corpus.tokenizers import Letters, Templated, text_of


def words(messages: list[str]) -> int:
    return sum(len(message.split()) for message in messages)


def test_there_are_eleven_times_eight_prompts_and_one_more_of_each_to_choose_on() -> None:
    found = [read_category(name) for name in CATEGORIES]
    assert [(len(one.measured), len(one.calibration)) for one in found] == [(8, 1)] * 11
    prompts = [tuple(messages) for one in found for messages in (*one.measured, *one.calibration)]
    assert len(set(prompts)) == 99
    for messages in prompts:
        assert len(messages) % 2 == 1
        assert all(message == message.strip() and len(message) > 2 for message in messages)
        assert not any(mark in message for message in messages for mark in ("<|", "</s>", " \\", "  \n"))


def test_every_file_is_a_category() -> None:
    folder = Path(read_category.__code__.co_filename).parent / "category_prompts"
    assert sorted(path.stem for path in folder.iterdir()) == sorted(CATEGORIES)


def test_prompts_are_short_and_long_and_chats_have_several_turns() -> None:
    counts = [words(messages) for name in CATEGORIES for messages in read_category(name).measured]
    assert min(counts) < 20
    assert max(counts) > 200
    assert all(len(messages) >= 3 for messages in read_category("chat").measured)
    assert max(map(len, read_category("chat").measured)) >= 7


def test_a_task_is_a_category_with_whole_prompts_whatever_prompt_tokens_says() -> None:
    tasks = build_tasks(["categories"], Templated(), 3, 5, seed=0)
    assert [task.name for task in tasks] == [f"categories/{name}" for name in CATEGORIES]
    assert [(len(task.prompts), len(task.held_back)) for task in tasks] == [(3, 1)] * 11
    assert {task.written_by for task in tasks} == {"chat template"}
    assert {task.notes for task in tasks} == {()}
    first = read_category("coding").measured[0][0]
    assert text_of(tasks[0].prompts[0]) == f"[user]{first}[end][assistant]"
    assert build_tasks(["categories"], Templated(), 20, 5, seed=9)[0].prompts[:3] == tasks[0].prompts
    assert len(build_tasks(["categories"], Templated(), 20, 5, seed=0)[0].prompts) == 8
    lengths = tasks[0].facts()
    assert lengths["shortest_prompt"] == min(map(len, tasks[0].prompts)) > 5
    assert lengths["written_by"] == "chat template"


def test_a_chat_is_written_by_the_template_with_who_speaks() -> None:
    ids = encode_messages(Templated(), ["a", "b", "c"], "here")
    assert text_of(ids) == "[user]a[end][assistant]b[end][user]c[end][assistant]"


def test_without_a_template_prompts_are_plain_text_and_the_report_is_told() -> None:
    tasks = build_tasks(["categories"], Letters(), 8, 64, seed=0)
    assert {task.written_by for task in tasks} == {"plain text"}
    assert {task.notes for task in tasks} == {(PLAIN,)}
    assert text_of(tasks[0].prompts[0]) == read_category("coding").measured[0][0] + "\n\n"
    assert plain_text(["a", "b", "c"]) == "User: a\n\nAssistant: b\n\nUser: c\n\nAssistant:"


def test_parameters_are_chosen_on_other_prompts_of_distant_categories() -> None:
    tasks = build_tasks(["categories"], Letters(), 8, 64, seed=0)
    measured = [prompt for task in tasks for prompt in task.prompts]
    chosen_on = calibration_prompts(tasks, Letters(), 6, 64)
    assert len(chosen_on) == 6
    assert not any(prompt in measured for prompt in chosen_on)
    held_back = [task.held_back[0] for task in tasks]
    places = [held_back.index(prompt) for prompt in chosen_on]
    assert all(abs(here - there) >= 3 for here, there in pairwise(places[:4]))
    assert len(calibration_prompts(tasks, Letters(), 99, 64)) == 11


@pytest.mark.parametrize("error", [ValueError("roles must\nalternate"), KeyError("x"), ZeroDivisionError()])
def test_a_template_that_refuses_is_one_sentence(error: Exception) -> None:
    with pytest.raises(
        DataError, match=r"^tasks: the chat template .* refuses categories/coding \(.*\); correct"
    ):
        build_tasks(["categories"], Templated(error), 1, 64, seed=0)


def test_a_template_that_writes_nothing_and_no_tokenizer_are_refused() -> None:
    with pytest.raises(DataError, match="makes no text of here"):
        encode_messages(Templated(silent=True), ["a"], "here")
    with pytest.raises(
        DataError, match="tasks: categories/coding is text, but the checkpoint has no tokenizer"
    ):
        build_tasks(["categories"], None, 1, 64, seed=0)
