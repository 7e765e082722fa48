"""The command line: exit codes, what goes to which stream, and how fast it starts."""

from __future__ import annotations

import errno
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aotc
from aotc import cli
from aotc.compiler import CompileRequest
from aotc.package.cache import Cache
from tests.support.fake_compiler import compile_empty

_MANIFEST = """\
[package]
name = "demo"
version = "0.1.0"
targets = ["sm_90a"]
[[kernel]]
source = "k.py:add"
[kernel.signature]
x_ptr = "*T:16"
n = "i32"
[kernel.types]
T = ["fp16", "fp32"]
[kernel.constants]
MODE = "ok"
[kernel.configs]
num_warps = [4, 64]
"""
_SOURCE = "def add(x_ptr, n, MODE: tl.constexpr): pass\n"

# Runs the command line with the fake compiler, in a process of its own.
_RUNNER = """\
import sys
from aotc import cli
from tests.support.fake_compiler import compile_empty
if __name__ == "__main__":
    sys.exit(cli.run(sys.argv[1:], compile_empty))
"""

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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text(_SOURCE)
    (tmp_path / "kernels.toml").write_text(_MANIFEST)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*args: str) -> tuple[int, str, str]:
        code = cli.run(args, compile_empty)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def _use_mode(folder: Path, mode: str) -> None:
    (folder / "kernels.toml").write_text(_MANIFEST.replace('"ok"', f'"{mode}"'))


# ---------------------------------------------------------------------------------------- build


def test_build_prints_files_and_nothing_else_to_stdout(folder: Path, run: Any) -> None:
    code, out, err = run("build", "--cache-dir", "cache", "-j", "1")
    assert code == 0
    assert out.splitlines() == ["dist/demo.aotc", "dist/demo.h", "dist/libdemo.a"]
    assert all((folder / line).exists() for line in out.splitlines())
    lines = err.splitlines()
    assert lines[0].startswith("[1/2] add sm_90a T=fp16 num_warps=4 (")
    assert lines[1].startswith("[2/2] add sm_90a T=fp32 num_warps=4 (")
    assert lines[2] == "note: 1 dropped that a target cannot hold (-v lists them)"
    assert lines[3].startswith("2 variants (2 compiled, 0 cached, ")


def test_second_build_has_nothing_to_do(folder: Path, run: Any) -> None:
    run("build", "--cache-dir", "cache", "-o", str(folder / "out"))
    code, out, err = run("build", "--cache-dir", "cache", "-o", str(folder / "out"))
    assert code == 0
    assert len(out.splitlines()) == 3
    assert "(0 compiled, 2 cached, " in err


def test_no_cache_compiles_again(folder: Path, run: Any) -> None:
    run("build", "--cache-dir", "cache")
    _, _, err = run("build", "--cache-dir", "cache", "--no-cache")
    assert "(2 compiled, 0 cached, " in err


def test_default_cache_is_the_platforms(
    folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "xdg"))
    used: list[Path] = []
    original = Cache.__init__

    def spy(self: Cache, path: Path, *args: Any) -> None:
        used.append(path)
        original(self, path, *args)

    monkeypatch.setattr(Cache, "__init__", spy)
    assert run("build")[0] == 0
    assert used[0].name == "aotc"


@pytest.mark.usefixtures("folder")
def test_verbose_lists_remarks(run: Any) -> None:
    _, _, err = run("build", "--no-cache", "-v")
    assert "remark: add sm_90a: num_warps = 64: num_warps = 64 takes 2048 threads" in err
    assert "remark: add sm_90a: k.py:1:1: nothing to do" in err


@pytest.mark.usefixtures("folder")
def test_json_is_all_there_is_on_stdout(run: Any) -> None:
    code, out, err = run("build", "--no-cache", "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert (data["status"], data["variants"], data["compiled"]) == ("done", 2, 2)


def test_failing_kernels_exit_with_1(folder: Path, run: Any) -> None:
    _use_mode(folder, "user_error")
    code, out, err = run("build", "--no-cache")
    assert code == cli.EXIT_WRONG
    assert out == ""
    assert "k.py:1:1: error: expected a tile, got a list" in err
    assert err.count("expected a tile, got a list") == 1
    assert "  note: in add sm_90a T=fp16 num_warps=4\n  note: in add sm_90a T=fp32" in err
    assert "aotc: 2 failed, nothing is written" in err
    assert not (folder / "dist").exists()
    assert "Traceback" not in err


def test_our_bugs_exit_with_3_and_say_so(folder: Path, run: Any) -> None:
    _use_mode(folder, "bug")
    code, _, err = run("build", "--no-cache")
    assert code == cli.EXIT_BUG
    assert "aotc: internal error: ZeroDivisionError: ours\n  note: in add sm_90a T=fp16" in err
    assert err.count("Please report it") == 1
    assert "Traceback" not in err
    assert "Traceback" in run("build", "--no-cache", "--debug")[2]


def test_a_report_lists_few_variants(folder: Path, run: Any) -> None:
    text = _MANIFEST.replace('"ok"', '"user_error"')
    text = text.replace("[4, 64]", "[1, 2, 4, 8]")
    (folder / "kernels.toml").write_text(text)
    _, _, err = run("build", "--no-cache")
    assert err.count("  note: in add") == 4
    assert "  note: and in 4 more variants" in err


def test_a_wrong_manifest_exits_with_1(folder: Path, run: Any) -> None:
    (folder / "kernels.toml").write_text(_MANIFEST.replace("\nn =", "\nm ="))
    code, out, err = run("build")
    assert (code, out) == (cli.EXIT_WRONG, "")
    assert err.startswith("kernels.toml:9:1: error: expected an argument of add, got 'm'")


def test_a_wrong_manifest_as_json(folder: Path, run: Any) -> None:
    (folder / "kernels.toml").write_text("")
    code, out, _ = run("build", "--json")
    data = json.loads(out)
    assert (code, data["status"], data["files"]) == (cli.EXIT_WRONG, "failed", [])
    assert "expected a table at 'package', which is missing" in data["errors"][0]["report"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["build", "missing.toml"], "cannot read missing.toml"),
        (["build", "--target", "sm_90"], "did you mean 'sm_90a'?"),
        (["build", "--kernel", "ad"], "did you mean 'add'?"),
        (["inspect", "missing.aotc"], "cannot read missing.aotc"),
        (["inspect", "kernels.toml"], "FORMAT"),
    ],
)
def test_what_is_not_there_exits_with_1(run: Any, args: list[str], message: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (cli.EXIT_WRONG, "")
    assert message in err


@pytest.mark.parametrize(
    "args",
    [
        ["bild"],
        ["build", "--jobs", "0"],
        ["build", "--no-such-option"],
        ["build", "a.toml", "b.toml"],
        ["inspect"],
        ["dump", "k.py:add"],
        ["dump", "k.py:add", "--stage", "elf"],
        ["dump", "k.py:add", "--stage", "ptx", "--set", "BLOCK"],
        ["explain"],
        ["explain", "k.py:add", "--set", "BLOCK"],
    ],
)
def test_wrong_usage_exits_with_2(run: Any, args: list[str]) -> None:
    code, out, err = run(*args)
    assert (code, out) == (cli.EXIT_USAGE, "")
    assert "Error: " in err


def test_unexpected_exceptions_exit_with_3(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise RuntimeError("impossible")

    monkeypatch.setattr("aotc.package.manifest.load", fail)
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
    _use_mode(folder, "slow")
    root = Path(__file__).parents[1]
    (folder / "runner.py").write_text(_RUNNER)
    build = subprocess.Popen(
        [sys.executable, "runner.py", "build", "--no-cache", "-j", "2"],
        env={**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(folder / "tmp")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 20
    while len(_children(build.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)  # two workers and the resource tracker
    children = _children(build.pid)
    time.sleep(0.5)
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


@pytest.mark.parametrize("module", ["aotc.cli", "click", "aotc.package.build"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_it_starts_is_no_traceback(
    folder: Path, module: str, number: signal.Signals
) -> None:
    text = _INTERRUPTED_IMPORT.format(module=module, number=int(number))
    root = Path(__file__).parents[1]
    ran = subprocess.run(
        [sys.executable, "-c", text, "build"],
        env={**os.environ, "PYTHONPATH": str(root)},
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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.ENOMEM])
def test_what_the_machine_lacks_exits_with_1(
    run: Any, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(path: str) -> None:
        raise OSError(number, os.strerror(number), "/tmp/x")

    monkeypatch.setattr("aotc.package.manifest.load", fail)
    code, out, err = run("build")
    assert (code, out) == (cli.EXIT_WRONG, "")
    assert err.startswith(f"error: {os.strerror(number)}: /tmp/x (errno {number})\n  help: ")


def test_a_killed_worker_exits_with_1_and_names_the_variant(folder: Path, run: Any) -> None:
    _use_mode(folder, "killed")
    code, _, err = run("build", "--no-cache", "-j", "1")
    assert code == cli.EXIT_WRONG
    assert "error: the worker process was ended by SIGKILL; out of memory?\n  help: free" in err
    assert "  note: in add sm_90a T=fp16 num_warps=4\n  note: in add sm_90a T=fp32" in err
    assert "bug" not in err


def test_workers_end_with_a_parent_that_is_killed(folder: Path) -> None:
    _use_mode(folder, "slow")
    root = Path(__file__).parents[1]
    (folder / "runner.py").write_text(_RUNNER)
    build = subprocess.Popen(
        [sys.executable, "runner.py", "build", "--no-cache", "-j", "2"],
        env={**os.environ, "PYTHONPATH": str(root)},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 20
    while len(_children(build.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    children = _children(build.pid)
    time.sleep(0.5)
    build.kill()
    build.wait()
    deadline = time.monotonic() + 10
    while any(_is_alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(children) >= 2
    assert not any(_is_alive(pid) for pid in children)


def test_many_builds_share_a_cache(folder: Path) -> None:
    root = Path(__file__).parents[1]
    (folder / "runner.py").write_text(_RUNNER)
    builds = [
        subprocess.Popen(
            [sys.executable, "runner.py", "build", "--cache-dir", "cache", "-o", f"out{index}"],
            env={**os.environ, "PYTHONPATH": str(root)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(6)
    ]
    errors = [build.communicate(timeout=60)[1] for build in builds]
    assert [build.returncode for build in builds] == [0] * 6
    assert not any("warning" in error for error in errors)
    for name in ("demo.aotc", "demo.h", "libdemo.a"):
        assert len({(folder / f"out{index}" / name).read_bytes() for index in range(6)}) == 1


@pytest.mark.parametrize("mode", ["ok", "user_error"])
def test_a_terminal_gets_a_progress_bar(folder: Path, mode: str) -> None:
    _use_mode(folder, mode)
    root = Path(__file__).parents[1]
    (folder / "runner.py").write_text(_RUNNER)
    master, slave = pty.openpty()
    build = subprocess.Popen(
        [sys.executable, "runner.py", "build", "--no-cache"],
        env={**os.environ, "PYTHONPATH": str(root), "TERM": "xterm"},
        stdout=subprocess.DEVNULL,
        stderr=slave,
    )
    os.close(slave)
    written = _read_all(master)
    os.close(master)
    assert build.wait(timeout=30) == (0 if mode == "ok" else cli.EXIT_WRONG)
    assert "compiling" in written
    assert "[1/2]" not in written
    assert ("failed: add sm_90a T=fp16" in written) == (mode == "user_error")
    assert "\x1b[?25h" in written  # the cursor is back


def _read_all(descriptor: int) -> str:
    content = b""
    while True:
        try:
            piece = os.read(descriptor, 4096)
        except OSError:  # the last writer is gone
            piece = b""
        if not piece:
            return content.decode()
        content += piece


def test_a_reader_that_has_seen_enough_is_no_error(folder: Path, run: Any) -> None:
    run("build", "--no-cache")
    root = Path(__file__).parents[1]
    (folder / "runner.py").write_text(_RUNNER)
    inspect = subprocess.Popen(
        [sys.executable, "runner.py", "inspect", "dist/demo.aotc", "--json"],
        env={**os.environ, "PYTHONPATH": str(root)},
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


# ------------------------------------------------------------------------------ inspect and dump


@pytest.mark.usefixtures("folder")
def test_inspect_shows_a_table(run: Any) -> None:
    run("build", "--no-cache")
    code, out, err = run("inspect", "dist/demo.aotc")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("demo 0.1.0 | 1 kernel | 2 variants | sm_90a | ")
    assert lines[1].startswith("aotc 0.1.0; llvmlite ")
    assert lines[2:4] == ["", "add"]
    assert lines[5].split()[:3] == ["target", "types", "config"]
    assert lines[6].split()[:3] == ["sm_90a", "fp16", "num_warps=4"]


def test_inspect_as_json(folder: Path, run: Any) -> None:
    run("build", "--no-cache")
    code, out, _ = run("inspect", "dist/demo.aotc", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["size_bytes"] == (folder / "dist/demo.aotc").stat().st_size
    assert data["kernels"][0]["variants"][0]["registers"] == 8


@pytest.mark.parametrize("mode", ["a\x1b[31m", "a\nb", "a\x9b", "a\u202eb", "[red]a[/red]"])
def test_no_name_steers_the_terminal(folder: Path, run: Any, mode: str) -> None:
    choices = f"[kernel.choices]\nMODE = [{json.dumps(mode)}]"
    text = _MANIFEST.replace('[kernel.constants]\nMODE = "ok"', choices)
    (folder / "kernels.toml").write_text(text)
    built = run("build", "--no-cache", "-v")
    assert built[0] == 0
    for _, out, err in (built, run("inspect", "dist/demo.aotc"), run("explain", "k.py:add\x1b")):
        assert all(char.isprintable() or char == "\n" for char in out + err)
    shown = mode.encode("unicode_escape").decode()
    assert shown in built[2]


@pytest.fixture
def dumped(monkeypatch: pytest.MonkeyPatch) -> list[CompileRequest]:
    """Record what `aotc dump` asks the compiler for."""
    requests: list[CompileRequest] = []

    def stage_text(request: CompileRequest, stage: str) -> str:
        requests.append(request)
        return {"ptx": ".version 8.8\n", "tile": "t"}[stage]

    monkeypatch.setattr("aotc.compiler.stage_text", stage_text)
    return requests


@pytest.mark.usefixtures("folder")
def test_dump_prints_the_stage(run: Any, dumped: list[CompileRequest]) -> None:
    args = ["--set", "x_ptr=*fp32:16", "--set", "n=i32=1", "--set", "MODE=ok"]
    code, out, err = run("dump", "k.py:add", "--stage", "ptx", "--target", "sm_80", *args)
    assert (code, out, err) == (0, ".version 8.8\n", "")
    assert dumped[0].signature == (("x_ptr", "*fp32:16"), ("n", "i32=1"))
    assert (dumped[0].target, dumped[0].config.num_warps) == ("sm_80", 4)
    assert run("dump", "kernels.toml:add", "--stage", "tile")[1] == "t\n"
    assert dumped[1].signature == (("x_ptr", "*fp16:16"), ("n", "i32"))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", [("build", "kernels.toml"), ("verify", "kernels.toml")])
def test_a_mistaken_feature_exits_with_1(run: Any, command: tuple[str, ...]) -> None:
    code, _, err = run(*command, "--without", "wgma")
    assert code == 1
    assert "did you mean 'wgmma'?" in err


@pytest.mark.usefixtures("folder")
def test_dump_does_without_features(run: Any, dumped: list[CompileRequest]) -> None:
    for subject in ("k.py:add", "kernels.toml:add"):
        settings = ["--set", "x_ptr=*fp32:16", "--set", "n=i32", "--set", "MODE=ok"]
        assert run("dump", subject, "--stage", "ptx", "--without", "wgmma", *settings)[0] == 0
    assert [request.without for request in dumped] == [("wgmma",), ("wgmma",)]


@pytest.mark.usefixtures("folder")
def test_what_is_built_without_a_feature_is_another_build(run: Any) -> None:
    found = [
        json.loads(run("build", "--json", "--cache-dir", "cache", *options)[1])["cached"]
        for options in ([], ["--without", "wgmma"], ["--without", "tma"], ["--without", "wgmma"])
    ]
    assert found[:3] == [0, 0, 0]
    assert found[3] > 0


@pytest.mark.usefixtures("folder", "dumped")
def test_dump_without_a_type_exits_with_1(run: Any) -> None:
    code, _, err = run("dump", "k.py:add", "--stage", "ptx")
    assert code == cli.EXIT_WRONG
    assert "expected a type for argument 'x_ptr' of add" in err


def test_explain_prints_text_or_json(run: Any) -> None:
    kernel = f"{Path(__file__).parents[1] / 'kernels' / 'elementwise.py'}:vector_add_kernel"
    types = (
        "x_ptr=*fp32:16",
        "y_ptr=*fp32:16",
        "out_ptr=*fp32:16",
        "n_elements=i32:16",
        "BLOCK=1024",
    )
    args = [part for each in types for part in ("--set", each)]
    code, out, err = run("explain", kernel, "--target", "sm_80", *args)
    assert (code, err) == (0, "")
    assert "load of x_ptr: 16 bytes a thread, 2 instructions, masked" in out
    code, out, _ = run("explain", kernel, "--target", "sm_80", *args, "--json")
    assert code == 0
    assert json.loads(out)["occupancy"]["limited_by"] == "threads"
    code, _, err = run("explain", kernel)
    assert code == cli.EXIT_WRONG
    assert "expected a type for argument 'x_ptr' of vector_add_kernel" in err


# -------------------------------------------------------------------------------------- start-up


def _modules(*args: str, cwd: Path) -> set[str]:
    """Return the modules loaded by a command that runs in a process of its own."""
    script = f"import sys; from aotc import cli; code = cli.run({list(args)!r}); "
    script += "print(code, *sys.modules, file=sys.stderr)"
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    )
    code, *modules = done.stderr.splitlines()[-1].split()
    assert code == "0", done.stderr
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
    # What the fake compiler made is taken for the real one's: the cache asks for no more.
    run("build", "--cache-dir", "cache")
    loaded = _modules("build", "--cache-dir", "cache", cwd=folder)
    assert "aotc.compiler" in loaded
    absent = {"llvmlite", "aotc.backend", "aotc.frontend", "rich", "importlib.metadata"}
    assert not loaded & absent
