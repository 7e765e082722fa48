"""Launches in the emulator: exactly the bytes there are, and reports with the kernel's names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from aotc.compiler import CompileRequest, compile_ptx
from aotc.verify.checks.check import Execution, ExecutionFault
from aotc.verify.checks.compare import compare
from aotc.verify.checks.dataflow import roles_of
from aotc.verify.checks.emulated import Emulation
from aotc.verify.checks.inputs import Inputs, pointers_of
from aotc.verify.checks.launch import Launch
from aotc.verify.checks.launched import Launched
from aotc.verify.checks.noise import is_inexact
from aotc.verify.checks.reference import Reference, interpret
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
    emulation = Emulation(
        parse_module(ptx), "grouped", 0, seed=1, max_steps=max_steps, sources=(SOURCE,)
    )
    return emulation(reference)


@pytest.fixture(scope="module")
def ptx() -> str:
    return compile_ptx(REQUEST).ptx


def test_a_compiled_kernel_does_what_its_tile_ir_does(reference: Reference, ptx: str) -> None:
    before = {name: buffer.initial.tobytes() for name, buffer in reference.buffers.items()}
    execution = _run(reference, ptx)
    assert execution.lane_instructions > 4 * 128
    for name, buffer in reference.buffers.items():
        assert compare(buffer, execution.buffers[name]) is None
        assert buffer.initial.tobytes() == before[name]
    assert execution.buffers["out_ptr"].tobytes() != before["out_ptr"]


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
    execution = Emulation(parse_module(ptx), name, 0)(reference)
    assert not execution.forgiven
    assert all(compare(b, execution.buffers[n]) is None for n, b in reference.buffers.items())
    barrier = "bar.sync \t0;"
    for start in (start for start, _ in enumerate(ptx) if ptx.startswith(barrier, start)):
        yield reference, ptx[:start] + ptx[start + len(barrier) :]


@pytest.mark.parametrize("in_step", [True, False])
def test_a_missing_barrier_between_accesses_to_memory_is_a_race(in_step: bool) -> None:
    """In step, too, where all warps have stored before any of them loads."""
    launch = Launch("full", {}, (1,), seed=3, index_high=4, misaligned=False, in_step=in_step)
    broken = list(_without_barriers("turned", 128, launch))
    assert len(broken) == 2
    for reference, ptx in broken:
        execution = Emulation(parse_module(ptx), "turned", 0)(reference)
        assert re.match("race: .*out_ptr", execution.forgiven)
        assert compare(reference.buffers["out_ptr"], execution.buffers["out_ptr"]) is not None


@pytest.mark.parametrize("name", ["halved", "halved_and_spread"])
def test_threads_may_race_for_unused_values(name: str) -> None:
    launch = Launch("full", {}, (1,), seed=3, index_high=4, misaligned=False)
    reference, ptx = next(_without_barriers(name, 32, launch))
    execution = Emulation(parse_module(ptx), name, 0)(reference)
    assert re.match("race: .*x_ptr", execution.forgiven)
    wrong = [
        n for n, b in reference.buffers.items() if compare(b, execution.buffers[n]) is not None
    ]
    assert wrong == ([] if name == "halved" else ["out_ptr"])


def _launcher(reference: Reference, addresses: Mapping[str, int], at_once: int) -> Launched:
    """Return a launch of `grouped`; its parameters are its arguments one by one."""
    del at_once
    params, layout = bytearray(), list[tuple[int, int]]()
    for name in reference.order:
        size = 8 if name in addresses else 4
        layout.append((len(params), size))
        value = addresses.get(name, reference.launch.scalars.get(name, 0))
        params += int(value).to_bytes(size, "little")
    x, y = reference.launch.grid
    return Launched((x, y, 1), (128, 1, 1), (1, 1, 1), 0, bytes(params), tuple(layout))


def _launches_of_grouped() -> list[Reference]:
    kernel = kernel_of("grouped")
    roles = roles_of(kernel, {}, is_inexact)
    sizes: dict[str, int] = {"M": 33, "N": 15, "stride_am": 48, "stride_om": 17}
    more_launches = (
        replace(LAUNCH, scalars={**LAUNCH.scalars, **sizes}, grid=(3, 1), seed=4, misaligned=False),
        replace(LAUNCH, scalars={**LAUNCH.scalars, "M": 1}, grid=(1, 2), seed=5),
        replace(LAUNCH, seed=6, in_step=False),
    )
    return [interpret(kernel, roles, launch, Inputs()) for launch in (LAUNCH, *more_launches)]


def test_launches_together_give_the_same_as_separately(ptx: str) -> None:
    """Launches in step have their own parameters, grids and memory."""
    references = _launches_of_grouped()
    emulation = Emulation(parse_module(ptx), "grouped", 0, launcher=_launcher)
    *together, random = emulation.together(references)
    assert random is None
    count = 0
    for reference, execution in zip(references, together, strict=False):
        alone = emulation(reference)
        assert execution is not None
        count += alone.lane_instructions
        for name, content in alone.buffers.items():
            assert execution.buffers[name].tobytes() == content.tobytes()
            assert compare(reference.buffers[name], content) is None
    assert (
        sum(execution.lane_instructions for execution in together if execution is not None) == count
    )


def test_launches_with_a_fault_are_executed_separately(ptx: str) -> None:
    broken = ptx.replace("setp.lt.s32", "setp.le.s32")
    emulation = Emulation(parse_module(broken), "grouped", 0, launcher=_launcher)
    assert emulation.together(_launches_of_grouped()) == [None] * 4
