"""Define the commands about launches: `cover`, `bench`, `tune import`.

They are part of the same group as the commands of `measuring`, which does not refer to them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from aotc.cli.arguments import FILE, KERNEL, TARGET, TARGETS
from aotc.cli.measuring import commands, tune
from aotc.cli.streams import EXIT_DONE, EXIT_WRONG, complain, quietly, show, tell
from aotc.ir.diagnostics import one_line

if TYPE_CHECKING:
    from aotc.ir.expression import Expression

__all__ = ["commands"]

_debug = click.option("--debug", is_flag=True, help="Show the traceback of a bug in aotc.")
_json = click.option("--json", "is_json", is_flag=True, help="Write the result as JSON.")
_shapes = click.option(
    "--shapes", required=True, metavar="FILE", type=FILE, help="Launches, as `[[shape]]` tables."
)


@commands.command()
@click.argument("path", metavar="[MANIFEST|ARCHIVE]", default="kernels.toml", type=FILE)
@_shapes
@click.option(
    "--target", "targets", multiple=True, type=TARGETS, help="Ask about this target; repeatable."
)
@click.option(
    "--tuning", metavar="FILE", type=FILE, help="Tuning table; default: that beside the manifest."
)
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
    from aotc.package.archive import file as archives  # noqa: PLC0415 - start-up time, as are all below
    from aotc.package.cover import report  # noqa: PLC0415
    from aotc.package.inspect.archived import SUFFIX  # noqa: PLC0415
    from aotc.package.manifest import read as manifests  # noqa: PLC0415
    from aotc.package.tuning.shapes import read_shapes  # noqa: PLC0415
    from aotc.package.tuning.table import TuningTable  # noqa: PLC0415
    from aotc.package.tuning.text import read_tuning, tuning_path  # noqa: PLC0415

    table = read_tuning(Path(tuning)) if tuning is not None else None
    parsed_shapes = read_shapes(Path(shapes))
    if path.endswith(SUFFIX):
        archive = archives.read(Path(path))
        coverage = report.cover_archive(archive, parsed_shapes, report.Options(table), targets)
    else:
        default_path = tuning_path(Path(path))
        if table is None:
            table = read_tuning(default_path) if default_path.exists() else TuningTable(())
        options = report.Options(table, compiles=not no_compile)
        coverage = report.cover_manifest(manifests.load(path), parsed_shapes, options, targets)
    show(json.dumps(report.describe(coverage), indent=2) if is_json else report.text(coverage))
    return EXIT_WRONG if strict and not report.is_covered(coverage) else EXIT_DONE


@commands.command()
@click.argument("archive", type=FILE)
@_shapes
@click.option(
    "--manifest", metavar="FILE", type=FILE, help="Says inputs, work and sources of the kernels."
)
@click.option("--device", type=click.IntRange(0), default=0, show_default=True, help="The GPU.")
@click.option("--driver", default="libcuda.so.1", hidden=True, help="The driver's library.")
@click.option("--passes", type=click.IntRange(1), default=20, show_default=True, help="Launches.")
@click.option(
    "--l2",
    type=click.Choice(["cold", "warm"]),
    default="cold",
    show_default=True,
    help="The L2 before a launch.",
)
@click.option("--all-configs", is_flag=True, help="Time every config, not just what is taken.")
@click.option("--no-peers", is_flag=True, help="Time no peers.")
@click.option("--python", default=sys.executable, help="Python that has PyTorch, for the peers.")
@click.option(
    "--html", "page", metavar="FILE", type=FILE, help="Write a page with plots there, too."
)
@click.option("-o", "--output", metavar="FILE", type=FILE, help="Write the JSON there, too.")
@quietly
@_json
@_debug
def bench(
    *,
    archive: str,
    shapes: str,
    manifest: str | None,
    device: int,
    driver: str,
    passes: int,
    l2: Literal["cold", "warm"],
    all_configs: bool,
    no_peers: bool,
    python: str,
    page: str | None,
    output: str | None,
    is_json: bool,
    debug: bool,  # noqa: ARG001 - read by `run`
) -> int:
    """Time the launches of FILE on a GPU: speed, share of the roofline, peers."""
    from aotc.package.inspect.bench_page import find_plots, page_of  # noqa: PLC0415
    from aotc.package.manifest import read as manifests  # noqa: PLC0415 - start-up time, as are all below
    from aotc.package.text_output import write_text  # noqa: PLC0415
    from aotc.package.tuning.shapes import read_shapes  # noqa: PLC0415
    from aotc.tuning import bench_report, bench_session  # noqa: PLC0415
    from aotc.tuning.bench import BenchOptions  # noqa: PLC0415

    if page:
        find_plots()  # reported now, not after all measurements
    session = bench_session.Bench.open(
        archive,
        manifests.load(manifest) if manifest else None,
        read_shapes(Path(shapes)),
        BenchOptions(passes=passes, is_cold=l2 == "cold", all_configs=all_configs),
        bench_session.Where(device, driver, None if no_peers else python),
    )
    data = session.run(lambda label: tell(one_line(label)))
    if output:
        write_text(Path(output), json.dumps(data, indent=2) + "\n")
    if page:
        write_text(Path(page), page_of(data))
    show(json.dumps(data, indent=2) if is_json else bench_report.text(data))
    return EXIT_WRONG if any(row["problem"] for row in data["launches"]) else EXIT_DONE


@tune.command("import")
@click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=FILE)
@click.option(
    "--manifest",
    type=FILE,
    default="kernels.toml",
    show_default=True,
    help="Its kernels are tuned.",
)
@click.option("--kernel", type=KERNEL, default="", help="The kernel, where files do not name it.")
@click.option("--target", type=TARGET, default="", help="The target, if the manifest has several.")
@click.option("--gpu", default="", help="The driver's name of the GPU, where files do not say it.")
@click.option(
    "--dtype", "form", default="", help="Of vLLM's files, the weights; default: none are named."
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=EXPR", help="An argument; repeatable."
)
@click.option(
    "-o", "--output", type=FILE, help="Table to add to; default: that beside the manifest."
)
@quietly
@_json
@_debug
def import_(
    *,
    paths: tuple[str, ...],
    manifest: str,
    kernel: str,
    target: str,
    gpu: str,
    form: str,
    settings: tuple[str, ...],
    output: str | None,
    is_json: bool,
    debug: bool,  # noqa: ARG001 - read by `run`
) -> int:
    """Add what Triton's, Helion's or vLLM's autotuners say to a tuning table.

    PATHs are files NAME.autotune.json, HASH.best_config and …,device_name=….json, or folders.
    """
    from aotc.package.imports import table as imports  # noqa: PLC0415
    from aotc.package.imports.read import find_files, read_file  # noqa: PLC0415
    from aotc.package.manifest import read as manifests  # noqa: PLC0415 - start-up time, as are all below
    from aotc.package.tuning.table import TuningTable  # noqa: PLC0415
    from aotc.package.tuning.text import read_tuning, tuning_path, write_tuning  # noqa: PLC0415

    options = imports.Options(kernel, target, gpu, form, _expressions(settings))
    files = find_files([Path(path) for path in paths])
    imported = [config for path in files for config in read_file(path)]
    result = imports.import_table(manifests.load(manifest), imported, options)
    path = Path(output) if output else tuning_path(Path(manifest))
    before = read_tuning(path) if path.exists() else TuningTable(())
    for note in result.notes:
        tell(f"note: {one_line(note)}")
    num_launches = sum(len(config.measurements) for config in result.table.kernels)
    if not num_launches:
        complain("nothing is imported")
        return EXIT_WRONG
    write_tuning(imports.add_to(before, result.table), path)
    data = {"path": str(path), "launches": num_launches, "notes": list(result.notes)}
    show(json.dumps(data, indent=2) if is_json else f"{path}: {num_launches} launches imported")
    return EXIT_DONE


def _expressions(settings: Sequence[str]) -> dict[str, Expression]:
    """Parse the values of `--set`. Raises: BadParameter for anything but NAME=EXPR."""
    from aotc.ir import expression  # noqa: PLC0415 - start-up time

    expressions: dict[str, Expression] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        try:
            expressions[name.strip()] = expression.parse(text)
        except expression.ExpressionError as error:
            raise click.BadParameter(f"{setting!r}: {error.message}", param_hint="--set") from None
        if not (name.strip() and equals):
            message = f"expected NAME=EXPR, got {setting!r}"
            raise click.BadParameter(message, param_hint="--set")
    return expressions
