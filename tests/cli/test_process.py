"""The process of a command: interrupts, missing resources, closed pipes, and start-up time."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import aotc
from aotc import cli
from tests.support.command_line import ROOT, start, use_mode

# Interrupts itself where a module is imported.
_INTERRUPTED_IMPORT = """\
import os, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Interrupt())
from aotc.__main__ import main
main()
"""


def test_unexpected_exceptions_exit_with_3(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise RuntimeError("impossible")

    monkeypatch.setattr("aotc.package.manifest.read.load", fail)
    code, _, err = run("build")
    assert code == cli.EXIT_BUG
    assert err.startswith("aotc: internal error: RuntimeError: impossible")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_exits_with_130_and_leaves_nothing(
    folder: Path, run: Any, number: signal.Signals
) -> None:
    run("build", "--no-cache")
    (folder / "tmp").mkdir()
    old = (folder / "dist/demo.aotc").read_bytes()
    use_mode(folder, "slow")
    build = start(
        folder,
        "build",
        "--no-cache",
        "-j",
        "2",
        env={"TMPDIR": str(folder / "tmp")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = _workers(build.pid)
    assert list((folder / "tmp").iterdir()) != []
    # Ctrl-C reaches the whole group, the others the build alone.
    (os.killpg if number == signal.SIGINT else os.kill)(build.pid, number)
    _, err = build.communicate(timeout=20)
    assert build.returncode == cli.EXIT_INTERRUPTED
    assert err.splitlines()[-1] == "aotc: interrupted"
    assert "Traceback" not in err
    assert len(children) >= 2
    time.sleep(0.5)
    assert not any(_is_alive(pid) for pid in children)
    assert list((folder / "tmp").iterdir()) == []
    assert (folder / "dist/demo.aotc").read_bytes() == old


@pytest.mark.parametrize("module", ["aotc.cli", "click", "aotc.package.builder.run"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_it_starts_is_no_traceback(
    folder: Path, module: str, number: signal.Signals
) -> None:
    text = _INTERRUPTED_IMPORT.format(module=module, number=int(number))
    ran = subprocess.run(
        [sys.executable, "-c", text, "build"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (130, "")
    assert ran.stderr.lstrip() == "aotc: interrupted\n"


def test_what_cannot_be_printed_is_told(folder: Path, run: Any) -> None:
    assert run("build", "--no-cache")[0] == 0
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "aotc", "inspect", folder / "dist/demo.aotc"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == cli.EXIT_WRONG
    message = "cannot write to standard output: No space left on device"
    assert ran.stderr == f"error: {message}\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.ENOMEM, errno.EFBIG])
def test_what_the_machine_lacks_exits_with_1(
    run: Any, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(path: str) -> None:
        raise OSError(number, os.strerror(number), "/tmp/x")

    monkeypatch.setattr("aotc.package.manifest.read.load", fail)
    code, out, err = run("build")
    assert (code, out) == (cli.EXIT_WRONG, "")
    assert err.startswith(f"error: {os.strerror(number)}: /tmp/x (errno {number})\n  help: ")


def test_a_killed_worker_exits_with_1_and_names_the_variant(folder: Path, run: Any) -> None:
    use_mode(folder, "killed")
    code, _, err = run("build", "--no-cache", "-j", "1")
    assert code == cli.EXIT_WRONG
    assert "error: the worker process was ended by SIGKILL; out of memory?\n  help: free" in err
    assert "  note: in add sm_90a T=fp16 num_warps=4\n  note: in add sm_90a T=fp32" in err
    assert "bug" not in err


def test_workers_end_with_a_parent_that_is_killed(folder: Path) -> None:
    use_mode(folder, "slow")
    build = start(folder, "build", "--no-cache", "-j", "2", stderr=subprocess.DEVNULL)
    children = _workers(build.pid)
    build.kill()
    build.wait()
    deadline = time.monotonic() + 10
    while any(_is_alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(children) >= 2
    assert not any(_is_alive(pid) for pid in children)


def test_a_reader_that_has_seen_enough_is_no_error(folder: Path, run: Any) -> None:
    run("build", "--no-cache")
    inspect = start(
        folder,
        "inspect",
        "dist/demo.aotc",
        "--json",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert inspect.stdout is not None
    inspect.stdout.close()
    assert inspect.stderr is not None
    assert inspect.stderr.read() == ""
    inspect.stderr.close()
    inspect.wait(timeout=30)


def _workers(pid: int) -> list[int]:
    """Return the children of a build once there are two workers and the resource tracker."""
    deadline = time.monotonic() + 20
    while len(_children(pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    children = _children(pid)
    time.sleep(0.5)
    return children


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


# -------------------------------------------------------------------------------------- start-up


def _modules(*args: str, cwd: Path) -> set[str]:
    """Return the modules loaded by a command in a process of its own."""
    script = f"import sys; from aotc import cli; code = cli.run({list(args)!r}); "
    script += "print(code, *sys.modules, file=sys.stderr)"
    process = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    )
    code, *modules = process.stderr.splitlines()[-1].split()
    assert code == "0", process.stderr
    return set(modules)


def test_version_starts_without_the_compiler(folder: Path, run: Any) -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert out == f"aotc {aotc.__version__}\n"
    loaded = _modules("--version", cwd=folder)
    assert not loaded & {"aotc.compiler", "aotc.ir.core", "llvmlite", "msgspec", "rich", "tomli"}


def test_inspect_starts_without_the_compiler(folder: Path, run: Any) -> None:
    run("build", "--no-cache")
    compiler = {"aotc.compiler", "aotc.ir.core", "llvmlite", "tomli"}
    assert not _modules("inspect", "dist/demo.aotc", cwd=folder) & compiler
    loaded = _modules("inspect", "dist/demo.aotc", "--json", cwd=folder)
    assert not loaded & {*compiler, "rich"}


def test_a_build_with_nothing_to_do_starts_without_llvm(folder: Path, run: Any) -> None:
    # The fake compiler's kernels pass for the real one's: the cache does not check more.
    run("build", "--cache-dir", "cache")
    loaded = _modules("build", "--cache-dir", "cache", cwd=folder)
    assert "aotc.compiler" in loaded
    absent = {"llvmlite", "aotc.backend", "aotc.frontend", "rich", "importlib.metadata"}
    assert not loaded & absent
