"""The model that a draft module was trained beside: who it is, where it is, and that it is no other.

It is found by its path, by its path seen from the module's folder, or by its name; another model or tokenizer is
refused, before weights load wherever files can tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from torch import nn

from ssd_infer.checkpoint.always_ids import tokenizer_digest
from ssd_infer.checkpoint.content import files_digest, is_added, loaded_from, weights_digest
from ssd_infer.checkpoint.draft_files import refused
from ssd_infer.checkpoint.draft_spec import FACTS, WEIGHTS, BaseIdentity, DraftSpec, shown
from ssd_infer.checkpoint.hub import cached_folder
from ssd_infer.errors import CheckpointError, DataError, Problem

_LONGEST_NAME = 96
"""Characters of a name on the hub, at most."""


def base_identity(model: nn.Module) -> BaseIdentity:
    """Return who `model` is: by the files it was loaded from, whatever its precision is now, or by its values."""
    config: Any = cast(Any, model).config
    name = str(getattr(config, "_name_or_path", "") or "")
    where = _folder_of(name)
    local = loaded_from(config)
    files = _files_digest(where)
    return BaseIdentity(
        name=name if local is None else str(local.resolve()),
        files=files,
        values="" if files else weights_digest(model),
        tokenizer=tokenizer_digest(where),
    )


def find_base(folder: Path, spec: DraftSpec) -> str:
    """Return where the model of the draft module in `folder` is: a directory, or a name on the hub.

    Raises CheckpointError where no place has it, or where files say that what is there is another model.
    """
    refusal: CheckpointError | None = None
    for place in filter(_holds_model, _places(folder, spec.base)):
        try:
            check_files(folder, spec, place)
        except CheckpointError as error:
            refusal = refusal or error
            continue
        return str(place.resolve())
    if _is_hub_name(spec.base.name):
        return spec.base.name
    name = shown(spec.base.name)
    raise refusal or CheckpointError(
        f"checkpoint: {str(folder)!r} holds a draft module and not its model, {name!r}, which is not "
        f"there any more; put the model into {str(folder.parent / Path(name).name)!r}, or the files "
        f"{FACTS} and {WEIGHTS} into the folder of the model"
    )


def _places(folder: Path, base: BaseIdentity) -> Iterator[Path]:
    """Yield where a model may be: at its path, at the same place seen from the module, or under its name near by."""
    if base.name:
        yield Path(base.name)
    if base.relative:
        yield folder / base.relative
    if name := Path(base.name).name:
        yield from (folder / name, folder.resolve().parent / name, Path.cwd() / name)


def _holds_model(place: Path) -> bool:
    try:
        return (place / "config.json").is_file()
    except (OSError, ValueError):  # what no file system takes for a path
        return False


def _is_hub_name(name: str) -> bool:
    short = 0 < len(name) <= _LONGEST_NAME
    return short and not name.startswith(("/", ".", "~")) and name.count("/") <= 1


def check_files(folder: Path, spec: DraftSpec, model_folder: Path) -> None:
    """Raise CheckpointError where the files in `model_folder` are not those of the model of the module in `folder`."""
    base = spec.base
    here = {"draft.base.tokenizer": (base.tokenizer, tokenizer_digest(model_folder))}
    if base.files:
        here["draft.base.files"] = (base.files, _files_digest(model_folder))
    _compare(folder, here, str(model_folder))


def check_base(folder: Path, spec: DraftSpec, model: nn.Module) -> None:
    """Raise CheckpointError unless `model` is the one that the draft module in `folder` was trained beside."""
    name = str(getattr(cast(Any, model).config, "_name_or_path", "") or "")
    where, base = _folder_of(name), spec.base
    if where is not None:
        check_files(folder, spec, where)
    elif base.files and name != base.name:
        rule = f"must be the name of this model ({name or 'it has none'}), whose files are not at hand"
        raise refused(folder, [Problem("draft.base.name", rule, base.name, "load the model from its folder")])
    if not base.files:
        _compare(folder, {"draft.base.values": (base.values, weights_digest(model))}, name or "this model")


def _compare(folder: Path, here: dict[str, tuple[str, str]], where: str) -> None:
    what = {"tokenizer": "tokenizer", "files": "weights", "values": "weights"}
    problems = [
        Problem(
            key,
            f"must be that of the {what[key.rpartition('.')[2]]} of {where}",
            own,
            "use the model it was trained beside",
        )
        for key, (own, found) in here.items()
        if own != found
    ]
    if problems:
        raise refused(folder, problems)


def _folder_of(name: str) -> Path | None:
    """Return the folder behind a path, or behind a name on the hub that was loaded before; None for neither."""
    if not name:
        return None
    return Path(name) if Path(name).is_dir() else cached_folder(name)


def _files_digest(folder: Path | None) -> str:
    """Return a digest of the files of weights in `folder`, whatever they are called; "" where there are none."""
    if folder is None:
        return ""
    for pattern in ("*.safetensors", "*.bin"):
        files = [path for path in sorted(folder.glob(pattern)) if not is_added(path.name)]
        if files:
            try:
                return files_digest(files, "checkpoint")
            except DataError as error:
                raise CheckpointError(str(error)) from error
    return ""
