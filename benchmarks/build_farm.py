"""Builds that outgrow a machine: plans, clusters, lost workers, a shared cache. No GPU.

python benchmarks/build_farm.py plan                    10,000 variants: parse, plan, look up
python benchmarks/build_farm.py simulate [--workers 64] workers sleep for the time of a compile
python benchmarks/build_farm.py kills [--runs 20]       the same bytes, with workers killed at random
python benchmarks/build_farm.py s3                      cache hits of a cold machine, from an S3 server
python benchmarks/build_farm.py wall [--counts 1,2,4]   10,000 variants on local workers: long

dask.distributed, s3fs and moto come from `pip install -e '.[test]'`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import tomli

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from aotc.compiler import CompileRequest, compile_kernel  # noqa: E402
from aotc.package.archive import file as archives  # noqa: E402
from aotc.package.builder import build_plan  # noqa: E402
from aotc.package.builder.run import BuildOptions, BuildResult, build, expand_all  # noqa: E402
from aotc.package.builder.workers import Done, Failure, Task, compile_both_ways, run_all  # noqa: E402
from aotc.package.cache.store import Cache, CachedKernel  # noqa: E402
from aotc.package.manifest.read import load  # noqa: E402

STAGES = (1, 2, 3, 4, 5, 6)
REGISTERS = (None, 64, 72, 88, 96, 112, 128, 160, 176, 192, 224, 255)


class Silent:
    """Follow a build without a word."""

    def started(self, num_variants: int, num_cached: int) -> None: ...

    def finished(self, outcome: object) -> None: ...

    def warned(self, message: str) -> None:
        print("warning:", message)


# ------------------------------------------------------------------------------------ manifests


def value_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(value_text, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def large_manifest(factor: int) -> str:
    """Return kernels.toml with every config in `factor` versions: stages and register limits."""
    data = tomli.loads((ROOT / "kernels.toml").read_text())
    more = list(itertools.product(STAGES, REGISTERS))[:factor]
    lines = ["[package]"]
    lines += [f"{key} = {value_text(value)}" for key, value in data["package"].items()]
    for kernel in data["kernel"]:
        axes = kernel.pop("configs", {})
        configs = kernel.pop("config", None) or [
            dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
        ]
        kernel["source"] = str(ROOT / kernel["source"])
        tables = {key: kernel.pop(key) for key in list(kernel) if isinstance(kernel[key], dict)}
        lines += ["", "[[kernel]]"]
        lines += [f"{key} = {value_text(value)}" for key, value in kernel.items()]
        for name, table in tables.items():
            lines.append(f"[kernel.{name}]")
            lines += [f"{key} = {value_text(value)}" for key, value in table.items()]
        for config, (stages, registers) in itertools.product(configs, more):
            limits = {} if registers is None else {"maxnreg": registers}
            lines.append("[[kernel.config]]")
            settings = {**config, "num_stages": stages, **limits}
            lines += [f"{key} = {value_text(value)}" for key, value in settings.items()]
    return "\n".join(lines) + "\n"


@contextmanager
def written(text: str) -> Generator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.toml"
        path.write_text(text)
        yield path


def tasks_of(path: Path, kernels: Sequence[str] = ()) -> list[Task]:
    options = BuildOptions(Path("dist"), 1, kernels=tuple(kernels))
    expanded = expand_all(load(str(path)), options, lambda *_: ())
    return [task for kernel in expanded for task in kernel.tasks]


def timed_cpu(call: Callable[[], Any]) -> tuple[str, Any]:
    """Return wall and processor time as text, and the result."""
    start = time.process_time()
    took, result = timed(call)
    return f"{took:.2f} s ({time.process_time() - start:.2f} s of CPU)", result


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


# ----------------------------------------------------------------------------------------- plan


def measure_plan(arguments: argparse.Namespace) -> None:
    """Time the plan before the first compile, with an empty and with a full cache."""
    with written(large_manifest(arguments.factor)) as path:
        compiled_kernel = compile_both_ways(
            compile_kernel, tasks_of(ROOT / "kernels.toml")[0].request
        )
        options = BuildOptions(Path("dist"), 2)
        for run in range(arguments.runs):
            parsing, manifest = timed_cpu(lambda: load(str(path)))
            cache = Cache(path.parent / "cache", "c", print)
            planning, expanded_plan = timed_cpu(
                lambda cache=cache, manifest=manifest: build_plan.plan(
                    manifest, options, cache=cache, times=cache.times
                )
            )
            if not run:
                fill(cache, path, compiled_kernel)
            full = Cache(path.parent / "cache", "c", print)
            diffing, diff = timed_cpu(
                lambda cache=full, manifest=manifest: build_plan.plan(
                    manifest, options, cache=cache, times=cache.times
                )
            )
            total = sum(kernel.num_variants for kernel in expanded_plan.kernels)
            cached = sum(kernel.num_cached for kernel in diff.kernels)
            print(
                f"{total} variants: parse {parsing}, plan {planning}, "
                f"plan with {cached} cached {diffing}"
            )


def fill(cache: Cache, path: Path, compiled_kernel: CachedKernel) -> None:
    """Store an artifact for each variant, with its source."""
    import hashlib

    for task in tasks_of(path):
        source = task.request.source
        digest = hashlib.sha256(Path(source).read_bytes()).hexdigest()
        metadata = replace(compiled_kernel.metadata, source_files=((source, digest),), searches=())
        cache.store(task.request, replace(compiled_kernel, metadata=metadata, fallback=None))
        cache.times.note(task.request, 0.5)
    cache.close()


# ------------------------------------------------------------------------------------- clusters


@dataclass(frozen=True)
class Sleeper:
    """Stand for a compile: sleep for its measured time and return its result."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    kernels: dict[str, CachedKernel] = field(default_factory=dict[str, CachedKernel])

    def __call__(self, request: CompileRequest) -> CachedKernel:
        time.sleep(self.seconds[request.kernel])
        return self.kernels[request.kernel]


def sleep_compile(request: CompileRequest) -> CachedKernel:
    """Sleep in a worker, with times and results from a file."""
    return sleeper_of(os.environ["AOTC_SLEEPER"])(request)


@lru_cache(maxsize=1)
def sleeper_of(path: str) -> Sleeper:
    import pickle

    return Sleeper(*pickle.loads(Path(path).read_bytes()))


_WORKERS = """
import asyncio, sys
from distributed import Worker
async def main(address, count):
    made = [Worker(address, nthreads=1, memory_limit=0, dashboard=False) for _ in range(count)]
    workers = await asyncio.gather(*(worker for worker in made))
    await asyncio.gather(*(worker.finished() for worker in workers))
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""
_SCHEDULER = """
import asyncio, sys
from distributed import Scheduler
async def main():
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()
asyncio.run(main())
"""


@contextmanager
def cluster(num_workers: int, num_processes: int) -> Generator[tuple[str, int]]:
    """Start a scheduler process and a few processes of sleeping workers; yield address and id."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "DASK_LOGGING__DISTRIBUTED": "critical",
    }
    scheduler = subprocess.Popen(
        [sys.executable, "-c", _SCHEDULER], stdout=subprocess.PIPE, text=True, env=environment
    )
    processes = [scheduler]
    try:
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().strip()
        for index in range(num_processes):
            share = len(range(index, num_workers, num_processes))
            command = [sys.executable, "-c", _WORKERS, address, str(share)]
            processes.append(subprocess.Popen(command, env=environment))
        yield address, scheduler.pid
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(20)


def measure_kernels() -> Sleeper:
    """Compile kernels.toml, and keep of each kernel one result and the mean time of its variants."""
    sleeper = Sleeper()
    times: dict[str, list[float]] = {}
    tasks = tasks_of(ROOT / "kernels.toml")
    compile_both_ways(compile_kernel, tasks[0].request)  # imports
    for task in tasks:
        took, kernel = timed(lambda task=task: compile_both_ways(compile_kernel, task.request))
        times.setdefault(task.request.kernel, []).append(took)
        sleeper.kernels[task.request.kernel] = kernel
    sleeper.seconds.update((name, statistics.fmean(samples)) for name, samples in times.items())
    return sleeper


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def simulate(arguments: argparse.Namespace) -> None:
    """Build on sleeping workers, to time the scheduler and the client."""
    import pickle

    from aotc.package.builder.dask_executor import connected
    from benchmarks.build_farm import sleep_compile  # by a name workers can import

    sleeper = measure_kernels()
    with written(large_manifest(arguments.factor)) as path:
        sleeper_path = path.with_name("sleeper")
        sleeper_path.write_bytes(pickle.dumps((sleeper.seconds, sleeper.kernels)))
        os.environ["AOTC_SLEEPER"] = str(sleeper_path)
        tasks = tasks_of(path)
        work = sum(sleeper.seconds[task.request.kernel] for task in tasks)
        print(f"{len(tasks)} variants, {work:.0f} s of compiles, {work / len(tasks):.3f} s each")
        with (
            cluster(arguments.workers, arguments.processes) as (address, scheduler),
            connected(address, 1) as executor,
        ):
            executor.wait_for(arguments.workers)
            # Workers with their imports done, as in a cluster after a while.
            for _ in run_all(
                tasks[:: len(tasks) // (4 * arguments.workers)], sleep_compile, 1, executor
            ):
                pass
            executor.sent_bytes = executor.received_bytes = 0
            before, client_seconds = cpu_seconds(scheduler), time.process_time()
            took, results = timed(
                lambda: list(
                    run_all(
                        *(tasks, sleep_compile, 1, executor),
                        lambda request: sleeper.seconds[request.kernel],
                    )
                )
            )
            load, client_seconds = (
                cpu_seconds(scheduler) - before,
                time.process_time() - client_seconds,
            )
            report(results, work, took, arguments.workers, load, client_seconds, executor)


def report(
    results: Sequence[Done[Any, Any]],
    work: float,
    took: float,
    num_workers: int,
    load: float,
    client_seconds: float,
    executor: Any,
) -> None:
    failed = [job for job in results if isinstance(job.result, Failure)]
    for job in failed[:1]:
        print(job.task.label, job.result)
    slept = sum(job.seconds for job in results)
    print(f"{took:.1f} s on {num_workers} workers, {len(failed)} failed")
    print(
        f"efficiency {work / took / num_workers:.1%} (of what workers slept {slept / took / num_workers:.1%})"
    )
    print(
        f"scheduler: {load:.1f} s of CPU, {load / took:.0%} of a core, {1e3 * load / len(results):.2f} ms a variant"
    )
    print(f"client: {client_seconds:.1f} s of CPU, {client_seconds / took:.0%} of a core")
    sent, received = executor.sent_bytes / len(results), executor.received_bytes / len(results)
    print(f"bytes a variant: {sent:.0f} sent, {received:.0f} received")


# ---------------------------------------------------------------------------------------- kills


def measure_kills(arguments: argparse.Namespace) -> None:
    """Build with workers killed at random times, and compare every byte."""
    import dask
    import distributed

    from aotc.package.builder.dask_executor import DaskExecutor
    from benchmarks.build_farm import Killer  # by a name workers can import

    kernels = tuple(arguments.kernels.split(","))
    with tempfile.TemporaryDirectory() as folder:
        expected = build_files(Path(folder) / "local", kernels, None, Silent())
        num_killed = 0
        # A task on often-killed workers is not to blame.
        with dask.config.set({"distributed.scheduler.allowed-failures": 100}):
            for run in range(arguments.runs):
                chosen = random.Random(run)
                count = chosen.choice((1, 2, 3))
                with (
                    distributed.LocalCluster(
                        n_workers=count,
                        threads_per_worker=1,
                        dashboard_address=":0",
                        silence_logs=60,
                    ) as made,
                    distributed.Client(made, set_as_default=False) as client,
                ):
                    executor = DaskExecutor(client)
                    killer = Killer(client, chosen, arguments.share)
                    took, files = timed(
                        lambda run=run, executor=executor, killer=killer: build_files(
                            Path(folder) / str(run), kernels, executor, killer
                        )
                    )
                    executor.shutdown()
                num_killed += killer.num_killed
                same = "same bytes" if files == expected else "OTHER BYTES"
                counts = f"{count} workers, {killer.num_killed} killed"
                print(f"run {run}: {counts}, {took:.1f} s, {same}", flush=True)
                if files != expected:
                    sys.exit(1)
        print(f"{arguments.runs} runs, {num_killed} workers killed, the same bytes in all")


STARTED_SECONDS = 6.0  # a nanny gives up for good if its worker dies while it starts


class Killer(Silent):
    """Kill a worker after some of the compiles, drawn at random: while it has the next one."""

    def __init__(self, client: Any, chosen: random.Random, share: float) -> None:
        self.client = client
        self.chosen = chosen
        self.share = share
        self.num_killed = 0

    def finished(self, outcome: object) -> None:
        if self.chosen.random() < self.share:
            ages = self.client.run(process_and_age, on_error="ignore").values()
            old = [process for process, seconds in ages if seconds > STARTED_SECONDS]
            with suppress(OSError, IndexError):  # it is gone already
                os.kill(self.chosen.choice(old), signal.SIGKILL)
                self.num_killed += 1


def process_and_age() -> tuple[int, float]:
    import psutil

    return os.getpid(), time.time() - psutil.Process().create_time()


def build_files(
    folder: Path, kernels: tuple[str, ...], executor: Any, listener: Silent
) -> dict[str, bytes]:
    options = BuildOptions(folder, 2, kernels=kernels, targets=("sm_90a",))
    manifest = load(str(ROOT / "kernels.toml"))
    checked(build(manifest, options, listener, cache=None, executor=executor))
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def checked(result: BuildResult) -> BuildResult:
    for failure in result.failures:
        print(failure.label, failure.report)
    if result.failures:
        sys.exit(1)
    return result


# ------------------------------------------------------------------------------------------- s3


@contextmanager
def s3_server() -> Iterator[str]:
    """Start moto's server of S3 in a process; yield the URL of a bucket."""
    import socket

    import fsspec

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.environ.update(
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
        AWS_DEFAULT_REGION="us-east-1",
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}",
    )
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        fsspec.filesystem("s3").mkdir("team")
        yield "s3://team/aotc"
    finally:
        server.terminate()
        server.wait(10)


def measure_s3(arguments: argparse.Namespace) -> None:
    """Time fully cached builds of kernels.toml: from the folder, and from S3 alone.

    The store is filled by a build, as a team's would be. Then both kinds of builds alternate.
    """
    with s3_server() as url, tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        filled = folder / "filled"
        # Bytecode is kept, as it is where aotc is installed.
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def run(cache: Path, output: str, *options: str) -> tuple[float, float]:
            command = [sys.executable, "-m", "aotc", "build", str(ROOT / "kernels.toml")]
            command += ["--cache-dir", str(cache), "-o", str(folder / output), *options]
            before = os.times()
            took, _ = timed(
                lambda: subprocess.run(command, check=True, capture_output=True, env=environment)
            )
            after = os.times()
            child_seconds = after.children_user + after.children_system
            return took, child_seconds - before.children_user - before.children_system

        took, child_seconds = run(filled, "local", "--cache-url", url)
        print(f"compile, and fill S3: {took:.2f} s ({child_seconds:.2f} s of CPU)", flush=True)
        for name in ("local", "same"):
            run(filled, name)
        kinds = {
            "local hit": lambda _: run(filled, "local"),
            "local hit, new files": lambda index: run(filled, f"local{index}"),
            "from S3": lambda index: run(folder / f"a{index}", "same", "--cache-url", url),
            "from S3, new files": lambda index: run(
                folder / f"b{index}", f"cold{index}", "--cache-url", url
            ),
        }
        times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for index in range(arguments.runs):
            for kind, measure in kinds.items():
                times[kind].append(measure(index))
            print(f"{index}:", *(f"{run[-1][0]:.2f} ({run[-1][1]:.2f})" for run in times.values()))
        for kind, runs in times.items():
            shown: list[str] = []
            for column, clock in enumerate(("wall", "CPU")):
                pairs = zip(times["local hit"], runs, strict=True)
                ratio = statistics.median(run[column] / hit[column] for hit, run in pairs)
                median = statistics.median(run[column] for run in runs)
                shown.append(f"{clock} {median:.2f} s, {ratio:.2f}x")
            print(f"{kind:22} {'; '.join(shown)}")
        built = [
            {path.name: path.read_bytes() for path in (folder / name).iterdir()}
            for name in ("local", "local0", "same", "cold0")
        ]
        print(
            "the same bytes"
            if all(archive_bytes == built[0] for archive_bytes in built)
            else "OTHER BYTES"
        )


# ----------------------------------------------------------------------------------------- wall


def measure_wall(arguments: argparse.Namespace) -> None:
    """Time whole builds of the large manifest by the number of local workers; nothing cached."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    kind = ["--dask", "local"] if arguments.dask else []
    with written(large_manifest(arguments.factor)) as path:
        command = [sys.executable, "-m", "aotc", "build", str(path)]
        command += [part for name in arguments.only for part in ("--kernel", name)]
        first = 0.0
        for count in map(int, arguments.counts.split(",")):
            run = [
                *command,
                "--no-cache",
                *kind,
                "-j",
                str(count),
                "-o",
                str(path.parent / str(count)),
            ]
            took, result = timed(
                lambda run=run: subprocess.run(
                    run, check=False, capture_output=True, text=True, env=environment
                )
            )
            first = first or took
            last = result.stderr.splitlines()[-1]
            built = path.parent / str(count) / "kernels.aotc"
            variants = sum(len(kernel.variants) for kernel in archives.read(built).kernels)
            rate = f"{variants / took:.2f} variants/s"
            print(f"{count} workers: {took:.1f} s, {first / took:.2f}x, {rate}, {last}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, measure in (
        ("plan", measure_plan),
        ("simulate", simulate),
        ("kills", measure_kills),
        ("s3", measure_s3),
        ("wall", measure_wall),
    ):
        command = commands.add_parser(name)
        command.set_defaults(measure=measure)
        command.add_argument("--factor", type=int, default=48, help="of kernels.toml's variants")
        command.add_argument("--runs", type=int, default=20 if name == "kills" else 5)
        command.add_argument("--workers", type=int, default=64)
        command.add_argument(
            "--processes", type=int, default=2, help="that simulated workers are in"
        )
        command.add_argument("--kernels", default="vector_add", help="to build with kills")
        command.add_argument("--share", type=float, default=0.25, help="of compiles, with kills")
        command.add_argument("--counts", default="1,2,4", help="of local workers")
        command.add_argument("--only", nargs="*", default=[], help="kernels to build, with wall")
        command.add_argument("--dask", action="store_true", help="local workers of a cluster")
    arguments = parser.parse_args()
    arguments.measure(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
