"""Specialisation of a launch: types, promises, constants; as text, and as manifest rows.

Types follow Triton's inference: an `int` is i32 if it fits, a `float` fp32, a tensor a pointer to
its dtype. Constants are compared with their types: `True`, 1 and 1.0 are distinct.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

from aotc.runtime import NotFoundError
from aotc.triton.archives import extract_identity, identity, manifest_name
from aotc.triton.extract import has_other_source
from aotc.tuple_constant import tuple_of, tuple_text

if TYPE_CHECKING:
    from typing_extensions import Self

# By the name of a torch dtype, or the typestr of __cuda_array_interface__ without its byte order.
_DTYPES = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5", "bool": "i1", "int1": "i1",
    **{f"{kind}int{bits}": f"{kind or 'i'}{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)},
    "f2": "fp16", "f4": "fp32", "f8": "fp64", "b1": "i1",
    **{f"{kind}{bits // 8}": f"{kind}{bits}" for kind in "iu" for bits in (8, 16, 32, 64)},
}  # fmt: skip
_SPELLINGS = {
    "int1": "i1",
    **{
        f"{kind}int{bits}": f"{kind or 'i'}{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)
    },
}
# Annotations fixing a parameter's type, as in Triton.
TYPE_NAMES = frozenset((*_DTYPES, *_DTYPES.values(), "int", "float", "half", "double"))
SCALARS = frozenset(_DTYPES.values())
_MULTIPLE = 16


class NotInArchiveError(NotFoundError):
    """No archive has a kernel for a launch; the text lists manifest rows to cover it."""


class Described(tuple[Any, tuple[int, ...], tuple[int, ...]]):  # noqa: SLOT001 - it has a field
    """A host descriptor as the loader takes it: (tensor, shape, strides).

    `block` has the block's extents, and whether it reads NaN out of bounds.
    """

    block: tuple[tuple[int, ...], bool]

    def __new__(cls, descriptor: Any) -> Self:
        """Convert a `TensorDescriptor`."""
        shape, strides = tuple(map(int, descriptor.shape)), tuple(map(int, descriptor.strides))
        self = super().__new__(cls, (descriptor.base, shape, strides))
        fills_nan = getattr(descriptor, "padding", "zero") == "nan"
        self.block = (tuple(map(int, descriptor.block_shape)), fills_nan)
        return self


def is_descriptor(value: Any) -> bool:
    """Return whether a value is a `TensorDescriptor` of Triton's host."""
    return hasattr(value, "block_shape") and all(
        hasattr(value, name) for name in ("base", "shape", "strides")
    )


def items_of(value: Any) -> tuple[Any, ...] | None:
    """Return the items of a tuple, None of anything else."""
    if isinstance(value, tuple) and not isinstance(value, Described):
        return cast("tuple[Any, ...]", value)
    return None


def is_pointer(value: Any) -> bool:
    """Return whether a launch takes a value as memory."""
    return any(
        hasattr(value, name) for name in ("data_ptr", "__cuda_array_interface__", "__dlpack__")
    )


def dtype_of(value: Any) -> str:
    """Return the manifest's name of memory's dtype, or its own name."""
    dtype = getattr(value, "dtype", None)
    if dtype is None and hasattr(value, "__cuda_array_interface__"):
        dtype = str(value.__cuda_array_interface__["typestr"])[1:]
    return dtype_word(str(dtype).rpartition(".")[2])


def dtype_word(name: str) -> str:
    """Return the manifest's name of a dtype, or the name itself."""
    return _DTYPES.get(name, name)


def address_of(value: Any) -> int | None:
    """Return the address of memory, None if unknown."""
    if hasattr(value, "data_ptr"):
        return int(value.data_ptr())
    if hasattr(value, "__cuda_array_interface__"):
        return int(value.__cuda_array_interface__["data"][0] or 0)
    return None


def scalar_type(value: Any) -> str:
    """Return the type Triton infers for a number, "" for other values."""
    if type(value).__name__ == "constexpr":
        value = value.value
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, float):
        return "fp32"
    if not isinstance(value, Integral):  # not `__index__`: tensors have it too
        return ""
    number = int(value)
    if -(1 << 31) <= number < 1 << 31:
        return "i32"
    return "i64" if number < 1 << 63 else "u64"


def constant(value: Any) -> Any:
    """Return a constant in archive form: a value, a dtype's name, a tuple, or a function's key."""
    if type(value).__name__ == "constexpr":
        value = value.value
    if isinstance(value, Enum):
        value = value.value
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return None if value == "None" else value  # the manifest's spelling
    if type(value).__name__ == "dtype":  # Triton's and NumPy's have a name, torch's is its text
        return dtype_word(getattr(value, "name", None) or str(value).rpartition(".")[2])
    if isinstance(value, tuple):
        return tuple(constant(item) for item in cast("tuple[Any, ...]", value))
    function = getattr(value, "fn", None)
    if hasattr(function, "__code__"):
        return identity(function)
    return int(value) if isinstance(value, Integral) else value


def is_function(value: Any) -> bool:
    """Return whether a launch passes a function: one of Triton's, not Python's."""
    return hasattr(getattr(value, "fn", None), "__code__")


def is_same_constant(passed: Any, built: Any) -> bool:
    """Return whether a launch's constant equals a kernel's."""
    if is_function(passed) and isinstance(built, tuple):
        return built in (identity(passed.fn), extract_identity(passed))
    is_dtype = type(getattr(passed, "value", passed)).__name__ == "dtype"
    items = items_of(getattr(passed, "value", passed))
    if items is not None and isinstance(built, str):
        parts = _tuple_of(built)
        same = map(is_same_constant, items, parts or ())
        return parts is not None and len(items) == len(parts) and all(same)
    passed, built = constant(passed), constant(built)
    if isinstance(built, str):
        # A manifest may write a dtype as Python does: torch.bfloat16, tl.bfloat16.
        built = dtype_word(built.rpartition(".")[2]) if is_dtype else built
        built = _SPELLINGS.get(built, built)
    return type(passed) is type(built) and passed == built


_tuple_of = lru_cache(None)(tuple_of)


# ---- as text -----------------------------------------------------------------------------------


def _function_text(value: Any) -> str:
    function = getattr(value, "fn", value)
    return f"{function.__code__.co_filename}:{function.__qualname__}"


def argument_type(value: Any, function_text: Callable[[Any], Any] = _function_text) -> str:
    """Return an argument's type with its promises, in the syntax of signatures.

    Functions (possible as items of tuples) are named by `function_text`.
    """
    if value is None:
        return "none"
    items = items_of(value)
    if items is not None:
        fields = [f"{label}: " for label in getattr(value, "_fields", ())] or [""] * len(items)
        pairs = zip(fields, items)  # noqa: B905 - as many
        parts = [field + argument_type(element, function_text) for field, element in pairs]
        return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
    if is_descriptor(value):
        value = Described(value)
    if isinstance(value, Described):
        extents, fills_nan = value.block
        block = ",".join(map(str, extents))
        return f"tensordesc<{dtype_of(value[0])}[{block}]{',nan' * fills_nan}>"
    if is_pointer(value):
        address = address_of(value)
        return f"*{dtype_of(value)}" + ":16" * (address is not None and address % _MULTIPLE == 0)
    kind = scalar_type(value)
    if not kind:
        is_function = hasattr(getattr(value, "fn", value), "__code__")
        return str(function_text(value)) if is_function else type(value).__name__
    if type(value).__name__ == "constexpr":  # a constant item of a tuple
        return f"{kind}={_toml(value.value)}"
    if kind in ("i1", "fp32"):
        return kind
    return f"{kind}=1" if value == 1 else kind + ":16" * (value % _MULTIPLE == 0)


def _constant_text(value: Any) -> Any:
    if hasattr(value, "fn"):
        return manifest_name(value.fn)
    return tuple_text(constant(value)) or constant(value)


def unsaid(jitted: Any, passed: Mapping[str, Any], constexprs: frozenset[str]) -> str:
    """Return the part of a launch a manifest cannot express, "" if none."""
    function = jitted.fn
    if has_other_source(jitted):
        return f"{function.__qualname__} was given another source; aotc record extracts it"
    captured = ", ".join(function.__code__.co_freevars)
    if captured:
        return f"{function.__qualname__} captures {captured}; aotc record extracts it"
    if not os.path.isfile(function.__code__.co_filename):  # noqa: PTH113 - start-up time
        return f"{function.__qualname__} has no file; aotc record extracts it"
    for name, value in passed.items():
        is_said = _is_constant_said(value) if name in constexprs else _is_type_said(value)
        if not is_said:
            return f"{name} is {value!r}"[:200]
    return ""


def _is_constant_said(value: Any) -> bool:
    if is_function(value):
        return not value.fn.__code__.co_freevars
    said = constant(value)
    if isinstance(said, tuple) and not hasattr(value, "_fields"):
        return all(map(_is_constant_said, cast("tuple[Any, ...]", value)))
    return said is None or isinstance(said, (bool, int, float, str))


def _is_type_said(value: Any) -> bool:
    if value is None or scalar_type(value) or is_function(value):
        return True
    items = items_of(value)
    if items is not None:
        return all(map(_is_type_said, items))
    memory: Any = value
    if isinstance(value, Described):
        memory = value[0]
    elif is_descriptor(value):
        memory = value.base
    return is_pointer(memory) and dtype_of(memory) in SCALARS


def _function_value(value: Any, function: Any) -> str:
    """Return a manifest's name of a function constant, relative to the kernel's file."""
    file, kernel_file = value.fn.__code__.co_filename, function.__code__.co_filename
    name = manifest_name(value.fn)
    if file == kernel_file and "." not in name:
        return name
    return f"{os.path.relpath(file, os.path.dirname(kernel_file))}:{name}"  # noqa: PTH120 - start-up time


def not_in_archive(
    jitted: Any,
    constexprs: frozenset[str],
    passed: Mapping[str, Any],
    options: Mapping[str, Any],
    reason: str,
) -> NotInArchiveError:
    """Return the error for a missing launch: kernel, specialisation, manifest rows."""
    function = jitted.fn
    arguments = {name: argument_type(v) for name, v in passed.items() if name not in constexprs}
    constants = {name: _constant_text(v) for name, v in passed.items() if name in constexprs}
    requested = {name: value for name, value in options.items() if value is not None}
    defaults = {
        "enable_fp_fusion": True,
        "enable_reflect_ftz": True,
        "launch_cooperative_grid": False,
    }
    passed_switches = {name: bool(requested.pop(name, value)) for name, value in defaults.items()}
    switches = {name: on for name, on in passed_switches.items() if on != defaults[name]}
    words = [f"{name}: {text}" for name, text in arguments.items()]
    words += [f"{name}={value!r}" for name, value in constants.items()]
    shown = {**requested, **switches}
    settings = ", ".join(f"{name}={value}" for name, value in shown.items())
    text = (
        f"{function.__module__}.{function.__qualname__}({', '.join(words)})"
        f"{f' with {settings}' if settings else ''} is in no archive: {reason}\n"
    )
    problem = unsaid(jitted, passed, constexprs)
    rows: list[str] = []
    if problem:
        text += f"no row of a manifest can cover it: {problem}"
    else:
        functions = {
            name: _function_value(value, function)
            for name, value in passed.items()
            if name in constexprs and is_function(value)
        }
        rows = _rows(function, arguments, {**constants, **functions}, requested, switches)
        text += "these rows of a manifest would cover it:\n" + "\n".join(f"  {row}" for row in rows)
    error = NotInArchiveError(text)
    error.kernel = function.__qualname__
    error.got, error.remedy = ", ".join(words), "\n".join(rows)
    return error


def _rows(
    function: Any,
    arguments: Mapping[str, str],
    constants: Mapping[str, Any],
    config: Mapping[str, Any],
    switches: Mapping[str, bool],
) -> list[str]:
    rows = ["[[kernel]]"]
    rows += [f"source = {_toml(f'{function.__code__.co_filename}:{manifest_name(function)}')}"]
    rows += [f"{name} = {_toml(is_on)}" for name, is_on in switches.items()]
    rows += ["[kernel.signature]", *(f"{name} = {_toml(text)}" for name, text in arguments.items())]
    if constants:
        rows += ["[kernel.constants]", *(f"{k} = {_toml(v)}" for k, v in constants.items())]
    if config:
        rows += ["[[kernel.config]]", *(f"{name} = {_toml(v)}" for name, v in config.items())]
    return rows


def _toml(value: Any) -> str:
    if isinstance(value, float) and value - value != 0:
        return str(value)  # inf, -inf, nan
    return json.dumps(value if isinstance(value, (bool, int, float, str)) else str(value))
