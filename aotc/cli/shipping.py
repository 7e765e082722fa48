"""Define the commands that ship archives: `split`, `merge`, `wheel`, `report`.

They are part of the same group as the commands of `recording`, which does not refer to them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aotc.cli.arguments import FILE, FOLDER, KERNEL, TARGET
from aotc.cli.recording import commands
from aotc.cli.streams import EXIT_DONE, show
from aotc.ir.diagnostics import one_line

if TYPE_CHECKING:
    from aotc.package.archive.index import Archive
    from aotc.package.emit.sources import SourcesFile

__all__ = ["commands"]

_targets = click.option(
    "--target", "targets", multiple=True, type=TARGET, help="Take this target; repeatable."
)
_json = click.option("--json", "is_json", is_flag=True, help="Write the result as JSON.")
_debug = click.option("--debug", is_flag=True, help="Show the traceback of a bug in aotc.")
_folder = click.option(
    "-o", "--output", type=FOLDER, default="dist", show_default=True, help="Folder to write to."
)


def _read(path: Path) -> tuple[Archive, SourcesFile | None]:
    """Read an archive, and its sources file."""
    from aotc.package.archive import file as archives  # noqa: PLC0415 - start-up time
    from aotc.package.emit.sources import read_sources  # noqa: PLC0415

    with archives.of_file(path):
        return archives.read(path), read_sources(path)


def _write(
    archive: Archive, sources: SourcesFile | None, path: Path, *, frames: str = "shared"
) -> int:
    """Write an archive, and its sources file if its sources are available; return the size."""
    from aotc.package.archive import file as archives  # noqa: PLC0415 - start-up time

    data = archives.encode(archive, is_grouped=frames == "shared", is_compressed=frames != "stored")
    contents: dict[Path, bytes] = {}
    if sources is not None:
        text = sources.text([kernel.name for kernel in archive.kernels], data)
        contents[path.with_suffix(".sources.json")] = text.encode()
    contents[path] = data
    archives.make_folder(path.parent)
    archives.write_together(contents)
    return len(data)


def _shown(paths: Mapping[Path, int], *, is_json: bool) -> int:
    if is_json:
        show(json.dumps([{"path": str(path), "bytes": size} for path, size in paths.items()]))
    else:
        for path, size in paths.items():
            show(one_line(f"{path}: {size} bytes"))
    return EXIT_DONE


@commands.command()
@click.argument("archive", type=FILE)
@_targets
@click.option(
    "--kernel", "kernels", multiple=True, type=KERNEL, help="Take this kernel; repeatable."
)
@_folder
@_json
@_debug
def split(
    *,
    archive: str,
    targets: tuple[str, ...],
    kernels: tuple[str, ...],
    output: str,
    is_json: bool,
    debug: bool,  # noqa: ARG001 - read by `run`
) -> int:
    """Write an archive for each target of ARCHIVE, with the kernels that it has for that."""
    from aotc.package.archive.split import file_stem, part_of  # noqa: PLC0415 - start-up time

    whole, sources = _read(Path(archive))
    part_of(whole, targets, kernels)  # report a mistake before anything is written
    written: dict[Path, int] = {}
    for target in dict.fromkeys(targets or whole.targets):
        part = part_of(whole, [target], kernels)
        path = Path(output) / f"{file_stem(whole)}-{target}.aotc"
        written[path] = _write(part, sources, path)
    return _shown(written, is_json=is_json)


@commands.command()
@click.argument("paths", metavar="ARCHIVE…", nargs=-1, required=True, type=FILE)
@click.option("-o", "--output", type=FILE, required=True, help="Archive to write.")
@click.option("--name", default="", help="Its name, if those of the archives differ.")
@click.option("--version", default="", help="Its version, if those of the archives differ.")
@click.option(
    "--frames",
    type=click.Choice(["shared", "alone", "stored"]),
    default="shared",
    show_default=True,
    help="As for `build`: compressed together, each for itself, or not at all.",
)
@_json
@_debug
def merge(
    *,
    paths: tuple[str, ...],
    output: str,
    name: str,
    version: str,
    frames: str,
    is_json: bool,
    debug: bool,  # noqa: ARG001 - read by `run`
) -> int:
    """Write one archive with the kernels and variants of all ARCHIVEs; a contradiction is an error."""
    from aotc.package.archive.merge import merge as merge_archives  # noqa: PLC0415 - start-up time

    read = [(path, *_read(Path(path))) for path in paths]
    merged = merge_archives([(path, archive) for path, archive, _ in read], name, version)
    source_files = [sources for _, _, sources in read if sources is not None]
    sources = (
        reduce(lambda combined, next_file: combined.joined(next_file), source_files)
        if len(source_files) == len(read)
        else None
    )
    path = Path(output)
    return _shown({path: _write(merged, sources, path, frames=frames)}, is_json=is_json)


@commands.command()
@click.argument("archive", type=FILE)
@_targets
@click.option("--together", is_flag=True, help="One wheel for all targets.")
@click.option("--name", default="", help="Name of the package; default: the archive's.")
@click.option("--version", default="", help="Version of the package; default: the archive's.")
@click.option("--license", "license_expression", default="", help="SPDX expression of its licence.")
@_folder
@_json
@_debug
def wheel(
    *,
    archive: str,
    targets: tuple[str, ...],
    together: bool,
    name: str,
    version: str,
    license_expression: str,
    output: str,
    is_json: bool,
    debug: bool,  # noqa: ARG001 - read by `run`
) -> int:
    """Write a Python wheel for each target of ARCHIVE: the code and a typed module that loads it."""
    from aotc.package.archive.file import make_folder, write_together  # noqa: PLC0415 - start-up time
    from aotc.package.archive.split import part_of  # noqa: PLC0415
    from aotc.package.emit.wheel import make_wheel, renamed  # noqa: PLC0415

    whole, sources = _read(Path(archive))
    whole = renamed(part_of(whole, targets), name, version)
    parts = {"": whole} if together else {t: part_of(whole, [t]) for t in whole.targets}
    wheels = [
        make_wheel(
            part,
            suffix=target.replace("_", ""),
            license_expression=license_expression,
            sources=sources,
        )
        for target, part in parts.items()
    ]
    folder = Path(output)
    make_folder(folder)
    write_together({folder / built.file_name: built.content for built in wheels})
    sizes = {folder / built.file_name: len(built.content) for built in wheels}
    return _shown(sizes, is_json=is_json)


@commands.command()
@click.argument("archive", type=FILE)
@click.option(
    "--html", "page", metavar="FILE", type=FILE, help="Write a page with plots there, too."
)
@click.option(
    "--measured", metavar="FILE", type=FILE, help="JSON of measured launches, for a roofline."
)
@click.option(
    "--device",
    type=click.IntRange(0),
    metavar="N",
    help="Time on this GPU until each kernel can be launched.",
)
@_json
@_debug
def report(
    *,
    archive: str,
    page: str | None,
    measured: str | None,
    device: int | None,
    is_json: bool,
    debug: bool,  # noqa: ARG001 - read by `run`
) -> int:
    """Show what ARCHIVE takes by kernel and target: size, coverage, registers, spills, shared memory."""
    from aotc.package.archive.decoder import stored_frames  # noqa: PLC0415
    from aotc.package.archive.file import decode, of_file, write_file  # noqa: PLC0415
    from aotc.package.archive.index import ArchiveError  # noqa: PLC0415
    from aotc.package.archive.layout import LIMITS  # noqa: PLC0415
    from aotc.package.inspect import report as reports  # noqa: PLC0415 - start-up time
    from aotc.package.inspect.report_page import page as page_of  # noqa: PLC0415
    from aotc.regular_file import read_regular  # noqa: PLC0415

    launches = reports.read_measured(Path(measured)) if measured else None
    try:
        data = read_regular(Path(archive), LIMITS.file_bytes)
    except OSError as error:
        raise ArchiveError("IO", f"cannot read {archive}: {error.strerror or error}") from None
    with of_file(archive):
        decoded = decode(data)
        ready = None if device is None else _ready(decoded, archive, device)
        report_data = reports.describe(decoded, stored_frames(data), len(data), launches, ready)
    if page:
        write_file(Path(page), page_of(report_data).encode())
    show(json.dumps(report_data, indent=2) if is_json else reports.text(report_data))
    return EXIT_DONE


def _ready(archive: Archive, path: str, device: int) -> dict[str, object]:
    from aotc.package.inspect import first_launch  # noqa: PLC0415 - the loader

    seconds = first_launch.ready_seconds(archive, path, device)
    return {"gpu": first_launch.device_name(device), "seconds": seconds}
