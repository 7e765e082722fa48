"""Selections in archives: precedence, warnings on stale tables, and variants left out."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from aotc.ir.expression import parse
from aotc.package.archive.check_index import check_archive
from aotc.package.archive.file import decode, encode
from aotc.package.archive.index import Archive, Guard, Kernel, Variant
from aotc.package.archive.selection import ANY_GPU, Branch, Selection, Tree
from aotc.package.tuning import fit as fits
from aotc.package.tuning.packing import joined, only_tuned, stale, with_selections
from aotc.package.tuning.table import KernelTuning, TuningTable

_H200, _H100 = "NVIDIA H200", "NVIDIA H100"
_LACKING = "the tuning table has 'norm' for {} with configs that it does not have"
_OTHER = ({"num_warps": 4}, {"stages": "x", "num_warps": 8})


def tuning(gpu: str = _H200, **fields: object) -> KernelTuning:
    base = KernelTuning("norm", "sm_90a", gpu, _OTHER, (), {})
    return replace(base, **fields)  # type: ignore[arg-type]


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace fitting: take the config of the tuning's clock, for the first combination."""

    def fitted(kernel_tuning: KernelTuning, *_: object) -> tuple[Selection, ...]:
        return (Selection(kernel_tuning.target, kernel_tuning.gpu, 0, (kernel_tuning.clock_mhz,)),)

    monkeypatch.setattr(fits, "fit", fitted)


@pytest.mark.usefixtures("fit")
def test_a_table_replaces_what_it_is_about(samples: SimpleNamespace) -> None:
    old = (
        Selection("sm_90a", ANY_GPU, 0, (0,)),
        Selection("sm_90a", _H100, 0, (0,)),
        Selection("sm_90a", _H200, 0, (0,)),
        Selection("sm_90a", _H200, 1, (0,)),  # no longer in the table
        Selection("sm_80", ANY_GPU, 0, (0,)),
    )
    (norm, copy) = samples.archive.kernels
    archive = replace(samples.archive, kernels=(replace(norm, selections=old), copy))
    other = tuning(kernel="copy", target="sm_80", clock_mhz=0)  # has no variant
    unknown = tuning(kernel="gone")
    table = TuningTable((tuning(clock_mhz=1), other, unknown))
    changed = with_selections(archive, table)
    expected = (*old[:2], Selection("sm_90a", _H200, 0, (1,)), old[4])
    assert set(changed.kernels[0].selections) == set(expected)
    assert changed.kernels[1] == copy
    assert with_selections(changed, table) == changed
    read = decode(encode(changed)).kernels[1]
    assert set(read.selections) == set(changed.kernels[0].selections)


def test_the_last_of_equal_selections_counts() -> None:
    first, second = (Selection("sm_90a", _H200, 0, (config,)) for config in range(2))
    other = Selection("sm_90a", ANY_GPU, 0, (0,))
    assert joined((first, other), (second,)) == (second, other)


def test_what_the_format_cannot_hold_is_left_out() -> None:
    tree: Tree = (0,)
    for number in range(32):
        tree = Branch(parse(f"n_rows + {number}"), 7, (1,), tree)
    fits = Selection("sm_90a", ANY_GPU, 0, tree)
    deep = replace(fits, combination=1, tree=Branch(parse("n_rows"), 7, (1,), tree))
    wide = replace(fits, combination=2, tree=tuple(range(17)))
    assert joined((fits, deep, wide)) == (fits,)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"kernel": "nrm"}, ["the tuning table has kernel 'nrm', which there is not"]),
        ({"kernel": "later"}, []),  # a kernel not built now
        ({"configs": _OTHER[:1]}, []),
        (
            {"configs": (*_OTHER, {"num_warps": 4, "stages": 3}, {"num_warps": True})},
            [
                f"{_LACKING.format('NVIDIA H200')}: num_warps=4 stages=3; num_warps=true",
            ],
        ),
        (
            {"gpu": ANY_GPU, "configs": [{"num_warps": num_warps} for num_warps in range(16, 22)]},
            [
                f"{_LACKING.format('sm_90a')}: "
                + "; ".join(f"num_warps={num_warps}" for num_warps in range(16, 20))
                + " and 2 more",
            ],
        ),
    ],
)
def test_a_stale_table_is_named(
    samples: SimpleNamespace, changes: Mapping[str, object], expected: list[str]
) -> None:
    table = TuningTable((tuning(**changes),))  # type: ignore[arg-type]
    assert stale(table, samples.archive.kernels, ["norm", "copy", "later"]) == expected


# ---- variants left out ----


def guarded(kernel: Kernel, guards: Sequence[tuple[tuple[int, ...], bool]]) -> Kernel:
    """Return a kernel with a config for each entry: its guards, and whether it has a condition."""
    (variant, *_) = kernel.variants
    variants = tuple(
        replace(
            variant,
            guards=required,
            config=config,
            condition=parse("n_rows > 7") if is_conditional else None,
        )
        for config, (required, is_conditional) in enumerate(guards)
    )
    texts = ("n_rows < 8", "n_rows < 99", "stride > 4")
    return replace(
        kernel,
        variants=variants,
        guards=tuple(Guard(parse(text), text) for text in texts),
        configs=tuple((("at", config),) for config in range(len(guards))),
        selections=(),
    )


def selected(kernel: Kernel, tree: Tree) -> Kernel:
    return replace(kernel, selections=(Selection("sm_90a", ANY_GPU, 0, tree),))


def configs(kernel: Kernel) -> list[int]:
    check_archive(Archive("n", "1", (kernel,)))
    return [variant.config for variant in kernel.variants]


@pytest.mark.parametrize(
    ("guards", "tree", "expected"),
    [
        ([((), False)] * 4, (2, 1), [2]),
        ([((), False)] * 4, Branch(parse("n_rows"), 1, (3, 1), (1, 3)), [1, 3]),
        ([((), False), ((0,), False), ((0,), False)], (2,), [0, 2]),  # 0 serves the others
        ([((0,), False), ((1,), False), ((0, 1), False)], (2,), [0, 1, 2]),
        ([((0,), False), ((1,), False), ((0, 1), False)], (0,), [0, 1]),
        ([((), True), ((), False), ((), False)], (0,), [0, 1]),  # its condition may fail
        ([((), True), ((), True)], (1,), [0, 1]),
    ],
)
def test_what_serves_no_launch_of_its_own_is_left_out(
    samples: SimpleNamespace,
    guards: Sequence[tuple[tuple[int, ...], bool]],
    tree: Tree,
    expected: list[int],
) -> None:
    kernel = only_tuned(selected(guarded(samples.norm, guards), tree))
    assert configs(kernel) == expected
    assert kernel.configs == guarded(samples.norm, guards).configs
    assert only_tuned(kernel) == kernel


def test_leaves_have_what_is_left(samples: SimpleNamespace) -> None:
    kernel = selected(guarded(samples.norm, [((), False)] * 4), (2, 1, 3))
    assert only_tuned(kernel).selections[0].tree == (2,)


def test_what_no_selection_is_for_stays(samples: SimpleNamespace) -> None:
    (norm, _) = samples.archive.kernels
    kernel = only_tuned(replace(norm, selections=(Selection("sm_90a", _H200, 0, (1,)),)))
    removed = set(norm.variants) - set(kernel.variants)
    assert removed
    assert {(v.target, v.types, v.choices, v.config) for v in removed} == {
        ("sm_90a", ("fp16",), (True,), 0)
    }
    assert only_tuned(replace(norm, selections=())) == replace(norm, selections=())


def _serves(variants: Sequence[Variant], true_guards: set[int], *, is_met: bool) -> bool:
    return any(set(v.guards) <= true_guards and (is_met or v.condition is None) for v in variants)


def test_every_launch_that_was_served_still_is(samples: SimpleNamespace) -> None:
    rng = random.Random(5)
    for _ in range(300):
        guards = [
            (tuple(g for g in range(3) if rng.random() < 0.4), rng.random() < 0.3)
            for _ in range(rng.randrange(1, 7))
        ]
        kernel = guarded(samples.norm, guards)
        after = only_tuned(selected(kernel, (rng.randrange(len(guards)),)))
        for mask, is_met in itertools.product(range(8), (False, True)):
            true_guards = {g for g in range(3) if mask >> g & 1}
            assert _serves(after.variants, true_guards, is_met=is_met) == _serves(
                kernel.variants, true_guards, is_met=is_met
            )
