"""Tables of results, and reports of differences."""

import json

from benchmarks.calibration.distance import Comparison
from benchmarks.calibration.judge import CaseResult
from benchmarks.calibration.report import Results, differences, tables
from benchmarks.calibration.variants import VariantOutcome


def comparison(count=100, identical=100, **others):
    empty = {"nan_only": 0, "broken": 0, "max_ulps": 0, "max_absolute": 0.0, "max_scaled": 0.0}
    return Comparison(count, identical, **{**empty, "examples": (), **others})


def record(*cases, variants=()):
    results = Results("a GPU", "2026-01-01", list(cases), list(variants), 1.5)
    return results, json.loads(json.dumps(results.to_json()))


def case(name="add.f32", group="f32", bound="identical", comparisons=(), **others):
    return CaseResult(group, name, others.pop("row", name), bound, tuple(comparisons), **others)


def test_groups_are_rows_and_all_is_all():
    wide = comparison(
        count=100_000, identical=99_999, nan_only=1, broken=1, examples=((7, "0x1", "0x2"),)
    )
    results, document = record(
        case(comparisons=[comparison(), comparison()]),
        case("add.rz.f32", comparisons=[wide], operands=(("0x3", "0x4"),)),
        case("add.u32", "integer", comparisons=[comparison()]),
    )
    assert not results.is_within
    text = tables(document)
    assert "|fp32 arithmetic, every rounding|2|100,200|99.99%|1|" in text
    assert "|integer arithmetic|1|100|100%|0|" in text
    assert "within bounds" not in text
    shown = differences(document)
    assert "add.rz.f32: 1 of 100,000 out of bounds (identical), 1 of them NaN" in shown
    assert "[7] of 0x3, 0x4: emulator 0x1, GPU 0x2" in shown


def test_bounded_cases_share_a_row():
    near = {"group": "approximations", "bound": "2 ulp", "row": "ex2"}
    _, document = record(
        case("ex2 a", comparisons=[comparison(identical=90, max_ulps=1)], **near),
        case("ex2 b", comparisons=[comparison(identical=60, max_ulps=2)], **near),
    )
    assert "|`ex2`|200|75.00%|2 ulp|2 ulp|" in tables(document)


def test_distances_are_in_the_units_of_their_bound():
    _, document = record(
        case("m", bound="2^-21 of Σ\\|a·b\\|", comparisons=[comparison(max_scaled=2.0**-23)]),
        case(
            "s",
            bound="2^-20.5 absolute",
            comparisons=[comparison(max_absolute=2.0**-22, max_ulps=9)],
        ),
        case(
            "l",
            bound="2 ulp or 2^-20.5 absolute",
            comparisons=[comparison(max_absolute=2.0**-23, max_ulps=1)],
        ),
    )
    text = tables(document)
    assert "|2^-23.0 of Σ\\|a·b\\||2^-21 of" in text
    assert "|2^-22.0 absolute|" in text
    assert "|2^-23.0 absolute, 1 ulp|" in text


def test_failures_are_counted_and_named():
    results, document = record(case("add.f32", error="emulator: deadlock"))
    assert not results.is_within
    assert "|1 (1 failed)|0|–|" in tables(document)
    assert "f32: add.f32: emulator: deadlock" in differences(document)


def test_probes_are_shown():
    results, document = record(
        case("div by zero", "probes", comparisons=[comparison()], values=(("0xff", "0xff"),)),
        case("rem by zero", "probes", comparisons=[comparison()], values=(("0x1", "0x2"),)),
    )
    assert results.is_within
    shown = differences(document)
    assert "div by zero: 0xff | 0xff (same)" in shown
    assert "rem by zero: 0x1 | 0x2 (DIFFERS)" in shown
    assert "probes" not in tables(document)


def test_variants():
    good = VariantOutcome("add sm_90a a", "add", "verified", launches=6, exact=[comparison()])
    near = VariantOutcome(
        "exp sm_90a a", "exp", "verified", launches=2,
        inexact=[comparison(identical=50, max_ulps=3)],
    )  # fmt: skip
    bad = VariantOutcome("add sm_90a b", "add", "verified", exact=[comparison(identical=99)])
    wrong = VariantOutcome("exp sm_90a b", "exp", "wrong", "off by much")
    assert [variant.is_within for variant in (good, near, bad, wrong)] == [True, True, False, False]
    _, document = record(variants=[good, near, bad, wrong])
    text = tables(document)
    assert "|add|2|6|200|99.50%|0|–|0 ulp|" in text
    assert "|exp|2|2|0|–|100|50.00%|3 ulp|" in text
    assert "exp: exp sm_90a b: wrong off by much" in differences(document)
