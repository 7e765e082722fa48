"""The cache of compiled kernels, keyed by the content of all inputs.

Which files a kernel depends on (its own, and every module that it takes functions from) is known
only after a compile, so a look-up has two steps, as in ccache's direct mode:

    request + compiler digest            ──► which files earlier such compiles read
    the same + the contents of these now  ──► the cubin and its metadata

A source set is the files that a compile read, with their digests, and its searches for imported
modules, with what each found: a new file that would now be imported instead makes another set. Of
sets that differ in digests alone the last one is listed, since digests are those of the files as they
are: however often a file is edited, each version is found again. How long is for `cache prune` to say,
by size and age. A build in which nothing changed reads the sources, hashes them, and compiles nothing.

Invariants: an entry is written under a temporary name and renamed, so a reader never sees half of
one; it starts with the SHA-256 of its content and names its own key, so one that was damaged or
moved is ignored with a warning and compiled again; and whatever goes wrong with the cache, be it a
full disk or a read-only folder, the build goes on without it and warns once. A remote store has the
same entries under the same names: what comes from there is checked as what is in the folder. It has
bundles of them besides (cache_bundle.py), which the folder keeps as they come.
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
_MAX_SOURCE_SETS = 256  # that differ in files or searches, such as those of as many projects

SourceSet: TypeAlias = tuple[tuple[tuple[str, str], ...], tuple[tuple[Search, str | None], ...]]
"""The files that were read with their digests, and the searches with what they found."""

ContentT = TypeVar("ContentT")


@dataclass(frozen=True, slots=True)
class CachedKernel:
    """What an archive needs of a compiled kernel; `ptx` is as in `stored_ptx.py`, or empty.

    A kernel whose pointer loads use tensor maps may not be valid for all launches; its `fallback`
    is the same kernel without tensor maps. `misfit` says why the target cannot hold the fallback,
    or, if there is no cubin, why it cannot hold the kernel itself.
    """

    cubin: bytes
    metadata: Metadata
    ptx: bytes | None = None
    fallback: CachedKernel | None = None
    misfit: str = ""

    @property
    def is_misfit(self) -> bool:
        """Whether the target cannot hold the kernel; its metadata then repeats the request."""
        return not self.cubin


_kernel_decoder = msgspec.msgpack.Decoder(Entry[CachedKernel])
_sets_decoder = msgspec.msgpack.Decoder(Entry[list[SourceSet]])


class Cache:
    """A folder of compiled kernels; any number of processes may share it.

    `compiler` is the digest of everything but requests and sources; `warn` is called with one line
    of text. What the folder does not have is looked for in `remote`, and kept in both. Source files
    are read once in the life of the object, so it should not outlive a build.
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
        # Names that the remote was asked for, and the objects that it had.
        self._asked: set[str] = set()
        self._fetched: dict[str, bytes] = {}
        # Keys of requests by bundle, what each bundle has, and all of that by the entries' names.
        self._bundles: dict[str, list[str]] = {}
        self._bundle_entries: dict[str, dict[str, bytes]] = {}
        self._bundled: dict[str, bytes] = {}
        # Keys of what the remote's bundles should have now; its bundles of frames, and what each had.
        self._unbundled: set[str] = set()
        self._frames_had: dict[str, set[str]] = {}

    def prepare(self, requests: Iterable[CompileRequest]) -> None:
        """Open the folder's bundles, and fetch at once what the remote has and the folder has not.

        The latter is only quicker than to have `find` fetch one after the other.
        """
        given = list(requests)
        self._open_bundles(given)
        self._open_frames()
        if self._remote is None:
            return
        self._fetch_bundles()
        missing = self.prepare_sets(given)
        listed = {key: (*self._source_sets(key), *self._remote_sets(key)) for key in missing}
        self._fetch(
            _kernel_name(key, sources) for key in missing for sources in self._current(listed[key])
        )

    def prepare_sets(self, requests: Sequence[CompileRequest]) -> list[str]:
        """Fetch at once what `has` asks the remote; return the keys of what the folder lacks."""
        self._open_bundles(requests)
        keys = dict.fromkeys(map(self._request_key, requests))
        missing = [key for key in keys if self._held(key) is None]
        self._fetch(_sets_name(key) for key in missing)
        self._unbundled.update(key for key in missing if self._is_remote(key))
        return missing

    @property
    def frames(self) -> FrameCache:
        """Compressed frames of archives, which are kept in the same folder."""
        return self._frames

    def find(self, request: CompileRequest) -> CachedKernel | None:
        """Return the cached result of compiling `request`, or None if there is none."""
        key = self._request_key(request)
        for listed in (self._source_sets, self._remote_sets):
            for sources in self._current(listed(key)):
                found = self._read(_kernel_name(key, sources), _kernel_decoder)
                if found is not None:
                    self._remember(key, sources)
                    return found
        return None

    def has(self, request: CompileRequest) -> bool:
        """Return whether `find` would most likely find it; its kernel is not read."""
        key = self._request_key(request)
        return self._held(key) is not None or self._is_remote(key)

    def store(self, request: CompileRequest, kernel: CachedKernel) -> None:
        """Store the result of compiling `request`."""
        key = self._request_key(request)
        self._unbundled.add(key)
        sources = (kernel.metadata.source_files, kernel.metadata.searches)
        self._write(_kernel_name(key, sources), kernel)
        self._write(_sets_name(key), self._with_others(key, sources))

    @property
    def times(self) -> CompileTimes:
        """How long compiles took."""
        return self._times

    def close(self) -> None:
        """Keep the times, and wait until the remote has what was stored."""
        self._times.save()
        if self._remote is not None:
            self._put_bundles(self._remote)
            self._put_frames(self._remote)
            self._remote.close()

    # -- bundles ---------------------------------------------------------------

    def _open_bundles(self, requests: Sequence[CompileRequest]) -> None:
        """Take what the folder's bundles have of requests, once."""
        groups: dict[tuple[str, str], list[str]] = {}
        for request in requests:
            kernel = (request.source, request.kernel)
            groups.setdefault(kernel, []).append(self._request_key(request))
        for kernel, keys in groups.items():
            for name, each in kernel_bundles((self._compiler, *kernel), keys).items():
                if name not in self._bundles:
                    self._bundles[name] = each
                    self._take(name, self._opened(self._folder, name, self._read_file(name)))

    def _take(self, name: str, entries: Mapping[str, bytes]) -> None:
        self._bundle_entries.setdefault(name, {}).update(entries)
        self._bundled.update(entries)

    def _opened(self, where: object, name: str, data: bytes | None) -> dict[str, bytes]:
        """Return the entries of a bundle, none if there is no such or it is damaged."""
        entries = None if data is None else decode_bundle(data)
        if data is not None and entries is None:
            self._warn(f"cache bundle {where}/{name} is damaged; it is done without")
        return entries or {}

    def _fetch_bundles(self) -> None:
        """Fetch the bundles of which the folder lacks something, and those of frames with them."""
        lacking = {
            name: [key for key in keys if self._held(key) is None]
            for name, keys in self._bundles.items()
        }
        wanted = [name for name, keys in lacking.items() if keys]
        if wanted:  # else the folder is likely to have the frames, too
            self._frames_had = {name: set() for name in frame_bundles(self._all_keys())}
        for name, data in self._had([*wanted, *self._frames_had]).items():
            entries = self._opened(self._remote, name, data)
            if name in self._frames_had:
                self._frames_had[name].update(entries)
                self._frames.add(entries)
            else:
                self._take(name, entries)
                if not any(self._is_bundled(key) for key in lacking[name]):
                    continue  # it is of other requests, or of other sources
                entries = self._bundle_entries[name]
            self._write_file(name, encode_bundle(entries))
        self._asked.update(_sets_name(key) for key in self._all_keys() if self._is_bundled(key))

    def _is_bundled(self, key: str) -> bool:
        """Return whether a bundle has what holds now of a request."""
        listed = self._current(self._source_sets(key))
        return any(_kernel_name(key, sources) in self._bundled for sources in listed)

    def _all_keys(self) -> list[str]:
        return [key for keys in self._bundles.values() for key in keys]

    def _put_bundles(self, remote: RemoteStore) -> None:
        """Put those bundles again that lack something which this build has.

        What they had besides stays in them, if it holds still.
        """
        for name, keys in self._bundles.items():
            if not self._unbundled.intersection(keys):
                continue
            entries: dict[str, bytes] = {}
            had = (each.rpartition("/") for each in self._bundle_entries[name])
            others = [key for kind, _, key in had if kind.startswith("requests/")]
            for key in [*keys, *others][: 2 * MAX_REQUESTS]:
                sources = self._held(key)
                if sources is not None:
                    for each in (_sets_name(key), _kernel_name(key, sources)):
                        data = self._read_file(each) or self._bundled.get(each)
                        if data is not None:
                            entries[each] = data
            remote.put(f"{FORMAT}/{name}", encode_bundle(entries))

    def _open_frames(self) -> None:
        """Take the frames that bundles in the folder have."""
        for name in frame_bundles(self._all_keys()):
            self._frames.add(self._opened(self._folder, name, self._read_file(name)))

    def _put_frames(self, remote: RemoteStore) -> None:
        """Put those bundles of frames again that lacked one which this build used."""
        bundles = list(self._frames_had.items())
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

    # -- sources ---------------------------------------------------------------

    def _source_sets(self, key: str) -> Sequence[SourceSet]:
        """Return the source sets that the folder and bundles have for a request."""
        return self._read_here(_sets_name(key), _sets_decoder) or ()

    def _remote_sets(self, key: str) -> Sequence[SourceSet]:
        name = _sets_name(key)
        self._fetch([name])
        return self._checked(self._remote, name, self._fetched.get(name), _sets_decoder) or ()

    def _held(self, key: str) -> SourceSet | None:
        """Return the source set of which the folder or a bundle has a kernel, or None."""
        listed = self._current(self._source_sets(key))
        return next((one for one in listed if self._is_here(_kernel_name(key, one))), None)

    def _is_remote(self, key: str) -> bool:
        """Return whether the remote lists a source set that holds now."""
        return any(sources in self._current([sources]) for sources in self._remote_sets(key))

    def _with_others(self, key: str, sources: SourceSet) -> list[SourceSet]:
        # If two builds race, the lost update costs one of them a compile later, no more.
        by_shape: dict[object, SourceSet] = {}
        for one in (sources, *self._source_sets(key), *self._remote_sets(key)):
            by_shape.setdefault((tuple(path for path, _ in one[0]), one[1]), one)
        return list(by_shape.values())[:_MAX_SOURCE_SETS]

    def _remember(self, key: str, sources: SourceSet) -> None:
        """Note in the folder what was found elsewhere."""
        if _sets_name(key) in self._fetched:
            others = self._with_others(key, sources)
            if others != list(self._source_sets(key)):
                self._write_file(_sets_name(key), encode_entry(key, others))

    def _current(self, listed: Iterable[SourceSet]) -> list[SourceSet]:
        """Return those source sets whose files a compile may read now, with the files' digests."""
        current: dict[SourceSet, None] = {}
        for files, searches in listed:
            digests = [(path, digest) for path, _ in files if (digest := self._digest(path))]
            if len(digests) == len(files) and all(
                self._search(search) == found for search, found in searches
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

    # -- entries ---------------------------------------------------------------

    def _read(
        self, name: str, decoder: msgspec.msgpack.Decoder[Entry[ContentT]]
    ) -> ContentT | None:
        """Return the content of an entry, or None if it is nowhere, or damaged."""
        found = self._read_here(name, decoder)
        if found is not None:
            return found
        self._fetch([name])
        data = self._fetched.pop(name, None)
        found = self._checked(self._remote, name, data, decoder)
        if found is not None and data is not None:
            self._write_file(name, data)
        return found

    def _read_here(
        self, name: str, decoder: msgspec.msgpack.Decoder[Entry[ContentT]]
    ) -> ContentT | None:
        """Return the content of an entry that has a file, or else is in a bundle."""
        found = self._checked(self._folder, name, self._read_file(name), decoder)
        if found is None:
            found = self._checked("a bundle", name, self._bundled.get(name), decoder)
        return found

    def _is_here(self, name: str) -> bool:
        return name in self._bundled or (self._folder / name).exists()

    def _checked(
        self,
        where: object,
        name: str,
        data: bytes | None,
        decoder: msgspec.msgpack.Decoder[Entry[ContentT]],
    ) -> ContentT | None:
        """Return what bytes from `where` hold as the entry `name`, or None."""
        if data is None:
            return None
        content = decode_entry(data, name.rpartition("/")[2], decoder)
        place = f"{where}/{name}"
        if content is None and place not in self._damaged:
            self._damaged.add(place)
            self._warn(
                f"cache entry {place} is damaged or in the wrong place; "
                "its kernel is compiled again"
            )
        return content

    def _fetch(self, names: Iterable[str]) -> None:
        """Ask the remote for objects, once for each."""
        if self._remote is not None:
            new = [name for name in names if name not in self._asked]
            self._asked.update(new)
            if new:
                self._fetched.update(self._had(new))

    def _had(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return those of the objects that the remote has."""
        if self._remote is None:
            return {}
        prefix = f"{FORMAT}/"
        found = self._remote.fetch(prefix + name for name in names)
        return {path.removeprefix(prefix): data for path, data in found.items()}

    def _write(self, name: str, content: object) -> None:
        data = encode_entry(name.rpartition("/")[2], content)
        self._write_file(name, data)
        if self._remote is not None:
            self._remote.put(f"{FORMAT}/{name}", data)

    # -- the folder ------------------------------------------------------------

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
