"""What a draft module beside an unchanged model is, as data: written to JSON, and checked field by field when read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ssd_infer.errors import Problem

VERSION = 1
WEIGHTS, FACTS = "ssd_draft.safetensors", "ssd_draft.json"
"""Files of a draft module: its weights, and its specification."""
FORMS = ("exit", "mtp", "heads")
"""After a shallow layer of the target (Kangaroo, arXiv 2404.18911), on its last state and the next token's embedding
(multi-token prediction, 2404.19737 and 2412.19437), or on its last state alone (Medusa, 2401.10774)."""
MODULES = ("rank", "attention", "attention_mlp", "layer")
"""A product of two thin matrices, attention, attention and a small MLP, or a whole decoder layer."""
_MOST = 1 << 24
_LONGEST = 4096
"""Characters of a text; longer ones are no name, path or digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseIdentity:
    """Which model a module was trained beside."""

    name: str = ""
    """What the model was loaded by: a path, or a name on the hub."""
    relative: str = ""
    """The path from the folder of the module to that of the model; "" for a name on the hub."""
    files: str = ""
    """Digest of the files of weights; "" where it was loaded from none."""
    values: str = ""
    """Digest of names, shapes, types and values of the weights, of a model that has no files."""
    tokenizer: str = ""
    """Digest of the tokenizer's files; "" where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSpec:
    """Form and size of a draft module, and the model it belongs to."""

    form: str
    module: str
    exit_layer: int = 0
    """Layers of the target that run before an exit's module; 0 for other forms."""
    rank: int = 0
    """Width of the thin matrices of module `rank`; 0 for other modules."""
    mlp_width: int = 0
    """Width of the MLP of module `attention_mlp`; 0 for other modules."""
    rollout: int = 0
    """Steps on its own output that mtp was trained for; 0 for other forms."""
    heads: int = 0
    """Tokens ahead that form heads predicts, each by a block of its own; 0 for other forms."""
    rows: int = 0
    """Rows of the target's head that it looks at; 0 for all of them."""
    own_rows: bool = False
    """Whether it has trained copies of those rows in place of the target's own."""
    base: BaseIdentity = field(default_factory=BaseIdentity)

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON-ready values."""
        return {"version": VERSION, **asdict(self)}

    def problems(self) -> list[Problem]:
        """Return the violated rules, keyed `draft.<field>`."""
        found = [
            *_one_of("form", self.form, FORMS),
            *_one_of("module", self.module, MODULES),
            *_needed("exit_layer", self.exit_layer, "form exit", wanted=self.form == "exit"),
            *_needed("rank", self.rank, "module rank", wanted=self.module == "rank"),
            *_needed(
                "mlp_width", self.mlp_width, "module attention_mlp", wanted=self.module == "attention_mlp"
            ),
            *_needed("heads", self.heads, "form heads", wanted=self.form == "heads"),
            *_needed("rollout", self.rollout, "form mtp", wanted=self.form == "mtp"),
        ]
        if self.form == "heads" and self.module in MODULES[1:]:
            rule = "must be rank for form heads, which attends to nothing"
            found.append(Problem("draft.module", rule, self.module, "try rank"))
        if not 0 <= self.rows < _MOST:
            found.append(Problem("draft.rows", f"must lie in [0, {_MOST})", self.rows, "0 means all"))
        return found


def has_draft(folder: Path) -> bool:
    """Tell whether a draft module lies in `folder`, whole or damaged."""
    return (folder / FACTS).is_file() or (folder / WEIGHTS).is_file()


def is_draft_alone(folder: Path) -> bool:
    """Tell whether `folder` holds a draft module, and not the model it belongs to."""
    return has_draft(folder) and not (folder / "config.json").is_file()


def spec_from(stored: Any) -> tuple[DraftSpec | None, list[Problem]]:
    """Read what `DraftSpec.to_dict` returned from `stored`, any JSON value; return it, or every problem there is."""
    if not isinstance(stored, Mapping):
        return None, [Problem("draft", "must be an object", type(stored).__name__, "train it again")]
    if stored.get("version") != VERSION:
        rule = f"must be {VERSION}, the version this release reads"
        return None, [
            Problem("draft.version", rule, shown(stored.get("version")), "use the release it was made by")
        ]
    given = {key: value for key, value in stored.items() if key not in ("version", "file")}
    problems = _fields_of(DraftSpec, given, "draft")
    base = given.get("base")
    if isinstance(base, Mapping):
        problems += _fields_of(BaseIdentity, base, "draft.base")
    else:
        problems.append(Problem("draft.base", "must be an object", shown(base), "train it again"))
    if problems or not isinstance(base, Mapping):
        return None, problems
    spec = DraftSpec(**{**given, "base": BaseIdentity(**base)})
    problems = spec.problems()
    return (None, problems) if problems else (spec, [])


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str": (
        "a text",
        lambda value: isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST,
    ),
    "int": ("a whole number", lambda value: type(value) is int),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
}


def _fields_of(kind: type[Any], given: Mapping[str, Any], key: str) -> list[Problem]:
    """Return what is missing, unknown or of another type among `given` for the dataclass `kind`."""
    known = {one.name: str(one.type) for one in fields(kind)}
    found = [
        Problem(f"{key}.{shown(name)}", "is no field of a draft module", shown(value), "leave it out")
        for name, value in given.items()
        if name not in known
    ]
    for name, hint in known.items():
        if hint not in _KINDS:
            continue
        said, fits = _KINDS[hint]
        if name not in given or not fits(given[name]):
            found.append(
                Problem(f"{key}.{name}", f"must be {said}", shown(given.get(name)), "train it again")
            )
    return found


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> list[Problem]:
    if value in choices:
        return []
    return [
        Problem(f"draft.{name}", f"must be one of {', '.join(choices)}", shown(value), f"try {choices[0]}")
    ]


def _needed(name: str, value: int, owner: str, *, wanted: bool) -> list[Problem]:
    """Return a problem unless `value` is above 0 where `owner` is `wanted`, and 0 elsewhere."""
    if (0 < value < _MOST) if wanted else value == 0:
        return []
    rule = f"must lie in [1, {_MOST})" if wanted else f"belongs to {owner} only"
    return [Problem(f"draft.{name}", rule, value, "try 1" if wanted else "leave it at 0")]


def shown(value: object) -> str:
    """Show a value of unknown size in a few characters that can be printed."""
    text = str(value) if str(value).isprintable() else ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
