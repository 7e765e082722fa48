"""The cache: hits, misses, and damage it survives."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aotc.compiler import CompileRequest
from aotc.config import Config
from aotc.metadata import Metadata, ParamSlot, TensorMapSpec
from aotc.module_search import find_module
from aotc.package.cache.store import Cache, CachedKernel


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
        num_threads=128,
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
        return sorted(path for path in (self.folder / "v2" / kind).rglob("*") if path.is_file())


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
        {"config": Config(num_warps=8)},
        {"config": Config(maxnreg=64)},
        {"config": Config(warp_specialize=True)},
        {"config": Config(warp_specialize=False)},
        {"signature": (("x", "*fp32"), ("n", "i32"))},
        {"constants": (("BLOCK", 128.0), ("MODE", "fast"), ("NONE", None))},
        {"constants": (("BLOCK", 128), ("MODE", "fast"), ("NONE", False))},
    ],
)
def test_every_part_of_the_request_counts(f: _Fixture, change: dict[str, object]) -> None:
    f.cache().store(f.request, _kernel(f.source))
    assert f.cache().find(replace(f.request, **change)) is None  # type: ignore[arg-type]


def test_true_and_one_are_two_requests(f: _Fixture) -> None:
    integer_request = replace(f.request, constants=(("FLAG", 1),))
    f.cache().store(integer_request, _kernel(f.source))
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


def test_a_module_that_shadows_or_appears_counts(f: _Fixture, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    source = tmp_path / "pkg" / "k.py"
    source.write_text("from helper import f\nimport absent\n")
    helper = tmp_path / "helper.py"
    helper.write_text("x = 1\n")
    request = _request(source)
    searches = tuple(
        ((str(source), name, 0), find_module((str(source), name, 0)))
        for name in ("helper", "absent")
    )
    assert [module_path for _, module_path in searches] == [str(helper), None]
    kernel = _kernel(source, helper)
    kernel = replace(kernel, metadata=replace(kernel.metadata, searches=searches))
    f.cache().store(request, kernel)
    assert f.cache().find(request) == kernel
    for name in ("helper.py", "absent.py", "absent/__init__.py"):
        path = tmp_path / "pkg" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        assert f.cache().find(request) is None
        path.unlink()
        assert f.cache().find(request) == kernel
    assert f.warnings == []


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_entries_have_the_mode_that_the_umask_gives(f: _Fixture, umask: int) -> None:
    before = os.umask(umask)
    try:
        f.cache().store(f.request, _kernel(f.source))
    finally:
        os.umask(before)
    for path in (*f.entries("kernels"), *f.entries("requests")):
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("kind", ["requests", "kernels"])
def test_what_is_no_file_is_not_read(f: _Fixture, kind: str) -> None:
    f.cache().store(f.request, _kernel(f.source))
    (path,) = f.entries(kind)
    path.unlink()
    os.mkfifo(path)
    cache = f.cache()
    assert cache.find(f.request) is None
    (warning,) = f.warnings
    assert "cannot be used: expected a regular file, got a FIFO; building without it" in warning
    cache.store(f.request, _kernel(f.source))
    assert f.cache().find(f.request) is not None


def test_no_version_of_a_file_evicts_another(f: _Fixture) -> None:
    """Only `cache prune` removes versions; the list of source sets does not grow with them."""
    sizes: set[int] = set()
    for version in range(10, 30):
        f.source.write_text(f"x = {version}\n")
        f.cache().store(f.request, _kernel(f.source, cubin=b"%d" % version))
        (listed,) = f.entries("requests")
        sizes.add(listed.stat().st_size)
    assert len(sizes) == 1
    for version in range(10, 30):
        f.source.write_text(f"x = {version}\n")
        assert f.cache().has(f.request)
        cached = f.cache().find(f.request)
        assert cached is not None
        assert cached.cubin == b"%d" % version


def test_projects_with_files_of_one_name_share_a_cache(
    f: _Fixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel of `norm.py` in each, with an import of its own; both are edited in turn."""
    request = replace(f.request, source="norm.py")
    names = [f"project_{number}" for number in range(12)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text("y = 1\n")
    for is_stored in (True, False):
        for version in range(2):
            for name in names:
                monkeypatch.chdir(tmp_path / name)
                Path("norm.py").write_text(f"x = {version}\n")
                cubin = f"{name} {version}".encode()
                if is_stored:
                    kernel = _kernel(Path("norm.py"), Path(f"{name}.py"), cubin=cubin)
                    f.cache().store(request, kernel)
                cached = f.cache().find(request)
                assert cached is not None
                assert cached.cubin == cubin


def test_source_sets_are_bounded(f: _Fixture, tmp_path: Path) -> None:
    for number in range(300):
        imported = tmp_path / f"lib_{number}.py"
        imported.write_text("y = 1\n")
        f.cache().store(f.request, _kernel(f.source, imported))
        imported.unlink()
    (listed,) = f.entries("requests")
    assert listed.stat().st_size < 256 * 400


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
    cache = f.cache()
    assert cache.find(f.request) is None
    cache.store(f.request, _kernel(f.source))
    assert len(f.warnings) == 1
    assert f"{path} is damaged" in f.warnings[0]
    assert f.cache().find(f.request) is not None
    assert len(f.warnings) == 1


@pytest.mark.parametrize("kind", ["requests", "kernels"])
def test_entries_in_each_others_place_are_not_taken(f: _Fixture, kind: str) -> None:
    other = replace(f.request, config=Config(8))
    kernels = {f.request: _kernel(f.source, cubin=b"four"), other: _kernel(f.source, cubin=b"8")}
    for request, kernel in kernels.items():
        f.cache().store(request, kernel)
    first, second = f.entries(kind)
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    for request, kernel in kernels.items():
        cache = f.cache()
        assert cache.find(request) is None
        cache.store(request, kernel)
        assert f.cache().find(request) == kernel
    assert len(f.warnings) == 2
    assert all("is damaged or in the wrong place" in warning for warning in f.warnings)


@pytest.mark.slow
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


@pytest.mark.parametrize("call", ["mkdir", "open", "replace"])
@pytest.mark.parametrize("number", [errno.EBUSY, errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_failing_write_leaves_no_file(
    f: _Fixture, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    kernel = _kernel(f.source)
    monkeypatch.setattr(f"aotc.package.cache.store.Path.{call}", fail)
    f.cache().store(f.request, kernel)
    monkeypatch.undo()
    assert f.entries("kernels") == []
    assert len(f.warnings) == 1
    assert os.strerror(number) in f.warnings[0]


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
    cache.store(replace(f.request, config=Config(8)), _kernel(f.source))
    expected = 0 if os.geteuid() == 0 else 1
    assert len(f.warnings) == expected


def test_concurrent_writers_agree(f: _Fixture) -> None:
    kernel = _kernel(f.source, cubin=bytes(range(256)) * 64)
    cached: list[CachedKernel | None] = []

    def work() -> None:
        for _ in range(20):
            f.cache().store(f.request, kernel)
            cached.append(f.cache().find(f.request))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cached == [kernel] * 160
    assert f.warnings == []
    assert len(f.entries("kernels")) == 1
