"""Tell a recording that was cut off: what its container promises, against what the file holds.

libsndfile decodes what is left of such a file and says nothing, so a transcript would end in the middle unnoticed.
FLAC is left to it, which cannot read a shorter file than promised. MP3 is not checked: a whole one need not say how
long it is.
"""

from __future__ import annotations

import re
import struct
from typing import Any, BinaryIO

CHUNKED = {b"RIFF": ("<", b"data"), b"RIFX": (">", b"data"), b"FORM": (">", b"SSND")}
"""First four bytes → byte order of sizes, and the chunk that holds the samples: WAV and AIFF."""
STREAMED = (2**31, 2**32)
"""Writers to a pipe cannot know the size: they put 0, or a number just below (sox, ffmpeg) or at one of these."""
_NEAR = 1 << 16
_SAID = re.compile(r"^\s*(?:Data Size|Riff size|riff)\s*:\s*(\d+) \(should be (\d+)\)", re.MULTILINE)
"""How libsndfile notes in its log that the header of an AU, RF64 or W64 file is wrong."""
_PAGE = 27 + 255 + 255 * 255
"""Largest page of an Ogg stream, in bytes."""


def lost_part(file: BinaryIO, sound: Any) -> str | None:
    """Say what is missing of the recording `file`, open as the SoundFile `sound`; None if it is whole."""
    if sound.format == "OGG":
        return None if _ogg_ends(file) else "no end-of-stream page"
    if sound.format == "CAF":
        promised, held = _core_audio(file)
    else:
        promised, held = _chunk(file) or _noted(sound.extra_info) or (0, 0)
    return f"{held} of {promised} bytes" if held < promised and not _streamed(promised) else None


def _streamed(size: int) -> bool:
    return any(abs(size - limit) <= _NEAR for limit in STREAMED)


def _chunk(file: BinaryIO) -> tuple[int, int] | None:
    """Return the promised and the present size of a chunked file's samples; None for another file."""
    end = file.seek(0, 2)
    file.seek(0)
    order, wanted = CHUNKED.get(file.read(12)[:4], ("", b""))
    while order and len(head := file.read(8)) == 8:
        name, size = struct.unpack(f"{order}4sI", head)
        if name == wanted:
            return size, end - file.tell()
        file.seek(size + size % 2, 1)
    return None


def _core_audio(file: BinaryIO) -> tuple[int, int]:
    """Return the promised and the present size of a CAF file up to the first chunk that is not whole.

    The samples need not come last: their table of packets may follow them. A size of −1 means all that is left.
    """
    end = file.seek(0, 2)
    file.seek(8)
    while len(head := file.read(12)) == 12:
        (size,) = struct.unpack(">4xq", head)
        if size < 0 or size > end - file.tell():
            return max(size, 0), end - file.tell()
        file.seek(size, 1)
    return 0, 0


def _noted(log: str) -> tuple[int, int] | None:
    found = _SAID.search(log)
    return (int(found[1]), int(found[2])) if found else None


def _ogg_ends(file: BinaryIO) -> bool:
    """Tell whether the last page is complete and says that the stream ends."""
    file.seek(max(0, file.seek(0, 2) - 2 * _PAGE))
    tail = file.read()
    page = tail[max(0, tail.rfind(b"OggS")) :]
    segments = page[26] if len(page) > 26 else 0
    complete = len(page) >= 27 + segments + sum(page[27 : 27 + segments])
    return len(page) > 26 and complete and bool(page[5] & 4)
