"""PTX to cubin, and cubin back to SASS, with NVIDIA's tools in processes of their own.

ptxas can loop, crash or use up all memory on unusual input. So it runs with limits on its time and
address space, in its own process group. Its report is parsed: registers, spills, stack, shared
memory, and the warnings about serious losses of performance.

For a small kernel ptxas spends most of its time on starting. It reads PTX from standard input, so
it can be started early, concurrently with the stages that produce the PTX.

The registers of a kernel depend on ptxas's scheduling, and a kernel that spills with one set of
options often does not with another. The others are tried only then: most kernels are assembled
once.

If registers do not suffice and the PTX does not state the CTAs per SM, ptxas 13.5 may aim for full
occupancy: 32 registers a thread, and everything else spilled. Asked for one CTA per SM, it spills
only the excess. This is not the first attempt, since it also uses more registers where they do
suffice.

ptxas may also end with an internal error, above all in register allocation, or use its stack
pointer for values. Another way of allocating registers may avoid it. Otherwise lower optimisation
levels are tried in turn, and the result records the level.

On long code ptxas's time grows faster than the code. Beyond a number of instructions or of blocks
reached only by unrolled loops, it skips its most expensive optimisations, and the result records it.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import struct
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aotc.backend.result_cache import ResultCache
from aotc.backend.stack_pointer import may_overwrite_stack, overwritten_stack
from aotc.backend.wheels import find_file, find_ptxas
from aotc.ir.diagnostics import DiagnosticError, HostError, IRError, host_error
from aotc.target import DEFAULT_TOOLCHAIN, Target

_DEFAULT_TIMEOUT_SECONDS = 300.0
_VERSION_TIMEOUT_SECONDS = 30.0
_DEFAULT_MEBIBYTES = 8192
_INPUT, _OUTPUT = "/dev/stdin", "kernel.cubin"
_ERROR_LINE = re.compile(r"line (\d+); *(?:error|fatal)\s*:?\s*(.*)")
# C7602: an instruction, such as wgmma, takes more registers than threads have.
_FEW_REGISTERS = re.compile(r"Insufficient registers \((\d+)\).* register target of (\d+)")
# C7600: accumulators of wgmma, which cannot be spilled, take more registers than threads have.
_NO_ALLOCATION = re.compile(r"\(C7600\) Register allocation failed with register count of '(\d+)'")
_NO_OUTPUT = re.compile(r"(?i)fatal.*outp(?:ut)? file")
_INDIRECT_JUMP = re.compile(r"\b(?:BRX|BRXU|JMX|JMXU)\b")
_WARNING = re.compile(r"\((C75(?:0[89]|1\d)|C7600)\)")
# C7907 and its like; other faults of its own end ptxas by a signal.
_INTERNAL_ERROR = re.compile(r"[^\n]*\binternal (?:compiler )?error\b[^\n]*", re.IGNORECASE)
# Gives registers in another way at the same level; with 6 and more, R1 was left alone where the usual 5 gave it away.
_OTHER_ALLOCATION = "--register-usage-level=10"
_FEWER_OPTIMISATIONS = "-Ofc=mid"
# The longest kernel that is tuned for has some 13,000.
_MANY_INSTRUCTIONS = 25_000
_FEWEST_OPTIMISATIONS = "-Ofc=max"
# A thousand loops with loads take 15 s instead of 45 s and more; fewer optimisations save nothing there.
_MANY_BLOCKS = 512
_BLOCK_LABEL = "\n$L__BB"
# The highest comes first.
_LOWER_LEVELS = ("-Ofc=mid", "-O1", "-O0")
# Lower optimisation levels use fewer registers.
_OTHER_OPTIONS = (("-O2",), ("--register-usage-level=0",))
_ONE_CTA_PER_SM = ("-minnctapersm=1",)
_MAX_REGISTERS, _REGISTERS_PER_SM, _REGISTER_UNIT = 255, 65536, 8
_BOUNDED = re.compile(r"^\.(?:maxnreg|minnctapersm)\b", re.MULTILINE)
_SHARED_SM = re.compile(r"^\.minnctapersm (?!1$)(\d+)\n", re.MULTILINE)
_THREADS = re.compile(r"^\.reqntid (\d+)", re.MULTILINE)
# Other options change spills by a fraction. Beyond this many bytes, too much would remain.
_MAX_BYTES_TO_IMPROVE = 4096
_OUT_OF_MEMORY = "Memory allocation failure"
_ELF_MAGIC = b"\x7fELF"
_ELF_HEADER = struct.Struct("<32xQQ6x4H2x")  # the places, sizes and counts of segments and sections
_PROBE_BYTES = 1 << 20
# The tools allocate 10 to 60 MB in small pieces: without this, first touches of their pages take
# up to a fifth of their time. Other C libraries than glibc do not look at it.
_HEAP = "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=4194304:glibc.malloc.mmap_threshold=1073741824"
_running: set[subprocess.Popen[str]] = set()
_STACK_NUMBERS = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
_NUMBERS = {
    "registers": re.compile(r"Used (\d+) registers"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
    "static_shared_bytes": re.compile(r"(\d+) bytes smem"),
}


class RefusedError(IRError):
    """PTX rejected by ptxas; `line` is the first one it names, `reason` its message."""

    def __init__(self, message: str, line: int, reason: str) -> None:
        super().__init__(message)
        self.line = line
        self.reason = reason


class CrashError(IRError):
    """ptxas ended with an internal error or by a signal, or its cubin breaks its stack.

    `reason` tells the two apart.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class OverLimitError(IRError):
    """ptxas was ended at a limit; `reason` names the limit and the amount used."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class FewRegistersError(IRError):
    """A thread has `available` registers, too few even with spills.

    `needed` counts those of one instruction, or is None if several share them.
    """

    def __init__(self, message: str, required: int | None, available: int) -> None:
        super().__init__(message)
        self.needed = required
        self.available = available


@dataclass(frozen=True, slots=True)
class Assembly:
    """A cubin and ptxas's report about it.

    `warnings` are of the performance family (C7508 to C7519, C7600), whole lines. `spill_bytes`
    counts stores and loads of spilled registers, per thread. `level` is the optimisation level, if
    lower than usual. `crash` is the failure at the usual level; if it is "", the PTX is long.
    """

    cubin: bytes
    registers: int
    spill_bytes: int
    stack_bytes: int
    static_shared_bytes: int
    warnings: tuple[str, ...]
    level: str = ""
    crash: str = ""

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory traffic and stack per thread: 0 if registers suffice."""
        return self.spill_bytes + self.stack_bytes


_results: ResultCache[Assembly] = ResultCache()

# Signals of the system's and of other people; others are faults of ptxas.
_ENDED_BY = {
    signal.SIGKILL: ("; out of memory?", "free memory, or build with fewer jobs (-j)"),
    signal.SIGXFSZ: (": its files are too large", "raise the limit of a file's size (ulimit -f)"),
    signal.SIGXCPU: (": it took too long", "raise the limit of processor time (ulimit -t)"),
    **dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGINT), ("", "build again")),
}


class Ptxas:
    """A running ptxas that waits for its PTX; a context manager to end it.

    A failure to start is raised by `run`. With `reuses` none is started before `run` if the last
    PTX came from the cache: so, probably, will the next.
    """

    def __init__(
        self,
        target: Target,
        options: Sequence[str] = (),
        mebibytes: int = _DEFAULT_MEBIBYTES,
        *,
        reuses: bool = False,
    ) -> None:
        self._mebibytes = mebibytes
        self._toolchain = target.toolchain
        self._folder = _make_folder()
        self._process: subprocess.Popen[str] | None = None
        self._problem: DiagnosticError | IRError | None = None
        self._command = ["-v", f"-arch={target.name}", _INPUT, "-o", _OUTPUT, *options]
        if not (reuses and _results.has_hit):
            self._start()

    def _start(self) -> None:
        try:
            ptxas = find_ptxas(self._toolchain)
            self._process = _start([str(ptxas), *self._command], self._folder.name)
            _bound_memory(self._process, self._mebibytes)
        except (DiagnosticError, IRError) as error:
            self._problem = error

    def __enter__(self) -> Ptxas:  # noqa: PYI034 - typing has Self from 3.11 on
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            _end(self._process)
        self._folder.cleanup()

    def run(self, ptx: str, timeout_seconds: float) -> Assembly:
        """Assemble PTX; callable once. Raises: as `assemble`."""
        if self._process is None and self._problem is None:
            self._start()
        if self._process is None:
            assert self._problem is not None
            raise self._problem
        status, report = _finish(self._process, timeout_seconds, ptx)
        if -status in _ENDED_BY:
            question, remedy = _ENDED_BY[signal.Signals(-status)]
            message = f"ptxas was ended by {signal.Signals(-status).name}{question}"
            raise HostError(message, remedy=remedy)
        if _NO_OUTPUT.search(report):
            raise _no_room(self._folder.name)
        if status != 0:
            if _OUT_OF_MEMORY in report:
                raise OverLimitError(f"ptxas took more than {self._mebibytes} MiB of memory")
            message = _explain(report.replace(_INPUT, "the PTX"), ptx, status)
            few = _FEW_REGISTERS.search(report)
            if few is not None:
                raise FewRegistersError(message, required=int(few[2]), available=int(few[1]))
            unallocated = _NO_ALLOCATION.search(report)
            if unallocated is not None:
                raise FewRegistersError(message, required=None, available=int(unallocated[1]))
            raise _failure(status, report, message)
        cubin = self._output()
        numbers = {name: _largest(pattern, report) for name, pattern in _NUMBERS.items()}
        if any(numbers[name] for name in _STACK_NUMBERS):
            _check_stack(cubin)
        return Assembly(
            cubin,
            registers=numbers["registers"],
            spill_bytes=numbers["spill_store_bytes"] + numbers["spill_load_bytes"],
            stack_bytes=numbers["stack_bytes"],
            static_shared_bytes=numbers["static_shared_bytes"],
            warnings=tuple(line.strip() for line in report.splitlines() if _WARNING.search(line)),
        )

    def _output(self) -> bytes:
        """Return the cubin. Raises: HostError if it is truncated; ptxas does not report it."""
        try:
            cubin = Path(self._folder.name, _OUTPUT).read_bytes()
        except OSError as error:
            raise (
                host_error(error, f"cannot read the cubin in {self._folder.name}") or error
            ) from None
        if cubin.startswith(_ELF_MAGIC) and not _is_whole(cubin):
            raise _no_room(self._folder.name)
        return cubin


def _check_stack(cubin: bytes) -> None:
    """Check for a safe stack pointer in a cubin. Raises: CrashError."""
    if may_overwrite_stack(cubin):
        instruction = overwritten_stack(disassemble(cubin))
        if instruction:
            reason = f"its cubin overwrites the stack pointer: {instruction}"
            raise CrashError(f"ptxas: {reason}", reason)


def _failure(status: int, report: str, message: str) -> IRError:
    """Return the error for PTX refused by ptxas, or for its crash."""
    internal = _INTERNAL_ERROR.search(report)
    if internal is not None:
        return CrashError(message, internal[0].strip())
    if status < 0:
        return CrashError(message, f"ended by {signal.Signals(-status).name}")
    refused = _ERROR_LINE.search(report)
    if refused is None:
        return IRError(message)
    return RefusedError(message, int(refused[1]), refused[2])


def _is_whole(elf: bytes) -> bool:
    """Return whether an ELF file contains its segment and section tables, its last parts."""
    if len(elf) < _ELF_HEADER.size:
        return False
    segments, sections, *counts = _ELF_HEADER.unpack_from(elf)
    ends = (segments + counts[0] * counts[1], sections + counts[2] * counts[3])
    return max(ends) <= len(elf)


def _make_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for a tool to work in. Raises: HostError."""
    try:
        return tempfile.TemporaryDirectory(prefix="aotc-")
    except OSError as error:
        parent = tempfile.tempdir or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
        raise host_error(error, f"cannot make a folder in {parent}") or error from None


def _no_room(folder: str) -> DiagnosticError:
    """Explain why a tool could not write its output."""
    # The parent folder, not this run's own, so many variants give one report.
    doing = f"ptxas cannot write to {Path(folder).parent}"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
    except OSError as error:
        return host_error(error, doing) or HostError(f"{doing}: {error.strerror}")
    return HostError(doing, remedy="free space there, or set TMPDIR to another file system")


def assemble(
    ptx: str,
    target: Target,
    *,
    started: Ptxas | None = None,
    maxnreg: int = 0,
    timeout_seconds: float = _DEFAULT_TIMEOUT_SECONDS,
    mebibytes: int = _DEFAULT_MEBIBYTES,
    reuses: bool = False,
) -> Assembly:
    """Return the cubin of a PTX module for `target`.

    With `reuses` it may come from this process's cache for the same PTX. A ptxas already `started`
    for the target, without options, is tried first. `maxnreg` caps the registers per thread of
    entries without `.maxnreg` and `.reqntid`; the output of `lower_kernel` states them, from the
    kernel. 0 leaves them to ptxas.

    If registers do not suffice, other options are tried, and the best result is used. If ptxas
    crashes, or its cubin would, others and lower optimisation levels are tried. Each attempt has
    the whole time limit: the spills of earlier attempts decide on later ones, not their time.

    Raises: IRError with the offending line of PTX; CrashError if ptxas crashes at every level;
        FewRegistersError; OverLimitError when ptxas exceeds its time or memory; HostError if the machine
        lacks resources.
    """
    limits = f"{target.name} {target.toolchain} {maxnreg}"
    cubin = _results.find(ptx, limits) if reuses else None
    if cubin is None:
        cubin = _assemble(ptx, target, started, maxnreg, timeout_seconds, mebibytes)
        if reuses:
            _results.keep(ptx, limits, cubin, len(cubin.cubin))
    return cubin


def _assemble(
    ptx: str,
    target: Target,
    started: Ptxas | None,
    maxnreg: int,
    timeout_seconds: float,
    mebibytes: int,
) -> Assembly:
    """Run ptxas, with as many options as it takes; see `assemble`."""
    options = (f"-maxrregcount={maxnreg}",) if maxnreg else ()
    level = _usual_level(ptx)

    def run(*more: str) -> Assembly:
        # ptxas takes one level alone.
        usual = level if not any(option.startswith("-O") for option in more) else ""
        with Ptxas(target, (*more, *options, *filter(None, [usual])), mebibytes) as ptxas:
            return replace(ptxas.run(ptx, timeout_seconds), level=usual)

    def better(best: Assembly, *more: str) -> Assembly:
        try:
            return min(best, run(*more), key=_local_bytes)
        except CrashError:
            return best

    try:
        can_start = not options and not level
        first = started.run(ptx, timeout_seconds) if started and can_start else run()
    except CrashError as error:
        return _without_crash(run, error)
    if not first.spill_bytes:
        return first  # a stack, as calls need one, is no reason for other options
    best = first
    while (bound := _SHARED_SM.search(ptx)) and best.spill_bytes:
        # One more CTA an SM is worth less than registers without spills.
        count = int(bound[1]) - 1
        ptx = _SHARED_SM.sub(f".minnctapersm {count}\n" if count > 1 else "", ptx)
        best = better(best)
    if not best.spill_bytes:
        return best
    if not maxnreg and first.registers < _registers_for_one_cta(ptx):
        options = _ONE_CTA_PER_SM
        best = better(best)
    for more in _OTHER_OPTIONS:
        if not 0 < best.local_bytes <= _MAX_BYTES_TO_IMPROVE:
            break
        best = better(best, *more)
    return best


def _usual_level(ptx: str) -> str:
    """Return the optimisation level for PTX of this size, "" for ptxas's own."""
    if ptx.count(_BLOCK_LABEL) > _MANY_BLOCKS:
        return _FEWEST_OPTIMISATIONS
    return _FEWER_OPTIMISATIONS if ptx.count(";\n") > _MANY_INSTRUCTIONS else ""


def _without_crash(run: Callable[..., Assembly], error: CrashError) -> Assembly:
    """Assemble in another way, or at the highest level without a crash.

    Raises: the `error` if there is none.
    """
    with contextlib.suppress(CrashError):
        return run(_OTHER_ALLOCATION)
    for level in _LOWER_LEVELS:
        with contextlib.suppress(CrashError):
            return replace(run(level), level=level, crash=fall_back(error))
    raise error


def fall_back(error: CrashError) -> str:
    """Return the failure of ptxas at its usual level.

    Tests, fuzzers and the soak count it as a failure: the PTX contains something ptxas cannot
    handle.
    """
    return error.reason


def _local_bytes(assembly: Assembly) -> int:
    return assembly.local_bytes


def _registers_for_one_cta(ptx: str) -> int:
    """Return how many registers a thread could have if its CTA had an SM to itself.

    0 if the entry states its number of registers, or of CTAs per SM.
    """
    if _BOUNDED.search(ptx):
        return 0
    threads = _THREADS.search(ptx)
    share = _REGISTERS_PER_SM // int(threads[1]) if threads else _REGISTERS_PER_SM
    return min(_MAX_REGISTERS, share // _REGISTER_UNIT * _REGISTER_UNIT)


def disassemble(
    cubin: bytes,
    *,
    with_lines: bool = False,
    is_whole: bool = False,
    with_registers: bool = False,
    timeout_seconds: float = _DEFAULT_TIMEOUT_SECONDS,
) -> str:
    """Return the SASS of a cubin, one instruction per line; `with_lines` adds source lines.

    With `is_whole` all sections are printed, not only code, and lines come with their calls. With
    `with_registers`, each instruction has its number of live registers, and there are no lines.

    Raises: IRError if it is not a cubin.
    """
    nvdisasm = find_file("nvidia-cuda-nvdisasm", "bin/nvdisasm")
    options = [
        *([] if is_whole else ["-c"]),
        *([f"-g{'i' if is_whole else ''}"] if with_lines else []),
        *(["-lrm", "count"] if with_registers else []),
    ]
    with _make_folder() as folder:
        source = Path(folder, "kernel.cubin")
        try:
            source.write_bytes(cubin)
        except OSError as error:
            raise host_error(error, f"cannot write to {folder}") or error from None
        # Its data-flow analysis takes a third of the time, and only finds targets of indirect jumps.
        for data_flow in (["-ndf"], []):
            command = [str(nvdisasm), *options, *data_flow, source.name]
            status, report = _run(command, folder, timeout_seconds)
            if status != 0:
                raise IRError(f"nvdisasm failed: {report.strip()}")
            if not _INDIRECT_JUMP.search(report):
                break
    return report


def version_text() -> str:
    """Return how ptxas names its version, such as "V13.5.37".

    Raises: HostError if it is missing or cannot be started, IRError if it says something else.
    """
    ptxas = find_ptxas(DEFAULT_TOOLCHAIN)
    with _make_folder() as folder:
        status, report = _run([str(ptxas), "--version"], folder, _VERSION_TIMEOUT_SECONDS)
    match = re.search(r"\bV[0-9.]+", report)
    if status != 0 or match is None:
        raise IRError(f"ptxas --version failed: {report.strip()}")
    return match[0]


def _run(command: Sequence[str], folder: str, timeout_seconds: float) -> tuple[int, str]:
    """Run a tool; return its exit status and all its output."""
    return _finish(_start(command, folder), timeout_seconds)


def end_tools() -> None:
    """End every running tool: this process is about to end, without unwinding."""
    for process in list(_running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _start(command: Sequence[str], folder: str) -> subprocess.Popen[str]:
    # The user's come last: the last of two equal settings counts.
    tunables = os.environ.get("GLIBC_TUNABLES")
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "GLIBC_TUNABLES": f"{_HEAP}:{tunables}" if tunables else _HEAP},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        doing = f"{Path(command[0]).name} cannot be started"
        raise host_error(error) or IRError(f"{doing}: {error}") from error
    _running.add(process)
    return process


def _bound_memory(process: subprocess.Popen[str], mebibytes: int) -> None:
    """Limit a tool's memory, where the system can: beyond the limit its allocations fail.

    It is waiting for its input, so it has allocated nothing yet.
    """
    if hasattr(resource, "prlimit"):
        limit = mebibytes << 20
        with contextlib.suppress(OSError, ValueError):  # it has ended, or has a lower limit already
            resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))


def _finish(
    process: subprocess.Popen[str], timeout_seconds: float, text: str = ""
) -> tuple[int, str]:
    """Send a tool its input; return its exit status and all its output."""
    try:
        report, _ = process.communicate(text, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        name = Path(str(process.args[0] if isinstance(process.args, list) else process.args)).name
        raise OverLimitError(f"{name} did not end within {timeout_seconds:g} seconds") from None
    finally:
        _end(process)
    return process.returncode, report


def _end(process: subprocess.Popen[str]) -> None:
    """End a tool and its children if they run, also on an interrupt."""
    _running.discard(process)
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
        match = _ERROR_LINE.search(text)
        if match and 1 <= int(match[1]) <= len(lines):
            parts.append(f"  {match[1]}: {lines[int(match[1]) - 1].strip()}")
    return "\n".join(parts)


def _largest(pattern: re.Pattern[str], report: str) -> int:
    return max((int(number) for number in pattern.findall(report)), default=0)
