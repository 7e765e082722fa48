from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir import expression
from aotc.package.archive import index
from aotc.package.archive.flat_tree import flatten
from aotc.package.archive.layout import LIMITS
from aotc.package.archive.selection import Branch, Selection, Tree, leaf_of
from aotc.package.tuning.fit import MAX_FEATURES, TOLERANCE, fit
from aotc.package.tuning.growth import MAX_DEPTH, MAX_LEAF_CONFIGS
from aotc.package.tuning.table import KernelTuning, Measurement

_TARGET, _GPU = "sm_90a", "NVIDIA H200"
_BLOCKS = (32, 64, 128, 256)


def _kernel(num_configs: int = 4, guarded: tuple[int, ...] = ()) -> index.Kernel:
    """Return a kernel of two dimensions; blocks of the first have a config's size."""
    variants = tuple(
        index.Variant(
            target=_TARGET,
            symbol="kernel",
            cubin=b"",
            num_threads=128,
            config=config,
            condition=expression.parse("m % 8 == 0") if config in guarded else None,
            grid=(expression.parse(f"cdiv(m, {_BLOCKS[config % 4]})"), expression.parse("n")),
        )
        for config in range(num_configs)
    )
    return index.Kernel(
        name="kernel",
        source_sha256=b"",
        variants=variants,
        params=(
            index.Param("x", "tensor", "bf16", 2),
            index.Param("m", "scalar", "i32"),
            index.Param("n", "scalar", "i32"),
        ),
        configs=tuple((("B", config),) for config in range(num_configs)),
    )


def _tuning(
    measurements: tuple[Measurement, ...], num_configs: int = 4, rejected: tuple[int, ...] = ()
) -> KernelTuning:
    configs = tuple({"B": config} for config in range(num_configs))
    reasons = dict.fromkeys(rejected, "wrong")
    return KernelTuning("kernel", _TARGET, _GPU, configs, measurements, reasons)


def _measurement(m: int, n: int, *seconds: float | None, weight: float = 1.0) -> Measurement:
    return Measurement({"m": m, "n": n}, {}, {}, seconds, weight)


def _depth(tree: Tree) -> int:
    return 1 + max(_depth(tree.low), _depth(tree.high)) if isinstance(tree, Branch) else 0


_seconds = st.one_of(st.none(), st.floats(1e-6, 1e-2))
_sizes = st.integers(0, 1 << 20)
_rows = st.tuples(_sizes, _sizes, st.lists(_seconds, min_size=4, max_size=4))


@settings(max_examples=60, deadline=None)
@given(st.lists(_rows, min_size=1, max_size=40, unique_by=lambda row: row[:2]), st.randoms())
def test_measured_launches_get_their_best_config(rows, random):
    timed = [row for row in rows if any(row[2])]
    tuning = _tuning(tuple(_measurement(m, n, *times) for m, n, times in rows))
    selections = fit(tuning, _kernel())
    assert len(selections) == bool(timed)
    for m, n, times in timed:
        first, *_ = leaf_of(selections[0].tree, {"m": m, "n": n})
        assert times[first] is not None
        assert times[first] <= (1 + TOLERANCE) * min(filter(None, times)) * (1 + 1e-6)
    assert all(_depth(selection.tree) <= MAX_DEPTH for selection in selections)
    shuffled = list(tuning.measurements)
    random.shuffle(shuffled)
    assert fit(replace(tuning, measurements=tuple(shuffled)), _kernel()) == selections


def test_chain_of_many_launches_is_not_deeper_than_the_bound():
    """Each of 200 launches needs its own config, doubling from the last."""
    rows = tuple(
        _measurement(m, 1, *(1e-3 if config == m % 4 else 2e-3 for config in range(4)))
        for m in range(1, 201)
    )
    (selection,) = fit(_tuning(rows), _kernel())
    assert _depth(selection.tree) <= MAX_DEPTH
    for m in range(1, 201):
        assert leaf_of(selection.tree, {"m": m, "n": 1})[0] == m % 4


def test_threshold_is_the_geometric_middle():
    rows = (_measurement(100, 1, 1.0, 2.0, None, None), _measurement(400, 1, 2.0, 1.0, None, None))
    (selection,) = fit(_tuning(rows), _kernel())
    assert selection == Selection(_TARGET, _GPU, 0, Branch(expression.parse("m"), 200, (0,), (1,)))
    assert leaf_of(selection.tree, {"m": 200, "n": 1}) == (0,)
    assert leaf_of(selection.tree, {"m": 201, "n": 1}) == (1,)


def test_number_of_programs_separates_what_no_argument_does():
    """Config 0 is best up to 64 programs, for any shape."""
    rows = tuple(
        _measurement(32 * a, b, *((1.0, 2.0) if a * b <= 64 else (2.0, 1.0)), None, None)
        for a in (1, 2, 8, 32, 64, 128)
        for b in (1, 3, 8, 32, 70)
    )
    (selection,) = fit(_tuning(rows), _kernel())
    assert isinstance(selection.tree, Branch)
    assert expression.free_names(selection.tree.feature).keys() == {"m", "n"}
    assert _depth(selection.tree) == 1


def test_leaf_ends_at_a_config_that_every_launch_can_take():
    rows = (_measurement(8, 8, 1.0, 1.1, 1.2, 1.3),)
    (unguarded,) = fit(_tuning(rows), _kernel())
    assert unguarded.tree == (0,)
    (guarded,) = fit(_tuning(rows), _kernel(guarded=(0, 1)))
    assert guarded.tree == (0, 1, 2)
    (all_guarded,) = fit(_tuning(rows), _kernel(guarded=(0, 1, 2, 3)))
    assert all_guarded.tree == (0, 1, 2, 3)
    times = [1.0 + i / 10 for i in range(7)]
    (last,) = fit(_tuning((_measurement(8, 8, *times),), 7), _kernel(7, guarded=(0, 1, 2, 3, 4)))
    assert last.tree == (0, 1, 2, 5)
    assert MAX_LEAF_CONFIGS == 4


def test_rejected_and_unknown_configs_are_not_taken():
    rows = (_measurement(8, 8, 1.0, 2.0, 3.0, 4.0, 0.5),)
    (selection,) = fit(_tuning(rows, 5, rejected=(0,)), _kernel())
    assert selection.tree == (1,)
    assert fit(_tuning(rows, 5, rejected=(0, 1, 2, 3)), _kernel()) == ()


def test_types_and_arguments_that_the_kernel_lacks_are_left_out():
    old = Measurement({"m": 8, "n": 8}, {}, {"causal": True}, (1.0, 2.0, 3.0, 4.0))
    kernel = replace(
        _kernel(),
        choices=(index.Choice("causal", (True, False)),),
        variants=tuple(replace(v, choices=(True,)) for v in _kernel().variants),
    )
    absent = Measurement({"m": 8, "n": 8}, {}, {}, (4.0, 2.0, 3.0, 1.0))
    number = Measurement({"m": 8, "n": 8}, {}, {"causal": 1}, (4.0, 2.0, 3.0, 1.0))
    (selection,) = fit(_tuning((old, absent, number)), kernel)
    assert (selection.combination, selection.tree) == (0, (0,))
    unknown = tuple(
        Measurement({"gone": i, "m": 8, "n": i}, {}, {}, tuple(times))
        for i, times in ((1, (1.0, 2.0, 3.0, 4.0)), (9, (2.0, 1.0, 3.0, 4.0)))
    )
    (selection,) = fit(_tuning(unknown), _kernel())
    assert isinstance(selection.tree, Branch)
    assert "gone" not in expression.free_names(selection.tree.feature)


def test_weights_decide_where_the_tree_cannot():
    """Two tensors of one shape: nothing tells the launches apart."""
    light = Measurement({"m": 8, "gone": 1}, {}, {}, (1.0, 2.0, None, None), 1.0)
    heavy = Measurement({"m": 8, "gone": 2}, {}, {}, (2.0, 1.0, None, None), 3.0)
    (selection,) = fit(_tuning((light, heavy)), _kernel())
    assert selection.tree == (1,)


def test_extents_and_zero_divisors_are_features_too():
    rows = tuple(
        Measurement({"x.shape[0]": size, "m": size % 7}, {}, {}, times)
        for size, times in ((0, (1.0, 2.0, 3.0, 4.0)), (70, (2.0, 1.0, 3.0, 4.0)))
    )
    variants = tuple(
        replace(v, grid=(expression.parse("x.shape[0] // m"),)) for v in _kernel().variants
    )
    (selection,) = fit(_tuning(rows), replace(_kernel(), variants=variants))
    assert isinstance(selection.tree, Branch)
    assert expression.to_text(selection.tree.feature) == "x.shape[0]"
    assert math.isclose(selection.tree.threshold, 35)


def test_features_are_as_many_as_an_archive_holds():
    names = [f"a{i}" for i in range(12)]
    rows = tuple(
        Measurement(
            {name: 1 + number * 7919 % (i + 41) for i, name in enumerate(names)}, {}, {}, times
        )
        for number in range(60)
        for times in [tuple(1.0 if config == number * 13 % 4 else 2.0 for config in range(4))]
    )
    params = tuple(index.Param(name, "scalar", "i32") for name in names)
    (selection,) = fit(_tuning(rows), replace(_kernel(), params=params))
    assert len(flatten(selection.tree).features) <= LIMITS.features
    assert LIMITS.features == MAX_FEATURES
    assert _depth(selection.tree) <= LIMITS.tree_depth
