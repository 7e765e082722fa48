"""The explanation of a compile by `aotc explain`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aotc.compiler import CompiledKernel, CompileRequest
from aotc.metadata import Metadata
from aotc.package.inspect.dump import find_request
from aotc.package.inspect.explain import describe, explain, occupancy, text
from aotc.target import TARGETS
from tests.support import mapped
from tests.support.pipelined import SOURCE

REQUEST = CompileRequest(
    SOURCE,
    "turned",
    (
        *(("a_ptr", "*fp16:16"), ("b_ptr", "*fp16:16"), ("c_ptr", "*fp32:16")),
        *(("count", "i32"), ("stride", "i32:16")),
    ),
    (("OTHER", 0), ("BLOCK", 32)),
    "sm_80",
)


def test_everything_is_said() -> None:
    explanation = explain(REQUEST)
    lines = text(explanation)
    assert "turned for sm_80: num_warps=4 num_stages=3 OTHER=0 BLOCK=32" in lines
    assert ": load of a_ptr: 2 bytes a thread, 16 instructions, masked" in lines
    assert ": asynchronous copy of b_ptr: 8 bytes a thread, 6 instructions, masked" in lines
    assert ": store of c_ptr: 16 bytes a thread, 2 instructions" in lines
    assert "is exchanged between threads through 2048 bytes of shared memory" in lines
    assert "the loop is pipelined over 3 stages through shared memory: b_ptr" in lines
    assert "0 bytes spilled" in lines
    data = json.loads(json.dumps(describe(explanation)))
    assert data["shared_bytes"] == 3 * 2048
    widths = {access["pointer"]: access["bytes_per_thread"] for access in data["accesses"]}
    assert widths == {"a_ptr": 2, "b_ptr": 8, "c_ptr": 16}
    assert data["remarks"] == list(explanation.metadata.remarks)


DIVIDED = """\
import triton
import triton.language as tl

@triton.jit
def k(x, out, start, size, AHEAD: tl.constexpr):
    first = start if AHEAD else tl.load(x)
    offs = 16 * first + tl.arange(0, 1024)
    tl.store(out + offs % (2 * size), offs)
"""


@pytest.mark.parametrize(
    ("size", "is_ahead", "cause"),
    [
        ("i32:16", True, ""),
        ("i32", True, ": no more than 2 neighbours are known to be contiguous; promise ':16' in"),
        ("i32:16", False, ": a quotient or remainder in its address may be of a negative number"),
    ],
)
def test_a_narrow_access_has_a_reason(
    tmp_path: Path, size: str, cause: str, *, is_ahead: bool
) -> None:
    source = tmp_path / "k.py"
    source.write_text(DIVIDED)
    signature = (("x", "*i32:16"), ("out", "*i32:16"), ("start", "i32"), ("size", size))
    constants = (("AHEAD", is_ahead),)
    request = CompileRequest(str(source), "k", signature, constants, "sm_90a", map_pointers=True)
    lines = text(explain(request)).splitlines()
    (store,) = (line for line in lines if ": store of out: " in line)
    assert cause in store
    assert store.endswith("instructions") == (not cause)
    condition = "  launched where start >= 0; another form elsewhere"
    assert (condition in lines) == is_ahead


BASE = Metadata(
    *("k", "k", "sm_90a", 128, 1),
    *(0, 0, 32, 0, 0),
    *((), (), (), ()),
)


@pytest.mark.parametrize(
    ("changes", "target", "blocks", "limit"),
    [
        ({}, "sm_90a", 16, "threads"),
        ({}, "sm_86", 12, "threads"),
        ({"num_threads": 32}, "sm_90a", 32, "CTAs"),
        ({"num_threads": 32}, "sm_86", 16, "CTAs"),
        ({"registers": 255}, "sm_90a", 2, "registers"),
        ({"registers": 33}, "sm_90a", 12, "registers"),
        ({"shared_bytes": 100 * 1024}, "sm_90a", 2, "shared memory"),
        ({"shared_bytes": 99 * 1024}, "sm_120a", 1, "shared memory"),
    ],
)
def test_occupancy(changes: dict[str, int], target: str, blocks: int, limit: str) -> None:
    residency = occupancy(replace(BASE, **changes), TARGETS[target])
    assert (residency.ctas, residency.limit) == (blocks, limit)
    assert residency.warps == blocks * changes.get("num_threads", 128) // 32


@pytest.mark.parametrize(
    ("guards", "condition", "has_map"),
    [
        ((), "stride >= 0", True),
        (("rows % 16 == 0",), "rows % 16 == 0 and stride >= 0", True),
        (("rows < -2147483648",), "", False),
    ],
)
def test_a_kernel_that_is_compiled_both_ways(
    guards: tuple[str, ...],
    condition: str,
    has_map: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compiler(request: CompileRequest, observer: object) -> CompiledKernel:
        del observer
        kernel = mapped.compile_mapped(request)
        kernel_guards = guards if kernel.metadata.guards else ()
        return replace(kernel, metadata=replace(kernel.metadata, guards=kernel_guards))

    monkeypatch.setattr("aotc.package.inspect.explain.compile_kernel", compiler)
    request = find_request(f"{mapped.written(tmp_path)}:twice", TARGETS["sm_90a"], {}, ())
    explanation = explain(request)
    assert (explanation.condition, bool(explanation.mapped)) == (condition, has_map)
    lines, data = text(explanation), describe(explanation)
    assert data["condition"] == condition
    assert data["tensor_maps"] == (["x_ptr"] if has_map else [])
    assert ("  tensor maps of x_ptr\n" in f"{lines}\n") == has_map
    assert (f"launched where {condition}; without tensor maps elsewhere" in lines) == has_map
