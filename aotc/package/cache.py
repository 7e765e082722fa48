"""Compiled kernels, kept by the content of all that went into them.

Which files a kernel was compiled from (its own, and every module it takes functions from) is known
only afterwards, so a look-up has two steps, as in ccache's direct mode:

    request + compiler digest            ──► the sets of source files that such compiles have read
    the same + digests of one such set   ──► the cubin and its metadata

A build in which nothing changed reads the sources, hashes them, and compiles nothing. One gap is
known: a new file that would be imported *instead* of one in the set goes unnoticed.

Invariants: entries are written under another name and moved into place, so a reader never sees half
of one; each kernel entry starts with the SHA-256 of what follows; and whatever goes wrong with the
cache, a full disk or a folder that is read-only, the build goes on without it and says so once.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from aotc.compiler import CompileRequest, Metadata

# Part of every path: a change to what the entries look like starts an empty cache.
_FORMAT = "v1"
_MAX_SOURCE_SETS = 8
_DIGEST_BYTES = 32

SourceFiles: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CachedKernel:
    """What an archive needs of a compiled kernel; `ptx` as `stored_ptx.py` has it, if asked for.

    A kernel that takes tensor maps for what it loads through pointers may not do for all launches;
    its `fallback` is the same kernel without, for the others. `misfit` says why the target cannot
    hold that; or the kernel itself, of which there is no cubin then.
    """

    cubin: bytes
    metadata: Metadata
    ptx: bytes | None = None
    fallback: CachedKernel | None = None
    misfit: str = ""

    @property
    def is_misfit(self) -> bool:
        """Whether the target cannot hold the kernel; its metadata is the request's alone."""
        return not self.cubin


_kernel_decoder = msgspec.msgpack.Decoder(CachedKernel)
_sets_decoder = msgspec.msgpack.Decoder(list[SourceFiles])


class Cache:
    """A folder of compiled kernels; any number of processes may share it.

    `compiler` is the digest of everything but requests and sources; `warn` takes one line of text.
    Source files are read once in the life of the object, so it should not outlive a build.
    """

    def __init__(self, folder: Path, compiler: str, warn: Callable[[str], None]) -> None:
        self._folder = folder / _FORMAT
        self._compiler = compiler
        self._warn = warn
        self._has_warned_of_io = False
        self._source_digests: dict[str, str | None] = {}

    def find(self, request: CompileRequest) -> CachedKernel | None:
        """Return what compiling `request` would give now, or None if that is not known."""
        key = self._request_key(request)
        for files in self._source_sets(key):
            if all(self._digest(path) == digest for path, digest in files):
                found = self._read_kernel(self._kernel_path(key, files))
                if found is not None:
                    return found
        return None

    def store(self, request: CompileRequest, kernel: CachedKernel) -> None:
        """Keep the result of compiling `request`."""
        key = self._request_key(request)
        files = kernel.metadata.source_files
        payload = msgspec.msgpack.encode(kernel)
        self._write(self._kernel_path(key, files), hashlib.sha256(payload).digest() + payload)
        others = [known for known in self._source_sets(key) if known != files]
        # A lost update of two builds costs one of them a compile later, no more.
        sets = [files, *others][:_MAX_SOURCE_SETS]
        self._write(self._sets_path(key), msgspec.msgpack.encode(sets))

    def _request_key(self, request: CompileRequest) -> str:
        # MessagePack tells 1, 1.0 and true apart, as the compiler does.
        content = msgspec.msgpack.encode((self._compiler, request))
        return hashlib.sha256(content).hexdigest()

    def _sets_path(self, key: str) -> Path:
        return self._folder / "requests" / key[:2] / key

    def _kernel_path(self, key: str, files: SourceFiles) -> Path:
        name = hashlib.sha256(msgspec.msgpack.encode((key, files))).hexdigest()
        return self._folder / "kernels" / name[:2] / name

    def _digest(self, path: str) -> str | None:
        if path not in self._source_digests:
            try:
                content = Path(path).read_bytes()
            except OSError:
                self._source_digests[path] = None
            else:
                self._source_digests[path] = hashlib.sha256(content).hexdigest()
        return self._source_digests[path]

    def _source_sets(self, key: str) -> Sequence[SourceFiles]:
        path = self._sets_path(key)
        content = self._read(path)
        if content is None:
            return ()
        try:
            return _sets_decoder.decode(content)
        except msgspec.MsgspecError:
            self._warn_of_damage(path)
            return ()

    def _read_kernel(self, path: Path) -> CachedKernel | None:
        content = self._read(path)
        if content is None:
            return None
        digest, payload = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() == digest:
            try:
                return _kernel_decoder.decode(payload)
            except msgspec.MsgspecError:
                pass  # whole, but written by another version of this file
        self._warn_of_damage(path)
        return None

    def _read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn_of_io(error)
            return None

    def _write(self, path: Path, content: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                Path(temporary).replace(path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            self._warn_of_io(error)

    def _warn_of_damage(self, path: Path) -> None:
        self._warn(f"cache entry {path} is damaged; its kernel is compiled again")

    def _warn_of_io(self, error: OSError) -> None:
        if not self._has_warned_of_io:
            self._has_warned_of_io = True
            reason = error.strerror or str(error)
            self._warn(f"cache in {self._folder} cannot be used: {reason}; building without it")
