"""Take kernels over pointers through the passes up to `map_pointers`, and interpret them."""

from __future__ import annotations

import numpy as np

from aotc.compiler import CompileRequest
from aotc.config import Config
from aotc.frontend import translate
from aotc.ir.core import Kernel
from aotc.ir.expression import evaluate, parse
from aotc.ir.text import parse_kernel, print_kernel
from aotc.ir.verify import verify
from aotc.schedule.cleanup.eliminate_common import eliminate_common
from aotc.schedule.cleanup.simplify import simplify
from aotc.schedule.context import Schedule
from aotc.schedule.layout.legalize_dots import legalize_dots
from aotc.schedule.tensor_maps.map_pointers import map_pointers
from aotc.target import TARGETS
from aotc.verify.interpreter.run import run
from tests.support.pointer_kernels import Launch


def mapped(
    request: CompileRequest, *, without: tuple[str, ...] = (), map_them: bool = True
) -> tuple[Kernel, Schedule]:
    """Return a kernel after the pass under test, and its schedule with the remarks."""
    signature, constants = dict(request.signature), dict(request.constants)
    kernel = translate(request.source, request.kernel, signature, constants).kernel
    target = TARGETS[request.target].excluding(without)
    schedule = Schedule(target, Config(request.config.num_warps), map_pointers=map_them)
    for run_pass in (simplify, legalize_dots, eliminate_common, map_pointers):
        run_pass(kernel, schedule)
        verify(kernel)
    text = print_kernel(kernel)
    assert print_kernel(parse_kernel(text)) == text
    return kernel, schedule


def remarks_on(name: str, schedule: Schedule) -> list[str]:
    """Return the remarks on an argument, without their source positions."""
    texts = [remark.partition(": ")[2] for remark in schedule.remarks]
    return [text for text in texts if text.startswith(name)]


def allows(kernel: Kernel, args: dict[str, object]) -> bool:
    """Return whether a launch satisfies the guards of a kernel."""
    numbers = {name: value for name, value in args.items() if isinstance(value, int)}
    return all(evaluate(parse(guard), numbers) for guard in kernel.guards)


def interpret(kernel: Kernel, launch: Launch) -> np.ndarray:
    """Run a kernel; return its output."""
    out = launch.args["out_ptr"].copy()
    names = dict.fromkeys(info.argument for info in kernel.params)
    args = [out if name == "out_ptr" else launch.args[name] for name in names]
    run(kernel, launch.grid, args)
    return out
