"""Laws of the layout algebra, each checked place by place against plain NumPy arrays."""

from __future__ import annotations

import pickle
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.layout import LinearLayout
from tests.ir.layout_strategies import bijections, layouts, places, shapes

EXAMPLE = LinearLayout({"register": [(0, 1), (1, 0)], "lane": [(0, 2), (2, 0)]}, (4, 4))


def held(layout: LinearLayout) -> np.ndarray:
    """Return, for each place in order, the row-major number of its element."""
    return np.array([layout.apply_packed(**coords) for coords in places(layout)])


def spread(tile: np.ndarray, layout: LinearLayout) -> np.ndarray:
    """Return the element at each input coordinate of a laid-out `tile`."""
    return tile.reshape(-1)[held(layout)]


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(prod(shape)).reshape(shape)


# ---- construction and evaluation --------------------------------------------------------------


def test_worked_table_of_the_module():
    table = [[EXAMPLE.apply(lane=lane, register=r) for r in range(4)] for lane in range(4)]
    assert table == [
        [(0, 0), (0, 1), (1, 0), (1, 1)],
        [(0, 2), (0, 3), (1, 2), (1, 3)],
        [(2, 0), (2, 1), (3, 0), (3, 1)],
        [(2, 2), (2, 3), (3, 2), (3, 3)],
    ]


@given(layouts(), st.data())
def test_linear(layout: LinearLayout, data: st.DataObject):
    assert layout.apply() == (0,) * len(layout.shape)
    values = {name: st.integers(0, layout.in_size(name) - 1) for name in layout.in_dims}
    x, y = (data.draw(st.fixed_dictionaries(values)) for _ in range(2))
    total = {name: x[name] ^ y[name] for name in x}
    assert layout.apply_packed(**total) == layout.apply_packed(**x) ^ layout.apply_packed(**y)


@given(layouts())
def test_table_is_apply_at_every_value(layout: LinearLayout):
    lane = layout.in_size("lane") - 1
    registers = range(layout.in_size("register"))
    table = layout.coords_table("register", lane=lane)
    assert table == [layout.apply(register=r, lane=lane) for r in registers]
    assert [layout.pack(coords) for coords in table] == layout.table("register", lane=lane)


@given(layouts())
def test_bases_build_the_same_layout(layout: LinearLayout):
    bases = {name: layout.bases(name) for name in layout.in_dims}
    again = LinearLayout(bases, layout.shape)
    assert again == layout
    assert hash(again) == hash(layout)
    assert pickle.loads(pickle.dumps(layout)) == layout


def test_equality_respects_dimensions_and_their_order():
    other = EXAMPLE.transpose_ins(("lane", "register"))
    assert other != EXAMPLE
    assert other.transpose_ins(("register", "lane")) == EXAMPLE
    assert EXAMPLE.rename_outs(("row", "col")) != EXAMPLE
    assert EXAMPLE.to_text() != EXAMPLE


def test_immutable():
    with pytest.raises(AttributeError, match="immutable"):
        EXAMPLE._ins = ()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("bases", "shape", "message"),
    [
        ({"register": [(2,)]}, (2,), "dim0 = 2 is outside 0..1"),
        ({"register": [(-1,)]}, (2,), "outside"),
        ({"register": [(0, 1)]}, (2,), "one coordinate for each"),
        ({"register": []}, (3,), "3 is not a power of two"),
        ({"register": []}, (0,), "0 is not a power of two"),
    ],
)
def test_invalid_bases_are_refused(
    bases: dict[str, list[tuple[int, ...]]], shape: tuple[int, ...], message: str
):
    with pytest.raises(ValueError, match=message):
        LinearLayout(bases, shape)


def test_columns_outside_the_tile_are_refused():
    with pytest.raises(ValueError, match="outside"):
        LinearLayout.from_columns([("register", (4,))], (("dim0", 2),))
    with pytest.raises(ValueError, match="named twice"):
        LinearLayout.from_columns([("lane", ()), ("lane", ())], ())


@pytest.mark.parametrize("coords", [{"register": 4}, {"register": -1}, {"warp": 1}])
def test_places_outside_the_layout_are_refused(coords: dict[str, int]):
    with pytest.raises(ValueError, match="outside"):
        EXAMPLE.apply(**coords)


def test_scalar_tile():
    layout = LinearLayout({"register": [], "lane": [(), ()]}, ())
    assert layout.apply(lane=3) == ()
    assert layout.is_surjective()
    assert not layout.is_injective()


# ---- properties -------------------------------------------------------------------------------


@given(layouts())
def test_surjective_injective_and_rank_count_elements(layout: LinearLayout):
    elements = held(layout)
    distinct = len(np.unique(elements))
    assert 1 << layout.rank == distinct
    assert layout.is_surjective() == (distinct == prod(layout.shape))
    assert layout.is_injective() == (distinct == len(elements))


@given(layouts())
def test_places_without_free_bits_hold_each_element_once(layout: LinearLayout):
    free = layout.free_variable_masks()
    first = [
        layout.apply_packed(**coords)
        for coords in places(layout)
        if not any(free[name] & value for name, value in coords.items())
    ]
    assert sorted(first) == sorted(set(held(layout).tolist()))


def test_free_variable_masks_of_the_docstring():
    layout = LinearLayout({"register": [(1,)], "lane": [(2,), (0,), (3,)]}, (4,))
    assert layout.free_variable_masks() == {"register": 0, "lane": 0b110}
    assert layout.zero_mask("lane") == 0b010


@given(layouts(), st.data())
def test_num_consecutive_is_the_widest_aligned_run(layout: LinearLayout, data: st.DataObject):
    order = tuple(data.draw(st.permutations(range(len(layout.shape)))))
    flat = layout.transpose(tuple(reversed(order)))

    def runs(width: int) -> bool:
        for coords in places(flat):
            if coords["register"] % width == 0:
                first = flat.apply_packed(**coords)
                run = [
                    flat.apply_packed(**{**coords, "register": coords["register"] + step})
                    for step in range(width)
                ]
                if first % width or run != list(range(first, first + width)):
                    return False
        return True

    widths = [1 << bit for bit in range(layout.in_bits("register") + 1)]
    assert layout.num_consecutive("register", order) == max(filter(runs, widths))


def test_num_consecutive_of_the_docstring():
    bases = {"register": [(0, 1), (0, 2), (1, 0)], "lane": [(0, 4)]}
    layout = LinearLayout(bases, (2, 8))
    assert layout.num_consecutive() == 4
    assert layout.num_consecutive(order=(0, 1)) == 1
    # A lane that steps inside the run breaks its alignment.
    assert LinearLayout({**bases, "lane": [(0, 2)]}, (2, 8)).num_consecutive() == 2


@given(layouts())
def test_sublayout_projects(layout: LinearLayout):
    part = layout.sublayout(["lane"], layout.out_dims[:1])
    for lane in range(layout.in_size("lane")):
        assert part.apply(lane=lane) == layout.apply(lane=lane)[:1]
    assert layout.sublayout_is_zero(["lane"], layout.out_dims) == (
        layout.zero_mask("lane") == layout.in_size("lane") - 1
    )


# ---- algebra ----------------------------------------------------------------------------------


@given(st.data())
def test_compose_is_one_after_the_other(data: st.DataObject):
    inner = data.draw(layouts())
    sizes = {name: 2 * inner.out_size(name) for name in inner.out_dims}
    bits = data.draw(st.integers(0, 4))
    columns = {
        name: data.draw(
            st.lists(st.integers(0, (1 << bits) - 1), min_size=n.bit_length() - 1, max_size=9)
        )
        for name, n in sizes.items()
    }
    outer = LinearLayout.from_columns(columns.items(), (("bank", bits),))
    composed = inner.compose(outer)
    for in_coords in places(inner):
        coords = dict(zip(inner.out_dims, inner.apply(**in_coords), strict=True))
        assert composed.apply(**in_coords) == outer.apply(**coords)


@given(bijections())
def test_invert(layout: LinearLayout):
    inverse = layout.invert()
    assert inverse.invert() == layout
    for in_coords in places(layout):
        coords = dict(zip(layout.out_dims, layout.apply(**in_coords), strict=True))
        back = dict(zip(inverse.out_dims, inverse.apply(**coords), strict=True))
        assert back == in_coords


def test_invert_requires_a_bijection():
    with pytest.raises(ValueError, match="not bijective"):
        LinearLayout({"lane": [(0,)]}, (1,)).invert()
    with pytest.raises(ValueError, match="not surjective"):
        LinearLayout({"lane": [(0,)]}, (2,)).pseudo_invert()


@given(layouts(surjective=True))
def test_pseudo_invert_finds_a_place_without_free_bits(layout: LinearLayout):
    inverse = layout.pseudo_invert()
    free = layout.free_variable_masks()
    for coords in places(inverse):
        source = dict(zip(inverse.out_dims, inverse.apply(**coords), strict=True))
        assert layout.apply(**source) == tuple(coords[name] for name in layout.out_dims)
        assert not any(free[name] & value for name, value in source.items())


@given(st.data())
def test_invert_and_compose(data: st.DataObject):
    a = data.draw(layouts(surjective=True))
    b = data.draw(layouts(shape=a.shape))
    c = b.invert_and_compose(a)
    free = a.free_variable_masks()
    for coords in places(b):
        source = dict(zip(c.out_dims, c.apply(**coords), strict=True))
        assert a.apply(**source) == b.apply(**coords)
        assert not any(free[name] & value for name, value in source.items())


def test_invert_and_compose_needs_all_elements():
    whole = LinearLayout({"register": [(1,), (2,)]}, (4,))
    half = LinearLayout({"register": [(1,), (0,)]}, (4,))
    assert half.invert_and_compose(whole).bases("register") == ((1,), (0,))
    with pytest.raises(ValueError, match="does not hold"):
        whole.invert_and_compose(half)
    with pytest.raises(ValueError, match="different outputs"):
        whole.invert_and_compose(LinearLayout({"register": [(1,)]}, (2,)))


@given(layouts(), layouts())
def test_product_puts_blocks_side_by_side(block: LinearLayout, blocks: LinearLayout):
    product = block * blocks
    sizes = dict(zip(block.out_dims, block.shape, strict=True))
    for name in product.out_dims:
        mine = sizes.get(name, 1)
        theirs = dict(zip(blocks.out_dims, blocks.shape, strict=True)).get(name, 1)
        assert product.out_size(name) == mine * theirs
    for inner in places(block)[:16]:
        for outer in places(blocks)[:16]:
            coords = {
                name: inner[name] + block.in_size(name) * outer[name] for name in product.in_dims
            }
            low = dict(zip(block.out_dims, block.apply(**inner), strict=True))
            high = dict(zip(blocks.out_dims, blocks.apply(**outer), strict=True))
            for name, coord in zip(product.out_dims, product.apply(**coords), strict=True):
                assert coord == low.get(name, 0) + sizes.get(name, 1) * high.get(name, 0)


@given(st.data())
def test_divide_left_undoes_the_product(data: st.DataObject):
    shape = data.draw(shapes(max_rank=2))
    block, blocks = data.draw(layouts(shape=shape)), data.draw(layouts(shape=shape))
    product = block * blocks
    assert product.divide_left(block) == blocks
    other = data.draw(layouts(shape=shape))
    quotient = product.divide_left(other)
    assert quotient is None or other * quotient == product


def test_divide_left_says_no():
    layout = LinearLayout({"register": [(1,)], "lane": [(2,)]}, (4,))
    assert layout.divide_left(LinearLayout({"lane": [(1,)]}, (2,))) is None
    assert layout.divide_left(LinearLayout({"warp": [(1,)]}, (2,))) is None
    assert layout.divide_left(LinearLayout({"register": [(1,), (2,)]}, (4,))) is None
    part = LinearLayout({"register": [(1,)]}, (2,))
    assert layout.divide_left(part) == LinearLayout({"register": [], "lane": [(1,)]}, (2,))


def test_quotient_drops_identities():
    sizes = {"lane": 2, "register": 2}
    move = LinearLayout({"register": [(0, 1)], "lane": [(1, 0)]}, sizes)
    assert move.is_identity_on("lane")
    assert move.quotient(["lane"]) == LinearLayout({"register": [(1,)]}, {"register": 2})
    mixed = LinearLayout({"register": [(1, 1)], "lane": [(1, 0)]}, sizes)
    assert not mixed.is_identity_on("lane")
    assert mixed.quotient(["lane"]) is None


# ---- dimensions -------------------------------------------------------------------------------


@given(layouts(), st.data())
def test_reordering_dimensions_changes_no_element(layout: LinearLayout, data: st.DataObject):
    ins = data.draw(st.permutations(layout.in_dims))
    outs = data.draw(st.permutations(layout.out_dims))
    reordered = layout.transpose_ins(ins).transpose_outs(outs)
    for in_coords in places(layout):
        coords = dict(zip(layout.out_dims, layout.apply(**in_coords), strict=True))
        assert reordered.apply(**in_coords) == tuple(coords[name] for name in outs)


@given(layouts())
def test_flattening_keeps_the_packed_bits(layout: LinearLayout):
    flat = layout.flatten_ins("offset").flatten_outs("index")
    assert flat.columns("offset") == layout.all_columns()
    assert flat.shape == (prod(layout.shape),)
    sizes = {name: layout.in_size(name) for name in layout.in_dims}
    assert flat.reshape_ins(sizes).reshape_outs(layout.shape) == layout


@given(layouts())
def test_remove_zero_bases_keeps_the_elements_of_each_thread(layout: LinearLayout):
    slim = layout.remove_zero_bases("register")
    assert slim.zero_mask("register") == 0
    for lane in range(layout.in_size("lane")):
        all_held = layout.table("register", lane=lane)
        assert set(slim.table("register", lane=lane)) == set(all_held)
    assert slim.in_bits("register") + layout.zero_mask("register").bit_count() == (
        layout.in_bits("register")
    )


# ---- shape operations: the layout of the result holds the result ------------------------------


@given(layouts(), st.data())
def test_transpose(layout: LinearLayout, data: st.DataObject):
    order = data.draw(st.permutations(range(len(layout.shape))))
    tile = numbered(layout.shape)
    transposed = layout.transpose(order)
    assert transposed.shape == tile.transpose(order).shape
    np.testing.assert_array_equal(spread(tile.transpose(order), transposed), spread(tile, layout))


@given(layouts(), st.data())
def test_reshape(layout: LinearLayout, data: st.DataObject):
    tile = numbered(layout.shape)
    num_bits = tile.size.bit_length() - 1
    cuts = sorted(data.draw(st.lists(st.integers(0, num_bits), max_size=3)))
    shape = [1 << high - low for low, high in pairwise([0, *cuts, num_bits])]
    reshaped = layout.reshape(shape)
    assert reshaped.shape == tuple(shape)
    np.testing.assert_array_equal(spread(tile.reshape(shape), reshaped), spread(tile, layout))


@given(layouts(), st.data())
def test_expand_dims_and_reduce_are_inverse(layout: LinearLayout, data: st.DataObject):
    axis = data.draw(st.integers(0, len(layout.shape)))
    tile = numbered(layout.shape)
    expanded = layout.expand_dims(axis)
    assert expanded.shape == np.expand_dims(tile, axis).shape
    np.testing.assert_array_equal(spread(tile, expanded), spread(tile, layout))
    assert expanded.reduce(axis) == layout


@given(layouts().filter(lambda layout: layout.shape), st.data())
def test_reduce(layout: LinearLayout, data: st.DataObject):
    axis = data.draw(st.integers(0, len(layout.shape) - 1))
    tile = numbered(layout.shape)
    sums = tile.sum(axis)
    reduced = layout.reduce(axis)
    wide = np.broadcast_to(np.expand_dims(sums, axis), tile.shape)
    np.testing.assert_array_equal(spread(sums, reduced), spread(wide, layout))


@given(layouts(), st.data())
def test_broadcast_source(layout: LinearLayout, data: st.DataObject):
    keep = data.draw(st.tuples(*[st.booleans()] * len(layout.shape)))
    shape = tuple(n if keeps else 1 for n, keeps in zip(layout.shape, keep, strict=True))
    tile = numbered(shape)
    source = layout.broadcast_source(shape)
    assert source.shape == shape
    wide = np.broadcast_to(tile, layout.shape)
    np.testing.assert_array_equal(spread(tile, source), spread(wide, layout))
    # And forwards: repeating in registers holds each element of the result.
    forward = source.broadcast_to(layout.shape)
    registers = source.in_size("register")
    for lane in range(layout.in_size("lane")):
        before = tile.reshape(-1)[source.table("register", lane=lane)]
        after = wide.reshape(-1)[forward.table("register", lane=lane)]
        np.testing.assert_array_equal(after, np.tile(before, len(after) // registers))
    assert forward.is_surjective() == source.is_surjective()


@given(layouts())
def test_join_and_split(layout: LinearLayout):
    first, second = numbered(layout.shape), 1000 + numbered(layout.shape)
    joined = layout.join()
    tile = np.stack([first, second], axis=-1)
    assert joined.shape == tile.shape
    for lane in range(layout.in_size("lane")):
        registers = tile.reshape(-1)[joined.table("register", lane=lane)]
        held_registers = layout.table("register", lane=lane)
        np.testing.assert_array_equal(registers[0::2], first.reshape(-1)[held_registers])
        np.testing.assert_array_equal(registers[1::2], second.reshape(-1)[held_registers])
    assert joined.split_register_bit() == 0
    assert joined.split() == layout


def test_split_needs_both_halves_in_one_thread():
    lanes = LinearLayout({"register": [(1, 0)], "lane": [(0, 1)]}, (2, 2))
    assert lanes.split_register_bit() is None
    with pytest.raises(ValueError, match="no register alone"):
        lanes.split()
    high = LinearLayout({"register": [(1, 0), (0, 1)], "lane": []}, (2, 2))
    assert high.split_register_bit() == 1
    assert high.split() == LinearLayout({"register": [(1,)], "lane": []}, (2,))


@given(layouts().filter(lambda layout: layout.shape), st.data())
def test_concat(layout: LinearLayout, data: st.DataObject):
    axis = data.draw(st.integers(0, len(layout.shape) - 1))
    first, second = numbered(layout.shape), 1000 + numbered(layout.shape)
    joined = layout.concat(axis)
    tile = np.concatenate([first, second], axis)
    assert joined.shape == tile.shape
    for lane in range(layout.in_size("lane")):
        registers = tile.reshape(-1)[joined.table("register", lane=lane)]
        held_registers = layout.table("register", lane=lane)
        expected = [first.reshape(-1)[held_registers], second.reshape(-1)[held_registers]]
        np.testing.assert_array_equal(registers, np.concatenate(expected))


@pytest.mark.parametrize(
    "call",
    [
        lambda: EXAMPLE.reshape((8,)),
        lambda: EXAMPLE.transpose((0, 0)),
        lambda: EXAMPLE.transpose((0,)),
        lambda: EXAMPLE.reduce(2),
        lambda: EXAMPLE.reduce(-1),
        lambda: EXAMPLE.expand_dims(3),
        lambda: EXAMPLE.concat(2),
        lambda: EXAMPLE.broadcast_source((2, 4)),
        lambda: EXAMPLE.broadcast_source((4,)),
        lambda: EXAMPLE.broadcast_to((8, 4)),
        lambda: EXAMPLE.transpose_ins(("lane",)),
        lambda: EXAMPLE.transpose_outs(("dim0", "dim0")),
        lambda: EXAMPLE.reshape_ins({"offset": 8}),
        lambda: EXAMPLE.compose(EXAMPLE),
        lambda: EXAMPLE.out_bits("dim2"),
    ],
)
def test_what_an_operation_requires_is_checked(call):
    with pytest.raises(ValueError):
        call()
