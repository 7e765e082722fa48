"""The two views of an archive."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from aotc.package.assemble import assemble
from aotc.package.grid import expand
from aotc.package.index import Archive
from aotc.package.inspect import COLUMNS, describe, rows, summary, table
from aotc.package.manifest import load
from aotc.package.workers import compile_both_ways
from tests.support import mapped


def test_a_row_for_each_variant(samples: SimpleNamespace) -> None:
    archive: Archive = samples.archive
    found = [row.cells for row in rows(archive)]
    assert len(found) == sum(len(kernel.variants) for kernel in archive.kernels)
    assert all(len(cells) == len(COLUMNS) for cells in found)
    first = dict(zip(COLUMNS, found[0], strict=True))
    assert first == {
        "kernel": "norm",
        "target": "sm_90a",
        "types": "fp16",
        "choices": "CAUSAL=true",
        "guards": "",
        "config": "num_warps=4 stages=none",
        "cluster": "",
        "overlaps": "pdl",
        "loops over": "",
        "threads": "128",
        "registers": "40",
        "spill bytes": "8",
        "shared bytes": "1040",
        "cubin bytes": str(len(archive.kernels[0].variants[0].cubin)),
        "PTX bytes": str(len(archive.kernels[0].variants[0].ptx or b"")),
    }
    assert dict(zip(COLUMNS, found[2], strict=True))["guards"] == "stride is a multiple of 16"


def test_summary_counts(samples: SimpleNamespace) -> None:
    line = summary(samples.archive, 1234)
    assert line == "llm 0.1.0 | 2 kernels | 33 variants | sm_80 sm_90a | 1234 bytes | a compiler"
    line = summary(samples.small, 1)
    assert line == "one 1 | 1 kernel | 1 variant | sm_90a | 1 bytes"


def test_description_is_json_and_complete(samples: SimpleNamespace) -> None:
    data = json.loads(json.dumps(describe(samples.archive, 99), allow_nan=False))
    assert (data["name"], data["size_bytes"], data["targets"]) == ("llm", 99, ["sm_80", "sm_90a"])
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
    }
    assert copy["variants"][0]["cluster"] == [2, 1, 1]
    assert [one["variants"][0]["waits_pdl"] for one in (norm, copy)] == [True, False]
    assert [one["variants"][0]["loops_programs"] for one in (norm, copy)] == [False, False]


def test_table_aligns_and_leaves_empty_columns_out(samples: SimpleNamespace) -> None:
    lines = table(samples.archive).splitlines()
    assert len(lines) == 1 + 33
    header = lines[0]
    end = header.index("registers") + len("registers")
    assert all(line[:end].endswith(("registers", "40", " 0")) for line in lines)
    assert lines[-1].split() == ["copy", "sm_90a", "2x1x1", "128", "0", "0", "0", "379"]
    assert table(samples.small).splitlines()[0].split("  ")[0] == "kernel"
    assert "choices" not in table(samples.small)


def test_blocks_that_loop_over_programs_are_shown(samples: SimpleNamespace) -> None:
    (variant,) = samples.copy.variants
    kernel = replace(samples.copy, variants=(replace(variant, loops_programs=True),))
    archive = replace(samples.archive, kernels=(kernel,))
    ((cells,),) = [[row.cells for row in rows(archive)]]
    assert dict(zip(COLUMNS, cells, strict=True))["loops over"] == "programs"
    assert "  loops over  " in table(archive)
    assert describe(archive, 1)["kernels"][0]["variants"][0]["loops_programs"] is True


def test_two_forms_of_a_config(tmp_path: Path) -> None:
    manifest = load(str(mapped.written(tmp_path)))
    expansion = expand(manifest.kernels[0], manifest.targets_for(["sm_90a"], []), lambda *_: [])
    variants = [
        (spec, compile_both_ways(mapped.compile_mapped, spec.request))
        for spec in expansion.variants[:1]
    ]
    archive = Archive("mapped", "0.1.0", (assemble(expansion, variants).kernel,))
    guards = [dict(zip(COLUMNS, row.cells, strict=True))["guards"] for row in rows(archive)]
    assert guards == [mapped.condition(16), ""]
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
