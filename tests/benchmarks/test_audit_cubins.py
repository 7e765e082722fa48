"""The audit of many cubins: in portions, with a summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.audit_cubins import Audited, main, read_results, summary

KERNELS = Path(__file__).parents[2] / "kernels.toml"


@pytest.mark.slow
def test_a_run_goes_on_where_the_one_before_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "found.jsonl"
    chosen = ("--kernel", "vector_add", "--every", "8", "--results", str(results), "-j", "1")
    arguments = ["audit_cubins.py", str(KERNELS), *chosen]
    monkeypatch.setattr("sys.argv", [*arguments, "--seconds", "0.001"])
    assert main() == 0
    (first,) = read_results(results)
    assert "the rest is for another run" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", arguments)
    assert main() == 0
    audits = read_results(results)
    assert audits[0] == first
    assert len(audits) > 1
    assert capsys.readouterr().out.startswith(
        f"{len(audits)} variants, {len(audits)} cubins, 0 refused"
    )


def test_a_summary_names_what_fails() -> None:
    spill, apart = ("spill in a loop", "LDL R0", False), ("issued apart", "UTMALDG.2D", True)
    audits = [
        Audited("a.toml", "one", [[spill]], seconds=1.0),
        Audited("a.toml", "two", [[spill, spill], [apart, apart]], seconds=2.0),
        Audited("a.toml", "three", [], "no such type"),
    ]
    assert [*summary(audits)] == [
        "3 variants, 3 cubins, 1 refused, 3 CPU-s",
        "issued apart: in 1 cubins",
        "spill in a loop: in 2 cubins",
        "fails: a.toml: two: UTMALDG.2D and 1 more",
    ]
