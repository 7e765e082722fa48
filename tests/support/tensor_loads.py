"""Text of kernels with tensor loads, before the assignment of loads to warps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from aotc.ir.core import Kernel
from aotc.ir.text import parse_kernel
from aotc.ir.verify import verify
from aotc.verify.interpreter.run import run

HEAD = """\
#0 = #ll<offset=[[1],[2],[4],[8],[16],[32],[64]] : [128]>
#1 = #ll<register=[[1]] lane=[[2],[4],[8],[16],[32]] warp=[[64]] : [128]>
kernel @k(%x: map<128xi32, 0>, %z: map<128xi32, 0>, %y: map<128xi32, 0>, %p: *i32, %n: i32, %c: i1) {num_warps = WARPS} {
  %zero = arith.constant {value = 0, type = i32} : i32
  %one = arith.constant {value = 1, type = i32} : i32
"""
ALLOC = (
    "gpu.shared_alloc {element = i32, shape = [128], layout = #0, alignment_bytes = 128}"
    " : shared<128xi32, #0>"
)


def load(name: str, coord: str, tensor: str = "%x") -> str:
    """Return text to load a box into `%NAME_buffer`."""
    return f"  %{name}_buffer = {ALLOC}\n  gpu.sync_tma_load({tensor}, %{name}_buffer, {coord})\n"


def read(name: str, to: str = "") -> str:
    """Return text to read `%NAME_buffer` as `%NAME`, or as `%TO`."""
    kind = "{layout = #1, vector = 2} : tile<128xi32, #1>"
    return f"  %{to or name} = gpu.shared_load(%{name}_buffer) {kind}\n"


def keep(name: str) -> str:
    """Return text to use a tile."""
    arguments = f"(%{name}_l: i32, %{name}_r: i32)"
    return (
        f"  %{name}_first = gpu.reduce(%{name}) {{axis = 0}} {arguments} {{\n"
        f"  scf.yield(%{name}_l)\n  }} : i32\n  gpu.store(%p, %{name}_first)\n"
    )


def copy(name: str, coord: str, tensor: str = "%x") -> str:
    """Return text to copy box number `coord` of a tensor to y."""
    start = f"%{name}_at"
    return (
        f"  %{name}_wide = arith.constant {{value = 128, type = i32}} : i32\n"
        f"  {start} = arith.mul({coord}, %{name}_wide) : i32\n"
        f"{load(name, start, tensor)}{read(name)}  %{name}_out = {ALLOC}\n"
        f"  gpu.shared_store(%{name}, %{name}_out) {{vector = 2}}\n  gpu.proxy_fence\n"
        f"  gpu.tma_store(%y, %{name}_out, {start})\n  gpu.tma_store_wait\n"
    )


def loop(body: str, *, variable: str = "i", hints: str = "") -> str:
    """Return the text of a loop from 0 to `%n` without loop-carried values."""
    return f"  scf.for(%zero, %n, %one) {hints}(%{variable}: i32) {{\n{body}  scf.yield()\n  }}\n"


def branch(condition: str, body: str) -> str:
    """Return the text of a branch with an empty else arm."""
    return f"  scf.if({condition}) () {{\n{body}  scf.yield()\n  }} () {{\n  scf.yield()\n  }}\n"


def either(condition: str, body: str, other: str) -> str:
    """Return the text of a branch with two arms and no results."""
    return f"  scf.if({condition}) () {{\n{body}  scf.yield()\n  }} () {{\n{other}  scf.yield()\n  }}\n"


def text_of(body: str, *, num_warps: int = 2) -> str:
    """Return the text of the kernel of a body."""
    head = HEAD.replace("WARPS", str(num_warps))
    if num_warps > 2:  # the other warps hold copies
        copies = ",[0]" * ((num_warps // 2).bit_length() - 1)
        head = head.replace("warp=[[64]]", f"warp=[[64]{copies}]")
    return f"{head}{body}  scf.return\n}}\n"


def kernel_of(body: str, *, num_warps: int = 2) -> Kernel:
    """Return the kernel of a body."""
    kernel = parse_kernel(text_of(body, num_warps=num_warps))
    verify(kernel)
    return kernel


def check_same_results(whole: Kernel, divided: Kernel, counts: Iterable[int]) -> None:
    """Compare the stores of two kernels, the second checked for races, for these values of `n`."""
    rng = np.random.default_rng(1)
    x, z = (rng.integers(0, 99, 128 * 9, np.int32) for _ in range(2))
    for n in counts:
        for is_set in (False, True):
            outputs: list[np.ndarray] = []
            for kernel in (whole, divided):
                y = np.zeros_like(x)
                check = kernel is divided
                run(kernel, (1,), [x, z, y, np.zeros(1, np.int32), n, is_set], check_races=check)
                outputs.append(y)
            np.testing.assert_array_equal(*outputs)
