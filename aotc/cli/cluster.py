"""Share remote workers and a cache among builds and verifications larger than a machine.

Invariant: dask.distributed and fsspec are imported only if an option needs them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aotc.cli.arguments import FOLDER
from aotc.cli.progress import Listener

if TYPE_CHECKING:
    from aotc.compiler import CompileRequest
    from aotc.package.cache.remote import RemoteStore
    from aotc.package.cache.store import Cache

on_a_cluster = click.option(
    "--dask",
    "address",
    metavar="ADDRESS|local",
    help="Run on the workers of a Dask scheduler, or of one started here.",
)


def with_a_cache(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of the cache."""
    for option in (
        click.option("--no-cache", is_flag=True, help="Compile everything, keep nothing."),
        click.option("--cache-max-mib", type=click.IntRange(0), help="Bound the cache's folder."),
        click.option("--cache-read-only", is_flag=True, help="Write nothing to --cache-url."),
        click.option("--cache-url", help="Share compiled kernels there: s3://…, file://…"),
        click.option(
            "--cache-dir", type=FOLDER, help="Folder of the cache; default: the platform's."
        ),
    ):
        command = option(command)
    return command


@contextlib.contextmanager
def workers_at(
    address: str | None,
    jobs: int,
    listener: Listener,
    request_of: Callable[[Any], CompileRequest | None] = lambda request: request,
) -> Generator[Executor | None]:
    """Yield an executor for the workers of a scheduler, or None for processes of this machine.

    Raises: HostError, as `connected`.
    """
    if address is None:
        yield None
        return
    from aotc.package.builder.dask_executor import connected  # noqa: PLC0415 - an extra

    with connected(address, jobs, request_of) as executor:
        for warning in executor.warnings():
            listener.warned(warning)
        if executor.dashboard_link:
            listener.noted(f"dashboard: {executor.dashboard_link}")
        yield executor


def cache_path(folder: str | None) -> Path:
    """Return the cache folder named by the user, or the platform's."""
    if folder is not None:
        return Path(folder)
    from platformdirs import user_cache_path  # noqa: PLC0415 - start-up time

    return user_cache_path("aotc", appauthor=False)


@contextlib.contextmanager
def cache_at(
    listener: Listener,
    *,
    cache_dir: str | None,
    cache_url: str | None,
    cache_read_only: bool,
    cache_max_mib: int | None,
    no_cache: bool,
) -> Generator[Cache | None]:
    """Yield the cache for the options, and prune its folder to its limit afterwards.

    Raises: HostError for an unsupported URL; UsageError for contradictory options.
    """
    if cache_url is None and cache_read_only:
        raise click.UsageError("--cache-read-only is about a --cache-url: give one")
    if no_cache:
        if cache_url is not None:
            raise click.UsageError("--no-cache and --cache-url contradict each other")
        yield None
        return
    from aotc.package.builder.toolchain import compiler_digest  # noqa: PLC0415
    from aotc.package.cache.store import Cache  # noqa: PLC0415 - start-up time, as is below

    folder = cache_path(cache_dir)
    remote: RemoteStore | None = None
    if cache_url is not None:
        from aotc.package.cache.remote import RemoteStore  # noqa: PLC0415 - an extra

        remote = RemoteStore(cache_url, listener.warned, is_read_only=cache_read_only)
    yield Cache(folder, compiler_digest(), listener.warned, remote)
    from aotc.package.cache.folder import bound  # noqa: PLC0415 - start-up time

    bound(folder, time.time(), None if cache_max_mib is None else cache_max_mib << 20)
