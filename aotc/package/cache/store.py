"""Cache compiled kernels, keyed by the content of all inputs.

A kernel depends on its own file and every module it takes functions from. These are known only
after a compile, so a look-up has two steps, as in ccache's direct mode:

    request + compiler digest      ──► the files read by earlier compiles of it
    these + their current contents ──► the cubin and its metadata

A source set is the files read by a compile, with their digests, and its module searches, with their
results: a new file that would now be imported instead makes another set. Sets that differ only in
digests are listed once, since digests are recomputed from the current files. So each version of an
edited file is found again, until `cache prune` removes it by size or age. A build without changes
reads and hashes the sources, and compiles nothing.

Invariants: an entry is written under a temporary name and renamed, so a reader never sees half of
one. It starts with the SHA-256 of its content and its own key. A damaged or moved one is ignored
with a warning and compiled again. After any failure of the cache, such as a full disk or a
read-only folder, the build goes on without it and warns once. A remote store has the same entries
under the same names, with the same checks. It also has bundles of them (`bundle.py`), which the
folder stores unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from aotc.compiler import CompileRequest
from aotc.metadata import Metadata
from aotc.module_search import Search, find_module
from aotc.package.cache.bundle import (
    MAX_REQUESTS,
    decode_bundle,
    encode_bundle,
    frame_bundles,
    kernel_bundles,
)
from aotc.package.cache.compile_times import CompileTimes
from aotc.package.cache.entry import (
    MAX_ENTRY_BYTES,
    Entry,
    decode_entry,
    encode_entry,
    write_entry,
)
from aotc.package.cache.frames import FrameCache
from aotc.regular_file import MAX_SOURCE_BYTES, read_regular

if TYPE_CHECKING:
    from aotc.package.cache.remote import RemoteStore

# Part of every path: a change to the format of entries starts an empty cache.
FORMAT = "v2"
_MAX_SOURCE_SETS = 256  # differing in files or searches, for instance of as many projects

SourceSet: TypeAlias = tuple[tuple[tuple[str, str], ...], tuple[tuple[Search, str | None], ...]]
"""The files read, with their digests, and the module searches, with their results."""

ContentT = TypeVar("ContentT")


@dataclass(frozen=True, slots=True)
class CachedKernel:
    """A compiled kernel as an archive needs it; `ptx` is as in `stored_ptx.py`, or empty.

    A kernel with pointer loads through tensor maps may be invalid for some launches; its `fallback`
    is the same kernel without tensor maps. `misfit` is the reason why the fallback does not fit the
    target, or, without a cubin, the kernel itself.
    """

    cubin: bytes
    metadata: Metadata
    ptx: bytes | None = None
    fallback: CachedKernel | None = None
    misfit: str = ""

    @property
    def is_misfit(self) -> bool:
        """Return whether the kernel does not fit the target; its metadata then repeats the request."""
        return not self.cubin


_kernel_decoder = msgspec.msgpack.Decoder(Entry[CachedKernel])
_sets_decoder = msgspec.msgpack.Decoder(Entry[list[SourceSet]])


class Cache:
    """A folder of compiled kernels; any number of processes may share it.

    `compiler` is the digest of everything but requests and sources; `warn` is called with one line
    of text. Entries missing from the folder are fetched from `remote` and stored in both. Source
    files are read once in the life of the object, so it should not outlive a build.
    """

    def __init__(
        self,
        folder: Path,
        compiler: str,
        warn: Callable[[str], None],
        remote: RemoteStore | None = None,
    ) -> None:
        self._folder = folder / FORMAT
        self._compiler = compiler
        self._warn = warn
        self._remote = remote
        self._times = CompileTimes(self._folder)
        self._frames = FrameCache(self._folder)
        self._has_warned_of_io = False
        self._damaged: set[str] = set()
        self._source_digests: dict[str, str | None] = {}
        self._searches: dict[Search, str | None] = {}
        # Names requested from the remote, and its objects.
        self._requested: set[str] = set()
        self._fetched: dict[str, bytes] = {}
        # Request keys by bundle, the entries of each bundle, and all of them by name.
        self._bundles: dict[str, list[str]] = {}
        self._bundle_entries: dict[str, dict[str, bytes]] = {}
        self._bundled: dict[str, bytes] = {}
        # Keys to add to the remote's bundles; the remote's bundles of frames, with their entries.
        self._unbundled: set[str] = set()
        self._remote_frames: dict[str, set[str]] = {}

    def prepare(self, requests: Iterable[CompileRequest]) -> None:
        """Open the folder's bundles, and fetch entries missing from the folder at once.

        The fetch only saves time: `find` would fetch them one by one.
        """
        listed_requests = list(requests)
        self._open_bundles(listed_requests)
        self._open_frames()
        if self._remote is None:
            return
        self._fetch_bundles()
        missing = self.prepare_sets(listed_requests)
        listed = {key: (*self._source_sets(key), *self._remote_sets(key)) for key in missing}
        self._fetch(
            _kernel_name(key, sources) for key in missing for sources in self._current(listed[key])
        )

    def prepare_sets(self, requests: Sequence[CompileRequest]) -> list[str]:
        """Fetch the source sets for `has` at once; return the keys missing from the folder."""
        self._open_bundles(requests)
        keys = dict.fromkeys(map(self._request_key, requests))
        missing = [key for key in keys if self._local_sources(key) is None]
        self._fetch(_sets_name(key) for key in missing)
        self._unbundled.update(key for key in missing if self._is_remote(key))
        return missing

    @property
    def frames(self) -> FrameCache:
        """Compressed frames of archives, stored in the same folder."""
        return self._frames

    def find(self, request: CompileRequest) -> CachedKernel | None:
        """Return the cached result of compiling `request`, or None if there is none."""
        key = self._request_key(request)
        for listed in (self._source_sets, self._remote_sets):
            for sources in self._current(listed(key)):
                kernel = self._read(_kernel_name(key, sources), _kernel_decoder)
                if kernel is not None:
                    self._remember(key, sources)
                    return kernel
        return None

    def has(self, request: CompileRequest) -> bool:
        """Return whether `find` will probably succeed; the kernel itself is not read."""
        key = self._request_key(request)
        return self._local_sources(key) is not None or self._is_remote(key)

    def store(self, request: CompileRequest, kernel: CachedKernel) -> None:
        """Store the result of compiling `request`."""
        key = self._request_key(request)
        self._unbundled.add(key)
        sources = (kernel.metadata.source_files, kernel.metadata.searches)
        self._write(_kernel_name(key, sources), kernel)
        self._write(_sets_name(key), self._merged_sets(key, sources))

    @property
    def times(self) -> CompileTimes:
        """Recorded compile times."""
        return self._times

    def close(self) -> None:
        """Save the times, and wait until the remote has all stored entries."""
        self._times.save()
        if self._remote is not None:
            self._put_bundles(self._remote)
            self._put_frames(self._remote)
            self._remote.close()

    def _open_bundles(self, requests: Sequence[CompileRequest]) -> None:
        """Read the folder's bundles for requests, once each."""
        groups: dict[tuple[str, str], list[str]] = {}
        for request in requests:
            kernel = (request.source, request.kernel)
            groups.setdefault(kernel, []).append(self._request_key(request))
        for kernel, keys in groups.items():
            for name, bundle_keys in kernel_bundles((self._compiler, *kernel), keys).items():
                if name not in self._bundles:
                    self._bundles[name] = bundle_keys
                    self._take(name, self._decode_bundle(self._folder, name, self._read_file(name)))

    def _take(self, name: str, entries: Mapping[str, bytes]) -> None:
        self._bundle_entries.setdefault(name, {}).update(entries)
        self._bundled.update(entries)

    def _decode_bundle(self, where: object, name: str, data: bytes | None) -> dict[str, bytes]:
        """Return the entries of a bundle; none if it is missing or damaged."""
        entries = None if data is None else decode_bundle(data)
        if data is not None and entries is None:
            self._warn(f"cache bundle {where}/{name} is damaged; it is done without")
        return entries or {}

    def _fetch_bundles(self) -> None:
        """Fetch the bundles of entries missing from the folder, and the frames with them."""
        lacking = {
            name: [key for key in keys if self._local_sources(key) is None]
            for name, keys in self._bundles.items()
        }
        bundles = [name for name, keys in lacking.items() if keys]
        if bundles:  # otherwise the folder probably has the frames, too
            self._remote_frames = {name: set() for name in frame_bundles(self._all_keys())}
        for name, data in self._fetch_objects([*bundles, *self._remote_frames]).items():
            entries = self._decode_bundle(self._remote, name, data)
            if name in self._remote_frames:
                self._remote_frames[name].update(entries)
                self._frames.add(entries)
            else:
                self._take(name, entries)
                if not any(self._is_bundled(key) for key in lacking[name]):
                    continue  # it holds other requests, or other sources
                entries = self._bundle_entries[name]
            self._write_file(name, encode_bundle(entries))
        self._requested.update(_sets_name(key) for key in self._all_keys() if self._is_bundled(key))

    def _is_bundled(self, key: str) -> bool:
        """Return whether a bundle has the kernel of a request for the current sources."""
        listed = self._current(self._source_sets(key))
        return any(_kernel_name(key, sources) in self._bundled for sources in listed)

    def _all_keys(self) -> list[str]:
        return [key for keys in self._bundles.values() for key in keys]

    def _put_bundles(self, remote: RemoteStore) -> None:
        """Update the remote's bundles that lack an entry of this build.

        Their other entries stay, if still valid.
        """
        for name, keys in self._bundles.items():
            if not self._unbundled.intersection(keys):
                continue
            entries: dict[str, bytes] = {}
            previous = (path.rpartition("/") for path in self._bundle_entries[name])
            other_keys = [key for kind, _, key in previous if kind.startswith("requests/")]
            for key in [*keys, *other_keys][: 2 * MAX_REQUESTS]:
                sources = self._local_sources(key)
                if sources is not None:
                    for path in (_sets_name(key), _kernel_name(key, sources)):
                        data = self._read_file(path) or self._bundled.get(path)
                        if data is not None:
                            entries[path] = data
            remote.put(f"{FORMAT}/{name}", encode_bundle(entries))

    def _open_frames(self) -> None:
        """Read the frames in the folder's bundles."""
        for name in frame_bundles(self._all_keys()):
            self._frames.add(self._decode_bundle(self._folder, name, self._read_file(name)))

    def _put_frames(self, remote: RemoteStore) -> None:
        """Update the remote's bundles that lack a frame used by this build."""
        bundles = list(self._remote_frames.items())
        for index, (name, had) in enumerate(bundles):
            entries = {
                frame: data
                for frame, data in self._frames.used.items()
                if int(frame[:8], 16) % len(bundles) == index
            }
            if not had.issuperset(entries):
                remote.put(f"{FORMAT}/{name}", encode_bundle(entries))

    def _request_key(self, request: CompileRequest) -> str:
        # MessagePack tells 1, 1.0 and true apart, as the compiler does.
        content = msgspec.msgpack.encode((self._compiler, request))
        return hashlib.sha256(content).hexdigest()

    def _source_sets(self, key: str) -> Sequence[SourceSet]:
        """Return the source sets of a request in the folder and bundles."""
        return self._read_here(_sets_name(key), _sets_decoder) or ()

    def _remote_sets(self, key: str) -> Sequence[SourceSet]:
        name = _sets_name(key)
        self._fetch([name])
        return self._decode(self._remote, name, self._fetched.get(name), _sets_decoder) or ()

    def _local_sources(self, key: str) -> SourceSet | None:
        """Return the source set of a kernel in the folder or a bundle, or None."""
        listed = self._current(self._source_sets(key))
        return next(
            (sources for sources in listed if self._is_here(_kernel_name(key, sources))), None
        )

    def _is_remote(self, key: str) -> bool:
        """Return whether the remote lists a source set valid for the current files."""
        return any(sources in self._current([sources]) for sources in self._remote_sets(key))

    def _merged_sets(self, key: str, sources: SourceSet) -> list[SourceSet]:
        # If two builds race, the lost update only costs one of them a later compile.
        by_shape: dict[object, SourceSet] = {}
        for source_set in (sources, *self._source_sets(key), *self._remote_sets(key)):
            by_shape.setdefault(
                (tuple(path for path, _ in source_set[0]), source_set[1]), source_set
            )
        return list(by_shape.values())[:_MAX_SOURCE_SETS]

    def _remember(self, key: str, sources: SourceSet) -> None:
        """Record a source set from the remote in the folder."""
        if _sets_name(key) in self._fetched:
            source_sets = self._merged_sets(key, sources)
            if source_sets != list(self._source_sets(key)):
                self._write_file(_sets_name(key), encode_entry(key, source_sets))

    def _current(self, listed: Iterable[SourceSet]) -> list[SourceSet]:
        """Return the source sets valid for the current files, with their current digests."""
        current: dict[SourceSet, None] = {}
        for files, searches in listed:
            digests = [(path, digest) for path, _ in files if (digest := self._digest(path))]
            if len(digests) == len(files) and all(
                self._search(search) == module_path for search, module_path in searches
            ):
                current[tuple(digests), searches] = None
        return list(current)

    def _digest(self, path: str) -> str | None:
        if path not in self._source_digests:
            self._source_digests[path] = None
            with contextlib.suppress(OSError):
                content = read_regular(path, MAX_SOURCE_BYTES)
                self._source_digests[path] = hashlib.sha256(content).hexdigest()
        return self._source_digests[path]

    def _search(self, search: Search) -> str | None:
        if search not in self._searches:
            self._searches[search] = find_module(search)
        return self._searches[search]

    def _read(
        self, name: str, decoder: msgspec.msgpack.Decoder[Entry[ContentT]]
    ) -> ContentT | None:
        """Return the content of an entry, or None if it is missing or damaged."""
        content = self._read_here(name, decoder)
        if content is not None:
            return content
        self._fetch([name])
        data = self._fetched.pop(name, None)
        content = self._decode(self._remote, name, data, decoder)
        if content is not None and data is not None:
            self._write_file(name, data)
        return content

    def _read_here(
        self, name: str, decoder: msgspec.msgpack.Decoder[Entry[ContentT]]
    ) -> ContentT | None:
        """Return the content of an entry from the folder, or else from a bundle."""
        content = self._decode(self._folder, name, self._read_file(name), decoder)
        if content is None:
            content = self._decode("a bundle", name, self._bundled.get(name), decoder)
        return content

    def _is_here(self, name: str) -> bool:
        return name in self._bundled or (self._folder / name).exists()

    def _decode(
        self,
        where: object,
        name: str,
        data: bytes | None,
        decoder: msgspec.msgpack.Decoder[Entry[ContentT]],
    ) -> ContentT | None:
        """Decode bytes from `where` as the entry `name`; None if damaged or missing."""
        if data is None:
            return None
        content = decode_entry(data, name.rpartition("/")[2], decoder)
        location = f"{where}/{name}"
        if content is None and location not in self._damaged:
            self._damaged.add(location)
            self._warn(
                f"cache entry {location} is damaged or in the wrong place; "
                "its kernel is compiled again"
            )
        return content

    def _fetch(self, names: Iterable[str]) -> None:
        """Fetch objects from the remote, once each."""
        if self._remote is not None:
            new = [name for name in names if name not in self._requested]
            self._requested.update(new)
            if new:
                self._fetched.update(self._fetch_objects(new))

    def _fetch_objects(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the objects present in the remote."""
        if self._remote is None:
            return {}
        prefix = f"{FORMAT}/"
        objects = self._remote.fetch(prefix + name for name in names)
        return {path.removeprefix(prefix): data for path, data in objects.items()}

    def _write(self, name: str, content: object) -> None:
        data = encode_entry(name.rpartition("/")[2], content)
        self._write_file(name, data)
        if self._remote is not None:
            self._remote.put(f"{FORMAT}/{name}", data)

    def _read_file(self, name: str) -> bytes | None:
        try:
            return read_regular(self._folder / name, MAX_ENTRY_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn_of_io(error)
            return None

    def _write_file(self, name: str, data: bytes) -> None:
        try:
            write_entry(self._folder / name, data)
        except OSError as error:
            self._warn_of_io(error)

    def _warn_of_io(self, error: OSError) -> None:
        if not self._has_warned_of_io:
            self._has_warned_of_io = True
            reason = error.strerror or str(error)
            self._warn(f"cache in {self._folder} cannot be used: {reason}; building without it")


def _sets_name(key: str) -> str:
    return f"requests/{key[:2]}/{key}"


def _kernel_name(key: str, sources: SourceSet) -> str:
    name = hashlib.sha256(msgspec.msgpack.encode((key, sources))).hexdigest()
    return f"kernels/{name[:2]}/{name}"
