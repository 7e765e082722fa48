"""The commands about launches: which have a variant, and how fast they are.

They are part of the same group as those of `shipping`, which know nothing of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from aotc.cli.shipping import commands
from aotc.cli.streams import EXIT_DONE, EXIT_WRONG, complain, show
from aotc.ir.diagnostics import one_line

__all__ = ["commands"]

_debug = click.option("--debug", is_flag=True, help="Show the traceback of a bug in aotc.")
_json = click.option("--json", "is_json", is_flag=True, help="Write the result as JSON.")
_shapes = click.option(
    "--shapes", required=True, metavar="FILE", help="Launches, as `[[shape]]` tables."
)


@commands.command()
@click.argument("path", metavar="[MANIFEST|ARCHIVE]", default="kernels.toml")
@_shapes
@click.option("--target", "targets", multiple=True, help="Ask about this target; repeatable.")
@click.option("--tuning", metavar="FILE", help="Tuning table; default: that beside the manifest.")
@click.option("--no-compile", is_flag=True, help="Ask about variants and tuning only.")
@click.option("--strict", is_flag=True, help="Exit 1 if a launch has no variant, or a slow one.")
@_json
@_debug
def cover(
    *,
    path: str,
    shapes: str,
    targets: tuple[str, ...],
    tuning: str | None,
    no_compile: bool,
    strict: bool,
    is_json: bool,
    debug: bool,  # noqa: ARG001 - read by `run`
) -> int:
    """Say which launches have no variant or a slow one, and the manifest's rows that would add it."""
    from aotc.package import archive as archives  # noqa: PLC0415 - start-up time, as are all below
    from aotc.package import manifest as manifests  # noqa: PLC0415
    from aotc.package.archived import SUFFIX  # noqa: PLC0415
    from aotc.package.cover import report  # noqa: PLC0415
    from aotc.package.index import ArchiveError  # noqa: PLC0415
    from aotc.package.tuning.shapes import read_shapes  # noqa: PLC0415
    from aotc.package.tuning.table import TuningTable  # noqa: PLC0415
    from aotc.package.tuning.text import read_tuning, tuning_path  # noqa: PLC0415

    table = read_tuning(Path(tuning)) if tuning is not None else None
    listed = read_shapes(Path(shapes))
    if path.endswith(SUFFIX):
        try:
            archive = archives.read(Path(path))
        except ArchiveError as error:
            complain(one_line(f"{path}: {error}"))
            return EXIT_WRONG
        found = report.cover_archive(archive, listed, report.Options(table), targets)
    else:
        beside = tuning_path(Path(path))
        if table is None:
            table = read_tuning(beside) if beside.exists() else TuningTable(())
        options = report.Options(table, compiles=not no_compile)
        found = report.cover_manifest(manifests.load(path), listed, options, targets)
    show(json.dumps(report.describe(found), indent=2) if is_json else report.text(found))
    return EXIT_WRONG if strict and not report.is_covered(found) else EXIT_DONE
