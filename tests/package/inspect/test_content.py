"""The two views of an archive."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from aotc.ir.expression import parse
from aotc.package.archive.index import Archive, Guard
from aotc.package.builder.assemble import assemble
from aotc.package.builder.workers import compile_both_ways
from aotc.package.inspect.content import COLUMNS, describe, guards, rows, summary, text
from aotc.package.manifest.read import load
from aotc.package.manifest.variant_grid import expand
from tests.support import mapped


def test_a_row_for_each_variant(samples: SimpleNamespace) -> None:
    kernel = samples.archive.kernels[0]
    cell_rows = [row.cells for row in rows(kernel)]
    assert len(cell_rows) == len(kernel.variants)
    assert all(len(cells) == len(COLUMNS) for cells in cell_rows)
    first = dict(zip(COLUMNS, cell_rows[0], strict=True))
    assert first == {
        "target": "sm_90a",
        "types": "fp16",
        "choices": "CAUSAL=true",
        "guards": "",
        "config": "num_warps=4 stages=none",
        "cluster": "",
        "overlaps": "pdl",
        "persistent": "",
        "threads": "128",
        "registers": "40",
        "spill bytes": "8",
        "shared bytes": "1040",
        "scratch bytes": "n_rows * 4 + 128",
        "cubin bytes": str(len(kernel.variants[0].cubin)),
        "PTX bytes": str(len(kernel.variants[0].ptx or b"")),
    }
    assert dict(zip(COLUMNS, cell_rows[2], strict=True))["guards"] == "1"
    assert guards(kernel) == ("stride is a multiple of 16",)


def test_summary_counts(samples: SimpleNamespace) -> None:
    line = summary(samples.archive, 1234)
    drivers = "drivers of CUDA 13.0 (R580) and later"
    first, *rest = line.splitlines()
    assert first == "llm 0.1.0 | 2 kernels | 33 variants | sm_80 sm_90a | 1234 bytes"
    assert rest == ["a compiler", drivers]
    line = summary(samples.small, 1)
    assert line == f"one 1 | 1 kernel | 1 variant | sm_90a | 1 bytes\n{drivers}"


def test_description_is_json_and_complete(samples: SimpleNamespace) -> None:
    data = json.loads(json.dumps(describe(samples.archive, 99), allow_nan=False))
    assert (data["name"], data["size_bytes"], data["targets"]) == ("llm", 99, ["sm_80", "sm_90a"])
    assert data["drivers"] == {"sm_80": "13.0", "sm_90a": "13.0"}
    norm, copy = data["kernels"]
    assert norm["types"] == {"T": ["fp16", "bf16"]}
    assert norm["choices"] == {"CAUSAL": [True, False]}
    assert norm["constants"] == {"BLOCK": 4096, "SCALE": 0.5}
    assert norm["guards"][2] == {
        "text": "stride is a multiple of 16",
        "condition": "stride % 16 == 0",
        "promise": False,
    }
    variant = norm["variants"][-1]
    assert variant["target"] == "sm_80"
    assert variant["types"] == {"T": "bf16"}
    assert variant["config"] == {"num_warps": 8, "stages": "x"}
    assert variant["grid"] == ["cdiv(n_rows, 4)"]
    assert (variant["registers"], variant["spill_bytes"], variant["stack_bytes"]) == (40, 8, 16)
    assert copy["params"][0] == {
        "name": "x",
        "kind": "tensor",
        "dtype": "bf16",
        "rank": 2,
        "divisibility": 1,
        "optional": False,
        "access": "unknown",
        "may_be_none": False,
    }
    assert copy["variants"][0]["cluster"] == [2, 1, 1]
    scratch = [kernel["variants"][0]["scratch_bytes"] for kernel in (norm, copy)]
    assert scratch == ["n_rows * 4 + 128", None]
    assert [kernel["variants"][0]["waits_pdl"] for kernel in (norm, copy)] == [True, False]
    assert [kernel["variants"][0]["is_persistent"] for kernel in (norm, copy)] == [False, False]


def test_tables_align_and_leave_empty_columns_out(samples: SimpleNamespace) -> None:
    norm, copy = text(samples.archive, 160).split("\n\n")
    lines = norm.splitlines()
    assert lines[0] == "norm"
    assert lines[1].split() == ["spill", "shared", "cubin", "PTX"]
    names = "target types choices guards config overlaps threads registers "
    names += "bytes bytes scratch bytes bytes bytes"
    assert lines[2].split() == names.split()
    end = lines[2].index("registers") + len("registers")
    assert all(line[:end].endswith(" 40") for line in lines[3:-1])
    assert lines[-1] == "  guard  1  stride is a multiple of 16"
    assert len(lines) == 3 + 32 + 1
    assert copy.splitlines()[-1].split() == ["sm_90a", "2x1x1", "128", "0", "0", "0", "379"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_page(samples: SimpleNamespace, width: int) -> None:
    config = tuple((f"BLOCK_{name}", 128) for name in "ABCDEFGH")
    guard = Guard(parse(" + ".join(["n_rows"] * 40) + " > 3"), "n_rows " + "and more " * 30)
    kernel = replace(samples.norm, configs=(config, config[:1]))
    kernel = replace(kernel, guards=(*kernel.guards[:2], guard))
    shown = text(replace(samples.archive, kernels=(kernel,)), width)
    assert max(len(line) for line in shown.splitlines()) <= width
    assert " ".join(shown.split()).count("and more") == 30


def test_names_cannot_steer_the_terminal(samples: SimpleNamespace) -> None:
    evil = "a\x1b[2Jb\nc\x9bd\u202ee [red]f[/red]"
    kernel = replace(
        samples.norm,
        guards=(*samples.norm.guards[:2], replace(samples.norm.guards[2], text=evil)),
        configs=((("MODE", evil),), (("num_warps", 8),)),
    )
    archive = Archive("llm", evil, (kernel,), evil)
    shown = text(archive, 200) + summary(archive, 1)
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert shown.count("a\\x1b[2Jb\\nc\\x9bd\\u202ee [red]f[/red]") > 8


def test_persistent_variants_are_shown(samples: SimpleNamespace) -> None:
    (variant,) = samples.copy.variants
    kernel = replace(samples.copy, variants=(replace(variant, is_persistent=True),))
    archive = replace(samples.archive, kernels=(kernel,))
    ((cells,),) = [[row.cells for row in rows(kernel)]]
    assert dict(zip(COLUMNS, cells, strict=True))["persistent"] == "yes"
    assert "  persistent  " in text(archive, 100)
    assert describe(archive, 1)["kernels"][0]["variants"][0]["is_persistent"] is True


def test_two_forms_of_a_config(tmp_path: Path) -> None:
    manifest = load(str(mapped.written(tmp_path)))
    expansion = expand(manifest.kernels[0], manifest.targets_for(["sm_90a"], []), lambda *_: [])
    variants = [
        (spec, compile_both_ways(mapped.compile_mapped, spec.request))
        for spec in expansion.variants[:1]
    ]
    archive = Archive("mapped", "0.1.0", (assemble(expansion, variants).kernel,))
    shown = [(row.cells[COLUMNS.index("guards")], row.guards) for row in rows(archive.kernels[0])]
    assert shown == [("1", (mapped.condition(16),)), ("", ())]
    with_map, without = describe(archive, 1)["kernels"][0]["variants"]
    assert (with_map["condition"], without["condition"]) == (mapped.condition(16), None)
    assert without["tensor_maps"] == []
    assert with_map["tensor_maps"] == [
        {
            "param": "x_ptr",
            "address": "x_ptr",
            "dims": ["max(1, cols)", "max(1, rows)"],
            "strides_bytes": ["stride * 4"],
            "box": [32, 16],
        }
    ]
