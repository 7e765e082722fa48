"""LLVM IR to PTX: libdevice, line tables, and refusals."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from aotc.backend import (
    assemble,
    disassemble,
    emit_ptx,
    lower_kernel,
    ptx,
    without_ptx_lines,
)
from aotc.backend.debug import LineTable
from aotc.ir.core import Block, Kernel
from aotc.ir.diagnostics import IRError, Loc, at
from aotc.ir.dialects import arith, gpu, scf
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.types import FP32, FP64, PointerType
from aotc.target import TARGETS
from tests.backend.programs import SM_90, Program, row_layout


def test_invalid_text_is_our_error() -> None:
    with pytest.raises(IRError, match="invalid LLVM IR"):
        emit_ptx("define void @f() {\n", SM_90)


def test_llvm_is_loaded_only_to_compile() -> None:
    code = "import sys, aotc.backend; print([m for m in sys.modules if m in ('llvmlite', 'numpy')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_output_is_reproducible() -> None:
    program = Program(4)
    x = program.load(FP32, row_layout(512, 4))
    program.store(program.add(arith.Sin(program.add(arith.Log(x)).out)).out)
    assert emit_ptx(program.llvm_ir(), SM_90) == emit_ptx(program.llvm_ir(), SM_90)


def test_code_is_generated_for_what_is_used(monkeypatch) -> None:
    """Without fusion, LLVM would compare every two additions."""
    program = Program(4)
    x = program.load(FP32, row_layout(512, 4))
    program.store(program.add(arith.Add(x, x)).out)
    text = program.llvm_ir()
    end = text.rindex("  ret void")
    unused = "".join(f"  %u{n} = add i32 {f'%u{n - 1}' if n else 1}, 3\n" for n in range(9))
    seen: list[str] = []
    generator = SimpleNamespace(emit_assembly=lambda module: seen.append(str(module)) or "")
    expected = emit_ptx(text, SM_90)
    assert emit_ptx(text[:end] + unused + text[end:], SM_90) == expected
    monkeypatch.setattr(ptx, "target_machine", lambda _: generator)
    emit_ptx(text[:end] + unused + text[end:], SM_90)
    assert "fadd" in seen[0]
    assert "%u" not in seen[0]


# ---- libdevice --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("symbol", "element", "count"),
    [
        ("__nv_tanhf", FP32, 1), ("__nv_powf", FP32, 2), ("__nv_sinf", FP32, 1),
        ("__nv_lgammaf", FP32, 1), ("__nv_sin", FP64, 1), ("__nv_pow", FP64, 2),
        ("__nv_fmaf_rn", FP32, 3),
    ],
)  # fmt: skip
def test_libdevice_functions_are_inlined(symbol, element, count) -> None:
    program = Program()
    x = program.load(element, row_layout(32))
    program.store(program.add(arith.Libdevice(symbol, element, [x] * count)).out)
    for target in (TARGETS["sm_80"], SM_90, TARGETS["sm_120a"]):
        ptx = emit_ptx(program.llvm_ir(target), target)
        assert "call.uni" not in ptx
        assert ".func" not in ptx
        assert "reflect" not in ptx
        assert assemble(ptx, target).spill_bytes == 0


@pytest.mark.parametrize(("suffix", "element"), [("f", FP32), ("", FP64)])
@pytest.mark.parametrize(
    ("stem", "want"),
    [
        ("rint", np.rint),
        ("nearbyint", np.rint),
        ("trunc", np.trunc),
        ("floor", np.floor),
        ("ceil", np.ceil),
    ],
)
def test_functions_that_are_instructions_do_not_load_the_library(
    stem, want, suffix, element
) -> None:
    program = Program()
    x = program.load(element, row_layout(32))
    program.store(program.add(arith.Libdevice(f"__nv_{stem}{suffix}", element, [x])).out)
    data = np.linspace(-4, 4, 32).astype(np.float32 if suffix else np.float64)
    assert np.array_equal(program.run(data)[0], want(data))
    assert "__nv_" not in program.llvm_ir()
    assert "cvt.r" in emit_ptx(program.llvm_ir(), SM_90)


def test_several_functions_may_share_what_they_need() -> None:
    program = Program()
    x = program.load(FP64, row_layout(32))
    for symbol in ("__nv_sin", "__nv_cos", "__nv_tan"):
        program.store(program.add(arith.Libdevice(symbol, FP64, [x])).out)
    assemble(emit_ptx(program.llvm_ir(), SM_90), SM_90)


def test_unknown_functions_are_named() -> None:
    program = Program()
    x = program.load(FP32, row_layout(32))
    program.add(arith.Libdevice("__nv_nonsense", FP32, [x]))
    with pytest.raises(IRError, match="libdevice has no function __nv_nonsense"):
        emit_ptx(program.llvm_ir(), SM_90)


def test_subnormals_are_flushed_as_triton_does() -> None:
    program = Program()
    program.store(program.add(arith.Log(program.load(FP32, row_layout(32)))).out)
    assert "fma.rn.ftz.f32" in emit_ptx(program.llvm_ir(), SM_90)


# ---- line tables ------------------------------------------------------------------------------


def located_kernel() -> Kernel:
    body = Block([PointerType(FP32)])
    add = Builder(body)
    with at(Loc("/home/someone/kernels/k.py", 7, 4)):
        value = add(gpu.Load(body.args[0])).out
    with at(Loc("/opt/lib/inner.py", 3, 8, call_site=Loc("/home/someone/kernels/k.py", 9, 2))):
        value = add(arith.Exp(value)).out
    with at(Loc("/home/someone/kernels/k.py", 11, 0)):
        add(gpu.Store(body.args[0], value))
        add(scf.Return())
    return Kernel("k", (ParamInfo("x", 16),), body, loc=Loc("/home/someone/kernels/k.py", 5))


def test_line_table_names_the_lines_by_base_name() -> None:
    lowered = lower_kernel(located_kernel(), SM_90, debug_lines=True)
    ptx = emit_ptx(lowered.llvm_ir, SM_90, lowered.line_table)
    assert '"k.py"' in ptx
    assert "/home" not in ptx
    for line in (7, 9, 11):
        assert f".loc\t1 {line} " in ptx
    assert assemble(ptx, SM_90).cubin


def test_line_table_for_profilers_names_inlined_lines() -> None:
    """The source line, in the file as named by the manifest; of absolute paths only the name."""
    kernel = located_kernel()
    lowered = lower_kernel(kernel, SM_90, line_root="/home/someone")
    ptx = emit_ptx(lowered.llvm_ir, SM_90, lowered.line_table)
    files = dict(re.findall(r'\.file\t(\d+) "(.*?)"', ptx))
    assert set(files.values()) == {"kernels/k.py", "inner.py"}
    lines = {(files[file], int(line)) for file, line in re.findall(r"\.loc\t(\d+) (\d+) ", ptx)}
    assert lines == {("kernels/k.py", line) for line in (7, 9, 11)} | {("inner.py", 3)}
    cubin = assemble(ptx, SM_90).cubin
    assert b".debug_line" in cubin
    assert b"inner.py" in cubin
    assert b"/home" not in cubin
    assert b"/opt" not in cubin
    listing = disassemble(cubin, with_lines=True, is_whole=True)
    assert 'File "inner.py", line 3 inlined at "kernels/k.py", line 9' in listing
    # PTX line entries are dropped, source lines stay.
    bare = without_ptx_lines(cubin)
    assert len(bare) == len(cubin)
    assert bare != cubin
    assert disassemble(bare, with_lines=True) == disassemble(cubin, with_lines=True)
    assert without_ptx_lines(bare) == bare
    # Without labels and sections for debuggers, ptxas has no reason to schedule it otherwise.
    plain = emit_ptx(lower_kernel(kernel, SM_90).llvm_ir, SM_90)
    code, _, _ = ptx.partition("\t.file")
    code_lines = [line for line in code.splitlines() if not line.startswith("\t.loc\t")]
    assert [line for line in code_lines if line] == [line for line in plain.splitlines() if line]


@pytest.mark.parametrize(
    ("root", "source", "name"),
    [
        ("", "kernels/k.py", "kernels/k.py"),
        (".", "kernels/k.py", "kernels/k.py"),
        ("kernels", "kernels/k.py", "k.py"),
        ("sub", "sub/../kernels/k.py", "../kernels/k.py"),
        ("/a/sub", "/a/sub/../kernels/k.py", "../kernels/k.py"),
        ("/a/sub", "/usr/lib/kernels/k.py", "k.py"),
    ],
)
def test_files_of_a_line_table_are_relative_to_its_root(root: str, source: str, name: str) -> None:
    """Files above the manifest's folder are named with it; files elsewhere have no folder."""
    table = LineTable(replace(located_kernel(), loc=Loc(source, 5)), root)
    table.suffix(Loc("/opt/lib/inner.py", 3))
    files = re.findall(r'\.file\t\d+ "(.*?)"', table.placed("\t.loc\t1 1 1\n"))
    assert files == [name, "inner.py"]


def test_without_it_there_is_none() -> None:
    ptx = emit_ptx(lower_kernel(located_kernel(), SM_90).llvm_ir, SM_90)
    assert ".loc" not in ptx
    assert ".file" not in ptx
