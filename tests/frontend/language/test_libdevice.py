from __future__ import annotations

import re

import llvmlite.binding as llvm
import pytest

from aotc.backend.wheels import find_file
from aotc.frontend.language.libdevice import FUNCTIONS, _table
from tests.frontend.conftest import Sources

LLVM_NAMES = {
    "f": "float",
    "d": "double",
    "b": "i32",
    "i": "i32",
    "u": "i32",
    "l": "i64",
    "v": "i64",
}


def declared() -> dict[str, str]:
    """Return the functions of libdevice's bitcode, as `result(arguments)`."""
    path = find_file("nvidia-nvvm", "nvvm/libdevice/libdevice.10.bc")
    module = llvm.parse_bitcode(path.read_bytes())
    file: dict[str, str] = {}
    for function in module.functions:
        match = re.search(r"^(?:define|declare)[^@\n]*?(\w+) @", str(function), re.MULTILINE)
        arguments = ",".join(str(argument.type) for argument in function.arguments)
        file[function.name] = f"{match[1] if match else '?'}({arguments})"
    return file


def test_every_symbol_is_in_libdevice_with_these_types() -> None:
    functions = declared()
    for name, signatures in _table().items():
        for signature, symbol in signatures.items():
            arguments = ",".join(LLVM_NAMES[letter] for letter in signature[:-1])
            expected = f"{LLVM_NAMES[signature[-1]]}({arguments})"
            assert functions.get(f"__nv_{symbol}") == expected, name


@pytest.mark.parametrize(
    ("call", "p", "symbol", "result"),
    [
        ("libdevice.tanh(x)", "fp32", "__nv_tanhf", "tile<4xfp32>"),
        ("libdevice.tanh(x)", "fp64", "__nv_tanh", "tile<4xfp64>"),
        ("libdevice.pow(x, 2)", "fp32", "__nv_powif", "tile<4xfp32>"),
        ("libdevice.pow(x, 2.0)", "fp32", "__nv_powf", "tile<4xfp32>"),
        ("libdevice.isnan(x)", "fp32", "__nv_isnanf", "tile<4xi32>"),
        ("libdevice.fast_dividef(x, 3.0)", "fp32", "__nv_fast_fdividef", "tile<4xfp32>"),
        ("libdevice.popc(x)", "i64", "__nv_popcll", "tile<4xi32>"),
        ("libdevice.float2int_rn(x)", "fp32", "__nv_float2int_rn", "tile<4xi32>"),
        ("libdevice.atan2(x, n)", "fp32", "__nv_atan2f", "tile<4xfp32>"),
    ],
)
def test_calls(sources: Sources, call: str, p: str, symbol: str, result: str) -> None:
    text = (
        "from triton.language.extra import libdevice\n@triton.jit\ndef k(p, n):\n"
        f"    x = tl.load(p + tl.arange(0, 4))\n    y = {call}\n    tl.store(p, tl.sum(y.to(tl.int32)))\n"
    )
    ir = sources.text(text, {"p": f"*{p}", "n": "i32"})
    line = next(ir_line for ir_line in ir.splitlines() if "libdevice" in ir_line)
    assert f'symbol = "{symbol}"' in line
    assert line.endswith(f": {result}")


def test_mistakes(sources: Sources) -> None:
    head = "from triton.language.extra.cuda import libdevice\n@triton.jit\ndef k(p):\n    x = "
    error = sources.error(head + "libdevice.tanh(tl.load(p))\n", {"p": "*fp16"})
    assert error.message == "libdevice.tanh takes (float32) or (float64), got (float16)"
    error = sources.error(head + "libdevice.tanh(1.0, 2.0)\n", {"p": "*fp16"})
    assert error.message == "libdevice.tanh takes 1 arguments, got 2"
    error = sources.error(head + "libdevice.tnh(1.0)\n", {"p": "*fp16"})
    assert error.remedy == "did you mean 'tanh'?"


def test_the_table_is_complete() -> None:
    assert len(FUNCTIONS) == 194
