"""Compile-time values of the code around kernels.

Inside a kernel a constant is a plain Python object. Globals, defaults and configurations have more
kinds: `Constexpr` marks a constant readable in kernels, lists can grow, and `External` stands for a
value known only by running the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from aotc.frontend.emitter import mistake
from aotc.frontend.values import Argument, Constexpr, External, Operand, is_tuple, show, with_items
from aotc.ir.diagnostics import CompileError, current_loc


def unwrap(value: Operand) -> Operand:
    """Return a constant without its `tl.constexpr`, with lists as tuples."""
    if isinstance(value, Constexpr):
        return unwrap(value.value)
    if is_tuple(value):
        return with_items(value, (unwrap(item) for item in value))
    if isinstance(value, list):
        return tuple(unwrap(item) for item in cast("list[Operand]", value))
    return value


def without_constexpr(value: Operand) -> Operand:
    """Unwrap a `tl.constexpr`, also inside lists; return other values unchanged."""
    return value.value if isinstance(value, Constexpr) else value


def constexpr_like(values: Sequence[Operand], result: Operand) -> Operand:
    """Wrap a result in `tl.constexpr` if one of its operands `values` is one."""
    return Constexpr(result) if any(isinstance(value, Constexpr) for value in values) else result


def truth_of(value: Operand) -> bool:
    """Return the truth of a constant. Raises: CompileError if it is not known."""
    value = without_constexpr(value)
    if isinstance(value, External):
        raise not_known(value)
    if isinstance(value, int | float | str | tuple | list | dict) or value is None:
        return bool(value)  # pyright: ignore[reportUnknownArgumentType]
    return True


def items_of(value: Operand, expected: str) -> Sequence[Operand]:
    """Return the items of a constant. Raises: CompileError, its text starting with `expected`."""
    if is_tuple(value):
        return value
    plain = without_constexpr(value)
    if isinstance(plain, External):
        raise not_known(plain)
    if isinstance(plain, tuple | list | dict | str | range):
        return list(cast("Sequence[Operand]", plain))
    raise mistake(f"{expected}, got {show(value)}")


class MissingKeyError(CompileError):
    """Report a missing key of a dictionary or enumeration; code around kernels may catch it."""


def missing_key(key: Operand) -> MissingKeyError:
    """Return the error for a missing item."""
    return MissingKeyError(f"there is no item {show(key)}", current_loc())


def not_known(value: External) -> CompileError:
    """Return the error for a value known only by running the file."""
    if isinstance(value, Argument):
        return mistake(
            f"the argument {value.path} is known at launch only",
            remedy=f"fix it in the signature, as in {value.path} = 'i32=1', or give what is "
            "computed of it among the constants, choices or configs",
        )
    return mistake(
        f"{value.path} is not known without running the file",
        remedy="give the value as a `tl.constexpr` argument of the kernel, or write it out",
        feature=f"{value.path}, which only running the file would tell",
    )
