"""The static library: linked by the system's compiler, the same bytes, for both hosts."""

from __future__ import annotations

import hashlib
import random
import struct
import subprocess
from pathlib import Path

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.package.archive.index import ArchiveError
from aotc.package.emit import object as object_writer
from aotc.package.emit.object import host_triple, library_bytes, object_bytes

_MACHINES = {"x86_64": 62, "aarch64": 183}
_PROGRAM = r"""
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
extern const unsigned char my_llm_archive[];
extern const size_t my_llm_archive_size;
int main(void) {
    if ((uintptr_t)my_llm_archive % 64 != 0) return 1;
    return fwrite(my_llm_archive, 1, my_llm_archive_size, stdout) == my_llm_archive_size ? 0 : 2;
}
"""
# Every byte, the characters escaped in LLVM's strings, and NULs at both ends.
_DATA = b"\0" + bytes(range(256)) * 3 + b'"\\\\0a"\n' + b"\0"


def native() -> str:
    """Return the host of the system's compiler."""
    process = subprocess.run(["cc", "-dumpmachine"], capture_output=True, text=True, check=True)
    return process.stdout.strip()


@pytest.mark.parametrize("options", [[], ["-static"], ["-pie", "-fPIE"]], ids=["", "static", "pie"])
@pytest.mark.parametrize("data", [b"", b"a", _DATA], ids=["empty", "byte", "all"])
def test_a_program_links_the_archive(tmp_path: Path, data: bytes, options: list[str]) -> None:
    (tmp_path / "libmy-llm.a").write_bytes(
        library_bytes("my-llm", data, "my_llm_archive_1", native())
    )
    (tmp_path / "main.c").write_text(_PROGRAM)
    process = subprocess.run(
        ["cc", *options, "main.c", "-L.", "-lmy-llm", "-Wl,--fatal-warnings", "-o", "main"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert subprocess.run([tmp_path / "main"], capture_output=True, check=True).stdout == data


@pytest.mark.parametrize("host", _MACHINES)
def test_both_hosts_get_a_relocatable_object(host: str) -> None:
    data = object_bytes("llm", _DATA, "llm_archive_1", host)
    assert data[:7] == b"\x7fELF\x02\x01\x01"
    kind, machine = struct.unpack_from("<HH", data, 16)
    assert (kind, machine) == (1, _MACHINES[host])
    assert _DATA in data


def test_data_is_neither_writable_nor_executable() -> None:
    data = object_bytes("llm", _DATA, "llm_archive_1")
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    (count,) = struct.unpack_from("<H", data, 60)
    sections = [struct.unpack_from("<8xQ16xQ", data, sections_at + 64 * i) for i in range(count)]
    loaded = [flags & 7 for flags, size in sections if flags & 2 and size]
    assert loaded == [2]
    assert b".note.GNU-stack" in data  # without it, the program's stack would be executable


def test_library_is_reproducible() -> None:
    first = library_bytes("llm", _DATA, "llm_archive_1")
    assert library_bytes("llm", _DATA, "llm_archive_1") == first
    assert library_bytes("llm", _DATA[:-1], "llm_archive_1") != first
    for path in (b"/home", b"/tmp", b"/root", str(Path.cwd()).encode()):
        assert path not in first


def test_library_is_an_ar_file_with_a_symbol_table() -> None:
    library = library_bytes("llm", b"x", "llm_archive_1")
    assert library.startswith(b"!<arch>\n/               0           0     0     100644  ")
    (count,) = struct.unpack_from(">I", library, 68)
    assert count == 3
    (member_at,) = struct.unpack_from(">I", library, 72)
    assert library[member_at : member_at + 10] == b"archive.o/"
    assert library[member_at + 60 : member_at + 64] == b"\x7fELF"


def test_megabytes_of_noise_survive() -> None:
    data = random.Random(0).randbytes(3 << 20)
    library = library_bytes("llm", data, "llm_archive_1")
    position = library.index(data[:64])
    content = library[position : position + len(data)]
    assert hashlib.sha256(content).digest() == hashlib.sha256(data).digest()


def test_too_large_data_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_writer, "MAX_DATA_BYTES", 3)
    assert object_bytes("llm", b"abc", "llm_archive_1")
    with pytest.raises(ArchiveError, match="4 bytes are too many to link in") as error:
        object_bytes("llm", b"abcd", "llm_archive_1")
    assert error.value.kind == "LIMIT"


@pytest.mark.parametrize(
    ("host", "triple"),
    [
        ("x86_64", "x86_64-unknown-linux-gnu"),
        ("AMD64", "x86_64-unknown-linux-gnu"),
        ("arm64", "aarch64-unknown-linux-gnu"),
        ("aarch64-linux-gnu", "aarch64-unknown-linux-gnu"),
    ],
)
def test_hosts_by_name(host: str, triple: str) -> None:
    assert host_triple(host) == triple


@pytest.mark.parametrize("host", ["", "riscv64", "x86_64-apple-darwin", "aarch64-pc-windows-msvc"])
def test_unknown_hosts_are_the_users_mistake(host: str) -> None:
    with pytest.raises(ManifestError, match="expected a host"):
        host_triple(host)
