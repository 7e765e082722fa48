"""SARIF of checks and verifications: rules, levels, and places in the source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aotc import cli
from aotc.package.builder.workers import Failure
from aotc.package.inspect.sarif import Result, failure_results, sarif_text

_SOURCE = """\
import triton
import triton.language as tl

@triton.jit
def sort(x_ptr, n: tl.constexpr):
    tl.no_such_function(x_ptr)

@triton.jit
def copy(x_ptr):
    tl.store(x_ptr, 1)
"""


def _results(path: Path) -> list[dict[str, Any]]:
    log = json.loads(path.read_text())
    assert log["version"] == "2.1.0"
    (ran,) = log["runs"]
    rules = [rule["id"] for rule in ran["tool"]["driver"]["rules"]]
    assert rules == list(dict.fromkeys(result["ruleId"] for result in ran["results"]))
    return ran["results"]


def _place(result: dict[str, Any]) -> tuple[str, int]:
    (location,) = result["locations"]
    physical = location["physicalLocation"]
    return physical["artifactLocation"]["uri"], physical.get("region", {}).get("startLine", 0)


def test_a_check(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my kernels.py").write_text(_SOURCE)
    (tmp_path / "broken.py").write_text("import triton\n@triton.jit\ndef f(:\n")
    assert cli.run(["check", "my kernels.py", "broken.py", "--sarif", "out.sarif"]) == 1
    unsupported, unread = _results(tmp_path / "out.sarif")
    assert (unsupported["ruleId"], unsupported["level"]) == ("unsupported", "error")
    assert _place(unsupported) == ("my%20kernels.py", 6)
    assert "no_such_function" in unsupported["message"]["text"]
    assert (unread["ruleId"], _place(unread)) == ("unread", ("broken.py", 3))
    (tmp_path / "broken.py").write_text("")
    assert cli.run(["check", "broken.py", "--sarif", "out.sarif"]) == 0
    assert _results(tmp_path / "out.sarif") == []


def test_a_failure_is_its_mistakes_or_itself() -> None:
    mistake = {"file": "k.py", "line": 3, "column": 5, "message": "wrong", "remedy": "do so"}
    failure = Failure("add", "error: wrong", mistakes=(mistake,))
    assert [*failure_results(failure, "kernels.toml")] == [
        Result("mistake", "error", "wrong\ndo so", "k.py", 3, 5)
    ]
    bug = Failure("add", "it broke", is_bug=True)
    assert [*failure_results(bug, "kernels.toml")] == [
        Result("bug", "error", "it broke", "kernels.toml")
    ]


def test_each_result_is_listed_once(tmp_path: Path) -> None:
    result = Result("wrong", "error", "a", str(tmp_path / "k.py"), 2)
    (tmp_path / "out.sarif").write_text(sarif_text([result, result]))
    (listed,) = _results(tmp_path / "out.sarif")
    assert _place(listed) == ((tmp_path / "k.py").as_uri(), 2)
