"""Tiling of a dot by `wgmma`: its fragments in registers and its matrix descriptors.

One instruction multiplies 64 rows of A by up to 256 columns of B, 32 bytes deep. The manual fixes
the registers of the accumulator and of an A in registers. So they are looked up in the layouts of
the tiles, by the element at each position.

An operand in shared memory is described by a first byte, two strides and a swizzle, in one of two
orders: K contiguous, or the rows of A and columns of B, here both called *rows*. A descriptor gives
the address step of each bit of a row or of K. So it is read off the buffer's layout: undo the
swizzle, follow the bits, and see whether two strides describe them.

                 bits of a row                               bits of K
    K, none      16 bytes three times, stride                element, leading
    K, swizzled  the span three times, stride                element, 16 bytes
    rows, none   element three times, stride                 16 bytes three times, leading
    rows, swizz. element three times, 16 bytes up to the     the span three times, stride
                 span, leading

Swizzles apply to addresses, so an instruction may begin wherever the layout without swizzle has its
first element, as long as the buffer is aligned to the pattern.

Invariant: the instructions of a `WgmmaTiling` multiply every pair of elements exactly once. Source:
PTX ISA, "Register Fragments for wgmma.mma_async", "Shared Memory Matrix Layout", "Strides", "Matrix
Descriptor Format".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from aotc.ir import gf2
from aotc.ir.core import Op
from aotc.ir.layout import LinearLayout, log2_exact
from aotc.ir.types import I32, ElementType

ROWS = 64
MIN_COLUMNS = 8
MAX_COLUMNS = 256
K_BYTES = 32
SWIZZLE_PERIOD_BYTES = 1024
"""Bytes after which the widest swizzle repeats: the alignment of a buffer."""

_INTEGER_STEP, _LAST_INTEGER_EIGHTH = 16, 32
_SPANS_BYTES = (128, 64, 32, 0)
_CHUNK_BYTES = 16
_LINE_BITS = 7
_CHUNK_BITS = 4
_WORD_BITS = 32
_FIELD_BITS = 14
_SPAN_CODES = {0: 0, 128: 1, 64: 2, 32: 3}

Coords = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MatrixInMemory:
    """Describe an operand in shared memory; `row_bits` and `k_bits` are address steps.

    Each bit of a row or of K has its step, in bytes before the swizzle. `rows_contiguous` is the
    instruction's transposed order.
    """

    leading_bytes: int
    stride_bytes: int
    span_bytes: int
    rows_contiguous: bool
    row_bits: tuple[int, ...]
    k_bits: tuple[int, ...]

    def start_bytes(self, row: int, k: int) -> int:
        """Return the byte offset of the part of the matrix at an element."""
        return gf2.combine(self.row_bits, row) ^ gf2.combine(self.k_bits, k)

    @property
    def descriptor(self) -> int:
        """The descriptor's 64 bits, but for the address in units of 16 bytes in its lowest."""
        leading, stride = self.leading_bytes >> _CHUNK_BITS, self.stride_bytes >> _CHUNK_BITS
        return leading << 16 | stride << 32 | _SPAN_CODES[self.span_bytes] << 62


@dataclass(frozen=True, slots=True)
class AccumulatorTile:
    """Hold one instruction's part of a warpgroup's accumulator, `columns` wide.

    It begins at `row` and `column` of the warpgroup's own part. `acc` are its registers in the
    order of the instruction. If A is in registers, `a[k]` are the 32-bit registers of A at this
    step of K, each as the elements packed in it.
    """

    row: int
    column: int
    columns: int
    acc: tuple[int, ...]
    a: tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class WgmmaTiling:
    """Tile the dot of two operands by instructions of 64 rows, `k` deep.

    `warp_rows` and `warp_columns` say how far each bit of a warp's id moves its warpgroup.
    """

    k: int
    num_steps: int
    a: MatrixInMemory | None
    b: MatrixInMemory
    acc_tiles: tuple[AccumulatorTile, ...]
    warp_rows: tuple[int, ...]
    warp_columns: tuple[int, ...]


def instruction_columns(columns: int, result: ElementType) -> int:
    """Return the columns of the narrowest instruction with at least `columns`.

    They are a multiple of 8, and beyond 32 of integers a multiple of 16. Beyond the widest
    instruction they are the columns of several.
    """
    is_wide_integer = result == I32 and columns > _LAST_INTEGER_EIGHTH
    step = _INTEGER_STEP if is_wide_integer else MIN_COLUMNS
    return -(-columns // step) * step


def check_wgmma(
    op: Op,
    a: LinearLayout,
    b: LinearLayout,
    acc: LinearLayout,
    element_bits: int,
    num_columns: int,
    *,
    in_memory: bool,
) -> None:
    """Check that layouts have a wgmma tiling. Raises: IRError."""
    try:
        tile_wgmma(a, b, acc, element_bits, num_columns, in_memory=in_memory)
    except ValueError as error:
        op.error(str(error))


@lru_cache(maxsize=256)
def tile_wgmma(
    a: LinearLayout,
    b: LinearLayout,
    acc: LinearLayout,
    element_bits: int,
    num_columns: int = 0,
    *,
    in_memory: bool,
) -> WgmmaTiling:
    """Tile a dot by wgmma; with `in_memory`, A is in a shared buffer.

    `num_columns`, unless 0, limits the dot to the first columns, by one instruction or several
    about equally wide ones; no other warpgroup may have columns of the tile.

    Raises: ValueError if no instruction, or no matrix descriptor, fits the layouts.
    """
    k = 8 * K_BYTES // element_bits
    num_steps, rest = divmod(a.shape[1], k)
    if rest or not num_steps:
        raise ValueError(f"{a.shape[1]} elements of K are not a multiple of {k}")
    columns = _columns_of_instruction(acc)
    count = -(-num_columns // MAX_COLUMNS) or 1
    num_columns_held = columns << sum(step >= columns for _, step in acc.bases("register"))
    if num_columns and num_columns_held != acc.shape[1]:
        raise ValueError(f"{num_columns} of {acc.shape[1]} columns are several warpgroups'")
    _check_acc_threads(acc)
    parts = _parts(num_columns, count) if num_columns else ()
    return WgmmaTiling(
        k=k,
        num_steps=num_steps,
        a=matrix_in_memory(a, 0, ROWS, element_bits) if in_memory else None,
        b=matrix_in_memory(b, 1, columns if count == 1 else acc.shape[1], element_bits),
        acc_tiles=tuple(_acc_tiles(a, acc, columns, parts, element_bits, in_memory=in_memory)),
        warp_rows=tuple(row for row, _ in acc.bases("warp")),
        warp_columns=tuple(column for _, column in acc.bases("warp")),
    )


def _parts(num_columns: int, count: int) -> tuple[tuple[int, int], ...]:
    """Return where instructions begin, and how wide they are.

    Each begins with the registers of 16 columns: where these are not aligned so, ptxas moves the accumulators.
    """
    step = 2 * MIN_COLUMNS
    wide = -(-num_columns // (count * step)) * step
    return tuple((start, min(wide, num_columns - start)) for start in range(0, num_columns, wide))


# ---- registers --------------------------------------------------------------------------------


def _columns_of_instruction(acc: LinearLayout) -> int:
    """Return the number of contiguous columns in a warpgroup, at most an instruction's."""
    bases = acc.bases("register")
    columns = MIN_COLUMNS
    while columns < MAX_COLUMNS and (0, columns) in bases:
        columns *= 2
    return columns


def _check_acc_threads(acc: LinearLayout) -> None:
    lanes = ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))
    if acc.bases("lane") != lanes or acc.bases("warp")[:2] != ((16, 0), (32, 0)):
        raise ValueError(f"threads of {acc} do not hold a result of wgmma")


def _check_a_threads(a: LinearLayout, acc: LinearLayout, per_word: int) -> None:
    lanes = ((0, per_word), (0, 2 * per_word), (1, 0), (2, 0), (4, 0))
    rows = tuple((row, 0) for row, _ in acc.bases("warp"))
    if a.bases("lane") != lanes or a.bases("warp") != rows:
        raise ValueError(f"threads of {a} do not hold the operand A of {acc}")


def _acc_tiles(
    a: LinearLayout,
    acc: LinearLayout,
    columns: int,
    parts: Sequence[tuple[int, int]],
    element_bits: int,
    *,
    in_memory: bool,
) -> Iterator[AccumulatorTile]:
    """Yield the accumulator tiles of a warpgroup, row by row.

    They are `parts` of the columns, or the contiguous `columns` of the warpgroup.
    """
    words: dict[Coords, int] = {}
    k, per_word = 8 * K_BYTES // element_bits, _WORD_BITS // element_bits
    if not in_memory:
        _check_a_threads(a, acc, per_word)
        words = _registers_by_place(a)
    registers = _registers_by_place(acc)
    inside = [(0, 1), (8, 0), *((0, 8 << bit) for bit in range(log2_exact(columns // 8)))]
    starts = sorted(
        coords for coords in registers if coords[0] % ROWS == 0 and coords[1] % columns == 0
    )
    if len(starts) << len(inside) != len(registers):
        raise ValueError(f"registers of {acc} do not hold whole results of wgmma")
    tiles = [(row, column, columns) for row, column in starts]
    if parts:
        rows = dict.fromkeys(row for row, _ in starts)
        tiles = [(row, column, width) for row in rows for column, width in parts]
    for row, column, width in tiles:
        yield AccumulatorTile(
            row,
            column,
            width,
            tuple(
                _register_at(registers, coords, acc)
                for eighth in range(0, width, MIN_COLUMNS)
                for coords in _span(inside[:2], (row, column + eighth))
            ),
            tuple(
                tuple(
                    tuple(
                        _register_at(words, coords, a)
                        for coords in _span(_in_word(per_word), start)
                    )
                    for start in _span([(8, 0), (0, 4 * per_word)], (row, first))
                )
                for first in range(0, a.shape[1], k)
            )
            if not in_memory
            else (),
        )


def _in_word(per_word: int) -> list[Coords]:
    return [(0, 1 << bit) for bit in range(log2_exact(per_word))]


def _registers_by_place(layout: LinearLayout) -> dict[Coords, int]:
    """Map each element of the first thread to its register."""
    return {
        (row, column): register
        for register, (row, column) in enumerate(layout.coords_table("register"))
    }


def _register_at(registers: dict[Coords, int], coords: Coords, layout: LinearLayout) -> int:
    if coords not in registers:
        raise ValueError(f"the first thread of {layout} does not hold {coords}")
    return registers[coords]


def _span(steps: Sequence[Coords], start: Coords) -> list[Coords]:
    """Return `start` plus each subset of the steps, the first step varying fastest."""
    positions = [start]
    for row, column in steps:
        positions += [(coords[0] + row, coords[1] + column) for coords in positions]
    return positions


# ---- matrices in memory -----------------------------------------------------------------------


@lru_cache(maxsize=256)
def matrix_in_memory(
    buffer: LinearLayout, row_axis: int, rows: int, element_bits: int
) -> MatrixInMemory:
    """Describe an operand for an instruction of `rows`.

    Raises: ValueError if a descriptor cannot describe its layout.
    """
    size_bytes = element_bits // 8
    offsets = gf2.Span(buffer.columns("offset"))
    for span in _SPANS_BYTES:
        bits = [
            [
                _without_swizzle(offsets.solve(column) or 0, size_bytes, span)
                for column in _axis_columns(buffer, axis)
            ]
            for axis in (row_axis, 1 - row_axis)
        ]
        if len(gf2.independent([*bits[0], *bits[1]])) < buffer.total_out_bits or not _disjoint(
            bits
        ):
            continue
        for rows_contiguous in (False, True):
            if rows_contiguous and element_bits != 16:
                continue
            strides: dict[str, int] = {}
            order = _expected_steps(size_bytes, span, rows_contiguous=rows_contiguous)
            counts = (log2_exact(rows), log2_exact(K_BYTES // size_bytes))
            if all(
                _matches_steps(addresses[:count], expected, strides)
                for addresses, expected, count in zip(bits, order, counts, strict=True)
            ):
                return MatrixInMemory(
                    strides.get("leading", _CHUNK_BYTES),
                    strides.get("stride", _CHUNK_BYTES),
                    span,
                    rows_contiguous,
                    tuple(bits[0]),
                    tuple(bits[1]),
                )
    raise ValueError(f"no descriptor describes {buffer} of {element_bits} bits")


def _axis_columns(buffer: LinearLayout, axis: int) -> list[int]:
    coords = [0, 0]
    columns: list[int] = []
    for bit in range(log2_exact(buffer.shape[axis])):
        coords[axis] = 1 << bit
        columns.append(buffer.pack(coords))
    return columns


def _without_swizzle(offset_elems: int, size_bytes: int, span: int) -> int:
    address = offset_elems * size_bytes
    chunks = max(0, span // _CHUNK_BYTES - 1)
    return address ^ (address >> _LINE_BITS & chunks) << _CHUNK_BITS


def _disjoint(bits: Sequence[Sequence[int]]) -> bool:
    """Return whether each bit steps by one bit of the address, so addresses add up."""
    return all(address & (address - 1) == 0 for group in bits for address in group)


_Expected = Iterator[tuple[str, int]]


def _expected_steps(
    size_bytes: int, span: int, *, rows_contiguous: bool
) -> tuple[_Expected, _Expected]:
    """Return where the bits of a row and of K are to lead: bytes, or so many times a stride."""
    in_chunk = [("", size_bytes << bit) for bit in range(log2_exact(_CHUNK_BYTES // size_bytes))]
    eight = [("", (span or _CHUNK_BYTES) << bit) for bit in range(3)]
    if not rows_contiguous:
        chunks = [("", _CHUNK_BYTES)] if span else [("leading", 1)]
        return _with_stride(eight, "stride"), iter([*in_chunk, *chunks])
    if not span:
        return _with_stride(in_chunk, "stride"), _with_stride(eight, "leading")
    inside = [("", _CHUNK_BYTES << bit) for bit in range(log2_exact(span // _CHUNK_BYTES))]
    return _with_stride([*in_chunk, *inside], "leading"), _with_stride(eight, "stride")


def _with_stride(steps: Sequence[tuple[str, int]], stride: str) -> _Expected:
    yield from steps
    for bit in count():
        yield stride, 1 << bit


def _matches_steps(addresses: Sequence[int], expected: _Expected, strides: dict[str, int]) -> bool:
    """Return whether the bits step as expected; a stride is fixed by its first bit."""
    for address, (name, times) in zip(addresses, expected, strict=False):
        step = strides.setdefault(name, address) if name else 1
        if address != step * times or (name and step >> _CHUNK_BITS + _FIELD_BITS):
            return False
    return True
