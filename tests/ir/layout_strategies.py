"""Random layouts for Hypothesis: permutations of bits, and arbitrary maps over GF(2)."""

from __future__ import annotations

from hypothesis import strategies as st

from aotc.ir import gf2
from aotc.ir.layout import LinearLayout

IN_DIMS = ("register", "lane", "warp")


@st.composite
def shapes(draw: st.DrawFn, max_bits: int = 7, max_rank: int = 3) -> tuple[int, ...]:
    bits = draw(st.lists(st.integers(0, 4), min_size=0, max_size=max_rank))
    while sum(bits) > max_bits:
        bits = [max(0, count - 1) for count in bits]
    return tuple(1 << count for count in bits)


def elements_bits(shape: tuple[int, ...]) -> int:
    return sum(extent.bit_length() - 1 for extent in shape)


@st.composite
def layouts(
    draw: st.DrawFn, shape: tuple[int, ...] | None = None, *, surjective: bool = False
) -> LinearLayout:
    """Any linear map; with `surjective`, one covering the whole tile."""
    shape = draw(shapes()) if shape is None else shape
    num_bits = elements_bits(shape)
    columns = draw(st.lists(st.integers(0, (1 << num_bits) - 1), max_size=num_bits + 3))
    if surjective:
        columns += gf2.complement(columns, num_bits)
        columns = draw(st.permutations(columns))
    cuts = sorted(draw(st.tuples(*[st.integers(0, len(columns))] * 2)))
    parts = (columns[: cuts[0]], columns[cuts[0] : cuts[1]], columns[cuts[1] :])
    outs = tuple((f"dim{axis}", extent.bit_length() - 1) for axis, extent in enumerate(shape))
    return LinearLayout.from_columns(zip(IN_DIMS, parts, strict=True), outs)


@st.composite
def bijections(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> LinearLayout:
    """Each element in exactly one place."""
    shape = draw(shapes()) if shape is None else shape
    num_bits = elements_bits(shape)
    columns = list(draw(st.permutations([1 << bit for bit in range(num_bits)])))
    for _ in range(draw(st.integers(0, 2 * num_bits))):
        # Row operations keep the rank.
        into, of = draw(st.tuples(*[st.integers(0, num_bits - 1)] * 2))
        if into != of:
            columns[into] ^= columns[of]
    cuts = sorted(draw(st.tuples(*[st.integers(0, num_bits)] * 2)))
    parts = (columns[: cuts[0]], columns[cuts[0] : cuts[1]], columns[cuts[1] :])
    outs = tuple((f"dim{axis}", extent.bit_length() - 1) for axis, extent in enumerate(shape))
    return LinearLayout.from_columns(zip(IN_DIMS, parts, strict=True), outs)


def places(layout: LinearLayout) -> list[dict[str, int]]:
    """Return every place of a layout."""
    out: list[dict[str, int]] = [{}]
    for name in layout.in_dims:
        out = [{**coords, name: value} for value in range(layout.in_size(name)) for coords in out]
    return out
