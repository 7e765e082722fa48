"""Define the commands about this machine: its driver and GPUs, the cache, the shell.

They are part of the same group as the commands of `inspecting`, which does not refer to them.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from aotc.cli.arguments import FILE, FOLDER
from aotc.cli.cluster import cache_path
from aotc.cli.completion import SHELLS, completion_script
from aotc.cli.inspecting import commands
from aotc.cli.streams import EXIT_DONE, EXIT_WRONG, show

if TYPE_CHECKING:
    from aotc.package.cache.folder import Entry

__all__ = ["commands"]

_json = click.option("--json", "is_json", is_flag=True, help="Write the result as JSON.")
_folder = click.option(
    "--cache-dir", type=FOLDER, help="Folder of the cache; default: the platform's."
)


@commands.command()
@click.argument("archives", metavar="[ARCHIVE]…", nargs=-1, type=FILE)
@click.option("--driver", default="libcuda.so.1", hidden=True, help="The driver's library.")
@_folder
@_json
def doctor(*, archives: tuple[str, ...], driver: str, cache_dir: str | None, is_json: bool) -> int:
    """Say what this machine has and lacks, and whether ARCHIVEs run on its GPUs."""
    from aotc.package.inspect import cuda_driver  # noqa: PLC0415 - start-up time, as is below
    from aotc.package.inspect import doctor as doctors  # noqa: PLC0415

    findings = doctors.examine(cuda_driver.ask(driver), cache_path(cache_dir), archives)
    show(json.dumps(doctors.describe(findings), indent=2) if is_json else doctors.text(findings))
    return EXIT_WRONG if doctors.has_problem(findings) else EXIT_DONE


@commands.group()
def cache() -> None:
    """Look at the cache of compiled kernels, and make room."""


@cache.command()
@_folder
@_json
def info(*, cache_dir: str | None, is_json: bool) -> int:
    """Show where the cache is, and how large."""
    from aotc.package.cache import folder as cache_folder  # noqa: PLC0415 - start-up time

    folder = cache_path(cache_dir)
    description = cache_folder.describe(folder)
    if is_json:
        show(json.dumps(description, indent=2))
        return EXIT_DONE
    show(str(folder))
    for kind, (files, size_bytes) in description["kinds"].items():
        show(f"{files:8}  {size_bytes / 2**20:10.1f} MiB  {kind}")
    return EXIT_DONE


@cache.command()
@_folder
@click.option("--days", type=click.FloatRange(0), help="Remove what was not used for so long.")
@click.option("--max-mib", type=click.IntRange(0), help="Keep so many MiB, those used last.")
@_json
def prune(*, cache_dir: str | None, days: float | None, max_mib: int | None, is_json: bool) -> int:
    """Remove what no build reads any more, and with options what is old or too much."""
    from aotc.package.cache import folder as cache_folder  # noqa: PLC0415 - start-up time

    max_bytes = None if max_mib is None else max_mib << 20
    entries = cache_folder.entries(cache_path(cache_dir))
    removed = cache_folder.outdated(entries, time.time(), max_age_days=days, max_bytes=max_bytes)
    return _remove(removed, is_json=is_json)


@cache.command()
@_folder
@_json
def clear(*, cache_dir: str | None, is_json: bool) -> int:
    """Remove every entry of the cache."""
    from aotc.package.cache import folder as cache_folder  # noqa: PLC0415 - start-up time

    return _remove(cache_folder.entries(cache_path(cache_dir)), is_json=is_json)


def _remove(entries: list[Entry], *, is_json: bool) -> int:
    from aotc.package.cache import folder as cache_folder  # noqa: PLC0415 - start-up time

    size_bytes = cache_folder.remove(entries)
    if is_json:
        show(json.dumps({"files": len(entries), "bytes": size_bytes}))
    else:
        show(f"removed {len(entries)} files, {size_bytes / 2**20:.1f} MiB")
    return EXIT_DONE


@commands.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(*, shell: str) -> int:
    """Print what makes SHELL complete commands and options: eval "$(aotc completion bash)"."""
    show(completion_script(commands, shell))
    return EXIT_DONE
