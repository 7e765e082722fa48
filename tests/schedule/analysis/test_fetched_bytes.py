"""L2 fetch sizes of tensor maps: 256 bytes for loads of 128 bytes moved along rows by a loop."""

from __future__ import annotations

import pytest

from aotc.ir.text import parse_kernel
from aotc.schedule.analysis.fetched_bytes import fetched_bytes

_TEXT = """\
#0 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[1,0],[2,0],[4,0]] : [8,32]>
#1 = #ll<offset=[] : [1]>
#3 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[1,0],[2,0],[4,0]] : [8,16]>
#2 = #ll<offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[1,0],[2,0],[4,0],[0,32]] : [8,64]>
kernel @k(%x: map<8x32xfp32, 128>, %y: map<8x32xfp32, 128>, %z: map<8x16xfp32, 64>, %n: i32, %at: i32) {num_warps = 1} {
  %bar = gpu.shared_alloc {element = u64, shape = [1], layout = #1, alignment_bytes = 8} : shared<1xu64, #1>
  %b = gpu.shared_alloc {element = fp32, shape = [8, 32], layout = #0, alignment_bytes = 1024} : shared<8x32xfp32, #0>
  %w = gpu.shared_alloc {element = fp32, shape = [8, 64], layout = #2, alignment_bytes = 1024} : shared<8x64xfp32, #2>
  %h = gpu.shared_alloc {element = fp32, shape = [8, 16], layout = #3, alignment_bytes = 1024} : shared<8x16xfp32, #3>
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %four = arith.constant {value = 4, type = i32} : i32
  %many = arith.constant {value = 32, type = i32} : i32
  %twice = arith.constant {value = 64, type = i32} : i32
BODY
  scf.return
}
"""
_LOAD = "gpu.tma_load(%x, %b, %bar, %at, {})"


def _fetched(*body: str) -> tuple[int, int]:
    """Return the fetch sizes of the maps of x and y; z never fetches 256 bytes."""
    kernel = parse_kernel(_TEXT.replace("BODY", "\n".join(body)))
    x, y, z = (fetched_bytes(kernel)[arg] for arg in kernel.body.args[:3])
    assert z == 128
    return x, y


def _in_loop(*body: str, step: str = "%one") -> tuple[int, int]:
    head = f"scf.for(%zero, %n, {step}) (%i: i32) {{"
    return _fetched(head, *body, "scf.yield()", "}")


@pytest.mark.parametrize("step", ["%one", "%many"])
def test_a_loop_along_rows(step: str) -> None:
    assert _in_loop(_LOAD.format("%i"), step=step) == (256, 128)


def test_sums_products_and_quotients_are_seen_through() -> None:
    product = "%p = arith.mul(%i, %many) : i32"
    assert _in_loop(product, _LOAD.format("%p")) == (256, 128)
    turned = "%p = arith.mul(%many, %i) : i32"
    assert _in_loop(turned, _LOAD.format("%p")) == (256, 128)
    ahead = "%q = arith.add(%p, %twice) : i32"
    assert _in_loop(product, ahead, _LOAD.format("%q")) == (256, 128)
    back = "%q = arith.sub(%at, %p) : i32"
    assert _in_loop(product, back, _LOAD.format("%q")) == (256, 128)
    part = "%p = arith.div(%i, %four) : i32"
    assert _in_loop(part, _LOAD.format("%p"), step="%many") == (256, 128)


def test_what_a_loop_carries() -> None:
    assert _fetched(
        "%end = scf.for(%zero, %n, %one, %at) (%i: i32, %p: i32) {",
        _LOAD.format("%p"),
        "%q = arith.add(%p, %many) : i32",
        "scf.yield(%q)",
        "} : i32",
    ) == (256, 128)


@pytest.mark.parametrize(
    "body",
    [
        (_LOAD.format("%at"),),  # across rows, or not at all
        ("%p = arith.mul(%i, %twice) : i32", _LOAD.format("%p")),  # 256 bytes at a time
        ("%p = arith.mul(%i, %n) : i32", _LOAD.format("%p")),  # unknown distance
        ("%p = arith.rem(%i, %four) : i32", _LOAD.format("%p")),
        ("%p = arith.div(%i, %four) : i32", _LOAD.format("%p")),
        ("gpu.tma_load(%x, %w, %bar, %at, %i)",),  # two boxes of a row at once
        ("gpu.tma_load(%z, %h, %bar, %at, %i)",),  # 64 bytes at a time are ahead with 128
        ("gpu.tma_store(%x, %b, %at, %i)",),
    ],
)
def test_other_loops(body: tuple[str, ...]) -> None:
    assert _in_loop(*body) == (128, 128)


def test_the_innermost_loop_counts() -> None:
    inner = ("scf.for(%zero, %n, %one) (%j: i32) {", _LOAD.format("%i"), "scf.yield()", "}")
    assert _in_loop(*inner, step="%many") == (128, 128)
    assert _fetched(_LOAD.format("%at")) == (128, 128)
