"""`aotc verify`: exit codes, the table, reports, and how to see a failure again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from aotc.package.archive import file as archives
from aotc.package.archive import stored_ptx
from aotc.package.builder import workers
from aotc.package.verify import audit
from aotc.package.verify import device as verify_device
from aotc.package.verify import variants as verify
from aotc.verify.checks.device import NoDeviceError
from tests.support.verify_subjects import manifest_text

pytestmark = pytest.mark.usefixtures("one_worker")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*args: str) -> tuple[int, str, str]:
        code = cli.run(args)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify in a thread, for tests indifferent to worker processes."""

    def in_thread(tasks: Any, work: Any, jobs: int, *_: Any) -> Any:
        with ThreadPoolExecutor(1) as executor:
            yield from workers.run_all(tasks, work, jobs, executor)

    monkeypatch.setattr(verify, "run_all", in_thread)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a manifest, its archive with PTX, and one with a bug in its PTX."""
    folder = tmp_path_factory.mktemp("verify")
    manifest = folder / "kernels.toml"
    manifest.write_text(manifest_text("sum_rows", types="stride = i32:16?"))
    options = ["--with-ptx", "--no-cache", "-j", "1", "-o", str(folder)]
    assert cli.run(["build", str(manifest), *options]) == 0
    archive = archives.read(folder / "demo.aotc")
    (kernel,) = archive.kernels
    first, second = kernel.variants
    tile_ir, ptx = stored_ptx.split(second.ptx or b"")
    assert ", 4, 31, -1;" in ptx
    wrong = stored_ptx.join(tile_ir, ptx.replace(", 4, 31, -1;", ", 8, 31, -1;"))
    kernel = replace(kernel, variants=(first, replace(second, ptx=wrong)))
    archives.write(replace(archive, kernels=(kernel,)), folder / "wrong.aotc")
    return folder


def test_a_right_manifest(dist: Path, run: Run) -> None:
    code, out, err = run("verify", str(dist / "kernels.toml"), "-j", "1")
    assert code == 0
    head, row = out.splitlines()
    assert head.split() == [
        *("kernel", "variants", "launches", "passed", "over", "lane", "instructions"),
        *("seconds", "status"),
    ]
    assert row.split()[:3] == ["sum_rows", "sm_80", "2"]
    assert row.split()[-1] == "verified"
    lines = err.splitlines()
    assert lines[0].startswith("[1/2] sum_rows sm_80 stride:16 (")
    assert lines[-1].startswith("2 verified, 2 cubins audited (")


@pytest.mark.usefixtures("threads")
def test_a_wrong_archive(dist: Path, run: Run) -> None:
    path = str(dist / "wrong.aotc")
    code, out, err = run("verify", path, "-v", "-j", "1", "--seed", "4")
    assert code == 1
    rows = [line.split() for line in out.splitlines()[1:]]
    assert [(row[-1], row[0]) for row in rows] == [("wrong", "sum_rows"), ("verified", "sum_rows")]
    assert "] sum_rows sm_80 WRONG (" in err
    report = err[err.index("wrong: sum_rows sm_80\n") :].splitlines()
    assert report[1].startswith("  with stride = ")
    assert report[2].startswith("    out_ptr[0] is ")
    assert "    other code: 0x0000: section .text.sum_rows" in report  # not the code of its PTX
    (again,) = [line for line in report if line.startswith("  to see it again: ")]
    command = shlex.split(again.removeprefix("  to see it again: "))
    assert command[:2] == ["aotc", "verify"]
    code, _, shown = run(*command[1:], "-j", "1")
    assert code == 1
    assert report[2] in shown.splitlines()
    assert "1 wrong, 1 cubin audited (" in shown


@pytest.mark.usefixtures("threads")
def test_what_is_partly_verified_fails_unless_it_is_allowed(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "kernels.toml"
    # Programs overwrite each other, right where there is a single one.
    path.write_text(manifest_text("crowd", verify='n = [2, 3]\ngrid = ["n - 1"]'))
    code, out, err = run("verify", str(path), "-j", "1")
    assert code == 1
    assert out.splitlines()[-1].split()[-2:] == ["partly", "verified"]
    assert "partly verified: crowd sm_80\n  not checked: " in err
    assert "writes what another has written" in err
    assert "1 partly verified, 1 cubin audited (" in err
    assert run("verify", str(path), "-j", "1", "--allow-partial")[0] == 0


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", ["fp32", "i32"])
def test_programs_that_take_turns_at_a_lock_are_verified(
    tmp_path: Path, run: Run, dtype: str
) -> None:
    """Neither the initial state of the lock nor the programs' order is stated.

    Its memory is distinct from data of its type.
    """
    path = tmp_path / "kernels.toml"
    text = manifest_text("locked", verify='grid = ["3"]')
    path.write_text(text.replace("*fp32", f"*{dtype}"))
    code, out, err = run("verify", str(path), "-j", "1")
    assert (code, out.splitlines()[-1].split()[-1]) == (0, "verified"), err


@pytest.mark.usefixtures("threads")
def test_json(dist: Path, run: Run) -> None:
    code, out, err = run("verify", str(dist / "wrong.aotc"), "--json", "-j", "1")
    assert (code, err) == (1, "")
    result = json.loads(out)
    assert result["status"] == "failed"
    variants: dict[str, Any] = {variant["variant"]: variant for variant in result["variants"]}
    right, wrong = variants["sum_rows sm_80 stride:16"], variants["sum_rows sm_80"]
    assert right["status"] == "verified"
    assert right["lane_instructions"] > 0
    assert {launch["status"] for launch in right["launches"]} == {"right"}
    last = wrong["launches"][-1]
    assert last["mismatch"]["buffer"] == "out_ptr"
    assert last["mismatch"]["index"] == 0
    assert last["arguments"]["n_cols"] >= 1
    assert "--variant 'sum_rows sm_80'" in wrong["command"]


PLANTED = Path(__file__).parents[1] / "verify" / "sass" / "planted"


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ["kernels.toml", "demo.aotc"])
def test_a_cubin_that_is_wrong(
    dist: Path, run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sass = (PLANTED / "tensor_load.sass").read_text()
    monkeypatch.setattr(audit, "disassemble", lambda _: sass)
    command = ("verify", str(dist / name), "--variant", "sum_rows sm_80", "-j", "1")
    code, out, err = run(*command)
    assert code == 1
    assert out.split()[-1] == "wrong"
    report = err[err.index("wrong: sum_rows sm_80\n") :].splitlines()
    assert report[1] == "  the cubin does not do what its PTX says:"
    assert report[2] == "    issued apart: 0x02c0: @!UP1 UTMALDG.2D [UR12], [UR4]"
    assert report[4].startswith("      some lanes come by ")
    assert report[-1].startswith("1 wrong, 1 cubin audited (")
    code, out, _ = run(*command, "--json")
    assert code == 1
    (variant,) = json.loads(out)["variants"]
    assert {launch["status"] for launch in variant["launches"]} == {"right"}
    ((finding,),) = [cubin["findings"] for cubin in variant["cubins"]]
    assert (finding["kind"], finding["address"], finding["failure"]) == (
        "issued apart",
        0x2C0,
        True,
    )
    assert len(finding["ways"]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--kernel", "sum_row"), "did you mean 'sum_rows'?"),
        (("--target", "sm_81"), "sm_81"),
        (("--variant", "sum_rows sm_8"), "did you mean 'sum_rows sm_80'?"),
    ],
)
def test_an_unknown_name(dist: Path, run: Run, options: tuple[str, ...], message: str) -> None:
    code, out, err = run("verify", str(dist / "kernels.toml"), *options)
    assert (code, out) == (1, "")
    assert message in err


@pytest.mark.parametrize("name", ["missing.toml", "missing.aotc"])
def test_a_missing_file(dist: Path, run: Run, name: str) -> None:
    code, _, err = run("verify", str(dist / name))
    assert code == 1
    assert name in err


@pytest.mark.parametrize(
    "options", [("--jobs", "0"), ("--seed", "-1"), ("--max-steps", "0"), ("--max-memory", "x")]
)
def test_wrong_usage(run: Run, options: tuple[str, ...]) -> None:
    assert run("verify", *options)[0] == 2


@pytest.mark.usefixtures("threads")
def test_limits_are_passed_on(dist: Path, run: Run) -> None:
    options = ("--variant", "sum_rows sm_80", "-j", "1")
    code, _, err = run("verify", str(dist / "kernels.toml"), *options, "--max-steps", "4")
    assert code == 1
    assert "still running after 4 instructions" in err


@pytest.mark.usefixtures("threads")
def test_a_kernel_that_does_not_compile_is_the_users_mistake(tmp_path: Path, run: Run) -> None:
    (tmp_path / "k.py").write_text("import triton\n@triton.jit\ndef k(x_ptr):\n    unknown()\n")
    text = manifest_text("gather").splitlines()
    lines = ['source = "k.py:k"' if line.startswith("source") else line for line in text]
    header = lines[: lines.index("[kernel.signature]") + 2]
    (tmp_path / "kernels.toml").write_text("\n".join(header) + "\n")
    log = tmp_path / "out.sarif"
    code, out, err = run("verify", str(tmp_path / "kernels.toml"), "-j", "1", "--sarif", str(log))
    assert code == 1
    assert "failed" in out
    assert "unknown" in err
    results = json.loads(log.read_text())["runs"][0]["results"]
    assert {result["ruleId"] for result in results} == {"mistake"}


def test_without_a_gpu_the_device_is_missing(
    dist: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nothing:
        def __init__(self) -> None:
            raise NoDeviceError("no CUDA driver")

    verify_device.open_driver.cache_clear()
    monkeypatch.setattr(verify_device, "Driver", Nothing)
    code, out, err = run("verify", str(dist / "kernels.toml"), "--device")
    assert (code, out) == (1, "")
    assert "expected a GPU to verify on, got no CUDA driver" in err
    assert "without --device, variants are emulated" in err
