"""The tables of `docs/reference/archive-format.md` equal the writer's."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from aotc.ir.expression import MAX_TEXT_BYTES
from aotc.package.archive import layout as records
from aotc.package.archive.bytecode import MAX_CODE_BYTES, MAX_STACK, Opcode
from aotc.package.archive.index import DTYPE_BYTES, DTYPE_CODES

_DOC = (Path(__file__).parents[3] / "docs" / "reference" / "archive-format.md").read_text()
_TYPE_BYTES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}
_TYPE = re.compile(r"(u8|u16|u32|u64)(?:\[(\d+)\])?")


def doc_fields(heading: str) -> list[tuple[int, int]]:
    """Return offset and size of each field in the first table after a heading."""
    body = _DOC.split(heading, 1)[1]
    fields: list[tuple[int, int]] = []
    for offset, types in re.findall(r"^\|(\d+)\|(u[^|]*)\|", body.split("\n#", 1)[0], re.MULTILINE):
        size = sum(_TYPE_BYTES[name] * int(count or 1) for name, count in _TYPE.findall(types))
        fields.append((int(offset), size))
    return fields


def struct_offsets(layout: struct.Struct) -> set[int]:
    """Return the offsets of the items of a packed layout."""
    offsets: set[int] = set()
    offset = 0
    for count, code in re.findall(r"(\d*)([a-zA-Z])", layout.format):
        if code == "s":
            offsets.add(offset)
            offset += int(count or 1)
        else:
            for _ in range(int(count or 1)):
                offsets.add(offset)
                offset += struct.calcsize(f"<{code}")
    return offsets


@pytest.mark.parametrize("name", [n for n in records.RECORDS if n not in records.BYTE_SECTIONS])
def test_fields_follow_one_another(name: str) -> None:
    layout = records.RECORDS[name]
    fields = doc_fields(f"### {name} ({layout.size})")
    ends = [offset + size for offset, size in fields]
    assert [offset for offset, _ in fields] == [0, *ends[:-1]]
    assert ends[-1] == layout.size
    assert {offset for offset, _ in fields} <= struct_offsets(layout)


def test_the_header_is_documented() -> None:
    fields = doc_fields("## 1. Header: 128 bytes")
    assert {offset for offset, _ in fields} == struct_offsets(records.HEADER)
    assert sum(fields[-1]) == records.HEADER.size == 128
    assert (records.SHA256_OFFSET, records.SHA256_BYTES) in fields
    assert " ".join(f"{byte:02X}" for byte in records.MAGIC) in _DOC


def test_the_sections_are_documented() -> None:
    rows = re.findall(r"^\|(\d+)\|([A-Z_]+)\|(\d+)\|", _DOC, re.MULTILINE)
    assert rows == [
        (str(kind), name, str(layout.size))
        for kind, (name, layout) in enumerate(records.RECORDS.items(), 1)
    ]


def test_the_dtypes_are_documented() -> None:
    codes, names, sizes = (
        re.findall(rf"^\|{row}\|(.*)\|$", _DOC, re.MULTILINE)[0].split("|")
        for row in ("code", "name", "bytes")
    )
    documented = dict(zip(names, zip(map(int, codes), sizes, strict=True), strict=True))
    del documented["–"]
    assert documented == {name: (DTYPE_CODES[name], str(DTYPE_BYTES[name])) for name in DTYPE_CODES}


def test_the_sources_of_parameters_are_documented() -> None:
    listed = ", ".join(f"{code} `{name.upper()}`" for name, code in records.SOURCES.items())
    assert f"|source: {listed}|" in _DOC
    assert set(re.findall(r"^\|`([A-Z_]+)`\|[^|]*\|[^|]*\|", _DOC, re.MULTILINE)) == {
        name.upper() for name in records.SOURCES
    }


def test_the_opcodes_are_documented() -> None:
    rows = re.findall(r"^\|`([0-9A-F]{2})`\|`([A-Z0-9]+)`\|", _DOC, re.MULTILINE)
    documented = {name: int(code, 16) for code, name in rows}
    comparisons = {"EQ": 0x20, "NE": 0x21, "LT": 0x22, "LE": 0x23, "GT": 0x24, "GE": 0x25}
    assert "|`20`–`25`|`EQ NE LT LE GT GE`|" in _DOC
    assert documented | comparisons == {opcode.name: opcode.value for opcode in Opcode}


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ("file · root or index · frame decoded · all", ("file_bytes", "index_bytes", "blob_bytes", "decoded_bytes")),
        ("kernels · variants", ("kernels", "variants", "targets")),
        ("params · type variables", ("params", "type_variables", "choices", "guards")),
        ("configs · constants", ("configs", "constants", "config_entries")),
        ("cubin params · tensor maps", ("cubin_params", "tensor_maps", "param_bytes")),
        ("features of a selection", ("features", "tree_depth", "leaf_configs")),
    ],
)  # fmt: skip
def test_the_limits_are_documented(row: str, values: tuple[str, ...]) -> None:
    limits = re.findall(rf"^\|{row}[^|]*\|([^|]*)\|$", _DOC, re.MULTILINE)[0]
    units = {"GiB": 1 << 30, "MiB": 1 << 20}
    documented = [
        int(number.replace(",", "")) * units.get(unit, 1)
        for number, unit in re.findall(r"(\d[\d,]*)(?: (GiB|MiB|bytes))?", limits)
    ]
    assert documented == [getattr(records.LIMITS, value) for value in values]


def test_the_limits_of_expressions_are_documented() -> None:
    assert f"|4,096 bytes · {MAX_STACK}|" in _DOC
    assert MAX_CODE_BYTES == 4096
    limits = (
        f"|{records.LIMITS.name_bytes} · {MAX_TEXT_BYTES:,} · {records.LIMITS.text_bytes:,} bytes|"
    )
    assert limits in _DOC
