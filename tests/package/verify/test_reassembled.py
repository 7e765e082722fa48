"""An archive's cubins equal its assembled PTX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from aotc.ir.diagnostics import CompileError
from aotc.package.archive import file as archives
from aotc.package.builder.run import BuildOptions, build
from aotc.package.manifest.read import load
from aotc.package.verify.audit import audit_variant
from aotc.package.verify.subjects import Subject, subjects_of_archive
from tests.support.listeners import Silent

pytestmark = pytest.mark.usefixtures("one_worker")

_SOURCE = """
import triton
import triton.language as tl

@triton.jit
def helper(x):
    return tl.sum(x * 2)

@triton.jit
def copied(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.device_print("x", x)
    tl.store(out_ptr + i, x + helper(x), mask=i < n)
"""
_MANIFEST = """
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_80", "sm_90a"]
[[kernel]]
source = "kernels.py:copied"
signature = { x_ptr = "*i32", out_ptr = "*i32", n = "i32" }
constants = { BLOCK = 512 }
"""


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> list[Subject]:
    folder = tmp_path_factory.mktemp("reassembled")
    (folder / "kernels.py").write_text(_SOURCE)
    (folder / "kernels.toml").write_text(_MANIFEST)
    options = BuildOptions(folder, 1, with_ptx=True)
    result = build(load(str(folder / "kernels.toml")), options, Silent(), cache=None)
    assert not result.failures
    path = folder / "demo.aotc"
    return subjects_of_archive(archives.read(path), str(path))


def _with_cubin(subject: Subject, edit: Callable[[bytes], bytes]) -> Subject:
    assert subject.archived is not None
    kernel, variant = subject.archived
    return replace(subject, archived=(kernel, replace(variant, cubin=edit(variant.cubin))))


def _failures(subject: Subject) -> list[str]:
    return [f.text for cubin in audit_variant(subject) for f in cubin if f.kind == "other code"]


def test_what_was_built_is_what_its_ptx_assembles_to(subjects: list[Subject]) -> None:
    assert [_failures(subject) for subject in subjects] == [[], []]


def _section(cubin: bytes, name: str) -> int:
    """Return where the content of a section begins."""
    start, size = int.from_bytes(cubin[40:48], "little"), int.from_bytes(cubin[58:60], "little")
    count, names_index = (
        int.from_bytes(cubin[offset : offset + 2], "little") for offset in (60, 62)
    )

    def field(index: int, field_offset: int, width: int) -> int:
        position = start + size * index + field_offset
        return int.from_bytes(cubin[position : position + width], "little")

    names = field(names_index, 24, 8)
    for index in range(count):
        if cubin.startswith(name.encode() + b"\0", names + field(index, 0, 4)):
            return field(index, 24, 8)
    raise AssertionError(name)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("section", "offset"), [(".text.copied", 8), (".nv.info", 8), (".nv.info.copied", 4)]
)
def test_a_bit_that_is_another_is_found(
    subjects: list[Subject], section: str, offset: int, number: int
) -> None:
    def flip(cubin: bytes) -> bytes:
        edited = bytearray(cubin)
        edited[_section(cubin, section) + offset] ^= 1
        return bytes(edited)

    try:
        assert _failures(_with_cubin(subjects[number], flip)) == [f"section {section}"]
    except CompileError as error:  # the parser of SASS may refuse it, too
        pytest.fail(error.message)


def test_the_cubin_of_another_kernel_is_found(subjects: list[Subject]) -> None:
    other = subjects[1].archived
    assert other is not None
    assert _failures(_with_cubin(subjects[0], lambda _: other[1].cubin))


def test_a_cubin_of_another_ptxas_is_not_compared(subjects: list[Subject]) -> None:
    def rename(cubin: bytes) -> bytes:
        version = cubin.index(b", V", _section(cubin, ".note.nv.tkinfo")) + len(b", V")
        return cubin[:version] + b"9" + cubin[version + 1 :]

    with pytest.raises(CompileError, match="another ptxas made it"):
        audit_variant(_with_cubin(subjects[0], rename))


@pytest.mark.parametrize("length", [0, 3, 70, 900])
def test_what_is_no_cubin_is_told(subjects: list[Subject], length: int) -> None:
    with pytest.raises(CompileError, match="cannot compare the cubin"):
        audit_variant(_with_cubin(subjects[0], lambda cubin: cubin[:length]))
