"""Prints: the compiled kernel writes the lines of its source, each once.

pytest -m gpu tests/e2e/test_prints_emulated.py [--built FOLDER]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.frontend import translate
from aotc.ir.diagnostics import CompileError
from aotc.package.archive import file as archive
from aotc.verify.emulator.run import emulate
from aotc.verify.interpreter.run import Interpreter
from tests.support.built import Built

pytestmark = pytest.mark.usefixtures("one_worker")

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def show(x_ptr, n, ROWS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, 4)[None, :]
    x = tl.load(x_ptr + rows * 4 + columns)
    tl.device_print("100% of x", x)
    print("several:", n, tl.program_id(1), tl.sum(x, axis=1), hex=True)
    for i in range(n):
        if i % 2 == 0:
            tl.device_print("turn", i, x > 0)
    tl.device_print("done")
    tl.device_print("")
"""

TYPES = {
    "*fp16": np.float16,
    "*fp32": np.float32,
    "*fp64": np.float64,
    "*i8": np.int8,
    "*u64": np.uint64,
}


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("num_warps", "rows"), [(1, 2), (4, 16)])
@pytest.mark.parametrize("dtype", TYPES)
def test_lines_are_those_of_the_source(
    target: str, num_warps: int, rows: int, dtype: str, tmp_path: Path
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(SOURCE)
    signature, constants = {"x_ptr": dtype, "n": "i32"}, {"ROWS": rows}
    x = np.arange(4 * rows).astype(TYPES[dtype])
    compiled_kernel = aotc.compile(
        f"{path}:show",
        signature=signature,
        constants=constants,
        target=target,
        num_warps=num_warps,
    )
    printed = emulate(compiled_kernel.asm["ptx"], (2, 3, 1), [x.copy(), 3]).printed
    kernel = translate(str(path), "show", signature, constants).kernel
    interpreter = Interpreter(kernel, [x.copy(), 3])
    interpreter.run((2, 3, 1))
    assert sorted(printed) == sorted(interpreter.memory.printed)
    elements = 4 * rows
    assert len(printed) == 6 * (elements + (2 + rows) + 2 * (1 + elements) + 2)
    assert "pid (1, 2, 0) done\n" in printed
    assert "pid (1, 2, 0)\n" in printed
    first = "0.000000" if "fp" in dtype else "0"
    index = "(0, 0)" if rows < 10 else "( 0, 0)"
    assert f"pid (0, 1, 0) idx {index} 100% of x: {first}\n" in printed
    assert "pid (0, 2, 0) several: (operand 1) 0x00000002\n" in printed


def test_clusters_do_not_print(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(SOURCE)
    with pytest.raises(CompileError, match="is not shared by the CTAs of a cluster"):
        aotc.compile(
            f"{path}:show",
            signature={"x_ptr": "*fp32", "n": "i32"},
            constants={"ROWS": 64},
            target="sm_90a",
            num_ctas=2,
        )


MANIFEST = """[package]
name = "prints"
version = "0.1.0"
targets = ["sm_80", "sm_90a"]

[[kernel]]
source = "prints.py:show"

[kernel.signature]
x_ptr = "*fp32"
n = "i32"

[kernel.constants]
ROWS = 16
"""
# In a process of its own: the driver writes to its output, past Python.
LAUNCH = """
import sys, torch, aotc
x = torch.arange(64, dtype=torch.float32, device="cuda")
aotc.load(sys.argv[1])["show"].launch((x, 3), grid=(2, 3, 1))
torch.cuda.synchronize()
"""


@pytest.fixture(scope="module")
def prints(built: Built) -> Path:
    """Return an archive of a printing kernel."""

    def build(folder: Path) -> None:
        from aotc import cli

        (folder / "prints.py").write_text(SOURCE, encoding="utf-8")
        (folder / "prints.toml").write_text(MANIFEST, encoding="utf-8")
        assert cli.run(["build", str(folder / "prints.toml"), "-o", str(folder)]) == 0

    return built("prints", build)


def test_an_archive_has_kernels_that_print(prints: Path) -> None:
    (kernel,) = archive.read(prints).kernels
    assert [variant.target for variant in kernel.variants] == ["sm_80", "sm_90a"]


@pytest.mark.gpu
def test_a_gpu_prints_the_lines_of_the_source(prints: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-c", LAUNCH, str(prints)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    path = tmp_path / "kernel.py"
    path.write_text(SOURCE)
    kernel = translate(str(path), "show", {"x_ptr": "*fp32", "n": "i32"}, {"ROWS": 16}).kernel
    interpreter = Interpreter(kernel, [np.arange(64, dtype=np.float32), 3])
    interpreter.run((2, 3, 1))
    assert sorted(printed.splitlines(keepends=True)) == sorted(interpreter.memory.printed)
