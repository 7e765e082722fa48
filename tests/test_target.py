"""The table of targets, checked against the assembler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aotc.ir.diagnostics import Loc, ManifestError
from aotc.package.archive.index import parse_target as parse_archived
from aotc.target import TARGET_SETS, TARGETS, Feature, Target, best_for, parse, parse_set

# One instruction for each feature; the frame around it declares the names used.
_INSTRUCTIONS: dict[Feature, str] = {
    Feature.TF32_MMA: "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
    "{f0,f1,f2,f3},{r0,r1,r2,r3},{r4,r5},{f0,f1,f2,f3};",
    Feature.BF16_MMA: "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
    "{f0,f1,f2,f3},{r0,r1,r2,r3},{r4,r5},{f0,f1,f2,f3};",
    Feature.FP64_MMA: "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 "
    "{g0,g1,g2,g3},{g0,g1},{g0},{g0,g1,g2,g3};",
    Feature.FP8_MMA: "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
    "{f0,f1,f2,f3},{r0,r1,r2,r3},{r4,r5},{f0,f1,f2,f3};",
    Feature.FP8_CVT: "cvt.rn.satfinite.e4m3x2.f32 h0,f0,f1;",
    Feature.FP4_CVT: "cvt.rn.satfinite.e2m1x2.f32 b0,f0,f1;",
    Feature.BF16_ARITH: "add.rn.bf16x2 r0,r1,r2; ex2.approx.ftz.bf16x2 r0,r1;",
    Feature.CP_ASYNC: "cp.async.cg.shared.global [s],[d1],16;",
    Feature.LDMATRIX: "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r0,r1,r2,r3},[s];",
    Feature.STMATRIX: "stmatrix.sync.aligned.m8n8.x4.shared.b16 [s],{r0,r1,r2,r3};",
    Feature.MBARRIER_TX: "mbarrier.try_wait.parity.shared.b64 p,[s],r0;",
    Feature.TMA: "cp.async.bulk.tensor.2d.shared::cluster.global"
    ".mbarrier::complete_tx::bytes [s],[d0,{r0,r1}],[s];"
    "tensormap.replace.tile.global_address.global.b1024.b64 [d1],d0;",
    Feature.CLUSTERS: "barrier.cluster.arrive.aligned; mapa.shared::cluster.u32 r0,r1,r2;",
    Feature.WGMMA: "wgmma.fence.sync.aligned;",
    Feature.SETMAXNREG: "setmaxnreg.inc.sync.aligned.u32 232;",
    Feature.TCGEN05: "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s],32;",
    Feature.BLOCK_SCALED_MMA: "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X"
    ".m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0 {f0,f1,f2,f3},{r0,r1,r2,r3},{r4,r5},"
    "{f0,f1,f2,f3},r6,{h0,h1},r7,{h0,h1};",
    Feature.WIDE_GLOBAL: "ld.global.v8.f32 {f0,f1,f2,f3,f4,f5,f6,f7},[d1];",
    Feature.FP32X2: "fma.rn.f32x2 d0,d1,d2,d2;",
    Feature.MAX3: "max.f32 f0,f1,f2,f3;",
    Feature.REDUX_FP32: "redux.sync.max.f32 f0,f1,-1;",
    Feature.RED_VECTOR: "red.global.add.v4.f32 [d1],{f0,f1,f2,f3};",
    Feature.BF16_ATOMICS: "red.global.add.noftz.bf16x2 [d1],r0;",
    Feature.PDL: "griddepcontrol.wait;",
    Feature.ELECT: "elect.sync r0|p,-1;",
}

_FRAME = """\
.version {version}
.target {target}
.address_size 64
.global .align 128 .b8 g[1024];
.visible .entry k() {{
  .reg .b64 d<3>; .reg .b32 r<8>; .reg .b16 h<2>; .reg .b8 b0; .reg .f32 f<8>; .reg .f64 g<4>; .reg .pred p;
  .shared .align 128 .b8 s[{shared_bytes}];
  mov.u64 d0, g; cvta.to.global.u64 d1, d0;
  {instruction}
  st.shared.u32 [s], r0; st.global.f32 [d1+4], f0; ret;
}}
"""


@pytest.fixture(scope="session")
def ptxas() -> Path:
    """Return the assembler of the installed wheel."""
    roots = [Path(entry) / "nvidia" for entry in sys.path if (Path(entry) / "nvidia").is_dir()]
    paths = sorted(path for root in roots for path in root.glob("cu13/bin/ptxas"))
    assert paths, "the nvidia-cuda-nvcc wheel is a dependency of the compiler"
    return paths[0]


def _assemble(
    ptxas: Path, tmp_path: Path, target: Target, instruction: str = "", shared_bytes: int = 1024
) -> subprocess.CompletedProcess[str]:
    version = "{}.{}".format(*target.ptx_version)
    source = tmp_path / "probe.ptx"
    source.write_text(
        _FRAME.format(
            version=version,
            target=target.name,
            instruction=instruction,
            shared_bytes=shared_bytes,
        )
    )
    command = [ptxas, "-arch", target.name, source, "-o", tmp_path / "probe.cubin"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_feature_has_an_instruction() -> None:
    assert set(_INSTRUCTIONS) == set(Feature)


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_ptxas_accepts_all_claimed_features(target: Target, ptxas: Path, tmp_path: Path) -> None:
    claimed = "\n".join(_INSTRUCTIONS[f] for f in Feature if f in target.features)
    process = _assemble(ptxas, tmp_path, target, claimed)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_ptxas_refuses_every_unclaimed_feature(target: Target, ptxas: Path, tmp_path: Path) -> None:
    missing = [feature for feature in Feature if feature not in target.features]
    accepted = [
        feature.name
        for feature in missing
        if _assemble(ptxas, tmp_path, target, _INSTRUCTIONS[feature]).returncode == 0
    ]
    assert accepted == []


@pytest.mark.parametrize("name", ["sm_90a", "sm_100a", "sm_103a", "sm_120a"])
def test_shared_limit_is_the_assemblers(name: str, ptxas: Path, tmp_path: Path) -> None:
    # Older targets cap static shared memory at 48 KiB, so ptxas cannot tell their limit.
    target = TARGETS[name]
    at_limit = _assemble(ptxas, tmp_path, target, shared_bytes=target.max_shared_bytes)
    beyond = _assemble(ptxas, tmp_path, target, shared_bytes=target.max_shared_bytes + 128)
    assert at_limit.returncode == 0, at_limit.stderr
    assert "too much shared data" in beyond.stderr + beyond.stdout


@pytest.mark.parametrize("target", [t for t in TARGETS.values() if not t.lowered_as], ids=str)
def test_llvm_emits_the_version_and_target(target: Target) -> None:
    # In its own process: LLVM ends the process on too low a version.
    script = f"""
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
module = llvm.parse_assembly('target triple = "nvptx64-nvidia-cuda"')
machine = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(
    cpu={target.name!r}, features={target.llvm_features!r}, opt=2)
print(machine.emit_assembly(module))
"""
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    assert ".version {}.{}\n".format(*target.ptx_version) in process.stdout
    assert f".target {target.name}\n" in process.stdout


@pytest.mark.parametrize("target", [t for t in TARGETS.values() if t.lowered_as], ids=str)
def test_a_sibling_has_the_same_features(target: Target) -> None:
    sibling = TARGETS[target.lowered_as]
    assert sibling.features == target.features
    assert (sibling.major, sibling.lowered_as) == (target.major, "")


def test_table_is_keyed_and_ordered_by_architecture() -> None:
    assert list(TARGETS) == [
        "sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_90a", "sm_100a", "sm_100f", "sm_103a", "sm_107a",
        "sm_110a", "sm_110f", "sm_120a", "sm_120f", "sm_121a",
    ]  # fmt: skip
    arches = [target.arch for target in TARGETS.values()]
    assert arches == sorted(arches)
    for name, target in TARGETS.items():
        assert name == f"sm_{target.arch}{target.variant}"


@pytest.mark.parametrize(
    ("name", "capability", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (10, 0), False),
        ("sm_100a", (10, 3), False),
        ("sm_103a", (10, 0), False),
        ("sm_120a", (12, 1), False),
        ("sm_100f", (10, 0), True),
        ("sm_100f", (10, 7), True),
        ("sm_100f", (11, 0), False),
        ("sm_110f", (11, 0), True),
        ("sm_120f", (12, 1), True),
        ("sm_80", (8, 7), False),
        ("sm_86", (8, 8), False),
        ("sm_87", (8, 7), True),
        ("sm_87", (8, 9), False),
    ],
)
def test_family_rule(name: str, capability: tuple[int, int], *, runs: bool) -> None:
    assert TARGETS[name].runs_on(*capability) is runs
    assert parse_archived(name).runs_on(*capability) is runs


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((8, 0), "sm_80"),
        ((8, 7), "sm_87"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((10, 1), "sm_100f"),
        ((10, 7), "sm_107a"),
        ((11, 0), "sm_110a"),
        ((12, 1), "sm_121a"),
        ((12, 3), "sm_120f"),
    ],
)
def test_the_most_specific_target_is_best(capability: tuple[int, int], name: str) -> None:
    best = best_for(*capability)
    assert best is not None
    assert best.name == name


def test_no_target_is_best_for_other_gpus() -> None:
    assert best_for(7, 5) is None
    assert best_for(13, 0) is None


@pytest.mark.parametrize("name", TARGET_SETS)
def test_a_set_has_targets_of_the_table(name: str) -> None:
    assert [target.name for target in parse_set(name)] == list(TARGET_SETS[name])
    assert len(set(TARGET_SETS[name])) == len(TARGET_SETS[name])


def test_all_targets_are_twelve_gpus() -> None:
    assert len(parse_set("all")) == 12
    assert parse_set("sm_100f") == (TARGETS["sm_100f"],)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("hopper", "write 'sm_90a'"),
        ("Thor", "write 'sm_110a'"),
        ("blackwell", "write 'sm_100a' or 'sm_120a'"),
        ("H100", "write 'sm_90a'"),
        ("5090", "write 'sm_120a' or 'sm_120f'"),
        ("sm_75", "no target is for that GPU; the oldest is 'sm_80'"),
        ("datacentre", "did you mean 'datacenter'?"),
        ("121", "did you mean 'sm_121a'?"),
    ],
)
def test_a_remedy_names_a_gpu_of_the_same_generation(name: str, remedy: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_set(name)
    assert caught.value.remedy == remedy


def test_widest_global_access() -> None:
    assert TARGETS["sm_90a"].max_global_access_bytes == 16
    assert TARGETS["sm_100a"].max_global_access_bytes == 32


def test_parse_returns_the_row() -> None:
    assert parse("sm_90a") is TARGETS["sm_90a"]


@pytest.mark.parametrize(
    ("name", "suggestion"), [("sm_90", "'sm_90a'"), ("sm90a", "'sm_90a'"), ("sm_120", "'sm_120a'")]
)
def test_unknown_target_names_the_nearest(name: str, suggestion: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(name, Loc("kernels.toml", 4, 12))
    assert f"got {name!r}" in caught.value.message
    assert suggestion in caught.value.remedy
    assert "kernels.toml:4:13" in str(caught.value)


def test_far_off_target_lists_all() -> None:
    with pytest.raises(ManifestError) as caught:
        parse("gfx942")
    assert caught.value.remedy == ""
    assert "sm_103a" in caught.value.message


def test_excluding_switches_features_off() -> None:
    target = parse("sm_90a").excluding(["wgmma", "stmatrix"]).excluding(["wgmma"])
    assert TARGETS["sm_90a"].features & ~target.features == Feature.WGMMA | Feature.STMATRIX
    assert (target.name, target.without) == ("sm_90a", ("stmatrix", "wgmma"))
    assert parse("sm_90a").excluding([]) == TARGETS["sm_90a"]


def test_a_target_may_lack_what_it_is_to_do_without() -> None:
    target = parse("sm_80").excluding(["wgmma"])
    assert (target.features, target.without) == (TARGETS["sm_80"].features, ("wgmma",))


def test_a_mistaken_feature_names_the_nearest() -> None:
    with pytest.raises(ManifestError) as caught:
        parse("sm_90a").excluding(["wgma"], Loc("kernels.toml", 5, 12))
    assert "expected a feature to do without (wgmma, " in caught.value.message
    assert "'wgmma'" in caught.value.remedy
    assert "kernels.toml:5:13" in str(caught.value)


@pytest.mark.parametrize(
    ("num_warps", "registers", "ctas"),
    [(8, 112, 2), (9, 112, 1), (9, 96, 2), (4, 128, 4), (5, 112, 3), (17, 112, 0), (17, 96, 1)],
)
def test_an_sm_holds_whole_warps_in_each_partition(
    num_warps: int, registers: int, ctas: int
) -> None:
    assert TARGETS["sm_90a"].ctas_by_registers(num_warps, registers) == ctas


@pytest.mark.parametrize(
    ("num_warps", "registers"), [(1, 255), (8, 255), (9, 168), (12, 168), (16, 128), (17, 96)]
)
def test_a_thread_has_registers_that_one_cta_can_have(num_warps: int, registers: int) -> None:
    target = TARGETS["sm_90a"]
    assert target.max_registers_of(num_warps) == registers
    assert target.ctas_by_registers(num_warps, registers) >= 1


def test_a_toolchain_is_of_the_table_and_knows_the_gpu() -> None:
    assert TARGETS["sm_90a"].assembled_by("12.9").toolchain == "12.9"
    assert TARGETS["sm_90a"].toolchain == "13.5"
    with pytest.raises(ManifestError, match=r"expected a toolchain \(12.9, 13.5\), got '12.8'"):
        TARGETS["sm_90a"].assembled_by("12.8")
    with pytest.raises(ManifestError, match="that the ptxas of CUDA 12.9 knows") as error:
        TARGETS["sm_110a"].assembled_by("12.9")
    assert error.value.remedy == "toolchain = '13.5', or leave it out"
