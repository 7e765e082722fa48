"""Launches in the emulator: exactly the bytes there are, and reports with the kernel's names."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from aotc.compiler import CompileRequest, compile_ptx
from aotc.verify.checks.check import Execution, ExecutionFault
from aotc.verify.checks.compare import compare
from aotc.verify.checks.dataflow import roles_of
from aotc.verify.checks.emulated import Emulation
from aotc.verify.checks.launches import Launch
from aotc.verify.checks.noise import is_inexact
from aotc.verify.checks.reference import Inputs, Reference, interpret, pointers_of
from aotc.verify.emulator.text.parse import parse_module
from tests.support.verify_subjects import SOURCE, kernel_of

REQUEST = CompileRequest(
    str(SOURCE),
    "grouped",
    (
        *(("a_ptr", "*fp32"), ("out_ptr", "*fp32"), ("M", "i32"), ("N", "i32")),
        *(("stride_am", "i32"), ("stride_an", "i32"), ("stride_om", "i32"), ("stride_on", "i32")),
    ),
    (("BLOCK", 16),),
    "sm_80",
)
LAUNCH = Launch(
    "over",
    {"M": 17, "N": 18, "stride_am": 40, "stride_an": 2, "stride_om": 20, "stride_on": 1},
    (2, 2),
    seed=3,
    index_high=4,
    misaligned=True,
)


@pytest.fixture(scope="module")
def reference() -> Reference:
    kernel = kernel_of("grouped")
    return interpret(kernel, roles_of(kernel, {}, is_inexact), LAUNCH, Inputs())


def _run(reference: Reference, ptx: str, max_steps: int = 1_000_000) -> Execution:
    made = Emulation(
        parse_module(ptx), "grouped", 0, seed=1, max_steps=max_steps, sources=(SOURCE,)
    )
    return made(reference)


@pytest.fixture(scope="module")
def ptx() -> str:
    return compile_ptx(REQUEST).ptx


def test_a_compiled_kernel_does_what_its_tile_ir_does(reference: Reference, ptx: str) -> None:
    before = {name: buffer.initial.tobytes() for name, buffer in reference.buffers.items()}
    done = _run(reference, ptx)
    assert done.lane_instructions > 4 * 128
    for name, buffer in reference.buffers.items():
        assert compare(buffer, done.buffers[name]) is None
        assert buffer.initial.tobytes() == before[name]
    assert done.buffers["out_ptr"].tobytes() != before["out_ptr"]


def test_a_byte_too_many_is_reported_with_the_arguments_name(
    reference: Reference, ptx: str
) -> None:
    with pytest.raises(ExecutionFault) as caught:
        _run(reference, ptx.replace("setp.lt.s32", "setp.le.s32"))
    report = str(caught.value)
    assert caught.value.beyond == "reads"
    assert "a_ptr" in report
    assert "argument 0" not in report
    assert "at verify_kernels.py:" in report
    assert "a = tl.load(a_ptr + m[:, None] * stride_am" in report


def test_a_kernel_that_does_not_end_is_a_fault(reference: Reference, ptx: str) -> None:
    with pytest.raises(ExecutionFault, match="steps: still running after 3") as caught:
        _run(reference, ptx, max_steps=3)
    assert not caught.value.beyond


def _without_barriers(name: str, block: int, launch: Launch) -> Iterator[tuple[Reference, str]]:
    """Yield the reference of a launch of a kernel on its pointers, and PTX without one barrier."""
    kernel = kernel_of(name, block)
    pointers = [(n, f"*{kind.name}") for n, kind in pointers_of(kernel).items()]
    request = CompileRequest(str(SOURCE), name, tuple(pointers), (("BLOCK", block),), "sm_80")
    ptx = compile_ptx(request).ptx
    reference = interpret(kernel, roles_of(kernel, {}, is_inexact), launch, Inputs())
    done = Emulation(parse_module(ptx), name, 0)(reference)
    assert not done.forgiven
    assert all(compare(b, done.buffers[n]) is None for n, b in reference.buffers.items())
    barrier = "bar.sync \t0;"
    for at in (at for at, _ in enumerate(ptx) if ptx.startswith(barrier, at)):
        yield reference, ptx[:at] + ptx[at + len(barrier) :]


@pytest.mark.parametrize("in_step", [True, False])
def test_a_missing_barrier_between_accesses_to_memory_is_a_race(in_step: bool) -> None:
    """In step, too, where all warps have stored before any of them loads."""
    launch = Launch("full", {}, (1,), seed=3, index_high=4, misaligned=False, in_step=in_step)
    broken = list(_without_barriers("turned", 128, launch))
    assert len(broken) == 2
    for reference, ptx in broken:
        done = Emulation(parse_module(ptx), "turned", 0)(reference)
        assert re.match("race: .*out_ptr", done.forgiven)
        assert compare(reference.buffers["out_ptr"], done.buffers["out_ptr"]) is not None


@pytest.mark.parametrize("name", ["halved", "halved_and_spread"])
def test_threads_may_race_for_what_nobody_uses(name: str) -> None:
    launch = Launch("full", {}, (1,), seed=3, index_high=4, misaligned=False)
    reference, ptx = next(_without_barriers(name, 32, launch))
    done = Emulation(parse_module(ptx), name, 0)(reference)
    assert re.match("race: .*x_ptr", done.forgiven)
    wrong = [n for n, b in reference.buffers.items() if compare(b, done.buffers[n]) is not None]
    assert wrong == ([] if name == "halved" else ["out_ptr"])
