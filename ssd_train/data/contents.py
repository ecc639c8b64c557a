"""What a run's files hold: the identity of data, tokenizer and base model by content, compared when a run resumes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from fnmatch import fnmatch
from pathlib import Path

from ssd_infer.checkpoint.content import files_digest, folder_digest, is_added, text_digest
from ssd_infer.errors import DataError
from ssd_train.config.schema import (
    DataConfig,
    HFModelConfig,
    HubTextConfig,
    LocalTextConfig,
    Root,
    ScratchModelConfig,
    StdlibTextConfig,
)
from ssd_train.config.schema_own_text import SelfGeneratedConfig
from ssd_train.config.schema_speech import HubSpeechConfig, SpeechDataConfig, SpeechModelConfig
from ssd_train.data.hub import COMMIT, hub_content
from ssd_train.data.local import local_contents
from ssd_train.data.open_source import open_source

_TOKENIZER = (
    *("tokenizer*", "vocab*", "merges*", "added_tokens*", "special_tokens_map*", "chat_template*"),
    *("*.model", "*.tiktoken", "*.py", "processor_config.json", "preprocessor_config.json"),
)
_MODEL = (*_TOKENIZER, "config.json", "generation_config.json", "*.safetensors*", "*.bin*")
"""Files a model is loaded from; reports, optimizer states and search results beside them are none of it."""


def contents(cfg: Root) -> dict[str, str]:
    """Return hashes of all that the run of `cfg` reads, by the dotted key that names it; a hub model's is its commit.

    Raises SSDError for what cannot be read.
    """
    return {**_data_contents(cfg), **_model_contents(cfg)}


def _data_contents(cfg: Root) -> dict[str, str]:
    data = cfg.data
    if (
        isinstance(data, HubSpeechConfig) and not Path(data.name).exists()
    ):  # opening it would download all of it
        return {"data.name": hub_content(data.name, data.subset, data.revision)}
    if isinstance(data, SpeechDataConfig):
        from ssd_train.data.speech.open_speech import open_speech

        return open_speech(data, cfg.seed).contents
    if isinstance(data, SelfGeneratedConfig):
        return _own_text_contents(data)
    if isinstance(data, LocalTextConfig):
        return local_contents(data)
    if isinstance(data, HubTextConfig):
        return {"data.name": hub_content(data.name, data.subset, data.revision)}
    return open_source(data).contents


def corpus_of(data: SelfGeneratedConfig) -> StdlibTextConfig | LocalTextConfig:
    """Return the data option of the corpus that own text is mixed with."""
    shared = {item.name: getattr(data, item.name) for item in fields(DataConfig) if item.name != "kind"}
    if data.corpus == "stdlib":
        return StdlibTextConfig(**shared)
    return LocalTextConfig(path=data.corpus, text_field=data.text_field, **shared)


def _own_text_contents(data: SelfGeneratedConfig) -> dict[str, str]:
    """Return hashes of the files of prompts, and of the corpus."""
    corpus = corpus_of(data)
    try:
        held = open_source(corpus).contents
    except DataError as error:  # it is read as data=local reads it, and called what the user called it
        raise DataError(str(error).replace("data.path:", "data.corpus:")) from error
    files = [
        Path(name.removeprefix("file:")).expanduser() for name in data.prompts if name.startswith("file:")
    ]
    return {
        "data.corpus": text_digest(sorted(held.values())),
        "data.prompts": files_digest(files, "data.prompts"),
    }


def _model_contents(cfg: Root) -> dict[str, str]:
    model = cfg.model
    if isinstance(model, HFModelConfig):
        return _named("model.name", model.name, _MODEL, model.revision)
    if isinstance(model, ScratchModelConfig):
        return _named("model.tokenizer", model.tokenizer, _TOKENIZER)
    if isinstance(model, SpeechModelConfig) and model.decoder == "hf":
        return _named("model.decoder_name", model.decoder_name, _MODEL)
    return {}


def _named(
    key: str, name: str | None, patterns: tuple[str, ...], revision: str | None = None
) -> dict[str, str]:
    if name is None:
        return {}
    folder = Path(name).expanduser()
    if folder.is_dir():
        return {key: folder_digest(folder, key, _matching(patterns))}
    commit = _commit(name, revision)
    return {} if commit is None else {key: f"{COMMIT}{commit}"}


def _matching(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda name: not is_added(name) and any(fnmatch(name, pattern) for pattern in patterns)


def _commit(name: str, revision: str | None) -> str | None:
    """Return the commit a hub name stands for now; None where neither hub nor cache knows it."""
    from transformers.utils.hub import cached_file, extract_commit_hash

    for file in ("config.json", "tokenizer_config.json"):
        try:
            path = cached_file(name, file, revision=revision, _raise_exceptions_for_missing_entries=False)
        except OSError:  # no such model, no network: loading it says so with all the reasons
            return None
        if path is not None:
            return extract_commit_hash(str(path), None)
    return None
