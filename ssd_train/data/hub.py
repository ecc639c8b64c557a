"""Datasets of the Hugging Face hub, or saved to disk by `datasets`, read through that library."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ssd_infer.checkpoint.content import files_digest, folder_digest, text_digest
from ssd_infer.errors import DataError
from ssd_train.config.schema import HubTextConfig
from ssd_train.data.sources import Passage, TextSource, held_out

COMMIT = "commit "
"""What begins the identity of something on the hub."""


def hub_source(cfg: HubTextConfig) -> TextSource:
    """Return the source of a hub dataset; raise `DataError` when dataset, split or text field does not exist."""
    content = hub_content(cfg.name, cfg.subset, cfg.revision)
    dataset = _load(cfg, content)
    _check_field(dataset, cfg)
    train, validation = held_out(lambda: _passages(dataset, cfg), cfg.validation_share)
    parts = [content, cfg.subset, cfg.split, cfg.text_field, cfg.max_documents, cfg.validation_share]
    fingerprint = f"hub-{text_digest(parts)[:16]}"
    return TextSource("data.name", cfg.name, fingerprint, train, validation, {"data.name": content})


def hub_content(name: str, subset: str | None, revision: str | None) -> str:
    """Return what a dataset holds: a hash of all files where it is on disk, else its commit on the hub, which is asked.

    Raises `DataError` when there is no such dataset; nothing is downloaded but its description.
    """
    path = Path(name)
    if path.is_dir():
        return folder_digest(path, "data.name")
    if path.exists():
        return files_digest([path], "data.name")
    import datasets

    try:
        builder = datasets.load_dataset_builder(name, subset, revision=revision)
    except Exception as error:  # as in `_load`
        raise unloadable(name, subset, None, error) from error
    return f"{COMMIT}{builder.hash}"


def load_options(name: str, revision: str | None, content: str) -> dict[str, str]:
    """Return what `datasets.load_dataset` needs to give exactly `content`.

    A dataset on the hub comes from its commit. One on disk gets a cache of its own for each content: by itself
    `datasets` knows files by their names and times, and gives back what they held before.
    """
    import datasets

    if Path(name).exists():
        return {"cache_dir": str(Path(datasets.config.HF_DATASETS_CACHE) / "by_content" / content)}
    return {"revision": revision} if revision is not None else {}


def unloadable(name: str, subset: str | None, split: str | None, error: Exception) -> DataError:
    """Return the sentence for a dataset that `datasets` cannot load."""
    reason = " ".join(str(error).split())[:300]
    return DataError(
        f"data.name: the dataset cannot be loaded (got {name!r}, subset {subset!r}, split {split!r}): "
        f"{type(error).__name__}: {reason}; check the name, the network and HF_TOKEN, or "
        "use data=local data.path=FILE"
    )


def is_saved(name: str) -> bool:
    """Tell whether `name` is a directory that `save_to_disk` wrote."""
    return (Path(name) / "state.json").exists() or (Path(name) / "dataset_dict.json").exists()


def _load(cfg: HubTextConfig, content: str) -> Any:
    """Return the split as a `datasets` object; every failure becomes a sentence with a remedy."""
    import datasets

    try:
        if is_saved(cfg.name):
            return _split(datasets.load_from_disk(cfg.name), cfg)
        return datasets.load_dataset(
            cfg.name,
            cfg.subset,
            split=cfg.split,
            streaming=cfg.streaming,
            **load_options(cfg.name, cfg.revision, content),
        )
    except DataError:
        raise
    except (
        Exception
    ) as error:  # datasets raises a dozen types from five libraries; none is skipped, all are said
        raise unloadable(cfg.name, cfg.subset, cfg.split, error) from error


def _split(dataset: Any, cfg: HubTextConfig) -> Any:
    """Return split `cfg.split` of a dataset saved to disk; one saved without splits is its own training split."""
    if not hasattr(dataset, "keys"):
        return dataset
    if cfg.split not in dataset:
        names = ", ".join(dataset)
        raise DataError(f"data.split: no such split (got {cfg.split!r}, found {names}); choose one of these")
    return dataset[cfg.split]


def _check_field(dataset: Any, cfg: HubTextConfig) -> None:
    names = dataset.column_names or list(next(iter(dataset), {}))
    if cfg.text_field not in names:
        found = ", ".join(names) or "none"
        raise DataError(
            f"data.text_field: no such column in {cfg.name} (got {cfg.text_field!r}, found {found}); "
            f"try data.text_field={names[0] if names else 'text'}"
        )


def _passages(dataset: Any, cfg: HubTextConfig) -> Iterator[Passage]:
    """Yield every row's text in order, at most `max_documents` of them."""
    rows = islice(dataset, cfg.max_documents) if cfg.max_documents else dataset
    for number, row in enumerate(rows):
        text = row[cfg.text_field]
        if not isinstance(text, str):
            raise DataError(
                f"data.text_field: column {cfg.text_field!r} must hold text (got {type(text).__name__} in row "
                f"{number} of {cfg.name}); choose another column"
            )
        yield Passage(text)
