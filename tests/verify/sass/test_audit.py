"""The audit against SASS with real faults, with planted faults, and of correct kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

import aotc
from aotc.backend import assemble, disassemble
from aotc.target import parse as parse_target
from aotc.verify.sass.audit import audit
from aotc.verify.sass.findings import Finding

CASES = Path(__file__).parent

# From correct PTX by ptxas 13.5: the faulty instruction, and its count.
PLANTED = {
    "attention": ("issued apart", "@!UP1 UTMALDG.2D", 1),
    "bulk_load": ("issued apart", "@!UP0 UBLKCP.S.G", 2),
    "bulk_prefetch": ("issued apart", "@!UP1 UBLKPF.L2", 1),
    "bulk_reduction": ("issued apart", "@!UP0 UBLKRED.G.S.ADD.F32.RN", 1),
    "bulk_store": ("issued apart", "@!UP0 UBLKCP.G.S", 1),
    "guarded_barrier": ("barrier apart", "@P0 BAR.SYNC.DEFER_BLOCKING", 1),
    "guarded_ldmatrix": ("collective apart", "@P0 LDSM.16.M88", 1),
    "map_prefetch": ("issued apart", "@!UP1 UTMACCTL.PF", 1),
    "merged_wgmma": ("matrix instructions merged", "HGMMA.64x8x16.F32.BF16", 1),
    "mbarrier_init": ("issued apart", "@!UP0 SYNCS.EXCH.64", 1),
    "serialized": ("serialized", "HGMMA.64x16x16.F32.BF16", 1),
    "setmaxnreg": ("setmaxnreg dropped", "LDC", 1),
    "shuffle_in_arm": ("barrier apart", "WARPSYNC.ALL", 1),
    "stack_pointer": ("stack overwritten", "LDG.E R1,", 1),
    "tensor_load": ("issued apart", "@!UP1 UTMALDG.2D", 1),
    "tensor_prefetch": ("issued apart", "@!UP1 UTMAPF.L2.2D", 1),
    "tensor_reduction": ("issued apart", "@!UP1 UTMAREDG.2D.ADD", 1),
    "tensor_store": ("issued apart", "@!UP0 UTMASTG.2D", 1),
    "wgmma_in_arm": ("barrier apart", "WARPSYNC.ALL", 1),
}
PTX = {
    "merged_wgmma": "wgmma.mma_async.a;\nwgmma.commit_group;\nwgmma.wait_group.sync.aligned 0;\n"
    "wgmma.mma_async.b;\nwgmma.commit_group;",
    "serialized": "wgmma.mma_async.a;\nwgmma.mma_async.b;\nwgmma.commit_group;\nwgmma.wait_group.sync.aligned 0;",
    "setmaxnreg": "setmaxnreg.inc.sync.aligned.u32 232;",
}


def failures(sass: str, ptx: str = "") -> list[Finding]:
    return [finding for finding in audit(sass, ptx) if finding.is_failure]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    kind, instruction, count = PLANTED[name]
    findings = failures((CASES / "planted" / f"{name}.sass").read_text(), PTX.get(name, ""))
    assert [finding.kind for finding in findings] == [kind] * count
    assert all(finding.text.startswith(instruction) for finding in findings)


def test_every_planted_fault_is_expected() -> None:
    assert {path.stem for path in (CASES / "planted").glob("*.sass")} == set(PLANTED)


@pytest.mark.parametrize(
    "path", sorted((CASES / "good").glob("*.sass")), ids=lambda path: path.stem
)
def test_sass_that_is_right_has_no_finding(path: Path) -> None:
    assert audit(path.read_text()) == ()


def test_a_finding_says_how_lanes_get_there() -> None:
    (finding,) = failures((CASES / "planted" / "attention.sass").read_text())
    assert finding.render().splitlines() == [
        "issued apart: 0x1680: @!UP1 UTMALDG.2D [UR28], [UR6]",
        "  it is issued once for each group of lanes that gets here, and two do",
        "  some lanes come by 0x1520 → 0x15f0",
        "  others come by 0x1520 → 0x1530",
    ]


# ---------------------------------------------------------------------------------- by hand

# A thread does something, then the warp does the rest; lanes join in between, if they do.
_AFTER_ARM = """
/*0000*/ S2R R0, SR_TID.X ;
/*0010*/ ISETP.NE.U32.AND P0, PT, R0, RZ, PT ;
/*0020*/ BSSY B0, `(.L_1) ;
/*0030*/ @P0 BRA `(.L_0) ;
/*0040*/ {arm} ;
.L_0:
/*0050*/ {join} ;
.L_1:
/*0060*/ {rest} ;
/*0070*/ EXIT ;
"""
ISSUED_ONCE = (
    "UTMALDG.2D [UR4], [UR6]",
    "UTMASTG.2D [UR4], [UR6]",
    "UTMAREDG.2D.ADD [UR4], [UR6]",
    "UTMAPF.L2.2D [UR4], [UR6]",
    "UTMACMDFLUSH",
    "UTMACCTL.PF [UR4]",
    "UBLKCP.S.G [UR4], [UR8], UR12",
    "UBLKRED.G.S.ADD.F32.RN [UR4], [UR8], UR12",
    "@!UP0 SYNCS.ARRIVE.TRANS64 RZ, [UR4], R2",
    "@!UP0 SYNCS.ARRIVE.TRANS64.RED.A0TR RZ, [UR4], R2",
    "SYNCS.EXCH.64 URZ, [UR4], UR6",
)
NEEDS_ALL = (
    "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24, gsb0",
    "QGMMA.64x32x32.F32.E4M3.E4M3 R40, gdesc[UR12], R40, UP0",
    "WARPGROUP.ARRIVE",
    "WARPGROUP.DEPBAR.LE gsb0, 0x0",
    "USETMAXREG.DEALLOC.CTAPOOL 0x28",
    "BAR.SYNC.DEFER_BLOCKING 0x0",
    "LDSM.16.M88.4 R36, [R71]",
    "STSM.16.M88.4 [R94], R4",
    "HMMA.16816.F32 R4, R36, R40, R4",
)
AMONG_THOSE_HERE = (
    "SHFL.BFLY PT, R6, R13, 0x1, 0x1f",
    "VOTE.ANY R9, PT, !P1",
    "MATCH.ANY R4, R5",
    "REDUX.OR UR4, R63",
    "ELECT P1, URZ, PT",
)


@pytest.mark.parametrize("rest", [*ISSUED_ONCE, *NEEDS_ALL, *AMONG_THOSE_HERE])
def test_lanes_must_have_joined(rest: str) -> None:
    joined = _AFTER_ARM.format(arm="STS [R1], R2", join="BSYNC B0", rest=rest)
    assert audit(joined) == ()
    apart = _AFTER_ARM.format(arm="STS [R1], R2", join="NOP", rest=rest)
    assert [finding.text for finding in failures(apart)] == [rest]
    awaited = _AFTER_ARM.format(arm="STS [R1], R2", join="WARPSYNC.ALL", rest=rest)
    assert audit(awaited) == ()


@pytest.mark.parametrize("arm", NEEDS_ALL)
def test_warp_wide_instructions_may_not_be_in_a_divergent_arm(arm: str) -> None:
    sass = _AFTER_ARM.format(arm=arm, join="BSYNC B0", rest="NOP")
    assert [finding.text for finding in failures(sass)] == [arm]


@pytest.mark.parametrize("arm", [*ISSUED_ONCE, *AMONG_THOSE_HERE])
def test_one_part_of_a_warp_may_issue(arm: str) -> None:
    assert audit(_AFTER_ARM.format(arm=arm, join="BSYNC B0", rest="NOP")) == ()


@pytest.mark.parametrize("guarded", NEEDS_ALL)
def test_warp_wide_instructions_may_not_be_guarded_per_lane(guarded: str) -> None:
    sass = _AFTER_ARM.format(arm="NOP", join="BSYNC B0", rest=f"@P0 {guarded}")
    assert [finding.text for finding in failures(sass)] == [f"@P0 {guarded}"]


_BRANCH = """
/*0000*/ S2R R0, SR_TID.X ;
/*0010*/ {first} ;
/*0020*/ {second} ;
/*0030*/ {branch} `(.L_0) ;
/*0040*/ STS [R1], R2 ;
.L_0:
/*0050*/ WARPGROUP.ARRIVE ;
/*0060*/ EXIT ;
"""


@pytest.mark.parametrize(
    ("first", "second", "is_apart"),
    [
        ("SHF.R.U32.HI R3, RZ, 0x5, R0", "ISETP.NE.U32.AND P0, PT, R3, RZ, PT", False),
        ("SHF.R.U32.HI R3, RZ, 0x4, R0", "ISETP.NE.U32.AND P0, PT, R3, RZ, PT", True),
        ("SHF.R.U32.HI R0, RZ, 0x5, R0", "ISETP.NE.U32.AND P0, PT, R0, RZ, PT", False),
        ("SHF.R.U32.HI R0, RZ, 0x5, R0.reuse", "ISETP.NE.U32.AND P0, PT, R0, RZ, PT", False),
        ("SHF.R.U32.HI R0, RZ, 0x4, R0", "ISETP.NE.U32.AND P0, PT, R0, RZ, PT", True),
        ("LOP3.LUT R3, R0, 0x80, RZ, 0xc0, !PT", "ISETP.NE.AND P0, PT, R3, RZ, PT", False),
        ("LOP3.LUT R3, R0, 0x90, RZ, 0xc0, !PT", "ISETP.NE.AND P0, PT, R3, RZ, PT", True),
        ("NOP", "ISETP.GE.U32.AND P0, PT, R0, 0x80, PT", False),
        ("NOP", "ISETP.GT.U32.AND P0, PT, R0, 0x7f, PT", False),
        ("NOP", "ISETP.GT.U32.AND P0, PT, R0, 0x80, PT", True),
        ("NOP", "ISETP.EQ.U32.AND P0, PT, R0, 0x80, PT", True),
        ("S2R R3, SR_CTAID.X", "ISETP.GT.AND P0, PT, R3, 0x3, PT", False),
        ("S2R R3, SR_LANEID", "ISETP.GT.AND P0, PT, R3, 0x3, PT", True),
        ("LDS R3, [UR4+0x10]", "ISETP.GT.AND P0, PT, R3, 0x3, PT", False),
        ("LDS R3, [R0]", "ISETP.GT.AND P0, PT, R3, 0x3, PT", True),
        ("ATOMS.ADD R3, [UR4], R5", "ISETP.GT.AND P0, PT, R3, 0x3, PT", True),
        ("SHFL.IDX PT, R3, R0, RZ, 0x1f", "ISETP.GT.AND P0, PT, R3, 0x3, PT", False),
        ("SHFL.BFLY PT, R3, R0, 0x1, 0x1f", "ISETP.GT.AND P0, PT, R3, 0x3, PT", True),
        ("VOTE.ANY R3, PT, P1", "ISETP.GT.AND P0, PT, R3, 0x3, PT", False),
        ("MOV R4, 0x1", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R4", False),
        ("MOV R4, R0", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R4], R5", True),
        ("STL [R1+0x10], R0", "LDL R3, [R1+0x10]", True),
        ("STL [R1+0x10], RZ", "LDL R3, [R1+0x10]", False),
        ("ISETP.NE.AND P1, PT, R0, RZ, PT", "P2R R3, PR, RZ, 0x2", True),
        ("ISETP.NE.AND P1, PT, R0, RZ, PT", "P2R R3, PR, RZ, 0x4", False),
    ],
)  # fmt: skip
def test_sources_of_divergence(first: str, second: str, *, is_apart: bool) -> None:
    last = "@P0 BRA"
    if not second.startswith(("ISETP", "SYNCS")):  # R3 is still to be compared
        first, second = f"{first} ;\n/*0018*/ {second}", "ISETP.NE.AND P0, PT, R3, RZ, PT"
    findings = failures(_BRANCH.format(first=first, second=second, branch=last))
    assert bool(findings) == is_apart


@pytest.mark.parametrize("branch", ["@P0 BRA.U.ANY", "UBRA", "@UP0 BRA"])
def test_a_warp_takes_a_uniform_branch_whole(branch: str) -> None:
    compare = "ISETP.NE.AND P0, PT, R0, RZ, PT"
    assert audit(_BRANCH.format(first="NOP", second=compare, branch=branch)) == ()


_LOOP = """
/*0000*/ S2R R0, SR_TID.X ;
/*0010*/ {before} ;
.L_0:
/*0020*/ {body} ;
/*0030*/ IADD3 R0, R0, -0x1, RZ ;
/*0040*/ ISETP.GT.AND P0, PT, R0, RZ, PT ;
/*0050*/ @P0 BRA `(.L_0) ;
/*0060*/ {after} ;
.L_1:
/*0070*/ {rest} ;
/*0080*/ EXIT ;
"""


def test_lanes_leave_a_loop_apart() -> None:
    fields = {"body": "STS [R1], R2", "rest": "UTMACMDFLUSH"}
    apart = _LOOP.format(before="NOP", after="NOP", **fields)
    assert [finding.address for finding in failures(apart)] == [0x70]
    joined = _LOOP.format(before="BSSY B0, `(.L_1)", after="BSYNC B0", **fields)
    assert audit(joined) == ()


def test_a_barrier_may_be_kept_in_a_register() -> None:
    fields = {"body": "BMOV R9, B0", "rest": "UTMACMDFLUSH", "before": "BSSY B0, `(.L_1)"}
    back = "BMOV B1, {} ;\n/*0068*/ BSYNC B1"
    assert audit(_LOOP.format(after=back.format("R9"), **fields)) == ()
    another = _LOOP.format(after=back.format("R8"), **fields)
    assert [finding.address for finding in failures(another)] == [0x70]


def test_one_lane_never_parts_from_itself() -> None:
    alone = "ISETP.NE.AND P0, PT, R0, RZ, PT ;\n/*0018*/ @P0 EXIT"
    fields = {"body": "UTMALDG.2D [UR4], [UR6]", "after": "NOP", "rest": "UTMACMDFLUSH"}
    assert audit(_LOOP.format(before=alone, **fields)) == ()
    two = alone.replace("ISETP.NE.AND P0, PT, R0, RZ, PT", "ISETP.GT.AND P0, PT, R0, 0x1, PT")
    assert [finding.address for finding in failures(_LOOP.format(before=two, **fields))] == [0x70]


def test_an_elected_lane_is_a_single_lane() -> None:
    alone = "ELECT P0, URZ, PT ;\n/*0018*/ @!P0 EXIT"
    fields = {"body": "UTMALDG.2D [UR4], [UR6]", "after": "NOP", "rest": "UTMACMDFLUSH"}
    assert audit(_LOOP.format(before=alone, **fields)) == ()
    complement = alone.replace("@!P0", "@P0")
    assert [finding.address for finding in failures(_LOOP.format(before=complement, **fields))] == [
        0x70
    ]


_BREAK = """
/*0000*/ S2R R0, SR_TID.X ;
/*0010*/ ISETP.NE.U32.AND P0, PT, R0, RZ, PT ;
/*0020*/ BSSY B0, `(.L_3) ;
/*0030*/ BSSY B1, `(.L_1) ;
/*0040*/ @P0 BREAK B1 ;
/*0050*/ @P0 BRA `(.L_2) ;
/*0060*/ UTMALDG.2D [UR4], [UR6] ;
/*0070*/ BSYNC B1 ;
.L_1:
/*0080*/ UTMALDG.2D [UR4], [UR6] ;
.L_2:
/*0090*/ {join} ;
.L_3:
/*00a0*/ UTMACMDFLUSH ;
/*00b0*/ EXIT ;
"""


def test_lanes_that_break_out_are_not_awaited() -> None:
    assert audit(_BREAK.format(join="BSYNC B0")) == ()
    assert [finding.address for finding in failures(_BREAK.format(join="NOP"))] == [0xA0]


def test_a_subroutine_returns_to_its_callers_alone() -> None:
    sass = """
/*0000*/ S2R R0, SR_TID.X ;
/*0010*/ ISETP.NE.U32.AND P0, PT, R0, RZ, PT ;
/*0020*/ BSSY B0, `(.L_1) ;
/*0030*/ @P0 BRA `(.L_0) ;
/*0040*/ MOV R8, 0x60 ;
/*0050*/ CALL.REL.NOINC `(.L_9) ;
.L_0:
/*0060*/ {join} ;
.L_1:
/*0070*/ WARPGROUP.ARRIVE ;
/*0080*/ ISETP.NE.AND P2, PT, R20, RZ, PT ;
/*0090*/ @P2 CALL.REL.NOINC `(.L_2) ;
/*00a0*/ BRA `(.L_1) ;
.L_2:
/*00b0*/ EXIT ;
.L_9:
/*00c0*/ ISETP.GT.AND P1, PT, R0, 0x8, PT ;
/*00d0*/ @P1 BRA `(.L_10) ;
/*00e0*/ MOV R9, 0x1 ;
.L_10:
/*00f0*/ RET.REL.NODEC R8 `(kernel) ;
"""
    assert audit(sass.format(join="BSYNC B0")) == ()
    assert [finding.address for finding in failures(sass.format(join="NOP"))] == [0x70]


def test_unparsable_sass_is_a_failure() -> None:
    (strange,) = failures("/*0000*/ ?? ;")
    assert strange.kind == "unreadable"
    (indirect,) = failures("/*0000*/ BRX R2 -0x190 ;\n/*0010*/ EXIT ;")
    assert indirect.kind == "unreadable"
    assert "not known" in indirect.meaning


def test_targets_of_an_indirect_branch_are_in_its_annotation() -> None:
    sass = """
/*0000*/ {read} ;
/*0010*/ BRX R2 -0x190 (*"BRANCH_TARGETS .L_0,.L_1"*) ;
.L_0:
/*0020*/ NOP ;
.L_1:
/*0030*/ WARPGROUP.ARRIVE ;
/*0040*/ EXIT ;
"""
    assert audit(sass.format(read="LDC R2, c[0x0][0x28]")) == ()
    assert [finding.address for finding in failures(sass.format(read="S2R R2, SR_LANEID"))] == [
        0x30
    ]


def test_spills_in_loops_are_reported_but_allowed() -> None:
    spilled = _LOOP.format(before="NOP", body="STL [R1], R9", after="NOP", rest="NOP")
    (finding,) = audit(spilled)
    assert (finding.kind, finding.address, finding.is_failure) == ("spill in a loop", 0x20, False)
    assert audit(_LOOP.format(before="STL [R1], R9", body="NOP", after="NOP", rest="NOP")) == ()


@pytest.mark.parametrize(
    ("ptx", "is_found"),
    [
        ("wgmma.mma_async; wgmma.mma_async; wgmma.wait_group.sync.aligned 0;", True),
        ("wgmma.mma_async; wgmma.wait_group.sync.aligned 1;", True),
        ("wgmma.mma_async; wgmma.wait_group.sync.aligned 0; wgmma.mma_async;", False),
        ("// wgmma.mma_async; wgmma.mma_async;\n", False),
    ],
)
def test_only_overlap_in_ptx_can_be_serialized(ptx: str, *, is_found: bool) -> None:
    sass = (CASES / "planted" / "serialized.sass").read_text()
    assert bool(failures(sass, ptx)) == is_found
    pipelined = sass.replace("WARPGROUP.DEPBAR.LE gsb0, 0x0", "WARPGROUP.DEPBAR.LE gsb0, 0x1")
    # Its results are now read in flight, a different finding.
    assert {finding.kind for finding in failures(pipelined, ptx)} == {"in flight"}


# ------------------------------------------------------------------------------ from ptxas now

_PTX = """.version 8.8
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .align 64 .b8 tm[128], .param .u64 g, .param .u32 n)
.reqntid 128
{{
.reg .pred %p<4>; .reg .b32 %r<32>; .reg .b64 %rd<8>;
mov.u32 %r1, %tid.x;
mov.b32 %r2, smem;
ld.param.u64 %rd1, [g];
mov.b64 %rd2, tm;
cvta.param.u64 %rd2, %rd2;
ld.param.u32 %r3, [n];
mad.lo.u32 %r6, %r1, 4, %r2;
mul.wide.u32 %rd4, %r1, 4;
add.u64 %rd4, %rd4, %rd1;
setp.eq.u32 %p1, %r1, 0;
setp.le.s32 %p2, %r3, 0;
@%p2 bra SKIP;
{body}
fence.proxy.async.shared::cta;
SKIP: ld.shared.u32 %r30, [%r6];
st.global.u32 [%rd4], %r30;
ret;
}}
"""
_OPERATIONS = (
    "prefetch.tensormap [%rd2];",
    "st.shared.u32 [%r2+40000], %r3;",
    "mbarrier.init.shared::cta.b64 [%r2+32768], 1;",
    "mbarrier.init.shared::cta.b64 [%r2+32768], 1;",
    (
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%r2+1024], [%rd2, {%r3, %r3}], [%r2+32768];"
    ),
)


def _fresh(*body: str) -> list[Finding]:
    ptx = _PTX.format(body="\n".join(body))
    return failures(disassemble(assemble(ptx, parse_target("sm_90a")).cubin), ptx)


def test_copies_predicated_per_thread_in_ptx_are_found_in_fresh_sass() -> None:
    findings = _fresh(*(f"@%p1 {operation}" for operation in _OPERATIONS))
    assert {finding.kind for finding in findings} == {"issued apart"}


def test_copies_of_an_elected_lane_are_right_in_fresh_sass() -> None:
    elected = ("elect.sync _|%p1, -1;", "@!%p1 bra JOIN;", *_OPERATIONS, "JOIN: bar.warp.sync -1;")
    assert _fresh(*elected) == []


@pytest.mark.parametrize(
    ("source", "signature", "constants", "options"),
    [
        (
            "kernels/softmax.py:softmax_kernel",
            {
                **dict.fromkeys(("x_ptr", "out_ptr"), "*bf16:16"),
                **dict.fromkeys(("stride", "n_rows", "n_cols"), "i32"),
            },
            {"BLOCK": 1024, "LOOP": False},
            {"target": "sm_80", "num_warps": 4},
        ),
    ],
    ids=["softmax"],
)
def test_kernels_of_the_repository_have_no_finding(
    source: str, signature: dict[str, str], constants: dict[str, object], options: dict[str, object]
) -> None:
    kernel = aotc.compile(source, signature=signature, constants=constants, **options)  # type: ignore[arg-type]
    assert failures(kernel.asm["sass"], kernel.asm["ptx"]) == []


# ---------------------------------------------------------------------------------- commit groups


def _groups(*sizes: int) -> str:
    """Return SASS with commit groups of some numbers of matrix instructions."""
    lines: list[str] = []
    for size in sizes:
        lines += ["HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24"] * (size - 1)
        lines += ["HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24, gsb0"]
    lines += ["WARPGROUP.DEPBAR.LE gsb0, 0x0", "EXIT"]
    return "\n".join(f"/*{16 * index:04x}*/ {line} ;" for index, line in enumerate(lines))


@pytest.mark.parametrize(
    ("sizes", "is_found"),
    [
        ((4, 2), False),
        ((2, 4), False),  # moved
        ((4, 4, 2), False),  # a loop is unrolled
        ((4, 3, 2), True),  # the same, and two are merged in the second copy
        ((3, 3), True),
        ((4,), True),
    ],
)
def test_commit_groups_have_all_their_matrix_instructions(
    sizes: tuple[int, ...], is_found: bool
) -> None:
    group = "wgmma.mma_async.a; " * 4 + "wgmma.commit_group; "
    ptx = group + "wgmma.mma_async.a; " * 2 + "wgmma.commit_group; wgmma.wait_group.sync.aligned 0;"
    kinds = [finding.kind for finding in failures(_groups(*sizes), ptx)]
    assert kinds == ["matrix instructions merged"] * is_found
