"""Guard a tensor argument used through a descriptor."""

from __future__ import annotations

from aotc.ir import expression
from aotc.ir.types import SCALARS
from aotc.package.archive.index import Guard
from aotc.package.manifest.argument_type import PROMISED_DIVISOR, ArgumentType
from aotc.package.manifest.spec import KernelSpec


def tensor_guard(kernel: KernelSpec, name: str, *, has_whole_rows: bool) -> Guard:
    """Return the guard for a tensor used through a descriptor.

    TMA writes 16 bytes at a time, even beyond the end of a row (measured on an H200). So a tensor
    that is stored to must have whole rows of 16 bytes. Loads end with the row.
    """
    argument = kernel.signature[name]
    last = len(argument.block) - 1
    dense = f"({name}.strides[{last}] == 1 or {name}.shape[{last}] == 1)"
    condition = f"{name} % {PROMISED_DIVISOR} == 0 and {dense}"
    text = f"{name} is {PROMISED_DIVISOR}-byte aligned, its last axis dense"
    if has_whole_rows:
        elems = PROMISED_DIVISOR // _smallest_bytes(kernel, argument)
        condition += f" and {name}.shape[{last}] % {elems} == 0"
        text += f" and a multiple of {elems} elements"
    return Guard(expression.parse(condition), text, is_promise=True)


def _smallest_bytes(kernel: KernelSpec, argument: ArgumentType) -> int:
    """Return the bytes of an element, the smallest for a type variable."""
    names = kernel.types.get(argument.element, (argument.element,))
    return min(SCALARS[name].size_bytes for name in names)
