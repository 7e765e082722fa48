"""Bounds on LLVM's visits in a long module, with unchanged results."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from aotc.backend import emit_ptx, lower_kernel
from aotc.backend.llvm_visits import bound_visits
from aotc.compiler import check_request, translate_request
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.verify.emulator.run import emulate
from tests.backend.programs import SM_90
from tests.support.repeated_kernels import repeated

_CANDIDATE = re.compile(r"^  %\w+ = (?:getelementptr|add|mul)\b.*$", re.MULTILINE)


def _lower(name: str, size: int) -> str:
    request = repeated(name, size, "sm_90a")
    target = check_request(request)
    kernel = schedule_kernel(translate_request(request).kernel, Schedule(target, request.config))
    return lower_kernel(kernel, target).llvm_ir


def _chain(count: int) -> str:
    """Return a module of loads, each from the address loaded before."""
    lines = ["define ptx_kernel void @k(ptr addrspace(1) %p, i32 %n) {", "entry:"]
    lines += ["  %v0 = add i32 %n, 1"]
    for i in range(count):
        lines += [
            f"  %w{i} = sext i32 %v{i} to i64",
            f"  %a{i} = getelementptr [4 x i8], ptr addrspace(1) %p, i64 %w{i}",
            f"  %v{i + 1} = load i32, ptr addrspace(1) %a{i}",
        ]
    last = f"  store i32 %v{count}, ptr addrspace(1) %p"
    return "\n".join([*lines, last, "  ret void", "}\n"])


def test_a_short_module_stays_as_it_is() -> None:
    text = _chain(40)
    assert bound_visits(text) is text


@pytest.mark.parametrize("count", [2000, 6000])
def test_what_shares_an_operand_is_bounded(count: int) -> None:
    text = bound_visits(_chain(count))
    uses = Counter(
        name for line in _CANDIDATE.findall(text) for name in re.findall(r"%\w+", line)[1:]
    )
    assert max(uses.values()) <= 64
    assert text.count("\n") < 4.1 * count


def test_an_extended_value_has_no_other_use() -> None:
    """Or CodeGenPrepare walks over all of the function for each of them."""
    text = bound_visits(_lower("row loops", 20), threshold=0)
    extended = re.findall(r" = [sz]ext i\d+ (%\w+)", text)
    assert len(extended) > 0
    for name in extended:
        assert len(re.findall(rf"{name}\b", text)) == 2  # where it is frozen, and where extended


def test_copies_are_read_in_the_block_that_has_them() -> None:
    text = bound_visits(_lower("row loops", 3), threshold=0, window=3)
    copies: set[str] = set()
    for line in text.split("\n"):
        if line.endswith(":"):
            copies = set()
        if copied := re.match(r"  (%frozen\d+) = ", line):
            copies.add(copied[1])
        assert copies.issuperset(re.findall(r"%frozen\d+", line))


@pytest.mark.parametrize("name", ["copies", "row loops", "carried", "gathers"])
def test_results_are_the_same(name: str) -> None:
    text = _lower(name, 5)
    rng = np.random.default_rng()
    n = 16 * int(rng.integers(1, 4))
    numbers = rng.integers(0, 500, 4096, dtype=np.int32)
    x = numbers.view(np.float32) if name == "gathers" else numbers.astype(np.float32)
    outs: list[bytes] = []
    for bounded in (text, bound_visits(text, threshold=0, window=2)):
        out = np.full(4096, -1.5, np.float32)
        emulate(emit_ptx(bounded, SM_90), 1, [x.copy(), x.copy(), out, n])
        outs.append(out.tobytes())
    assert "freeze" in bounded
    assert outs[0] == outs[1]
    assert outs[0] != np.full(4096, -1.5, np.float32).tobytes()
