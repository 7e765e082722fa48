"""Uses of arguments (extents, strides, indices), and results that may differ in rounding."""

from __future__ import annotations

import pytest

from aotc.ir.dialects import arith, tile
from aotc.ir.text import parse_kernel
from aotc.ir.types import I32
from aotc.verify.checks.dataflow import Roles, roles_of
from aotc.verify.checks.integers import LaunchValues, upper_bound
from aotc.verify.checks.noise import is_inexact
from aotc.verify.checks.value_flow import forward
from tests.support.steered_kernel import STEERED
from tests.support.verify_subjects import kernel_of


def _roles(name: str, **grid_blocks: int) -> Roles:
    return roles_of(kernel_of(name), grid_blocks, is_inexact)


def test_a_row_kernel() -> None:
    roles = _roles("scale_rows", n_rows=1)
    assert roles.extents == {"n_rows": 1, "n_cols": 16}
    assert {p: [t.stride for t in terms] for p, terms in roles.strides.items()} == {
        "x_ptr": ["stride"],
        "out_ptr": ["stride"],
    }
    assert roles.unit == ["x_ptr", "out_ptr"]
    assert roles.indices == []
    assert roles.inexact == []


def test_the_grid_knows_the_block_where_the_mask_does_not() -> None:
    assert _roles("crowd", n=128).extents == {"n": 128}
    assert _roles("crowd").extents == {"n": 16}


def test_a_loops_bound_is_no_masked_extent() -> None:
    """Else the loop over all heads would run for hundreds of them."""
    assert _roles("head_rows").extents == {"n_heads": 1, "n_rows": 16}


def test_a_sum_may_be_made_in_any_order() -> None:
    assert _roles("sum_rows").inexact == ["out_ptr"]
    assert _roles("count").inexact == ["out_ptr"]


def test_an_integer_sum_is_exact() -> None:
    kernel = kernel_of("count", types={"x_ptr": "*i32", "out_ptr": "*i32"})
    assert roles_of(kernel, {}, is_inexact).inexact == []


def test_loaded_values_that_become_addresses_are_indices() -> None:
    roles = _roles("gather")
    assert roles.indices == ["index_ptr"]
    assert roles.offsets == []
    assert roles.addresses == {}
    assert [term.stride for term in roles.strides["x_ptr"]] == ["stride_x"]
    assert "index_ptr" in roles.unit


def test_a_product_that_swizzles_programs_bounds_no_index() -> None:
    assert _roles("swizzled").extents == {"n_rows": 16, "n_cols": 16}


def test_two_values_around_a_loop_are_offsets() -> None:
    assert _roles("sequence_sums").offsets == ["starts_ptr"]


def test_integers_that_become_pointers_are_addresses() -> None:
    assert _roles("rows_at_addresses").addresses == {"addresses_ptr": I32}


def test_strides_are_in_the_order_of_the_signature_and_extents_belong_to_axes() -> None:
    roles = _roles("grouped")
    assert roles.stride_names == ("stride_am", "stride_an", "stride_om", "stride_on")
    assert roles.unit == []
    assert roles.axes == {0: ["M"], 1: ["N"]}


@pytest.mark.parametrize(("grid", "bound"), [((5,), 4), ((1,), 0)])
def test_a_bound_of_a_program_id(grid: tuple[int, ...], bound: int) -> None:
    (term,) = _roles("sum_rows").strides["x_ptr"]
    assert [upper_bound(index, LaunchValues(grid, {})) for index in term.indices] == [bound]


def test_an_index_of_lanes_has_no_bound_of_its_own() -> None:
    (term, _) = _roles("grouped").strides["a_ptr"]
    assert upper_bound(term.indices[0], LaunchValues((2, 2), {})) is None


def test_a_condition_reaches_the_ops_it_decides() -> None:
    """Of a loop's carried values, this is the selected one, not the trip count."""
    kernel = parse_kernel(STEERED)
    (exp,) = (op for op in kernel.walk() if isinstance(op, arith.Exp))
    opcodes = [op.opcode for op in kernel.walk() if op in forward([exp])]
    inside = ["arith.addptr", "tile.store", "scf.yield", "scf.yield"]
    assert opcodes == [
        *("arith.exp", "arith.compare", *inside, "arith.add"),
        *("arith.addptr", "tile.load", "tile.store"),
    ]


def test_a_bound_reaches_the_whole_loop() -> None:
    kernel = parse_kernel(
        STEERED.replace("scf.for(%zero, %n", "scf.for(%zero, %m").replace(
            "  %count", "  %m = arith.add(%n, %n) : i32\n  %count", 1
        )
    )
    bound = next(op for op in kernel.walk() if isinstance(op, arith.Add))
    outside = [op.opcode for op in kernel.walk() if op not in forward([bound])]
    assert outside == ["arith.constant"] * 3 + ["scf.for", "scf.return"]


def test_uses_of_combine_block_ops_are_uses_of_the_op_around() -> None:
    kernel = kernel_of("sum_rows")
    (reduce,) = (op for op in kernel.walk() if isinstance(op, tile.Reduce))
    assert forward(reduce.combine.walk()) == forward([reduce])
    assert any(isinstance(op, tile.Store) for op in forward([reduce]))
