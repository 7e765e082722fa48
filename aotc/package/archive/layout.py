"""Define the archive's layout as tables: header, sections, records, enumerations, limits.

This file has no logic: `encoder.py` and `decoder.py` work by these tables, and the runtime in C has
the same numbers. Both use the section and field names of `docs/reference/archive-format.md`.
Invariant: a number in a released archive keeps its meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from aotc.package.archive.index import Access, CubinParamSource, ParamKind

MAGIC: Final = b"AOTC\r\n\x1a\n"
MAJOR: Final = 9
MINOR: Final = 0

HEADER: Final = struct.Struct("<8sHHIQQQQQ32s40s")
"""magic, major, minor, header_bytes, required, optional, file, root offset, root, SHA-256, zero."""

SHA256_OFFSET: Final = 56
SHA256_BYTES: Final = 32

FEATURE_ZSTD: Final = 1 << 0
"""Frames are zstd frames. Without it, frames and cubins are stored as they are."""
KNOWN_FEATURES: Final = FEATURE_ZSTD

NONE: Final = 0xFFFFFFFF
SECTION_ALIGN: Final = 8
ROOT_PIECE_BYTES: Final = 1 << 9
"""Size of a digested piece of the root and its digests, so that a lookup verifies only its pieces."""
STORED_ALIGN: Final = 64
"""Alignment of uncompressed frames: the driver reads cubins in place."""
GROUP_BYTES: Final = 1 << 23
"""Greatest decoded size of a frame of several blobs: the unit of a load, and zstd's window."""
ZSTD_LEVEL: Final = 19
FAST_ZSTD_LEVEL: Final = 9
SMALL_ARCHIVE_BYTES: Final = 1 << 26
"""Above this size of cubins and PTX, frames use the fast level, so that writing takes seconds."""
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"

PLACE: Final = struct.Struct("<Q")
"""Offset of a frame of blobs; a kernel's index is followed by the offsets of its frames."""

DIRECTORY_HEAD: Final = struct.Struct("<II")
DIRECTORY_ENTRY: Final = struct.Struct("<IIII")

RECORDS: Final[Mapping[str, struct.Struct]] = {
    "ARCHIVE": struct.Struct("<IIII"),
    "TARGETS": struct.Struct("<IBBBB"),
    "ENTRIES": struct.Struct("<IIQII32s"),
    "SLOTS": struct.Struct("<II"),
    "KERNELS": struct.Struct("<Q32sII16I"),
    "PARAMS": struct.Struct("<IBBBBIBBH"),
    "TYPE_VARIABLES": struct.Struct("<IB3s16s"),
    "CHOICES": struct.Struct("<IIII"),
    "VALUES": struct.Struct("<IIQ"),
    "GUARDS": struct.Struct("<II"),
    "CONFIGS": struct.Struct("<II"),
    "VARIANTS": struct.Struct("<QIIIIIII3IIIIIIII6H3BBI"),
    "CUBIN_PARAMS": struct.Struct("<HHHHI"),
    "TENSOR_MAPS": struct.Struct("<I6BHI5I4I5HH5s3s"),
    "SELECTIONS": struct.Struct("<8I"),
    "FEATURES": struct.Struct("<I"),
    "BRANCHES": struct.Struct("<qIIII"),
    "LEAVES": struct.Struct("<II"),
    "LEAF_CONFIGS": struct.Struct("<I"),
    "EXPRESSIONS": struct.Struct("<IIIHH"),
    "BLOBS": struct.Struct("<IIII"),
    "FRAMES": struct.Struct("<II32s"),
    "CODE": struct.Struct("<s"),
    "STRINGS": struct.Struct("<s"),
}
"""Sections in the order of their kinds, from 1. The last two hold bytes."""

KINDS: Final[Mapping[str, int]] = {name: kind for kind, name in enumerate(RECORDS, 1)}

ROOT_SECTIONS: Final = ("ARCHIVE", "TARGETS", "ENTRIES", "SLOTS", "STRINGS")
KERNEL_SECTIONS: Final = (
    "TARGETS",
    *(name for name in RECORDS if KINDS[name] >= KINDS["KERNELS"]),
)
"""The sections of an archive's root and of a kernel's index, in order."""

BYTE_SECTIONS: Final = ("CODE", "STRINGS")

RECORD_ALIGN: Final[Mapping[str, int]] = {
    name: 8 if name in ("ENTRIES", "KERNELS", "VALUES", "VARIANTS", "BRANCHES") else 4
    for name in RECORDS
    if name not in BYTE_SECTIONS
}
"""The size of a record is a multiple of this, in newer minor versions too."""

PARAM_KINDS: Final[Mapping[ParamKind, int]] = {"pointer": 1, "scalar": 2, "tensor": 3}
ACCESSES: Final[Mapping[Access, int]] = {"unknown": 0, "read": 1, "write": 2, "both": 3}
SOURCES: Final[Mapping[CubinParamSource, int]] = {
    "argument": 1,
    "scratch": 2,
    "tensor_map": 3,
    "expression": 4,
    "grid": 5,
}
FEATURE_LETTERS: Final = ("", "a", "f")

PARAM_OPTIONAL: Final = 1 << 0
VARIANT_WAITS_PDL: Final = 1 << 0
VARIANT_IS_PERSISTENT: Final = 1 << 1
VARIANT_COOPERATIVE: Final = 1 << 2

VALUE_NULL: Final = 0
VALUE_BOOL: Final = 1
VALUE_INT: Final = 2
VALUE_STRING: Final = 3
VALUE_FLOAT: Final = 4

BLOB_CUBIN: Final = 1
BLOB_PTX: Final = 2


class Limits(NamedTuple):
    """Limits checked by a reader before it allocates anything; failures have kind `LIMIT`."""

    file_bytes: int = 1 << 32
    index_bytes: int = 1 << 24
    blob_bytes: int = 1 << 26
    decoded_bytes: int = 1 << 32
    kernels: int = 1 << 16
    variants: int = 1 << 20
    targets: int = 64
    params: int = 256
    type_variables: int = 16
    choices: int = 32
    choice_values: int = 1024
    combinations: int = 1 << 20
    guards: int = 64
    configs: int = 1 << 16
    config_entries: int = 256
    constants: int = 1024
    cubin_params: int = 1024
    tensor_maps: int = 32
    param_bytes: int = 4096
    features: int = 32
    tree_depth: int = 32
    leaf_configs: int = 16
    name_bytes: int = 255
    text_bytes: int = 65535
    code_bytes: int = 4096
    stack: int = 32


LIMITS: Final = Limits()
