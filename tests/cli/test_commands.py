"""The output of commands, its stream, and their exit codes."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotc import cli
from aotc.compiler import CompiledKernel, CompileRequest
from aotc.package.cache.store import Cache
from aotc.package.tuning.table import KernelTuning, TuningTable
from aotc.package.tuning.text import write_tuning
from aotc.schedule.remarks import Remark
from tests.support.command_line import MANIFEST, ROOT, SOURCE, start, use_mode
from tests.support.fake_compiler import compile_empty

pytestmark = pytest.mark.usefixtures("one_worker")

# ---------------------------------------------------------------------------------------- build


def test_build_prints_files_and_nothing_else_to_stdout(folder: Path, run: Any) -> None:
    code, out, err = run("build", "--cache-dir", "cache", "-j", "1")
    assert code == 0
    assert out.splitlines() == [
        "dist/demo.aotc",
        "dist/demo.h",
        "dist/demo.sources.json",
        "dist/libdemo.a",
    ]
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
    assert len(out.splitlines()) == 4
    assert "(0 compiled, 2 cached, " in err


def test_a_depfile_lists_all_inputs(folder: Path, run: Any) -> None:
    """Also a manifest included, the file of an autotuner's configs, and the tuning table."""
    own = folder / "own"
    own.mkdir()
    (own / "sizes.py").write_text(
        "import triton\ndef sizes():\n    return [triton.Config({}, num_warps=4)]\n"
    )
    (own / "k.py").write_text(
        "import triton\nfrom sizes import sizes\n\n@triton.autotune(configs=sizes(), key=[])\n"
        f"@triton.jit\n{SOURCE}"
    )
    tuned = MANIFEST.partition("[[kernel.config]]\n")[0]
    tuned = tuned.replace('source = "k.py:add"', 'source = "k.py:add"\nconfigs = "autotune"')
    (own / "kernels.toml").write_text(tuned)
    package, kernel, _ = MANIFEST.partition("[[kernel]]\n")
    named = f'include = ["own/kernels.toml"]\n{package}{kernel}name = "copy"\n{_}'
    (folder / "kernels.toml").write_text(named)
    write_tuning(TuningTable(()), folder / "kernels.tuning.toml")
    code, _, err = run("build", "--depfile", "demo.d", "--cache-dir", "cache")
    assert code == 0, err
    lines = (folder / "demo.d").read_text().splitlines()
    assert lines[0].startswith("dist/demo.aotc dist/demo.h ")
    assert [line.removesuffix(":") for line in lines if line[0] != " "][1:] == [
        "k.py",
        "kernels.toml",
        "kernels.tuning.toml",
        "own/k.py",
        "own/kernels.toml",
        "own/sizes.py",
    ]


def test_no_cache_compiles_again(folder: Path, run: Any) -> None:
    run("build", "--cache-dir", "cache")
    _, _, err = run("build", "--cache-dir", "cache", "--no-cache")
    assert "(2 compiled, 0 cached, " in err


def test_default_cache_is_the_platforms(
    folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "xdg"))
    paths: list[Path] = []
    original = Cache.__init__

    def spy(self: Cache, path: Path, *args: Any) -> None:
        paths.append(path)
        original(self, path, *args)

    monkeypatch.setattr(Cache, "__init__", spy)
    assert run("build")[0] == 0
    assert paths[0].name == "aotc"


@pytest.mark.usefixtures("folder")
def test_verbose_lists_remarks(run: Any) -> None:
    _, _, err = run("build", "--no-cache", "-v")
    assert "remark: add sm_90a: num_warps = 32, num_consumer_groups = 2: num_warps = 32 in 2" in err
    assert "remark: add sm_90a: k.py:1:1: nothing to do" in err


def _overflowing(request: CompileRequest) -> CompiledKernel:
    """Return an empty kernel with a remark on its addresses."""
    kernel = compile_empty(request)
    remark = f"k.py:3:7: {Remark.INDEX_LIMIT(limit='n * 8 > 2147483647')}"
    return replace(kernel, metadata=replace(kernel.metadata, remarks=(remark,)))


@pytest.mark.usefixtures("folder")
def test_a_build_says_where_addresses_overflow(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(("build", "--no-cache", "-j", "1"), _overflowing) == 0
    note = "note: add: addresses overflow 32 bits where n * 8 > 2147483647 (k.py:3); "
    assert capsys.readouterr().err.count(note) == 1
    assert cli.run(("build", "--no-cache", "-j", "1", "--json"), _overflowing) == 0
    assert json.loads(capsys.readouterr().out)["index_limits"] == [
        {"kernel": "add", "at": "k.py:3:7", "overflows_where": "n * 8 > 2147483647"}
    ]


def test_a_table_beside_the_manifest_is_read(folder: Path, run: Any) -> None:
    table = TuningTable((KernelTuning("gone", "sm_90a", "NVIDIA H200", ({"num_warps": 4},), ()),))
    write_tuning(table, folder / "kernels.tuning.toml")
    warning = "the tuning table has kernel 'gone'"
    code, _, err = run("build", "--no-cache")
    assert (code, warning in err) == (0, True)
    assert warning not in run("build", "--no-cache", "--no-tuning")[2]
    (folder / "kernels.tuning.toml").rename(folder / "other.toml")
    assert warning not in run("build", "--no-cache")[2]
    assert warning in run("build", "--no-cache", "--tuning", "other.toml")[2]
    code, _, err = run("build", "--no-cache", "--tuning", "missing.toml")
    assert (code, "cannot read missing.toml" in err) == (1, True)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("other", [["--only-tuned"], ["--tuning", "a.toml"]])
def test_no_tuning_is_without_a_table(run: Any, other: list[str]) -> None:
    code, _, err = run("build", "--no-tuning", *other)
    assert code == 2
    assert f"--no-tuning and {other[0]} contradict each other" in err


@pytest.mark.usefixtures("folder")
def test_json_is_all_there_is_on_stdout(run: Any) -> None:
    code, out, err = run("build", "--no-cache", "--json")
    data = json.loads(out)
    assert (code, err) == (0, "")
    assert (data["status"], data["variants"], data["compiled"]) == ("done", 2, 2)


def test_failing_kernels_exit_with_1(folder: Path, run: Any) -> None:
    use_mode(folder, "user_error")
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
    use_mode(folder, "bug")
    code, _, err = run("build", "--no-cache")
    assert code == cli.EXIT_BUG
    assert "aotc: internal error: ZeroDivisionError: ours\n  note: in add sm_90a T=fp16" in err
    assert err.count("Please report it") == 1
    assert "Traceback" not in err
    assert "Traceback" in run("build", "--no-cache", "--debug")[2]


def test_a_report_lists_few_variants(folder: Path, run: Any) -> None:
    text = MANIFEST.replace('"ok"', '"user_error"')
    warps = "[kernel.configs]\nnum_warps = [1, 2, 4, 8]\n"
    text = text.partition("[[kernel.config]]")[0] + warps
    (folder / "kernels.toml").write_text(text)
    _, _, err = run("build", "--no-cache")
    assert err.count("  note: in add") == 4
    assert "  note: and in 4 more variants" in err


def test_a_wrong_manifest_exits_with_1(folder: Path, run: Any) -> None:
    (folder / "kernels.toml").write_text(MANIFEST.replace("\nn =", "\nm ="))
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
        (["inspect", "kernels.toml"], "kernels.toml: error: not an archive"),
        (["report", "kernels.toml"], "kernels.toml: error: not an archive"),
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
        ["dump", "a.aotc", "--stage", "sass", "--set", "BLOCK=1"],
        ["explain", "a.aotc", "--target", "sm_80"],
        ["explain", "k.py:add", "--variant", "add"],
    ],
)
def test_wrong_usage_exits_with_2(run: Any, args: list[str]) -> None:
    code, out, err = run(*args)
    assert (code, out) == (cli.EXIT_USAGE, "")
    assert err.startswith("error: ")
    assert "  help: aotc " in err


@pytest.mark.slow
def test_many_builds_share_a_cache(folder: Path) -> None:
    builds = [
        start(
            folder,
            "build",
            "--cache-dir",
            "cache",
            "-o",
            f"out{index}",
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


# ---------------------------------------------------------------------------------------- check


def test_check_of_what_is_supported(folder: Path, run: Any) -> None:
    (folder / "k.py").write_text("import triton\n@triton.jit\ndef k(x):\n    pass\n")
    code, out, err = run("check", ".")
    assert (code, out) == (0, "")
    assert err.startswith("1 of 1 kernel supported (100.0 %), in 1 file (")


def test_check_shows_what_is_missing_and_where(folder: Path, run: Any) -> None:
    (folder / "k.py").write_text(
        "import triton\nimport triton.language as tl\n@triton.jit\ndef k(x):\n    tl.extern_elementwise(x)\n"
    )
    code, out, err = run("check", "k.py")
    assert code == 1
    assert out.splitlines()[0] == "k.py:5: aotc does not have tl.extern_elementwise yet (in k)"
    assert err.startswith("0 of 1 kernel supported (0.0 %), in 1 file (")
    code, out, err = run("check", "k.py", "--json")
    assert (code, err) == (1, "")
    document = json.loads(out)
    (kernel,) = document["kernels"]
    (missing,) = kernel.pop("missing")
    assert kernel == {
        "file": "k.py",
        "kernel": "k",
        "line": 4,
        "supported": False,
        "captures": [],
    }
    assert (missing["feature"], missing["line"]) == ("tl.extern_elementwise", 5)
    assert document["features"] == {"tl.extern_elementwise": 1}


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["nowhere"], 1, "cannot read nowhere: there is no such file or folder"),
        (["k.py", "--target", "sm_90"], 1, "did you mean 'sm_90a'?"),
        ([], 2, "Missing argument 'PATH"),
    ],
)
def test_check_of_nothing(folder: Path, run: Any, args: list[str], code: int, message: str) -> None:
    actual, out, err = run("check", *args)
    assert (actual, out) == (code, "")
    assert message in err


def test_a_strict_check_fails_on_kernels_that_have_no_name(folder: Path, run: Any) -> None:
    kernel = "import lib, triton\n@triton.jit\ndef k(x):\n    pass\n"
    made = "@lib.pointwise\n@triton.jit\ndef add(x, y): return x + y\n"
    (folder / "k.py").write_text(kernel)
    (folder / "none.py").write_text("import triton\n")
    assert run("check", "k.py", "--strict")[0] == 0
    assert (run("check", "none.py")[0], run("check", "none.py", "--strict")[0]) == (0, 1)
    (folder / "k.py").write_text(kernel + made)
    assert (run("check", "k.py")[0], run("check", "k.py", "--strict")[0]) == (0, 1)
    _, out, err = run("check", "k.py")
    assert "k.py:7: @pointwise makes kernels of add when a program runs" in out
    assert err.startswith("1 of 1 kernel supported (100.0 %), 1 not named, in 1 file (")


# ----------------------------------------------------------------------------------------- init


def test_what_init_writes_is_built(folder: Path, run: Any) -> None:
    (folder / "lib").mkdir()
    (folder / "lib" / "ops.py").write_text(
        "import triton\nimport triton.language as tl\n@triton.jit\n"
        "def k(x_ptr, n, B: tl.constexpr):\n"
        "    at = tl.arange(0, B)\n    tl.store(x_ptr + at, 1.0, mask=at < n)\n"
        "def run(x, n): k[(triton.cdiv(n, 64),)](x, n, B=64)\n"
    )
    code, out, err = run("init", "lib", "-o", "new/ops.toml", "--target", "sm_80")
    assert (code, out, err) == (0, "new/ops.toml\n", "1 kernel, no TODOs\n")
    assert '"../lib/ops.py:k"' in (folder / "new" / "ops.toml").read_text()
    code, _, err = run("build", "new/ops.toml", "--no-cache")
    assert code == 0, err


def test_init_writes_over_nothing(folder: Path, run: Any) -> None:
    before = (folder / "kernels.toml").read_text()
    (folder / "k.py").write_text("import triton\n@triton.jit\ndef add(x_ptr): pass\n")
    code, out, err = run("init", "k.py")
    assert (code, out) == (1, "")
    assert err == "error: kernels.toml exists\n  help: give another -o, or --force\n"
    assert (folder / "kernels.toml").read_text() == before
    code, out, _ = run("init", "k.py", "-o", "-")
    assert (code, out.splitlines()[6]) == (0, 'name = "k"')
    assert run("init", "k.py", "--force")[0] == 0
    assert (folder / "kernels.toml").read_text() == out


def test_init_says_what_is_left_out(folder: Path, run: Any) -> None:
    source = "import triton\n@triton.jit\ndef k(x): pass\n@triton.jit\ndef bad(x): nowhere\n"
    (folder / "ops.py").write_text(source)
    code, out, err = run("init", "ops.py", "-o", "ops.toml")
    assert (code, out) == (0, "ops.toml\n")
    assert "note: as a comment: bad (ops.py:5): nowhere is not defined (ops.py:5)" in err
    assert "\n1 kernel, " in err


def test_init_writes_nothing_that_does_not_build(folder: Path, run: Any) -> None:
    (folder / "ops.py").write_text("import triton\n@triton.jit\ndef bad(x): nowhere\n")
    code, out, err = run("init", "ops.py", "-o", "ops.toml")
    assert (code, out) == (1, "")
    assert "expected a kernel that builds, got none: bad (ops.py:3): nowhere is not defined" in err
    assert not (folder / "ops.toml").exists()


def test_a_build_repeats_what_was_guessed(folder: Path, run: Any) -> None:
    text = (folder / "kernels.toml").read_text()
    guess = 'MODE = "ok"  # TODO: launches pass mode'
    (folder / "guess.toml").write_text(text.replace('MODE = "ok"', guess))
    message = 'guess.toml:13: MODE = "ok" is a guess: launches pass mode'
    code, _, err = run("build", "guess.toml", "--no-cache")
    assert (code, f"warning: {message}" in err) == (0, True)
    code, _, err = run("build", "guess.toml", "--no-cache", "--strict")
    assert (code, message in err) == (1, True)
    assert run("build", "--no-cache", "--strict")[0] == 0


# ------------------------------------------------------------------------------ inspect and dump


@pytest.mark.usefixtures("folder")
def test_inspect_shows_a_table(run: Any) -> None:
    run("build", "--no-cache")
    code, out, err = run("inspect", "dist/demo.aotc")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("demo 0.1.0 | 1 kernel | 2 variants | sm_90a | ")
    assert lines[1].startswith("aotc 0.1.0; llvmlite ")
    assert lines[2:5] == ["drivers of CUDA 13.0 (R580) and later", "", "add"]
    assert lines[6].split()[:3] == ["target", "types", "config"]
    assert lines[7].split()[:3] == ["sm_90a", "fp16", "num_warps=4"]


@pytest.mark.usefixtures("folder")
def test_inspect_shows_which_config_a_launch_takes(run: Any) -> None:
    run("build", "--no-cache")
    code, out, _ = run("inspect", "dist/demo.aotc", "--tuning")
    assert code == 0
    assert "the first config, in the manifest's order" in out


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
    text = MANIFEST.replace('[kernel.constants]\nMODE = "ok"', choices)
    (folder / "kernels.toml").write_text(text)
    built = run("build", "--no-cache", "-v")
    assert built[0] == 0
    for _, out, err in (built, run("inspect", "dist/demo.aotc"), run("explain", "k.py:add\x1b")):
        assert all(char.isprintable() or char == "\n" for char in out + err)
    shown = mode.encode("unicode_escape").decode()
    assert shown in built[2]


@pytest.fixture
def dumped(monkeypatch: pytest.MonkeyPatch) -> list[CompileRequest]:
    """Record the requests of `aotc dump` to the compiler."""
    requests: list[CompileRequest] = []

    def stage_content(request: CompileRequest, stage: str) -> str:
        requests.append(request)
        return {"ptx": ".version 8.8\n", "tile": "t"}[stage]

    monkeypatch.setattr("aotc.stages.stage_content", stage_content)
    return requests


@pytest.mark.usefixtures("folder")
def test_nothing_after_the_equals_sign_is_an_empty_string(
    run: Any, dumped: list[CompileRequest]
) -> None:
    args = ["--set", "x_ptr=*fp32:16", "--set", "n=i32", "--set", "MODE="]
    assert run("dump", "k.py:add", "--stage", "tile", *args)[0] == 0
    assert dict(dumped[0].constants)["MODE"] == ""


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
    codes = [
        json.loads(run("build", "--json", "--cache-dir", "cache", *options)[1])["cached"]
        for options in ([], ["--without", "wgmma"], ["--without", "tma"], ["--without", "wgmma"])
    ]
    assert codes[:3] == [0, 0, 0]
    assert codes[3] > 0


@pytest.mark.usefixtures("folder", "dumped")
def test_dump_without_a_type_exits_with_1(run: Any) -> None:
    code, _, err = run("dump", "k.py:add", "--stage", "ptx")
    assert code == cli.EXIT_WRONG
    assert "expected a type for argument 'x_ptr' of add" in err


@pytest.mark.usefixtures("folder")
def test_a_variant_of_an_archive(run: Any) -> None:
    run("build", "--no-cache")
    variant = ("dist/demo.aotc", "--variant", "T=fp16")
    code, out, err = run("dump", *variant, "--stage", "sass")
    assert (code, err) == (0, "")
    assert "EXIT" in out
    code, out, err = run("explain", *variant, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["types"] == {"x_ptr": "*fp16:16", "n": "i32"}
    for command in (("dump", "--stage", "sass"), ("explain",)):
        code, _, err = run(command[0], "dist/demo.aotc", *command[1:])
        assert code == cli.EXIT_WRONG
        assert "add sm_90a T=fp32 num_warps=4" in err
        code, _, err = run(command[0], "none.aotc", *command[1:])
        assert code == cli.EXIT_WRONG
        assert "error: cannot read none.aotc: No such file" in err


def test_explain_prints_text_or_json(run: Any) -> None:
    kernel = f"{ROOT / 'kernels' / 'elementwise.py'}:vector_add_kernel"
    types = (
        "x_ptr=*fp32:16",
        "y_ptr=*fp32:16",
        "out_ptr=*fp32:16",
        "n_elements=i32:16",
        "BLOCK=1024",
    )
    args = [part for setting in types for part in ("--set", setting)]
    code, out, err = run("explain", kernel, "--target", "sm_80", *args)
    assert (code, err) == (0, "")
    assert "load of x_ptr: 16 bytes a thread, 2 instructions, masked" in out
    code, out, _ = run("explain", kernel, "--target", "sm_80", *args, "--json")
    assert code == 0
    assert json.loads(out)["occupancy"]["limited_by"] == "threads"
