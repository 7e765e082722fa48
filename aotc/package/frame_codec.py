"""Compress and decode what an archive's frames hold: raw LZMA streams, whose end they mark.

The parameters are fixed (lc 3, lp 0, pb 2), so a stream says nothing of them, and the dictionary is the
whole content: what decodes it keeps no window.
"""

from __future__ import annotations

import lzma
from typing import Any, Final

PRESET: Final = 6
FAST_PRESET: Final = 1
"""Presets of liblzma: how long it looks for matches. What it finds, every decoder reads."""

_LEAST_DICTIONARY_BYTES = 4096


def compress(content: bytes, preset: int = PRESET) -> bytes:
    """Return the frame of a content."""
    return lzma.compress(content, lzma.FORMAT_RAW, filters=_filters(len(content), preset))


def decompress(frame: bytes | memoryview, raw_bytes: int) -> bytes:
    """Decode a frame into `raw_bytes` bytes.

    Raises: ValueError if it is no such stream, has another size, or something follows it.
    """
    decoder = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_filters(raw_bytes))
    try:
        content = decoder.decompress(frame, raw_bytes + 1)  # the marker is read with the last byte
    except lzma.LZMAError as error:
        raise ValueError(f"a frame does not decode: {error}") from None
    if not decoder.eof or len(content) != raw_bytes:
        raise ValueError("a frame does not decode to the size in the root")
    if decoder.unused_data:
        raise ValueError("a frame is followed by other bytes")
    return content


def _filters(raw_bytes: int, preset: int = PRESET) -> list[dict[str, Any]]:
    dictionary = max(_LEAST_DICTIONARY_BYTES, raw_bytes)
    fixed = {"lc": 3, "lp": 0, "pb": 2, "dict_size": dictionary}
    return [{"id": lzma.FILTER_LZMA1, "preset": preset, **fixed}]
