"""Define the commands with click: options, the work, and the output.

Each command imports its modules when it runs: `aotc --version` and `aotc inspect` start without the
compiler, and a build with nothing to do without LLVM. The work of a command is in a file of
`aotc.package` that returns text or data.

Invariant: a command returns its exit code, and only prints through `streams`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aotc import __version__
from aotc.cli.arguments import FEATURE, FILE, FOLDER, KERNEL, TARGET, TARGETS, VARIANT
from aotc.cli.cluster import cache_at, on_a_cluster, with_a_cache, workers_at
from aotc.cli.progress import listener_for
from aotc.cli.streams import (
    EXIT_BUG,
    EXIT_DONE,
    EXIT_WRONG,
    complain,
    quietly,
    report_failures,
    show,
    tell,
)
from aotc.cli.workflow import Workflow
from aotc.ir.diagnostics import DiagnosticError, ManifestError, one_line

if TYPE_CHECKING:
    from aotc.package.builder.run import BuildOptions, BuildResult, Listener
    from aotc.package.builder.workers import Compiler
    from aotc.package.cache.store import Cache
    from aotc.package.inspect.sarif import Result
    from aotc.package.manifest.spec import Manifest
    from aotc.package.tuning.table import TuningTable
    from aotc.package.verify.report import Report

_LOG_COLUMNS = 160
_PAGE_COLUMNS, _MIN_COLUMNS = 100, 60


def _show_version(ctx: click.Context, _param: click.Parameter, value: object) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"aotc {__version__}")
        ctx.exit()


without = click.option(
    *("--without", "without"),
    multiple=True,
    metavar="FEATURE",
    type=FEATURE,
    help="Do not use this feature; repeatable.",
)
_debug = click.option("--debug", is_flag=True, help="Show the traceback of a bug in aotc.")
_sarif = click.option(
    "--sarif", metavar="FILE", type=FILE, help="Write the findings there, as SARIF."
)


@click.group(cls=Workflow, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    "-V",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def commands() -> None:
    """Compile tile kernels ahead of time."""


@commands.command()
@click.argument("manifest", default="kernels.toml", type=FILE)
@click.option(
    "-o", "--output", type=FOLDER, default="dist", show_default=True, help="Folder to write to."
)
@click.option("-j", "--jobs", type=click.IntRange(1), help="Compiles at once; default: all cores.")
@click.option(
    *("--target", "targets"),
    multiple=True,
    type=TARGETS,
    help="Build for this target; repeatable.",
)
@click.option(
    *("--kernel", "kernels"),
    multiple=True,
    type=KERNEL,
    help="Build this kernel; repeatable.",
)
@without
@click.option("--host", default="", help="Architecture to link for: x86_64 or aarch64.")
@click.option("--keep-going", is_flag=True, help="Write what was built, although something failed.")
@click.option("--with-ptx", is_flag=True, help="Keep the PTX, so that the archive can be verified.")
@click.option("--no-lineinfo", is_flag=True, help="Leave out the line tables of profilers.")
@click.option(
    "--frames",
    type=click.Choice(["shared", "alone", "stored"]),
    default="shared",
    show_default=True,
    help="Compress cubins together, each for itself, or not at all: larger, and sooner launched.",
)
@click.option(
    *("--tuning", "tuning"),
    metavar="FILE",
    type=FILE,
    help="Tuning table; default: NAME.tuning.toml beside it.",
)
@click.option("--no-tuning", is_flag=True, help="Launches take the first config whose guards hold.")
@click.option("--only-tuned", is_flag=True, help="Leave out configs that no selection names first.")
@click.option(
    *("--depfile", "depfile"),
    metavar="FILE",
    type=FILE,
    help="Write all inputs there, as a rule of Make.",
)
@with_a_cache
@on_a_cluster
@click.option(
    *("--from", "stage_path"),
    metavar="FILE.STAGE",
    type=FILE,
    help="Compile a variant from this stage of `aotc dump`, edited.",
)
@click.option("--variant", metavar="LABEL", default="", help="With --from: which, by its label.")
@click.option("--plan", "is_plan", is_flag=True, help="Say what a build would do, and how long.")
@click.option("--strict", "is_strict", is_flag=True, help="Refuse values that `aotc init` guessed.")
@click.option("-v", "--verbose", is_flag=True, help="Show the compiler's remarks.")
@click.option("--json", "is_json", is_flag=True, help="Write the result as JSON.")
@quietly
@_debug
@click.pass_obj
def build(
    compiler: Compiler | None,
    *,
    manifest: str,
    output: str,
    jobs: int | None,
    targets: tuple[str, ...],
    kernels: tuple[str, ...],
    without: tuple[str, ...],
    host: str,
    keep_going: bool,
    with_ptx: bool,
    no_lineinfo: bool,
    frames: str,
    tuning: str | None,
    no_tuning: bool,
    only_tuned: bool,
    depfile: str | None,
    address: str | None,
    stage_path: str | None,
    variant: str,
    is_plan: bool,
    is_strict: bool,
    verbose: bool,
    is_json: bool,
    debug: bool,
    **cached: Any,
) -> int:
    """Build the kernels of MANIFEST (default: kernels.toml) into an archive."""
    from aotc.compiler import compile_variant  # noqa: PLC0415 - start-up time, as are all below
    from aotc.edited_stage import EditedStage  # noqa: PLC0415
    from aotc.package.builder import run as builds  # noqa: PLC0415
    from aotc.package.builder.workers import Failure, default_jobs  # noqa: PLC0415
    from aotc.package.emit.depfile import depfile_text  # noqa: PLC0415
    from aotc.package.manifest.read import load  # noqa: PLC0415
    from aotc.package.text_output import write_text  # noqa: PLC0415
    from aotc.source_snapshot import recording  # noqa: PLC0415

    if no_tuning and (tuning is not None or only_tuned):
        other = "--only-tuned" if tuning is None else "--tuning"
        raise click.UsageError(f"--no-tuning and {other} contradict each other")
    if variant and stage_path is None:
        raise click.UsageError("--variant is the one that --from compiles: give --from FILE.STAGE")
    start = time.monotonic()
    options = builds.BuildOptions(
        output=Path(output),
        jobs=jobs or default_jobs(),
        targets=targets,
        kernels=kernels,
        host=host,
        keep_going=keep_going,
        with_ptx=with_ptx,
        lineinfo=not no_lineinfo,
        has_shared_frames=frames == "shared",
        is_compressed=frames != "stored",
        without=without,
        has_selections=not no_tuning,
        only_tuned=only_tuned,
        edited=EditedStage.read(stage_path) if stage_path is not None else None,
        edited_variant=variant,
    )
    listener = listener_for(is_json=is_json, doing="compiling")
    try:
        with cache_at(listener, **cached) as cache, recording() as sources:
            parsed = load(manifest)
            _warn_of_guesses(manifest, listener, is_strict=is_strict)
            if not no_tuning:
                options = replace(options, tuning=_tuning(manifest, tuning))
            if is_plan:
                return _plan(parsed, options, cache, is_json=is_json)
            with workers_at(address, options.jobs, listener) as executor:
                result = builds.build(
                    *(parsed, options, listener),
                    cache=cache,
                    compiler=compiler or compile_variant,
                    executor=executor,
                )
            if depfile is not None and result.files:
                inputs = {*result.inputs, *sources}
                if options.tuning is not None:
                    inputs.add(str(_tuning_path(manifest, tuning)))
                write_text(Path(depfile), depfile_text(result.files, inputs))
    except DiagnosticError as error:
        if not is_json or is_plan:
            raise
        result = builds.nothing_built(Failure.of(manifest, error))
    finally:
        listener.close()
    if is_json:
        show(json.dumps(builds.describe_result(result, listener.warnings), indent=2))
    else:
        _report(result, verbose=verbose, debug=debug, seconds=time.monotonic() - start)
    if any(failure.is_bug for failure in result.failures):
        return EXIT_BUG
    return EXIT_WRONG if result.failures else EXIT_DONE


def _tuning(manifest: str, table_path: str | None) -> TuningTable | None:
    """Return the given tuning table, or else the one next to the manifest."""
    from aotc.package.tuning.text import read_tuning  # noqa: PLC0415 - start-up time

    path = _tuning_path(manifest, table_path)
    return None if table_path is None and not path.exists() else read_tuning(path)


def _tuning_path(manifest: str, table_path: str | None) -> Path:
    from aotc.package.tuning.text import tuning_path  # noqa: PLC0415 - start-up time

    return tuning_path(Path(manifest)) if table_path is None else Path(table_path)


def _plan(manifest: Manifest, options: BuildOptions, cache: Cache | None, *, is_json: bool) -> int:
    """Print the plan of a build."""
    from aotc.package.builder import build_plan  # noqa: PLC0415 - start-up time, as is below
    from aotc.package.cache.compile_times import CompileTimes  # noqa: PLC0415

    times = CompileTimes(None) if cache is None else cache.times
    plan = build_plan.plan(manifest, options, cache=cache, times=times)
    show(json.dumps(build_plan.describe(plan), indent=2) if is_json else build_plan.text(plan))
    return EXIT_DONE


_MAX_VALUES = 8


def _warn_of_guesses(manifest: str, listener: Listener, *, is_strict: bool) -> None:
    """Repeat the guesses of `aotc init`. Raises: ManifestError if the build is strict."""
    from aotc.package.manifest.guesses import guesses  # noqa: PLC0415 - start-up time

    left = guesses(manifest)
    if left and is_strict:
        raise ManifestError(
            f"expected a manifest without guesses, got {len(left)}: {left[0]}",
            remedy="give each such line the value that launches pass, and delete its TODO",
        )
    for message in left[:_MAX_VALUES]:
        listener.warned(message)
    if len(left) > _MAX_VALUES:
        listener.warned(f"{len(left) - _MAX_VALUES} more lines of {manifest} are guesses")


def _note(result: BuildResult) -> None:
    """Print decisions of a build that may be unintended, in a line each."""
    from aotc.package.builder.index_limits import notes  # noqa: PLC0415 - start-up time

    if result.dropped:
        count = len(result.dropped)
        tell(f"note: {count} dropped that a target cannot hold (-v lists them)")
    if read := result.values_read:
        rest = f" and {len(read) - _MAX_VALUES} more" if len(read) > _MAX_VALUES else ""
        values = f"{', '.join(read[:_MAX_VALUES])}{rest}"
        tell(one_line(f"note: fixed by this build: {values} (-v says where)"))
    for line in notes(result.index_limits):
        tell(one_line(f"note: {line}"))


def _report(result: BuildResult, *, verbose: bool, debug: bool, seconds: float) -> None:
    """Print the result of a build: remarks, failures, and one line of summary."""
    if verbose:
        for line in (*result.dropped, *result.remarks):
            show(f"remark: {one_line(line)}", err=True)
    else:
        _note(result)
    report_failures(result.failures, debug=debug)
    counts = f"{result.num_compiled} compiled, {result.num_cached} cached, {seconds:.1f} s"
    if result.failures:
        outcome = "wrote the rest" if result.files else "nothing is written"
        remedy = "; --keep-going writes the rest" if result.is_held_back else ""
        complain(f"{len(result.failures)} failed, {outcome} ({counts}){remedy}")
    for path in result.files:
        show(one_line(str(path)))
    if not result.failures:
        noun = "variant" if result.num_variants == 1 else "variants"
        tell(f"{result.num_variants} {noun} ({counts})")


@commands.command()
@click.argument("path", metavar="[MANIFEST|ARCHIVE]", default="kernels.toml", type=FILE)
@click.option(
    "--kernel", "kernels", multiple=True, type=KERNEL, help="Verify this kernel; repeatable."
)
@click.option(
    "--target", "targets", multiple=True, type=TARGETS, help="Verify for this target; repeatable."
)
@without
@click.option(
    "--variant", "labels", multiple=True, type=VARIANT, help="Verify this variant; repeatable."
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Of inputs and warp order.")
@click.option("-j", "--jobs", type=click.IntRange(1), help="Variants at once; default: all cores.")
@click.option("--max-steps", type=click.IntRange(1), help="Instructions a launch may take.")
@click.option("--max-memory", type=click.IntRange(1), help="MiB a launch may take.")
@click.option("--device", is_flag=True, help="Run the cubins on a GPU instead.")
@on_a_cluster
@click.option("--allow-partial", is_flag=True, help="Accept variants of which some launches ran.")
@_sarif
@click.option("-v", "--verbose", is_flag=True, help="A row for each variant.")
@click.option("--json", "is_json", is_flag=True, help="Write the result as JSON.")
@quietly
@_debug
def verify(
    *,
    path: str,
    kernels: tuple[str, ...],
    targets: tuple[str, ...],
    without: tuple[str, ...],
    labels: tuple[str, ...],
    seed: int,
    jobs: int | None,
    max_steps: int | None,
    max_memory: int | None,
    device: bool,
    address: str | None,
    allow_partial: bool,
    sarif: str | None,
    verbose: bool,
    is_json: bool,
    debug: bool,
) -> int:
    """Check every variant of a manifest or an archive against the source's meaning, on no GPU."""
    from aotc.package.builder.workers import default_jobs  # noqa: PLC0415
    from aotc.package.verify import report as verify_report  # noqa: PLC0415
    from aotc.package.verify import variants as verifying  # noqa: PLC0415 - start-up time, as are all below
    from aotc.package.verify.audit import verify_and_audit  # noqa: PLC0415
    from aotc.package.verify.subjects import VerifyOptions, load_subjects  # noqa: PLC0415

    if device and address is not None:
        raise click.UsageError("--device is this machine's GPU: leave out --dask")
    start = time.monotonic()
    subjects = load_subjects(path, kernels, targets, labels, without)
    options = VerifyOptions(seed=seed)
    if max_steps is not None:
        options = replace(options, max_steps=max_steps)
    if max_memory is not None:
        options = replace(options, max_memory_bytes=max_memory << 20)
    verify_one = verifying.verify_next
    command = ("aotc", "verify", path, "--seed", str(seed))
    command += tuple(f"--without={name}" for name in without)
    if device:
        from aotc.package.verify.device import open_driver, verify_on_device  # noqa: PLC0415

        open_driver()  # reported now, not for every variant
        verify_one = verify_on_device
        command = (*command, "--device")
    work = partial(verify_and_audit, options=options, verify=verify_one)
    report = verify_report.Report(command, allow_partial=allow_partial)
    listener = listener_for(is_json=is_json, doing="verifying")
    listener.started(len(subjects), 0)
    jobs = jobs or (1 if device else default_jobs())
    try:
        with (
            workers_at(address, jobs, listener, attrgetter("request")) as executor,
            closing(verifying.verify_all(subjects, work, jobs, executor)) as outcomes,
        ):
            for outcome in outcomes:
                report.outcomes.append(outcome)
                listener.advanced(outcome.task.label, report.state(outcome), outcome.seconds)
    finally:
        listener.close()
    if sarif is not None:
        _write_sarif(sarif, report.sarif_results(path))
    if is_json:
        show(json.dumps(report.describe(), indent=2))
    else:
        _report_verified(report, verbose=verbose, debug=debug, seconds=time.monotonic() - start)
    if report.is_bug:
        return EXIT_BUG
    return EXIT_DONE if report.is_right else EXIT_WRONG


def _report_verified(report: Report, *, verbose: bool, debug: bool, seconds: float) -> None:
    """Print the table, the failures, and one line of summary."""
    from rich.console import Console  # noqa: PLC0415 - start-up time

    from aotc.package.verify.report import table  # noqa: PLC0415

    width = None if sys.stdout.isatty() else _LOG_COLUMNS
    Console(width=width).print(table(report.outcomes, by_variant=verbose))
    for text in report.wrong():
        show(text, err=True)
    report_failures(report.failures, debug=debug)
    tell(report.summary(seconds))


def _write_sarif(file: str, results: Iterable[Result]) -> None:
    from aotc.package.inspect.sarif import sarif_text  # noqa: PLC0415 - start-up time, as is below
    from aotc.package.text_output import write_text  # noqa: PLC0415

    write_text(Path(file), sarif_text(results))


@commands.command()
@click.argument("paths", metavar="PATH…", nargs=-1, required=True, type=FILE)
@click.option(
    *("--target", "target"),
    type=TARGET,
    default="sm_90a",
    show_default=True,
    help="What kernels may ask about.",
)
@click.option("-j", "--jobs", type=click.IntRange(1), help="Processes; default: all cores.")
@click.option("--strict", is_flag=True, help="Exit with 1 if kernels are not named, or none found.")
@_sarif
@click.option("--json", "is_json", is_flag=True, help="Write everything as JSON.")
@quietly
@_debug
def check(
    *,
    paths: tuple[str, ...],
    target: str,
    jobs: int | None,
    strict: bool,
    sarif: str | None,
    is_json: bool,
    debug: bool,
) -> int:
    """Say of every kernel in files and folders whether the language has all that it uses."""
    from aotc.package.builder.workers import default_jobs  # noqa: PLC0415
    from aotc.package.inspect import survey as checking  # noqa: PLC0415 - start-up time, as are all below
    from aotc.package.inspect.sarif import check_results  # noqa: PLC0415
    from aotc.target import parse  # noqa: PLC0415

    start = time.monotonic()
    checked = checking.check(paths, parse(target).name, jobs or default_jobs())
    if sarif is not None:
        _write_sarif(sarif, check_results(checked))
    if is_json:
        show(json.dumps(checking.describe(checked), indent=2))
    else:
        report = checking.text(checked)
        if report:
            show(report)
        for problem in checked.unread:
            show(problem, err=True)
        report_failures(checked.failures, debug=debug)
        tell(checking.summary(checked, time.monotonic() - start))
    if any(failure.is_bug for failure in checked.failures):
        return EXIT_BUG
    is_right = checked.is_right and (checked.is_whole or not strict)
    return EXIT_DONE if is_right else EXIT_WRONG


@commands.command()
@click.argument("archive", type=FILE)
@click.option("--tuning", "is_tuning", is_flag=True, help="Show which config launches take.")
@click.option("--html", "page", metavar="FILE", type=FILE, help="Write a page of the code, too.")
@click.option("--variant", metavar="LABEL", type=VARIANT, help="Of a page: this variant's code.")
@click.option("--json", "is_json", is_flag=True, help="Write everything as JSON.")
@_debug
def inspect(
    *,
    archive: str,
    is_tuning: bool,
    page: str | None,
    variant: str | None,
    is_json: bool,
    debug: bool,  # noqa: ARG001 - read by `run`
) -> int:
    """Show the kernels, variants and resources of ARCHIVE."""
    from aotc.package.archive import file as archives  # noqa: PLC0415 - start-up time
    from aotc.package.inspect import content as views  # noqa: PLC0415
    from aotc.package.tuning import tree_text  # noqa: PLC0415

    path = Path(archive)
    content = archives.read(path)
    size_bytes = path.stat().st_size
    if variant is not None and not page:
        raise click.UsageError("--variant is of a page: give --html FILE")
    if page:
        from aotc.package.inspect.archive_page import archive_page  # noqa: PLC0415
        from aotc.package.text_output import write_text  # noqa: PLC0415

        write_text(Path(page), archive_page(content, size_bytes, variant))
    if is_json:
        show(json.dumps(views.describe(content, size_bytes), indent=2))
    else:
        show(views.summary(content, size_bytes))
        show(f"\n{tree_text.text(content) if is_tuning else views.text(content, _width())}")
    return EXIT_DONE


def _width() -> int:
    """Return the terminal's width, or a page's if there is none."""
    if not sys.stdout.isatty():
        return _PAGE_COLUMNS
    return max(_MIN_COLUMNS, shutil.get_terminal_size().columns)
