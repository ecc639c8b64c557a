"""Every setting of type text arrives as it was typed, on every command line and for every kind of every node."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from ssd_infer.cli.launch import typed_arguments
from ssd_infer.cli.transcription_settings import TranscribeSettings
from ssd_infer.config.as_typed import as_typed, quoted, text_keys
from ssd_infer.config.compose import group_names
from ssd_infer.config.evaluation import EvalSettings
from ssd_train.cli.load import load_config
from ssd_train.cli.register import register
from ssd_train.config.schema import Root

RECIPE = "+recipe=layerskip"
TYPED = (
    *(
        "1_1",
        "11",
        "1e3",
        "1000.0",
        "1.50",
        "1.5",
        "true",
        "True",
        "yes",
        "on",
        "null",
        "NULL",
        "None",
        "0x10",
        "0o7",
    ),
    *(
        "1:30",
        "007",
        "+5",
        "-1",
        "inf",
        "nan",
        ".5",
        "a=b",
        "a==b",
        "=",
        "a,b",
        "[a]",
        "{a:1}",
        "(x)",
        "f(1)",
        "~/x",
    ),
    *(
        "it's",
        "'",
        '"',
        'say "hi"',
        "a\\b",
        "a\\",
        "\\\\",
        "a'\\",
        " a",
        "a ",
        "a b",
        "#x",
        "!x",
        "*",
        "größe",
        "日本",
    ),
    *(
        "/data/x=1/y z.txt",
        "C:\\texts\\new",
        "choice(a,b)",
        "a@b",
        "a#b",
        "",
        "~",
        "?",
        "&x",
        "%",
        "a:b",
        "{",
        "]",
    ),
)
FEW = ("1_1", "1e3", "1.50", "true", "null", "0x10", "1:30", "a=b", "a,b", "~/x", "größe", "a\\")
"""What every key is tried with; `EVERYTHING` names a text, one that may be empty and a list that are tried with all."""
EVERYTHING = ("run_name", "data.cache_dir", "eval.tasks", "checkpoint", "watch", "tasks", "audio")
SCHEMAS = {"train": Root, "evaluate": EvalSettings, "transcribe": TranscribeSettings}


@pytest.fixture(autouse=True)
def schemas() -> None:
    register()
    for name in ("evaluate", "transcribe"):
        ConfigStore.instance().store(group="schema", name=name, node=SCHEMAS[name], package="_global_")


def leaves(schema: type, prefix: str = "") -> Iterator[tuple[str, type, str, Any]]:
    """Yield (dotted key, the dataclass it stands in, its name there, its type), of every kind of every node."""
    for kind in [schema, *schema.__subclasses__()]:
        hints = get_type_hints(kind)
        for entry in fields(kind):
            if is_dataclass(hints[entry.name]):
                yield from leaves(hints[entry.name], f"{prefix}{entry.name}.")
            else:
                yield f"{prefix}{entry.name}", kind, entry.name, hints[entry.name]
        for deeper in kind.__subclasses__() if kind is not schema else ():
            yield from leaves(deeper, prefix)


register()  # the settings of a recipe are known once its room is
TEXTS = [
    (command, *leaf)
    for command, schema in SCHEMAS.items()
    for leaf in leaves(schema)
    if str in (getattr(leaf[3], "__args__", None) or (leaf[3],)) and not str(leaf[3]).startswith("dict")
    if leaf[0] not in group_names()  # its value chooses a file
]
TEXTS = list({(text[0], text[1], text[2].__name__): text for text in TEXTS}.values())
"""Each once: a dataclass with slots leaves a twin of itself behind."""


def arrives(command: str, argument: str, holder: type, name: str) -> Any:
    """Return what `holder.name` is after `argument`, of which Hydra makes a value by its own grammar."""
    (fixed,) = typed_arguments(command, [argument])
    override = OverridesParser.create().parse_override(fixed)
    assert not override.is_sweep_override(), fixed
    node = OmegaConf.structured(holder)
    OmegaConf.update(node, name, override.value())
    return OmegaConf.to_container(node, resolve=False)[name]  # type: ignore[index]


def test_the_walk_sees_all_recipes_and_commands() -> None:
    keys = {(command, key) for command, key, *_ in TEXTS}
    for wanted in (
        *(
            ("train", key)
            for key in ("run_name", "model.name", "model.decoder_name", "data.path", "data.voices")
        ),
        *(
            ("train", key)
            for key in ("recipe.objective", "recipe.renorm", "recipe.early_exit.weights", "eval.tasks")
        ),
        *(("evaluate", key) for key in ("checkpoint", "watch", "tasks", "out")),
        *(("transcribe", key) for key in ("checkpoint", "audio")),
    ):
        assert wanted in keys
    assert len(keys) > 55


@pytest.mark.parametrize(
    ("command", "key", "holder", "name", "kind"),
    TEXTS,
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_every_text_arrives_as_typed(command: str, key: str, holder: type, name: str, kind: Any) -> None:
    many, optional = "list" in str(kind), "None" in str(kind)
    for text in TYPED if key in EVERYTHING else FEW:
        if many:
            if text.strip() == text and not re.search(r"[,\[\]{}()'\"]", text) and text:
                assert arrives(command, f"{key}=[{text},other]", holder, name) == [text, "other"], text
        elif optional and text == "null":
            assert arrives(command, f"{key}=null", holder, name) is None
        elif text == "'" or not (text[:1] in "'\"" and text[:1] == text[-1:] and text):
            assert arrives(command, f"{key}={text}", holder, name) == text


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("'null'", "null"),
        ('"1_1"', "1_1"),
        ("'a=b'", "a=b"),
        ("'it\\'s'", "it's"),
        ("''", ""),
        ("' x '", " x "),
    ],
)
def test_quotes_the_user_wrote_are_his(typed: str, value: str) -> None:
    assert load_config([RECIPE, f"tracking.entity={typed}"]).tracking.entity == value


def test_what_is_quoted_is_read_back_letter_by_letter() -> None:
    for text in TYPED:
        assert OverridesParser.create().parse_override(f"k={quoted(text)}").value() == text


def test_from_python_as_from_the_shell() -> None:
    found = load_config([RECIPE, "run_name=1_1", "tracking.project=true", "model.tokenizer=null", "seed=1_1"])
    assert (found.run_name, found.tracking.project, found.model.tokenizer, found.seed) == (
        "1_1",
        "true",
        None,
        11,
    )  # type: ignore[attr-defined]
    assert load_config([RECIPE, "tracking.project=p-${seed}", "seed=3"]).tracking.project == "p-3"


KEYS = text_keys(Root, group_names())


@pytest.mark.parametrize(
    ("typed", "fixed"),
    [
        ("run_name=1_1,2_2", "run_name='1_1','2_2'"),
        ("run_name=a,b", "run_name=a,b"),
        ("run_name='a,b',c", "run_name='a,b',c"),
        ("run_name=choice(1_1,a=b)", "run_name=choice('1_1','a=b')"),
        ("seed=range(1,3)", "seed=range(1,3)"),
        ("data.cache_dir=null,/x=1", "data.cache_dir=null,'/x=1'"),
        ("eval.tasks=[auto],[file:/x=1,copy]", "eval.tasks=[auto],['file:/x=1',copy]"),
        ("+recipe=moe,plain", "+recipe=moe,plain"),
        ("~run_name", "~run_name"),
        ("model=tiny,hf", "model=tiny,hf"),
    ],
)
def test_the_values_of_a_sweep_are_texts_each(typed: str, fixed: str) -> None:
    assert as_typed([typed], KEYS, swept=True) == [fixed]


def test_two_names_get_two_directories(train) -> None:
    names = ("1_1", "1e3", "1.50", "true", "null", "0x10", "1:30", "a=b")
    result = train("-m", RECIPE, "print_config=true", "run_name=" + ",".join(names))
    assert result.code == 0, result.err
    found = re.findall(r"^run_name: (.*)$", result.out, re.MULTILINE)
    assert [name.strip("'") for name in found] == list(names)
    assert found[0] == "'1_1'"


def test_a_path_with_signs_of_hydras_own_is_read_in_an_evaluation(evaluate) -> None:
    result = evaluate("checkpoint=a=b/1_1", "tasks=file:no=such", "out=true")
    assert "checkpoint: must be a directory with a config.json (got 'a=b/1_1')" in result.err
    assert "tasks.0: there is no such file (got 'file:no=such')" in result.err


def test_where_quotes_are_needed_the_error_says_which(evaluate) -> None:
    result = evaluate("checkpoint=x", "draft=ngram", "+draft_params.note=a=b")
    text = " ".join(result.err.split())
    wanted = shlex.quote("+draft_params.note='a=b'")
    assert "draft_params.note: has characters with a meaning of their own" in text
    assert f"if that is its text, write {wanted}" in text


@pytest.mark.parametrize(("config", "key"), [("evaluate", "draft_params"), ("train", "eval.draft_params")])
def test_parameters_that_no_file_names_may_be_set_as_others_are(config: str, key: str) -> None:
    register()
    ConfigStore.instance().store(group="schema", name="evaluate", node=EvalSettings, package="_global_")
    given = [f"{key}.tree=4", f"+{key}.gamma=2", f"~{key}.head", f"{key}={{}}", "threads=1"]
    assert typed_arguments(config, given) == [f"++{key}.tree=4", *given[1:]]
