"""Launch unchanged Triton programs from archives, without a JIT, after `install`.

If Triton is installed, its launches are replaced. Otherwise a stand-in provides the names imported
by modules with kernels. Importing this package imports only the standard library.
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
    """Launch kernels of Triton programs from archives.

    Call it before modules with kernels are imported. With `strict`, a launch missing from the
    archives raises `NotInArchiveError`; otherwise Triton compiles it, and it is recorded in the
    folder `record`, as by `aotc record -o`. `stand_in` selects the stand-in for Triton; None uses it
    if Triton is not installed. `driver` is the CUDA driver's library.

    Raises: AotcError for an invalid archive; ValueError if its sources are unknown, or if `strict`
    is off without Triton.
    """
    from aotc.triton.installation import install  # noqa: PLC0415 - start-up time

    paths = [archives] if isinstance(archives, str) or hasattr(archives, "__fspath__") else archives
    install([*paths], strict=strict, stand_in=stand_in, record=record, driver=driver)  # type: ignore[arg-type]


def __getattr__(name: str) -> object:
    if name == "NotInArchiveError":
        from aotc.triton.specialization import NotInArchiveError  # noqa: PLC0415 - start-up time

        return NotInArchiveError
    raise AttributeError(f"module 'aotc.triton' has no attribute {name!r}")
