"""Caches of other autotuners become a tuning table; Triton's is written by Triton's own code."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from aotc.compiler import autotune_configs
from aotc.ir.expression import parse
from aotc.package.cover.choose import Refusal, choose, kernel_of
from aotc.package.imports.gpus import capability_of
from aotc.package.imports.read import read_file
from aotc.package.imports.table import Options, add_to, autotune_key, import_table
from aotc.package.manifest.read import load
from aotc.package.manifest.variant_grid import expand
from aotc.package.tuning.packing import fitted
from aotc.package.tuning.shapes import Launch
from aotc.package.tuning.table import Measurement, TuningTable
from aotc.package.tuning.text import read_tuning
from aotc.target import TARGETS

SOURCE = """
import triton
import triton.language as tl

@triton.autotune([triton.Config({"BLOCK": 64})], key=["M", "N", "CAUSAL"])
@triton.jit
def matmul(a, b, M, N, stride, CAUSAL: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(a, tl.load(b))

@triton.jit
def fused_moe_kernel(a, N, num_valid_tokens, BLOCK_SIZE_M: tl.constexpr, GROUP_SIZE_M: tl.constexpr):
    tl.store(a, N)

@triton.jit
def _helion_add(x, x_size_0, _BLOCK_SIZE_0: tl.constexpr):
    tl.store(x, x_size_0)
"""
MANIFEST = """
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "ops.py:matmul"
grid = ["1"]
[kernel.signature]
a = "*A"
b = "*B"
M = "i32"
N = "i32=256"
stride = "i32"
[kernel.types]
A = ["bf16", "fp16"]
B = ["bf16", "fp32"]
[kernel.choices]
CAUSAL = [true, false]
[kernel.configs]
BLOCK = [64, 128]
[[kernel]]
source = "ops.py:fused_moe_kernel"
grid = ["1"]
[kernel.signature]
a = "*bf16"
N = "i32"
num_valid_tokens = "i32"
[kernel.configs]
BLOCK_SIZE_M = [16, 64]
GROUP_SIZE_M = [1]
[[kernel]]
source = "ops.py:_helion_add"
grid = ["1"]
[kernel.signature]
x = "*fp32"
x_size_0 = "i32"
[kernel.configs]
_BLOCK_SIZE_0 = [128, 256]
"""


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(SOURCE)
    (tmp_path / "kernels.toml").write_text(MANIFEST)
    return tmp_path / "kernels.toml"


def config(block: int, warps: int = 4) -> dict[str, Any]:
    return {
        "kwargs": {"BLOCK": block}, "num_warps": warps, "num_ctas": 1, "num_stages": 3,
        "maxnreg": None, "pre_hook": None, "ir_override": None,
    }  # fmt: skip


def triton_file(folder: Path, key: list[Any], name: str = "matmul") -> Path:
    path = folder / f"{name}.autotune.json"
    inf = [float("inf")] * 3
    timings = [[config(64), [0.5, 0.4, 0.6]], [config(128, 8), [0.25, 0.2, 0.3]], [config(32), inf]]
    path.write_text(json.dumps({"key": key, "configs_timings": timings}))
    return path


def test_tritons_times_are_of_the_keys_names(manifest: Path, tmp_path: Path) -> None:
    """Dtypes decide the type variables, and a key with a choice's name decides the choice."""
    path = triton_file(tmp_path, [1000, 256, True, "torch.bfloat16", "torch.float32"])
    options = Options(gpu="NVIDIA H200")
    result = import_table(load(str(manifest)), read_file(path), options)
    assert result.notes == (
        "matmul: no config of the manifest is BLOCK = 128, num_warps = 8, num_stages = 3",
    )
    (tuning,) = result.table.kernels
    assert (tuning.kernel, tuning.target, tuning.gpu) == ("matmul", "sm_90a", "NVIDIA H200")
    assert tuning.configs == (
        {"BLOCK": 64},
        {"BLOCK": 128, "num_warps": 8, "num_stages": 3},
    )
    types, choices = {"A": "bf16", "B": "fp32"}, {"CAUSAL": True}
    assert tuning.measurements == (Measurement({"M": 1000}, types, choices, (0.5e-3, 0.25e-3)),)


@pytest.mark.parametrize(
    ("key", "name", "note"),
    [
        ([1000, 512, True], "matmul", "N is compiled in as 256, and was tuned for 512"),
        ([1000, 256, "no"], "matmul", "it was tuned for choices that are not built"),
        ([5, 256, True, "torch.int8", "torch.float32"], "matmul", "it was tuned for i8, fp32"),
        ([1000], "softmax", "no kernel of the manifest is softmax"),
        ([1, 2, 3, 4], "matmul", "its source has no @triton.autotune with this key"),
    ],
)
def test_what_the_manifest_does_not_build_is_told(
    manifest: Path, tmp_path: Path, key: list[Any], name: str, note: str
) -> None:
    path = triton_file(tmp_path, key, name)
    result = import_table(load(str(manifest)), read_file(path), Options())
    assert result.table.kernels == ()
    assert note in result.notes[0]


def test_vllms_choices_are_untimed(manifest: Path, tmp_path: Path, capsys: Any) -> None:
    """The caller names the kernel's argument for the number of tokens."""
    name = "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json"
    small = {"BLOCK_SIZE_M": 16, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 4}
    large = {**small, "BLOCK_SIZE_M": 64, "num_warps": 8}
    document = {"triton_version": "3.5.0", "1": small, "4096": large}
    (tmp_path / name).write_text(json.dumps(document))
    arguments = ["--set", "num_valid_tokens=M * 2", "--set", "N=2 * N"]
    command = ["tune", "import", str(tmp_path), "--kernel", "fused_moe_kernel", *arguments]
    assert cli.run(command) == 1  # for other weights
    assert "--dtype takes one of these: fp8_w8a8,block_shape=[128,128]" in capsys.readouterr().err
    command += ["--dtype", "fp8_w8a8,block_shape=[128,128]"]
    assert cli.run(command) == 0
    assert "kernels.tuning.toml: 2 launches imported" in capsys.readouterr().out
    (tuning,) = read_tuning(tmp_path / "kernels.tuning.toml").kernels
    assert tuning.gpu == "NVIDIA H100 80GB HBM3"
    assert {launch.key["num_valid_tokens"]: launch.seconds for launch in tuning.measurements} in (
        {2: (1e-6, None), 8192: (None, 1e-6)},
        {2: (None, 1e-6), 8192: (1e-6, None)},
    )
    assert {launch.key["N"] for launch in tuning.measurements} == {14336}


@pytest.mark.parametrize("explicit", [True, False])
def test_a_build_selects_what_was_chosen(manifest: Path, tmp_path: Path, explicit: bool) -> None:
    """Between the numbers of tokens the nearest; default entries may be left out."""
    name = "E=8,N=7168,device_name=NVIDIA_H200.json"
    sizes = {1: 16, 64: 64, 4096: 16}
    more = {"num_warps": 4, "num_stages": 3} if explicit else {}
    document = {
        str(m): {"BLOCK_SIZE_M": size, "GROUP_SIZE_M": 1, **more} for m, size in sizes.items()
    }
    (tmp_path / name).write_text(json.dumps(document))
    read = load(str(manifest))
    arguments = {"num_valid_tokens": parse("M"), "N": parse("N")}
    options = Options(kernel="fused_moe_kernel", arguments=arguments)
    result = import_table(read, read_file(tmp_path / name), options)
    assert result.notes == ()
    spec = read.kernel("fused_moe_kernel")
    kernel, _ = kernel_of(expand(spec, read.targets, autotune_configs))
    kernel = replace(kernel, selections=fitted(kernel, result.table))
    for tokens, size in ((1, 16), (3, 16), (60, 64), (64, 64), (100, 64), (3000, 16), (4096, 16)):
        launch = Launch(spec.name, {}, {}, {"N": 7168, "num_valid_tokens": tokens})
        chosen = choose(kernel, "sm_90a", launch, "NVIDIA H200")
        assert not isinstance(chosen, Refusal)
        assert dict(kernel.configs[chosen[0].config])["BLOCK_SIZE_M"] == size, tokens


def test_configs_of_other_gpus_are_left_out(manifest: Path, tmp_path: Path) -> None:
    document = json.dumps({"1": {"BLOCK_SIZE_M": 16, "GROUP_SIZE_M": 1}})
    gpus = ["AMD_Instinct_MI300X", "NVIDIA_A100-SXM4-80GB", "NVIDIA_H20"]
    paths = [tmp_path / f"N=512,K=7168,device_name={gpu}.json" for gpu in gpus]
    for path in paths:
        path.write_text(document)
    imported = [config for path in paths for config in read_file(path)]
    arguments = {"num_valid_tokens": parse("M * K"), "N": parse("N")}
    options = Options(kernel="fused_moe_kernel", arguments=arguments)
    result = import_table(load(str(manifest)), imported, options)
    others = "AMD Instinct MI300X, NVIDIA A100-SXM4-80GB"
    assert result.notes == (f"left out: configs of other GPUs than sm_90a's: {others}",)
    (tuning,) = result.table.kernels
    assert tuning.gpu == "NVIDIA H20"
    assert [launch.key for launch in tuning.measurements] == [{"num_valid_tokens": 7168, "N": 512}]


@pytest.mark.parametrize(
    ("gpu", "capability"),
    [
        ("NVIDIA H100 80GB HBM3", (9, 0)),
        ("NVIDIA GH200 480GB", (9, 0)),
        ("NVIDIA GB200", (10, 0)),
        ("NVIDIA B300 SXM6 AC", (10, 3)),
        ("NVIDIA GeForce RTX 5090", (12, 0)),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0)),
        ("NVIDIA GB10", (12, 1)),
        ("NVIDIA L40S", (8, 9)),
        ("NVIDIA A10G", (8, 6)),
        ("NVIDIA A100 80GB PCIe", (8, 0)),
        ("NVIDIA L20Y", None),
        ("AMD Radeon R9700", None),
        ("Tesla T4", None),
    ],
)
def test_capabilities_follow_from_names(gpu: str, capability: tuple[int, int] | None) -> None:
    assert capability_of(gpu) == capability
    stand_ins = {target.device_name: target for target in TARGETS.values()}
    for name, target in stand_ins.items():
        expected = capability_of(name)
        assert expected is None or target.runs_on(*expected), name


def test_helions_choice_needs_the_shapes_named(manifest: Path, tmp_path: Path) -> None:
    fields = {
        "specialization_key": "((torch.float32, 'cuda', (1024, 77), (77, 1)),)",
        "hardware": "NVIDIA H200",
    }
    document = {
        "config": json.dumps({"block_sizes": [128], "num_warps": 2, "indexing": ["pointer"]}),
        "key": {"type": "LooseAutotuneCacheKey", "fields": fields},
    }
    (tmp_path / "0a1b.best_config").write_text(json.dumps(document))
    command = ["tune", "import", str(tmp_path), "--kernel", "_helion_add"]
    assert cli.run(command) == 1
    assert cli.run([*command, "--set", "x_size_0=t0_0", "-o", "own.toml"]) == 0
    (tuning,) = read_tuning(tmp_path / "own.toml").kernels
    assert tuning.configs == ({"_BLOCK_SIZE_0": 128, "num_warps": 2},)
    assert tuning.gpu == "NVIDIA H200"
    assert tuning.measurements == (Measurement({"x_size_0": 1024}, {}, {}, (1e-6,)),)


def test_measured_launches_keep_their_times(manifest: Path, tmp_path: Path) -> None:
    (imported,) = read_file(
        triton_file(tmp_path, [64, 256, True, "torch.bfloat16", "torch.float32"])
    )
    table = import_table(load(str(manifest)), [imported], Options()).table
    (tuning,) = table.kernels
    (launch,) = tuning.measurements
    measured = replace(tuning, measurements=(replace(launch, seconds=(9.0, None)),))
    assert add_to(TuningTable((measured,)), table) == TuningTable((measured,))
    assert add_to(TuningTable(()), table) == table


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("matmul.autotune.json", "{}", "is not written by its autotuner: KeyError"),
        ("matmul.autotune.json", "[", "is not written by its autotuner: JSONDecodeError"),
        ("x.best_config", '{"config": 5}', "is not written by its autotuner: TypeError"),
        ("other.json", "{}", "expected configs of an autotuner"),
        ("E=1,N=2,device_name=A.json", "[]", "is not written by its autotuner: AttributeError"),
    ],
)
def test_mistakes_name_the_file(
    manifest: Path, tmp_path: Path, capsys: Any, name: str, content: str, expected: str
) -> None:
    (tmp_path / name).write_text(content)
    assert cli.run(["tune", "import", name]) == 1
    err = capsys.readouterr().err
    assert expected in err
    assert name in err


@pytest.mark.parametrize(
    ("decorator", "expected"),
    [
        ('triton.autotune(configs=[], key=["M", "N"])', ["M", "N"]),
        ("autotune(CONFIGS, ('M',), prune=1)", ["M"]),
        ("triton.autotune(configs=[], key=KEY)", None),
        ("triton.jit", None),
    ],
)
def test_the_key_is_that_of_the_source(tmp_path: Path, decorator: str, expected: Any) -> None:
    (tmp_path / "k.py").write_text(f"@{decorator}\ndef f(x):\n    pass\n")
    assert autotune_key(str(tmp_path / "k.py"), "f") == expected


def test_triton_itself_writes_such_a_file(tmp_path: Path) -> None:
    """Its own code, with a driver that only names a GPU."""
    pytest.importorskip("triton")
    program = """
import sys
import triton
from triton.runtime import autotuner
from triton.backends.compiler import GPUTarget

class Driver:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

class Active:
    active = Driver()

autotuner.driver = Active()
sys.path.insert(0, ".")
import ops
tuner = ops.matmul
configs = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=8)]

def bench():
    tuner.configs_timings = {configs[0]: [0.5, 0.4, 0.6], configs[1]: [0.25, 0.2, 0.3]}

tuner.check_disk_cache((1000, 256, True, "torch.bfloat16", "torch.float32"), configs, bench)
"""
    (tmp_path / "ops.py").write_text(SOURCE)
    environment = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
    (path,) = (tmp_path / "cache").rglob("*.autotune.json")
    (imported,) = read_file(path)
    assert imported.key == (1000, 256, True)
    assert imported.dtypes == ("torch.bfloat16", "torch.float32")
    assert [(settings["BLOCK"], seconds) for settings, seconds in imported.configs] == [
        (64, 0.5e-3),
        (128, 0.25e-3),
    ]
