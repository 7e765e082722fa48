"""Fixtures: translate a piece of source to tile IR or an error, and run it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aotc.frontend import Translation, translate
from aotc.ir.diagnostics import CompileError
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.verify.interpreter.run import run

PRELUDE = "import triton\nimport triton.language as tl\n"

Translate = Callable[..., Translation]


class Sources:
    """Write sources into a folder and translate kernels of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, text: str, name: str = "kernel.py", *, prelude: bool = True) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((PRELUDE if prelude else "") + textwrap.dedent(text), encoding="utf-8")
        return str(path)

    def translate(
        self,
        text: str,
        signature: Mapping[str, str] | None = None,
        constants: Mapping[str, object] | None = None,
        kernel: str = "k",
        **options: object,
    ) -> Translation:
        translation = translate(
            self.write(text),
            kernel,
            signature or {},
            constants or {},
            **options,  # type: ignore[arg-type]
        )
        verify(translation.kernel)
        printed = print_kernel(translation.kernel)
        assert print_kernel(parse_kernel(printed)) == printed
        return translation

    def text(self, *args: object, **kwargs: object) -> str:
        return print_kernel(self.translate(*args, **kwargs).kernel)  # type: ignore[arg-type]

    def body(self, body: str, *args: object, params: str = "", **kwargs: object) -> str:
        """Return the IR of a kernel with this body."""
        return self.text(kernel_of(body, params), *args, **kwargs)

    def error(self, *args: object, **kwargs: object) -> CompileError:
        with pytest.raises(CompileError) as caught:
            self.translate(*args, **kwargs)  # type: ignore[arg-type]
        return caught.value

    def body_error(
        self, body: str, *args: object, params: str = "", **kwargs: object
    ) -> CompileError:
        return self.error(kernel_of(body, params), *args, **kwargs)


def kernel_of(body: str, params: str = "") -> str:
    """Return the source of a kernel `k` with this body."""
    lines = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    return f"@triton.jit\ndef k({params}):\n{lines}\n"


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path)


# ---- running ----------------------------------------------------------------------------------

DTYPES = {
    "i8": np.int8,
    "i32": np.int32,
    "u8": np.uint8,
    "u32": np.uint32,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp32": np.float32,
    "fp64": np.float64,
}
RNG = np.random.default_rng(7)
X = RNG.standard_normal((4, 8)).astype(np.float32)
I = RNG.integers(-9, 9, (4, 8)).astype(np.int32)  # noqa: E741 - for integers


def evaluate(
    sources: Sources,
    expression: str,
    x: np.ndarray,
    out_type: str,
    shape: tuple[int, ...],
    prelude: str = "",
) -> np.ndarray:
    """Run `expression` of the (4, 8) tile `x`; return the result, of `shape`."""
    names = {np.dtype(value): name for name, value in DTYPES.items()}
    index = " + ".join(
        f"tl.arange(0, {extent}){_axis(axis, len(shape))} * {int(np.prod(shape[axis + 1 :]))}"
        for axis, extent in enumerate(shape)
    )
    text = f"""
{prelude}
@triton.jit
def k(x_ptr, out):
    x = tl.load(x_ptr + tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :])
    r = {expression}
    tl.store(out + ({index or "0"}), r)
"""
    signature = {"x_ptr": f"*{names[x.dtype]}", "out": f"*{out_type}"}
    translation = sources.translate(text, signature)
    result = np.zeros(shape, DTYPES[out_type])
    run(
        translation.kernel,
        (1,),
        [np.ascontiguousarray(x).reshape(-1).copy(), flat := result.reshape(-1)],
    )
    return flat.reshape(shape)


def _axis(axis: int, rank: int) -> str:
    if rank == 1:
        return ""
    return "[" + ", ".join(":" if i == axis else "None" for i in range(rank)) + "]"
