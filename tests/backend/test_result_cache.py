"""What a process keeps of what it has made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aotc.backend import emit_ptx, ptx
from aotc.backend.result_cache import ResultCache
from tests.backend.programs import SM_90

MODULE = """target triple = "nvptx64-nvidia-cuda"
define ptx_kernel void @k() { ret void }
"""


def test_text_and_options_name_a_value() -> None:
    kept: ResultCache[str] = ResultCache()
    kept.keep("text", "a", "value", 5)
    assert (kept.find("text", "a"), kept.has_hit) == ("value", True)
    for text, options in (("text", "b"), ("texts", "a"), ("", "texta")):
        assert (kept.find(text, options), kept.has_hit) == (None, False)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 50)), max_size=40))
def test_the_latest_stay_within_the_bytes(asked: list[tuple[int, int]]) -> None:
    kept: ResultCache[int] = ResultCache(100)
    latest: list[tuple[int, int]] = []
    for number, num_bytes in asked:
        found = kept.find(str(number), "")
        held = dict(latest)
        assert (found is not None) == (number in held)
        if found is None:
            kept.keep(str(number), "", number, num_bytes)
            latest.append((number, num_bytes))
        else:
            latest = [(each, size) for each, size in latest if each != number]
            latest.append((number, held[number]))
        while sum(size for _, size in latest) > 100:
            latest.pop(0)


def test_llvm_runs_once_for_the_same_module(monkeypatch) -> None:
    monkeypatch.setattr(ptx, "_results", ResultCache())
    made = emit_ptx(MODULE, SM_90, reuses=True)
    monkeypatch.setattr(ptx, "parse", None)
    assert emit_ptx(MODULE, SM_90, reuses=True) is made
