"""The records' own rules: targets, the numbering of combinations, the stored order."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.package.archive.index import (
    DTYPE_BYTES,
    DTYPE_CODES,
    Archive,
    ArchiveError,
    Choice,
    Kernel,
    TypeVariable,
    canonical,
    combination,
    guard_mask,
    num_combinations,
    parse_target,
    split_combination,
    variant_key,
)
from aotc.target import TARGETS


def test_dtype_codes_are_pinned() -> None:
    assert list(DTYPE_CODES.values()) == list(range(1, 16))
    assert DTYPE_CODES["i1"] == 1
    assert DTYPE_CODES["fp32"] == 12
    assert DTYPE_CODES["fp8e5"] == 15
    assert [DTYPE_BYTES[name] for name in ("i1", "u16", "bf16", "i64", "fp8e4nv")] == [
        1,
        2,
        2,
        8,
        1,
    ]


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_of_the_compiler_is_named_so(name: str) -> None:
    target, parsed = TARGETS[name], parse_target(name)
    assert (parsed.major, parsed.minor, parsed.feature) == (
        target.major,
        target.minor,
        target.variant,
    )
    for capability in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)):
        assert parsed.runs_on(*capability) == target.runs_on(*capability)


@pytest.mark.parametrize(
    "name", ["", "sm_9", "sm_90b", "sm_90aa", "compute_90", "sm_090", "sm_９０"]
)
def test_other_names_are_no_targets(name: str) -> None:
    with pytest.raises(ArchiveError, match="expected a target"):
        parse_target(name)


@pytest.mark.parametrize(
    ("capability", "best_first"),
    [
        ((8, 9), ["sm_89", "sm_86", "sm_80"]),
        ((8, 8), []),  # systems on chip run their own cubins alone
        ((8, 6), ["sm_86", "sm_80"]),
        ((9, 0), ["sm_90a", "sm_90"]),
        ((10, 0), ["sm_100f"]),
        ((10, 3), ["sm_103a", "sm_103f", "sm_100f", "sm_103"]),
        ((12, 0), []),
    ],
)
def test_targets_that_run_are_ordered(capability: tuple[int, int], best_first: list[str]) -> None:
    names = [
        "sm_80",
        "sm_86",
        "sm_89",
        "sm_90",
        "sm_90a",
        "sm_100f",
        "sm_103",
        "sm_103a",
        "sm_103f",
    ]
    run = [name for name in names if parse_target(name).runs_on(*capability)]
    run.sort(key=lambda name: parse_target(name).preference, reverse=True)
    assert run == best_first


def kernel_of(dtype_counts: list[int], value_counts: list[int]) -> Kernel:
    dtypes = tuple(DTYPE_BYTES)
    return Kernel(
        "k",
        bytes(32),
        (),
        type_variables=tuple(TypeVariable(f"T{i}", dtypes[:n]) for i, n in enumerate(dtype_counts)),
        choices=tuple(Choice(f"C{i}", tuple(range(n))) for i, n in enumerate(value_counts)),
    )


_COUNTS = st.lists(st.integers(1, 4), max_size=3)


@given(_COUNTS, _COUNTS)
def test_combinations_are_numbered_without_gaps(
    dtype_counts: list[int], value_counts: list[int]
) -> None:
    kernel = kernel_of(dtype_counts, value_counts)
    count = num_combinations(kernel.type_variables, kernel.choices)
    split = [split_combination(kernel.type_variables, kernel.choices, n) for n in range(count)]
    assert len(set(split)) == count
    assert [combination(kernel, *types_and_choices) for types_and_choices in split] == [
        *range(count)
    ]


def test_the_first_type_variable_is_the_most_significant() -> None:
    kernel = kernel_of([2, 3], [4])
    assert combination(kernel, ("i8", "i16"), (3,)) == (1 * 3 + 2) * 4 + 3


def test_values_that_python_calls_equal_are_told_apart() -> None:
    kernel = replace(kernel_of([], []), choices=(Choice("C", (1, True, 1.0, "1", None)),))
    assert [combination(kernel, (), (value,)) for value in (True, 1.0, 1, None, "1")] == [
        1, 2, 0, 4, 3,
    ]  # fmt: skip
    with pytest.raises(ArchiveError, match="C cannot be False"):
        combination(kernel, (), (False,))


def test_unlisted_dtypes_have_no_number() -> None:
    with pytest.raises(ArchiveError, match="T0 cannot be fp64"):
        combination(kernel_of([2], []), ("fp64",), ())
    with pytest.raises(ArchiveError, match="each type variable"):
        combination(kernel_of([2], []), (), ())


def test_guard_mask() -> None:
    assert guard_mask(()) == 0
    assert guard_mask((0, 3, 63)) == 1 | 8 | 1 << 63


def test_canonical_order(samples: SimpleNamespace) -> None:
    archive = canonical(samples.archive)
    assert canonical(archive) == archive
    assert [kernel.name for kernel in archive.kernels] == ["copy", "norm"]
    norm = archive.kernels[1]
    keys = [variant_key(norm, variant) for variant in norm.variants]
    assert keys == sorted(keys)
    assert norm.targets == ("sm_80", "sm_90a")


def test_kernels_are_ordered_by_bytes(samples: SimpleNamespace) -> None:
    """In UTF-8 as in C: by code point, not by UTF-16 units and not by locale."""
    names = ["\U00010000", "\uffff", "é", "z", "Z"]
    kernels = tuple(replace(samples.copy, name=name) for name in names)
    ordered = canonical(Archive("n", "1", kernels)).kernels
    assert [kernel.name for kernel in ordered] == ["Z", "z", "é", "\uffff", "\U00010000"]


def test_param_bytes_end_with_the_last_param(samples: SimpleNamespace) -> None:
    assert samples.norm.variants[0].param_bytes == 32
    assert replace(samples.copy.variants[0], cubin_params=()).param_bytes == 0
