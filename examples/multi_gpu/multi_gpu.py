"""One archive on every GPU of the host, from Python.

    aotc build examples/multi_gpu/multi_gpu.toml -o dist
    python examples/multi_gpu/multi_gpu.py dist/multi_gpu.aotc [--launches N] [--batches N]

Needs torch and one or more NVIDIA GPUs. What `main.cpp` does from C++: launches from a thread for each
GPU and from one thread on all, in streams and in graphs; takes GPUs out of the set and back; tries what
must be refused; measures launches, and memory before and after N of them. Exits with 0 if all was right.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch

import aotc
from aotc.runtime import AotcError, Kernel, Library

ROWS, COLS = 96, 160
ROUNDS = 20
BATCH = 256


class Worker:
    """One GPU's weights and buffers: sum = x + weights by pointers, turned = x.T by tensor maps."""

    def __init__(self, device: int) -> None:
        self.device = torch.device("cuda", device)
        self.stream = torch.cuda.Stream(self.device)
        self.weights = torch.arange(ROWS * COLS, device=self.device).float() % 13 + 1000 * device
        self.x = torch.empty(ROWS, COLS, device=self.device)
        self.sum = torch.empty(ROWS * COLS, device=self.device)
        self.turned = torch.empty(COLS, ROWS, device=self.device)
        torch.cuda.synchronize(self.device)  # other streams use them

    def refill(self) -> None:
        self.x.copy_(torch.randint(0, 997, self.x.shape, device=self.device))
        self.sum.fill_(float("nan"))
        self.turned.fill_(float("nan"))

    def launch(self, library: Library) -> None:
        """Both kernels, in torch's current stream of this GPU, whatever the current device."""
        library["vector_add"](self.x, self.weights, self.sum, self.x.numel())
        library["transpose"](self.x, self.turned)

    def is_right(self) -> bool:
        torch.cuda.synchronize(self.device)
        sums = torch.equal(self.sum, self.x.flatten() + self.weights)
        return sums and torch.equal(self.turned, self.x.T)


class Results:
    """How many results of a phase were right."""

    def __init__(self) -> None:
        self.right = self.wrong = 0
        self.lock = threading.Lock()

    def add(self, *, right: bool) -> None:
        with self.lock:
            self.right += right
            self.wrong += not right

    @property
    def is_empty(self) -> bool:
        return self.right + self.wrong == 0

    def report(self, phase: str) -> bool:
        verdict = "WRONG" if self.wrong or not self.right else "right"
        print(f"{phase:44} {verdict} ({self.right} of {self.right + self.wrong})", flush=True)
        return verdict == "right"


def serve(worker: Worker, library: Library, results: Results) -> None:
    with torch.cuda.device(worker.device), torch.cuda.stream(worker.stream):
        for _ in range(ROUNDS):
            worker.refill()
            worker.launch(library)
            results.add(right=worker.is_right())


def thread_a_gpu(library: Library, path: Path, workers: list[Worker]) -> bool:
    """A thread for each GPU, while this one loads a second archive over and over."""
    results, other = Results(), Results()
    threads = [threading.Thread(target=serve, args=(w, library, results)) for w in workers]
    others = [Worker(w.device.index) for w in workers]
    for thread in threads:
        thread.start()
    while other.is_empty or any(thread.is_alive() for thread in threads):
        with aotc.load(path, device=range(len(workers))) as second:
            for worker in others:
                worker.refill()
                worker.launch(second)
                other.add(right=worker.is_right())
    for thread in threads:
        thread.join()
    complete = results.right + results.wrong == ROUNDS * len(workers)
    right = results.report("a thread for each GPU") and complete
    return other.report("a second archive meanwhile") and right


def one_thread(library: Library, workers: list[Worker]) -> bool:
    """From one thread, with GPU 0 current all the time: the tensors say where to launch."""
    results = Results()
    for _ in range(ROUNDS):
        for worker in workers:
            worker.refill()
        for worker in workers:
            worker.launch(library)
        for worker in workers:
            results.add(right=worker.is_right())
    return results.report("one thread on all GPUs in turn")


def graphs(library: Library, workers: list[Worker]) -> bool:
    results = Results()
    captured: list[torch.cuda.CUDAGraph] = []
    for worker in workers:
        with torch.cuda.device(worker.device):
            graph = torch.cuda.CUDAGraph()
            # The default stream of captures is that of the first device they were made on.
            with torch.cuda.graph(graph, stream=worker.stream):
                worker.launch(library)
            captured.append(graph)
    for _ in range(ROUNDS):
        for worker, graph in zip(workers, captured, strict=True):
            worker.refill()
            torch.cuda.synchronize(worker.device)
            with torch.cuda.device(worker.device):
                graph.replay()
        for worker in workers:
            results.add(right=worker.is_right())
    return results.report("graphs on all GPUs in turn")


def is_refused(call: Callable[[], object], *words: str) -> bool:
    """Whether a call is an error whose message has these words."""
    try:
        call()
    except AotcError as error:
        print(f"  refused: {error}")
        return all(word in str(error) for word in words)
    return False


def leave_and_return(library: Library, workers: list[Worker]) -> bool:
    results = Results()
    for leaving in workers:
        ordinal = leaving.device.index
        torch.cuda.synchronize(leaving.device)
        library.unload(ordinal)
        # If it is the only GPU, nothing is loaded anywhere, and the message says just that.
        words = (f"load(device={ordinal})",) if len(workers) > 1 else ()
        results.add(right=is_refused(partial(leaving.launch, library), *words))
        for worker in workers:
            if worker is not leaving:
                worker.refill()
                worker.launch(library)
                results.add(right=worker.is_right())
        library.load(ordinal)
        leaving.refill()
        leaving.launch(library)
        results.add(right=leaving.is_right())
    return results.report("each GPU leaves the set and comes back")


def mixtures(library: Library, workers: list[Worker]) -> bool:
    """Tensors of one GPU with a launch that is meant for another."""
    results = Results()
    kernel = library["vector_add"]
    for a, b in pairwise(workers):
        n = a.x.numel()
        mixed = partial(kernel, a.x, b.weights, a.sum, n)
        results.add(right=is_refused(mixed, f"got device {b.device.index}", "move one of them"))
        elsewhere = partial(kernel, a.x, a.weights, a.sum, n, stream=b.stream)
        results.add(right=is_refused(elsewhere, "use a stream of the tensor's device"))
    return results.report("tensors and streams of two GPUs") if len(workers) > 1 else True


def launch_ns(kernel: Kernel, worker: Worker) -> Callable[[], float]:
    arguments = (worker.x, worker.weights, worker.sum, worker.x.numel())

    def batch() -> float:
        begin = time.perf_counter_ns()
        for _ in range(BATCH):
            kernel(*arguments)
        took = time.perf_counter_ns() - begin
        torch.cuda.synchronize(worker.device)
        return took / BATCH

    return batch


def report_cost(library: Library, path: Path, workers: list[Worker], count: int) -> None:
    """An archive on one GPU alone and one on all, launched batch by batch in turn."""
    for worker in workers:
        ordinal = worker.device.index
        with torch.cuda.device(worker.device), aotc.load(path, device=ordinal) as alone:
            batches = [launch_ns(archive["vector_add"], worker) for archive in (alone, library)]
            times: list[list[float]] = [[], []]
            for number in range(count):
                for place in (number % 2, 1 - number % 2):
                    times[place].append(batches[place]())
            one, all_ = (statistics.median(values) for values in times)
        print(
            f"GPU {ordinal}: {one:.0f} ns a launch alone, {all_:.0f} ns with all loaded:"
            f" {100 * (all_ / one - 1):+.1f} %"
        )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def used_bytes(workers: list[Worker]) -> list[int]:
    def used(worker: Worker) -> int:
        free, total = torch.cuda.mem_get_info(worker.device)
        return total - free

    return [resident_bytes(), *map(used, workers)]


def keep_memory(library: Library, workers: list[Worker], launches: int) -> bool:
    kernel = library["vector_add"]

    def launch(count: int) -> None:
        for number in range(count):
            worker = workers[number % len(workers)]
            kernel(worker.x, worker.weights, worker.sum, 1 + number % 4999)
            if number % 512 == 511:
                for each in workers:
                    torch.cuda.synchronize(each.device)
        for each in workers:
            torch.cuda.synchronize(each.device)

    launch(20000)  # tables that are touched as they fill
    before = used_bytes(workers)
    launch(launches)
    grown = [after - was for after, was in zip(used_bytes(workers), before, strict=True)]
    print(f"memory after {launches} launches: host {grown[0] / 2**20:+.1f} MiB", end="")
    for number, value in enumerate(grown[1:]):
        print(f", GPU {number} {value / 2**20:+.1f} MiB", end="")
    print()
    return grown[0] < 2 << 20 and max(grown[1:]) <= 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--launches", type=int, default=1_000_000, help="for memory in use")
    parser.add_argument(
        "--batches", type=int, default=100, help=f"of {BATCH} launches, for their cost"
    )
    given = parser.parse_args(arguments)
    count = torch.cuda.device_count()
    print(f"{given.archive} on {count} GPU{'s' * (count != 1)}", flush=True)
    workers = [Worker(device) for device in range(count)]
    with aotc.load(given.archive, device=range(count)) as library:
        right = [
            thread_a_gpu(library, given.archive, workers),
            one_thread(library, workers),
            graphs(library, workers),
            mixtures(library, workers),
            leave_and_return(library, workers),
        ]
        report_cost(library, given.archive, workers, given.batches)
        right.append(keep_memory(library, workers, given.launches))
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
