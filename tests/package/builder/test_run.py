"""Builds from manifest to files, with a compiler for empty kernels."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotc.compiler import CompileRequest
from aotc.ir.diagnostics import ManifestError
from aotc.ir.expression import to_text
from aotc.package.archive import file as archive
from aotc.package.archive.index import Archive
from aotc.package.builder.run import BuildOptions, BuildResult, build, describe_result
from aotc.package.builder.workers import Outcome
from aotc.package.cache.store import Cache, CachedKernel
from aotc.package.manifest.read import load
from tests.support.fake_compiler import compile_empty, make_cubin

FILES = ["demo.aotc", "demo.h", "demo.sources.json", "libdemo.a"]

_SOURCE = """\
def add(
    x_ptr, n, eps, BLOCK: tl.constexpr, SHARED: tl.constexpr = 0, MODE: tl.constexpr = "ok",
    SPILL: tl.constexpr = 0, STACK: tl.constexpr = 0,
):
    pass

def scale(x_ptr, n, one, half, MODE: tl.constexpr = "ok"):
    pass
"""

_MANIFEST = """\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a", "sm_80"]

[[kernel]]
source = "k.py:add"
grid = ["cdiv(n, BLOCK * num_warps)"]
[kernel.signature]
x_ptr = "*T:16"
n = "i32:16?"
eps = "fp32"
[kernel.types]
T = ["fp16", "fp32"]
[kernel.constants]
BLOCK = 64
[kernel.configs]
num_warps = [4, 8]

[[kernel]]
source = "k.py:scale"
[kernel.signature]
x_ptr = "*fp32"
n = "i64"
one = "i32=1"
half = "fp32=0.5"
"""


class _Recorder:
    def __init__(self) -> None:
        self.counts: tuple[int, int] | None = None
        self.outcomes: list[Outcome] = []
        self.warnings: list[str] = []

    def started(self, num_variants: int, num_cached: int) -> None:
        self.counts = (num_variants, num_cached)

    def finished(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def warned(self, message: str) -> None:
        self.warnings.append(message)


class _Project:
    """A folder with a manifest, and builds of it in threads of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recorder = _Recorder()
        self.output = folder / "dist"
        (folder / "k.py").write_text(_SOURCE)
        self.write(_MANIFEST)

    def write(self, manifest: str) -> None:
        (self.folder / "kernels.toml").write_text(manifest)

    def build(self, *, jobs: int = 2, **options: Any) -> BuildResult:
        self.recorder = _Recorder()
        manifest = load(str(self.folder / "kernels.toml"))
        chosen = replace(BuildOptions(self.output, jobs), **options)
        cache = Cache(self.folder / "cache", "c", self.recorder.warned)
        with ThreadPoolExecutor(jobs) as executor:
            return build(
                manifest,
                chosen,
                self.recorder,
                cache=cache,
                compiler=compile_empty,
                executor=executor,
            )

    def files(self) -> dict[str, bytes]:
        if not self.output.exists():
            return {}
        return {path.name: path.read_bytes() for path in sorted(self.output.iterdir())}


@pytest.fixture
def project(tmp_path: Path) -> _Project:
    return _Project(tmp_path)


def test_writes_files_that_agree(project: _Project) -> None:
    result = project.build()
    assert result.failures == ()
    assert [path.name for path in result.files] == FILES
    content = archive.read(project.output / "demo.aotc")
    assert [kernel.name for kernel in content.kernels] == ["add", "scale"]
    assert result.num_variants == len(content.kernels[0].variants) + 2
    assert len(content.kernels[0].variants) == 2 * 2 * 2 * 2
    files = project.files()
    assert files["demo.aotc"] in files["libdemo.a"]
    assert b"demo_add(" in files["demo.h"]
    assert content.toolchain.startswith("aotc ")


def test_records_say_what_the_manifest_and_the_compiler_said(project: _Project) -> None:
    project.build()
    add, scale = archive.read(project.output / "demo.aotc").kernels
    assert [(p.name, p.kind, p.element, p.divisibility, p.is_optional) for p in add.params] == [
        ("x_ptr", "pointer", "T", 16, False),
        ("n", "scalar", "i32", 16, True),
        ("eps", "scalar", "fp32", 1, False),
    ]
    assert [guard.text for guard in add.guards] == [
        "x_ptr is 16-byte aligned",
        "n is a multiple of 16",
    ]
    assert add.constants == (("BLOCK", 64),)
    first, second = add.variants[:2]
    assert (first.target, first.types, first.guards) == ("sm_80", ("fp16",), (0, 1))
    assert [to_text(dimension) for dimension in first.grid] == ["cdiv(n, 256)"]
    assert [to_text(dimension) for dimension in second.grid] == ["cdiv(n, 512)"]
    assert (first.num_threads, second.num_threads) == (128, 256)
    assert [(p.offset, p.size, p.index) for p in first.cubin_params] == [
        (0, 8, 0),
        (8, 4, 1),
        (12, 4, 2),
    ]
    assert first.remarks == ("k.py:1:1: nothing to do",)
    # A fixed value of any type is no argument of a launch.
    assert [param.name for param in scale.params] == ["x_ptr", "n"]
    assert scale.guards == ()
    assert dict(scale.constants) == {"one": 1, "half": 0.5}
    assert (scale.grid_rank, scale.configs) == (0, ((),))


def test_nothing_changed_compiles_and_writes_nothing(project: _Project) -> None:
    first = project.build()
    before = {path: path.stat().st_mtime_ns for path in first.files}
    assert project.recorder.counts == (18, 0)
    second = project.build()
    assert project.recorder.counts == (18, 18)
    assert project.recorder.outcomes == []
    assert (second.num_compiled, second.num_cached) == (0, 18)
    assert {path: path.stat().st_mtime_ns for path in second.files} == before


def test_changed_source_compiles_what_depends_on_it(project: _Project) -> None:
    project.build()
    (project.folder / "other.py").write_text(_SOURCE)
    project.write(_MANIFEST.replace("k.py:scale", "other.py:scale"))
    assert project.build().num_compiled == 2
    (project.folder / "k.py").write_text(_SOURCE + "\n")
    assert project.build().num_compiled == 16


@pytest.mark.parametrize("jobs", [1, 3])
def test_any_number_of_jobs_writes_the_same_bytes(
    project: _Project, tmp_path: Path, jobs: int
) -> None:
    project.build()
    other = _Project(tmp_path)
    other.output = tmp_path / "again"
    (tmp_path / "cache").rename(tmp_path / "old-cache")
    other.build(jobs=jobs)
    assert other.files() == project.files()


def test_another_folder_gives_the_same_bytes(project: _Project, tmp_path: Path) -> None:
    project.build()
    (tmp_path / "elsewhere").mkdir()
    other = _Project(tmp_path / "elsewhere")
    other.build()
    assert other.files() == project.files()


def test_processes_write_the_same_bytes(project: _Project) -> None:
    project.build()
    expected = project.files()
    recorder = _Recorder()
    output = project.folder / "again"
    manifest = load(str(project.folder / "kernels.toml"))
    build(manifest, BuildOptions(output, 2), recorder, cache=None, compiler=compile_empty)
    assert {path.name: path.read_bytes() for path in output.iterdir()} == expected
    assert len(recorder.outcomes) == 18


def test_targets_and_kernels_can_be_chosen(project: _Project) -> None:
    result = project.build(targets=("sm_89",), kernels=("scale",))
    assert result.archive is not None
    assert result.archive.targets == ("sm_89",)
    assert [kernel.name for kernel in result.archive.kernels] == ["scale"]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"kernels": ("scael",)}, "did you mean 'scale'?"),
        ({"targets": ("sm_90",)}, "did you mean 'sm_90a'?"),
    ],
)
def test_unknown_choices_name_the_nearest(
    project: _Project, options: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        project.build(**options)
    assert caught.value.remedy == remedy


def test_a_failure_keeps_the_old_files_and_reports_all(project: _Project) -> None:
    project.build()
    before = project.files()
    broken = _MANIFEST.replace("BLOCK = 64", 'BLOCK = 32\nMODE = "user_error"')
    broken = broken.replace('half = "fp32=0.5"', 'half = "fp32=0.25"')
    project.write(broken)
    result = project.build()
    assert (result.archive, result.files) == (None, ())
    assert len(result.failures) == 16
    assert result.failures[0].label == "add sm_90a T=fp16 n:16 num_warps=4"
    assert not any(failure.is_bug for failure in result.failures)
    # The other kernel was compiled all the same, and is cached.
    assert result.num_compiled == 2
    assert project.files() == before


def test_keep_going_writes_what_there_is(project: _Project) -> None:
    project.write(_MANIFEST.replace("BLOCK = 64", 'BLOCK = 64\nMODE = "bug"'))
    result = project.build(keep_going=True)
    assert all(failure.is_bug for failure in result.failures)
    assert result.archive is not None
    assert [kernel.name for kernel in result.archive.kernels] == ["scale"]
    assert (project.output / "demo.aotc").exists()


def test_nothing_left_writes_nothing_even_when_kept_going(project: _Project) -> None:
    project.write(_MANIFEST.replace("BLOCK = 64", 'BLOCK = 64\nMODE = "bug"'))
    result = project.build(keep_going=True, kernels=("add",))
    assert result.files == ()
    assert project.files() == {}


def test_a_mistake_in_one_kernels_grid_does_not_stop_the_other(project: _Project) -> None:
    project.write(_MANIFEST.replace("BLOCK * num_warps", "BLOCK // (num_warps - 4)"))
    result = project.build()
    assert [failure.label for failure in result.failures] == ["add"]
    assert "kernels.toml:8:24: error: division by zero" in result.failures[0].report
    assert result.num_compiled == 2


def test_configs_beyond_the_shared_memory_are_dropped_by_target(project: _Project) -> None:
    sizes = "[kernel.configs]\nSHARED = [1024, 200000]\n"
    project.write(_MANIFEST.replace("[kernel.configs]\n", sizes))
    result = project.build()
    assert result.failures == ()
    assert len(result.dropped) == 8
    assert result.dropped[0] == (
        "add sm_80 T=fp16 n:16 SHARED=200000 num_warps=4: "
        "200000 bytes of shared memory, the limit is 166912"
    )
    add = archive.read(project.output / "demo.aotc").kernels[0]
    shared_bytes = {(v.target, v.dynamic_shared_bytes) for v in add.variants}
    assert shared_bytes == {("sm_80", 1024), ("sm_90a", 1024), ("sm_90a", 200000)}


def test_no_config_that_fits_is_an_error(project: _Project) -> None:
    project.write(_MANIFEST.replace("[kernel.configs]\n", "[kernel.configs]\nSHARED = [200000]\n"))
    result = project.build()
    assert result.files == ()
    (failure,) = result.failures
    assert "expected a config of 'add' that sm_80 can hold, got none" in failure.report
    assert "200000 bytes of shared memory, the limit is 166912" in failure.report
    assert "kernels.toml:17:9" in failure.report


def test_what_the_compiler_finds_no_room_for_is_dropped(project: _Project) -> None:
    modes = '[kernel.configs]\nMODE = ["ok", "misfit"]\n'
    project.write(_MANIFEST.replace("[kernel.configs]\n", modes))
    result = project.build(targets=("sm_80",))
    assert result.failures == ()
    assert len(result.dropped) == 8
    assert result.dropped[0] == (
        "add sm_80 T=fp16 n:16 MODE=misfit num_warps=4: "
        "3 moons, the limit is 1; what may help: fewer moons"
    )
    assert len(archive.read(project.output / "demo.aotc").kernels[0].variants) == 8
    before = project.files()
    again = project.build(targets=("sm_80",))
    assert (again.dropped, again.num_compiled, project.files()) == (result.dropped, 0, before)


def test_nothing_that_has_room_is_an_error(project: _Project) -> None:
    project.write(_MANIFEST.replace("BLOCK = 64", 'BLOCK = 64\nMODE = "misfit"'))
    result = project.build()
    assert result.files == ()
    (failure,) = result.failures
    assert not failure.is_bug
    assert "expected a config of 'add' that sm_90a can hold, got none" in failure.report
    assert "3 moons, the limit is 1; what may help: fewer moons" in failure.report


@pytest.mark.parametrize("key", ["SPILL", "STACK"])
def test_what_spills_more_than_allowed_is_dropped(project: _Project, key: str) -> None:
    sizes = f"[kernel.configs]\n{key} = [0, 256, 260]\n"
    project.write(_MANIFEST.replace("[kernel.configs]\n", sizes))
    result = project.build(targets=("sm_80",))
    assert len(result.dropped) == 8
    # Without being asked; kept variants with spills are included, a stack that fits is not.
    warnings = [line for line in project.recorder.warnings if f"{key}=260" in line]
    assert len(warnings) == 8
    assert all(" left out, " in line for line in warnings)
    assert len(project.recorder.warnings) == (16 if key == "SPILL" else 8)
    spilled, stack = (260, 0) if key == "SPILL" else (0, 260)
    text = f"{spilled} bytes of registers spilled, {stack} of stack; the limit spill_bytes is 256"
    assert result.dropped[0] == f"add sm_80 T=fp16 n:16 {key}=260 num_warps=4: {text}"
    add = archive.read(project.output / "demo.aotc").kernels[0]
    bytes_by_variant = {v.spill_bytes if key == "SPILL" else v.stack_bytes for v in add.variants}
    assert bytes_by_variant == {0, 256}


def test_the_manifest_may_allow_more(project: _Project) -> None:
    strict = "[kernel.limits]\nstrict = true\n[kernel.types]"
    spilling = _MANIFEST.replace("BLOCK = 64", "BLOCK = 64\nSPILL = 1000", 1).replace(
        "[kernel.types]", strict, 1
    )
    project.write(spilling)
    result = project.build(targets=("sm_80",))
    assert "1000 bytes of registers spilled" in result.failures[0].report
    allowed = spilling.replace("strict = true", "strict = true\nspill_bytes = 1000")
    project.write(allowed)
    result = project.build(targets=("sm_80",))
    assert result.failures == result.dropped == ()
    assert result.num_compiled == 0, "what is allowed to ship is no matter of the compile"


def test_of_configs_beyond_the_limit_the_one_that_spills_least_is_kept(project: _Project) -> None:
    sizes = "[kernel.configs]\nSPILL = [900, 700, 896]\n"
    project.write(_MANIFEST.replace("[kernel.configs]\n", sizes))
    result = project.build(targets=("sm_80",), kernels=("add",))
    assert result.failures == ()
    add = archive.read(project.output / "demo.aotc").kernels[0]
    # One for each combination of dtypes and promises, of 6 configs.
    assert [variant.spill_bytes for variant in add.variants] == [700] * 4
    assert len(result.dropped) == 20
    warnings = [line for line in project.recorder.warnings if ": kept, " in line]
    assert len(warnings) == 4
    assert warnings[0] == (
        "add sm_80 T=fp16 n:16 SPILL=700 num_warps=4: kept, as no config spills less, "
        "700 bytes of registers spilled, 0 of stack; the limit spill_bytes is 256"
    )


@pytest.mark.parametrize(
    ("where", "spills"),
    [
        # The config of 8 warps serves all launches of the one of 4 warps, or none of them.
        ("num_warps == 8 or n > 64", [0] * 4),
        ("num_warps == 4 and n > 64 or num_warps == 8 and n <= 64", [900, 0] * 4),
    ],
)
def test_a_config_that_spills_is_kept_for_what_no_other_serves(
    project: _Project, where: str, spills: list[int]
) -> None:
    first = "[[kernel.config]]\nSPILL = 900\nnum_warps = 4\n"
    second = "[[kernel.config]]\nSPILL = 0\nnum_warps = 8\n"
    manifest = _MANIFEST.replace("[kernel.configs]\nnum_warps = [4, 8]\n", first + second, 1)
    project.write(
        manifest.replace("[kernel.signature]", f'where = "{where}"\n[kernel.signature]', 1)
    )
    result = project.build(targets=("sm_80",), kernels=("add",))
    assert result.failures == ()
    add = archive.read(project.output / "demo.aotc").kernels[0]
    assert [variant.spill_bytes for variant in add.variants] == spills


def test_a_kernel_is_built_for_its_own_targets(project: _Project) -> None:
    header = 'targets = ["sm_90a"]\nsource = "k.py:scale"'
    project.write(_MANIFEST.replace('source = "k.py:scale"', header))
    result = project.build()
    assert result.failures == ()
    add, scale = archive.read(project.output / "demo.aotc").kernels
    assert (add.targets, scale.targets) == (("sm_80", "sm_90a"), ("sm_90a",))
    project.build(targets=("sm_80",))
    kernels = archive.read(project.output / "demo.aotc").kernels
    assert [(kernel.name, kernel.targets) for kernel in kernels] == [("add", ("sm_80",))]
    with pytest.raises(ManifestError, match="expected a target of 'scale', got sm_80"):
        project.build(targets=("sm_80",), kernels=("scale",))


def test_a_variant_of_each_kernel_and_target_is_compiled_first(project: _Project) -> None:
    project.write(_MANIFEST)
    result = project.build(jobs=1)
    first = [ran.label.split()[:2] for ran in result.ran[:4]]
    assert first == [[k, t] for k in ("add", "scale") for t in ("sm_90a", "sm_80")]
    assert len(result.ran) == len({ran.label for ran in result.ran}) == 18


def test_what_spills_is_always_said(project: _Project) -> None:
    sizes = "[kernel.configs]\nSPILL = [0, 8, 300]\n"
    project.write(_MANIFEST.replace("[kernel.configs]\n", sizes))
    for _ in range(2):  # compiled, and from the cache
        project.build(targets=("sm_80",), kernels=("add",))
        assert len(project.recorder.warnings) == 16
        assert project.recorder.warnings[:2] == [
            "add sm_80 T=fp16 n:16 SPILL=8 num_warps=4: 8 bytes of registers spilled, 0 of stack",
            "add sm_80 T=fp16 n:16 SPILL=8 num_warps=8: 8 bytes of registers spilled, 0 of stack",
        ]
        assert project.recorder.warnings[2] == (
            "add sm_80 T=fp16 n:16 SPILL=300 num_warps=4: left out, "
            "300 bytes of registers spilled, 0 of stack"
        )


def test_what_ptxas_warns_of_is_always_said(project: _Project) -> None:
    project.write(_MANIFEST.replace("BLOCK = 64", 'BLOCK = 64\nMODE = "serialized"'))
    project.build(targets=("sm_80",), kernels=("add",))
    assert len(project.recorder.warnings) == 8
    first = "add sm_80 T=fp16 n:16 num_warps=4: (C7510) wgmma is serialized"
    assert project.recorder.warnings[0] == first


@pytest.mark.parametrize(
    ("mode", "remark"), [("hazard", "too early"), ("crash", "assembled with -O1")]
)
def test_that_a_fallback_was_taken_is_always_said(
    project: _Project, mode: str, remark: str
) -> None:
    """By the build that compiles a kernel and by builds served from the cache."""
    project.write(_MANIFEST.replace("BLOCK = 64", f'BLOCK = 64\nMODE = "{mode}"'))
    warnings: list[list[str]] = []
    for _ in range(2):
        project.build(targets=("sm_80",), kernels=("add",))
        warnings.append(list(project.recorder.warnings))
    assert len(warnings[0]) == 8
    assert warnings[0][0] == f"add sm_80 T=fp16 n:16 num_warps=4: k.py:1:1: {remark}"
    assert warnings[0] == warnings[1]


def test_the_same_compile_is_done_once(project: _Project) -> None:
    twice = _MANIFEST + '\n[[kernel]]\nname = "again"\n' + _MANIFEST.split("[[kernel]]\n")[2]
    project.write(twice)
    result = project.build()
    assert result.num_compiled == 18
    assert project.recorder.counts == (18, 0)
    assert result.num_variants == 20


def test_cubins_can_have_frames_of_their_own(
    project: _Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped: list[bool] = []
    encode = archive.encode

    def asking(content: Archive, *, is_grouped: bool, **options: Any) -> bytes:
        grouped.append(is_grouped)
        return encode(content, is_grouped=is_grouped, **options)

    monkeypatch.setattr(archive, "encode", asking)
    project.build()
    project.build(has_shared_frames=False)
    assert grouped == [True, False]


def test_library_is_for_the_host_asked_for(project: _Project) -> None:
    project.build(host="x86_64")
    intel = project.files()["libdemo.a"]
    project.build(host="aarch64")
    arm = project.files()["libdemo.a"]
    machines = [data[data.find(b"\x7fELF") + 18] for data in (intel, arm)]
    assert machines == [62, 183]


def test_unknown_host_is_the_users_mistake(project: _Project) -> None:
    with pytest.raises(ManifestError, match=r"a host \(x86_64 or aarch64\), got 'riscv64'"):
        project.build(host="riscv64")
    assert project.recorder.counts is None
    assert project.files() == {}


def test_output_that_is_a_file_is_the_users_mistake(project: _Project) -> None:
    project.output.write_text("here already")
    result = project.build()
    (failure,) = result.failures
    assert not failure.is_bug
    assert "cannot make the folder" in failure.report


def test_disk_full_leaves_the_old_files(project: _Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.build()
    before = project.files()
    project.write(_MANIFEST.replace("BLOCK = 64", "BLOCK = 128"))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = project.build()
    assert not result.failures[0].is_bug
    assert "No space left on device" in result.failures[0].report
    assert project.files() == before


def test_sources_say_what_kernels_were_built_of(project: _Project) -> None:
    project.build()
    document = json.loads(project.files()["demo.sources.json"])
    digest = hashlib.sha256((project.folder / "k.py").read_bytes()).hexdigest()
    assert document["archive_sha256"] == hashlib.sha256(project.files()["demo.aotc"]).hexdigest()
    assert document["kernels"]["scale"] == {
        "function": "scale", "files": [["k.py", digest]], "functions": {},
    }  # fmt: skip


def test_result_as_data(project: _Project) -> None:
    project.write(_MANIFEST.replace("BLOCK = 64", 'BLOCK = 64\nMODE = "user_error"'))
    result = project.build(keep_going=True)
    data = json.loads(json.dumps(describe_result(result, ["a warning"])))
    assert data["status"] == "failed"
    assert [Path(path).name for path in data["files"]] == FILES
    assert (data["variants"], data["compiled"], data["cached"]) == (18, 2, 0)
    assert data["warnings"] == ["a warning"]
    assert data["errors"][0]["in"] == "add sm_90a T=fp16 n:16 num_warps=4"
    assert data["errors"][0]["bug"] is False
    assert data["remarks"] == [
        "scale sm_90a: k.py:1:1: nothing to do",
        "scale sm_80: k.py:1:1: nothing to do",
    ]


@pytest.mark.parametrize("wrong", ["symbol", "name", "target", "cubin", "argument", "fallback"])
def test_a_cached_kernel_that_is_another_ones_is_compiled_again(
    project: _Project, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """Intact entries under the right names, as anyone may write them to a shared cache."""
    project.build()
    expected = project.files()

    def find(self: Cache, request: CompileRequest) -> CachedKernel | None:
        cached = original(self, request)
        if cached is None or (request.kernel, request.target) != ("scale", "sm_90a"):
            return cached
        metadata = cached.metadata
        changed = {
            "symbol": replace(cached, metadata=replace(metadata, symbol="add_empty")),
            "name": replace(cached, metadata=replace(metadata, name="add")),
            "target": replace(cached, metadata=replace(metadata, target="sm_80")),
            "cubin": replace(cached, cubin=make_cubin("sm_80", metadata.symbol, 2)),
            "argument": replace(
                cached,
                metadata=replace(metadata, params=(replace(metadata.params[0], argument="q"),)),
            ),
        }
        return changed.get(wrong) or replace(cached, fallback=changed["symbol"])

    original = Cache.find
    monkeypatch.setattr(Cache, "find", find)
    result = project.build()
    assert result.failures == ()
    assert (result.num_compiled, result.num_cached) == (1, 17)
    (warning,) = project.recorder.warnings
    assert "what the cache has for scale sm_90a" in warning
    assert "is of another kernel: " in warning
    assert project.files() == expected
