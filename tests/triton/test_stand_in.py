"""The stand-in for Triton: host computations, and the cost of importing it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

IMPORTS = """
import triton, triton.language as tl, triton.language.extra.cuda.libdevice as device
from triton import Config, JITFunction, cdiv, next_power_of_2
from triton.language.extra import libdevice
from triton.language.math import rsqrt
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.cache import FileCacheManager
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor
import triton.testing
from triton.tools.ragged_tma import load_ragged
from triton.compiler import CompiledKernel, ASTSource, compile as compile_
from triton.compiler.compiler import CompiledKernel
from triton.compiler.errors import CompilationError
from triton.runtime.autotuner import OutOfResources
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
import triton.tools.mxfp, triton.knobs, triton.profiler as proton
from triton._C.libtriton import nvidia
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
assert [param.do_not_specialize for param in triton.jit(do_not_specialize=["x"])(kernel.fn).params] == [True, False]
triton.runtime.Autotuner(kernel, ["x"], [], [], None, None, None, None, None, 25, 100, False)
assert isinstance(kernel, JITFunction) and [param.is_constexpr for param in kernel.params] == [False, True]
for call in (lambda: tl.load(3), lambda: kernel(3), lambda: triton.testing.do_bench(own)):
    try:
        call()
    except RuntimeError:
        continue
    raise AssertionError("a host cannot do that")
assert triton.knobs.runtime.interpret is False and triton.knobs.autotuning.print is False
triton.knobs.runtime.jit_cache_hook = own
src = "def kernel(x, BLOCK: \\"tl.constexpr\\"):\\n    pass\\n"
kernel._unsafe_update_src(src)
assert kernel.src == src and kernel.__globals__["own"] is own
assert kernel.repr(None) == "kernel" and kernel.get_capture_scope()["own"] is own
for use in (
    lambda: triton.reinterpret(3, tl.int8), lambda: bool(triton.knobs.nvidia.libdevice_path), lambda: compile_(kernel),
    lambda: load_ragged(3), lambda: [*triton.compiler.compiler.max_shared_mem],
):
    try:
        use()
    except RuntimeError as error:
        assert "needs Triton" in str(error)
        continue
    raise AssertionError("it needs Triton")
from triton.runtime.interpreter import InterpretedFunction
for missing in (InterpretedFunction, triton.compiler.ASTSource, tl.core.base_value):
    assert not isinstance(kernel, missing) and not issubclass(JITFunction, missing)
    class Extends(missing): own = 3
    assert Extends().own == 3
    def annotated(x: missing | None, y: None | missing): pass
try:
    import triton.tools.nothing
except ImportError:
    pass
else:
    raise AssertionError("Triton has no such module")
"""
    ran = run_program("-c", body)
    assert ran.returncode == 0, ran.stderr


def test_little_is_imported(run_program: Any, project: Any) -> None:
    """Nothing of the runtime before `install`, nothing of the compiler or of others' after it."""
    body = f"""
import sys
import aotc.triton
assert not [name for name in sys.modules if name.startswith("aotc.runtime")]
aotc.triton.install({str(project / "dist" / "ops.aotc")!r}, stand_in=True)
{IMPORTS}
heavy = ("numpy", "torch", "llvmlite", "click", "aotc.ir", "aotc.frontend", "aotc.package")
print([name for name in sys.modules if name.startswith(heavy)])
"""
    ran = run_program("-c", body)
    assert (ran.returncode, ran.stdout) == (0, "[]\n"), ran.stderr


_TORCH = {
    "torch/__init__.py": "def compile(model=None, *, backend='inductor', dynamic=None):\n    return 'compiled'",
    "torch/utils/__init__.py": "",
    "torch/utils/_triton.py": (
        "import functools\n@functools.cache\ndef has_triton_package():\n    import triton\n    return True\n"
        "@functools.cache\ndef has_triton():\n    return has_triton_package()"
    ),
    "torch/_inductor/runtime/triton_compat.py": (
        "try:\n    import triton\nexcept ImportError:\n    triton = None\n"
        "if triton is not None:\n    from triton import knobs"
    ),
    "torch/_inductor/asks.py": (
        "from torch.utils._triton import has_triton, has_triton_package\n"
        "answers = has_triton(), has_triton_package()"
    ),
    "library.py": (
        "from torch.utils._triton import has_triton, has_triton_package\n"
        "answers = has_triton(), has_triton_package()"
    ),
}


@pytest.fixture
def run_with_torch(run_program: Any, project: Any, tmp_path: Path) -> Any:
    """Run lines beside a small torch, after `first`, the stand-in being installed."""
    for name, text in _TORCH.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def run(lines: str, first: str = "") -> None:
        archive = str(project / "dist" / "ops.aotc")
        body = (
            f"{first}\nimport aotc.triton\naotc.triton.install({archive!r}, stand_in=True)\n{lines}"
        )
        ran = run_program("-c", body, path=(str(tmp_path),))
        assert ran.returncode == 0, ran.stderr

    return run


@pytest.mark.parametrize("first", ["", "import torch.utils._triton"])
@pytest.mark.parametrize("imported", ["", "import triton"])
def test_torch_has_no_triton_to_compile_with(
    first: str, imported: str, run_with_torch: Any
) -> None:
    run_with_torch(
        f"""
{imported}
from torch._inductor.runtime.triton_compat import triton as seen
import triton, sys
assert seen is None
assert triton.cdiv(3, 2) == 2 and sys.modules["triton"] is triton
""",
        first,
    )


@pytest.mark.parametrize(
    "order", ["torch._inductor.asks, library", "library, torch._inductor.asks"]
)
@pytest.mark.parametrize("first", ["", "import torch.utils._triton"])
def test_libraries_have_triton_and_torch_has_not(
    order: str, first: str, run_with_torch: Any
) -> None:
    run_with_torch(
        f"""
import {order}
assert library.answers == (True, True), library.answers
assert torch._inductor.asks.answers == (False, False), torch._inductor.asks.answers
""",
        first,
    )


@pytest.mark.parametrize("first", ["", "import torch"])
def test_torch_compile_returns_the_function_with_a_warning(first: str, run_with_torch: Any) -> None:
    run_with_torch(
        """
import torch, warnings
def f(x): return x
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert torch.compile(f) is f and torch.compile(dynamic=True)(f) is f
    assert torch.compile(f, backend="eager") == "compiled"
texts = [str(warning.message) for warning in caught]
assert len(texts) == 2 and "runs eagerly" in texts[0], texts
""",
        first,
    )


def test_a_function_has_its_source(launches: Any) -> None:
    assert launches("""
install(stand_in=True)
import ops
seen.append(ops.add.src.partition(",")[0])
seen.append(len(ops.add.cache_key))
seen.append(ops.add.cache_key == ops.silu.cache_key)
seen.append("double" in ops.add.get_capture_scope())
""") == ["def add(x", 64, False, True]


def test_an_annotation_that_is_no_type_leaves_the_type_to_the_value(launches: Any) -> None:
    assert launches("""
install(stand_in=True)
import inspect
import triton
import triton.language as tl
from aotc.triton.launch import Launcher
@triton.jit
def k(x: tl.const, n: tl.int32, m: "tl.int64", y): pass
launcher = type("Signed", (), {"signature": inspect.signature(k.fn)})
seen.extend(Launcher._is_annotated(launcher, name) for name in "xnmy")
""") == [False, True, True, False]


def test_functions_have_the_signature_and_the_lines_of_tritons(launches: Any) -> None:
    """Libraries copy functions by them, with another source and other constants."""
    assert launches("""
install(stand_in=True)
import inspect, ops, triton
names = [*inspect.signature(triton.JITFunction.__init__).parameters][2:]
attributes = {name: getattr(ops.add, name, None) for name in names}
attributes |= {"do_not_specialize": ["n"], "repr": lambda _: "copied"}
copied = triton.JITFunction(ops.add.fn, **attributes)
seen.append([copied.repr(None), copied.params[3].do_not_specialize])
seen.append([names[:2], "launch_metadata" in names])
line, column = ops.add.def_file_line_number, ops.add.def_file_col_number
text = inspect.getsource(ops).splitlines()[line - 1]
seen.append([text[column:].partition(",")[0], ops.add.starting_line_number == line - 1])
seen.append([ops.add.raw_src[0], ops.add.file_name == ops.__file__])
""") == [
        ["copied", True],
        [["version", "do_not_specialize"], True],
        ["def add(x", True],
        ["@triton.jit\n", True],
    ]


def test_hosts_ask_about_the_gpu(run_with_torch: Any) -> None:
    run_with_torch("""
import torch
torch.cuda = type("cuda", (), {"get_device_capability": staticmethod(lambda: (9, 0))})
import triton.language as tl
from triton.language import target_info
from triton.language.target_info import cuda_capability_geq, is_cuda, is_hip, is_hip_gfx1250
assert is_cuda() and cuda_capability_geq(9) and not cuda_capability_geq(10, 0)
assert not is_hip() and not is_hip_gfx1250() and not tl.target_info.is_hip_cdna3()
assert target_info.current_target().arch == 90
""")
