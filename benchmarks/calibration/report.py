"""The results as JSON, and as the tables of docs/internals/calibration.md.

Invariant: a table is made of the JSON alone, so a run need not be repeated to print it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.calibration.groups import GROUPS
from benchmarks.calibration.judge import CaseResult
from benchmarks.calibration.variants import VariantOutcome

Record = Mapping[str, Any]


@dataclass(slots=True)
class Results:
    """Results of a run, with device and date."""

    device: str
    date: str
    cases: list[CaseResult] = field(default_factory=list)
    variants: list[VariantOutcome] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_within(self) -> bool:
        """Return whether no bound is broken."""
        return all(outcome.is_within for outcome in (*self.cases, *self.variants))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for `tables`: every case, with examples of differences."""
        return {
            "device": self.device,
            "date": self.date,
            "seconds": round(self.seconds, 1),
            "cases": [{**asdict(case), "is_within": case.is_within} for case in self.cases],
            "variants": [
                {
                    "label": outcome.label,
                    "kernel": outcome.kernel,
                    "status": outcome.status,
                    "detail": outcome.detail,
                    "launches": outcome.launches,
                    "is_within": outcome.is_within,
                    "exact": _sums(map(asdict, outcome.exact)),
                    "inexact": _sums(map(asdict, outcome.inexact)),
                    "examples": [e for comparison in outcome.exact for e in comparison.examples][
                        :6
                    ],
                }
                for outcome in self.variants
            ],
        }


def _sums(comparisons: Iterable[Record]) -> dict[str, Any]:
    """Return counts added up and the largest distances."""
    totals: dict[str, Any] = dict.fromkeys(("count", "identical", "nan_only", "broken"), 0)
    totals |= {"max_ulps": 0, "max_absolute": 0.0, "max_scaled": 0.0}
    for comparison in comparisons:
        for name in totals:
            join = max if name.startswith("max") else sum
            totals[name] = join((totals[name], comparison[name]))
    return totals


def tables(results: Record) -> str:
    """Return the tables as markdown."""
    cases: Sequence[Record] = results["cases"]
    exact = [case for case in cases if case["bound"] == "identical" and case["group"] != "probes"]
    near = [case for case in cases if case["bound"] != "identical"]
    parts = [
        f"{results['device']}, {results['date']}.",
        _exact_table(exact),
        _near_table(near),
        _variant_table(results["variants"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _exact_table(cases: Sequence[Record]) -> str:
    lines = ["|to the bit|forms|results|identical|other bits of NaN|", "|-|-:|-:|-:|-:|"]
    for name, group in GROUPS.items():
        group_cases = [case for case in cases if case["group"] == name]
        if group_cases:
            total = _sums(comparison for case in group_cases for comparison in case["comparisons"])
            errors = sum(bool(case["error"]) for case in group_cases)
            failed = f" ({errors} failed)" if errors else ""
            lines.append(
                f"|{group.title}|{len(group_cases):,}{failed}|{total['count']:,}|"
                f"{_share(total['identical'], total['count'])}|{total['nan_only']:,}|"
            )
    return "\n".join(lines) if len(lines) > 2 else ""


def _near_table(cases: Sequence[Record]) -> str:
    lines = ["|within bounds|results|identical|largest distance|bound|", "|-|-:|-:|-|-|"]
    for row in dict.fromkeys((case["row"], case["bound"]) for case in cases):
        row_cases = [case for case in cases if (case["row"], case["bound"]) == row]
        total = _sums(comparison for case in row_cases for comparison in case["comparisons"])
        errors = sum(bool(case["error"]) for case in row_cases)
        failed = f" ({errors} failed)" if errors else ""
        lines.append(
            f"|`{row[0]}`{failed}|{total['count']:,}|"
            f"{_share(total['identical'], total['count'])}|{_distance(total, row[1])}|{row[1]}|"
        )
    return "\n".join(lines) if len(lines) > 2 else ""


def _distance(total: Record, bound: str) -> str:
    """Return the largest distance in the units of its bound."""
    if "Σ" in bound:
        return f"{_power(total['max_scaled'])} of Σ\\|a·b\\|"
    if "absolute" in bound:
        steps = f", {total['max_ulps']:,} ulp" if "ulp" in bound else ""
        return f"{_power(total['max_absolute'])} absolute{steps}"
    return f"{total['max_ulps']:,} ulp"


def _variant_table(variants: Sequence[Record]) -> str:
    lines = [
        "|kernel|variants|launches|exact results|identical|others|identical|largest distance|",
        "|-|-:|-:|-:|-:|-:|-:|-|",
    ]
    for kernel in dict.fromkeys(variant["kernel"] for variant in variants):
        kernel_variants = [variant for variant in variants if variant["kernel"] == kernel]
        exact, inexact = (
            _sums(variant[column] for variant in kernel_variants) for column in ("exact", "inexact")
        )
        lines.append(
            f"|{kernel}|{len(kernel_variants)}|{sum(variant['launches'] for variant in kernel_variants)}|{exact['count']:,}|"
            f"{_share(exact['identical'], exact['count'])}|{inexact['count']:,}|"
            f"{_share(inexact['identical'], inexact['count'])}|{inexact['max_ulps']:,} ulp|"
        )
    return "\n".join(lines) if variants else ""


def _share(part: int, whole: int) -> str:
    """Return a share in percent, rounded down: 100% means all."""
    if not whole:
        return "–"
    return "100%" if part == whole else f"{math.floor(10000 * part / whole) / 100:.2f}%"


def _power(value: float) -> str:
    if not value:
        return "0"
    return f"2^{math.log2(value):.1f}" if math.isfinite(value) else "∞"


def differences(results: Record) -> str:
    """Return the results out of bounds, with operands and both sides' bits, and probes' answers."""
    lines: list[str] = []
    for case in results["cases"]:
        if not case["is_within"]:
            lines.append(f"{case['group']}: {case['name']}: {case['error'] or _broken(case)}")
            lines += _examples(case)
    lines += [
        f"{variant['kernel']}: {variant['label']}: {variant['status']} {variant['detail']} {variant['exact']}"
        for variant in results["variants"]
        if not variant["is_within"]
    ]
    probes = [case for case in results["cases"] if case["values"]]
    if probes:
        lines += ["", "probes (emulator | GPU):"]
    for case in probes:
        for emulated, actual in case["values"]:
            refused = not case["comparisons"]
            same = "same" if emulated == actual else "both refuse" if refused else "DIFFERS"
            lines.append(f"  {case['name']}: {emulated} | {actual} ({same})")
    return "\n".join(lines)


def _broken(case: Record) -> str:
    total = _sums(case["comparisons"])
    return (
        f"{total['broken']:,} of {total['count']:,} out of bounds ({case['bound']}), "
        f"{total['nan_only']:,} of them NaN on both sides, up to {total['max_ulps']:,} ulp"
    )


def _examples(case: Record) -> list[str]:
    examples = [example for comparison in case["comparisons"] for example in comparison["examples"]]
    return [
        f"    [{index}] of {', '.join(operands)}: emulator {emulated}, GPU {actual}"
        for (index, emulated, actual), operands in zip(examples, case["operands"], strict=True)
    ]
