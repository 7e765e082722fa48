"""The two views of an archive."""

from __future__ import annotations

import json
from types import SimpleNamespace

from aotc.package.index import Archive
from aotc.package.inspect import COLUMNS, describe, rows, summary, table


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


def test_table_aligns_and_leaves_empty_columns_out(samples: SimpleNamespace) -> None:
    lines = table(samples.archive).splitlines()
    assert len(lines) == 1 + 33
    header = lines[0]
    end = header.index("registers") + len("registers")
    assert all(line[:end].endswith(("registers", "40", " 0")) for line in lines)
    assert table(samples.small).splitlines()[0].split("  ")[0] == "kernel"
    assert "choices" not in table(samples.small)
