"""The findings of `aotc doctor` on the fake driver's drivers and GPUs, and on archives."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.package.inspect import cuda_driver, doctor
from aotc.package.inspect.cuda_driver import Gpu, Machine
from aotc.package.inspect.doctor import Finding
from tests.support.fake_gpu import AMPERE, HOPPER, FakeGpu, build, golden

MIG = (9, 0, 16 << 10)
H100 = Gpu("H100", 9, 0, 80 << 30, 232448, is_mig=False)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeGpu:
    return FakeGpu(build(tmp_path_factory.mktemp("fake_cuda")))


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    golden().main(folder)
    return folder


def about(findings: list[Finding], subject: str) -> Finding:
    (match,) = (finding for finding in findings if finding.subject == subject)
    return match


def test_gpus_and_peer_access(driver: FakeGpu, tmp_path: Path) -> None:
    driver.reset(HOPPER, HOPPER)
    machine = cuda_driver.ask(str(driver.path))
    assert driver.violation is None
    assert machine.version == 13000
    assert [gpu.name for gpu in machine.gpus] == ["Fake GPU", "Fake GPU"]
    findings = doctor.examine(machine, tmp_path, ())
    assert about(findings, "driver") == Finding("driver", "ok", "CUDA 13.0")
    assert about(findings, "GPU 1").text == "Fake GPU, sm_90, 80 GiB: build for sm_90a"
    assert about(findings, "peer access").text == "between all 2 GPUs"
    assert not doctor.has_problem(findings)


def test_mig_and_lacking_peer_access_are_told_apart(driver: FakeGpu, tmp_path: Path) -> None:
    driver.reset(HOPPER, HOPPER, AMPERE)
    findings = doctor.examine(cuda_driver.ask(str(driver.path)), tmp_path, ())
    peers = about(findings, "peer access")
    assert (peers.state, peers.text) == ("note", "none between GPUs 0-2, 1-2")
    assert "nvidia-smi topo" in peers.remedy
    driver.reset(HOPPER, HOPPER, MIG)
    findings = doctor.examine(cuda_driver.ask(str(driver.path)), tmp_path, ())
    assert about(findings, "GPU 2").text.endswith("; a MIG instance")
    assert "MIG instances" in about(findings, "GPU 2").remedy
    assert "MIG instances have none" in about(findings, "peer access").remedy


def test_one_gpu_has_no_peers(driver: FakeGpu, tmp_path: Path) -> None:
    driver.reset(HOPPER)
    findings = doctor.examine(cuda_driver.ask(str(driver.path)), tmp_path, ())
    assert "peer access" not in [finding.subject for finding in findings]


def test_drivers_that_are_no_use(driver: FakeGpu, tmp_path: Path) -> None:
    driver.reset()
    driver.fail("cuInit", 100)
    machine = cuda_driver.ask(str(driver.path))
    assert machine.problem == "CUDA 13.0, and no GPU"
    assert "MIG" in machine.remedy
    driver.reset()
    driver.fail("cuInit", 999)
    assert cuda_driver.ask(str(driver.path)).problem == "CUDA 13.0, cuInit reports error 999"
    driver.reset()
    driver._driver.fake_cuda_set_driver_version(11080)
    old = cuda_driver.ask(str(driver.path))
    assert (old.problem, old.gpus) == ("CUDA 11.8", ())
    assert "525" in old.remedy
    no_driver = tmp_path / "text.so"
    no_driver.write_text("text")
    missing = cuda_driver.ask(str(no_driver))
    assert missing.problem.startswith("none: ")
    assert cuda_driver.ask("libm.so.6").problem == "libm.so.6 is no CUDA driver"
    driver.reset()


def test_archives_and_their_gpus(archives: Path, tmp_path: Path) -> None:
    path = str(archives / "golden.aotc")
    blackwell = Gpu("B200", 10, 0, 180 << 30, 232448, is_mig=False)
    small = Gpu("A10", 8, 6, 24 << 30, 101376, is_mig=False)
    findings = doctor.examine(Machine(13000, (H100, blackwell, small)), tmp_path, [path])
    assert about(findings, path).text == (
        "5 kernels for sm_80, sm_90a; drivers of CUDA 13.0 (R580) and later"
    )
    assert about(findings, f"{path} on GPU 0") == Finding(
        f"{path} on GPU 0", "ok", "5 of 5 kernels run"
    )
    lacking = about(findings, f"{path} on GPU 1")
    assert (lacking.state, lacking.remedy) == ("problem", "aotc build --target sm_100a")
    assert lacking.text.startswith("0 of 5 kernels run; no code for add, ")
    finding = about(findings, f"{path} on GPU 2")
    assert finding.state == "note"
    assert "aotc build --target sm_86" in finding.remedy
    assert doctor.has_problem(findings)


def test_a_driver_older_than_the_code(archives: Path, tmp_path: Path) -> None:
    path = str(archives / "golden.aotc")
    findings = doctor.examine(Machine(12080, (H100,)), tmp_path, [path])
    assert about(findings, f"{path} on GPU 0") == Finding(
        f"{path} on GPU 0",
        "problem",
        "the code for sm_90a needs the driver of CUDA 13.0 (R580) or later",
        'update the driver, of CUDA 12.8, or build with toolchain = "12.9" in [package]',
    )


def test_too_little_shared_memory(archives: Path, tmp_path: Path) -> None:
    path = str(archives / "pick.aotc")
    tiny = Gpu("tiny", 9, 0, 1 << 30, -1, is_mig=False)
    findings = doctor.examine(Machine(13000, (tiny,)), tmp_path, [path])
    assert "take more than -1 bytes a CTA" in about(findings, f"{path} on GPU 0").text
    assert doctor.has_problem(findings)


def test_a_gpu_without_a_target(tmp_path: Path) -> None:
    pascal = Gpu("P100", 6, 0, 16 << 30, 49152, is_mig=False)
    finding = about(doctor.examine(Machine(13000, (pascal,)), tmp_path, ()), "GPU 0")
    assert finding.state == "problem"
    assert "targets are sm_80" in finding.remedy


def test_missing_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    versions = {"aotc": "1", "llvmlite": "unknown", "ptxas": "unknown", "libdevice": "13"}
    monkeypatch.setattr(doctor, "installed_versions", lambda: versions)
    findings = doctor.examine(Machine(problem="none"), tmp_path, ())
    assert about(findings, "ptxas").remedy == "pip install nvidia-cuda-nvcc"
    assert about(findings, "llvmlite").state == "problem"
    assert doctor.has_problem(findings)


def test_the_cache(tmp_path: Path) -> None:
    machine = Machine(problem="none")
    assert about(doctor.examine(machine, tmp_path, ()), "cache").state == "ok"
    (tmp_path / "file").write_text("")
    refused = about(doctor.examine(machine, tmp_path / "file", ()), "cache")
    assert refused.state == "note"
    assert "--cache-dir" in refused.remedy
    old = tmp_path / "v1" / "kernels" / "00" / ("0" * 64)
    old.parent.mkdir(parents=True)
    old.write_bytes(b"")
    finding = about(doctor.examine(machine, tmp_path, ()), "cache")
    assert (finding.state, finding.remedy) == ("note", "aotc cache prune")


def test_text_has_a_remedy_below_each_finding() -> None:
    lines = doctor.text([Finding("a", "ok", "fine"), Finding("long", "problem", "bad", "do")])
    assert lines.splitlines() == [
        "ok       a     fine",
        "problem  long  bad",
        "               → do",
    ]
