"""Long prompts: exact lengths, the same each time, and really what their names say."""

from __future__ import annotations

import pytest

from ssd_infer.corpus import build_tasks, calibration_prompts
from ssd_infer.corpus.long_context import LONG_TASKS
from ssd_infer.errors import DataError
from tests.corpus.tokenizers import Letters, text_of


def secret(text: str) -> str | None:
    """Return the number a needle prompt asks for; None when the text is no needle prompt."""
    asked = text.rpartition("The secret number of ")[2].partition(" is")[0]
    hidden = text.partition(f"The secret number of {asked} is ")[2].partition(".")[0]
    return hidden if hidden.isdigit() else None


@pytest.mark.parametrize("name", LONG_TASKS)
def test_prompts_have_the_length_asked_for_and_repeat(name: str) -> None:
    task = build_tasks([name], Letters(), 3, 5000, seed=0)[0]
    assert [len(prompt) for prompt in task.prompts] == [5000] * 3
    assert len({tuple(prompt) for prompt in task.prompts}) == 3
    assert task.sha256 == build_tasks([name], Letters(), 3, 5000, seed=0)[0].sha256
    assert task.sha256 != build_tasks([name], Letters(), 3, 5000, seed=1)[0].sha256
    calibration = calibration_prompts([task], Letters(), 2, 5000)
    assert [len(prompt) for prompt in calibration] == [5000] * 2
    assert not any(prompt in task.prompts for prompt in calibration)


def test_a_needle_is_somewhere_and_asked_for_last() -> None:
    depths = []
    for prompt in build_tasks(["needle"], Letters(), 4, 3000, seed=0)[0].prompts:
        text = text_of(prompt)
        number = secret(text)
        assert number is not None
        assert text.count(number) == 1
        assert text.endswith(" is")
        depths.append(text.index(number))
    assert max(depths) - min(depths) > 500


def test_a_copy_begins_with_what_it_should_go_on_to_repeat() -> None:
    text = text_of(build_tasks(["copy"], Letters(), 1, 2000, seed=0)[0].prompts[0])
    before, _, begun = text.partition("word by word:\n\n")
    assert len(begun) >= 4
    assert before.count(begun) >= 1
    assert secret(text) is None


def test_prompts_too_short_for_the_task_say_so() -> None:
    with pytest.raises(DataError, match="raise prompt_tokens"):
        build_tasks(["needle"], Letters(), 1, 20, seed=0)
