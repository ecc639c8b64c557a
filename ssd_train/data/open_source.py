"""The text source that a configuration describes."""

from __future__ import annotations

from ssd_infer.errors import DataError
from ssd_train.config.schema import DataConfig, HubTextConfig, LocalTextConfig, StdlibTextConfig
from ssd_train.data.hub import hub_source
from ssd_train.data.local import local_source
from ssd_train.data.sources import TextSource, stdlib_source


def open_source(cfg: DataConfig) -> TextSource:
    """Return the source `cfg` describes; raise `DataError` when it cannot be read."""
    if isinstance(cfg, StdlibTextConfig):
        return stdlib_source(cfg)
    if isinstance(cfg, LocalTextConfig):
        return local_source(cfg)
    if isinstance(cfg, HubTextConfig):
        return hub_source(cfg)
    raise DataError(f"data.kind: must be stdlib_text, local or hub (got {cfg.kind!r}); try data=stdlib_text")
