"""A case through aotc: translated by its frontend, run by its interpreter of tile IR."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from aotc.frontend.translate import translate
from aotc.ir.diagnostics import CompileError
from aotc.verify.interpreter.run import run
from tests.oracle.cases import NAMES, RESULTS, Case, Outcome, Refused, Result, source
from tests.oracle.values import NUMPY, SIGNATURE_NAMES


def answer(case: Case, expected: Outcome, folder: Path) -> Outcome:
    """Run a case; it is refused if its results lack the types and shapes of `expected`.

    The kernel is written into `folder`.
    """
    results = () if isinstance(expected, Refused) else expected
    path = folder / "case.py"
    path.write_text(source(case, _ending(results)))
    signature = {
        f"{name}_ptr": f"*{SIGNATURE_NAMES[operand.dtype]}"
        for names, group in ((NAMES, case.inputs), (RESULTS, results))
        for name, operand in zip(names, group, strict=False)
    }
    unused = RESULTS[len(results) : case.num_results]
    signature |= {f"{name}_ptr": "*i8" for name in unused}
    try:
        kernel = translate(str(path), "k", signature, {}).kernel
    except CompileError as error:
        return Refused(error.message)
    outs = [np.zeros(max(1, math.prod(operand.shape)), NUMPY[operand.dtype]) for operand in results]
    inputs = [operand.values.copy() for operand in case.inputs]
    with np.errstate(all="ignore"):
        run(kernel, (1,), [*inputs, *outs, *(np.zeros(1, np.int8) for _ in unused)])
    return tuple(
        Result(operand.dtype, operand.shape, out)
        for operand, out in zip(results, outs, strict=True)
    )


def _ending(results: tuple[Result, ...]) -> list[str]:
    lines: list[str] = []
    for name, expected in zip(RESULTS, results, strict=False):
        message = f"{name} is {expected.dtype} of shape {expected.shape}"
        lines.append(f'tl.static_assert({name}.dtype == tl.{expected.dtype}, "{message}")')
        if not expected.shape:
            lines.append(f"tl.store({name}_ptr, {name})")
            continue
        count = math.prod(expected.shape)
        lines += [
            f'tl.static_assert(len({name}.shape) == {len(expected.shape)}, "{message}")',
            *(
                f'tl.static_assert({name}.shape[{axis}] == {extent}, "{message}")'
                for axis, extent in enumerate(expected.shape)
            ),
            f"tl.store({name}_ptr + tl.arange(0, {count}), tl.reshape({name}, [{count}]))",
        ]
    return lines
