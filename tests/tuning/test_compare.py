"""Results of configs compared: rounding is tolerated, and a deviating one is named."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aotc.ir.types import SCALARS
from aotc.package.archive.index import Param
from aotc.tuning.compare import Comparison, elements_of
from aotc.tuning.messages import Output
from aotc.verify.arrays import Array, view
from aotc.verify.checks.contents import loaded_dtype
from aotc.verify.interpreter.numerics import round_to

RNG = np.random.default_rng()


def output(values: Array, element: str) -> Output:
    scalar = SCALARS[element]
    rounded = np.asarray(round_to(values, scalar)) if scalar.is_float else values
    content = view(np.ascontiguousarray(rounded.astype(loaded_dtype(scalar))), np.uint8)
    return Output("out", element, content)


def outliers(results: list[Array], element: str, elements: list[str] | None = None) -> list[int]:
    comparison = Comparison(elements or [element])
    for config, values in enumerate(results):
        comparison.add(config, [output(values, element)])
    return list(comparison.verdict([{} for _ in results]).outliers)


@pytest.mark.parametrize("element", ["fp64", "fp32", "bf16", "fp16"])
def test_sums_in_another_order_are_the_same(element: str) -> None:
    terms = np.asarray(round_to(RNG.standard_normal((1031, 257)), SCALARS[element]), np.float32)
    if element == "fp64":
        terms = terms.astype(np.float64)
    orders = [RNG.permutation(terms, axis=1).sum(axis=1) for _ in range(5)]
    assert outliers(orders, element) == []


@pytest.mark.parametrize("element", ["fp32", "bf16", "fp16", "fp8e4nv", "i32", "i8"])
def test_one_wrong_element_is_named(element: str) -> None:
    right = RNG.integers(-9, 9, 4099).astype(np.float64)
    if element.startswith("i"):
        right = right.astype(np.int64)
    wrong = right.copy()
    wrong[RNG.integers(0, 4099)] += 20
    assert outliers([right, wrong, right, right], element) == [1]
    comparison = Comparison([element])
    for config, values in enumerate([right, right, wrong]):
        comparison.add(config, [output(values, element)])
    message = comparison.verdict([{}, {}, {}]).outliers[2]
    assert message.startswith("1 of 4099 elements looked at in out, such as ")
    assert " where others have " in message


def test_the_order_of_launches_does_not_matter() -> None:
    right, wrong = RNG.standard_normal(65), RNG.standard_normal(65)
    for order in itertools.permutations([right, right, wrong]):
        named = outliers(list(order), "fp32")
        assert named == [number for number, values in enumerate(order) if values is wrong]


def test_without_a_majority_all_are_named() -> None:
    first, second = RNG.standard_normal(65), RNG.standard_normal(65)
    assert outliers([first, second], "fp32") == [0, 1]
    assert outliers([first], "fp32") == []


def test_nan_and_infinity_equal_themselves_alone() -> None:
    right = RNG.standard_normal(65)
    right[:3] = np.nan, np.inf, -np.inf
    assert outliers([right, right.copy(), right.copy()], "fp16") == []
    for value in (np.nan, -np.inf, 1.0):
        wrong = right.copy()
        wrong[1] = value
        assert outliers([right, wrong, right], "fp16") == [1]


def test_quantized_integers_may_differ_by_one() -> None:
    right = RNG.integers(-100, 100, 257)
    near = right + RNG.integers(-1, 2, 257)
    assert outliers([right, near, right], "i8", ["i8", "fp32"]) == []
    assert outliers([right, right + 1, right], "i8", ["i8"]) == [1]


def test_a_kernel_with_narrow_floats_rounds_on_its_way() -> None:
    right = RNG.standard_normal(257)
    near = right * (1 + 2.0**-6 * RNG.uniform(-1, 1, 257))
    assert outliers([right, near, right], "fp32", ["fp32", "bf16"]) == []
    assert outliers([right, near, right], "fp32", ["fp32"]) == [1]


def _of_splits(planted: dict[int, Array] | None = None) -> tuple[list[int], str]:
    """Return the outliers of twelve configs with results depending on SPLITS, and this name."""
    results = {splits: RNG.standard_normal(65) for splits in (1, 4, 16)}
    configs = [
        {"SPLITS": splits, "BLOCK": block, "num_warps": warps}
        for splits in results
        for block in (32, 64)
        for warps in (4, 8)
    ]
    comparison = Comparison(["fp32"])
    for number, config in enumerate(configs):
        values = (planted or {}).get(number, results[config["SPLITS"]])
        comparison.add(number, [output(values, "fp32")])
    verdict = comparison.verdict(configs)
    return list(verdict.outliers), verdict.constant


def test_results_may_depend_on_a_constant() -> None:
    assert _of_splits() == ([], "SPLITS")
    assert _of_splits({7: RNG.standard_normal(65)}) == ([7], "SPLITS")


def test_a_tile_size_that_is_wrong_is_no_constant_of_the_result() -> None:
    right = RNG.standard_normal(65)
    configs = [{"BLOCK": block, "num_warps": warps} for block in (32, 64, 128) for warps in (4, 8)]
    comparison = Comparison(["fp32"])
    for number, config in enumerate(configs):
        wrong = config["BLOCK"] == 128
        comparison.add(number, [output(RNG.standard_normal(65) if wrong else right, "fp32")])
    verdict = comparison.verdict(configs)
    assert (list(verdict.outliers), verdict.constant) == ([4, 5], "")


@pytest.mark.parametrize("num_constants", [2, 3])
def test_results_may_depend_on_several_constants(num_constants: int) -> None:
    names = ["A", "B", "C"][:num_constants]
    values = list(itertools.product([1, 2], repeat=num_constants))
    results = {value: RNG.standard_normal(65) for value in values}
    configs = [
        {**dict(zip(names, value, strict=True)), "num_stages": stages}
        for value in values
        for stages in (2, 3, 4)
    ]
    planted = 4
    comparison = Comparison(["fp32"])
    for number, config in enumerate(configs):
        right = results[tuple(config[name] for name in names)]
        comparison.add(number, [output(right + (number == planted), "fp32")])
    verdict = comparison.verdict(configs)
    assert (list(verdict.outliers), verdict.constant) == ([planted], " and ".join(names))


def test_results_of_which_no_two_are_the_same_say_nothing() -> None:
    comparison = Comparison(["fp32"])
    configs = [{"BLOCK": 32 << number} for number in range(5)]
    for number in range(5):
        comparison.add(number, [output(RNG.standard_normal(65), "fp32")])
    verdict = comparison.verdict(configs)
    assert (verdict.outliers, verdict.constant) == ({}, "all constants")


def test_parts_of_a_split_sum_may_depend_on_the_block_too() -> None:
    """As of a decode kernel, where two blocks of the unsplit sum round to the same."""
    blocks, splits = (32, 64, 128), (1, 4, 16)
    results = {(s, b): RNG.standard_normal(65) for s in splits for b in blocks}
    results[1, 64] = results[1, 32]
    configs = [
        {"SPLITS": s, "BLOCK": b, "num_warps": warps} for s, b in results for warps in (2, 4, 8)
    ]
    comparison = Comparison(["fp32"])
    for index, config in enumerate(configs):
        values = (
            RNG.standard_normal(65) if index == 10 else results[config["SPLITS"], config["BLOCK"]]
        )
        comparison.add(index, [output(values, "fp32")])
    verdict = comparison.verdict(configs)
    assert (list(verdict.outliers), verdict.constant) == ([10], "SPLITS and BLOCK")


def test_few_elements_may_round_further() -> None:
    right = RNG.standard_normal(4099)
    near, wrong = right.copy(), right.copy()
    usual = np.argsort(np.abs(right))[2049]  # large elements are given more room
    near[usual] += 2.0**-7  # two tolerances of fp32 sums, where one is usual
    wrong[usual] += 2.0**-5
    assert outliers([right, near, right], "fp32") == []
    assert outliers([right, wrong, right], "fp32") == [1]
    assert outliers([right, right + 2.0**-7, right], "fp32") == [1]


def test_the_coarsest_type_of_all_buffers_takes_part() -> None:
    params = [
        Param("x", "pointer", "T"),
        Param("out", "pointer", "fp32"),
        Param("n", "scalar", "i32"),
    ]
    assert elements_of(params, {"T": "bf16"}) == ["bf16", "fp32"]
    assert elements_of(params[1:], {}) == ["fp32"]
