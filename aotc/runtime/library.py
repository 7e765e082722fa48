"""A loaded archive: `load`, and its `Library`.

The code of launches is in the extension; the code here runs once. `zstandard` is imported when
the first archive is opened, and nothing else is.

Invariant: a loaded library is ready to launch on its device: no launch loads, compiles or
allocates anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike, fspath
from typing import TYPE_CHECKING, NamedTuple

from aotc.runtime import _native
from aotc.runtime.errors import AotcError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import TypeAlias

    from typing_extensions import Self

    Source: TypeAlias = str | PathLike[str] | bytes | bytearray | memoryview


class Pointer(NamedTuple):
    """An address on the GPU with its element's dtype, such as `Pointer(p, "bf16")`."""

    address: int
    dtype: str


class Tensor(NamedTuple):
    """A tensor in raw GPU memory, for a parameter with shape and strides.

    Strides are in elements, outermost first as the shape; None is a tensor without gaps.
    """

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None


class Library(_native.Archive):
    """The kernels of an archive, by name: `library["rmsnorm"](x, w, out, stride, n_cols, eps)`.

    It is also a context manager that closes itself. Threads may share it; a forked child may not
    use it.
    """

    def load(
        self,
        device: int | Iterable[int] | None = None,
        kernels: Iterable[str] | None = None,
        *,
        lazy: bool = False,
    ) -> None:
        """Prepare kernels on one more device; loaded ones are skipped.

        `device` is an ordinal or several; None is the device of the current context, or 0 if
        there is none. `kernels` are names, or one; None is all kernels for the device. Devices
        are used through their primary contexts, which stay retained until `unload`, or until
        the library is closed. With `lazy` the code of a variant is loaded by its first launch,
        or by `select`; loading the same kernels without it loads the rest.

        Raises: `ArchError` if nothing runs there, `DriverError` without a driver or a GPU,
        `NotFoundError` for an unknown name, and errors of the archive's blobs.
        """
        devices = tuple(device) if isinstance(device, Iterable) else (device,)
        names = (kernels,) if kernels is None or isinstance(kernels, str) else tuple(kernels)
        for ordinal in devices:
            for name in names:
                self._load(ordinal, name, lazy)

    def unload(self, device: int | Iterable[int]) -> None:
        """Unload everything from a device, or several; other devices continue to launch.

        The launches there must have finished, and graphs with them must not be launched again.
        A launch there is an error until `load` is called for it. Without loaded kernels the
        call does nothing.

        Raises: `ArgumentError` for a device that does not exist.
        """
        for ordinal in device if isinstance(device, Iterable) else (device,):
            self._unload(ordinal)

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels, sorted."""
        return self._names()

    @property
    def name(self) -> str:
        """Name of the archive."""
        return self._identity()[0]

    @property
    def version(self) -> str:
        """Version of the archive, from its manifest."""
        return self._identity()[1]

    @property
    def toolchain(self) -> str:
        """The compiler of the archive."""
        return self._identity()[2]

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"<aotc library {self.path!r}, closed>"
        names = ", ".join(self.kernels) or "no kernels"
        return f"<aotc library {self.name} {self.version} from {self.path!r}: {names}>"


def _decompressor() -> Callable[[bytes | memoryview, int], bytes]:
    try:
        from zstandard import decompress  # noqa: PLC0415 - takes 15 ms, only for loading
    except ImportError as error:
        message = "archives are zstd-compressed, and zstandard is missing; pip install zstandard"
        raise UnsupportedError(message) from error
    return decompress


def load(
    source: Source,
    *,
    device: int | Iterable[int] | None = None,
    kernels: Iterable[str] | None = None,
    verify: bool = False,
    lazy: bool = False,
    driver: str | PathLike[str] | None = None,
) -> Library:
    """Open an archive and prepare its kernels for launches.

    `source` is a path, or the archive's bytes, which are copied. `device`, `kernels` and `lazy`
    are as in `Library.load`. `verify` checks the SHA-256 of every blob now; otherwise a blob is
    checked when it is loaded. `driver` is the CUDA driver's library, "libcuda.so.1" unless
    given.

    Raises: a subclass of `AotcError`.
    """
    opened: tuple[str] | bytes | bytearray | memoryview
    opened = source if isinstance(source, bytes | bytearray | memoryview) else (fspath(source),)
    path = None if driver is None else fspath(driver)
    library = Library(opened, _decompressor(), verify, path)
    try:
        library.load(device, kernels, lazy=lazy)
    except AotcError:
        library.close()
        raise
    return library
