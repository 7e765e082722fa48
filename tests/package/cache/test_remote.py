"""A cache at a URL: shared by machines, checked, and never in the way."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from aotc.compiler import CompileRequest
from aotc.ir.diagnostics import HostError
from aotc.package.builder.workers import compile_both_ways
from aotc.package.cache.bundle import (
    decode_bundle,
    encode_bundle,
    frame_bundles,
    kernel_bundles,
)
from aotc.package.cache.remote import RemoteStore
from aotc.package.cache.store import Cache, CachedKernel
from tests.support.fake_compiler import compile_empty

fsspec = pytest.importorskip("fsspec")

_S3_USER = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


class _Team:
    """Machines with a folder each, and one URL."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.warnings: list[str] = []
        (folder / "k.py").write_text("def kernel(x): pass\n")
        self.requests = [
            CompileRequest(str(folder / "k.py"), "kernel", (("x", "*fp32"),), (("I", i),), "sm_80")
            for i in range(4)
        ]
        kernel = compile_both_ways(compile_empty, self.requests[0])
        self.kernels = [kernel for _ in self.requests]

    def cache(self, machine: str, **options: Any) -> Cache:
        store = RemoteStore(self.url, self.warnings.append, **options)
        return Cache(self.folder / machine, "c", self.warnings.append, store)

    def local(self, machine: str) -> Cache:
        return Cache(self.folder / machine, "c", self.warnings.append)

    def fill(self, machine: str = "a", *, in_bundles: bool = False, **options: Any) -> None:
        cache = self.cache(machine, **options)
        if in_bundles:
            cache.prepare(self.requests)
        for request, kernel in zip(self.requests, self.kernels, strict=True):
            cache.store(request, kernel)
        cache.close()

    def found(self, machine: str, **options: Any) -> list[CachedKernel | None]:
        cache = self.cache(machine, **options)
        cache.prepare(self.requests)
        return [cache.find(request) for request in self.requests]


@pytest.fixture(scope="module")
def s3() -> Generator[str]:
    """Start a server of S3 in a process of its own; return the URL of a bucket."""
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before = dict(os.environ)
    endpoint = f"http://127.0.0.1:{port}"
    os.environ.update(_S3_USER, AWS_ENDPOINT_URL=endpoint, AWS_DEFAULT_REGION="us-east-1")
    try:
        _wait_for(port, server)
        files = fsspec.filesystem("s3", skip_instance_cache=True)
        files.mkdir("team")
        yield "s3://team/aotc"
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.terminate()
        server.wait(10)


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while server.poll() is None and time.monotonic() < deadline:
        with socket.socket() as found:
            if found.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("the server did not start")


@pytest.fixture(params=["file", "memory", "s3"])
def team(request: pytest.FixtureRequest, tmp_path: Path) -> _Team:
    name = f"{time.monotonic_ns()}"
    if request.param == "s3":
        return _Team(tmp_path, f"{request.getfixturevalue('s3')}/{name}")
    return _Team(
        tmp_path, {"file": f"file://{tmp_path}/far", "memory": f"memory://{name}"}[request.param]
    )


@pytest.fixture
def files(tmp_path: Path) -> _Team:
    return _Team(tmp_path, f"file://{tmp_path}/far")


def _objects(team: _Team) -> list[Path]:
    return sorted(path for path in (team.folder / "far").rglob("*") if path.is_file())


def test_what_one_machine_compiled_another_finds(team: _Team) -> None:
    assert team.found("a") == [None] * 4
    team.fill("a")
    assert team.found("b") == team.kernels
    assert [team.local("b").find(request) for request in team.requests] == team.kernels
    assert team.warnings == []


def test_find_alone_fetches_too(team: _Team) -> None:
    team.fill("a")
    cache = team.cache("b")
    assert [cache.has(request) for request in team.requests] == [True] * 4
    assert cache.find(team.requests[1]) == team.kernels[1]
    assert team.warnings == []


def test_another_source_is_another_entry(team: _Team) -> None:
    team.fill("a")
    (team.folder / "k.py").write_text("def kernel(x): return\n")
    assert team.found("b") == [None] * 4
    team.kernels = [compile_both_ways(compile_empty, team.requests[0])] * 4
    team.fill("b")
    (team.folder / "k.py").write_text("def kernel(x): pass\n")
    assert None not in team.found("c")
    assert team.warnings == []


def test_two_clients_at_once(team: _Team) -> None:
    threads = [threading.Thread(target=team.fill, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert team.found("c") == team.kernels
    assert team.warnings == []


def test_read_only_writes_nothing(files: _Team) -> None:
    files.fill("a", is_read_only=True)
    assert _objects(files) == []
    files.fill("a")
    before = {path: path.read_bytes() for path in _objects(files)}
    assert files.found("b", is_read_only=True) == files.kernels
    assert {path: path.read_bytes() for path in _objects(files)} == before
    assert files.warnings == []


def test_objects_are_written_whole_under_their_names(files: _Team) -> None:
    files.fill("a")
    local = {
        str(p.relative_to(files.folder / "a")): p.read_bytes()
        for p in (files.folder / "a").rglob("*")
        if p.is_file()
    }
    assert {
        str(p.relative_to(files.folder / "far")): p.read_bytes() for p in _objects(files)
    } == local


def _asked(cache: Cache) -> list[str]:
    """Return a list of all names a cache requests from its store."""
    store: Any = cache._remote
    requested: list[str] = []
    read = store._files.cat_file

    def note(path: str, **options: Any) -> bytes:
        requested.append(path)
        return read(path, **options)

    store._files.cat_file = note
    return requested


def test_a_bundle_brings_all_variants_of_a_kernel_at_once(team: _Team) -> None:
    team.fill("a", in_bundles=True)
    cache = team.cache("b")
    requested = _asked(cache)
    cache.prepare(team.requests)
    assert [cache.find(request) for request in team.requests] == team.kernels
    assert len(requested) == 2  # one of kernels, and a missing one of frames
    cache.close()
    local = team.local("b")
    local.prepare(team.requests)
    assert [local.find(request) for request in team.requests] == team.kernels
    assert all(local.has(request) for request in team.requests)
    assert team.warnings == []


def test_a_bundle_has_what_builds_of_fewer_variants_want_too(files: _Team) -> None:
    files.fill("a", in_bundles=True)
    cache = files.cache("b")
    requested = _asked(cache)
    cache.prepare(files.requests[1:2])
    assert cache.find(files.requests[1]) == files.kernels[1]
    assert len(requested) == 2
    cache.close()
    assert [path for path in (files.folder / "b").rglob("*") if path.is_file()]
    local = files.local("b")
    local.prepare(files.requests)
    assert [local.find(request) for request in files.requests] == files.kernels


def test_what_a_bundle_had_stays_when_it_is_put_again(files: _Team) -> None:
    left, right = files.requests[:2], files.requests[2:]
    for machine, requests in (("a", left), ("b", right)):
        cache = files.cache(machine)
        cache.prepare(requests)
        for request in requests:
            cache.store(request, files.kernels[0])
        cache.close()
    cache = files.cache("c")
    requested = _asked(cache)
    cache.prepare(files.requests)
    assert None not in [cache.find(request) for request in files.requests]
    assert len(requested) == 2


def test_frames_come_in_a_bundle(team: _Team) -> None:
    team.fill("a", in_bundles=True)
    content = b"cubins" * 100
    frame = zstandard.ZstdCompressor(19, write_checksum=False).compress(content)
    for machine, is_there in (("b", False), ("c", True), ("c", True)):
        cache = team.cache(machine)
        cache.prepare(team.requests)
        assert (cache.frames.find(content, 19) == frame) is is_there
        if not is_there:
            cache.frames.store(content, 19, frame)
        cache.close()
    local = team.local("c")
    local.prepare(team.requests)
    assert local.frames.find(content, 19) == frame
    assert team.warnings == []


def test_a_frame_of_another_content_is_made_again(files: _Team) -> None:
    files.fill("a", in_bundles=True)
    cache = files.cache("b")
    cache.prepare(files.requests)
    cache.frames.store(b"right", 19, zstandard.compress(b"wrong"))
    cache.close()
    other = files.cache("c")
    other.prepare(files.requests)
    assert other.frames.find(b"right", 19) is None


def test_a_bundle_that_is_behind_costs_single_fetches_and_is_renewed(files: _Team) -> None:
    files.fill("a", in_bundles=True)
    (files.folder / "k.py").write_text("def kernel(x): return\n")
    kernel = compile_both_ways(compile_empty, files.requests[0])
    cache = files.cache("b")  # has not all, so it writes no bundle
    for request in files.requests:
        cache.store(request, kernel)
    cache.close()
    cache = files.cache("c")
    requested = _asked(cache)
    cache.prepare(files.requests)
    assert [cache.find(request) for request in files.requests] == [kernel] * 4
    assert len(requested) == 10
    cache.close()
    cache = files.cache("d")
    requested = _asked(cache)
    cache.prepare(files.requests)
    assert [cache.find(request) for request in files.requests] == [kernel] * 4
    assert len(requested) == 2
    assert files.warnings == []


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "entry"])
def test_a_damaged_bundle_is_done_without(files: _Team, damage: str) -> None:
    files.fill("a", in_bundles=True)
    (path,) = (path for path in _objects(files) if "bundles" in path.parts)
    data = path.read_bytes()
    entries = decode_bundle(data)
    assert entries is not None
    wrong = encode_bundle({name: entry[:-1] + b"?" for name, entry in entries.items()})
    flipped = bytes([*data[:9], data[9] ^ 255, *data[10:]])
    path.write_bytes({"flip": flipped, "cut": data[:-5], "empty": b"", "entry": wrong}[damage])
    assert files.found("b") == files.kernels
    assert files.warnings
    assert all("is damaged" in warning for warning in files.warnings)


def test_a_large_kernel_has_several_bundles() -> None:
    keys = [hashlib.sha256(bytes([index])).hexdigest() for index in range(200)]
    (small,) = kernel_bundles("ab", keys[:64])
    assert list(kernel_bundles("ab", keys[:3])) == [small] != list(kernel_bundles("ac", keys[:3]))
    large = kernel_bundles("ab", keys)
    assert len(large) == 4
    assert sorted(key for bundle_keys in large.values() for key in bundle_keys) == sorted(keys)
    fewer = kernel_bundles("ab", keys[:150])
    assert all(set(bundle_keys) <= set(large[name]) for name, bundle_keys in fewer.items())
    assert kernel_bundles("ab", []) == {}


def test_bundles_of_frames_are_of_all_requests() -> None:
    keys = [str(index) for index in range(2049)]
    assert len(frame_bundles(keys)) == 2
    assert set(frame_bundles(keys)).isdisjoint(frame_bundles(keys[1:]))
    assert frame_bundles([]) == []


def test_a_bundle_is_read_as_it_was_written() -> None:
    assert decode_bundle(encode_bundle({"a": b"x", "b": b""})) == {"a": b"x", "b": b""}


@pytest.mark.parametrize("damage", ["flip", "cut", "swap", "empty"])
def test_a_damaged_object_is_compiled_again_and_replaced(files: _Team, damage: str) -> None:
    files.fill("a")
    kernels = [path for path in _objects(files) if "kernels" in path.parts]
    data = kernels[0].read_bytes()
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    bad = {"flip": flipped, "cut": data[:-1], "swap": kernels[1].read_bytes(), "empty": b""}
    kernels[0].write_bytes(bad[damage])
    cached = files.found("b")
    assert cached.count(None) == 1
    (warning,) = files.warnings
    assert warning.startswith(f"cache entry file://{files.folder}/far/")
    assert "is damaged or in the wrong place; its kernel is compiled again" in warning
    files.fill("b")
    assert files.found("c") == files.kernels


def test_a_source_set_of_nobody_is_a_miss(files: _Team) -> None:
    files.fill("a")
    for path in _objects(files):
        if "requests" in path.parts:
            path.write_bytes(b"x")
    assert files.found("b") == [None] * 4
    assert len(files.warnings) == 4


def test_a_store_that_cannot_be_read_is_left_alone(files: _Team) -> None:
    files.fill("a")
    cache = files.cache("b")
    store: Any = cache._remote
    requested: list[str] = []

    def refuse(path: str, **_: object) -> bytes:
        requested.append(path)
        raise PermissionError("Forbidden")

    store._files.cat_file = refuse
    cache.prepare(files.requests)
    assert [cache.find(request) for request in files.requests] == [None] * 4
    assert len(requested) <= 2 + 4  # all requests in flight
    (warning,) = files.warnings
    assert warning == (
        f"cache at {files.url} cannot be read: PermissionError: Forbidden; building without it"
    )


def test_a_store_that_hangs_costs_its_time_limit(files: _Team) -> None:
    files.fill("a")
    cache = files.cache("b", idle_seconds=0.2)
    may_end = threading.Event()
    store: Any = cache._remote
    store._files.cat_file = lambda path, **_: may_end.wait(60)
    start = time.monotonic()
    cache.prepare(files.requests)
    assert [cache.find(request) for request in files.requests] == [None] * 4
    assert time.monotonic() - start < 5
    assert files.warnings == [f"cache at {files.url} does not answer in time; building without it"]
    may_end.set()


def test_a_store_that_is_slow_for_long_is_left(files: _Team) -> None:
    files.fill("a")
    cache = files.cache("b", total_seconds=0.05)
    store: Any = cache._remote
    read = store._files.cat_file

    def slow(path: str, **options: Any) -> bytes:
        time.sleep(0.1)
        return read(path, **options)

    store._files.cat_file = slow
    cache.prepare(files.requests)
    assert None in [cache.find(request) for request in files.requests]
    assert files.warnings == [f"cache at {files.url} does not answer in time; building without it"]


def test_a_store_that_cannot_be_written_to_is_still_read(files: _Team) -> None:
    files.fill("a")
    cache = files.cache("b")
    store: Any = cache._remote

    def refuse(path: str, data: bytes) -> None:
        raise PermissionError("Forbidden")

    store._files.pipe_file = refuse
    for request, kernel in zip(files.requests, files.kernels, strict=True):
        cache.store(request, kernel)
    cache.close()
    shutil.rmtree(files.folder / "b")
    assert cache.find(files.requests[0]) == files.kernels[0]
    (warning,) = files.warnings
    assert "cannot be written to: PermissionError: Forbidden; it stays as it is" in warning
    assert not [path for path in _objects(files) if path.name.endswith(".tmp")]


def test_an_absent_store_is_warned_of(
    tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = _Team(tmp_path, "s3://no-such-bucket/aotc")
    assert team.found("a") == [None] * 4
    team.fill("a")
    assert [team.local("a").find(request) for request in team.requests] == team.kernels
    assert len(team.warnings) == 1
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    absent = _Team(tmp_path, f"{s3}/gone")
    start = time.monotonic()
    assert absent.found("b", idle_seconds=1.0) == [None] * 4
    assert time.monotonic() - start < 20
    assert len(absent.warnings) == 1


def test_urls_that_nobody_knows_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostError, match="nonsense"):
        RemoteStore("nonsense://x", print)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(HostError, match="needs fsspec") as caught:
        RemoteStore("file:///tmp/x", print)
    assert "pip install 'aotc[cache]'" in caught.value.render()
