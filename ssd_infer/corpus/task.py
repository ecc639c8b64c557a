"""What an evaluation decodes: a named list of prompts, and what a report says of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """A named list of prompts as token ids; `sha256` identifies exactly these prompts."""

    name: str
    prompts: list[list[int]]
    held_back: list[list[int]] = field(default_factory=list)
    """Prompts of the same kind that are not measured, so that parameters can be chosen on them."""
    written_by: str = ""
    """`chat template` or `plain text`, where prompts are messages; empty for text that is continued."""
    notes: tuple[str, ...] = ()
    """Sentences a reader must know of these prompts; equal ones of several tasks are one."""

    @property
    def title(self) -> str:
        """Name as a sentence holds it: of a file without its folders."""
        kind, colon, path = self.name.partition(":")
        return f"file:{Path(path).name}" if colon and kind == "file" else self.name

    @property
    def sha256(self) -> str:
        """Hash of the token ids."""
        return hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()

    def facts(self) -> dict[str, Any]:
        """Return what a report keeps of the prompts beside their number and the longest one's tokens."""
        found: dict[str, Any] = {
            "prompts_sha256": self.sha256,
            "shortest_prompt": min(map(len, self.prompts)),
        }
        return found | ({"written_by": self.written_by} if self.written_by else {})
