"""PTX to cubin, and cubin back to SASS, with NVIDIA's own tools in a process of their own.

ptxas can loop or crash on unusual input, so it runs with a timeout, in its own process group, and
what it reports is parsed: registers, spills, stack, shared memory, and those warnings that say a
kernel will run much slower than it looks.

Which registers a kernel needs depends on the order that ptxas finds, so what spills in one of its
ways often does not in another. The others are tried only then: most kernels are assembled once.
"""

from __future__ import annotations

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
_ERROR_LINE = re.compile(r"line (\d+); *(?:error|fatal)")
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


def assemble(
    ptx: str,
    target: Target,
    *,
    maxnreg: int = 0,
    timeout_seconds: float = _DEFAULT_TIMEOUT_SECONDS,
) -> Assembly:
    """Return the cubin of a PTX module for `target`.

    `maxnreg` caps the registers of a thread in entries that state neither `.maxnreg` nor `.reqntid`
    themselves; what `lower_kernel` writes states them, from the kernel. 0 leaves them to ptxas.
    Where registers do not suffice, other ways are tried, and the best of them is taken.
    Raises: IRError with the offending line of PTX, or when ptxas does not end in time.
    """
    cap = (f"-maxrregcount={maxnreg}",) if maxnreg else ()
    tried: list[Assembly] = []
    for way in _WAYS:
        tried.append(_assemble(ptx, target, (*way, *cap), timeout_seconds))
        # A stack of its own, as calls need one, is no reason to look further.
        if not tried[-1].local_bytes or not tried[0].spill_bytes:
            break
    return min(tried, key=lambda each: each.local_bytes)


def _assemble(ptx: str, target: Target, options: Sequence[str], timeout_seconds: float) -> Assembly:
    """Assemble in one way."""
    ptxas = find_file("nvidia-cuda-nvcc", "bin/ptxas")
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        source, output = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx, encoding="utf-8")
        command = [str(ptxas), "-v", f"-arch={target.name}", source.name, "-o", output.name]
        status, report = _run([*command, *options], folder, timeout_seconds)
        if status != 0:
            raise IRError(_explain(report, ptx, status))
        cubin = output.read_bytes()
    found = {name: _largest(pattern, report) for name, pattern in _NUMBERS.items()}
    return Assembly(
        cubin,
        registers=found["registers"],
        spill_bytes=found["spill_store_bytes"] + found["spill_load_bytes"],
        stack_bytes=found["stack_bytes"],
        static_shared_bytes=found["static_shared_bytes"],
        warnings=tuple(line.strip() for line in report.splitlines() if _WARNING.search(line)),
    )


def disassemble(cubin: bytes, *, timeout_seconds: float = _DEFAULT_TIMEOUT_SECONDS) -> str:
    """Return the SASS of a cubin, one instruction a line.

    Raises: IRError if it is not a cubin.
    """
    nvdisasm = find_file("nvidia-cuda-nvdisasm", "bin/nvdisasm")
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        source = Path(folder, "kernel.cubin")
        source.write_bytes(cubin)
        status, report = _run([str(nvdisasm), "-c", source.name], folder, timeout_seconds)
    if status != 0:
        raise IRError(f"nvdisasm failed: {report.strip()}")
    return report


def _run(command: Sequence[str], folder: str, timeout_seconds: float) -> tuple[int, str]:
    """Run a tool; return its exit status and all it wrote."""
    name = Path(command[0]).name
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise IRError(f"{name} cannot be started: {error}") from error
    try:
        report, _ = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        raise IRError(f"{name} did not end within {timeout_seconds:g} seconds") from None
    finally:
        # Also on an interrupt: the tool and what it started must not outlive us.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    return process.returncode, report


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
