"""The cache of compiled kernels, keyed by the content of all inputs.

Which files a kernel depends on (its own, and every module that it takes functions from) is known
only after a compile, so a look-up has two steps, as in ccache's direct mode:

    request + compiler digest                 ──► the source sets of earlier such compiles
    the same + a source set that still holds  ──► the cubin and its metadata

A source set is the files that a compile read, with their digests, and its searches for imported
modules, with what each found: a new file that would now be imported instead makes another set. A
build in which nothing changed reads the sources, hashes them, and compiles nothing.

Invariants: an entry is written under a temporary name and renamed, so a reader never sees half of
one; it starts with the SHA-256 of its content and names its own key, so one that was damaged or
moved is ignored with a warning and compiled again; and whatever goes wrong with the cache, be it a
full disk or a read-only folder, the build goes on without it and warns once.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import msgspec

from aotc.compiler import CompileRequest
from aotc.metadata import Metadata
from aotc.module_search import Search, find_module
from aotc.package.frame_cache import FrameCache
from aotc.regular_file import MAX_SOURCE_BYTES, read_regular

# Part of every path: a change to the format of entries starts an empty cache.
FORMAT = "v2"
_MAX_SOURCE_SETS = 8
_MAX_ENTRY_BYTES = 1 << 28  # a cubin takes at most a quarter of it
_DIGEST_BYTES = 32

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


@dataclass(frozen=True, slots=True)
class _Entry(Generic[ContentT]):
    """The content of a cache file; `name` is the name of the file it belongs in."""

    name: str
    content: ContentT


_kernel_decoder = msgspec.msgpack.Decoder(_Entry[CachedKernel])
_sets_decoder = msgspec.msgpack.Decoder(_Entry[list[SourceSet]])


class Cache:
    """A folder of compiled kernels; any number of processes may share it.

    `compiler` is the digest of everything but requests and sources; `warn` is called with one line
    of text. Source files are read once in the life of the object, so it should not outlive a build.
    """

    def __init__(self, folder: Path, compiler: str, warn: Callable[[str], None]) -> None:
        self._folder = folder / FORMAT
        self._compiler = compiler
        self._warn = warn
        self._has_warned_of_io = False
        self._damaged: set[Path] = set()
        self._source_digests: dict[str, str | None] = {}
        self._searches: dict[Search, str | None] = {}

    @property
    def frames(self) -> FrameCache:
        """Compressed frames of archives, which are kept in the same folder."""
        return FrameCache(self._folder)

    def find(self, request: CompileRequest) -> CachedKernel | None:
        """Return the cached result of compiling `request`, or None if there is none."""
        key = self._request_key(request)
        for sources in self._source_sets(key):
            if self._holds(sources):
                found = self._read(self._kernel_path(key, sources), _kernel_decoder)
                if found is not None:
                    return found
        return None

    def store(self, request: CompileRequest, kernel: CachedKernel) -> None:
        """Store the result of compiling `request`."""
        key = self._request_key(request)
        sources = (kernel.metadata.source_files, kernel.metadata.searches)
        self._write(self._kernel_path(key, sources), kernel)
        others = [known for known in self._source_sets(key) if known != sources]
        # If two builds race, the lost update costs one of them a compile later, no more.
        self._write(self._sets_path(key), [sources, *others][:_MAX_SOURCE_SETS])

    def _request_key(self, request: CompileRequest) -> str:
        # MessagePack tells 1, 1.0 and true apart, as the compiler does.
        content = msgspec.msgpack.encode((self._compiler, request))
        return hashlib.sha256(content).hexdigest()

    def _sets_path(self, key: str) -> Path:
        return self._folder / "requests" / key[:2] / key

    def _kernel_path(self, key: str, sources: SourceSet) -> Path:
        name = hashlib.sha256(msgspec.msgpack.encode((key, sources))).hexdigest()
        return self._folder / "kernels" / name[:2] / name

    # -- sources ---------------------------------------------------------------

    def _source_sets(self, key: str) -> Sequence[SourceSet]:
        return self._read(self._sets_path(key), _sets_decoder) or ()

    def _holds(self, sources: SourceSet) -> bool:
        """Return whether a compile would read the same files with the same contents now."""
        files, searches = sources
        return all(self._digest(path) == digest for path, digest in files) and all(
            self._search(search) == found for search, found in searches
        )

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
        self, path: Path, decoder: msgspec.msgpack.Decoder[_Entry[ContentT]]
    ) -> ContentT | None:
        """Return the content of the entry at `path`, or None if it is missing or damaged."""
        try:
            data = read_regular(path, _MAX_ENTRY_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn_of_io(error)
            return None
        digest, payload = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() == digest:
            try:
                entry = decoder.decode(payload)
            except msgspec.MsgspecError:
                pass  # whole, but written by another version of this file
            else:
                if entry.name == path.name:
                    return entry.content
        if path not in self._damaged:
            self._damaged.add(path)
            self._warn(
                f"cache entry {path} is damaged or in the wrong place; its kernel is compiled again"
            )
        return None

    def _write(self, path: Path, content: object) -> None:
        payload = msgspec.msgpack.encode(_Entry(path.name, content))
        temporary = path.with_name(f".{path.name[:16]}.{secrets.token_hex(8)}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                # With the permissions that the umask gives, so that others may read a shared cache.
                with temporary.open("xb") as file:
                    file.write(hashlib.sha256(payload).digest())
                    file.write(payload)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            self._warn_of_io(error)

    def _warn_of_io(self, error: OSError) -> None:
        if not self._has_warned_of_io:
            self._has_warned_of_io = True
            reason = error.strerror or str(error)
            self._warn(f"cache in {self._folder} cannot be used: {reason}; building without it")
