"""Write manifests and records; failures of the system are `HostError`s."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aotc import output_file
from aotc.ir.diagnostics import HostError

_REMEDY = "give another -o"


def make_folder(path: Path) -> None:
    """Make the folder of an output. Raises: HostError."""
    try:
        output_file.make_folder(path)
    except OSError as error:
        message = f"cannot make the folder {path}: {error.strerror or error}"
        raise HostError(message, remedy=_REMEDY) from None


def write_text(path: Path, text: str) -> None:
    """Write a text to a file, whole or not at all. Raises: HostError."""
    write_files({path: text.encode()})


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write files, all or none. Raises: HostError."""
    try:
        output_file.write_outputs(contents)
    except OSError as error:
        message = f"cannot write {error.filename}: {error.strerror or error}"
        raise HostError(message, remedy=_REMEDY) from None
