"""Bundles: entries of many variants in one object of a remote cache, to fetch them at once.

A look-up takes two objects a variant, each a way to the store and back. Variants of one kernel are
looked up together, so what a build had of them is also put into one object, compressed together; a
cold machine asks for that first. A bundle is named by the requests alone, and holds what the last
build with these requests found: it may be behind, and then single objects are asked for.

Invariant: a bundle holds entries as they are, which are checked one by one as if they came alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
import zstandard

KIND = "bundles"
MAX_REQUESTS = 64
"""Of a bundle: a kernel with more of them has several, in the order of its variants."""

_MAX_BYTES = 1 << 30  # of its entries together
_LEVEL = 6

_decoder = msgspec.msgpack.Decoder(dict[str, bytes])


def bundle_name(keys: Sequence[str]) -> str:
    """Return the name of the bundle of the requests with `keys`."""
    name = hashlib.sha256("\n".join(keys).encode()).hexdigest()
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
