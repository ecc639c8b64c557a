"""Hub datasets through `datasets`: saved to disk, streamed, and everything that can be wrong with one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from ssd_infer.errors import DataError
from ssd_train.config.schema import HubTextConfig
from ssd_train.data.hub import hub_source

ROWS = [f"row number {i} with some text" for i in range(60)]


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    """Return a directory that `DatasetDict.save_to_disk` wrote."""
    one = datasets.Dataset.from_dict({"text": ROWS, "id": list(range(60))})
    datasets.DatasetDict({"train": one, "small": one.select(range(5))}).save_to_disk(str(tmp_path / "d"))
    return tmp_path / "d"


def all_texts(cfg: HubTextConfig) -> list[str]:
    source = hub_source(cfg)
    return [item.text for item in [*source.train(), *source.validation()]]


def test_a_saved_dataset_is_read_by_split(on_disk: Path) -> None:
    assert sorted(all_texts(HubTextConfig(name=str(on_disk)))) == sorted(ROWS)
    assert sorted(all_texts(HubTextConfig(name=str(on_disk), split="small"))) == ROWS[:5]


def test_the_number_of_documents_can_be_limited(on_disk: Path) -> None:
    assert sorted(all_texts(HubTextConfig(name=str(on_disk), max_documents=7))) == sorted(ROWS[:7])


@pytest.mark.parametrize("streaming", [False, True])
def test_a_local_folder_goes_through_load_dataset(streaming: bool, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    datasets.Dataset.from_dict({"text": ROWS}).to_json(str(folder / "train.jsonl"))
    cfg = HubTextConfig(name=str(folder), streaming=streaming)
    assert sorted(all_texts(cfg)) == sorted(ROWS)
    assert hub_source(cfg).fingerprint == hub_source(cfg).fingerprint


def test_load_dataset_gets_what_the_configuration_says(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    def load(name: str, subset: str | None, *, split: str, streaming: bool) -> datasets.Dataset:
        calls.append((name, subset, split, streaming))
        return datasets.Dataset.from_dict({"body": ROWS})

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: SimpleNamespace(hash="c0ffee"))
    cfg = HubTextConfig(name="org/name", subset="en", split="train[:1%]", text_field="body")
    all_texts(cfg)
    assert calls == [("org/name", "en", "train[:1%]", False)]
    with pytest.raises(DataError, match="unexpected keyword argument 'revision'"):
        all_texts(replace(cfg, revision="c0ffee"))


def test_an_unreachable_dataset_is_one_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no route\nto host")

    for name in ("load_dataset_builder", "load_dataset"):
        with monkeypatch.context() as patch:
            patch.setattr(datasets, "load_dataset_builder", lambda *_, **__: SimpleNamespace(hash="c0ffee"))
            patch.setattr(datasets, name, load)
            with pytest.raises(DataError, match=r"data\.name: .*'org/name'.*no route to host.*HF_TOKEN"):
                hub_source(HubTextConfig(name="org/name"))


def test_a_missing_split_lists_those_there_are(on_disk: Path) -> None:
    with pytest.raises(DataError, match=r"data\.split: .*'dev', found train, small"):
        hub_source(HubTextConfig(name=str(on_disk), split="dev"))


def test_a_missing_column_lists_those_there_are(on_disk: Path) -> None:
    with pytest.raises(DataError, match=r"data\.text_field: .*'body', found text, id.*text_field=text"):
        hub_source(HubTextConfig(name=str(on_disk), text_field="body"))


def test_a_column_of_numbers_is_refused(on_disk: Path) -> None:
    with pytest.raises(DataError, match="got int in row 0"):
        list(hub_source(HubTextConfig(name=str(on_disk), text_field="id")).train())
