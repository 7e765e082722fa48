"""Define the commands that measure kernels on GPUs, and merge measurements.

They are part of the same group as the commands of `shipping`, which does not refer to them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from aotc.cli.arguments import FILE, FOLDER, KERNEL
from aotc.cli.cluster import cache_at, on_a_cluster, with_a_cache
from aotc.cli.progress import listener_for
from aotc.cli.shipping import commands
from aotc.cli.streams import EXIT_DONE, EXIT_INTERRUPTED, EXIT_WRONG, quietly, report_failures, show
from aotc.cli.workflow import ExemplifiedGroup

if TYPE_CHECKING:
    from aotc.package.builder.workers import Compiler
    from aotc.tuning.launch_tuner import Options
    from aotc.tuning.run import Cluster, Device, Subject

__all__ = ["commands", "tune"]

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
_ARCHIVE_SUFFIX = ".aotc"
_MEASURED = ("budget", "l2", "confidence", "exhaustive", "launch_timeout", "seed")

_json = click.option("--json", "is_json", is_flag=True, help="Write the result as JSON.")
_debug = click.option("--debug", is_flag=True, help="Show the traceback of a bug in aotc.")


class _Group(ExemplifiedGroup):
    """A group with `run` as its default command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        match = _BUDGET.fullmatch(str(value).strip())
        if match is None or not float(match[1]):
            self.fail(f"expected a duration such as 90s, 10m or 1h, got {value!r}", param, ctx)
        return float(match[1]) * _SECONDS[match[2] or "s"]


@commands.group(cls=_Group)
def tune() -> None:
    """Measure configs on GPUs: `aotc tune ARCHIVE|MANIFEST --shapes FILE`; merge what was measured."""


def _of_a_measurement(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of a measurement."""
    for option in (
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True),
        click.option(
            "--launch-timeout", type=_Duration(), default="20s", help="Kill what runs longer."
        ),
        click.option(
            "--exhaustive", is_flag=True, help="Measure all configs as often as the best."
        ),
        click.option(
            "--confidence", type=click.FloatRange(0.5, 0.9999), default=0.95, show_default=True
        ),
        click.option(
            "--l2",
            type=click.Choice(["cold", "warm"]),
            default="cold",
            show_default=True,
            help="State of the L2 before a launch.",
        ),
        click.option("--budget", type=_Duration(), help="Stop after this time: 90s, 10m, 1h."),
    ):
        command = option(command)
    return command


def _options(
    *,
    budget: float | None,
    l2: str,
    confidence: float,
    exhaustive: bool,
    launch_timeout: float,
    seed: int,
) -> Options:
    from aotc.tuning.launch_tuner import Options  # noqa: PLC0415 - start-up time

    return Options(
        l2="warm" if l2 == "warm" else "cold",
        confidence=confidence,
        seed=seed,
        launch_seconds=launch_timeout,
        deadline=time.monotonic() + budget if budget else 0.0,
        is_exhaustive=exhaustive,
    )


@tune.command("run")
@click.argument("path", metavar="ARCHIVE|MANIFEST", default="kernels.toml", type=FILE)
@click.option(
    "--shapes", metavar="FILE", type=FILE, help="Launches to tune for, as [[shape]] tables."
)
@click.option("--record", "recorded", metavar="DIR", type=FOLDER, help="What `aotc record` wrote.")
@click.option(
    *("--manifest", "archive_manifest"),
    metavar="FILE",
    type=FILE,
    help="Of an archive: what it was built of.",
)
@click.option(
    "-o", "--output", type=FILE, help="Table; default: NAME.tuning.toml beside NAME.toml."
)
@click.option(
    *("--into", "into"),
    metavar="ARCHIVE",
    type=FILE,
    help="Pack what the table then says into an archive.",
)
@click.option("--only", "kernels", multiple=True, metavar="KERNEL", type=KERNEL, help="Repeatable.")
@click.option("--gpus", default="all", show_default=True, help="GPUs to use, such as 0,2.")
@click.option("--fresh", is_flag=True, help="Begin anew, do not go on where a run was ended.")
@_of_a_measurement
@click.option("-j", "--jobs", type=click.IntRange(1), help="Of a manifest: compiles at once.")
@click.option("--driver", default="libcuda.so.1", hidden=True, help="The driver's library.")
@with_a_cache
@on_a_cluster
@quietly
@_json
@_debug
@click.pass_obj
def run(
    compiler: Compiler | None,
    *,
    path: str,
    shapes: str | None,
    recorded: str | None,
    archive_manifest: str | None,
    output: str | None,
    into: str | None,
    kernels: tuple[str, ...],
    gpus: str,
    fresh: bool,
    jobs: int | None,
    driver: str,
    address: str | None,
    is_json: bool,
    debug: bool,
    **rest: Any,
) -> int:
    """Measure the configs of ARCHIVE or MANIFEST on GPUs and write the tuning table."""
    from aotc.package.inspect import cuda_driver  # noqa: PLC0415 - start-up time, as are all below
    from aotc.tuning import report  # noqa: PLC0415
    from aotc.tuning import run as runs  # noqa: PLC0415

    if (shapes is None) == (recorded is None):
        raise click.UsageError("expected --shapes FILE or --record DIR")
    measured = {name: rest.pop(name) for name in _MEASURED}
    devices = runs.devices_of(cuda_driver.ask(driver), gpus) if address is None else ()
    table_path = Path(output) if output else _table_path(path, archive_manifest)
    if fresh:
        runs.journal_path(table_path).unlink(missing_ok=True)
    listener = listener_for(is_json=is_json, doing="tuning")
    try:
        subject = _subject(
            path, shapes or str(Path(recorded or "", "shapes.toml")), archive_manifest
        )
        if subject.archive == b"":
            among = kernels or subject.shapes.kernels
            built = _built(path, among, jobs, compiler, rest, is_json=is_json, debug=debug)
            if built is None:
                return EXIT_WRONG
            subject = replace(subject, archive=built)
        subject = replace(subject, kernels=kernels)
        options = _options(**measured)
        with _cluster(subject, address, devices, options, driver) as cluster:
            tuned = runs.tune(subject, cluster, options, table_path, listener)
    finally:
        listener.close()
    if into is not None and tuned.num_done:
        _pack(Path(into), table_path)
    described = report.describe(tuned, str(table_path), listener.warnings)
    show(json.dumps(described, indent=2) if is_json else report.text(tuned, str(table_path)))
    if tuned.is_interrupted:
        return EXIT_INTERRUPTED
    return EXIT_WRONG if tuned.failures or not tuned.num_done else EXIT_DONE


def _cluster(
    subject: Subject,
    address: str | None,
    devices: Sequence[Device],
    options: Options,
    driver: str,
) -> AbstractContextManager[Cluster]:
    """Return the GPUs of this machine, or of a Dask cluster."""
    from aotc.tuning.run import local_tuners  # noqa: PLC0415 - start-up time

    if address is None:
        return local_tuners(subject, devices, options, driver)
    from aotc.tuning.dask_tuner import dask_tuners  # noqa: PLC0415 - an extra

    return dask_tuners(address, subject, driver)


def _pack(archive: Path, table: Path) -> None:
    """Pack the selections of a table into an archive. Raises: ManifestError."""
    from aotc.ir.diagnostics import ManifestError  # noqa: PLC0415 - start-up time, as are all below
    from aotc.package.archive.index import ArchiveError  # noqa: PLC0415
    from aotc.package.builder.rewriting import tune_archive  # noqa: PLC0415
    from aotc.package.tuning.text import read_tuning  # noqa: PLC0415

    try:
        tune_archive(archive, read_tuning(table))
    except ArchiveError as error:
        raise ManifestError(f"cannot pack into {archive}: {error.message}") from None


def _table_path(path: str, manifest: str | None) -> Path:
    """Return the table's default path: next to the manifest, or the archive."""
    from aotc.package.tuning.text import tuning_path  # noqa: PLC0415 - start-up time

    return tuning_path(Path(manifest or path))


def _subject(path: str, shapes: str, manifest: str | None) -> Subject:
    """Return the subject to tune; a manifest's archive is built later.

    Raises: DiagnosticError.
    """
    from aotc.ir.diagnostics import HostError  # noqa: PLC0415 - start-up time, as are all below
    from aotc.package.archive.layout import LIMITS  # noqa: PLC0415
    from aotc.package.manifest.read import load  # noqa: PLC0415
    from aotc.package.tuning.shapes import read_shapes  # noqa: PLC0415
    from aotc.regular_file import read_regular  # noqa: PLC0415
    from aotc.tuning.run import Subject  # noqa: PLC0415

    listed_shapes = read_shapes(Path(shapes))
    if not path.endswith(_ARCHIVE_SUFFIX):
        return Subject(b"", load(path), path, listed_shapes)
    try:
        content = read_regular(Path(path), LIMITS.file_bytes)
    except OSError as error:
        raise HostError(f"cannot read {path}: {error.strerror or error}") from None
    return Subject(content, load(manifest) if manifest else None, path, listed_shapes)


def _built(
    path: str,
    kernels: tuple[str, ...],
    jobs: int | None,
    compiler: Compiler | None,
    cached: dict[str, Any],
    *,
    is_json: bool,
    debug: bool,
) -> bytes | None:
    """Return the archive of a manifest, or None after reporting its failures."""
    from aotc.compiler import compile_variant  # noqa: PLC0415 - start-up time, as are all below
    from aotc.package.archive.file import encode  # noqa: PLC0415
    from aotc.package.builder import run as builds  # noqa: PLC0415
    from aotc.package.builder.workers import default_jobs  # noqa: PLC0415
    from aotc.package.manifest.read import load  # noqa: PLC0415

    listener = listener_for(is_json=is_json, doing="compiling")
    try:
        with cache_at(listener, **cached) as cache, TemporaryDirectory() as folder:
            options = builds.BuildOptions(Path(folder), jobs or default_jobs(), kernels=kernels)
            result = builds.build(
                load(path),
                options,
                listener,
                cache=cache,
                compiler=compiler or compile_variant,
            )
    finally:
        listener.close()
    report_failures(result.failures, debug=debug)
    return None if result.archive is None else encode(result.archive)


@tune.command()
@click.argument("tables", metavar="TABLE…", nargs=-1, required=True, type=FILE)
@click.option(
    *("-o", "--output"),
    required=True,
    type=FILE,
    help="Table to write; it may be one of those read.",
)
def merge(*, tables: tuple[str, ...], output: str) -> int:
    """Join tuning tables of other kernels, of other GPUs, or of other launches."""
    from aotc.package.tuning.merge import merge_tunings  # noqa: PLC0415 - start-up time
    from aotc.package.tuning.text import read_tuning, write_tuning  # noqa: PLC0415

    merged = merge_tunings([read_tuning(Path(table)) for table in tables])
    write_tuning(merged, Path(output))
    count = sum(len(tuning.measurements) for tuning in merged.kernels)
    show(f"{output}: {count} launches of {len(merged.kernels)} kernels and GPUs")
    return EXIT_DONE
