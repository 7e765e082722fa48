"""Decode an archive's kernels and blobs from its root, checking each offset and count before use.

Sizes are compared with a limit and with the bytes present before anything is allocated. Slices of
tables must follow one another, so the work is proportional to the file. `check_index.py` checks
that the records are consistent; `file.py` encodes them again to check that the layout is canonical.

Invariant: for any input, the outcome is an `Archive` or an `ArchiveError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, TypeVar

from aotc.ir.expression import Expression, ExpressionError, parse
from aotc.package.archive.archive_root import Root, Tables, limit, read_header
from aotc.package.archive.code_filter import restored
from aotc.package.archive.flat_tree import FlatBranch, FlatTree, TreeError, depth, unflatten
from aotc.package.archive.index import (
    DTYPE_CODES,
    Archive,
    ArchiveError,
    Choice,
    CubinParam,
    Guard,
    Kernel,
    NamedValues,
    Param,
    TensorMap,
    TypeVariable,
    Value,
    Variant,
    num_combinations,
    split_combination,
)
from aotc.package.archive.layout import (
    ACCESSES,
    BLOB_CUBIN,
    BLOB_PTX,
    KERNEL_SECTIONS,
    LIMITS,
    NONE,
    PARAM_KINDS,
    PARAM_OPTIONAL,
    RECORDS,
    SOURCES,
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

_K = TypeVar("_K")
_T = TypeVar("_T")
_FLOAT64 = struct.Struct("<d")
_UINT64 = struct.Struct("<Q")
_INT64 = struct.Struct("<q")


def _by_code(codes: Mapping[_K, int]) -> dict[int, _K]:
    return {code: name for name, code in codes.items()}


_DTYPES = {0: "", **_by_code(DTYPE_CODES)}
_KINDS = _by_code(PARAM_KINDS)
_ACCESSES = _by_code(ACCESSES)
_SOURCES = _by_code(SOURCES)


def _decode_enum(names: Mapping[int, _T], code: int, field: str) -> _T:
    if code not in names:
        raise ArchiveError("FORMAT", f"there is no {field} {code}")
    return names[code]


def read_archive(root: Root) -> Archive:
    """Decode all kernels of an archive in order."""
    name, version, toolchain, _ = root.rows["ARCHIVE"][0]
    kernels = tuple(_read_kernel(root, number) for number in range(len(root.rows["ENTRIES"])))
    root.check_end()
    return Archive(root.text(name), root.text(version), kernels, root.text(toolchain))


def _read_kernel(root: Root, number: int) -> Kernel:
    """Decode a kernel: its index, then its blobs."""
    decoder = Decoder(root, number)
    frames = zip(root.places(number), decoder.frames, decoder.blobs_by_frame(), strict=True)
    for offset, frame, blobs in frames:
        content = root.read_blobs(offset, frame)
        sizes = [row[2] for row in blobs]
        if root.is_compressed and blobs[0][3] == BLOB_CUBIN:
            decoder.contents += restored(content, sizes)
        else:
            ends = accumulate(sizes)
            decoder.contents += (
                content[end - size : end] for end, size in zip(ends, sizes, strict=True)
            )
        root.has_shared_frames |= len(blobs) > 1
    kernel = decoder.only_kernel()
    name = root.text(root.rows["ENTRIES"][number][0])
    if kernel.name != name:
        raise ArchiveError("FORMAT", f"the index of {name!r} is {kernel.name!r}'s")
    return kernel


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """A stored frame: its kernel, its target (empty for an index), and its sizes."""

    kernel: str
    target: str
    stored_bytes: int
    raw_bytes: int


def stored_frames(data: bytes) -> list[StoredFrame]:
    """Return the frames of an archive; a frame shared by kernels belongs to the first.

    Raises: `ArchiveError` as `decode`.
    """
    root = Root(data, read_header(data))
    indices: list[StoredFrame] = []
    blob_frames: dict[int, StoredFrame] = {}
    for number, (name, _, _, stored_bytes, raw_bytes, *_) in enumerate(root.rows["ENTRIES"]):
        decoder = Decoder(root, number)
        indices.append(StoredFrame(root.text(name), "", stored_bytes, raw_bytes))
        offsets, targets = root.places(number), decoder.targets_of_blobs()
        for blob, row in enumerate(decoder.rows["BLOBS"]):
            frame_number = int(row[0])
            sizes = decoder.frames[frame_number][:2]
            frame = StoredFrame(root.text(name), targets.get(blob, ""), *sizes)
            blob_frames.setdefault(offsets[frame_number], frame)
    return [*indices, *blob_frames.values()]


_CUBIN_FIELD, _PTX_FIELD, _TARGET_FIELD = 4, 5, 18  # of VARIANTS


_OWNED = ("params", "type variables", "choices", "guards", "configs", "constants")
"""Tables owned by a kernel, in the order of its record's slices; unlimited variants and selections
follow."""

_MOST_OWNED = (
    LIMITS.params,
    LIMITS.type_variables,
    LIMITS.choices,
    LIMITS.guards,
    LIMITS.configs,
    LIMITS.constants,
)


class Decoder(Tables):
    """Decode the index of one kernel into records."""

    def __init__(self, root: Root, number: int) -> None:
        """Read the tables of a kernel, given its number."""
        super().__init__(root.read_index(number), KERNEL_SECTIONS, root.minor)
        self.root = root
        self.check_expressions(self.sections["CODE"][2])
        self.expressions = [self.read_expression(row) for row in self.rows["EXPRESSIONS"]]
        self.consumed = dict.fromkeys(RECORDS, 0)
        self.frames: list[tuple[int, int, bytes]] = []
        for stored_bytes, raw_bytes, digest, *_ in self.rows["FRAMES"]:
            self.frames.append((stored_bytes, raw_bytes, digest))
        self.check_frames(len(root.places(number)))
        self.check_blobs()
        self.contents: list[bytes] = []
        # Params and tensor maps of the last variant with tensor maps, and of the last without:
        # first, count.
        self.lists: dict[bool, tuple[tuple[int, int], tuple[int, int]]] = {}

    def check_expressions(self, code_bytes: int) -> None:
        """Check the sizes and offsets of all bytecode before reading any."""
        end = 0
        for offset, size, _, stack_depth, _ in self.rows["EXPRESSIONS"]:
            limit("bytes of an expression's code", size, LIMITS.code_bytes)
            limit("values on an expression's stack", stack_depth, LIMITS.stack)
            if offset != end or size == 0 or end + size > code_bytes:
                raise ArchiveError("FORMAT", "the slices of CODE do not follow one another")
            end += size
        if end != code_bytes:
            raise ArchiveError("FORMAT", "CODE goes on after the last expression")

    def targets_of_blobs(self) -> dict[int, str]:
        """Map each blob to the target of its first variant."""
        target_by_blob: dict[int, str] = {}
        for row in self.rows["VARIANTS"]:
            target = self.text(self.item(self.rows["TARGETS"], row[_TARGET_FIELD], "target")[0])
            for blob in (row[_CUBIN_FIELD], row[_PTX_FIELD]):
                target_by_blob.setdefault(blob, target)
        return target_by_blob

    def check_frames(self, place_count: int) -> None:
        """Check the number of frames and their sizes."""
        if len(self.frames) != place_count:
            raise ArchiveError(
                "FORMAT", f"the kernel has {len(self.frames)} frames, not {place_count}"
            )
        for stored_bytes, raw_bytes, _ in self.frames:
            self.root.check_sizes(stored_bytes, raw_bytes, LIMITS.blob_bytes)

    def check_blobs(self) -> None:
        """Check that the blobs cover the frames without gaps."""
        frame, end, kind = -1, 0, 0
        for row in self.rows["BLOBS"]:
            number, start, raw_bytes, blob_kind = row
            limit("bytes that a frame decodes to", start + raw_bytes, LIMITS.blob_bytes)
            if blob_kind not in (BLOB_CUBIN, BLOB_PTX) or not raw_bytes:
                raise ArchiveError("FORMAT", "a blob is neither a cubin nor PTX, or empty")
            if start and (number, start, blob_kind) != (frame, end, kind):
                raise ArchiveError("FORMAT", "a blob does not follow one in the same frame")
            if not start:
                if number != frame + 1 or end != self.frame_bytes(frame):
                    raise ArchiveError("FORMAT", "blobs and frames do not follow one another")
                frame, kind = number, blob_kind
            end = start + raw_bytes
        if frame != len(self.frames) - 1 or end != self.frame_bytes(frame):
            raise ArchiveError("FORMAT", "the blobs do not cover the frames")

    def blobs_by_frame(self) -> list[list[tuple[int, ...]]]:
        """Return the records of the blobs of each frame."""
        groups = groupby(self.rows["BLOBS"], lambda row: row[0])
        return [[*group] for _, group in groups]

    def frame_bytes(self, frame: int) -> int:
        """Return the decoded size of a frame; 0 before the first."""
        if frame >= len(self.frames):
            raise ArchiveError("FORMAT", f"the kernel has no frame {frame}")
        return self.frames[frame][1] if frame >= 0 else 0

    def read_expression(self, row: tuple[Any, ...]) -> Expression:
        text = self.text(row[2])
        try:
            return parse(text)
        except ExpressionError as error:
            message = f"the expression {text!r} is invalid: {error.message}"
            raise ArchiveError("FORMAT", message) from None

    def item(self, items: list[_T], index: int, field: str) -> _T:
        if index >= len(items):
            raise ArchiveError("FORMAT", f"there is no {field} {index}")
        return items[index]

    def take(self, section: str, first: int, count: int) -> Iterator[tuple[Any, ...]]:
        """Return a record's slice of a table; slices must follow one another."""
        rows = self.rows[section]
        if first != self.consumed[section] or first + count > len(rows):
            raise ArchiveError("FORMAT", f"the slices of {section} do not follow one another")
        self.consumed[section] = first + count
        return iter(rows[first : first + count])

    def take_or_share(
        self, section: str, slice_range: tuple[int, int], previous: tuple[int, int]
    ) -> Iterator[tuple[Any, ...]]:
        """Return a variant's slice of a table, possibly shared with the previous variant."""
        first, count = slice_range
        if count and slice_range == previous:
            return iter(self.rows[section][first : first + count])
        return self.take(section, first, count)

    def only_kernel(self) -> Kernel:
        if len(self.rows["KERNELS"]) != 1:
            raise ArchiveError("FORMAT", "there is not one KERNELS record")
        return self.kernel(self.rows["KERNELS"][0])

    def kernel(self, row: tuple[Any, ...]) -> Kernel:
        promises, digest, name, _, *slices = row
        for counted, count, most in zip(_OWNED, slices[1:-4:2], _MOST_OWNED, strict=True):
            limit(f"{counted} of a kernel", count, most)
        owned = zip(slices[::2], slices[1::2], strict=True)
        param_at, type_at, choice_at, guard_at, config_at, constant_at, variant_at, tree_at = owned
        type_variables = tuple(
            TypeVariable(self.text(name), tuple(self.dtype(code) for code in codes[:count]))
            for name, count, _, codes in self.take("TYPE_VARIABLES", *type_at)
        )
        constants = self.named_values(*constant_at, LIMITS.constants)
        choices = tuple(
            Choice(
                self.text(name),
                tuple(value for _, value in self.named_values(first, count, LIMITS.choice_values)),
            )
            for name, first, count, _ in self.take("CHOICES", *choice_at)
        )
        configs = tuple(
            self.named_values(first, count, LIMITS.config_entries)
            for first, count in self.take("CONFIGS", *config_at)
        )
        guards = tuple(
            Guard(self.expression(root), self.text(text), bool(promises >> index & 1))
            for index, (root, text) in enumerate(self.take("GUARDS", *guard_at))
        )
        params = tuple(
            self.param(param, type_variables) for param in self.take("PARAMS", *param_at)
        )
        variants = tuple(
            self.variant(variant, type_variables, choices)
            for variant in self.take("VARIANTS", *variant_at)
        )
        selections = tuple(
            self.selection(selection) for selection in self.take("SELECTIONS", *tree_at)
        )
        return Kernel(
            self.text(name), digest, variants, params, type_variables, choices, guards, configs,
            constants, selections,
        )  # fmt: skip

    def selection(self, row: tuple[Any, ...]) -> Selection:
        target, gpu, combination, first_feature, num_features, first_branch, num_branches, leaf = (
            row
        )
        limit("features of a selection", num_features, LIMITS.features)
        features = self.take("FEATURES", first_feature, num_features)
        branches = self.take("BRANCHES", first_branch, num_branches)
        leaves = self.take("LEAVES", leaf, num_branches + 1)
        flat = FlatTree(
            tuple(self.expression(index) for (index,) in features),
            tuple(self.branch(branch) for branch in branches),
            tuple(self.leaf(first, count) for first, count in leaves),
        )
        try:
            tree = unflatten(flat)
        except TreeError as error:
            raise ArchiveError("FORMAT", f"a selection: {error}") from None
        limit("branches above a leaf", depth(flat.branches), LIMITS.tree_depth)
        name = self.item(self.rows["TARGETS"], target, "target")[0]
        return Selection(self.text(name), self.text(gpu), combination, tree)

    def branch(self, row: tuple[Any, ...]) -> FlatBranch:
        threshold, feature, low, high, zero = row
        if zero:
            raise ArchiveError("FORMAT", "a branch does not end with zero")
        return FlatBranch(threshold, feature, low, high)

    def leaf(self, first: int, count: int) -> tuple[int, ...]:
        limit("configs of a leaf", count, LIMITS.leaf_configs)
        return tuple(config for (config,) in self.take("LEAF_CONFIGS", first, count))

    def named_values(self, first: int, count: int, most: int) -> NamedValues:
        limit("values of a choice or a config", count, most)
        return tuple(
            (self.text(name), self.value(kind, payload))
            for name, kind, payload in self.take("VALUES", first, count)
        )

    def value(self, kind: int, payload: int) -> Value:
        if kind == VALUE_NULL:
            return None
        if kind == VALUE_BOOL:
            return bool(payload)
        if kind == VALUE_INT:
            return int(_INT64.unpack(_UINT64.pack(payload))[0])
        if kind == VALUE_FLOAT:
            return float(_FLOAT64.unpack(_UINT64.pack(payload))[0])
        if kind == VALUE_STRING:
            return self.text(payload)
        raise ArchiveError("FORMAT", f"there is no value of kind {kind}")

    def dtype(self, code: int) -> str:
        return _decode_enum(_DTYPES, code, "dtype")

    def param(self, row: tuple[Any, ...], variables: tuple[TypeVariable, ...]) -> Param:
        name, kind, dtype, variable, rank, divisibility, flags, access, _ = row
        element = self.dtype(dtype)
        if variable:
            element = self.item(list(variables), variable - 1, "type variable").name
        return Param(
            self.text(name),
            _decode_enum(_KINDS, kind, "param kind"),
            element,
            rank,
            divisibility,
            bool(flags & PARAM_OPTIONAL),
            _decode_enum(_ACCESSES, access, "access"),
        )

    def variant(
        self,
        row: tuple[Any, ...],
        type_variables: tuple[TypeVariable, ...],
        choices: tuple[Choice, ...],
    ) -> Variant:
        (guards, number, config, symbol, cubin, ptx, remarks, first_param, *rest) = row
        grid, rest = rest[:3], rest[3:]
        (scratch, align, first_map, dynamic, static, stack, spills, target, *rest) = rest
        (num_params, num_maps, _, threads, registers, *cluster, flags, condition) = rest
        limit("cubin params of a variant", num_params, LIMITS.cubin_params)
        limit("tensor maps of a variant", num_maps, LIMITS.tensor_maps)
        if number >= num_combinations(type_variables, choices):
            raise ArchiveError("FORMAT", f"there is no combination {number} of types and choices")
        types, chosen = split_combination(type_variables, choices, number)
        params, maps = (first_param, num_params), (first_map, num_maps)
        other_params, other_maps = self.lists.get(num_maps != 0, ((0, 0), (0, 0)))
        self.lists[num_maps != 0] = params, maps
        remark_text = self.text(remarks)
        return Variant(
            target=self.text(self.item(self.rows["TARGETS"], target, "target")[0]),
            symbol=self.text(symbol),
            cubin=self.item(self.contents, cubin, "blob"),
            num_threads=threads,
            types=types,
            choices=chosen,
            guards=tuple(bit for bit in range(64) if guards >> bit & 1),
            config=config,
            condition=self.expression(condition - 1) if condition else None,
            cluster=(cluster[0], cluster[1], cluster[2]),
            dynamic_shared_bytes=dynamic,
            static_shared_bytes=static,
            registers=registers,
            spill_bytes=spills,
            stack_bytes=stack,
            cubin_params=tuple(
                self.cubin_param(param)
                for param in self.take_or_share("CUBIN_PARAMS", params, other_params)
            ),
            grid=tuple(self.expression(index) for index in grid if index != NONE),
            scratch_bytes=None if scratch == NONE else self.expression(scratch),
            scratch_align=align,
            tensor_maps=tuple(
                self.tensor_map(tensor_map)
                for tensor_map in self.take_or_share("TENSOR_MAPS", maps, other_maps)
            ),
            waits_pdl=bool(flags & VARIANT_WAITS_PDL),
            is_persistent=bool(flags & VARIANT_IS_PERSISTENT),
            cooperative=bool(flags & VARIANT_COOPERATIVE),
            remarks=tuple(remark_text.split("\n")) if remark_text else (),
            ptx=None if ptx == NONE else self.item(self.contents, ptx, "blob"),
        )

    def expression(self, index: int) -> Expression:
        return self.item(self.expressions, index, "expression")

    def cubin_param(self, row: tuple[Any, ...]) -> CubinParam:
        offset, size, source, _, index = row
        name = _decode_enum(_SOURCES, source, "cubin param source")
        if name == "expression":
            return CubinParam(offset, size, name, expression=self.expression(index))
        return CubinParam(offset, size, name, index)

    def tensor_map(self, row: tuple[Any, ...]) -> TensorMap:
        param, data_type, rank, interleave, swizzle, promotion, fill, _, address, *rest = row
        dims, strides, box = rest[:5], rest[5:9], rest[9:14]
        element_strides = rest[15]
        if not 1 <= rank <= 5:
            raise ArchiveError("FORMAT", f"a tensor map has rank {rank}")
        return TensorMap(
            param,
            data_type,
            self.expression(address),
            tuple(self.expression(index) for index in dims[:rank]),
            tuple(self.expression(index) for index in strides[: rank - 1]),
            tuple(box[:rank]),
            tuple(element_strides[:rank]),
            interleave,
            swizzle,
            promotion,
            fill,
        )
