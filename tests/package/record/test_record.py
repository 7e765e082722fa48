"""`aotc record`: from a program's launches to a buildable manifest; nothing lost, nothing changed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli

from aotc import cli
from aotc.package.record.launches import merge, read
from aotc.package.record.manifest import write_manifest
from tests.support.recorded import KERNELS, STAND_IN

pytestmark = pytest.mark.usefixtures("one_worker")


def kernels(folder: Path) -> list[dict[str, Any]]:
    return tomli.loads((folder / "kernels.toml").read_text())["kernel"]


def test_a_table_says_what_launches_had_in_common(record: Any, tmp_path: Path) -> None:
    code, _, err = record("import ops\nops.run(1000)\nops.run(4096)\nops.run(64, '*fp16')")
    assert code == 0, err
    without, biased = kernels(tmp_path / "record")
    assert without == {
        "name": "add",
        "source": "../ops.py:add",
        "grid": ["cdiv(n, BLOCK)"],
        "guards": "together",
        "limits": {"spill_bytes": 65536},
        "signature": {
            "x": "*fp16:16", "y": "*fp16:16", "bias": "none", "n": "i32:16?", "stride": "i32=1",
        },
        "constants": {"ACT": "silu"},
        "config": [{"BLOCK": 1024, "num_warps": 8, "num_stages": 3}],
    }  # fmt: skip
    assert biased["name"] == "add_2"
    assert biased["signature"]["bias"] == "*fp16:16"
    assert biased["signature"]["n"] == "i32:16"


def test_what_an_autotuner_chose_is_recorded_by_its_key(record: Any, tmp_path: Path) -> None:
    """Record values of the key, dtypes of arguments, and for a repeated key the last choice."""
    program = (
        "import ops\n"
        "class Tensor(str):\n"
        "    dtype = 'torch.uint16'\n"
        "ops.run(1000)\nops.run(4096, Tensor('*u16'))\nops.run(1000)\n"
        "ops.add.cache.clear()\nops.add.configs = ops.add.configs[:1]\nops.run(1000)\n"
    )
    assert record(program)[0] == 0
    manifest = tomli.loads((tmp_path / "record" / "kernels.toml").read_text())
    fast, slow = {"BLOCK": 1024, "num_warps": 8}, {"BLOCK": 256, "num_warps": 4}
    assert manifest["tuned"] == [
        {"source": "../ops.py:add", "key": {"n": 1000}, "dtypes": {}, "config": slow},
        {"source": "../ops.py:add", "key": {"n": 4096}, "dtypes": {"bias": "u16"}, "config": fast},
    ]
    assert cli.run(["build", "record/kernels.toml", "--no-cache", "-j", "1"]) == 0
    sources = json.loads((tmp_path / "dist" / "record.sources.json").read_text())
    assert [choice["key"] for choice in sources["tuned"]] == [{"n": 1000}, {"n": 4096}]
    assert sources["tuned"][0]["file"] == sources["kernels"]["add"]["files"][0][1]


def test_what_is_recorded_builds(record: Any, tmp_path: Path) -> None:
    record("import ops\nops.run(1000)\nops.run(4096)")
    assert cli.run(["build", "record/kernels.toml", "--no-cache", "-j", "1"]) == 0
    assert (tmp_path / "dist" / "record.aotc").exists()


def test_runs_and_child_processes_add_up(record: Any, tmp_path: Path) -> None:
    record("import ops\nops.run(64)", "-o", "both")
    record(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import ops; ops.run(64, \"*bf16\")'], check=True)",
        "-o",
        "both",
    )
    assert [kernel["signature"]["bias"] for kernel in kernels(tmp_path / "both")] == [
        "none",
        "*bf16:16",
    ]
    assert not list((tmp_path / "both" / "parts").iterdir())


def test_the_program_behaves_as_without(record: Any, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins; builtins.own = True")
    program = (
        "import os, sys, ops\n"
        "grids = []\n"
        "def grid(meta):\n"
        "    grids.append(1)\n"
        "    return (1,)\n"
        "ops.add.fn[grid]('*fp16', '*fp16', None, 64, 1, BLOCK=64, ACT='')\n"
        "assert len(grids) == 1, 'called as often as Triton calls it'\n"
        "assert own, 'the own sitecustomize has run'\n"
        "assert not [one for one in sys.path if one.endswith('hook')]\n"
        "sys.exit(7)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        import os

        patch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(STAND_IN)]))
        code, _, err = record(program)
    assert code == 1
    assert "exited with 7; what it launched is recorded" in err
    assert len(kernels(tmp_path / "record")) == 1


def test_launches_are_sampled_not_all_kept(record: Any, tmp_path: Path) -> None:
    record("import ops\nfor n in range(16, 1600, 16): ops.run(n)")
    launches = [row for row in read(tmp_path / "record") if "signature" in row]
    assert [row["integers"]["n"] for row in launches] == list(range(16, 144, 16))


def test_a_grid_that_the_source_does_not_say_is_a_comment(record: Any, tmp_path: Path) -> None:
    record(
        "import ops\n"
        "for rows in (3, 5): ops.add[lambda meta: (rows,)]('*fp16', '*fp16', None, 64, 1, ACT='')"
    )
    assert "grid" not in kernels(tmp_path / "record")[0]
    assert (
        "# grid: callers give it; seen: (3,), (5,)"
        in (tmp_path / "record" / "kernels.toml").read_text()
    )


def test_what_no_manifest_can_name_is_a_comment(record: Any, tmp_path: Path) -> None:
    program = (
        "import ops\nops.add[(1,)]('*fp16', '*fp16', None, 64, 1, ACT=('a', [1]))\nops.run(64)"
    )
    assert record(program, "--strict", "-o", "strict")[0] == 1
    code, _, err = record(program)
    assert code == 0
    assert "note: as a comment: add (" in err
    assert err.splitlines()[-1] == "1 kernel, 1 left out"
    assert "ACT is ('a', [1])" in err
    assert len(kernels(tmp_path / "record")) == 1


def test_kernels_in_functions(record: Any, tmp_path: Path) -> None:
    """A captured value with a source form is recorded with the kernel."""
    path = tmp_path / "ops.py"
    inner = (
        "def make(scale):\n"
        "    @triton.jit\n    def plain(x, n): tl.store(x, n)\n"
        "    @triton.jit\n    def scaled(x, n): tl.store(x, n * scale)\n"
        "    return plain, scaled\n"
    )
    path.write_text(f"{path.read_text()}\n{inner}")
    program = "import ops\nfor scale in (2, 3, object()):\n    for k in ops.make(scale): k[(1,)]('*fp16', 64)"
    code, _, err = record(program)
    assert (code, err.splitlines()[-1]) == (0, "3 kernels, 1 left out")
    plain, two, three = kernels(tmp_path / "record")
    assert plain["source"] == "../ops.py:make.plain"
    for kernel, scale in ((two, 2), (three, 3)):
        file, _, name = kernel["source"].rpartition(":")
        assert name == "scaled"
        assert (
            f"scale = triton.language.constexpr({scale})"
            in (tmp_path / "record" / file).read_text()
        )
    assert "make.scaled captures scale of the function around it: scale is of type object" in err
    text = (tmp_path / "record" / "kernels.toml").read_text()
    assert text.count("# extracted: make.<locals>.scaled captures scale") == 2
    assert cli.run(["build", "record/kernels.toml", "--no-cache", "-j", "1"]) == 0


def test_a_parameter_may_be_called_as_an_option_is(record: Any, tmp_path: Path) -> None:
    """Triton passes the option to the parameter of the same name as well."""
    (tmp_path / "warps.py").write_text(
        "import triton\nimport triton.language as tl\n\n@triton.jit\n"
        "def fill(x, num_warps: tl.constexpr, num_ctas: tl.constexpr):\n"
        "    tl.store(x + tl.arange(0, 32 * num_warps), num_ctas)\n"
    )
    assert record("import warps\nwarps.fill[(1,)]('*fp32', num_warps=2, num_ctas=1)")[0] == 0
    (kernel,) = kernels(tmp_path / "record")
    assert "constants" not in kernel
    assert kernel["config"] == [{"num_warps": 2, "num_stages": 3, "num_ctas": 1}]
    assert cli.run(["build", "record/kernels.toml", "--no-cache", "-j", "1"]) == 0


def test_a_constant_that_is_none_is_recorded_and_built(record: Any, tmp_path: Path) -> None:
    """The function's default does not matter."""
    assert record("import ops\nops.add[(1,)]('*fp16', '*fp16', None, 64, 1, ACT=None)")[0] == 0
    (kernel,) = kernels(tmp_path / "record")
    assert kernel["constants"] == {"ACT": "None"}
    source = (tmp_path / "ops.py").read_text()
    body = "    if ACT is not None:\n        tl.static_assert(False)\n    if bias"
    (tmp_path / "ops.py").write_text(source.replace("    if bias", body))
    assert cli.run(["build", "record/kernels.toml", "--no-cache", "-j", "1"]) == 0


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("no-such-command",), "cannot run 'no-such-command': No such file or directory"),
        ((sys.executable, "-c", "pass"), "expected launches of Triton kernels on an NVIDIA GPU"),
        ((sys.executable, "-c", "raise SystemExit(3)"), f"{sys.executable} exited with 3\nerror: "),
        (
            (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"),
            f"{sys.executable} was ended by signal 9\nerror: expected launches",
        ),
    ],
)
def test_mistakes_of_the_user(
    command: tuple[str, ...],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["record", "--", *command]) == 1
    err = capsys.readouterr().err
    assert expected in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recorder_that_is_stopped_writes_what_it_has(tmp_path: Path, number: int) -> None:
    """And ends the program; only a terminal would have sent it an interrupt."""
    (tmp_path / "ops.py").write_text(KERNELS)
    (tmp_path / "app.py").write_text(
        "import ops, time\nops.run(64)\nprint('launched', flush=True)\ntime.sleep(60)\n"
    )
    words = ("-m", "aotc", "record", "--", sys.executable, "app.py")
    path = os.pathsep.join([str(Path(__file__).parents[3]), str(STAND_IN)])
    with subprocess.Popen(
        [sys.executable, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        assert running.stdout.readline() == "launched\n"
        running.send_signal(number)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted; what it launched is recorded" in err
    assert len(kernels(tmp_path / "record")) == 1


def test_all_configs_of_an_autotuner(record: Any, tmp_path: Path) -> None:
    """On request: as a grid if possible, else one by one, the chosen config first."""
    program = "import ops\nops.run(4096)\n"
    assert record(program, "--all-configs")[0] == 0
    chosen = {"BLOCK": 1024, "num_warps": 8, "num_stages": 3}
    other = {"BLOCK": 256, "num_warps": 4, "num_stages": 3}
    assert kernels(tmp_path / "record")[0]["config"] == [chosen, other]
    assert cli.run(["build", "record/kernels.toml", "--no-cache", "-j", "1"]) == 0
    path = tmp_path / "ops.py"
    configs = "[triton.Config({'BLOCK': b}, w) for b in (256, 512) for w in (2, 4)],"
    path.write_text(re.sub(r"(?s)\[triton\.Config.*?\],", configs, path.read_text(), count=1))
    assert record(program, "--all-configs", "-o", "grid")[0] == 0
    (kernel,) = kernels(tmp_path / "grid")
    assert "config" not in kernel
    values = {name: sorted(numbers) for name, numbers in kernel["configs"].items()}
    assert values == {"BLOCK": [256, 512], "num_warps": [2, 4], "num_stages": [3]}
    assert cli.run(["build", "grid/kernels.toml", "--no-cache", "-j", "1"]) == 0


def test_options_that_no_archive_is_built_with_are_losses(record: Any, tmp_path: Path) -> None:
    """A table without them would describe another kernel, or match no launch."""
    option = "default_dot_input_precision='ieee'"
    launch = "ops.add.fn[(1,)]('*fp16', '*fp16', None, 64, 1, BLOCK=64, ACT=''"
    code, _, err = record(f"import ops\n{launch})\n{launch}, {option})\n", "--strict")
    assert code == 1
    assert err.splitlines()[-1] == "1 kernel, 1 left out"
    assert f"it is launched with {option.replace(chr(39), '')}, which no manifest can say" in err
    assert len(kernels(tmp_path / "record")) == 1


def test_a_cooperative_launch_has_a_table_of_its_own(record: Any, tmp_path: Path) -> None:
    launch = "ops.add.fn[(1,)]('*fp16', '*fp16', None, 64, 1, BLOCK=64, ACT=''"
    program = f"import ops\n{launch})\n{launch}, launch_cooperative_grid=True)\n"
    assert record(program, "--strict")[0] == 0
    plain, cooperative = kernels(tmp_path / "record")
    assert "launch_cooperative_grid" not in plain
    assert cooperative["launch_cooperative_grid"] is True


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("(1, -2, 3)", "(1, -2, 3)"),
        ("(4,)", "(4,)"),
        ("()", "()"),
        ("((1, 2), (3, 'x'))", "((1, 2), (3, 'x'))"),
        ("(None, True, 0.5)", "(None, True, 0.5)"),
        ("type('Size', (tuple,), {})((2, 3))", "(2, 3)"),
    ],
)
def test_a_tuple_among_constants_is_a_text(
    record: Any, tmp_path: Path, value: str, text: str
) -> None:
    program = (
        f"import ops\nops.add.fn[(1,)]('*fp16', '*fp16', None, 64, 1, BLOCK=64, ACT={value})\n"
    )
    assert record(program, "--strict")[0] == 0
    assert kernels(tmp_path / "record")[0]["constants"]["ACT"] == text


@pytest.mark.parametrize(
    "value", ["(float('inf'),)", "(object(),)", "__import__('collections').namedtuple('P', 'x')(1)"]
)
def test_a_tuple_that_no_text_says_is_a_loss(record: Any, value: str) -> None:
    program = (
        f"import ops\nops.add.fn[(1,)]('*fp16', '*fp16', None, 64, 1, BLOCK=64, ACT={value})\n"
    )
    code, _, err = record(program)
    assert code == 1, "nothing is left to build"
    assert "which a manifest cannot say" in err
    assert err.splitlines()[-1] == "0 kernels, 1 left out"


def test_numbers_of_numpy_are_numbers(record: Any, tmp_path: Path) -> None:
    launch = "ops.add.fn[(1,)]('*fp16', '*fp16', None, 64, 1, BLOCK=64, ACT="
    values = ("np.int64(5)", "np.float32(0.5)", "np.bool_(True)")
    calls = "".join(f"{launch}{value})\n" for value in values)
    assert record(f"import numpy as np, ops\n{calls}", "--strict")[0] == 0
    recorded = [kernel["constants"]["ACT"] for kernel in kernels(tmp_path / "record")]
    assert [(type(value), value) for value in recorded] == [(int, 5), (float, 0.5), (bool, True)]


def test_an_empty_grid_is_not_the_manifests(record: Any, tmp_path: Path) -> None:
    """Triton launches nothing then; a manifest's grid has a program at least."""
    program = "import ops\nops.launch_rows('*fp16', 0)\n"
    path = tmp_path / "ops.py"
    path.write_text(
        path.read_text()
        + "\ndef launch_rows(x, n):\n"
        + "    add.fn[(n // 64,)](x, x, None, n, 1, BLOCK=64, ACT='')\n"
    )
    assert record(program, "--strict")[0] == 0
    assert "grid" not in kernels(tmp_path / "record")[0]


def test_a_member_of_an_enumeration_is_its_value(record: Any, tmp_path: Path) -> None:
    program = (
        "import enum, ops\n"
        "class Mode(enum.Enum):\n    FAST = 3\n"
        "ops.add.fn[(1,)]('*fp16', '*fp16', None, 64, 1, BLOCK=64, ACT=Mode.FAST)\n"
    )
    assert record(program, "--strict")[0] == 0
    assert kernels(tmp_path / "record")[0]["constants"]["ACT"] == 3


TENSORS = """
import ops
class Tensor(str):
    def __new__(cls, at, shape=(64,), strides=(1,)):
        made = super().__new__(cls, "*fp16")
        made.at, made.shape, made.strides = at, shape, strides
        return made
    def data_ptr(self): return self.at
    def element_size(self): return 2
    def stride(self): return self.strides
def run(x, y, bias=None):
    ops.add.fn[(1,)](x, y, bias, 64, 1, BLOCK=64, ACT="")
"""


@pytest.mark.parametrize(
    ("calls", "comment"),
    [
        ("run(Tensor(4096), Tensor(4096 + 128))", "1 launch: none"),
        ("run(Tensor(4096), Tensor(4096 + 126))", "1 launch: x and y"),
        ("run(Tensor(4096), Tensor(4096, (0,)))", "1 launch: none"),
        ("run(Tensor(4096, (2, 4), (1000, 1)), Tensor(6002))", "1 launch: x and y"),
        ("a = Tensor(4096)\nrun(a, a)\nrun(a, Tensor(9000))", "2 launches: x and y"),
        ("run(Tensor(4096), '*fp16')", ""),
    ],
)
def test_overlaps_are_a_comment(record: Any, tmp_path: Path, calls: str, comment: str) -> None:
    """Observed aliasing, for a user's `noalias`; nothing about memory of unknown size."""
    assert record(f"{TENSORS}{calls}\n")[0] == 0
    text = (tmp_path / "record" / "kernels.toml").read_text()
    assert re.findall("# overlaps seen in (.*)", text) == ([comment] if comment else [])
    assert kernels(tmp_path / "record")[0]["signature"]["y"] == "*fp16:16"


def test_a_line_that_a_killed_process_left_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    whole = json.dumps({"tuned": []})
    (tmp_path / "parts" / "1-a.jsonl").write_text(f'{whole}\n{whole}\n{{"kern')
    merge(tmp_path)
    assert read(tmp_path) == [{"tuned": []}]


def test_vendored_sources_build_elsewhere(record: Any, tmp_path: Path) -> None:
    package = tmp_path / "lib" / "ops"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "add.py").write_text(KERNELS)
    code, _, err = record("import ops, lib.ops.add\nops.run(64)\nlib.ops.add.run(64)", "--vendor")
    assert code == 0, err
    sources = [kernel["source"] for kernel in kernels(tmp_path / "record")]
    assert sources == ["sources/ops.py:add", "sources/lib/ops/add.py:add"]
    manifest = tomli.loads((tmp_path / "record" / "kernels.toml").read_text())
    assert [kernel["source"] for kernel in manifest["tuned"]] == sources
    (tmp_path / "record").rename(tmp_path / "moved")
    (tmp_path / "ops.py").unlink()
    assert cli.run(["build", "moved/kernels.toml", "--no-cache", "-j", "1"]) == 0


def test_tuples_are_types_of_the_manifest(tmp_path: Path) -> None:
    """Items have promises and fixed values of their own, and a named tuple its fields."""
    source = tmp_path / "pairs.py"
    source.write_text(
        "import triton\nimport triton.language as tl\n"
        "@triton.jit\ndef pair(x, shape, strides, BLOCK: tl.constexpr):\n"
        "    tl.store(x + tl.arange(0, BLOCK) * strides[0], 1.0, mask=tl.arange(0, BLOCK) < shape[0])\n"
    )
    launch = {
        "kernel": {"file": str(source), "function": "pair", "module": "pairs"},
        "constexprs": ["BLOCK"],
        "signature": {
            "x": "*fp32",
            "shape": {"items": ["i32", "i32"], "fields": ["rows", "cols"]},
            "strides": {"items": ["constexpr", {"items": ["i64"], "fields": []}], "fields": []},
            "BLOCK": "constexpr",
        },
        "divisible": ["x", "shape.0"],
        "constants": {"strides.0": {"value": 1}, "BLOCK": {"value": 64}},
        "options": {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None},
        "target": ["cuda", 90],
        "grid": [1],
        "integers": {},
        "caller": {"file": str(source), "line": 1},
    }
    other = {**launch, "divisible": ["x"]}
    text = write_manifest([launch, other], tmp_path / "kernels.toml", "pairs").text
    (kernel,) = tomli.loads(text)["kernel"]
    assert kernel["signature"] == {
        "x": "*fp32:16",
        "shape": "(rows: i32:16?, cols: i32)",
        "strides": "(i32=1, (i64,))",
    }
    assert kernel["guards"] == "together"


def test_a_grid_that_a_module_names_is_an_expression(record: Any, tmp_path: Path) -> None:
    code, _, err = record(
        "import ops\nimport triton\n"
        "grid = lambda meta: (triton.cdiv(4096, meta['BLOCK']),)\n"
        "ops.add[grid]('*fp16', '*fp16', None, 4096, 1, ACT='silu')\n"
    )
    assert code == 0, err
    assert kernels(tmp_path / "record")[0]["grid"] == ["cdiv(4096, BLOCK)"]


def test_the_guide_to_porting_shows_the_recorded_table(record: Any, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guide" / "porting.md").read_text()
    (source,) = re.findall(r"(?s)<!-- file: softmax.py -->\n```python\n(.*?)```", page)
    (table,) = re.findall(r"(?s)```toml\n(\[\[kernel\]\]\nname.*?)```", page)
    (tmp_path / "torch.py").write_text(
        "def empty_like(tensor):\n    made = type(tensor)(tensor)\n    made.at = 1 << 20\n    return made\n"
    )
    (tmp_path / "softmax.py").write_text(source)
    record(
        "import softmax, triton\n"
        "triton.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()\n"
        "class Tensor(str):\n"
        "    shape, at = (128, 1000), 4096\n"
        "    def stride(self, axis=None): return (1000, 1) if axis is None else 1000\n"
        "    def data_ptr(self): return self.at\n"
        "    def element_size(self): return 4\n"
        "softmax.softmax(Tensor('*fp32'))\n"
    )
    assert (tmp_path / "record" / "kernels.toml").read_text().endswith(table)
