"""Bundles: entries of many variants in one object of a remote cache, to fetch them at once.

A look-up takes two objects a variant, each a way to the store and back, and a file in the folder.
Variants of one kernel are looked up together, so what a build had of them is also put into one object,
compressed together; a cold machine asks for that first, and keeps it as it is. A bundle is named by the
kernel, and holds what the last builds found: it may be behind, and then single objects are asked for.

The compressed frames of an archive, which take longer to make than all else of a build that compiles
nothing, are in bundles of the whole build. Where one is behind, frames are made again.

Invariant: a bundle holds entries as they are, which are checked one by one as if they came alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
import zstandard

KIND = "bundles"
MAX_REQUESTS = 64
"""Of a bundle, about: a kernel with more of them has several."""

MAX_FRAME_REQUESTS = 2048
"""Of a bundle of frames, about: of so many cubins, they are a few MiB."""

_MAX_BYTES = 1 << 30  # of its entries together
_LEVEL = 6

_decoder = msgspec.msgpack.Decoder(dict[str, bytes])


def kernel_bundles(kernel: Sequence[str], keys: Sequence[str]) -> dict[str, list[str]]:
    """Return by the names of its bundles which has which of the requests with `keys` of a kernel.

    A request stays where it is when a build has some more requests of the kernel, or fewer.
    """
    count = 1 << (-(-len(keys) // MAX_REQUESTS) - 1).bit_length()
    names = [_name((*kernel, f"{index} of {count}")) for index in range(count)]
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(names[int(key[:8], 16) % count], []).append(key)
    return found


def frame_bundles(keys: Sequence[str]) -> list[str]:
    """Return the names of the bundles of frames of a build of the requests with `keys`."""
    count = -(-len(keys) // MAX_FRAME_REQUESTS)
    return [_name((*keys, f"frames, {index} of {count}")) for index in range(count)]


def _name(parts: Sequence[str]) -> str:
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"{KIND}/{name[:2]}/{name}"


def encode_bundle(entries: Mapping[str, bytes]) -> bytes:
    """Return entries by name as bytes."""
    return zstandard.compress(msgspec.msgpack.encode(dict(sorted(entries.items()))), _LEVEL)


def decode_bundle(data: bytes) -> dict[str, bytes] | None:
    """Return the entries of a bundle, or None if it is damaged or much too large."""
    try:
        if not 0 <= zstandard.frame_content_size(data) <= _MAX_BYTES:
            return None
        return _decoder.decode(zstandard.decompress(data))
    except (zstandard.ZstdError, msgspec.MsgspecError, MemoryError):
        return None
