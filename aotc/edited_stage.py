"""A stage of a compile that was edited by hand, and takes the place of the compiler's own."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from aotc.ir.diagnostics import CompileError, IRError, Loc, ManifestError
from aotc.regular_file import MAX_SOURCE_BYTES, read_regular

if TYPE_CHECKING:
    from aotc.ir.core import Kernel

TextStage = Literal["tile", "gpu", "llvm", "ptx"]
SUFFIXES: dict[str, TextStage] = {".tile": "tile", ".gpu": "gpu", ".llvm": "llvm", ".ptx": "ptx"}


@dataclass(frozen=True, slots=True)
class EditedStage:
    """The text of a stage; `file` names it in reports."""

    stage: TextStage
    text: str
    file: str

    @staticmethod
    def read(path: str) -> EditedStage:
        """Read a stage from a file; its suffix names the stage. Raises: ManifestError."""
        stage = SUFFIXES.get(Path(path).suffix)
        if stage is None:
            message = f"expected a stage ({', '.join(f'FILE{suffix}' for suffix in SUFFIXES)}), got {path!r}"
            raise ManifestError(
                message, remedy="`aotc dump --stage STAGE -o FILE.STAGE` writes one"
            )
        try:
            return EditedStage(stage, read_regular(Path(path), MAX_SOURCE_BYTES).decode(), path)
        except OSError as error:
            raise ManifestError(f"cannot read {path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise ManifestError(f"expected a stage as text, {path} is not UTF-8") from None

    def kernel(self, own: Kernel) -> Kernel:
        """Return the kernel of a stage of IR, which replaces `own`.

        Raises: CompileError if it takes other parameters: launches pass those of the source.
        """
        from aotc.ir.text import parse_kernel  # noqa: PLC0415 - start-up time

        kernel = parse_kernel(self.text, self.file)
        names, own_names = _parameters(kernel), _parameters(own)
        if (kernel.name, names) != (own.name, own_names):
            expected = ", ".join(f"{name}: {kind}" for name, kind in own_names)
            actual = ", ".join(f"{name}: {kind}" for name, kind in names)
            message = f"expected @{own.name}({expected}), got @{kernel.name}({actual})"
            raise CompileError(message, Loc(self.file, 1))
        return kernel

    def error(self, error: IRError) -> CompileError:
        """Return the report of a mistake in the text, found by a later stage."""
        line = getattr(error, "line", 0)
        if not line and error.loc is not None and error.loc.file == self.file:
            line = error.loc.line
        message = getattr(error, "reason", "") or str(error).removeprefix(f"{error.loc}: ")
        loc = Loc(self.file, line) if line else None
        where = "" if loc is not None else f" in {self.file}"
        remedy = f"`aotc dump --stage {self.stage}` writes it as the compiler has it"
        return CompileError(
            f"expected {self.stage} of a kernel{where}: {message}", loc, remedy=remedy
        )


def _parameters(kernel: Kernel) -> list[tuple[str, str]]:
    args = zip(kernel.params, kernel.body.args, strict=True)
    return [(info.name, str(arg.type)) for info, arg in args]


def edit_remark(edited: EditedStage | None) -> str:
    """Return the remark on an edited stage, "" for none."""
    if edited is None:
        return ""
    return f"{edited.file}: compiled from this {edited.stage}, edited by hand"


@contextlib.contextmanager
def mistakes_of(edited: EditedStage | None) -> Generator[None]:
    """Report errors of later stages as mistakes of the edited one, if there is one."""
    try:
        yield
    except IRError as error:
        if edited is None:
            raise
        raise edited.error(error) from None
