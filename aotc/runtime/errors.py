"""The loader's exceptions: one class for each status of the C library.

The message is the library's: file, kernel, field, expected and actual value, remedy. The parts
are attributes as well, for programs.

    Exception
    └── AotcError
        ├── ReadError         IO           (also OSError) the file cannot be read
        ├── FormatError       FORMAT       not an archive, or a damaged one
        ├── VersionError      VERSION      of another version
        ├── LimitError        LIMIT        beyond a limit of the format
        ├── ChecksumError     CHECKSUM     the bytes differ from those written
        ├── SignatureError    SIGNATURE    a signature is required and there is none
        ├── NotFoundError     NOT_FOUND    (also LookupError) no such kernel or variant
        ├── ArchError         ARCH         nothing in it runs on this GPU
        ├── DriverError       DRIVER       no driver, one too old, or no GPU
        ├── ArgumentError     ARG          (also TypeError, ValueError) a wrong argument
        ├── StateError        STATE        not loaded, closed, or no context
        ├── CaptureError      CAPTURE      forbidden during a stream capture
        ├── ForkedError       FORKED       loaded before this process was forked
        ├── HostMemoryError   NOMEM        (also MemoryError) host memory
        ├── CudaError         CUDA         the driver reports an error; `cuda` is the CUresult
        └── UnsupportedError  UNSUPPORTED  a required feature is not installed
"""

from __future__ import annotations


class AotcError(Exception):
    """An error of the loader; `str()` has everything in one line.

    Attributes: `status` (its name in the C library), `cuda` and `os_error` (a CUresult and an
    errno, or 0), and the parts of the message, empty if they do not apply: `file`, `kernel`,
    `field`, `expected`, `got`, `remedy`.
    """

    status = "UNKNOWN"
    cuda: int = 0
    os_error: int = 0
    file: str = ""
    kernel: str = ""
    field: str = ""
    expected: str = ""
    got: str = ""
    remedy: str = ""


class ReadError(AotcError, OSError):
    """The file cannot be read; `errno` and `filename` are set."""

    status = "IO"
    __str__ = Exception.__str__  # OSError would say less


class FormatError(AotcError):
    """The file is not an archive, or a damaged one."""

    status = "FORMAT"


class VersionError(AotcError):
    """The archive is of another major version, or needs an unknown feature."""

    status = "VERSION"


class LimitError(AotcError):
    """A size or a count is above a limit of the format."""

    status = "LIMIT"


class ChecksumError(AotcError):
    """The bytes differ from those written."""

    status = "CHECKSUM"


class SignatureError(AotcError):
    """A signature is required and there is none."""

    status = "SIGNATURE"


class NotFoundError(AotcError, LookupError):
    """There is no such kernel, or no variant fits the call."""

    status = "NOT_FOUND"


class ArchError(AotcError):
    """Nothing in the archive runs on this GPU."""

    status = "ARCH"


class DriverError(AotcError):
    """There is no CUDA driver, or too old a driver, or no GPU."""

    status = "DRIVER"


class ArgumentError(AotcError, TypeError, ValueError):
    """An argument, a choice, a config, the grid or the stream is wrong."""

    status = "ARG"


class StateError(AotcError):
    """The library is closed, the kernel is not loaded, or no context is current."""

    status = "STATE"


class CaptureError(AotcError):
    """The call is forbidden during a stream capture."""

    status = "CAPTURE"


class ForkedError(AotcError):
    """The library was loaded before this process was forked."""

    status = "FORKED"


class HostMemoryError(AotcError, MemoryError):
    """The host has no memory left."""

    status = "NOMEM"


class CudaError(AotcError):
    """The driver reports an error; `cuda` is the CUresult."""

    status = "CUDA"


class UnsupportedError(AotcError):
    """This installation lacks a feature of the archive."""

    status = "UNSUPPORTED"


_BY_NUMBER: dict[int, type[AotcError]] = {
    1: ReadError,
    2: FormatError,
    3: VersionError,
    4: LimitError,
    5: ChecksumError,
    6: SignatureError,
    7: NotFoundError,
    8: ArchError,
    9: DriverError,
    10: ArgumentError,
    11: StateError,
    12: CaptureError,
    13: ForkedError,
    14: HostMemoryError,
    15: CudaError,
    16: UnsupportedError,
}
"""Classes by `aotc_status`, whose numbers are pinned."""


def make(
    status: int,
    cuda: int,
    os_error: int,
    message: str,
    file: str,
    kernel: str,
    field: str,
    expected: str,
    got: str,
    remedy: str,
) -> AotcError:
    """Return the exception for an `aotc_error`."""
    error = _BY_NUMBER.get(status, AotcError)(message)
    error.cuda = cuda
    error.os_error = os_error
    error.file = file
    error.kernel = kernel
    error.field = field
    error.expected = expected
    error.got = got
    error.remedy = remedy
    if isinstance(error, ReadError):
        error.errno = os_error
        error.filename = file
    return error
