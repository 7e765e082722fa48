"""Launches of Triton programs from archives: `install`, then unchanged code launches without a JIT.

Where Triton is installed its launches are taken over; where it is not, a stand-in provides what
modules with kernels import. Importing this package imports nothing but the standard library.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from aotc.triton.specialization import NotInArchiveError

__all__ = ["NotInArchiveError", "install"]


def install(
    archives: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    strict: bool = True,  # noqa: FBT001, FBT002 - as it is documented
    *,
    stand_in: bool | None = None,
    record: str | os.PathLike[str] = "record",
    driver: str | None = None,
) -> None:
    """Let kernels of Triton programs launch from archives.

    Call it before modules with kernels are imported. With `strict`, a launch that no archive has is
    a `NotInArchiveError`; otherwise Triton compiles it, and it is recorded in the folder `record`,
    as `aotc record -o` would. `stand_in` says whether the stand-in for Triton is used; None is: if
    Triton is not installed. `driver` is the CUDA driver's library.

    Raises: AotcError for what is wrong with an archive; ValueError if its sources are not known, or
    if there is no Triton for what is not strict.
    """
    from aotc.triton.installation import install  # noqa: PLC0415 - start-up time

    paths = [archives] if isinstance(archives, str) or hasattr(archives, "__fspath__") else archives
    install([*paths], strict=strict, stand_in=stand_in, record=record, driver=driver)  # type: ignore[arg-type]


def __getattr__(name: str) -> object:
    if name == "NotInArchiveError":
        from aotc.triton.specialization import NotInArchiveError  # noqa: PLC0415 - start-up time

        return NotInArchiveError
    raise AttributeError(f"module 'aotc.triton' has no attribute {name!r}")
