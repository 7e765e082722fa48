"""Fixtures: a kernel from a piece of source, as tile IR, as an error, or as numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from aotc.frontend import Translation, translate
from aotc.ir.diagnostics import CompileError
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify

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
        made = translate(
            self.write(text),
            kernel,
            signature or {},
            constants or {},
            **options,  # type: ignore[arg-type]
        )
        verify(made.kernel)
        printed = print_kernel(made.kernel)
        assert print_kernel(parse_kernel(printed)) == printed
        return made

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
