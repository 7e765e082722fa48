"""`isinstance`, `type`, `.type` and queries on types agree with Triton's compiler."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources, kernel_of

TRUE = """
isinstance(x, tl.tensor)
isinstance(n < 3, tl.tensor)
isinstance(x.dtype, tl.pointer_type)
isinstance(x.type, tl.dtype)
isinstance(n.dtype, tl.dtype)
isinstance(t.type, tl.dtype)
isinstance(t.type, tl.block_type)
isinstance(t.type, tl.pointer_type | tl.block_type)
isinstance(x.dtype, tl.block_type | tl.tuple_type | tl.pointer_type)
isinstance(pp.dtype, tl.pointer_type)
isinstance(C, int)
isinstance(C.type, tl.constexpr_type)
C.type == tl.constexpr_type(10)
C.type.value == 10
a.type == tl.int32
isinstance(a, tl.tensor)
isinstance(T, tl.tuple)
isinstance(T.type, tl.tuple_type)
isinstance(T.type[0], tl.constexpr_type)
T.type is not None
isinstance(u.type, tl.tuple_type)
u.type == tl.tuple_type([tl.int32, tl.int32])
u.type[0] == tl.int32
u.values[0].dtype == tl.int32
P(n, n).type.fields[1] == 'b'
isinstance(P(1, 2), tl.tuple)
isinstance((1, 2), tl.tuple)
isinstance(x.shape, tl.tuple)
isinstance(d, tl.tensor_descriptor)
isinstance(d, tl.core.tensor_descriptor_base)
isinstance(d.block_type, tl.block_type)
isinstance(x, tl.core.base_value)
isinstance(x.type, tl.core.base_type)
isinstance(tl.float16, tl.dtype)
isinstance(F, tl.dtype)
isinstance(True, int)
isinstance(1.5, float)
x.dtype == tl.pointer_type(tl.int32)
t.type == tl.block_type(tl.int32, [16])
x.type.element_ty == tl.int32
t.type.element_ty == tl.int32
pp.type.element_ty.element_ty == tl.int32
pp.type.scalar.element_ty == tl.int32
x.dtype.is_ptr()
t.type.is_block()
tl.pointer_type(tl.float8e5).is_fp8()
tl.block_type(tl.float8e5, [16]).is_fp8()
hasattr(x.dtype, 'element_ty')
hasattr(t.type, 'shape')
hasattr(T, 'type')
hasattr(n, 'dtype')
x.dtype.address_space == 'global'
n.dtype.get_int_max_value() == 2147483647
n.dtype.get_int_min_value() == -2147483648
tl.uint8.get_int_max_value() == 255
t.type.get_block_shapes()[0] == 16
t.type.with_element_ty(tl.float16) == tl.block_type(tl.float16, [16])
t.type.nbytes == 64
tl.float8e5.exponent_bias + tl.float32.exponent_bias == 142
F.codegen_name() == 'float16'
"""
FALSE = """
isinstance(n.dtype, tl.pointer_type)
isinstance(n.type, tl.block_type)
isinstance(pp.type, tl.pointer_type)
isinstance(C.type, tl.dtype)
C.type == tl.int32
isinstance(C, float)
isinstance(C, tl.tensor)
isinstance(None, tl.tensor)
isinstance(n, int)
isinstance(n, tl.constexpr)
isinstance(C, tl.constexpr)
isinstance(T, tl.constexpr)
isinstance(T[0], tl.constexpr)
isinstance(F, tl.constexpr)
isinstance(None, tl.constexpr)
isinstance(d, tl.tensor)
isinstance(d.type, tl.dtype)
isinstance(d.type, tl.block_type)
isinstance(C, tl.core.base_value)
isinstance(F, tl.pointer_type | tl.block_type)
t.type.is_int()
pp.type.is_ptr()
pp.type.element_ty == tl.int32
n.dtype.is_ptr()
x.dtype.const
hasattr(n.dtype, 'element_ty')
hasattr(n.dtype, 'type')
hasattr(n.dtype, 'fp_mantissa_width')
hasattr(F, 'int_bitwidth')
hasattr(t.type, 'primitive_bitwidth')
hasattr(C, 'dtype')
hasattr(C, 'to')
hasattr(n, 'value')
"""
BEYOND_TRITON = """
type(x.dtype) == tl.pointer_type
type(t.type) is tl.block_type
type(x) == tl.tensor
type(C) == int
type(x.dtype) != tl.dtype
isinstance(x.dtype, (tl.block_type, tl.pointer_type))
isinstance(n, P | tl.tensor)
T.type == tl.tuple_type([tl.constexpr_type(5), tl.constexpr_type(6)])
"""
"""What Triton refuses."""

_PRELUDE = """from typing import NamedTuple
class P(NamedTuple):
    a: int
    b: int
F = tl.constexpr(tl.float16)
"""


def _lines(text: str) -> list[str]:
    return text.strip().splitlines()


def _kernel() -> str:
    checks = [*_lines(TRUE), *(f"not ({line})" for line in _lines(FALSE))]
    body = ["a = C", "t = tl.arange(0, 16)", "u = (n, C)", "pp = x + t"]
    body += [f"tl.static_assert({line}, {line!r})" for line in checks]
    lines = "".join(f"    {line}\n" for line in body)
    return f"{_PRELUDE}@triton.jit\ndef k(x, n, d, C: tl.constexpr, T: tl.constexpr):\n{lines}"


SIGNATURE = {"x": "*i32", "n": "i32", "d": "tensordesc<fp16[16, 16]>"}
CONSTANTS = {"C": 10, "T": (5, 6)}


def test_as_in_triton(sources: Sources) -> None:
    sources.translate(_kernel(), SIGNATURE, CONSTANTS)


def test_triton_says_the_same(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    if not hasattr(triton, "compile"):
        pytest.skip("triton is a stand-in here")
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler import ASTSource

    name = f"{Path(sources.write(_kernel())).stem}_of_triton"
    spec = importlib.util.spec_from_file_location(name, sources.folder / "kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    signature = SIGNATURE | dict.fromkeys(CONSTANTS, "constexpr")
    source = ASTSource(module.k, signature, CONSTANTS)
    target = GPUTarget("cuda", 90, 32)
    backend = CUDABackend(target)
    options = backend.parse_options({"enable_fp_fusion": True})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    source.make_ir(target, options, functions, backend.get_module_map(), context)


@pytest.mark.parametrize("expression", _lines(BEYOND_TRITON))
def test_beyond_triton(sources: Sources, expression: str) -> None:
    text = _kernel() + f"    tl.static_assert({expression})\n"
    sources.translate(text, SIGNATURE, CONSTANTS)


def test_pointer_decides_about_a_store(sources: Sources) -> None:
    text = "if isinstance(x.dtype, tl.pointer_type):\n    tl.store(x, 42)"
    kernel = sources.translate(kernel_of(text, "x"), {"x": "*i32"}).kernel
    run(kernel, (1,), [out := np.zeros(1, np.int32)])
    assert out[0] == 42


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("isinstance(x, 3)", "isinstance() does not know 3"),
        ("isinstance(x, tl.float16)", "isinstance() does not know the type float16"),
        ("C.type.is_int()", "the type constexpr_type[10] has no attribute 'is_int'"),
        ("tl.tensor(x)", "a kernel makes no tl.tensor by calling the class"),
        ("F.get_int_max_value()", "the type float16 is no integer type"),
        ("tl.block_type(tl.int32, [3])", "must be a power of two"),
    ],
)
def test_mistakes(sources: Sources, expression: str, message: str) -> None:
    text = _kernel() + f"    a = {expression}\n"
    assert message in str(sources.error(text, SIGNATURE, CONSTANTS))
