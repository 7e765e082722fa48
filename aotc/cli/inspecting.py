"""Define the commands that look into one compile: `dump`, `explain`.

They are part of the same group as the commands of `commands`, which does not refer to them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aotc.cli.arguments import FEATURE, FILE, TARGET, VARIANT, KernelOfFile
from aotc.cli.commands import commands
from aotc.cli.streams import EXIT_DONE, quietly, show, tell, writing
from aotc.ir.diagnostics import one_line

if TYPE_CHECKING:
    from aotc.compiler import CompileRequest

__all__ = ["commands"]

_STAGES = ("tile", "gpu", "llvm", "ptx", "sass", "sections", "cubin")
_SET_HELP = "Set a constant, a config key, a type variable or an argument's type; repeatable."
_MAX_GUESSES = 8

_debug = click.option("--debug", is_flag=True, help="Show the traceback of a bug in aotc.")
_variant = click.option(
    *("--variant", "variant"),
    metavar="LABEL",
    type=VARIANT,
    help="Of an archive: a variant's label, or words of it.",
)


def _of_a_compile(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that select a compile."""
    for option in (
        click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help=_SET_HELP),
        click.option(
            *("--without", "without"),
            multiple=True,
            metavar="FEATURE",
            type=FEATURE,
            help="Do not use this feature; repeatable.",
        ),
        click.option("--target", type=TARGET, help="Default: the manifest's first, or sm_90a."),
    ):
        command = option(command)
    return command


@commands.command()
@click.argument(
    *("kernel",),
    metavar="SOURCE.py:KERNEL|MANIFEST:KERNEL|ARCHIVE|FILE.STAGE",
    type=KernelOfFile(),
)
@click.option("--stage", type=click.Choice(_STAGES), required=True, help="Stage to write.")
@click.option("-o", "--output", metavar="FILE", type=FILE, help="Default: standard output.")
@_of_a_compile
@_variant
@quietly
@_debug
def dump(
    *,
    kernel: str,
    stage: str,
    output: str | None,
    target: str | None,
    without: tuple[str, ...],
    settings: tuple[str, ...],
    variant: str | None,
    debug: bool,  # noqa: ARG001 - read by `run`
) -> int:
    """Write one stage of the compile of a kernel, or of a variant in an archive.

    FILE.tile, FILE.gpu, FILE.llvm and FILE.ptx are such stages, edited by hand: the compile goes on
    from there.
    """
    from aotc import stages  # noqa: PLC0415 - start-up time, as are all below
    from aotc.edited_stage import SUFFIXES, EditedStage  # noqa: PLC0415
    from aotc.package.inspect import archived, stage_file  # noqa: PLC0415
    from aotc.package.text_output import make_folder, write_text  # noqa: PLC0415

    if stage == "cubin" and output is None and sys.stdout.isatty():
        raise click.UsageError("a cubin is bytes: give -o FILE, or pipe it; see --stage sections")
    content: str | bytes
    if _is_archive(kernel, variant, target, without, settings):
        archived_variant = archived.find_variant(kernel, variant or "")
        content = archived.stage_content(kernel, *archived_variant, stage)
    elif Path(kernel).suffix in SUFFIXES:
        edited = EditedStage.read(kernel)
        content = stage_file.go_on(edited, stage, target, _settings(settings), without)
    else:
        request = _request(kernel, target, settings, without)
        if stage == "sections":
            request = replace(request, line_root=Path(kernel).parent.as_posix())
        content = stages.stage_content(request, stage)
    if output is not None:
        make_folder(Path(output).parent)
        if isinstance(content, str):
            write_text(Path(output), content)
        else:
            from aotc.package.archive.file import write_file  # noqa: PLC0415

            write_file(Path(output), content)
        tell(output)
    elif isinstance(content, str):
        show(content.removesuffix("\n"))
    else:
        with writing("output"):
            sys.stdout.buffer.write(content)
    return EXIT_DONE


def _request(
    kernel: str, target: str | None, settings: Sequence[str], without: Sequence[str]
) -> CompileRequest:
    """Return the compile of a kernel; guess settings that a source lacks.

    Raises: DiagnosticError.
    """
    from aotc.package.init.manifest import guessed_manifest  # noqa: PLC0415 - start-up time, as below
    from aotc.package.inspect.dump import MissingSettingError, find_request  # noqa: PLC0415
    from aotc.package.manifest.read import parse as parse_manifest  # noqa: PLC0415
    from aotc.target import parse  # noqa: PLC0415

    parsed_target = parse(target) if target else None
    values = _settings(settings)
    try:
        return find_request(kernel, parsed_target, values, without)
    except MissingSettingError as error:
        file, _, name = kernel.rpartition(":")
        manifest_path = str(Path(file).with_suffix(".toml"))
        guessed = guessed_manifest(file, name, manifest_path, target or "sm_90a")
        if guessed is None:
            raise error from None
    manifest = parse_manifest(guessed.text, manifest_path)
    (spec,) = manifest.kernels
    request = find_request(f"{manifest_path}:{spec.name}", parsed_target, values, without, manifest)
    guesses = [guess for guess in guessed.guesses if guess.partition(" ")[0] not in values]
    for guess in guesses[:_MAX_GUESSES]:
        tell(one_line(f"note: guessed: {guess}"))
    if guesses:
        tell("  help: set others with --set, or write a manifest: aotc init")
    return request


def _is_archive(
    subject: str,
    variant: str | None,
    target: str | None,
    without: Sequence[str],
    settings: Sequence[str],
) -> bool:
    """Return whether `subject` is an archive. Raises: UsageError for options of the other kind."""
    from aotc.package.inspect.archived import SUFFIX  # noqa: PLC0415 - start-up time

    is_archive = subject.endswith(SUFFIX)
    if is_archive and (target or without or settings):
        message = "--target, --set and --without are of a compile: pick a variant with --variant"
        raise click.UsageError(message)
    if variant is not None and not is_archive:
        message = "--variant picks one of an archive: pick a manifest's with --set and --target"
        raise click.UsageError(message)
    return is_archive


def _settings(settings: Sequence[str]) -> dict[str, str]:
    """Parse the values of `--set`. Raises: BadParameter for anything but NAME=VALUE."""
    values: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name.strip() and equals):
            raise click.BadParameter(f"expected NAME=VALUE, got {setting!r}", param_hint="--set")
        values[name.strip()] = value.strip()
    return values


@commands.command()
@click.argument("kernel", metavar="SOURCE.py:KERNEL|MANIFEST:KERNEL|ARCHIVE", type=KernelOfFile())
@_of_a_compile
@_variant
@click.option("--html", "page", metavar="FILE", type=FILE, help="Write a page of the source, too.")
@click.option("--json", "is_json", is_flag=True, help="Write everything as JSON.")
@quietly
@_debug
def explain(
    *,
    kernel: str,
    target: str | None,
    without: tuple[str, ...],
    settings: tuple[str, ...],
    variant: str | None,
    page: str | None,
    is_json: bool,
    debug: bool,  # noqa: ARG001 - read by `run`
) -> int:
    """Report on a compiled kernel: resources, occupancy, accesses to memory, every remark."""
    from aotc.package.inspect import explain as explaining  # noqa: PLC0415 - start-up time, as below
    from aotc.package.inspect.archived import find_variant  # noqa: PLC0415

    if _is_archive(kernel, variant, target, without, settings):
        root = ""
        explanation = explaining.explain_variant(*find_variant(kernel, variant or ""))
    else:
        request = _request(kernel, target, settings, without)
        root = Path(kernel.rpartition(":")[0]).parent.as_posix()
        explanation = explaining.explain(replace(request, line_root=root) if page else request)
    if page:
        from aotc.package.inspect.kernel_page import explanation_page  # noqa: PLC0415
        from aotc.package.inspect.source_lines import lines_of  # noqa: PLC0415
        from aotc.package.text_output import write_text  # noqa: PLC0415

        remarks = explanation.metadata.remarks
        lines = lines_of(explanation.cubin, remarks, root, explanation.ir)
        write_text(Path(page), explanation_page(explanation, lines))
    if is_json:
        show(json.dumps(explaining.describe(explanation), indent=2))
    else:
        show(explaining.text(explanation))
    return EXIT_DONE
