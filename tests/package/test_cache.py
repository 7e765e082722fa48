"""The cache: what it finds, what it misses, and what it survives."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aotc.compiler import CompileRequest, Metadata, ParamSlot, TensorMapSpec
from aotc.package.cache import Cache, CachedKernel


def _request(source: Path) -> CompileRequest:
    return CompileRequest(
        source=str(source),
        kernel="add",
        signature=(("x", "*fp32:16"), ("n", "i32")),
        constants=(("BLOCK", 128), ("MODE", "fast"), ("NONE", None)),
        target="sm_90a",
    )


def _kernel(*sources: Path, cubin: bytes = b"\x7fELF") -> CachedKernel:
    files = tuple((str(p), hashlib.sha256(p.read_bytes()).hexdigest()) for p in sources)
    metadata = Metadata(
        name="add",
        symbol="add_0",
        target="sm_90a",
        num_warps=4,
        num_stages=3,
        num_ctas=1,
        shared_bytes=1024,
        static_shared_bytes=0,
        registers=32,
        spill_bytes=0,
        stack_bytes=0,
        params=(ParamSlot("x", "*fp32", 0, 8), ParamSlot("n", "i32", 8, 4)),
        remarks=("k.py:3: a remark",),
        ptxas_warnings=(),
        source_files=files,
    )
    return CachedKernel(cubin, metadata)


class _Fixture:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cache"
        self.warnings: list[str] = []
        self.source = folder / "k.py"
        self.source.write_text("def add(x, n): pass\n")
        self.request = _request(self.source)

    def cache(self, compiler: str = "c1") -> Cache:
        return Cache(self.folder, compiler, self.warnings.append)

    def entries(self, kind: str) -> list[Path]:
        return sorted(path for path in (self.folder / "v1" / kind).rglob("*") if path.is_file())


@pytest.fixture
def f(tmp_path: Path) -> _Fixture:
    return _Fixture(tmp_path)


@pytest.mark.parametrize("has_fallback", [False, True])
def test_finds_what_was_stored(f: _Fixture, *, has_fallback: bool) -> None:
    stored = _kernel(f.source)
    if has_fallback:
        spec = TensorMapSpec("fp32", (8, 8), 128, True, "x", ("n", "8"), ("n * 8",))
        params = (ParamSlot("x.map", "map", 0, 128, argument="x", tensor_map=spec),)
        metadata = replace(stored.metadata, params=params, guards=("n > 0",))
        stored = CachedKernel(b"\x7fELF mapped", metadata, fallback=stored)
    assert f.cache().find(f.request) is None
    f.cache().store(f.request, stored)
    assert f.cache().find(f.request) == stored
    assert f.warnings == []


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "sub"},
        {"target": "sm_80"},
        {"num_warps": 8},
        {"maxnreg": 64},
        {"warp_specialize": True},
        {"warp_specialize": False},
        {"signature": (("x", "*fp32"), ("n", "i32"))},
        {"constants": (("BLOCK", 128.0), ("MODE", "fast"), ("NONE", None))},
        {"constants": (("BLOCK", 128), ("MODE", "fast"), ("NONE", False))},
    ],
)
def test_every_part_of_the_request_counts(f: _Fixture, change: dict[str, object]) -> None:
    f.cache().store(f.request, _kernel(f.source))
    assert f.cache().find(replace(f.request, **change)) is None  # type: ignore[arg-type]


def test_true_and_one_are_two_requests(f: _Fixture) -> None:
    one = replace(f.request, constants=(("FLAG", 1),))
    f.cache().store(one, _kernel(f.source))
    assert f.cache().find(replace(f.request, constants=(("FLAG", True),))) is None


def test_another_compiler_finds_nothing(f: _Fixture) -> None:
    f.cache("c1").store(f.request, _kernel(f.source))
    assert f.cache("c2").find(f.request) is None


def test_changed_source_is_missed_and_found_again(f: _Fixture) -> None:
    before = _kernel(f.source, cubin=b"before")
    f.cache().store(f.request, before)
    old = f.source.read_text()
    f.source.write_text(old + "# new\n")
    assert f.cache().find(f.request) is None
    after = _kernel(f.source, cubin=b"after")
    f.cache().store(f.request, after)
    assert f.cache().find(f.request) == after
    f.source.write_text(old)
    assert f.cache().find(f.request) == before


def test_imported_file_counts(f: _Fixture, tmp_path: Path) -> None:
    imported = tmp_path / "lib.py"
    imported.write_text("x = 1\n")
    f.cache().store(f.request, _kernel(f.source, imported))
    assert f.cache().find(f.request) is not None
    imported.write_text("x = 2\n")
    assert f.cache().find(f.request) is None
    imported.unlink()
    assert f.cache().find(f.request) is None
    assert f.warnings == []


def test_source_sets_are_bounded(f: _Fixture) -> None:
    for version in range(20):
        f.source.write_text(f"x = {version}\n")
        f.cache().store(f.request, _kernel(f.source))
    assert f.cache().find(f.request) is not None
    f.source.write_text("x = 0\n")
    assert f.cache().find(f.request) is None


@pytest.mark.parametrize("kind", ["requests", "kernels"])
@pytest.mark.parametrize("damage", ["empty", "truncated", "zeroed", "flipped"])
def test_damaged_entry_is_missed_with_a_warning(f: _Fixture, kind: str, damage: str) -> None:
    f.cache().store(f.request, _kernel(f.source))
    (path,) = f.entries(kind)
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[-1] ^= 1
    damaged = {
        "empty": b"",
        "truncated": bytes(content[:-1]),
        "zeroed": bytes(len(content)),
        "flipped": bytes(content),
    }[damage]
    path.write_bytes(damaged)
    assert f.cache().find(f.request) is None
    if not (kind == "requests" and damage == "flipped"):
        # A flipped bit of a source digest only makes it the digest of another source.
        assert len(f.warnings) == 1
        assert f"{path} is damaged" in f.warnings[0]
    f.cache().store(f.request, _kernel(f.source))
    assert f.cache().find(f.request) is not None


def test_every_flipped_bit_of_a_kernel_is_noticed(f: _Fixture) -> None:
    f.cache().store(f.request, _kernel(f.source))
    (path,) = f.entries("kernels")
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert f.cache().find(f.request) is None


def test_a_file_in_the_caches_place_is_one_warning(f: _Fixture) -> None:
    # Works for root too, whom permissions do not stop.
    f.folder.write_text("not a folder")
    cache = f.cache()
    cache.store(f.request, _kernel(f.source))
    cache.store(f.request, _kernel(f.source))
    assert cache.find(f.request) is None
    assert len(f.warnings) == 1
    assert "building without it" in f.warnings[0]


@pytest.mark.parametrize("call", ["mkstemp", "replace"])
def test_failing_write_leaves_no_file(
    f: _Fixture, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(16, "Device or resource busy")

    owner = "tempfile.mkstemp" if call == "mkstemp" else "Path.replace"
    monkeypatch.setattr(f"aotc.package.cache.{owner}", fail)
    f.cache().store(f.request, _kernel(f.source))
    assert f.entries("kernels") == []
    assert len(f.warnings) == 1
    assert "Device or resource busy" in f.warnings[0]


@pytest.fixture
def read_only(f: _Fixture) -> Iterator[None]:
    f.cache().store(f.request, _kernel(f.source))
    folders = [f.folder, *(path for path in f.folder.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    yield
    for folder in folders:
        folder.chmod(0o755)


@pytest.mark.usefixtures("read_only")
def test_read_only_cache_is_still_read(f: _Fixture) -> None:
    cache = f.cache()
    assert cache.find(f.request) is not None
    cache.store(replace(f.request, num_warps=8), _kernel(f.source))
    expected = 0 if os.geteuid() == 0 else 1
    assert len(f.warnings) == expected


def test_concurrent_writers_agree(f: _Fixture) -> None:
    kernel = _kernel(f.source, cubin=bytes(range(256)) * 64)
    found: list[CachedKernel | None] = []

    def work() -> None:
        for _ in range(20):
            f.cache().store(f.request, kernel)
            found.append(f.cache().find(f.request))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [kernel] * 160
    assert f.warnings == []
    assert len(f.entries("kernels")) == 1
