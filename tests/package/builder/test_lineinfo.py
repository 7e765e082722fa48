"""Line tables of cubins, and `aotc build --no-lineinfo`: the archive is otherwise the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc import cli
from aotc.backend import disassemble
from aotc.package.archive.file import read
from aotc.package.archive.index import Archive

pytestmark = pytest.mark.usefixtures("one_worker")

HELPER = """\
import triton
import triton.language as tl


@triton.jit
def scaled(x, factor):
    return tl.exp(x) * factor
"""
KERNEL = """\
import triton
import triton.language as tl
from helper import scaled


@triton.jit
def scale_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, scaled(x, 2.0), mask=at < n)
"""
MANIFEST = """\
[package]
name = "lines"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
name = "scale"
source = "sub/k.py:scale_kernel"
grid = ["cdiv(n, BLOCK)"]
[kernel.signature]
x_ptr = "*fp32"
out_ptr = "*fp32"
n = "i32"
[kernel.configs]
BLOCK = [256]
num_warps = [4]
"""


RECURSIVE = HELPER.replace(
    """def scaled(x, factor):
    return tl.exp(x) * factor
""",
    """def scaled(x, factor, TIMES: tl.constexpr = 3):
    if TIMES == 0:
        found = tl.exp(x)
    else:
        found = scaled(x, factor, TIMES - 1)
    return found * factor
""",
)


def build(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str, helper: str = HELPER
) -> Path:
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    (folder / "sub" / "helper.py").write_text(helper)
    (folder / "sub" / "k.py").write_text(KERNEL)
    (folder / "kernels.toml").write_text(MANIFEST)
    monkeypatch.chdir(folder)
    assert cli.run(["build", "--no-cache", "-j", "1", *options]) == 0
    return folder / "dist" / "lines.aotc"


def cubin_of(archive: Archive) -> bytes:
    return archive.kernels[0].variants[0].cubin


def test_a_function_may_call_itself_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its call at one location, and ptxas only knows locations written before."""
    lines = disassemble(
        cubin_of(read(build(tmp_path, monkeypatch, helper=RECURSIVE))), with_lines=True
    )
    assert 'helper.py", line 8' in lines


def test_cubins_name_the_lines_that_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build(tmp_path / "one", monkeypatch)
    cubin = cubin_of(read(path))
    assert b".debug_line" in cubin
    assert str(tmp_path).encode() not in cubin
    lines = disassemble(cubin, with_lines=True)
    for name, text in (("sub/helper.py", "return tl.exp"), ("sub/k.py", "tl.store(")):
        source = HELPER if "helper" in name else KERNEL
        line = 1 + next(
            i for i, source_line in enumerate(source.splitlines()) if text in source_line
        )
        assert f'{name}", line {line}' in lines
    assert 'File "sub/helper.py", line 7 inlined at "sub/k.py"' in disassemble(
        cubin, with_lines=True, is_whole=True
    )
    other = build(tmp_path / "elsewhere" / "deep", monkeypatch)
    assert other.read_bytes() == path.read_bytes()
    monkeypatch.chdir("/")
    manifest = str(tmp_path / "one" / "kernels.toml")
    assert cli.run(["build", manifest, "--no-cache", "-j", "1", "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "lines.aotc").read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_without_it_there_is_no_line_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = read(build(tmp_path, monkeypatch, "--no-lineinfo"))
    assert "//## File" not in disassemble(cubin_of(plain), with_lines=True)
    assert b"k.py" not in cubin_of(plain)
    lined = read(build(tmp_path, monkeypatch, "--with-ptx"))
    assert b".debug_line" in cubin_of(lined)
    assert disassemble(cubin_of(plain)) == disassemble(cubin_of(lined))
    plain_variant, lined_variant = plain.kernels[0].variants[0], lined.kernels[0].variants[0]
    assert (plain_variant.cubin_params, plain_variant.grid, plain_variant.remarks) == (
        lined_variant.cubin_params,
        lined_variant.grid,
        lined_variant.remarks,
    )
    assert lined_variant.ptx is not None
    assert str(tmp_path).encode() not in lined_variant.ptx
    assert cli.run(["verify", "dist/lines.aotc"]) == 0
