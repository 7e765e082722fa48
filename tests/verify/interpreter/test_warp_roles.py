"""Two roles under the interpreter: alternation, and faults of either running ahead."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aotc.ir.text import parse_kernel
from aotc.ir.verify import verify
from aotc.verify.interpreter.run import InterpretError, run

HEAD = """\
#0 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64]] : [128]>
#1 = #ll<register=[[1]] lane=[[2],[4],[8],[16],[32]] warp=[[64]] : [128]>
#2 = #ll<offset=[] : [1]>
kernel @k(%x: map<128xfp32, 0>, %out: *fp32, %n: i32) {num_warps = 2, producer_warps = 1} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
  %wide = arith.constant {value = 128, type = i32} : i32
  %yes = arith.constant {value = true, type = i1} : i1
  %no = arith.constant {value = false, type = i1} : i1
  %at = tile.arange {start = 0, end = 128, layout = #1} : tile<128xi32, #1>
  %first = tile.splat(%out) {shape = [128], layout = #1} : tile<128x*fp32, #1>
  %ring = gpu.shared_alloc {element = fp32, shape = [128], layout = #0, alignment_bytes = 128, num_stages = 2, offset_bytes = 0} : shared<128xfp32, #0, 2>
  %fulls = gpu.shared_alloc {element = u64, shape = [1], layout = #2, alignment_bytes = 8, num_stages = 2, offset_bytes = 1024} : shared<1xu64, #2, 2>
  %empties = gpu.shared_alloc {element = u64, shape = [1], layout = #2, alignment_bytes = 8, num_stages = 2, offset_bytes = 1040} : shared<1xu64, #2, 2>
  gpu.mbarrier_init(%fulls)
  gpu.mbarrier_init(%empties) {count = 2}
  gpu.barrier
"""

CONSUMER = """
    %last, %end = scf.for(%zero, %n, %one, %zero, %zero) (%i: i32, %index: i32, %turn: i32) {
      %full = gpu.shared_stage(%fulls, %index) : shared<1xu64, #2>
      gpu.mbarrier_wait(%full, %turn)
      %buffer = gpu.shared_stage(%ring, %index) : shared<128xfp32, #0>
      %v = gpu.shared_load(%buffer) {layout = #1, vector = 2} : tile<128xfp32, #1>
      %empty = gpu.shared_stage(%empties, %index) : shared<1xu64, #2>
      gpu.mbarrier_arrive(%empty) {count = 2}
      %start = arith.mul(%i, %wide) : i32
      %starts = tile.splat(%start) {shape = [128], layout = #1} : tile<128xi32, #1>
      %places = arith.add(%starts, %at) : tile<128xi32, #1>
      %pointers = arith.addptr(%first, %places) : tile<128x*fp32, #1>
      gpu.store(%pointers, %v)
      %next = gpu.next_stage(%index) {num_stages = 2} : i32
      %wraps = arith.compare(%next, %zero) {predicate = "eq"} : i1
      %flip = arith.cast(%wraps) {dtype = i32} : i32
      %turned = arith.xor(%turn, %flip) : i32
      scf.yield(%next, %turned)
    } : i32, i32
"""
PRODUCER = """
    %last, %end = scf.for(%zero, %n, %one, %zero, %zero) (%i: i32, %index: i32, %turn: i32) {
      %empty = gpu.shared_stage(%empties, %index) : shared<1xu64, #2>
      %free = arith.xor(%turn, %one) : i32
      gpu.mbarrier_wait(%empty, %free)
      %full = gpu.shared_stage(%fulls, %index) : shared<1xu64, #2>
      %buffer = gpu.shared_stage(%ring, %index) : shared<128xfp32, #0>
      %start = arith.mul(%i, %wide) : i32
      gpu.tma_load(%x, %buffer, %full, %start)
      %next = gpu.next_stage(%index) {num_stages = 2} : i32
      %wraps = arith.compare(%next, %zero) {predicate = "eq"} : i1
      %flip = arith.cast(%wraps) {dtype = i32} : i32
      %turned = arith.xor(%turn, %flip) : i32
      scf.yield(%next, %turned)
    } : i32, i32
"""


def _named(text: str, role: str) -> str:
    """Return the text of a role, with value names of its own."""
    shared = re.findall(r"%\w+", HEAD)
    return re.sub(r"%\w+", lambda name: name[0] + (role if name[0] not in shared else ""), text)


def _kernel(consumer: str = CONSUMER, producer: str = PRODUCER) -> str:
    return (
        f"{HEAD}  gpu.specialize () {{{_named(consumer, '_c')}    scf.yield()\n  }} () "
        f"{{{_named(producer, '_p')}    scf.yield()\n  }}\n  scf.return\n}}\n"
    )


def _run(text: str, n: int = 5) -> None:
    """Copy `n` blocks through the ring, and check their arrival."""
    kernel = parse_kernel(text)
    verify(kernel)
    x = np.random.default_rng(n).standard_normal(128 * max(n, 1)).astype(np.float32)
    out = np.zeros_like(x)
    run(kernel, (1,), [x, out, n])
    assert (out == x).all() == (n > 0)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7])
def test_the_producer_fills_the_consumers_buffers(n: int) -> None:
    _run(_kernel(), n)


def _moved(text: str, line: str, before: str) -> str:
    """Return the text with the line containing `line` moved in front of the one with `before`."""
    lines = text.splitlines(keepends=True)
    moving = next(candidate for candidate in lines if line in candidate)
    lines.remove(moving)
    lines.insert(next(n for n, candidate in enumerate(lines) if before in candidate), moving)
    return "".join(lines)


ARRIVE = "gpu.mbarrier_arrive(%empty) {count = 2}"
EARLY = _moved(_moved(CONSUMER, "%empty = ", "%v = "), "gpu.mbarrier_arrive", "%v = ")
FREE = "%free = arith.xor(%turn, %one)"
WRONG = {
    "arrive dropped": (
        (CONSUMER.replace(ARRIVE, ""), PRODUCER),
        "waits for ever: 1 phases have ended, and the producer waits at",
    ),
    "arrive not enabled": (
        (CONSUMER.replace("arrive(%empty)", "arrive(%empty, %no)"), PRODUCER),
        "waits for ever",
    ),
    "a warp does not arrive": (
        (CONSUMER.replace(ARRIVE, "gpu.mbarrier_arrive(%empty) {count = 1}"), PRODUCER),
        "waits for ever",
    ),
    "a warp arrives twice": (
        (CONSUMER.replace(ARRIVE, "gpu.mbarrier_arrive(%empty) {count = 3}"), PRODUCER),
        "arrives more often than the 2 times",
    ),
    "arrive before the read": ((EARLY, PRODUCER), "other warps touched and did not say"),
    "a read of another stage": (
        (CONSUMER.replace("%ring, %index)", "%ring, %index) {ahead = 1}"), PRODUCER),
        "has not landed",
    ),
    "a copy to another stage": (
        (CONSUMER, PRODUCER.replace("%ring, %index)", "%ring, %index) {ahead = 1}")),
        "has not landed",
    ),
    "no wait for the copy": (
        (CONSUMER.replace("gpu.mbarrier_wait(%full, %turn)", ""), PRODUCER),
        "waits for ever: the consumers have come to their end",
    ),
    "the other parity of full": (
        (CONSUMER.replace("wait(%full, %turn)", "wait(%full, %one)"), PRODUCER),
        "has not landed|waits for ever",
    ),
    "the other parity of empty": (
        (CONSUMER, PRODUCER.replace(FREE, "%free = arith.xor(%turn, %zero)")),
        "waits for ever: 0 phases have ended, and the producer waits at",
    ),
    "no wait for room": (
        (CONSUMER, PRODUCER.replace("gpu.mbarrier_wait(%empty, %free)", "")),
        "has not landed",
    ),
    "a copy too few": (
        (CONSUMER, PRODUCER.replace("(%zero, %n,", "(%one, %n,")),
        "and the producer has come to its end",
    ),
    "a copy too many": (
        (CONSUMER.replace("(%zero, %n,", "(%one, %n,"), PRODUCER.replace("%n,", "%wide,")),
        "waits for ever: the consumers have come to their end",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_faults_on_a_gpu_are_found(mistake: str) -> None:
    (consumer, producer), message = WRONG[mistake]
    assert (consumer, producer) != (CONSUMER, PRODUCER)
    with pytest.raises(InterpretError, match=message):
        _run(_kernel(consumer, producer))


def test_a_barrier_of_the_consumers_says_nothing_to_the_producer() -> None:
    early = EARLY.replace("%v =", "gpu.barrier\n      %v =")
    with pytest.raises(InterpretError, match="other warps touched and did not say"):
        _run(_kernel(early))


BRANCHES = """
    %end, %last = scf.while(%zero, %zero) (%now: i32, %old: i32) {
      %more = arith.compare(%now, %n) {predicate = "lt"} : i1
      scf.condition(%more, %now, %old)
    } (%i: i32, %turn: i32) {
      %odd = arith.and(%i, %one) : i32
      %is_odd = arith.compare(%odd, %one) {predicate = "eq"} : i1
      %turned = scf.if(%is_odd) () {
BODY
        %flipped = arith.xor(%turn, %one) : i32
        scf.yield(%flipped)
      } () {
        scf.yield(%turn)
      } : i32
      %next = arith.add(%i, %one) : i32
      scf.yield(%next, %turned)
    } : i32, i32
"""
TAKE = """
        gpu.mbarrier_wait(%full, %turn)
        %v = gpu.shared_load(%buffer) {layout = #1, vector = 2} : tile<128xfp32, #1>
        gpu.mbarrier_arrive(%empty) {count = 2}
        %start = arith.mul(%i, %wide) : i32
        %starts = tile.splat(%start) {shape = [128], layout = #1} : tile<128xi32, #1>
        %places = arith.add(%starts, %at) : tile<128xi32, #1>
        %pointers = arith.addptr(%first, %places) : tile<128x*fp32, #1>
        gpu.store(%pointers, %v)
"""
BRING = """
        %free = arith.xor(%turn, %one) : i32
        gpu.mbarrier_wait(%empty, %free)
        %start = arith.mul(%i, %wide) : i32
        gpu.tma_load(%x, %buffer, %full, %start)
"""
SLOT = """
    %full = gpu.shared_stage(%fulls, %zero) : shared<1xu64, #2>
    %empty = gpu.shared_stage(%empties, %zero) : shared<1xu64, #2>
    %buffer = gpu.shared_stage(%ring, %zero) : shared<128xfp32, #0>
"""


@pytest.mark.parametrize("n", [0, 1, 2, 3, 6])
def test_loops_with_a_condition_and_branches_are_stepped_through(n: int) -> None:
    roles = [SLOT + BRANCHES.replace("BODY", body) for body in (TAKE, BRING)]
    kernel = parse_kernel(_kernel(*roles))
    verify(kernel)
    x = np.random.default_rng(n).standard_normal((8, 128)).astype(np.float32)
    out = np.zeros_like(x)
    run(kernel, (1,), [x.reshape(-1), out.reshape(-1), n])
    assert (out[1:n:2] == x[1:n:2]).all()
    assert not out[0::2].any()
