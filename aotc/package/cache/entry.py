"""Encode an entry of the cache: its SHA-256, its name and its content.

A reader checks the name it asked for. Data that is damaged, cut short, or stored under another
entry's name is no entry, from any source.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

MAX_ENTRY_BYTES = 1 << 28
"""Limit of an entry; a cubin takes at most a quarter of it."""

_DIGEST_BYTES = 32

ContentT = TypeVar("ContentT")


@dataclass(frozen=True, slots=True)
class Entry(Generic[ContentT]):
    """The content of an entry; `name` is the last part of its path."""

    name: str
    content: ContentT


def encode_entry(name: str, content: object) -> bytes:
    """Return the bytes of an entry."""
    payload = msgspec.msgpack.encode(Entry(name, content))
    return hashlib.sha256(payload).digest() + payload


def decode_entry(
    data: bytes, name: str, decoder: msgspec.msgpack.Decoder[Entry[ContentT]]
) -> ContentT | None:
    """Return the content of the entry `name`, or None if `data` is something else."""
    digest, payload = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(payload).digest() != digest:
        return None
    try:
        entry = decoder.decode(payload)
    except msgspec.MsgspecError:
        return None  # intact, but written by another version of aotc
    return entry.content if entry.name == name else None


def write_entry(path: Path, data: bytes) -> None:
    """Write a file under a temporary name and rename it. Raises: OSError."""
    temporary = path.with_name(f".{path.name[:16]}.{secrets.token_hex(8)}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Use the umask's permissions, so that others may read a shared cache.
        with temporary.open("xb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
