"""The texts of the schedule are found in its sources, and in remarks."""

from __future__ import annotations

from pathlib import Path

from benchmarks.soak import remarks

_SOURCE = '''
"""A docstring of many words."""

KNOWN = "a text of a table"
"""What no remark says at all."""
Rule = Callable[[Op], "list of all things"]


def decide(schedule, loop, why):
    """Say what was decided about it."""
    if why:
        schedule.remark(loop.loc, f"the loop of {loop.name} stays: {why}")
    if loop is None:
        raise ValueError("there is no loop to decide about")
    return error(f"this never becomes a remark {why}") or "a b"
'''


def test_texts_are_strings_that_are_no_docstrings_and_no_errors(tmp_path: Path) -> None:
    (tmp_path / "layout").mkdir()
    (tmp_path / "layout" / "decide.py").write_text(_SOURCE)
    assert [(text.place, text.text) for text in remarks.texts(tmp_path)] == [
        ("layout/decide.py:4", "a text of a table"),
        ("layout/decide.py:12", "the loop of * stays: *"),
    ]


def test_texts_are_found_in_remarks() -> None:
    texts = [
        remarks.Text("a:1", "the loop of * stays: *"),
        remarks.Text("a:2", "it has (no) room"),
        remarks.Text("a:3", "{name} in 2 parts of {size} bytes"),
    ]
    seen = ["k.py:3:5: the loop of x stays: it has (no) room", "k.py:4:5: y in 2 parts of 64 bytes"]
    assert remarks.never_seen(seen, texts) == []
    assert remarks.never_seen(["k.py:3:5: the loop of x stays"], texts) == texts


def test_remarks_of_a_kind_are_one() -> None:
    first = "/a/k.py:3:5: 200 of 256 columns are multiplied"
    assert remarks.without_numbers(first) == "N of N columns are multiplied"
    assert remarks.without_numbers(first) == remarks.without_numbers(first.replace("256", "128"))


def test_the_schedule_has_texts() -> None:
    texts = [text.text for text in remarks.texts()]
    assert any("warp" in text for text in texts)
    assert len(texts) > 50
