"""PTX to cubin, and cubin back to SASS, with NVIDIA's own tools in a process of their own.

ptxas can loop or crash on unusual input, so it runs with a timeout, in its own process group, and
what it reports is parsed: registers, spills, stack, shared memory, and those warnings that say a
kernel will run much slower than it looks.

Much of what ptxas takes for a small kernel it takes to start. It reads PTX from its input, so that it
can be started before there is any, and beside what makes it.

Which registers a kernel needs depends on the order that ptxas finds, so what spills in one of its
ways often does not in another. The others are tried only then: most kernels are assembled once.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aotc.backend.wheels import find_file
from aotc.ir.diagnostics import IRError
from aotc.target import Target

_DEFAULT_TIMEOUT_SECONDS = 300.0
_INPUT, _OUTPUT = "/dev/stdin", "kernel.cubin"
_ERROR_LINE = re.compile(r"line (\d+); *(?:error|fatal)\s*:?\s*(.*)")
_WARNING = re.compile(r"\((C75(?:0[89]|1\d)|C7600)\)")
# Its usual way first; then without its last optimisations; then without those that take registers.
_WAYS = ((), ("-O2",), ("--register-usage-level=0",))
_NUMBERS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
    "static_shared_bytes": re.compile(r"(\d+) bytes smem"),
}


class RefusedError(IRError):
    """Report PTX that ptxas refuses; `line` is the first that it names, `reason` what it says."""

    def __init__(self, message: str, line: int, reason: str) -> None:
        super().__init__(message)
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Assembly:
    """Hold a cubin and what ptxas reported of it.

    `warnings` are those of the performance family (C7508 to C7519, C7600), whole lines.
    `spill_bytes` counts stores and loads of spilled registers, per thread.
    """

    cubin: bytes
    registers: int
    spill_bytes: int
    stack_bytes: int
    static_shared_bytes: int
    warnings: tuple[str, ...]

    @property
    def local_bytes(self) -> int:
        """How much a thread has to do with local memory: 0 if registers suffice."""
        return self.spill_bytes + self.stack_bytes


class Ptxas:
    """A ptxas that has started, and waits for its PTX; as a context it ends with that.

    That it cannot be started is told when it is asked.
    """

    def __init__(self, target: Target, options: Sequence[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="aotc-")
        self._process: subprocess.Popen[str] | None = None
        self._problem: IRError | None = None
        command = ["-v", f"-arch={target.name}", _INPUT, "-o", _OUTPUT, *options]
        try:
            ptxas = find_file("nvidia-cuda-nvcc", "bin/ptxas")
            self._process = _start([str(ptxas), *command], self._folder.name)
        except IRError as error:
            self._problem = error

    def __enter__(self) -> Ptxas:  # noqa: PYI034 - typing has Self from 3.11 on
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            _end(self._process)
        self._folder.cleanup()

    def run(self, ptx: str, timeout_seconds: float) -> Assembly:
        """Hand over the PTX, once; return what is made of it. Raises: as `assemble`."""
        if self._process is None:
            assert self._problem is not None
            raise self._problem
        status, report = _finish(self._process, timeout_seconds, ptx)
        if status != 0:
            message = _explain(report.replace(_INPUT, "the PTX"), ptx, status)
            found = _ERROR_LINE.search(report)
            if found is None:
                raise IRError(message)
            raise RefusedError(message, int(found[1]), found[2])
        cubin = Path(self._folder.name, _OUTPUT).read_bytes()
        found = {name: _largest(pattern, report) for name, pattern in _NUMBERS.items()}
        return Assembly(
            cubin,
            registers=found["registers"],
            spill_bytes=found["spill_store_bytes"] + found["spill_load_bytes"],
            stack_bytes=found["stack_bytes"],
            static_shared_bytes=found["static_shared_bytes"],
            warnings=tuple(line.strip() for line in report.splitlines() if _WARNING.search(line)),
        )


def assemble(
    ptx: str,
    target: Target,
    *,
    started: Ptxas | None = None,
    maxnreg: int = 0,
    timeout_seconds: float = _DEFAULT_TIMEOUT_SECONDS,
) -> Assembly:
    """Return the cubin of a PTX module for `target`.

    A ptxas that was `started` for the target, without options, is the first to be tried. `maxnreg`
    caps the registers of a thread in entries that state neither `.maxnreg` nor `.reqntid`
    themselves; what `lower_kernel` writes states them, from the kernel. 0 leaves them to ptxas.
    Where registers do not suffice, other ways are tried, and the best of them is taken.
    Raises: IRError with the offending line of PTX, or when ptxas does not end in time.
    """
    cap = (f"-maxrregcount={maxnreg}",) if maxnreg else ()
    tried: list[Assembly] = []
    for way in _WAYS:
        if started is not None and not tried and not cap:
            tried.append(started.run(ptx, timeout_seconds))
        else:
            with Ptxas(target, (*way, *cap)) as ptxas:
                tried.append(ptxas.run(ptx, timeout_seconds))
        # A stack of its own, as calls need one, is no reason to look further.
        if not tried[-1].local_bytes or not tried[0].spill_bytes:
            break
    return min(tried, key=lambda each: each.local_bytes)


def disassemble(
    cubin: bytes, *, with_lines: bool = False, timeout_seconds: float = _DEFAULT_TIMEOUT_SECONDS
) -> str:
    """Return the SASS of a cubin, one instruction a line; `with_lines` names those of the source.

    Raises: IRError if it is not a cubin.
    """
    nvdisasm = find_file("nvidia-cuda-nvdisasm", "bin/nvdisasm")
    options = ("-c", "-g") if with_lines else ("-c",)
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        source = Path(folder, "kernel.cubin")
        source.write_bytes(cubin)
        status, report = _run([str(nvdisasm), *options, source.name], folder, timeout_seconds)
    if status != 0:
        raise IRError(f"nvdisasm failed: {report.strip()}")
    return report


def _run(command: Sequence[str], folder: str, timeout_seconds: float) -> tuple[int, str]:
    """Run a tool; return its exit status and all it wrote."""
    return _finish(_start(command, folder), timeout_seconds)


def _start(command: Sequence[str], folder: str) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise IRError(f"{Path(command[0]).name} cannot be started: {error}") from error


def _finish(
    process: subprocess.Popen[str], timeout_seconds: float, text: str = ""
) -> tuple[int, str]:
    """Give a tool its input; return its exit status and all it wrote."""
    try:
        report, _ = process.communicate(text, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        name = Path(str(process.args[0] if isinstance(process.args, list) else process.args)).name
        raise IRError(f"{name} did not end within {timeout_seconds:g} seconds") from None
    finally:
        _end(process)
    return process.returncode, report


def _end(process: subprocess.Popen[str]) -> None:
    """End a tool if it runs, also on an interrupt: neither it nor what it started outlives us."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _explain(report: str, ptx: str, status: int) -> str:
    """Return a message for a failed assembly, with the lines of PTX it names."""
    lines = ptx.splitlines()
    parts = [f"ptxas failed with status {status}"]
    for text in report.strip().splitlines():
        parts.append(text)
        found = _ERROR_LINE.search(text)
        if found and 1 <= int(found[1]) <= len(lines):
            parts.append(f"  {found[1]}: {lines[int(found[1]) - 1].strip()}")
    return "\n".join(parts)


def _largest(pattern: re.Pattern[str], report: str) -> int:
    return max((int(number) for number in pattern.findall(report)), default=0)
