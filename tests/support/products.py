"""One loop of matrix products, run in every way, on exact numbers.

Operands are small integers, so every product and sum is exact in every type. Results compare to the
bit for any tiling and order of sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from aotc.backend import emit_ptx, lower_kernel
from aotc.config import Config
from aotc.frontend.translate import translate
from aotc.ir.core import Kernel
from aotc.ir.passes import Observer
from aotc.ir.types import SCALARS
from aotc.schedule.context import Schedule
from aotc.schedule.pipeline import schedule_kernel
from aotc.target import TARGETS
from aotc.verify.emulator.memory.bank_conflicts import BankCount
from aotc.verify.emulator.run import emulate
from aotc.verify.interpreter.numerics import dtype_of
from aotc.verify.interpreter.run import run

SOURCE = Path(__file__).with_name("products_source.py")
WATCHED = ("assign_layouts", "pipeline_loads", "overlap_wgmma", "insert_barriers")


@dataclass(frozen=True)
class Matmul:
    """Describe a product of (M, K) and (K, N); `a_is_t` and `b_is_t` mark transposed operands.

    With `promised`, pointers, strides and extents are declared multiples of 16. `way` selects the
    source, or "persistent".
    """

    dtype: str = "bf16"
    acc: str = "fp32"
    b_dtype: str = ""
    block: tuple[int, int, int] = (64, 64, 64)
    shape: tuple[int, int, int] = (64, 64, 128)
    num_warps: int = 4
    num_stages: int = 3
    a_is_t: bool = False
    b_is_t: bool = False
    promised: bool = True
    way: str = "plain"

    @property
    def is_persistent(self) -> bool:
        return self.way == "persistent"

    def arrays(self) -> tuple[Any, Any, Any]:
        """Return A, B and their product."""
        m, n, k = self.shape
        rng = np.random.default_rng(m + 2 * n + 3 * k)
        a, b = (
            rng.integers(0 if dtype.startswith("u") else -3, 4, shape).astype(_numpy(dtype))
            for dtype, shape in ((self.dtype, (m, k)), (self.b_dtype or self.dtype, (k, n)))
        )
        return a, b, a.astype(np.float64) @ b.astype(np.float64)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a launch; the output is poisoned."""
        m, n, k = self.shape
        a, b, _ = self.arrays()
        return {
            "a_ptr": np.ascontiguousarray(a.T) if self.a_is_t else a,
            "b_ptr": np.ascontiguousarray(b.T) if self.b_is_t else b,
            "out_ptr": np.full((m, n), 77).astype(_numpy(self.acc)),
            "M": m,
            "N": n,
            "K": k,
            **dict(zip(("stride_am", "stride_ak"), (1, m) if self.a_is_t else (k, 1), strict=True)),
            **dict(zip(("stride_bk", "stride_bn"), (1, k) if self.b_is_t else (n, 1), strict=True)),
        }

    def kernel(self) -> Kernel:
        """Return the kernel as tile IR."""
        signature: dict[str, str] = {}
        dtypes = {"a_ptr": self.dtype, "b_ptr": self.b_dtype or self.dtype, "out_ptr": self.acc}
        for name, value in self.arguments().items():
            if name in dtypes:
                signature[name] = f"*{dtypes[name]}" + (":16" if self.promised else "")
            elif name.startswith("stride") and value == 1:
                signature[name] = "i32=1"
            else:
                signature[name] = "i32:16" if self.promised and value % 16 == 0 else "i32"
        constants = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), self.block, strict=True))
        return translate(
            *(str(SOURCE), "persistent" if self.is_persistent else "matmul", signature),
            {**constants, "ACC": self.acc, "WAY": self.way},
            target="sm_90a",
            num_warps=self.num_warps,
        ).kernel

    def grid(self) -> tuple[int, int]:
        """Return the number of programs along M and N."""
        if self.is_persistent:
            return 2, 1
        (m, n, _), (block_m, block_n, _) = self.shape, self.block
        return -(-m // block_m), -(-n // block_n)


def _numpy(dtype: str) -> Any:
    return dtype_of(SCALARS[dtype])


def check(actual: Any, matmul: Matmul, when: str) -> None:
    """Compare an output with the product."""
    expected = matmul.arrays()[2].astype(actual.dtype)
    np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64), when)


def interpreted(matmul: Matmul) -> Kernel:
    """Schedule a kernel, interpreted after every pass on dots; return it."""
    kernel = matmul.kernel()

    def compare(name: str, current: Kernel) -> None:
        if name in WATCHED:
            values = matmul.arguments()
            args = [values[info.name] for info in current.params]
            run(current, matmul.grid(), args, check_races=name == WATCHED[-1])
            check(values["out_ptr"], matmul, f"after {name}")

    schedule = Schedule(TARGETS["sm_90a"], Config(matmul.num_warps, matmul.num_stages))
    return schedule_kernel(kernel, schedule, Observer(verify_each=True, on_pass=compare))


@lru_cache(maxsize=64)
def scheduled(matmul: Matmul) -> Kernel:
    """Return the kernel as gpu IR."""
    schedule = Schedule(TARGETS["sm_90a"], Config(matmul.num_warps, matmul.num_stages))
    return schedule_kernel(matmul.kernel(), schedule)


@lru_cache(maxsize=64)
def ptx_of(matmul: Matmul) -> str:
    """Return the kernel as PTX."""
    return emit_ptx(lower_kernel(scheduled(matmul), TARGETS["sm_90a"]).llvm_ir, TARGETS["sm_90a"])


def emulated(matmul: Matmul, seed: int = 0) -> dict[str, BankCount]:
    """Run the kernel's PTX in the emulator and compare; any seed but 0 shuffles warps.

    Returns the bank conflicts of the first program, by line of the PTX.
    """
    kernel, values, text = scheduled(matmul), matmul.arguments(), ptx_of(matmul)
    emulation = emulate(
        *(text, matmul.grid(), [values[info.name] for info in kernel.params]),
        shared_bytes=kernel.shared_bytes,
        seed=seed,
        count_conflicts=True,
    )
    check(values["out_ptr"], matmul, f"emulated, seed {seed}")
    lines = text.splitlines()
    return {f"{line}: {lines[line - 1]}": count for line, count in emulation.conflicts.items()}
