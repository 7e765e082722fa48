"""The cache of compile results: keys and eviction."""

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
    cache: ResultCache[str] = ResultCache()
    cache.keep("text", "a", "value", 5)
    assert (cache.find("text", "a"), cache.has_hit) == ("value", True)
    for text, options in (("text", "b"), ("texts", "a"), ("", "texta")):
        assert (cache.find(text, options), cache.has_hit) == (None, False)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 50)), max_size=40))
def test_the_latest_stay_within_the_bytes(lookups: list[tuple[int, int]]) -> None:
    cache: ResultCache[int] = ResultCache(100)
    latest: list[tuple[int, int]] = []
    for number, num_bytes in lookups:
        hit = cache.find(str(number), "")
        sizes = dict(latest)
        assert (hit is not None) == (number in sizes)
        if hit is None:
            cache.keep(str(number), "", number, num_bytes)
            latest.append((number, num_bytes))
        else:
            latest = [(other, size) for other, size in latest if other != number]
            latest.append((number, sizes[number]))
        while sum(size for _, size in latest) > 100:
            latest.pop(0)


def test_llvm_runs_once_for_the_same_module(monkeypatch) -> None:
    monkeypatch.setattr(ptx, "_results", ResultCache())
    text = emit_ptx(MODULE, SM_90, reuses=True)
    monkeypatch.setattr(ptx, "parse", None)
    assert emit_ptx(MODULE, SM_90, reuses=True) is text
