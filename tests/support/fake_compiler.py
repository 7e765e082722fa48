"""A compiler of empty kernels: fails on demand, and is as quick as ptxas.

A kernel's constexpr `MODE` selects "ok" or one of the failures below. The cubins are real, since
an archive checks its input. In a module of its own because worker processes import the compiler by
name.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aotc.compiler import CompiledKernel, CompileRequest
from aotc.ir.diagnostics import CompileError, Loc, ResourceError
from aotc.metadata import Metadata, ParamSlot
from aotc.source_snapshot import read_source

_SIZES = {"i8": 1, "i32": 4, "i64": 8, "fp32": 4, "fp64": 8}


def find_ptxas() -> Path:
    """Return the assembler of the installed wheel."""
    paths = [path for entry in sys.path for path in Path(entry).glob("nvidia/cu13/bin/ptxas")]
    return paths[0]


@functools.cache
def make_cubin(target: str, symbol: str, num_args: int) -> bytes:
    """Return the cubin of an empty kernel."""
    args = ", ".join(f".param .u64 p{index}" for index in range(num_args))
    text = f".version 8.8\n.target {target}\n.address_size 64\n"
    text += f".visible .entry {symbol}({args}) {{ ret; }}\n"
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "k.ptx", Path(folder) / "k.cubin"
        source.write_text(text)
        command = [find_ptxas(), "-arch", target, source, "-o", cubin]
        subprocess.run(command, check=True, capture_output=True)
        return cubin.read_bytes()


def _source_files(request: CompileRequest) -> tuple[tuple[str, str], ...]:
    content = read_source(request.source)
    return ((request.source, hashlib.sha256(content).hexdigest()),)


def compile_empty(request: CompileRequest) -> CompiledKernel:
    """Return an empty kernel for the request, or fail as its `MODE` says."""
    constants = dict(request.constants)
    mode = constants.get("MODE", "ok")
    if mode == "user_error":
        raise CompileError("expected a tile, got a list", Loc(request.source, 1, 0, 3))
    if mode == "misfit":
        error = ResourceError("3 moons, the limit is 1", remedy="fewer moons")
        error.source_files = _source_files(request)
        raise error
    live = int(str(constants.get("LIVE", 0)))
    if live > request.limits.live_registers:
        raise ResourceError(f"{live} registers are live", remedy="fewer")
    if mode == "bug":
        raise ZeroDivisionError("ours")
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
    if mode == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if mode == "no memory":
        raise MemoryError
    if mode == "abort":
        os.abort()
    if mode == "slow":
        time.sleep(60)
    params: list[ParamSlot] = []
    offset = 0
    for name, text in request.signature:
        if "=" in text:
            continue
        size = 8 if text.startswith("*") else _SIZES[text.partition(":")[0]]
        offset = -(-offset // size) * size
        params.append(ParamSlot(name, text, offset, size))
        offset += size
    symbol = f"{request.kernel}_empty"
    metadata = Metadata(
        name=request.kernel,
        symbol=symbol,
        target=request.target,
        num_threads=32 * request.config.num_warps,
        num_ctas=request.config.num_ctas,
        shared_bytes=int(str(constants.get("SHARED", 0))),
        static_shared_bytes=0,
        registers=8,
        spill_bytes=int(str(constants.get("SPILL", 0))),
        stack_bytes=int(str(constants.get("STACK", 0))),
        params=tuple(params),
        remarks=(f"{request.source}:1:1: nothing to do",),
        ptxas_warnings=("(C7510) wgmma is serialized",) if mode == "serialized" else (),
        source_files=_source_files(request),
        wgmma_hazard=f"{request.source}:1:1: too early" if mode == "hazard" else "",
        ptxas_crash=f"{request.source}:1:1: assembled with -O1" if mode == "crash" else "",
    )
    return CompiledKernel(make_cubin(request.target, symbol, len(params)), metadata, {})
