"""Encode a checked archive: the records of every table, then sections, blobs and header.

The layout is canonical: the walk below fixes the order of shared expressions and blobs, strings are
sorted, and everything else follows its owner. So the reader can tell whether a file is canonical by
encoding what it read.

Invariant: equal archives and equal frames give equal bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from aotc.ir.expression import Expression, to_text
from aotc.package import bytecode
from aotc.package.index import (
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
from aotc.package.records import (
    ACCESSES,
    BLOB_ALIGN,
    BLOB_CUBIN,
    BLOB_PTX,
    DIRECTORY_ENTRY,
    DIRECTORY_HEAD,
    FEATURE_CONDITIONS,
    FEATURE_GROUPS,
    FEATURE_LETTERS,
    FEATURE_SCRATCH,
    FEATURE_TENSOR_MAPS,
    FEATURE_ZSTD,
    GROUP_BYTES,
    HEADER,
    LIMITS,
    MAGIC,
    MAJOR,
    MINOR,
    NONE,
    PARAM_KINDS,
    PARAM_OPTIONAL,
    RECORDS,
    SECTION_ALIGN,
    SOURCES,
    VALUE_BOOL,
    VALUE_FLOAT,
    VALUE_INT,
    VALUE_NULL,
    VALUE_STRING,
    VARIANT_LOOPS_PROGRAMS,
    VARIANT_WAITS_PDL,
)

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


class _Encoder:
    """Collect the records of an archive, table by table, in the order of the format's walk.

    With `is_grouped`, blobs of one kind that a kernel has for one target share frames.
    """

    def __init__(self, archive: Archive, *, is_grouped: bool) -> None:
        self.tables: dict[str, list[tuple[_Field, ...]]] = {name: [] for name in RECORDS}
        self.code = bytearray()
        self.expressions: dict[tuple[bytes, str], int] = {}
        self.is_grouped = is_grouped
        self.blobs: dict[bytes, int] = {}
        self.blob_kinds: list[int] = []
        self.groups: list[list[bytes]] = []
        self.targets = {name: index for index, name in enumerate(archive.targets)}
        self.features = FEATURE_ZSTD
        self.add("ARCHIVE", archive.name, archive.version, archive.toolchain, 0)
        for name in archive.targets:
            major, minor, letter = parse_target(name)
            self.add("TARGETS", name, major, minor, FEATURE_LETTERS.index(letter), 0)
        for kernel in archive.kernels:
            self.kernel(kernel)

    def add(self, section: str, *fields: _Field) -> None:
        self.tables[section].append(fields)

    def count(self, section: str) -> int:
        return len(self.tables[section])

    def kernel(self, kernel: Kernel) -> None:
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
        if self.is_grouped:
            self.group_blobs(kernel)
        for variant in kernel.variants:
            self.variant(kernel, variant, params)

    def group_blobs(self, kernel: Kernel) -> None:
        """Give the blobs of a kernel that are new their places: by target, cubins before PTX."""
        for target in kernel.targets:
            variants = [variant for variant in kernel.variants if variant.target == target]
            for kind, contents in (
                (BLOB_CUBIN, [variant.cubin for variant in variants]),
                (BLOB_PTX, [variant.ptx for variant in variants]),
            ):
                first_group = len(self.groups)
                for content in contents:
                    if content is not None:
                        self.blob(content, kind, first_group)

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
        first_cubin_param = self.count("CUBIN_PARAMS")
        first_tensor_map = self.count("TENSOR_MAPS")
        condition = 0
        if variant.condition is not None:
            self.features |= FEATURE_CONDITIONS
            condition = 1 + self.expression(variant.condition, params)
        grid = [self.expression(expression, params) for expression in variant.grid]
        scratch = self.optional_expression(variant.scratch_bytes, params)
        for cubin_param in variant.cubin_params:
            self.cubin_param(cubin_param, params)
        for tensor_map in variant.tensor_maps:
            self.tensor_map(tensor_map, params)
        if variant.scratch_bytes is not None:
            self.features |= FEATURE_SCRATCH
        self.add(
            "VARIANTS",
            guard_mask(variant.guards),
            combination(kernel, variant.types, variant.choices),
            variant.config,
            variant.symbol,
            self.blob(variant.cubin, BLOB_CUBIN),
            NONE if variant.ptx is None else self.blob(variant.ptx, BLOB_PTX),
            "\n".join(variant.remarks),
            first_cubin_param,
            *grid,
            *[NONE] * (3 - len(grid)),
            scratch,
            variant.scratch_align,
            first_tensor_map,
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
            variant.waits_pdl * VARIANT_WAITS_PDL | variant.loops_programs * VARIANT_LOOPS_PROGRAMS,
            condition,
        )

    def cubin_param(self, param: CubinParam, params: Mapping[str, int]) -> None:
        index = param.index
        if param.expression is not None:
            index = self.expression(param.expression, params)
        self.add("CUBIN_PARAMS", param.offset, param.size, SOURCES[param.source], 0, index)

    def tensor_map(self, tensor_map: TensorMap, params: Mapping[str, int]) -> None:
        self.features |= FEATURE_TENSOR_MAPS
        rank = len(tensor_map.dims)
        address = self.expression(tensor_map.address, params)
        dims = [self.expression(expression, params) for expression in tensor_map.dims]
        strides = [self.expression(expression, params) for expression in tensor_map.strides]
        self.add(
            "TENSOR_MAPS",
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

    def blob(self, content: bytes, kind: int, first_group: int | None = None) -> int:
        """Return the index of a blob; a new one may join the last group from `first_group` on."""
        index = self.blobs.setdefault(content, len(self.blobs))
        if index == len(self.blob_kinds):
            self.blob_kinds.append(kind)
            has_group = first_group is not None and len(self.groups) > first_group
            if has_group and sum(map(len, self.groups[-1])) + len(content) <= GROUP_BYTES:
                self.groups[-1].append(content)
                self.features |= FEATURE_GROUPS
            else:
                self.groups.append([content])
        if self.blob_kinds[index] != kind:
            raise ArchiveError("FORMAT", "a variant has the same bytes as cubin and as PTX")
        return index

    def strings(self) -> dict[str, int]:
        """Return the offset of every string in STRINGS, which is their sorted concatenation."""
        used = {
            field
            for table in self.tables.values()
            for record in table
            for field in record
            if isinstance(field, str)
        }
        offsets: dict[str, int] = {}
        offset = 0
        for text in sorted(used | {""}, key=str.encode):
            offsets[text] = offset
            offset += len(text.encode()) + 1
        return offsets


def _pack(section: str, records: list[tuple[_Field, ...]], strings: Mapping[str, int]) -> bytes:
    layout = RECORDS[section]
    return b"".join(
        layout.pack(*(strings[field] if isinstance(field, str) else field for field in record))
        for record in records
    )


def _assemble(encoder: _Encoder, frames: list[bytes]) -> bytes:
    """Lay out the header, the sections and the frames."""
    strings = encoder.strings()
    sections = {name: _pack(name, encoder.tables[name], strings) for name in RECORDS}
    sections["CODE"] = bytes(encoder.code)
    sections["STRINGS"] = b"".join(text.encode() + b"\0" for text in strings)
    sections["BLOBS"] = bytes(RECORDS["BLOBS"].size * len(encoder.blobs))
    directory = [DIRECTORY_HEAD.pack(len(RECORDS), 0)]
    offset = DIRECTORY_HEAD.size + DIRECTORY_ENTRY.size * len(RECORDS)
    for kind, (name, body) in enumerate(sections.items(), 1):
        size = RECORDS[name].size
        directory.append(DIRECTORY_ENTRY.pack(kind, size, offset, len(body) // size))
        offset = _aligned(offset + len(body), SECTION_ALIGN)
    index_bytes = offset
    if index_bytes > LIMITS.index_bytes:
        message = f"the index takes {index_bytes} bytes, at most {LIMITS.index_bytes}"
        raise ArchiveError("LIMIT", message)

    position = HEADER.size + index_bytes
    blobs: list[bytes] = []
    records: list[bytes] = []
    kinds = iter(encoder.blob_kinds)
    for group, frame in zip(encoder.groups, frames, strict=True):
        padding = _padding(position, BLOB_ALIGN)
        position += len(padding)
        digest = hashlib.sha256(frame).digest()
        start = 0
        for content in group:
            row = (position, len(frame), len(content), digest, next(kinds), start)
            records.append(RECORDS["BLOBS"].pack(*row))
            start += len(content)
        blobs += (padding, frame)
        position += len(frame)
    if position > LIMITS.file_bytes:
        message = f"the archive takes {position} bytes, at most {LIMITS.file_bytes}"
        raise ArchiveError("LIMIT", message)

    sections["BLOBS"] = b"".join(records)
    bodies = [body + _padding(len(body), SECTION_ALIGN) for body in sections.values()]
    index = b"".join(directory + bodies)
    head = (MAGIC, MAJOR, MINOR, HEADER.size, encoder.features, 0, position, HEADER.size)
    unsealed = HEADER.pack(*head, index_bytes, b"", b"")
    digest = hashlib.sha256(unsealed + index).digest()
    return b"".join([HEADER.pack(*head, index_bytes, digest, b""), index, *blobs])


def encode_records(
    archive: Archive, frames: Callable[[list[bytes]], list[bytes]], *, is_grouped: bool
) -> bytes:
    """Return the bytes of an archive that was checked and is in canonical order.

    `frames` compresses the contents of frames: of a blob each, or `is_grouped` of several.

    Raises: `ArchiveError` LIMIT for an index or a file too large for the format.
    """
    encoder = _Encoder(archive, is_grouped=is_grouped)
    if is_grouped and not encoder.features & FEATURE_GROUPS:
        # Nothing shares a frame, and a reader that finds none takes blobs in the order of variants.
        encoder = _Encoder(archive, is_grouped=False)
    return _assemble(encoder, frames([b"".join(group) for group in encoder.groups]))
