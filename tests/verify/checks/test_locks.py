"""Locks in kernels, and their verification."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.frontend.translate import translate
from aotc.verify.checks.locks import free_locks

_HEAD = """import triton
import triton.language as tl


@triton.jit
def kernel(lock, count, out, D: tl.constexpr):
    d = tl.arange(0, D)
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["while tl.atomic_cas(lock, 0, 1) == 1:", "    pass"], {"lock": 0}),
        (["while tl.atomic_cas(lock + tl.program_id(0), 5, 9) != 5:", "    pass"], {"lock": 5}),
        (["while tl.atomic_xchg(lock, 1) != 0:", "    pass"], {"lock": 0}),
        (["while tl.atomic_xchg(lock, 0) == 0:", "    pass"], {"lock": 1}),
        (["was = 1", "while was == 1:", "    was = tl.atomic_cas(lock, 0, 1)"], {"lock": 0}),
        (["while tl.atomic_cas(lock, 1, 1) != 1:", "    pass"], {"lock": 0}),  # a signal
        (["while tl.atomic_cas(lock, 0, 0) != 0:", "    pass"], {"lock": 1}),
        (["tl.atomic_cas(lock, 0, 1)"], {}),  # it waits for nothing
        (["while tl.atomic_add(count, 0) < 3:", "    pass"], {}),
        (["while tl.atomic_cas(lock, tl.program_id(0), 1) == 1:", "    pass"], {"lock": 0}),
        (["while tl.load(count, volatile=True) == 0:", "    tl.atomic_cas(lock, 0, 1)"], {}),
    ],
)
def test_locks_are_addresses_polled_by_a_loop(
    tmp_path: Path, lines: list[str], expected: dict[str, int]
) -> None:
    path = tmp_path / "kernels.py"
    lines = [*lines, "tl.store(out + d, d * 1.0)"]
    path.write_text(_HEAD + "".join(f"    {line}\n" for line in lines))
    signature = {"lock": "*i32", "count": "*i32", "out": "*fp32"}
    kernel = translate(str(path), "kernel", signature, {"D": 32}, target="sm_90a").kernel
    assert free_locks(kernel) == expected
