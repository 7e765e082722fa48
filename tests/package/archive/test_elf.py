"""Cubins: the output of ptxas passes, any near miss does not."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from aotc.package.archive.elf import check_cubin
from aotc.package.archive.index import ArchiveError

_PTX = """.version 8.8
.target {target}
.address_size 64
.visible .entry store_n(.param .u64 p, .param .u32 n) {{
  .reg .u64 %rd<2>;
  .reg .u32 %r<2>;
  ld.param.u64 %rd1, [p];
  ld.param.u32 %r1, [n];
  st.global.u32 [%rd1], %r1;
  ret;
}}
"""
_TARGETS = ("sm_80", "sm_90", "sm_90a", "sm_100a", "sm_100f", "sm_120a")


def _ptxas() -> Path:
    spec = find_spec("nvidia")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    paths = [
        ptxas
        for location in spec.submodule_search_locations
        for ptxas in sorted(Path(location).glob("cu13/bin/ptxas"))
    ]
    return paths[0]


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the cubins of one kernel by ptxas for several targets."""
    folder = tmp_path_factory.mktemp("cubins")
    by_target: dict[str, bytes] = {}
    for target in _TARGETS:
        ptx, cubin = folder / f"{target}.ptx", folder / f"{target}.cubin"
        ptx.write_text(_PTX.format(target=target))
        subprocess.run([_ptxas(), "-arch", target, ptx, "-o", cubin], check=True)
        by_target[target] = cubin.read_bytes()
    return by_target


@pytest.mark.parametrize("target", _TARGETS)
def test_what_ptxas_writes_passes(cubins: dict[str, bytes], target: str) -> None:
    check_cubin(cubins[target], target, "store_n")


@pytest.mark.parametrize(
    ("made_for", "named", "message"),
    [
        ("sm_80", "sm_90", "the cubin is for sm_80"),
        ("sm_90", "sm_90a", "assembled for sm_90"),
        ("sm_90a", "sm_90", "assembled for sm_90a"),
        ("sm_100a", "sm_100f", "assembled for sm_100a"),
        ("sm_100f", "sm_120a", "the cubin is for sm_100"),
    ],
)
def test_another_target_is_refused(
    cubins: dict[str, bytes], made_for: str, named: str, message: str
) -> None:
    with pytest.raises(ArchiveError, match=message):
        check_cubin(cubins[made_for], named, "store_n")


def test_another_symbol_is_refused(cubins: dict[str, bytes]) -> None:
    for symbol in ("store", "store_nn", "tore_n", ""):
        with pytest.raises(ArchiveError, match="does not define"):
            check_cubin(cubins["sm_90a"], "sm_90a", symbol)


def test_every_truncation_is_refused(cubins: dict[str, bytes]) -> None:
    cubin = cubins["sm_90a"]
    for size in range(len(cubin)):
        with pytest.raises(ArchiveError) as error:
            check_cubin(cubin[:size], "sm_90a", "store_n")
        assert error.value.kind == "FORMAT"


@pytest.mark.parametrize(
    "blob",
    [b"", b"\x7fELF", _PTX.format(target="sm_90a").encode(), b"\x50\xed\x55\xba" + bytes(200)],
    ids=["empty", "magic", "ptx", "fatbin"],
)
def test_what_is_no_elf_is_not_a_cubin(blob: bytes) -> None:
    with pytest.raises(ArchiveError, match="not a cubin"):
        check_cubin(blob, "sm_90a", "store_n")


def test_a_library_of_the_host_is_not_a_cubin(samples: SimpleNamespace) -> None:
    blob = bytearray(samples.fake_cubin())
    blob[18:20] = (62).to_bytes(2, "little")
    with pytest.raises(ArchiveError, match="machine is 62"):
        check_cubin(bytes(blob), "sm_90a", "k")


@pytest.mark.parametrize("trailing", [b"\0", b"PK\3\4", bytes(64)])
def test_bytes_behind_the_elf_are_refused(cubins: dict[str, bytes], trailing: bytes) -> None:
    with pytest.raises(ArchiveError, match="its content ends at"):
        check_cubin(cubins["sm_90a"] + trailing, "sm_90a", "store_n")


def test_every_table_field_at_its_extremes_is_judged(samples: SimpleNamespace) -> None:
    """For any content of the header and the section table, the outcome is a verdict."""
    blob = samples.fake_cubin()
    sections_at = int.from_bytes(blob[40:48], "little")
    refused = 0
    fields = [*range(0, 64, 2), *range(sections_at, len(blob), 4)]
    for position in fields:
        for value in (0, 1, 0x7FFF, 0xFFFF):
            changed = bytearray(blob)
            changed[position : position + 2] = value.to_bytes(2, "little")
            try:
                check_cubin(bytes(changed), "sm_90a", "k")
            except ArchiveError:
                refused += 1
    assert refused > len(fields)


def test_a_section_outside_of_the_blob_is_refused(samples: SimpleNamespace) -> None:
    blob = bytearray(samples.fake_cubin())
    sections_at = int.from_bytes(blob[40:48], "little")
    size_of_the_last = sections_at + 3 * 64 + 32
    blob[size_of_the_last : size_of_the_last + 8] = (1 << 63).to_bytes(8, "little")
    with pytest.raises(ArchiveError, match="section 3 reaches beyond"):
        check_cubin(bytes(blob), "sm_90a", "k")


def _with_same_bytes(cubin: bytes, size_bytes: int) -> bytes:
    """Return a cubin where the second section with content has the bytes of the first one."""
    table_offset, count = (
        int.from_bytes(cubin[40:48], "little"),
        int.from_bytes(cubin[60:62], "little"),
    )
    headers = [table_offset + 64 * number for number in range(count)]
    first, second = [
        header
        for header in headers
        if int.from_bytes(cubin[header + 4 : header + 8], "little") not in (0, 2, 3, 8)
        and int.from_bytes(cubin[header + 32 : header + 40], "little")
    ][:2]
    changed = bytearray(cubin)
    changed[second + 24 : second + 32] = cubin[first + 24 : first + 32]
    size = int.from_bytes(cubin[first + 32 : first + 40], "little") + size_bytes
    changed[second + 32 : second + 40] = size.to_bytes(8, "little")
    return bytes(changed)


def test_sections_may_have_all_bytes_in_common_and_not_some(cubins: dict[str, bytes]) -> None:
    check_cubin(_with_same_bytes(cubins["sm_90a"], 0), "sm_90a", "store_n")
    with pytest.raises(ArchiveError, match="overlap"):
        check_cubin(_with_same_bytes(cubins["sm_90a"], -1), "sm_90a", "store_n")
