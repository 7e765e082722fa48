"""A new user's first hour: a copy of the repository, and the commands of its documents.

The snippets are extracted from the documents and run, so an outdated document fails here. Commands run
in their own processes, from the copy, with nothing of this checkout on their path.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import aotc
from aotc.config import CONFIG_KEYS
from aotc.ir.dialects import arith, gpu, scf, tile  # noqa: F401 - ops that texts name
from aotc.ir.text import parse_kernel, print_kernel
from aotc.target import TARGETS

_ROOT = Path(__file__).parents[2]

# Triton code of the user, named in the reference's manifest, with as many parameters.
_NORM = """\
import triton
import triton.language as tl


@triton.jit
def rmsnorm_kernel(x_ptr, w_ptr, out_ptr, stride, n_rows, n_cols, eps,
                   BLOCK: tl.constexpr, ROWS: tl.constexpr = 1, CAUSAL: tl.constexpr = False):
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    for i in tl.static_range(ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS + i
        kept = mask & (row < n_rows)
        if CAUSAL:
            kept = kept & (cols <= row)
        x = tl.load(x_ptr + row * stride + cols, mask=kept, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x, axis=0) / n_cols + eps)
        tl.store(out_ptr + row * n_cols + cols, x * rstd * w, mask=kept)
"""


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree without files from builds and tests."""
    folder = tmp_path_factory.mktemp("new-user") / "aotc"
    ignored = (_ROOT / ".gitignore").read_text().split()
    left_out = [pattern.strip("/") for pattern in ignored]
    shutil.copytree(_ROOT, folder, ignore=shutil.ignore_patterns(".git", ".cache", *left_out))
    for built in (_ROOT / "aotc" / "runtime").glob("_native*.so"):  # compiled by `pip install`
        shutil.copyfile(built, folder / "aotc" / "runtime" / built.name)
    return folder


def _ran(copy: Path, folder: Path, command: list[str], **env: str) -> Ran:
    """Run a command in `folder`, with nothing of this environment but the path."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(copy.parent),
        "XDG_CACHE_HOME": str(copy.parent / "cache"),
        "PYTHONPATH": str(copy),
        **env,
    }
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def aotc_in(copy: Path, folder: Path, *args: str, **env: str) -> Ran:
    """Run the copy's command line in `folder`."""
    return _ran(copy, folder, [sys.executable, "-m", "aotc", *args], **env)


def snippets(document: str, language: str) -> list[str]:
    """Return the code blocks of a document in `language`."""
    text = (_ROOT / document).read_text()
    blocks: list[tuple[str, str]] = re.findall(r"(?ms)^ *```(\w*)\n(.*?)^ *```$", text)
    return [block for marked, block in blocks if marked == language]


def quickstart_files(document: str) -> dict[str, str]:
    """Return the files of a document: the blocks under `<!-- file: NAME -->`."""
    text = (_ROOT / document).read_text()
    return dict(re.findall(r"(?ms)^<!-- file: (\S+) -->\n```\w*\n(.*?)^```$", text))


def marked_commands(document: str) -> list[str]:
    """Return the commands under each `<!-- run -->` of a document, a line each."""
    text = (_ROOT / document).read_text()
    blocks: list[str] = re.findall(r"(?ms)^<!-- run -->\n```sh\n(.*?)^```$", text)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def shown_outputs(document: str) -> dict[str, list[str]]:
    """Return the lines shown for each command under `<!-- prints: COMMAND -->`."""
    text = (_ROOT / document).read_text()
    blocks = re.findall(r"(?ms)^<!-- prints: ([^\n]*) -->\n```\n\$ ([^\n]*)\n(.*?)^```$", text)
    assert [marked for marked, command, _ in blocks if marked != command] == []
    return {command: shown.splitlines() for command, _, shown in blocks}


def _comparable(line: str) -> str:
    """Return a line without times, sizes, versions, and the order of variants."""
    line = re.sub(r"^\[\d+/", "[#/", line.rstrip())
    if line.startswith("  sm_"):  # registers and sizes of a variant change with the compiler
        line = re.sub(r"(?<= )\d+(?= |$)", "#", line)
    line = re.sub(r"/\S*/aotc: \d+ files", "CACHE: # files", line)
    line = re.sub(r"(?<![=\d])(\d+(\.\d+)+|\d{1,3}(,\d{3})+|\d{4,})", "#", line)
    return re.sub(r" +", " ", line)


def assert_shown(shown: list[str], ran: Ran) -> None:
    """Compare a command's output with the lines shown; only … allows other lines."""
    streams = [[_comparable(line) for line in text.splitlines()] for text in (ran.out, ran.err)]
    printed = [line for stream in streams for line in stream]
    expected = [_comparable(line) for line in shown if line != "…"]
    assert [line for line in expected if line not in printed] == [], "\n".join(printed)
    for stream in streams:  # a terminal mixes the two; each keeps its order
        rest = iter(stream)
        assert all(line in rest for line in expected if line in stream), "\n".join(stream)
    assert "…" in shown or sorted(expected) == sorted(printed)


def run_in(copy: Path, folder: Path, command: str) -> Ran:
    """Run a line of a document in a shell with the copy's `aotc`."""
    shims = copy.parent / "bin"
    shims.mkdir(exist_ok=True)
    (shims / "aotc").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m aotc "$@"\n')
    (shims / "aotc").chmod(0o755)
    path = f"{shims}:{os.environ['PATH']}"
    return _ran(copy, folder, ["bash", "-euo", "pipefail", "-c", command], PATH=path)


@pytest.fixture(scope="module")
def quickstart(copy: Path) -> Path:
    """Follow the README's quickstart in a folder and return it."""
    folder = copy.parent / "quickstart"
    folder.mkdir()
    for name, text in quickstart_files("README.md").items():
        (folder / name).write_text(text)
    (build, *_) = marked_commands("README.md")
    ran = run_in(copy, folder, build)
    assert ran.code == 0, ran.err
    assert_shown(shown_outputs("docs/guide/start.md")["aotc build llm.toml"], ran)
    assert ran.out.splitlines() == [
        "dist/llm.aotc",
        "dist/llm.h",
        "dist/llm.sources.json",
        "dist/libllm.a",
    ]
    return folder


def _inspected(copy: Path, archive: Path) -> dict[str, Any]:
    ran = aotc_in(copy, archive.parent, "inspect", archive.name, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def _bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# ----------------------------------------------------------------------------------- the README


def test_the_quickstart_builds_what_it_says(copy: Path, quickstart: Path) -> None:
    content = _inspected(copy, quickstart / "dist" / "llm.aotc")
    assert (content["name"], content["version"]) == ("llm", "0.1.0")
    assert content["targets"] == ["sm_80", "sm_90a"]
    (kernel,) = content["kernels"]
    assert kernel["name"] == "rmsnorm"
    assert kernel["types"] == {"T": ["fp16", "bf16"]}
    assert kernel["constants"] == {"BLOCK": 4096}
    # 2 targets, 2 dtypes, 2 optional promises, 2 configs
    assert len(kernel["variants"]) == 2 * 2 * 4 * 2


@pytest.mark.slow
def test_the_quickstart_runs_as_it_stands(copy: Path, quickstart: Path) -> None:
    _, inspect, verify = marked_commands("README.md")
    shown = shown_outputs("docs/guide/start.md")
    ran = run_in(copy, quickstart, inspect)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("llm 0.1.0 | 1 kernel | 32 variants | sm_80 sm_90a | ")
    ran = run_in(copy, quickstart, verify)
    assert ran.code == 0, ran.out + ran.err
    assert_shown(shown[verify], ran)
    assert re.search(r"(?m)^16 verified, 16 cubins audited ", ran.err)


@pytest.mark.parametrize("command", ["inspect", "doctor"])
def test_the_start_page_shows_the_output(copy: Path, quickstart: Path, command: str) -> None:
    """Of `doctor` the lines on the driver are left out where there is one."""
    line = f"aotc {command} dist/llm.aotc"
    ran = run_in(copy, quickstart, line)
    shown = shown_outputs("docs/guide/start.md")[line]
    if command == "doctor" and "none: libcuda" not in ran.out:
        shown = [*(text for text in shown if text.startswith("ok")), "…"]
    assert_shown(shown, ran)


def test_a_page_that_shows_another_output_is_found() -> None:
    ran = Ran(0, "a: 12,345 in 1.5 s\nb 2\n", "[3/4] c\n")
    assert_shown(["[1/4] c", "a: 1,234 in 0.3 s", "b 2"], ran)
    assert_shown(["…", "b 2"], ran)
    for wrong in (["b 3", "…"], ["b 2"], ["b 2", "a: 12,345 in 1.5 s", "…"]):
        with pytest.raises(AssertionError):
            assert_shown(wrong, ran)


def test_the_quickstart_in_python_passes_the_arguments_there_are(
    copy: Path, quickstart: Path
) -> None:
    content = _inspected(copy, quickstart / "dist" / "llm.aotc")
    params = [param["name"] for param in content["kernels"][0]["params"]]
    assert params == ["x_ptr", "w_ptr", "out_ptr", "stride", "n_rows", "n_cols", "eps"]
    _, snippet = snippets("README.md", "python")
    calls = [node for node in ast.walk(ast.parse(snippet)) if isinstance(node, ast.Call)]
    launch = next(call for call in calls if isinstance(call.func, ast.Subscript))
    assert len(launch.args) == len(params)


def test_the_quickstart_in_cpp_compiles(copy: Path, quickstart: Path) -> None:
    (snippet,) = snippets("README.md", "cpp")
    (quickstart / "server.cpp").write_text(snippet)
    command = ["c++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    command += [f"-I{copy / 'runtime_c' / 'include'}", "-Idist", "server.cpp"]
    ran = subprocess.run(command, cwd=quickstart, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_another_folder_user_and_hash_seed_give_the_same_bytes(
    copy: Path, quickstart: Path
) -> None:
    other = copy.parent / "another place"
    other.mkdir()
    shutil.copyfile(quickstart / "norm.py", other / "norm.py")
    shutil.copyfile(quickstart / "llm.toml", other / "llm.toml")
    args = ["build", str(other / "llm.toml"), "--no-cache", "-j", "1", "-o", str(other / "out")]
    env = {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C", "HOME": str(other)}
    ran = aotc_in(copy, copy.parent, *args, **env)
    assert ran.code == 0, ran.err
    assert _bytes_of(other / "out") == _bytes_of(quickstart / "dist")


def test_a_second_build_has_nothing_to_do(copy: Path, quickstart: Path) -> None:
    ran = aotc_in(copy, quickstart, "build", "llm.toml")
    assert ran.code == 0
    assert "32 variants (0 compiled, 32 cached, " in ran.err


@pytest.mark.slow
def test_the_own_kernels_build_from_the_copy(copy: Path) -> None:
    args = ["--kernel", "vector_add", "--kernel", "argmax_rows", "--target", "sm_80"]
    ran = aotc_in(copy, copy, "build", "kernels.toml", *args)
    assert ran.code == 0, ran.err
    content = _inspected(copy, copy / "dist" / "kernels.aotc")
    assert {kernel["name"] for kernel in content["kernels"]} == {"vector_add", "argmax_rows"}


# ----------------------------------------------------------------------------- docs/reference/manifest.md


@pytest.mark.slow
def test_the_manifests_example_builds(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "norm.py").write_text(_NORM)
    manifest = snippets("docs/reference/manifest.md", "toml")[0]
    (tmp_path / "kernels.toml").write_text(manifest)
    ran = aotc_in(copy, tmp_path, "build", "--target", "sm_90a")
    assert ran.code == 0, ran.err
    (kernel,) = _inspected(copy, tmp_path / "dist" / "llm.aotc")["kernels"]
    assert kernel["choices"] == {"CAUSAL": [True, False]}
    # dtypes, choices, one promise, and configs; `where` passes all
    assert len(kernel["variants"]) == 2 * 2 * 2 * 4
    grids = {variant["config"]["ROWS"]: variant["grid"] for variant in kernel["variants"]}
    assert grids == {1: ["cdiv(n_rows, 1)"], 4: ["cdiv(n_rows, 4)"]}

    # The document's mistake gives the document's message.
    (tmp_path / "kernels.toml").write_text(manifest.replace("BLOCK = 4096", "BLOKC = 4096"))
    before = _bytes_of(tmp_path / "dist")
    ran = aotc_in(copy, tmp_path, "build")
    assert ran.code == 1
    assert ran.err == snippets("docs/reference/manifest.md", "")[0]
    assert _bytes_of(tmp_path / "dist") == before


# ----------------------------------------------------------------------------- docs/reference/language.md


def test_the_mistake_that_the_language_page_shows(copy: Path, tmp_path: Path) -> None:
    lines = {
        1: "import triton",
        2: "import triton.language as tl",
        12: "@triton.jit",
        13: "def center(x, mean):",
        14: "    z = mean[:, None] - x",
        15: "    return z",
        27: "@triton.jit",
        28: "def k(x_ptr):",
        29: "    x = tl.zeros((64, 128), tl.float32)",
        30: "    mean = tl.zeros((128,), tl.float32)",
        31: "    y = center(x, mean)",
    }
    source = "\n".join(lines.get(number, "") for number in range(1, 32))
    (tmp_path / "norm.py").write_text(source)
    ran = aotc_in(copy, tmp_path, "dump", "norm.py:k", "--stage", "tile", "--set", "x_ptr=*fp32")
    assert ran.code == 1
    assert ran.err in snippets("docs/reference/language.md", "")


# ---------------------------------------------------------------------------------- docs/reference/cli.md


@pytest.mark.parametrize("command", ["build", "inspect", "dump"])
def test_help_and_the_page_on_the_command_line_agree(copy: Path, command: str) -> None:
    ran = aotc_in(copy, copy, command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: aotc {command} ")
    page = (_ROOT / "docs" / "reference" / "cli.md").read_text()
    section = page[page.index(f"## `aotc {command}") :].partition("\n## ")[0] + page[:700]
    offered = set(re.findall(r"--[a-z-]+", ran.out)) - {"--help"}
    assert [option for option in sorted(offered) if option not in section] == []
    shown = set(re.findall(r"`[^`]*?(--[a-z-]+)", section.partition("# The command line")[0]))
    assert shown <= offered


def test_version_and_the_list_of_commands(copy: Path) -> None:
    assert aotc_in(copy, copy, "--version") == (0, f"aotc {aotc.__version__}\n", "")
    assert aotc_in(copy, copy, "-V").out == f"aotc {aotc.__version__}\n"
    ran = aotc_in(copy, copy, "-h")
    assert ran.code == 0
    for command in ("build", "inspect", "dump"):
        assert re.search(rf"(?m)^  {command} +[A-Z]", ran.out)


@pytest.mark.slow
def test_the_dumps_of_the_page_on_the_command_line(
    copy: Path, quickstart: Path, tmp_path: Path
) -> None:
    *commands, session = (
        text for text in snippets("docs/reference/cli.md", "") if "aotc dump" in text
    )
    by_settings, by_manifest, by_archive = (
        shlex.split(text.replace("\\\n", " "))[1:] for text in commands
    )
    add = (_ROOT / "kernels" / "elementwise.py").read_text().partition("@triton.jit\ndef silu")[0]
    add = add.replace("vector_add_kernel", "add_kernel").replace("out_ptr, n_elements", "n")
    (tmp_path / "add.py").write_text(add.replace("n_elements", "n").replace("out_ptr", "y_ptr"))
    ran = aotc_in(copy, tmp_path, *by_settings)
    assert ran.code == 0, ran.err
    assert ".target sm_90a\n" in ran.out
    assert ".reqntid 256\n" in ran.out

    shutil.copyfile(quickstart / "llm.toml", quickstart / "kernels.toml")
    ran = aotc_in(copy, quickstart, *by_manifest)
    assert ran.code == 0, ran.err
    assert "%x_ptr: *bf16 {divisibility = 16}" in ran.out
    assert "{num_warps = 8" in ran.out

    other = ["build", str(quickstart / "llm.toml"), "--target", "sm_90a"]
    assert aotc_in(copy, tmp_path, *other).code == 0
    ran = aotc_in(copy, tmp_path, *by_archive)
    assert ran.code == 0, ran.err
    assert "EXIT" in ran.out

    write, edit, go_on = map(str.strip, session.splitlines())
    assert edit.startswith("vim ")
    assert aotc_in(copy, quickstart, *write.split()[1:]) == (0, "", "rmsnorm.ptx\n")
    ran = aotc_in(copy, quickstart, *go_on.split()[1:])
    assert ran.code == 0, ran.err
    assert "EXIT" in ran.out


# ----------------------------------------------------------------------------------- the guides


@pytest.mark.slow
def test_the_guide_to_porting(copy: Path, tmp_path: Path) -> None:
    for name, text in quickstart_files("docs/guide/porting.md").items():
        (tmp_path / name).write_text(text)
    check, init, build, verify = marked_commands("docs/guide/porting.md")
    shown = shown_outputs("docs/guide/porting.md")
    ran = run_in(copy, tmp_path, check)
    assert ran.code == 0, ran.err
    assert_shown(shown[check], ran)
    ran = run_in(copy, tmp_path, init)
    assert ran.code == 0, ran.err
    assert_shown(shown[init], ran)
    ran = run_in(copy, tmp_path, build)
    assert ran.code == 0, ran.err
    assert_shown(shown[build], ran)
    (kernel,) = _inspected(copy, tmp_path / "dist" / "ops.aotc")["kernels"]
    # dtypes, choices, all promises or none, and configs passed by `where`
    assert len(kernel["variants"]) == 2 * 2 * 2 * 4
    ran = run_in(copy, tmp_path, verify)
    assert ran.code == 0, ran.err
    assert_shown(shown[verify], ran)
    ran = run_in(copy, tmp_path, f"{init.split()[0]} build first.toml -o first")
    assert ran.code == 0, ran.err


def test_the_page_on_compile(copy: Path, quickstart: Path) -> None:
    snippet, launch = snippets("docs/reference/compile.md", "python")
    ast.parse(launch)  # it needs a GPU
    checks = """
assert kernel.cubin[:4] == b"\\x7fELF"
assert kernel.metadata.symbol == "rmsnorm_kernel"
assert kernel.metadata.spill_bytes == 0
assert ".entry rmsnorm_kernel(" in kernel.asm["ptx"]
"""
    (quickstart / "compile.py").write_text(snippet + checks)
    ran = run_in(copy, quickstart, f"'{sys.executable}' -P compile.py || exit 1")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("x_ptr *bf16")


def test_the_page_on_compile_names_every_argument() -> None:
    page = (_ROOT / "docs" / "reference" / "compile.md").read_text()
    parameters = inspect.signature(aotc.compile).parameters.values()
    arguments = [
        parameter.name for parameter in parameters if parameter.kind != parameter.VAR_KEYWORD
    ]
    assert [name for name in (*arguments, *CONFIG_KEYS) if f"`{name}`" not in page] == []


def test_the_manifests_reference_and_the_guide_to_tuning_name_every_config_key() -> None:
    for page in ("reference/manifest.md", "guide/tuning.md"):
        text = (_ROOT / "docs" / page).read_text()
        assert [key for key in CONFIG_KEYS if f"`{key}`" not in text] == []


def test_platforms_names_every_target() -> None:
    page = (_ROOT / "docs" / "reference" / "platforms.md").read_text()
    gpus = page.partition("toolchain")[0]
    assert re.findall(r"(?m)^\| `(sm_\w+)` \|", gpus) == list(TARGETS)


# ------------------------------------------------------------------------------ the five stages

_SETTINGS = (
    *("x_ptr=*fp32:16", "y_ptr=*fp32:16", "out_ptr=*fp32:16", "n_elements=i32:16"),
    *("BLOCK=1024", "num_warps=4"),
)


@pytest.mark.parametrize(
    ("subject", "settings"),
    [
        ("kernels/elementwise.py:vector_add_kernel", _SETTINGS),
        pytest.param(
            *("kernels.toml:vector_add", ("T=fp32", "num_warps=4")), marks=pytest.mark.slow
        ),
    ],
)
def test_every_stage_of_the_vector_add(copy: Path, subject: str, settings: tuple[str, ...]) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    texts: dict[str, str] = {}
    for stage in ("tile", "gpu", "llvm", "ptx", "sass"):
        ran = aotc_in(copy, copy, "dump", subject, "--stage", stage, "--target", "sm_90a", *words)
        assert (ran.code, ran.err) == (0, ""), stage
        texts[stage] = ran.out
    for stage in ("tile", "gpu"):
        kernel = parse_kernel(texts[stage])
        assert print_kernel(kernel).rstrip("\n") == texts[stage].rstrip("\n")
        assert (kernel.name, kernel.num_warps) == ("vector_add_kernel", 4)
    # Shapes and dtypes, no hardware; then the layout: four elements a thread, then the next
    # thread, then the next warp, and the whole of it again for the rest of the tile.
    assert "tile.load(" in texts["tile"]
    assert "tile<1024xfp32>" in texts["tile"]
    assert "#" not in texts["tile"]
    blocked = (
        r"#0 = #ll<register=\[\[1\],\[2\],\S+ lane=\[\[4\],\[8\],\[16\],\[32\],\[64\]\] "
        r"warp=\[\[128\],\[256\]\] : \[1024\]>\n"
    )
    assert re.match(blocked, texts["gpu"])
    assert "gpu.load(" in texts["gpu"]
    assert "tile<1024xfp32, #0>" in texts["gpu"]
    assert "define ptx_kernel void @vector_add_kernel(" in texts["llvm"]
    assert ".visible .entry vector_add_kernel(" in texts["ptx"]
    assert re.search(r"ld\.global\S*\.v4\.b32", texts["ptx"])
    assert re.search(r"LDG\.E\.\S*128", texts["sass"])


# -------------------------------------------------------------------------------- aotc inspect


def test_inspect_shows_a_row_for_each_variant(copy: Path, quickstart: Path) -> None:
    ran = aotc_in(copy, quickstart, "inspect", "dist/llm.aotc")
    assert (ran.code, ran.err) == (0, "")
    summary, _, drivers, _, kernel, units, header, *rows = ran.out.splitlines()
    size = (quickstart / "dist" / "llm.aotc").stat().st_size
    assert summary.startswith(f"llm 0.1.0 | 1 kernel | 32 variants | sm_80 sm_90a | {size} bytes")
    assert drivers.startswith("drivers of CUDA 13.0")
    assert kernel == "rmsnorm"
    assert units.split()[:3] == ["spill", "shared", "cubin"]
    assert header.split()[:2] == ["target", "types"]
    assert len([row for row in rows if row.startswith("  sm_")]) == 32
    assert max(map(len, ran.out.splitlines())) <= 120


def test_inspect_as_json_says_everything(copy: Path, quickstart: Path) -> None:
    content = _inspected(copy, quickstart / "dist" / "llm.aotc")
    (kernel,) = content["kernels"]
    assert kernel["params"][0] == {
        "name": "x_ptr",
        "kind": "pointer",
        "dtype": "T",
        "rank": 0,
        "divisibility": 16,
        "optional": False,
        "access": kernel["params"][0]["access"],
        "may_be_none": False,
    }
    texts = [guard["text"] for guard in kernel["guards"]]
    assert "x_ptr is 16-byte aligned" in texts
    assert "stride is a multiple of 16" in texts
    for variant in kernel["variants"]:
        assert variant["target"] in content["targets"]
        assert variant["types"]["T"] in ("fp16", "bf16")
        assert variant["config"]["num_warps"] * 32 == variant["threads"]
        assert variant["grid"] == ["n_rows"]
        assert 0 < variant["registers"] <= 255
        assert variant["spill_bytes"] == 0
        assert variant["cubin_bytes"] > 1000
        assert set(variant["guards"]) <= set(texts)
    keys = [
        (v["target"], v["types"]["T"], tuple(v["guards"]), v["config"]["num_warps"])
        for v in kernel["variants"]
    ]
    assert len(set(keys)) == len(keys)
