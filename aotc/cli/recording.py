"""The commands that write a manifest: of a program's launches, of a JIT monitor's log, of sources.

And the one that runs a program from the archive.

They are part of the same group as those of `machine`, which know nothing of them.
"""

from __future__ import annotations

import signal
from pathlib import Path

import click

from aotc.cli.arguments import FILE, FOLDER, TARGET
from aotc.cli.machine import commands
from aotc.cli.streams import EXIT_DONE, EXIT_INTERRUPTED, EXIT_WRONG, complain, quietly, show, tell
from aotc.ir.diagnostics import CompileError, ManifestError, one_line

__all__ = ["commands"]

_debug = click.option("--debug", is_flag=True, help="Show the traceback of a bug in aotc.")


@commands.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", metavar="[-- COMMAND…]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    *("-o", "--output"),
    type=FOLDER,
    default="record",
    show_default=True,
    help="Folder of manifest and records.",
)
@click.option("--vendor", "is_vendored", is_flag=True, help="Copy the sources there, too.")
@click.option(
    *("--log", "logs"),
    multiple=True,
    metavar="FILE",
    type=FILE,
    help="Log of a JIT monitor; repeatable.",
)
@click.option(
    *("--source", "sources"),
    multiple=True,
    metavar="PATH",
    type=FILE,
    help="Kernels of the log; repeatable.",
)
@click.option(
    *("--target", "target"),
    type=TARGET,
    default="sm_90a",
    show_default=True,
    help="Where the log does not say it.",
)
@click.option(
    "--all-configs", "has_all_configs", is_flag=True, help="List all configs of autotuners."
)
@click.option("--strict", "is_strict", is_flag=True, help="Exit with 1 if a kernel is left out.")
@quietly
@_debug
def record(
    *,
    command: tuple[str, ...],
    output: str,
    is_vendored: bool,
    logs: tuple[str, ...],
    sources: tuple[str, ...],
    target: str,
    has_all_configs: bool,
    is_strict: bool,
    debug: bool,  # noqa: ARG001 - read by `run`
) -> int:
    """Run a program that uses Triton, and write a manifest of the kernels that it launches.

    With --log, of what a JIT monitor says that Triton compiled.
    """
    from aotc.package.manifest.read import load  # noqa: PLC0415 - start-up time, as are all below
    from aotc.package.record.extracts import with_extracts  # noqa: PLC0415
    from aotc.package.record.launches import add, read, run_recorded, with_python  # noqa: PLC0415
    from aotc.package.record.log_records import records_of_logs  # noqa: PLC0415
    from aotc.package.record.manifest import (  # noqa: PLC0415
        package_name,
        recorded_target,
        write_manifest,
    )
    from aotc.package.record.shapes import shapes_text  # noqa: PLC0415
    from aotc.package.record.timings import add_timings, recorded_timings  # noqa: PLC0415
    from aotc.package.record.vendor import vendor  # noqa: PLC0415
    from aotc.package.text_output import write_text  # noqa: PLC0415
    from aotc.package.tuning.text import tuning_path  # noqa: PLC0415

    if not (command or logs):
        raise click.UsageError("expected -- COMMAND…, or --log FILE with --source PATH")
    if bool(logs) != bool(sources):
        raise click.UsageError("expected --log FILE together with --source PATH")
    folder = Path(output)
    logged = records_of_logs(logs, sources, target) if logs else []
    code = run_recorded(with_python(command), folder) if command else 0
    if logged:
        add(logged, folder)
    path = folder / "kernels.toml"
    records = vendor(read(folder), folder) if is_vendored else read(folder)
    records = with_extracts(records, folder, recorded_target(records))
    try:
        name = package_name(folder)
        written = write_manifest(records, path, name, has_all_configs=has_all_configs)
    except CompileError:
        if code:  # the likely reason, said first
            complain(_ended(command[0], code))
        raise
    write_text(path, written.text)
    show(str(path), err=True)
    shapes = shapes_text(records, written)
    if shapes:
        write_text(folder / "shapes.toml", f"# Written from recorded launches.\n\n{shapes}")
        show(str(folder / "shapes.toml"), err=True)
    if written.tables:
        timings = recorded_timings(records, written, load(str(path)))
        if timings.kernels:
            add_timings(timings, tuning_path(path))
            show(str(tuning_path(path)), err=True)
    for one in written.refused:
        tell(one_line(f"note: as a comment: {one}"))
    if code:
        how = "interrupted" if code == -signal.SIGINT else _ended(command[0], code)
        complain(f"{how}; what it launched is recorded")
    lost = len(written.refused)
    left_out = f", {lost} left out" if lost else ""
    kernels = f"{written.num_kernels} kernel{'' if written.num_kernels == 1 else 's'}"
    tell(f"{kernels}{left_out}")
    if code == -signal.SIGINT:
        return EXIT_INTERRUPTED
    is_lost = lost and (is_strict or not written.tables)
    return EXIT_WRONG if code or is_lost else EXIT_DONE


@commands.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", metavar="-- COMMAND…", nargs=-1, type=click.UNPROCESSED)
@click.option(
    *("-a", "--archive", "archives"),
    multiple=True,
    default=["dist/record.aotc"],
    show_default=True,
    metavar="FILE",
    type=FILE,
    help="What launches come from; repeatable.",
)
@click.option(
    *("-o", "--output"),
    type=FOLDER,
    default="record",
    show_default=True,
    help="Folder of what no archive has.",
)
@click.option(
    "--strict/--no-strict",
    "is_strict",
    default=True,
    show_default=True,
    help="Fail where no archive has a launch, or let Triton compile it and record it.",
)
@click.option("--stand-in", "is_stand_in", is_flag=True, help="Even where Triton is installed.")
@click.option("--driver", metavar="FILE", type=FILE, help="The CUDA driver's library.")
@_debug
def replay(
    *,
    command: tuple[str, ...],
    archives: tuple[str, ...],
    output: str,
    is_strict: bool,
    is_stand_in: bool,
    driver: str | None,
    debug: bool,  # noqa: ARG001 - read by `run`
) -> int:
    """Run a program whose Triton kernels launch from archives, without a JIT."""
    from aotc.package.record.launches import with_python  # noqa: PLC0415 - start-up time
    from aotc.package.record.replay import run_replayed  # noqa: PLC0415 - as above

    if not command:
        raise click.UsageError("expected -- COMMAND…, such as -- python app.py")
    run_replayed(
        with_python(command),
        [*map(Path, archives)],
        strict=is_strict,
        stand_in=True if is_stand_in else None,
        record=output,
        driver=driver,
    )


def _ended(program: str, code: int) -> str:
    how = f"exited with {code}" if code > 0 else f"was ended by signal {-code}"
    return f"{one_line(program)} {how}"


@commands.command()
@click.argument("sources", metavar="SOURCE.py…", nargs=-1, required=True, type=FILE)
@click.option(
    *("-o", "--output"),
    type=FILE,
    default="kernels.toml",
    show_default=True,
    help="File to write; - prints it.",
)
@click.option(
    "--target", "targets", multiple=True, type=TARGET, help="Of the package; default: sm_90a."
)
@click.option("--dtype", "dtypes", multiple=True, help="Of data; repeatable; default: bf16.")
@click.option("--all", "is_all", is_flag=True, help="List every dtype and every choice.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@quietly
@_debug
def init(
    *,
    sources: tuple[str, ...],
    output: str,
    targets: tuple[str, ...],
    dtypes: tuple[str, ...],
    is_all: bool,
    force: bool,
    debug: bool,  # noqa: ARG001 - read by `run`
) -> int:
    """Write a manifest for the kernels of files and folders, from what their source says."""
    from aotc.package.init.manifest import Wanted, write_manifest  # noqa: PLC0415 - start-up time
    from aotc.package.text_output import make_folder, write_text  # noqa: PLC0415
    from aotc.target import parse  # noqa: PLC0415

    names = [parse(name).name for name in targets] or ["sm_90a"]
    path = Path(output)
    if path.exists() and not force and output != "-":
        raise ManifestError(f"{output} exists", remedy="give another -o, or --force")
    make_folder(path.parent)  # sources are found from there
    wanted = Wanted(tuple(dict.fromkeys(dtypes)), is_all)
    written = write_manifest(sources, "kernels.toml" if output == "-" else output, names, wanted)
    if output == "-":
        show(written.text.removesuffix("\n"))
    else:
        write_text(path, written.text)
        show(output)
    for one in written.refused:
        tell(one_line(f"note: as a comment: {one}"))
    for one in written.unnamed:
        tell(f"note: {one}")
    todos = f"{written.num_todos or 'no'} TODO{'' if written.num_todos == 1 else 's'}"
    kernels = f"{written.num_kernels} kernel{'' if written.num_kernels == 1 else 's'}"
    left_out = f", {len(written.refused)} left out" if written.refused else ""
    tell(f"{kernels}, {todos}{left_out}")
    return EXIT_DONE
