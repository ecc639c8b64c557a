"""Transcribe audio with a speech checkpoint: from Python by calling this module, from a shell by running it.

    python -m ssd_infer.transcribe checkpoint=DIR audio=FILE_OR_DIR [draft=ctc_draft+lossless]

Prints text, route, confidence and RTFx of every file; long audio is split. Exit code 1 if a file could not be used.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ssd_infer.cli.console import print_error
from ssd_infer.errors import DataError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ssd_infer.cli.transcription_settings import TranscribeSettings


class _CallableModule(ModuleType):
    """This module; `ssd_infer.transcribe(…)` works whether or not somebody imported it as a module before."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Transcribe, as `ssd_infer.strategies.ctc_draft.transcription.transcribe` describes."""
        from ssd_infer.strategies.ctc_draft.transcription import transcribe

        return transcribe(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule


def settings_of(cfg: DictConfig) -> TranscribeSettings:
    """Return the typed and validated settings that `cfg` describes; raise `ConfigError` with all their problems."""
    from ssd_infer.cli.transcription_settings import TranscribeSettings, validate
    from ssd_infer.config.compose import to_settings

    return to_settings(cfg, TranscribeSettings, validate)


def run(cfg: DictConfig) -> int:
    """Transcribe as `cfg` says; return 0 if every file could be used."""
    settings = settings_of(cfg)
    from ssd_infer.checkpoint.load import load
    from ssd_infer.cli.show import show, show_not_tried
    from ssd_infer.engine.devices import check_device
    from ssd_infer.families.speech.audio import find_audio, not_tried
    from ssd_infer.strategies.ctc_draft.transcription import transcribe

    where = Path(settings.audio).expanduser()
    files = find_audio(where)
    check_device(settings.device)
    loaded = load(Path(settings.checkpoint).expanduser(), dtype=settings.dtype, device=settings.device)
    failures = 0
    for file in files:
        try:
            out = transcribe(
                loaded,
                file,
                draft=settings.draft,
                draft_params=settings.draft_params,
                batch_size=settings.batch_size,
                segment_seconds=settings.segment_seconds,
            )
        except DataError as error:
            print_error(error)
            failures += 1
        else:
            show(file, out)
    show_not_tried(not_tried(where, files))
    return int(failures > 0)


def main() -> None:
    """Run the command line and exit with its code."""
    from hydra.core.config_store import ConfigStore

    from ssd_infer.cli.launch import launch
    from ssd_infer.cli.transcription_settings import TranscribeSettings

    ConfigStore.instance().store(
        group="schema", name="transcribe", node=TranscribeSettings, package="_global_"
    )
    sys.exit(launch("transcribe", run, settings_of))


if __name__ == "__main__":
    main()
