"""Bundle the entries of many variants into one object of a remote cache, to fetch them at once.

A look-up takes two objects a variant, each with a round trip to the store and a file in the folder.
Variants of one kernel are looked up together, so a build's entries are also put into one object,
compressed together. A cold machine fetches it first, and keeps it unchanged. A bundle is named by
the kernel, and holds the last builds' entries. It may be stale; then single objects are fetched.

Bundles of a whole build hold the compressed frames of archives. These take longer to make than the
rest of a build without compiles. Frames missing from a stale bundle are made again.

Invariant: a bundle holds unchanged entries, each checked as if it came alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
import zstandard

KIND = "bundles"
MAX_REQUESTS = 64
"""Approximate requests per bundle: a kernel with more has several bundles."""

MAX_FRAME_REQUESTS = 2048
"""Approximate requests per bundle of frames: their frames are a few MiB."""

_MAX_BYTES = 1 << 30  # of all its entries
_LEVEL = 6

_decoder = msgspec.msgpack.Decoder(dict[str, bytes])


def kernel_bundles(kernel: Sequence[str], keys: Sequence[str]) -> dict[str, list[str]]:
    """Return the kernel's bundles by name, each with its keys.

    A request's bundle is stable when a build has some more requests of the kernel, or fewer.
    """
    count = 1 << (-(-len(keys) // MAX_REQUESTS) - 1).bit_length()
    names = [_name((*kernel, f"{index} of {count}")) for index in range(count)]
    bundles: dict[str, list[str]] = {}
    for key in keys:
        bundles.setdefault(names[int(key[:8], 16) % count], []).append(key)
    return bundles


def frame_bundles(keys: Sequence[str]) -> list[str]:
    """Return the names of the frame bundles of a build, given its request keys."""
    count = -(-len(keys) // MAX_FRAME_REQUESTS)
    return [_name((*keys, f"frames, {index} of {count}")) for index in range(count)]


def _name(parts: Sequence[str]) -> str:
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"{KIND}/{name[:2]}/{name}"


def encode_bundle(entries: Mapping[str, bytes]) -> bytes:
    """Encode entries by name."""
    return zstandard.compress(msgspec.msgpack.encode(dict(sorted(entries.items()))), _LEVEL)


def decode_bundle(data: bytes) -> dict[str, bytes] | None:
    """Return the entries of a bundle, or None if it is damaged or much too large."""
    try:
        if not 0 <= zstandard.frame_content_size(data) <= _MAX_BYTES:
            return None
        return _decoder.decode(zstandard.decompress(data))
    except (zstandard.ZstdError, msgspec.MsgspecError, MemoryError):
        return None
