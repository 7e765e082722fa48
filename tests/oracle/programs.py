"""Random programs through both interpreters: the tile IR through aotc's, its source through Triton's.

`python -m tests.oracle.record --programs 500` runs the first 500 seeds of `tests/fuzz`. The source is
written from the tile IR. `docs/internals/fuzzing.md` compares that source with aotc's own frontend; this
module compares it with an independent one. Programs with ops unknown to Triton's interpreter
(descriptors, libdevice, assembly) are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from aotc.ir.dialects import arith, assembly, descriptor
from aotc.ir.types import DescriptorType, PointerType, ScalarType
from aotc.verify.interpreter.run import run
from tests.fuzz import launch
from tests.fuzz.arguments import Scalar
from tests.fuzz.check import differences
from tests.fuzz.programs import Program, from_seed
from tests.fuzz.source import Unwritable, write_source
from tests.oracle import interpreted
from tests.oracle.values import SIGNATURE_NAMES

_LANGUAGE_NAMES = {ours: theirs for theirs, ours in SIGNATURE_NAMES.items()}


_LIMITS: tuple[tuple[type[Exception], str, str], ...] = (
    (IndexError, "is out of bounds for axis", "a gather beyond the tile, undefined to Triton"),
    (AssertionError, "block offset start must be", "a block that begins between 16 bytes"),
    (AssertionError, "must be 16-byte aligned", "a tensor that begins between 16 bytes"),
    (ValueError, "must have at least 16 bytes", "a block of truth values"),
    (AssertionError, "only int8 supported", "a dot of uint8"),
    (AssertionError, "input_precision must be one of", "a dot of bf16 parts"),
)
"""Errors of Triton's interpreter alone, not of its compiler."""


class PassedOver(Exception):  # noqa: N818 - what the program is
    """Report a program with ops unknown to Triton's interpreter."""


def compare_seeds(seeds: Iterable[int]) -> int:
    """Run the programs of `seeds`; print the differences. Return the exit status."""
    counts: Counter[str] = Counter()
    with TemporaryDirectory() as folder:
        for seed in seeds:
            try:
                wrong = disagreement(from_seed(seed), Path(folder))
            except PassedOver as reason:
                counts[f"passed over: {reason}"] += 1
                continue
            counts["differ" if wrong else "agree"] += 1
            if wrong:
                print(f"seed {seed}: {wrong}")
    print(dict(counts.most_common()))
    return 1 if counts["differ"] else 0


def disagreement(program: Program, folder: Path) -> str | None:
    """Describe the interpreters' difference on a program, or return None. Raises: PassedOver."""
    kernel = program.kernel()
    try:
        text = write_source(kernel)
    except Unwritable as reason:
        raise PassedOver("not writable") from reason
    symbols = ("__nv_fmaxf", "__nv_fminf")
    for op in kernel.walk():
        if isinstance(op, arith.Libdevice) and op.symbol not in symbols:
            raise PassedOver("libdevice")
        if isinstance(op, assembly.Assembly):
            raise PassedOver("assembly")
        if isinstance(op, descriptor.DescriptorReduce):
            raise PassedOver("a reduction into a tensor")
    expected, actual = program.make(), program.make()
    with np.errstate(all="ignore"):
        run(kernel, program.grid, launch.arguments(kernel, expected))
    try:
        handles = [
            _handle(actual[info.argument], value.type)
            for info, value in zip(kernel.params, kernel.body.args, strict=True)
        ]
        interpreted.run_source(text, kernel.name, folder, handles, program.grid)
    except Exception as error:  # any error is a finding
        cause = error.__cause__ or error
        for kind, words, reason in _LIMITS:
            if isinstance(cause, kind) and words in str(cause):
                raise PassedOver(reason) from error
        return f"Triton refuses: {type(cause).__name__}: {cause}".splitlines()[0]
    for argument in program.arguments:
        if isinstance(argument, Scalar):
            continue
        want, have = (np.asarray(arrays[argument.name]) for arrays in (expected, actual))
        wrong = differences(argument, want.reshape(-1), have.reshape(-1))
        if wrong.size:
            index = int(wrong[0])
            values = f"{want.reshape(-1)[index]!r}, Triton has {have.reshape(-1)[index]!r}"
            return f"{argument.name}[{index}] is {values}; {wrong.size} of {want.size} differ"
    return None


def _handle(value: Any, kind: Any) -> Any:
    if isinstance(kind, DescriptorType):
        return _descriptor(value, kind)
    if isinstance(kind, PointerType):
        return interpreted.pointer(value, _LANGUAGE_NAMES[kind.pointee.name])
    assert isinstance(kind, ScalarType)
    dtype = getattr(tl, _LANGUAGE_NAMES[kind.name])
    data = np.array([value], interpreter._get_np_dtype(dtype))
    return tl.tensor(interpreter.TensorHandle(data, dtype), dtype)


def _descriptor(array: Any, kind: DescriptorType) -> Any:
    dtype = _LANGUAGE_NAMES[kind.element.name]
    strides = [stride // array.itemsize for stride in array.strides[:-1]]
    number = interpreter.interpreter_semantic.to_tensor
    return interpreter.interpreter_semantic.make_tensor_descriptor(
        base=interpreted.pointer(array, dtype),
        shape=[number(extent) for extent in array.shape],
        strides=[*(number(stride) for stride in strides), tl.constexpr(1)],
        block_shape=[tl.constexpr(extent) for extent in kind.block],
        padding_option="nan" if kind.fill_nan else "zero",
    )
