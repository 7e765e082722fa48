"""Types of arguments and options, by which a shell completes their values.

Values stay text: the commands read and check them. What cannot be read completes to nothing, since
a shell has no place for an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias

import click
from click.shell_completion import CompletionItem

Names: TypeAlias = Callable[[str], Iterable[str]]  # of a file's kernels or variants

# The words before the one that is completed: click does not parse an option without its value.
words_before: ContextVar[tuple[str, ...]] = ContextVar("aotc_words_before", default=())
_ARCHIVE_SUFFIX = ".aotc"
_SUFFIXES = (_ARCHIVE_SUFFIX, ".toml", ".py")
_SUBJECTS = ("path", "manifest")  # parameters with the file of a command as their default


class _Path(click.Path):
    """A path that a shell completes, and the command checks."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        del param, ctx
        return str(value)


class _Names(click.ParamType[str]):
    """Text completed to one of the names."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        del param, ctx
        return str(value)

    def names(self, ctx: click.Context) -> Iterable[str]:
        raise NotImplementedError

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        del param
        with contextlib.suppress(Exception):
            names = dict.fromkeys(self.names(ctx))
            return [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return []


class TargetName(_Names):
    """A target, or a set of targets where a command takes several."""

    def __init__(self, *, has_sets: bool = False) -> None:
        self._has_sets = has_sets

    def names(self, ctx: click.Context) -> Iterable[str]:  # noqa: ARG002 - see NameInFile
        from aotc.target import TARGET_SETS, TARGETS  # noqa: PLC0415 - start-up time

        return (*TARGETS, *(TARGET_SETS if self._has_sets else ()))


class FeatureName(_Names):
    """A feature that a build may do without."""

    def names(self, ctx: click.Context) -> Iterable[str]:  # noqa: ARG002 - see NameInFile
        from aotc.target import OPTIONAL_FEATURES  # noqa: PLC0415 - start-up time

        return OPTIONAL_FEATURES


class NameInFile(_Names):
    """A kernel or a variant of the file that the command is given."""

    def __init__(self, names_of: Names) -> None:
        self._names_of = names_of

    def names(self, ctx: click.Context) -> Iterable[str]:
        return self._names_of(_subject_file(ctx))


def _subject_file(ctx: click.Context) -> str:
    """Return the file a command is about, as given or by default."""
    given = (word for word in words_before.get() if word.endswith(_SUFFIXES))
    defaults = (param.get_default(ctx) for param in ctx.command.params if param.name in _SUBJECTS)
    return next((str(path) for path in (*given, *defaults) if path), "")


def kernel_names(path: str) -> Iterator[str]:
    """Yield the kernels of an archive, a manifest or a source."""
    from aotc.package.manifest.read import kernels_of_source, load  # noqa: PLC0415 - start-up time

    if path.endswith(_ARCHIVE_SUFFIX):
        from aotc.package.archive.file import read  # noqa: PLC0415

        yield from (kernel.name for kernel in read(Path(path)).kernels)
    elif path.endswith(".py"):
        yield from kernels_of_source(path)
    else:
        yield from (kernel.name for kernel in load(path).kernels)


def variant_labels(path: str) -> Iterator[str]:
    """Yield the labels of an archive's variants."""
    from aotc.package.archive.file import read  # noqa: PLC0415 - start-up time
    from aotc.package.archive.label import variant_label  # noqa: PLC0415

    for kernel in read(Path(path)).kernels:
        yield from (variant_label(kernel, variant) for variant in kernel.variants)


class KernelOfFile(_Names):
    """FILE:KERNEL, or a file: files complete first, and then their kernels."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        del ctx, param
        file, colon, _ = incomplete.rpartition(":")
        if not colon:
            return [CompletionItem(incomplete, type="file")]
        with contextlib.suppress(Exception):
            values = [f"{file}:{name}" for name in kernel_names(file)]
            return [CompletionItem(value) for value in values if value.startswith(incomplete)]
        return []


FILE = _Path()
FOLDER = _Path(file_okay=False)
KERNEL = NameInFile(kernel_names)
VARIANT = NameInFile(variant_labels)
TARGET = TargetName()
TARGETS = TargetName(has_sets=True)
FEATURE = FeatureName()
