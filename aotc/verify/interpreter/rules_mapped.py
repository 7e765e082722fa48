"""Rules for elementwise user functions: on whole arrays, or one element at a time with loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotc.ir.core import Op
from aotc.ir.dialects.mapped import Map
from aotc.ir.effects import Trait
from aotc.ir.types import element_of
from aotc.verify.arrays import Array, reshape
from aotc.verify.interpreter.numerics import dtype_of
from aotc.verify.interpreter.program import Program, Rule


def _map(program: Program, op: Map, *inputs: Array) -> list[Array]:
    shape = np.broadcast_shapes(*(value.shape for value in inputs))
    size, pack = int(np.prod(shape)), op.pack
    flat = [reshape(np.ascontiguousarray(np.broadcast_to(array, shape)), -1) for array in inputs]
    rows = [reshape(np.pad(array, (0, -size % pack), mode="edge"), -1, pack) for array in flat]
    args = [row[:, position] for row in rows for position in range(pack)]
    count = len(args[0])
    if any(inner.has(Trait.LOOP) for inner in op.body.walk()):
        # Trip counts differ by element.
        runs = [
            program.run_block(op.body, [np.asarray(array[row_index]) for array in args])
            for row_index in range(count)
        ]
        yielded: Sequence[Array] = [np.stack(column) for column in zip(*runs, strict=True)]
    else:
        yielded = program.run_block(op.body, args)
    outs: list[Array] = []
    for index, out in enumerate(op.outs):
        elements = np.empty((count, pack), dtype_of(element_of(out.type)))
        for position in range(pack):
            elements[:, position] = yielded[index * pack + position]
        outs.append(reshape(reshape(elements, -1)[:size], shape))
    return outs


MAP_RULES: dict[type[Op], Rule] = {Map: _map}
