"""What aotc makes of a case: its frontend translates it, its interpreter runs the tile IR."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from aotc.frontend.translate import translate
from aotc.ir.diagnostics import CompileError
from aotc.verify.interpreter.run import run
from tests.oracle.cases import NAMES, RESULTS, Case, Outcome, Refused, Result, source
from tests.oracle.values import NUMPY, SIGNATURE_NAMES


def answer(case: Case, wanted: Outcome, folder: Path) -> Outcome:
    """Return the results of a case, which is refused if they lack the types and shapes of `wanted`.

    The kernel is written into `folder`.
    """
    results = () if isinstance(wanted, Refused) else wanted
    path = folder / "case.py"
    path.write_text(source(case, _ending(results)))
    signature = {
        f"{name}_ptr": f"*{SIGNATURE_NAMES[each.dtype]}"
        for names, group in ((NAMES, case.inputs), (RESULTS, results))
        for name, each in zip(names, group, strict=False)
    }
    unused = RESULTS[len(results) : case.num_results]
    signature |= {f"{name}_ptr": "*i8" for name in unused}
    try:
        kernel = translate(str(path), "k", signature, {}).kernel
    except CompileError as error:
        return Refused(error.message)
    outs = [np.zeros(max(1, math.prod(each.shape)), NUMPY[each.dtype]) for each in results]
    inputs = [each.values.copy() for each in case.inputs]
    with np.errstate(all="ignore"):
        run(kernel, (1,), [*inputs, *outs, *(np.zeros(1, np.int8) for _ in unused)])
    return tuple(
        Result(each.dtype, each.shape, out) for each, out in zip(results, outs, strict=True)
    )


def _ending(results: tuple[Result, ...]) -> list[str]:
    lines: list[str] = []
    for name, each in zip(RESULTS, results, strict=False):
        what = f"{name} is {each.dtype} of shape {each.shape}"
        lines.append(f'tl.static_assert({name}.dtype == tl.{each.dtype}, "{what}")')
        if not each.shape:
            lines.append(f"tl.store({name}_ptr, {name})")
            continue
        count = math.prod(each.shape)
        lines += [
            f'tl.static_assert(len({name}.shape) == {len(each.shape)}, "{what}")',
            *(
                f'tl.static_assert({name}.shape[{axis}] == {extent}, "{what}")'
                for axis, extent in enumerate(each.shape)
            ),
            f"tl.store({name}_ptr + tl.arange(0, {count}), tl.reshape({name}, [{count}]))",
        ]
    return lines
