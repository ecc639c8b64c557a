"""Datasets of the Hugging Face hub, or saved to disk by `datasets`, read through that library."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ssd_infer.errors import DataError
from ssd_train.config.schema import HubTextConfig
from ssd_train.data.sources import Passage, TextSource, held_out


def hub_source(cfg: HubTextConfig) -> TextSource:
    """Return the source of a hub dataset; raise `DataError` when dataset, split or text field does not exist."""
    dataset = _load(cfg)
    _check_field(dataset, cfg)
    train, validation = held_out(lambda: _passages(dataset, cfg), cfg.validation_share)
    parts = [cfg.name, str(cfg.subset), cfg.split, cfg.text_field, str(cfg.max_documents)]
    parts += [
        str(cfg.validation_share),
        str(getattr(dataset, "_fingerprint", "")) if not cfg.streaming else "",
    ]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return TextSource("data.name", cfg.name, f"hub-{digest}", train, validation)


def _load(cfg: HubTextConfig) -> Any:
    """Return the split as a `datasets` object; every failure becomes a sentence with a remedy."""
    import datasets

    try:
        if (Path(cfg.name) / "state.json").exists() or (Path(cfg.name) / "dataset_dict.json").exists():
            return _split(datasets.load_from_disk(cfg.name), cfg)
        return datasets.load_dataset(cfg.name, cfg.subset, split=cfg.split, streaming=cfg.streaming)
    except DataError:
        raise
    except (
        Exception
    ) as error:  # datasets raises a dozen types from five libraries; none is skipped, all are said
        reason = " ".join(str(error).split())[:300]
        raise DataError(
            f"data.name: the dataset cannot be loaded (got {cfg.name!r}, subset {cfg.subset!r}, split "
            f"{cfg.split!r}): {type(error).__name__}: {reason}; check the name, the network and HF_TOKEN, or "
            "use data=local data.path=FILE"
        ) from error


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
