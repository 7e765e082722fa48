"""The stand-in for Triton: what hosts compute with it, and what importing it costs."""

from __future__ import annotations

from typing import Any

IMPORTS = """
import triton, triton.language as tl, triton.language.extra.cuda.libdevice as device
from triton import Config, JITFunction, cdiv, next_power_of_2
from triton.language.extra import libdevice
from triton.language.math import rsqrt
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.cache import FileCacheManager
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor
import triton.testing
"""


def test_hosts_compute_with_it(run_program: Any, project: Any) -> None:
    body = f"""
import aotc.triton
aotc.triton.install({str(project / "dist" / "ops.aotc")!r}, stand_in=True)
{IMPORTS}
assert (cdiv(7, 3), next_power_of_2(5), next_power_of_2(8), tl.cdiv(7, 3)) == (3, 8, 8, 3)
four = tl.constexpr(4)
assert (four * 2 + 1 == 9 and 1 << four == 16 and -four < 0 and not four == 5)
assert len({{four, tl.constexpr(4)}}) == 1 and range(four)[-1] == 3
assert str(tl.float16) == "fp16" and repr(tl.float16) == "triton.language.float16"
assert tl.bfloat16.itemsize == 2 and tl.float8e5.is_fp8() and not tl.int32.is_floating()
assert tl.float32 == tl.core.float32 and isinstance(tl.int1, tl.dtype)
assert repr(libdevice.tanh) == "triton.language.extra.libdevice.tanh", libdevice.tanh

@tl.core.extern
def own(x):
    return x
assert own(3) == 3

@triton.jit(noinline=True)
def kernel(x, BLOCK: "tl.constexpr"):
    pass
assert isinstance(kernel, JITFunction) and [one.is_constexpr for one in kernel.params] == [False, True]
for call in (lambda: tl.load(3), lambda: kernel(3), lambda: triton.testing.do_bench(own)):
    try:
        call()
    except RuntimeError:
        continue
    raise AssertionError("a host cannot do that")
assert not hasattr(triton, "knobs")
"""
    ran = run_program("-c", body)
    assert ran.returncode == 0, ran.stderr


def test_little_is_imported(run_program: Any, project: Any) -> None:
    """Nothing of the runtime before `install`, nothing of the compiler or of others' after it."""
    body = f"""
import sys
import aotc.triton
assert not [one for one in sys.modules if one.startswith("aotc.runtime")]
aotc.triton.install({str(project / "dist" / "ops.aotc")!r}, stand_in=True)
{IMPORTS}
heavy = ("numpy", "torch", "llvmlite", "click", "aotc.ir", "aotc.frontend", "aotc.package")
print([one for one in sys.modules if one.startswith(heavy)])
"""
    ran = run_program("-c", body)
    assert (ran.returncode, ran.stdout) == (0, "[]\n"), ran.stderr
