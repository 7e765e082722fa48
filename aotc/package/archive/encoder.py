"""Encode a checked archive: frames of blobs, an index for each kernel, then the root.

The layout is canonical: the walk below fixes the order of shared expressions and blobs, strings are
sorted, and everything else follows its owner. So the reader checks that a file is canonical by
encoding it again. A kernel's index holds the digests of its frames, but neither their offsets nor
other kernels. So its bytes are the same in every archive with the same frames.

Invariant: equal archives and equal frames give equal bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from aotc.ir.expression import Expression, to_text
from aotc.package.archive import bytecode
from aotc.package.archive.archive_root import Header, header_digest, root_digests, slots
from aotc.package.archive.code_filter import filtered
from aotc.package.archive.flat_tree import flatten
from aotc.package.archive.index import (
    DTYPE_CODES,
    Archive,
    ArchiveError,
    CubinParam,
    Kernel,
    Param,
    TensorMap,
    Value,
    Variant,
    combination,
    guard_mask,
    parse_target,
)
from aotc.package.archive.layout import (
    ACCESSES,
    BLOB_CUBIN,
    BLOB_PTX,
    DIRECTORY_ENTRY,
    DIRECTORY_HEAD,
    FEATURE_LETTERS,
    FEATURE_ZSTD,
    GROUP_BYTES,
    HEADER,
    KERNEL_SECTIONS,
    KINDS,
    LIMITS,
    MAGIC,
    MAJOR,
    MINOR,
    NONE,
    PARAM_KINDS,
    PARAM_OPTIONAL,
    PLACE,
    RECORDS,
    ROOT_SECTIONS,
    SECTION_ALIGN,
    SOURCES,
    STORED_ALIGN,
    VALUE_BOOL,
    VALUE_FLOAT,
    VALUE_INT,
    VALUE_NULL,
    VALUE_STRING,
    VARIANT_COOPERATIVE,
    VARIANT_IS_PERSISTENT,
    VARIANT_WAITS_PDL,
)
from aotc.package.archive.selection import Selection

_Field: TypeAlias = int | bytes | str
"""A record's field to be packed; a string is packed as its offset in STRINGS."""

_FLOAT64 = struct.Struct("<d")
_UINT64 = struct.Struct("<Q")


def _aligned(offset: int, align: int) -> int:
    return -(-offset // align) * align


def _padding(offset: int, align: int) -> bytes:
    return bytes(_aligned(offset, align) - offset)


def _payload(value: Value) -> tuple[int, _Field]:
    """Return the kind and the payload of a value, as VALUES stores it."""
    if value is None:
        return VALUE_NULL, 0
    if isinstance(value, bool):
        return VALUE_BOOL, int(value)
    if isinstance(value, int):
        return VALUE_INT, value & 0xFFFF_FFFF_FFFF_FFFF
    if isinstance(value, float):
        return VALUE_FLOAT, _UINT64.unpack(_FLOAT64.pack(value))[0]
    return VALUE_STRING, value


class _List(NamedTuple):
    """A variant's records in a section, and the number of the first."""

    first: int
    records: list[tuple[_Field, ...]]


class _KernelEncoder:
    """Collect the records of a kernel's index, table by table, in the order of the format's walk.

    With `is_grouped`, blobs of one kind and target share frames.
    """

    def __init__(self, kernel: Kernel, *, is_grouped: bool) -> None:
        self.tables: dict[str, list[tuple[_Field, ...]]] = {n: [] for n in KERNEL_SECTIONS}
        self.code = bytearray()
        self.expressions: dict[tuple[bytes, str], int] = {}
        self.blobs: dict[bytes, int] = {}
        self.blob_kinds: list[int] = []
        self.groups: list[list[bytes]] = []
        # Params and tensor maps of the last variant with tensor maps, and of the last without.
        self.lists: dict[bool, tuple[_List, _List]] = {}
        self.targets = {name: index for index, name in enumerate(sorted(set(kernel.targets)))}
        for name in self.targets:
            self.add("TARGETS", *_target(name))
        self.kernel(kernel, is_grouped=is_grouped)
        kinds = iter(self.blob_kinds)
        for frame, group in enumerate(self.groups):
            start = 0
            for content in group:
                self.add("BLOBS", frame, start, len(content), next(kinds))
                start += len(content)

    def index(self, frames: Iterable[tuple[int, int, bytes]]) -> bytes:
        """Return the kernel's index, with the records of its frames."""
        self.tables["FRAMES"] = [*frames]
        return _lay_out(KERNEL_SECTIONS, self.tables, bytes(self.code))

    def contents(self, *, is_compressed: bool) -> list[bytes]:
        """Return the contents of the frames of the kernel's blobs."""
        if not is_compressed:
            return [b"".join(group) for group in self.groups]
        return [
            filtered(group)
            if self.blob_kinds[self.blobs[group[0]]] == BLOB_CUBIN
            else b"".join(group)
            for group in self.groups
        ]

    def add(self, section: str, *fields: _Field) -> None:
        self.tables[section].append(fields)

    def count(self, section: str) -> int:
        return len(self.tables[section])

    def kernel(self, kernel: Kernel, *, is_grouped: bool) -> None:
        params = {param.name: index for index, param in enumerate(kernel.params)}
        slices: list[int] = []
        for section, items in (
            ("PARAMS", kernel.params),
            ("TYPE_VARIABLES", kernel.type_variables),
            ("CHOICES", kernel.choices),
            ("GUARDS", kernel.guards),
            ("CONFIGS", kernel.configs),
            ("VALUES", kernel.constants),
            ("VARIANTS", kernel.variants),
            ("SELECTIONS", kernel.selections),
        ):
            slices += (self.count(section), len(items))
        self.values(kernel.constants)
        variables = [variable.name for variable in kernel.type_variables]
        for param in kernel.params:
            self.param(param, variables)
        for variable in kernel.type_variables:
            codes = bytes(DTYPE_CODES[dtype] for dtype in variable.dtypes)
            self.add("TYPE_VARIABLES", variable.name, len(codes), b"", codes)
        for choice in kernel.choices:
            self.add("CHOICES", choice.name, self.count("VALUES"), len(choice.values), 0)
            self.values(("", value) for value in choice.values)
        for config in kernel.configs:
            self.add("CONFIGS", self.count("VALUES"), len(config))
            self.values(config)
        for guard in kernel.guards:
            self.add("GUARDS", self.expression(guard.expression, params), guard.text)
        promises = guard_mask(tuple(i for i, g in enumerate(kernel.guards) if g.is_promise))
        head = (promises, kernel.source_sha256, kernel.name, kernel.grid_rank)
        self.add("KERNELS", *head, *slices)
        self.place_blobs(kernel, is_grouped=is_grouped)
        for variant in kernel.variants:
            self.variant(kernel, variant, params)
        for selection in kernel.selections:
            self.selection(selection, params)

    def selection(self, selection: Selection, params: Mapping[str, int]) -> None:
        tree = flatten(selection.tree)
        self.add(
            "SELECTIONS",
            self.targets[selection.target],
            selection.gpu,
            selection.combination,
            self.count("FEATURES"),
            len(tree.features),
            self.count("BRANCHES"),
            len(tree.branches),
            self.count("LEAVES"),
        )
        for feature in tree.features:
            self.add("FEATURES", self.expression(feature, params))
        for branch in tree.branches:
            self.add("BRANCHES", branch.threshold, branch.feature, branch.low, branch.high, 0)
        for leaf in tree.leaves:
            self.add("LEAVES", self.count("LEAF_CONFIGS"), len(leaf))
            for config in leaf:
                self.add("LEAF_CONFIGS", config)

    def place_blobs(self, kernel: Kernel, *, is_grouped: bool) -> None:
        """Assign the kernel's blobs to frames: by target, cubins before PTX."""
        for target in kernel.targets:
            variants = [variant for variant in kernel.variants if variant.target == target]
            for kind, contents in (
                (BLOB_CUBIN, [variant.cubin for variant in variants]),
                (BLOB_PTX, [variant.ptx for variant in variants]),
            ):
                first_group = len(self.groups)
                for content in contents:
                    if content is not None:
                        self.place_blob(content, kind, first_group, is_grouped=is_grouped)

    def values(self, values: Iterable[tuple[str, Value]]) -> None:
        for name, value in values:
            self.add("VALUES", name, *_payload(value))

    def param(self, param: Param, variables: list[str]) -> None:
        is_variable = param.element in variables
        self.add(
            "PARAMS",
            param.name,
            PARAM_KINDS[param.kind],
            0 if is_variable else DTYPE_CODES[param.element],
            1 + variables.index(param.element) if is_variable else 0,
            param.rank,
            param.divisibility,
            PARAM_OPTIONAL if param.is_optional else 0,
            ACCESSES[param.access],
            0,
        )

    def variant(self, kernel: Kernel, variant: Variant, params: Mapping[str, int]) -> None:
        condition = 0
        if variant.condition is not None:
            condition = 1 + self.expression(variant.condition, params)
        grid = [self.expression(expression, params) for expression in variant.grid]
        scratch = self.optional_expression(variant.scratch_bytes, params)
        param_records = [self.cubin_param(param, params) for param in variant.cubin_params]
        map_records = [self.tensor_map(tensor_map, params) for tensor_map in variant.tensor_maps]
        other = self.lists.get(bool(map_records), (_List(0, []), _List(0, [])))
        cubin_params = self.add_or_share("CUBIN_PARAMS", param_records, other[0])
        tensor_maps = self.add_or_share("TENSOR_MAPS", map_records, other[1])
        self.lists[bool(map_records)] = cubin_params, tensor_maps
        self.add(
            "VARIANTS",
            guard_mask(variant.guards),
            combination(kernel, variant.types, variant.choices),
            variant.config,
            variant.symbol,
            self.blob(variant.cubin, BLOB_CUBIN),
            NONE if variant.ptx is None else self.blob(variant.ptx, BLOB_PTX),
            "\n".join(variant.remarks),
            cubin_params.first,
            *grid,
            *[NONE] * (3 - len(grid)),
            scratch,
            variant.scratch_align,
            tensor_maps.first,
            variant.dynamic_shared_bytes,
            variant.static_shared_bytes,
            variant.stack_bytes,
            variant.spill_bytes,
            self.targets[variant.target],
            len(variant.cubin_params),
            len(variant.tensor_maps),
            variant.param_bytes,
            variant.num_threads,
            variant.registers,
            *variant.cluster,
            variant.waits_pdl * VARIANT_WAITS_PDL
            | variant.is_persistent * VARIANT_IS_PERSISTENT
            | variant.cooperative * VARIANT_COOPERATIVE,
            condition,
        )

    def add_or_share(self, section: str, records: list[tuple[_Field, ...]], other: _List) -> _List:
        """Add a variant's records to a section, or share the equal ones of an earlier variant."""
        if records and records == other.records:
            return other
        first = self.count(section)
        self.tables[section] += records
        return _List(first, records)

    def cubin_param(self, param: CubinParam, params: Mapping[str, int]) -> tuple[_Field, ...]:
        index = param.index
        if param.expression is not None:
            index = self.expression(param.expression, params)
        return param.offset, param.size, SOURCES[param.source], 0, index

    def tensor_map(self, tensor_map: TensorMap, params: Mapping[str, int]) -> tuple[_Field, ...]:
        rank = len(tensor_map.dims)
        address = self.expression(tensor_map.address, params)
        dims = [self.expression(expression, params) for expression in tensor_map.dims]
        strides = [self.expression(expression, params) for expression in tensor_map.strides]
        return (
            tensor_map.param,
            tensor_map.data_type,
            rank,
            tensor_map.interleave,
            tensor_map.swizzle,
            tensor_map.l2_promotion,
            tensor_map.oob_fill,
            0,
            address,
            *dims,
            *[NONE] * (5 - rank),
            *strides,
            *[NONE] * (5 - rank),
            *tensor_map.box,
            *[0] * (5 - rank),
            0,
            bytes(tensor_map.element_strides),
            b"",
        )

    def optional_expression(self, root: Expression | None, params: Mapping[str, int]) -> int:
        return NONE if root is None else self.expression(root, params)

    def expression(self, root: Expression, params: Mapping[str, int]) -> int:
        code = bytecode.encode(root, params)
        text = to_text(root)
        index = self.expressions.setdefault((code.code, text), len(self.expressions))
        if index == self.count("EXPRESSIONS"):
            self.add("EXPRESSIONS", len(self.code), len(code.code), text, code.stack_depth, 0)
            self.code += code.code
        return index

    def place_blob(self, content: bytes, kind: int, first_group: int, *, is_grouped: bool) -> None:
        """Assign a new blob to the last group from `first_group` on, or to a new group."""
        if content in self.blobs:
            return
        self.blobs[content] = len(self.blobs)
        self.blob_kinds.append(kind)
        has_group = is_grouped and len(self.groups) > first_group
        if has_group and sum(map(len, self.groups[-1])) + len(content) <= GROUP_BYTES:
            self.groups[-1].append(content)
        else:
            self.groups.append([content])

    def blob(self, content: bytes, kind: int) -> int:
        """Return the index of a blob."""
        index = self.blobs[content]
        if self.blob_kinds[index] != kind:
            raise ArchiveError("FORMAT", "a variant has the same bytes as cubin and as PTX")
        return index


def _target(name: str) -> tuple[_Field, ...]:
    major, minor, letter = parse_target(name)
    return name, major, minor, FEATURE_LETTERS.index(letter), 0


def _string_offsets(tables: Mapping[str, list[tuple[_Field, ...]]]) -> dict[str, int]:
    """Return the offset of each string in STRINGS, their sorted concatenation."""
    texts = {
        field
        for table in tables.values()
        for record in table
        for field in record
        if isinstance(field, str)
    }
    offsets: dict[str, int] = {}
    offset = 0
    for text in sorted(texts | {""}, key=str.encode):
        offsets[text] = offset
        offset += len(text.encode()) + 1
    return offsets


def _pack(section: str, records: list[tuple[_Field, ...]], strings: Mapping[str, int]) -> bytes:
    layout = RECORDS[section]
    return b"".join(
        layout.pack(*(strings[field] if isinstance(field, str) else field for field in record))
        for record in records
    )


def _lay_out(
    names: tuple[str, ...], tables: Mapping[str, list[tuple[_Field, ...]]], code: bytes = b""
) -> bytes:
    """Return a directory and its sections.

    Raises: `ArchiveError` LIMIT above the format's size.
    """
    strings = _string_offsets(tables)
    sections = {name: _pack(name, tables[name], strings) for name in names}
    if "CODE" in sections:
        sections["CODE"] = code
    sections["STRINGS"] = b"".join(text.encode() + b"\0" for text in strings)
    parts = [DIRECTORY_HEAD.pack(len(names), 0)]
    offset = DIRECTORY_HEAD.size + DIRECTORY_ENTRY.size * len(names)
    for name, body in sections.items():
        size = RECORDS[name].size
        parts.append(DIRECTORY_ENTRY.pack(KINDS[name], size, offset, len(body) // size))
        offset = _aligned(offset + len(body), SECTION_ALIGN)
    if offset > LIMITS.index_bytes:
        message = f"an index takes {offset} bytes, at most {LIMITS.index_bytes}"
        raise ArchiveError("LIMIT", message)
    return b"".join(parts + [b + _padding(len(b), SECTION_ALIGN) for b in sections.values()])


def _frame(content: bytes, stored: bytes) -> tuple[int, int, bytes]:
    """Return the record of a frame: stored size, decoded size and digest."""
    return len(stored), len(content), hashlib.sha256(stored).digest()


class _File:
    """Collect the consecutive frames of a file, from offset `end` on."""

    def __init__(self, end: int, align: int) -> None:
        self.end = end
        self.align = align
        self.parts: list[bytes] = []

    def add(self, frame: bytes) -> int:
        """Add a frame and return its offset. Raises: `ArchiveError` LIMIT."""
        offset = _aligned(self.end, self.align)
        self.parts += (bytes(offset - self.end), frame)
        self.end = offset + len(frame)
        if self.end > LIMITS.file_bytes:
            message = f"the archive takes {self.end} bytes, at most {LIMITS.file_bytes}"
            raise ArchiveError("LIMIT", message)
        return offset

    def leave(self, size_bytes: int) -> int:
        """Reserve bytes to be filled in later, and return the index of their part."""
        self.parts.append(b"")
        self.end += size_bytes
        return len(self.parts) - 1


def encode_records(
    archive: Archive,
    frames: Callable[[list[bytes]], list[bytes]] | None,
    *,
    is_grouped: bool,
) -> bytes:
    """Return the bytes of a checked archive in canonical order.

    `frames` compresses the contents of frames: first the blobs, several to a frame if `is_grouped`,
    then the kernels' indices. Without it contents are stored uncompressed, each blob alone.

    Raises: `ArchiveError` LIMIT for an index or a file too large for the format.
    """
    is_compressed = frames is not None

    def store(contents: list[bytes]) -> list[bytes]:
        return contents if frames is None else frames(contents)

    kernels = [
        _KernelEncoder(kernel, is_grouped=is_grouped and is_compressed)
        for kernel in archive.kernels
    ]
    contents = [kernel.contents(is_compressed=is_compressed) for kernel in kernels]
    blobs = [*dict.fromkeys(content for kernel_contents in contents for content in kernel_contents)]
    stored_blobs = dict(zip(blobs, store(blobs), strict=True))
    records = {content: _frame(content, stored) for content, stored in stored_blobs.items()}
    indices = [
        kernel.index(records[content] for content in kernel_contents)
        for kernel, kernel_contents in zip(kernels, contents, strict=True)
    ]
    stored_indices = store(indices)

    names = [kernel.name for kernel in archive.kernels]
    root: dict[str, list[tuple[_Field, ...]]] = {name: [] for name in ROOT_SECTIONS}
    root["ARCHIVE"].append((archive.name, archive.version, archive.toolchain, 0))
    root["TARGETS"] += map(_target, archive.targets)
    root["SLOTS"] += slots(names)
    # The root's size does not depend on the offsets, so its end is fixed before they are.
    root["ENTRIES"] = [(name, 0, 0, 0, 0, b"") for name in names]
    header = Header(MINOR, len(_lay_out(ROOT_SECTIONS, root)))
    file = _File(header.end, 1 if is_compressed else STORED_ALIGN)
    rooms: list[int] = []
    for number, (index, stored) in enumerate(zip(indices, stored_indices, strict=True)):
        count = len(contents[number])
        root["ENTRIES"][number] = names[number], count, file.add(stored), *_frame(index, stored)
        rooms.append(file.leave(PLACE.size * count))
    offsets = {content: PLACE.pack(file.add(stored)) for content, stored in stored_blobs.items()}
    for room, kernel_contents in zip(rooms, contents, strict=True):
        file.parts[room] = b"".join(offsets[content] for content in kernel_contents)

    packed = _lay_out(ROOT_SECTIONS, root)
    digests, seals = root_digests(packed)
    feature = FEATURE_ZSTD if is_compressed else 0
    head = (MAGIC, MAJOR, MINOR, HEADER.size, feature, 0, file.end, header.root_at, len(packed))
    digest = header_digest(HEADER.pack(*head, b"", b""), seals, packed)
    return b"".join([HEADER.pack(*head, digest, b""), seals, packed, digests, *file.parts])
