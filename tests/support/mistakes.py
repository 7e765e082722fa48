"""Users' mistakes: a small project, and the command line on it.

The message must name the position, mark the right text, and state the expectation and a remedy. It
must never be a traceback or a bug report.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

HEAD = "import triton\nimport triton.language as tl\n\n"
KERNEL = "@triton.jit\ndef k(p, n, BLOCK: tl.constexpr):\n    tl.store(p, 1.0)\n"
ADD = """\
@triton.jit
def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr, MODE: tl.constexpr = 0):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + o, tl.load(x_ptr + o, mask=o < n), mask=o < n)
"""
MANIFEST = """\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]

[[kernel]]
source = "k.py:add"
grid = ["cdiv(n, BLOCK)"]
[kernel.signature]
x_ptr = "*fp32:16"
y_ptr = "*fp32:16"
n = "i32"
[kernel.constants]
BLOCK = 128
"""
SETTINGS = ("x_ptr=*fp32", "y_ptr=*fp32", "n=i32", "BLOCK=64")


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def marked(self) -> str:
        """The text above the first line of carets."""
        lines = self.err.splitlines()
        index = next(i for i, line in enumerate(lines) if set(line.strip()) == {"^"})
        start = lines[index].index("^")
        return lines[index - 1][start : start + lines[index].count("^")]


Run = Callable[..., Ran]


def dump(run: Run, text: str | bytes, name: str = "k") -> Ran:
    """Dump the kernel `name` of the source `text`."""
    Path("k.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    settings = ("p=*fp32:16", "n=i32", "BLOCK=128")
    return run("dump", f"k.py:{name}", "--stage", "tile", *set_options(settings))


def set_options(settings: tuple[str, ...]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]
