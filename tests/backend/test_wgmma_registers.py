"""Registers of an unfinished `wgmma`: permitted accesses, on every path of the PTX."""

from __future__ import annotations

import time

import pytest

from aotc.backend.wgmma_registers import find_hazards
from tests.support.products import Matmul, ptx_of

A, B = ["%r10", "%r11", "%r12", "%r13"], ["%r20", "%r21", "%r22", "%r23"]
ACC, OTHER = [f"%r{100 + index}" for index in range(4)], [f"%r{200 + index}" for index in range(4)]


def _start(fragment: list[str], accumulator: list[str] = ACC) -> str:
    kind = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"
    operands = f"{{{', '.join(accumulator)}}}, {{{', '.join(fragment)}}}, %rd1, 1, 1, 1, 0"
    return f"{{ wgmma.fence.sync.aligned; {kind} {operands}; wgmma.commit_group.sync.aligned; }}"


def _wait(pending: int) -> str:
    return f"wgmma.wait_group.sync.aligned {pending};"


def _read(fragment: list[str]) -> str:
    return f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{', '.join(fragment)}}}, [%r1+64];"


def _hits(*lines: str) -> list[str]:
    """Return a kernel's hazards: each register, and its accesses."""
    head = [".version 8.8", ".visible .entry k(", "\t.param .u64 k_param_0", ")", "{"]
    body = ["\t.reg .b32 %r<999>;", *lines, "\tret;", "}"]
    hazards = find_hazards("\n".join([*head, *body]))
    return [f"{hazard.register} {hazard.access} {hazard.use}" for hazard in hazards]


def test_a_fragment_may_be_written_after_the_wait_for_its_group() -> None:
    assert not _hits(_read(A), _start(A), _wait(0), _read(A))
    assert _hits(_read(A), _start(A), _read(A)) == [f"{register} written read" for register in A]


def test_a_fragment_may_be_read() -> None:
    assert not _hits(_start(A), f"add.s32 %r1, {A[0]}, 1;", f"st.shared.b32 [%r1], {A[0]};")


@pytest.mark.parametrize(("pending", "written"), [(0, A), (0, B), (1, A), (1, B), (2, A)])
def test_a_wait_covers_all_but_the_newest_groups(pending: int, written: list[str]) -> None:
    hazards = _hits(_start(A), _start(B, OTHER), _wait(pending), _read(written))
    is_awaited = pending < (2 if written is A else 1)
    assert bool(hazards) != is_awaited


def test_a_wait_covers_no_group_that_is_not_committed() -> None:
    """One instruction has yet to be committed when threads wait for all groups."""
    uncommitted = _start(B, OTHER).replace(" wgmma.commit_group.sync.aligned;", "")
    assert _hits(_start(A), uncommitted, _wait(0), _read(B))
    assert not _hits(_start(A), uncommitted, _wait(0), _read(A))


@pytest.mark.parametrize(
    ("statement", "access"),
    [
        (f"mov.b32 {ACC[1]}, 0;", "written"),
        (f"mov.b32 %r1, {ACC[1]};", "read"),
        (f"@%p1 st.global.b32 [%rd2], {ACC[1]};", "read"),
        (f"@!%p1 ld.global.v2.b32 {{%r1, {ACC[1]}}}, [%rd2];", "written"),
        (f"add.f32 {ACC[1]}, {ACC[1]}, %r1;", "written"),
        (f"{{ .reg .b32 t; mov.b32 t, {ACC[1]}; }}", "read"),
        (f"bar.sync 0; mov.b32 {ACC[1]}, %r1;", "written"),
    ],
)
def test_an_accumulator_may_not_be_touched(statement: str, access: str) -> None:
    assert _hits(_start(A), statement) == [f"{ACC[1]} {access} write"]
    assert not _hits(_start(A), _wait(0), statement)


def test_a_wgmma_may_add_to_an_accumulator_in_flight() -> None:
    assert not _hits(_start(A), _start(B), _wait(0))
    assert _hits(_start(A), _start(B, ACC[::-1]))
    assert _hits(_start(A), _start(B, [*ACC[:3], OTHER[3]]))


def test_what_a_wgmma_is_yet_to_write_is_no_fragment() -> None:
    assert _hits(_start(A), _start(ACC, OTHER)) == [f"{register} read write" for register in ACC]
    assert _hits(_start(A), _start(B, A)) == [f"{register} written read" for register in A]


# ---- paths ------------------------------------------------------------------------------------


def test_all_paths_have_to_wait() -> None:
    branch = ["@%p1 bra $L_SKIP;", _wait(0), "$L_SKIP:", _read(A)]
    assert _hits(_start(A), *branch)
    assert not _hits(_start(A), "@%p1 bra $L_SKIP;", "$L_SKIP:", _wait(0), _read(A))


def test_a_path_that_ends_does_not_go_on() -> None:
    left = ["@%p1 bra $L_OTHER;", _start(A), "bra.uni $L_END;", "$L_OTHER:", _read(A), "$L_END:"]
    assert not _hits(*left)
    assert not _hits("@%p1 bra $L_OTHER;", _start(A), "ret;", "$L_OTHER:", _read(A))


def test_where_paths_meet_the_youngest_group_counts() -> None:
    """On one path a group is the newest, on the other the one before."""
    paths = ["@%p1 bra $L_SHORT;", _start(A), _start(B, OTHER), "bra $L_MEET;", "$L_SHORT:"]
    paths += [_start(A), "$L_MEET:"]
    assert _hits(*paths, _wait(1), _read(A))
    assert not _hits(*paths, _wait(0), _read(A))


def _loop(*lines: str) -> list[str]:
    return ["$L_LOOP:", *lines, "@%p1 bra $L_LOOP;", _wait(0)]


def test_the_next_iteration_writes_what_this_one_reads() -> None:
    """The last slice of an iteration is in flight when the next one reads all slices."""
    whole = [_read(A), _read(B), _start(A), _wait(1), _start(B), _wait(1)]
    assert _hits(*_loop(*whole)) == [f"{register} written read" for register in B]
    slices = [_read(A), _start(A), _wait(1), _read(B), _start(B), _wait(1)]
    assert not _hits(*_loop(*slices))


def test_a_copy_for_the_next_iteration_writes_too() -> None:
    assert _hits(*_loop(_start(A), f"mov.b32 {A[0]}, %r1;", _wait(0)))
    assert not _hits(*_loop(_start(A), _wait(0), f"mov.b32 {A[0]}, %r1;"))


def test_labels_of_inline_assembly_are_its_own() -> None:
    spin = "{ .reg .pred p; again: mbarrier.try_wait.b64 p, [%r1]; @!p bra again; }"
    assert not _hits(spin, _start(A), spin, _wait(0), _read(A))
    assert _hits(spin, _start(A), spin, _read(A))
    skip = f"{{ @%p1 bra done; {_wait(0)} done: }}"
    assert _hits(_start(A), skip, _read(A))


def test_a_jump_through_a_table_goes_to_any_label() -> None:
    table = ["$L_T: .branchtargets", "\t$L_X,", "\t$L_Y;", "brx.idx %r1, $L_T;"]
    assert _hits(_start(A), *table, "$L_X:", _wait(0), "ret;", "$L_Y:", _read(A))
    assert not _hits(_start(A), *table, "$L_X:", _wait(0), "ret;", "$L_Y:", _wait(0), _read(A))


def test_assembly_of_the_source_may_be_odd() -> None:
    """An indirect branch may go anywhere, and is no reason to refuse a kernel."""
    assert not _hits(_start(A), ";; { bra nowhere; }", _wait(0), _read(A))
    assert _hits(_start(A), "$L_X:", _read(A), "ret;", "bra nowhere;")
    assert not _hits("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 d, a, b, 1, 1, 1;")


def test_a_statement_may_go_over_several_lines() -> None:
    """As LLVM writes an `mma.sync`: its outputs are in the first braces."""
    head = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
    lines = ["\t.loc 1 2 3", head, "\t{%r1, %r2, %r3, %r4},", f"\t{{{', '.join(A)}}},"]
    lines += ["\t{%r5, %r6},", "\t{%r1, %r2, %r3, %r4};"]
    assert not _hits(_start(A), *lines, "$L_X:", _wait(0), _read(A))
    swapped = [line.replace("%r10", "%r2").replace("{%r1,", "{%r10,") for line in lines]
    assert _hits(_start(A), *swapped) == ["%r10 written read"]


def test_text_without_wgmma_is_not_read() -> None:
    assert not find_hazards("nothing that is PTX")


def test_a_hazard_names_both_lines() -> None:
    (hazard, *_) = find_hazards("\n".join([".version 8.8", "{", _start(A), "", _read(A), "}"]))
    assert str(hazard) == (
        "%r10 is written at line 5 of the PTX while the wgmma of line 3 is yet to read it"
    )


# ---- compiled kernels -------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["plain", "scaled", "two_sums", "chained"])
def test_products_have_none(way: str) -> None:
    assert not find_hazards(ptx_of(Matmul(way=way, num_stages=4)))


def test_a_lost_wait_is_found() -> None:
    ptx = ptx_of(Matmul(way="scaled", num_stages=4))
    waits = [line for line in ptx.splitlines() if "wgmma.wait_group" in line]
    assert [line.split()[-1] for line in waits] == ["1;", "1;", "0;"]
    start = ptx.index(waits[0])
    assert find_hazards(ptx[:start] + ptx[start + len(waits[0]) :])


def test_it_takes_milliseconds() -> None:
    """A thousandth of the compile time; the bound leaves room for a loaded machine."""
    ptx = ptx_of(Matmul(way="scaled", num_stages=4))
    find_hazards.cache_clear()  # emission has asked
    start = time.process_time()
    find_hazards(ptx)
    assert time.process_time() - start < 0.1
