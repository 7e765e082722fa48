"""Launches: every boundary class of every extent, within a variant's promises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.verify.checks.dataflow import roles_of
from aotc.verify.checks.extents import CLASSES, extent_of
from aotc.verify.checks.inputs import tensors_of
from aotc.verify.checks.launch import Launch
from aotc.verify.checks.launches import Choice, Chooser, Conditions
from aotc.verify.checks.noise import is_inexact
from aotc.verify.checks.strides import FAR, NEAR
from tests.support.verify_subjects import kernel_of


def _chooser(
    name: str, conditions: Conditions, types: Mapping[str, str] | None = None, block: int = 16
) -> Chooser:
    kernel = kernel_of(name, block, types)
    return Chooser(kernel, roles_of(kernel, {}, is_inexact), conditions, 0)


def _launches(chooser: Chooser) -> list[Launch]:
    launches = [chooser.launch(index) for index in range(chooser.count)]
    return [launch for launch in launches if launch is not None]


def _any(_: Mapping[str, int]) -> bool:
    return True


def _rows(scalars: Mapping[str, int]) -> tuple[int, ...]:
    return (scalars["n_rows"],)


ROWS = Conditions(_rows, _any)


def test_an_extent_goes_through_all_classes() -> None:
    launches = _launches(_chooser("scale_rows", ROWS))
    assert [launch.label for launch in launches[:6]] == list(CLASSES)
    launches = launches[:6]
    assert [launch.scalars["n_cols"] for launch in launches] == [17, 15, 16, 1, 41, 0]
    assert [launch.grid for launch in launches] == [(2,), (1,), (3,), (2,), (1,), (2,)]


def test_promises_are_kept_and_where_there_is_none_it_does_not_hold() -> None:
    promised = {"n_cols": "i32:16", "stride": "i32:16"}
    for launch in _launches(_chooser("scale_rows", ROWS, promised, block=64)):
        assert launch.scalars["n_cols"] % 16 == 0
        assert launch.scalars["stride"] % 16 == 0
    free = _launches(_chooser("scale_rows", ROWS, block=64))
    assert any(launch.scalars["n_cols"] % 16 for launch in free)
    assert any(launch.scalars["stride"] % 16 for launch in free)
    assert {launch.misaligned for launch in free} == {True, False}


def test_pointers_that_are_all_promised_are_never_misaligned() -> None:
    aligned = {"x_ptr": "*fp32:16", "out_ptr": "*fp32:16"}
    launches = _launches(_chooser("doubled", Conditions(None, _any), aligned))
    assert not any(launch.misaligned for launch in launches)


def test_warps_run_in_step_and_at_random() -> None:
    launches = _launches(_chooser("scale_rows", ROWS))
    assert [launch.in_step for launch in launches[:6]] == [True, False, True, True, False, True]
    # Random order matters most where rings are reused; later launches serve other purposes.
    assert [launch.label for launch in launches if not launch.in_step] == [
        "under",
        "several",
        "deep",
    ]


def test_arguments_that_no_condition_names_are_not_tried_in_turn() -> None:
    num_scalars: list[int] = []

    def refuse(scalars: Mapping[str, int]) -> bool:
        num_scalars.append(len(scalars))
        return False

    assert not _launches(_chooser("to_bytes", Conditions(None, refuse)))
    num_asked = len(num_scalars)
    num_scalars.clear()
    assert not _launches(_chooser("to_bytes", Conditions(None, refuse, named=())))
    assert 0 < len(num_scalars) < num_asked / 2
    launches, all_tried = (
        _launches(_chooser("to_bytes", Conditions(None, _any, named=named))) for named in ((), None)
    )
    assert [launch.key for launch in launches] == [launch.key for launch in all_tried]


def test_rows_do_not_overlap_dense_and_padded() -> None:
    launches = [launch for launch in _launches(_chooser("scale_rows", ROWS)) if any(launch.grid)]
    slack = [launch.scalars["stride"] - launch.scalars["n_cols"] for launch in launches]
    assert min(slack) == 0
    assert 3 in slack


def test_padded_rows_of_several_tensors_differ() -> None:
    """So mixed-up strides show."""
    grid = Conditions(lambda s: (-(-s["M"] // 16), -(-s["N"] // 16)), _any)
    launches = _launches(_chooser("grouped", grid))
    pairs = [(launch.scalars["stride_am"], launch.scalars["stride_om"]) for launch in launches]
    assert any(left == right for left, right in pairs)
    assert any(left != right for left, right in pairs)


def test_several_extents_go_out_of_step_and_each_sees_every_class() -> None:
    grid = Conditions(lambda s: (-(-s["M"] // 16), -(-s["N"] // 16)), _any)
    launches = _launches(_chooser("grouped", grid))
    pairs = [(launch.scalars["M"], launch.scalars["N"]) for launch in launches[:5]]
    assert sorted(m for m, _ in pairs) == sorted(n for _, n in pairs) == [1, 15, 16, 17, 41]
    assert all(m != n for m, n in pairs)
    for launch in launches:
        assert launch.scalars["stride_an"] == 1
        assert launch.scalars["stride_am"] >= launch.scalars["N"]


def test_a_guard_is_satisfied_by_falling_back() -> None:
    guarded = Conditions(_rows, lambda scalars: scalars["n_cols"] <= 16)
    values = [launch.scalars["n_cols"] for launch in _launches(_chooser("scale_rows", guarded))]
    assert max(values) == 16
    assert len(set(values)) >= 5


def test_no_arguments_for_a_guard_that_cannot_hold() -> None:
    assert _launches(_chooser("scale_rows", Conditions(_rows, lambda _: False))) == []


def test_the_grid_is_bounded() -> None:
    many = Conditions(lambda scalars: (scalars["n_cols"], 1), _any, max_programs=16)
    values = [launch.scalars["n_cols"] for launch in _launches(_chooser("scale_rows", many))]
    assert max(values) == 16


def test_a_missing_grid_is_inferred_from_the_kernel() -> None:
    for launch in _launches(_chooser("grouped", Conditions(None, _any))):
        m, n = (int(launch.scalars[name]) for name in "MN")
        assert launch.grid == (-(-m // 16), -(-n // 16))
    (first, *_) = _launches(_chooser("sum_rows", Conditions(None, _any)))
    assert first.grid == (2,)


def test_the_users_choices_win() -> None:
    choices = {
        "n_cols": Choice(values=(7, 11)),
        "stride": Choice(function=lambda scalars: scalars["n_cols"] + 5),
        "factor": Choice(values=(0.25,)),
    }
    launches = _launches(_chooser("scale_rows", Conditions(_rows, _any, choices=choices)))
    assert {launch.scalars["n_cols"] for launch in launches} == {7, 11}
    for launch in launches:
        assert launch.scalars["stride"] == launch.scalars["n_cols"] + 5
        assert launch.scalars["factor"] == 0.25


def test_a_listed_value_that_breaks_a_promise_is_left_out() -> None:
    choices = {"n_cols": Choice(values=(7, 32))}
    chooser = _chooser("scale_rows", Conditions(_rows, _any, choices=choices), {"n_cols": "i32:16"})
    assert {launch.scalars["n_cols"] for launch in _launches(chooser)} == {32}


def test_room_for_rows_grows_when_asked() -> None:
    chooser = _chooser("scale_rows", ROWS)
    strides = []
    for spacing in NEAR[:3]:
        launch = chooser.launch(3, spacing)  # n_cols is 1
        assert launch is not None
        strides.append(launch.scalars["stride"])
    assert strides[0] < 16 <= strides[1] < strides[2]


def _labelled(chooser: Chooser, label: str) -> Launch | None:
    return chooser.launch(chooser.labels.index(label))


def _some(chooser: Chooser, label: str) -> Launch:
    launch = _labelled(chooser, label)
    assert launch is not None
    return launch


@pytest.mark.parametrize("stages", [1, 3, 5])
def test_deep_loops_use_every_stage_more_than_twice(stages: int) -> None:
    chooser = _chooser("scale_rows", replace(ROWS, num_stages=stages))
    n_cols = _some(chooser, "deep").scalars["n_cols"]
    assert n_cols == 16 * (2 * stages + 1) + 1
    promised = _chooser("scale_rows", replace(ROWS, num_stages=stages), {"n_cols": "i32:16"})
    assert _some(promised, "deep").scalars["n_cols"] == 16 * (2 * stages + 2)


@pytest.mark.parametrize("stages", [1, 90])
def test_sums_of_fp8_are_long_and_of_positive_numbers(stages: int) -> None:
    """Each product costs the sum some bits; only many products exceed the rounding."""
    conditions = Conditions(lambda _: (1,), _any, num_stages=stages)
    launch = _some(_chooser("products", conditions, block=32), "sums")
    assert launch.scalars["n_cols"] >= max(2048, 32 * 2 * stages)
    assert launch.scalars["n_cols"] % 32
    assert launch.is_positive
    assert not launch.in_step
    listed = replace(conditions, choices={"n_cols": Choice(values=(64, 512, 1024, 96))})
    assert _some(_chooser("products", listed, block=32), "sums").scalars["n_cols"] == 1024
    halves = _chooser("products", conditions, {"a_ptr": "*fp16", "b_ptr": "*fp16"}, block=32)
    assert "sums" not in halves.labels


def test_a_loop_that_several_extents_bound_runs_deep_in_few_programs() -> None:
    grid = Conditions(lambda s: (-(-s["n_queries"] // 16), s["x.shape[0]"]), _any, num_stages=5)
    launch = _some(_chooser("causal_sums", grid), "deep")
    queries, keys = int(launch.scalars["n_queries"]), int(launch.scalars["n_keys"])
    assert launch.grid[0] * launch.grid[1] <= 2
    assert min(keys, 16 * launch.grid[0] + keys - queries) >= 16 * 11


def test_a_value_that_the_user_lists_lets_a_loop_run_deep() -> None:
    """One step per head is too few; the largest listed number of heads gives enough."""
    few_rows = Conditions(
        lambda _: (1,), lambda s: s["n_rows"] <= 16, num_stages=1,
        choices={"n_heads": Choice(values=(1, 2, 4))},
    )  # fmt: skip
    chooser = _chooser("head_rows", few_rows)
    assert _some(chooser, "deep").scalars["n_heads"] == 4
    listed = [launch.scalars["n_heads"] for launch in _launches(chooser)]
    assert set(listed) == {1, 2, 4}
    enough = replace(few_rows, admits=_any)
    assert _some(_chooser("head_rows", enough), "deep").scalars["n_heads"] < 4


def test_counts_of_blocks_extents_and_strides_are_apart() -> None:
    grid = Conditions(lambda s: (-(-s["M"] // 16), -(-s["N"] // 16)), _any)
    launch = _some(_chooser("grouped", grid), "apart")
    assert launch.grid == (2, 3)
    assert launch.scalars["M"] % 16 != launch.scalars["N"] % 16
    assert len({launch.scalars[f"stride_{name}"] for name in ("am", "om")}) == 2


def test_axes_without_extents_have_programs_apart() -> None:
    assert _some(_chooser("sum_rows", Conditions(None, _any)), "apart").grid == (2,)


def test_persistent_programs_take_three_tiles() -> None:
    def grid(scalars: Mapping[str, int]) -> tuple[int, ...]:
        return (min(40, -(-scalars["n_rows"] // 2) * -(-scalars["n_cols"] // 16)),)

    launch = _some(_chooser("tiles", Conditions(grid, _any, max_programs=40)), "persistent")
    tiles = -(-launch.scalars["n_rows"] // 2) * -(-launch.scalars["n_cols"] // 16)
    assert tiles > 2 * 40
    assert (launch.grid, launch.programs) == ((40,), ())
    few = Conditions(grid, _any, max_programs=4, may_be_left_out=True)
    launch = _some(_chooser("tiles", few), "persistent")
    assert (launch.grid, launch.programs) == ((40,), (0, 1, 39))


def test_a_float_is_of_every_sign_and_size_in_turn() -> None:
    chooser = _chooser("scale_rows", ROWS)
    labels = [label for label in chooser.labels if label.startswith("float")]
    launches = [_some(chooser, label) for label in labels]
    *factors, infinite, nan = [float(launch.scalars["factor"]) for launch in launches]
    assert {(math.copysign(1.0, factor), factor == 0.0) for factor in factors} == {
        (1.0, False), (-1.0, False), (-1.0, True),
    }  # fmt: skip
    assert 2.0**10 < max(factors) < math.inf
    assert infinite == math.inf
    assert math.isnan(nan)
    odd = replace(chooser, seed=1)
    assert _some(odd, "float: factor is infinite").scalars["factor"] == -math.inf
    assert len({launch.key for launch in launches}) == len(launches)
    assert all(launch.in_step and not launch.is_special for launch in launches)
    assert all(launch.scalars["n_cols"] > 16 for launch in launches)  # a whole tile and a part
    plain = [launch for launch in _launches(chooser) if not launch.label.startswith("float")]
    assert all(0.5 <= launch.scalars["factor"] <= 1.5 for launch in plain)


def test_floats_that_the_user_lists_are_no_others() -> None:
    listed = replace(ROWS, choices={"factor": Choice(values=(0.25,))})
    chooser = _chooser("scale_rows", listed)
    assert not any(label.startswith("float") for label in chooser.labels)
    assert {launch.scalars["factor"] for launch in _launches(chooser)} == {0.25}


def _far(chooser: Chooser, label: str = "far") -> Launch:
    launch = chooser.launch(chooser.labels.index(label), FAR[0])
    assert launch is not None
    assert launch.is_sparse
    return launch


def _last_row(chooser: Chooser) -> int:
    launch = _far(chooser)
    rows = launch.scalars.get("n_rows", launch.grid[0])
    return int(rows - 1) * int(launch.scalars["stride"])


def test_far_rows_are_more_than_32_bits_apart() -> None:
    for stride in ("i32", "i64"):
        chooser = _chooser("scale_rows", ROWS, {"stride": stride})  # offsets of 64 bits
        assert 1 << 32 < _last_row(chooser) < 1 << 34
    chooser = _chooser("sum_rows", Conditions(None, _any))  # offsets of 32 bits
    assert 1 << 30 < _last_row(chooser) < 1 << 31


def test_far_rows_of_a_loop_are_more_than_32_bits_apart() -> None:
    """Its variable is no index within a tile, however wide rows are."""
    for stride in ("i32", "i64"):
        chooser = _chooser("scale_rows_in_turn", ROWS, {"stride": stride})
        assert 1 << 32 < _last_row(chooser) < 1 << 34


def test_far_rows_of_tensors_are_more_than_32_bits_apart() -> None:
    types: dict[str, str] = dict.fromkeys(("x", "y", "out"), "tensordesc<bf16[1,16]>")
    chooser = _chooser("causal_sums", Conditions(None, _any), types)
    launch = _far(chooser)
    for shape, strides in tensors_of(chooser.kernel, launch).values():
        assert (shape[0] - 1) * strides[0] > 1 << 32
        assert strides[0] % 8 == 0
    near = _some(chooser, "apart")
    assert all(strides[0] < 1 << 16 for _, strides in tensors_of(chooser.kernel, near).values())
    assert launch.key != replace(launch, apart=0).key


def test_a_guard_on_strides_keeps_rows_of_tensors_near() -> None:
    def admits(scalars: Mapping[str, int]) -> bool:
        return scalars.get("x.strides[0]", 16) < 1 << 20

    types: dict[str, str] = dict.fromkeys(("x", "y", "out"), "tensordesc<bf16[1,16]>")
    assert not _far(_chooser("causal_sums", Conditions(None, admits), types)).apart


def test_backwards_strides_are_negative_where_they_have_a_sign() -> None:
    emulated = replace(ROWS, may_be_left_out=True)
    for stride in ("i32", "i64"):
        chooser = _chooser("scale_rows", emulated, {"stride": stride})
        launch = _far(chooser, "backwards")
        assert launch.scalars["stride"] == -_far(chooser).scalars["stride"]
        assert chooser.is_optional(chooser.labels.index("backwards"))
    assert "backwards" not in _chooser("scale_rows", emulated, {"stride": "u32"}).labels
    assert "backwards" not in _chooser("scale_rows", ROWS).labels  # a GPU has no room for it


@pytest.mark.parametrize(("element", "elems"), [("fp32", 4), ("bf16", 8), ("i8", 16)])
def test_rows_of_tensors_are_whole_pieces_of_16_bytes(element: str, elems: int) -> None:
    types: dict[str, str] = dict.fromkeys(("x", "y", "out"), f"tensordesc<{element}[1,16]>")
    chooser = _chooser("causal_sums", Conditions(None, _any), types)
    rows = {launch.scalars["x.shape[1]"] for launch in _launches(chooser)}
    assert all(row % elems == 0 for row in rows)
    assert any(row % (2 * elems) for row in rows)


def test_a_few_programs_of_a_long_vector_run() -> None:
    def grid(scalars: Mapping[str, int]) -> tuple[int, ...]:
        return (-(-scalars["n"] // 16),)

    partial = Conditions(grid, _any, may_be_left_out=True)
    for types, labels in (({}, ["long: n"]), ({"n": "i64"}, ["long: n", "longer: n"])):
        chooser = _chooser("gather", partial, types)
        assert [label for label in chooser.labels if label.startswith("long")] == labels
        for label, length in zip(labels, (1 << 31, 5 << 29), strict=False):
            launch = _some(chooser, label)
            assert length - 64 < launch.scalars["n"] < length - 16  # leaves room to round up
            assert launch.programs == (0, 1, launch.grid[0] - 1)
            assert launch.is_sparse
            assert chooser.is_optional(chooser.labels.index(label))
    for conditions in (Conditions(grid, _any), replace(partial, fixed={"n": 7})):
        assert not any(label.startswith("long") for label in _chooser("gather", conditions).labels)


def test_pointers_of_one_type_may_be_one_memory() -> None:
    chooser = _chooser("scale_rows", ROWS)
    assert chooser.labels[-1] == "in place: out_ptr is x_ptr"
    assert _some(chooser, chooser.labels[-1]).aliases == {"out_ptr": "x_ptr"}
    for forbidden in (
        _chooser("scale_rows", replace(ROWS, may_alias=False)),
        _chooser("scale_rows", ROWS, {"x_ptr": "*fp16"}),
        _chooser("scale_rows", ROWS, {"x_ptr": "*fp32 noalias"}),
    ):
        assert not any(label.startswith("in place") for label in forbidden.labels)


def test_equal_seeds_choose_equal_launches() -> None:
    assert _launches(_chooser("scale_rows", ROWS)) == _launches(_chooser("scale_rows", ROWS))


@given(
    st.sampled_from([*CLASSES, "two thirds", "half"]),
    st.integers(1, 1 << 15),
    st.sampled_from([1, 2, 16]),
)
def test_an_extent_is_a_multiple_and_of_its_class(kind: str, block: int, divisor: int) -> None:
    extent = extent_of(kind, block, divisor)
    assert extent % divisor == 0
    assert extent >= 0
    if block == 1:
        assert extent <= 3 * divisor
    elif kind == "over":
        assert block < extent <= block + divisor
    elif kind == "full":
        assert block <= extent < block + divisor
    elif kind == "several":
        assert extent > 2 * block


@pytest.mark.parametrize("divisor", [1, 16])
def test_the_extent_below_a_block_is_tried(divisor: int) -> None:
    assert extent_of("under", 64, divisor) == 64 - divisor
    assert extent_of("one", 64, divisor) == divisor


def test_a_deep_loop_takes_no_more_of_an_extent_than_its_iterations_and_a_block() -> None:
    """Keys are compared with queries, in blocks of both, and a loop goes through them in its own."""
    grid = Conditions(lambda s: (-(-s["n_queries"] // 16), s["x.shape[0]"]), _any, num_stages=5)
    chooser = _chooser("causal_sums", grid)
    chooser.roles.extents["n_keys"] = 64
    launch = _some(chooser, "deep")
    keys, step = int(launch.scalars["n_keys"]), chooser.roles.loops["n_keys"].block
    assert step == 16
    assert 11 * step < keys <= 11 * step + 64 + 1
    listed = replace(grid, choices={"n_keys": Choice((705, 800))})
    chooser = _chooser("causal_sums", listed)
    chooser.roles.extents["n_keys"] = 64
    assert _some(chooser, "deep").scalars["n_keys"] in (705, 800)
