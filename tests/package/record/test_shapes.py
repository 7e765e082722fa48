"""`aotc record` counts launches: by their integers, over processes and runs, with little cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli

from aotc import cli
from aotc.package.record.launches import merge, read

pytestmark = pytest.mark.usefixtures("one_worker")


def shapes(folder: Path) -> list[dict[str, Any]]:
    return tomli.loads((folder / "shapes.toml").read_text())["shape"]


def test_each_distinct_launch_is_counted(record: Any, tmp_path: Path) -> None:
    """Compiled-in values are not arguments; the autotuner's trials are not launches."""
    program = (
        "import ops\n"
        "for _ in range(3000): ops.run(4096)\n"
        "for n in range(1, 103): ops.run(n)\n"
        "for _ in range(5): ops.run(64, '*fp16')\n"
    )
    code, _, err = record(program)
    assert code == 0, err
    rows = shapes(tmp_path / "record")
    assert rows[0] == {"kernel": "add", "weight": 3000, "n": 4096}
    assert len(rows) == 1 + 102 + 1
    # A length of 1 is compiled in, so it is another table; its launches pass no integer.
    assert {"kernel": "add_2", "weight": 1} in rows
    assert rows[-1] == {"kernel": "add_3", "weight": 5, "n": 64}


def test_counts_of_runs_and_processes_add_up(record: Any, tmp_path: Path) -> None:
    """A forked child counts its own launches only; a killed one loses few."""
    program = (
        "import os, signal, ops\n"
        "for _ in range(6): ops.run(64)\n"
        "if os.fork() == 0:\n"
        "    for _ in range(2500): ops.run(64)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.wait()\n"
        "ops.run(64)\n"
    )
    record(program)
    (first,) = shapes(tmp_path / "record")
    assert first["weight"] == 7 + 2048
    record("import ops\nops.run(64)")
    (second,) = shapes(tmp_path / "record")
    assert second["weight"] == 7 + 2048 + 1


def test_extents_of_descriptors_and_items_of_tuples_are_counted(
    record: Any, tmp_path: Path
) -> None:
    (tmp_path / "rows.py").write_text(
        "import triton\nimport triton.language as tl\n\n@triton.jit\n"
        "def copy(x, sizes, BLOCK: tl.constexpr):\n"
        "    pass\n"
    )
    program = (
        "from collections import namedtuple\nimport rows\n"
        "Sizes = namedtuple('Sizes', 'rows cols')\n"
        "class TensorDescriptor(str):\n"
        "    def __new__(cls, *shape):\n"
        "        made = str.__new__(cls, 'tensordesc<fp16[16, 64]>')\n"
        "        made.shape = list(shape)\n"
        "        return made\n"
        "for shape in ((5, 64), (7, 64), (7, 64)):\n"
        "    rows.copy[(1,)](TensorDescriptor(*shape), Sizes(shape[0], 2), BLOCK=16)\n"
    )
    record(program)
    counts = [row for row in read(tmp_path / "record") if "count" in row]
    assert [(row["count"], row["launch"]["integers"]) for row in counts] == [
        (1, {"x.shape[0]": 5, "x.shape[1]": 64, "sizes_rows": 5, "sizes_cols": 2, "BLOCK": 16}),
        (2, {"x.shape[0]": 7, "x.shape[1]": 64, "sizes_rows": 7, "sizes_cols": 2, "BLOCK": 16}),
    ]


def test_more_distinct_launches_than_are_counted_are_told(record: Any, tmp_path: Path) -> None:
    code, _, err = record(
        "import ops\nfor n in range(2, 4200):\n"
        "    ops.add.fn[(1,)]('*fp16', '*fp16', None, n, 1, BLOCK=64, ACT='')"
    )
    assert code == 0
    assert (
        "not recorded: of more than 4096 distinct launches of a process, the first are counted"
        in err
    )
    assert len(shapes(tmp_path / "record")) == 4096


def test_a_shape_has_the_grid_where_the_manifest_has_none(record: Any, tmp_path: Path) -> None:
    """`launches` accepts the result."""
    record(
        "import ops\nfor rows in (3, 5, 5):\n"
        "    ops.add[lambda meta: (rows,)]('*fp16', '*fp16', None, 64, 1, ACT='')"
    )
    assert shapes(tmp_path / "record") == [
        {"kernel": "add", "weight": 2, "n": 64, "grid": ["5", "1", "1"]},
        {"kernel": "add", "weight": 1, "n": 64, "grid": ["3", "1", "1"]},
    ]


def test_the_recorded_manifest_serves_every_recorded_launch(record: Any, tmp_path: Path) -> None:
    """Launches with and without a promise, with compiled-in values, with the caller's grid."""
    record(
        "import ops\nfor n in (1, 63, 64, 4096): ops.run(n)\nops.run(64, '*fp16')\n"
        "ops.add.fn[(5,)]('*fp16', '*fp16', None, 77, 3, BLOCK=64, ACT='')"
    )
    command = ["cover", "record/kernels.toml", "--shapes", "record/shapes.toml", "--no-compile"]
    assert cli.run([*command, "--strict"]) == 0


def test_a_count_without_its_launch_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    lines = [{"of": 0, "count": 3}, {"of": 1, "launch": {"a": 1}}, {"of": 1, "count": 2}]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "parts" / "1-a.jsonl").write_text(text)
    merge(tmp_path)
    assert read(tmp_path) == [{"count": 2, "launch": {"a": 1}}]
