"""The language's names: the function, dtype or submodule behind `tl.NAME`, and its parameters.

A function of the language is a plain Python function with the emitter as its first parameter. Its
other parameters have the names and defaults of Triton's documentation, so calls need no second
declaration.

Triton's names missing in aotc are listed, so their error differs from the one for unknown names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language import (
    atomics,
    block_pointers,
    clusters,
    descriptor_maps,
    descriptors,
    dot,
    dot_scaled,
    hints,
    indexing,
    inline_asm,
    libdevice,
    made_descriptors,
    map_elementwise,
    math_functions,
    memory,
    program,
    random_numbers,
    reductions,
    shapes,
    sorting,
    target_info,
)
from aotc.frontend.language.arguments import bind_arguments
from aotc.frontend.language.constants import items_of
from aotc.frontend.language.convert import not_a_value, static_dtype, static_shape
from aotc.frontend.language.language_classes import (
    ConstexprType,
    TupleType,
    class_of,
    language_classes,
    python_class,
)
from aotc.frontend.language.operator_methods import OPERATOR_METHODS
from aotc.frontend.language.python_modules import PYTHON_MODULES
from aotc.frontend.language.records import replaced
from aotc.frontend.language.target_info import TARGET_INFO
from aotc.frontend.values import (
    DTYPE_NAMES,
    Builtin,
    Constexpr,
    External,
    Loop,
    Missing,
    Module,
    Operand,
    Parameters,
    PropagateNan,
    StaticCall,
    Unbound,
    is_descriptor,
    is_tuple,
    show,
)
from aotc.ir.core import Value
from aotc.ir.diagnostics import CompileError, did_you_mean
from aotc.ir.types import SCALARS, VALUE_SCALARS, PointerType, ScalarType, TileType

_HAS_VARARGS = 0x04
_TAKE_DESCRIPTORS = (*descriptors.TAKE_DESCRIPTORS, *descriptor_maps.TAKE_DESCRIPTORS)


def builtin(name: str, run: Callable[..., Operand]) -> Builtin:
    """Describe a function of the language from its Python signature."""
    owner = f"tl.{name}"
    if not isinstance(run, FunctionType):
        return Builtin(name, run, Parameters(owner, (), (), vararg="args"))
    code, defaults = run.__code__, run.__defaults__ or ()
    names = code.co_varnames
    end = code.co_argcount + code.co_kwonlyargcount
    positional, keyword_only = names[1 : code.co_argcount], names[code.co_argcount : end]
    optional = run.__kwdefaults__ or {}
    parameters = Parameters(
        owner,
        positional,
        (
            *positional[: len(positional) - len(defaults)],
            *(parameter for parameter in keyword_only if parameter not in optional),
        ),
        keyword_only,
        vararg=names[end] if code.co_flags & _HAS_VARARGS else "",
    )
    return Builtin(name, run, parameters)


def call_builtin(
    emit: Emitter, function: Builtin, args: Sequence[Operand], kwargs: Mapping[str, Operand]
) -> Operand:
    """Call a function of the language. Raises: CompileError if the arguments do not fit it."""
    bind_arguments(function.parameters, args, kwargs)
    for operand in (*args, *kwargs.values()):
        if isinstance(operand, Unbound):
            raise mistake(f"an argument of tl.{function.name} {operand.reason}")
        if is_descriptor(operand) and function.run not in _TAKE_DESCRIPTORS:
            raise not_a_value(operand, f"an argument of tl.{function.name}")
    return function.run(emit, *args, **kwargs)


# ---- functions of constants -------------------------------------------------------------------


def _make_constexpr(value: Operand) -> Operand:
    return value.value if isinstance(value, Constexpr) else value


def _python_number(kind: type[int | float]) -> Callable[..., Operand]:
    def convert(value: Operand = 0) -> Operand:
        if isinstance(value, Value):
            target = "tl.int32" if kind is int else "tl.float32"
            raise mistake(
                f"{kind.__name__}() is for constants, got a run-time {show(value)}",
                remedy=f"use .to({target})",
            )
        if not isinstance(value, int | float | str):
            raise mistake(f"{kind.__name__}() takes a number or a string, got {show(value)}")
        try:
            return kind(value)
        except (ValueError, OverflowError) as error:
            raise mistake(f"{kind.__name__}({value!r}) failed: {error}") from error

    return convert


def _length(value: Operand) -> Operand:
    if isinstance(value, tuple | str):
        return len(value)  # pyright: ignore[reportUnknownArgumentType]
    raise mistake(
        f"len() takes a tuple, got {show(value)}", remedy="the extents of a tile are x.shape"
    )


def _tuple_of(items: Operand = ()) -> Operand:
    if not is_tuple(items):
        raise mistake(f"tuple() takes a tuple or a list, got {show(items)}")
    return tuple(items)


def _condition(arg: Operand, disable_licm: Operand = False) -> Operand:  # noqa: FBT002
    """Return the condition of a `while`; the other arguments are loop hints."""
    if not isinstance(disable_licm, bool):
        raise mistake(
            f"the disable_licm of tl.condition must be True or False, got {show(disable_licm)}"
        )
    return arg


def _pointer_type(element_ty: Operand, address_space: Operand = "global") -> Operand:
    del address_space
    pointee = static_dtype(element_ty)
    if not isinstance(pointee, ScalarType):
        raise mistake(f"tl.pointer_type takes a scalar dtype, got {show(pointee)}")
    return PointerType(pointee)


def _block_type(element_ty: Operand, shape: Operand) -> Operand:
    element = static_dtype(element_ty)
    assert not isinstance(element, TileType)
    return TileType(element, static_shape(shape))


def _type(value: Operand) -> Operand:
    return class_of(value, {**_PYTHON_CLASSES, **_CLASSES})


def _tuple_type(types: Operand, fields: Operand = None) -> Operand:
    return TupleType(
        tuple(items_of(types, "tl.tuple_type takes a list of types")),
        None if fields is None else tuple(map(str, items_of(fields, "fields are names"))),
    )


def _get_int_dtype(bitwidth: Operand, signed: Operand = True) -> Operand:  # noqa: FBT002
    name = "i1" if bitwidth == 1 else f"{'i' if signed else 'u'}{bitwidth}"
    if name not in SCALARS:
        raise mistake(f"there is no integer type of {show(bitwidth)} bits")
    return SCALARS[name]


def _next_power_of_2(n: Operand) -> Operand:
    if not isinstance(n, int) or n < 1:
        raise mistake(f"triton.next_power_of_2 takes a positive constant, got {show(n)}")
    return 1 << (n - 1).bit_length()


def _log2(i: Operand) -> Operand:
    if not isinstance(i, int) or i < 1:
        raise mistake(f"tl.standard._log2 takes a positive constant, got {show(i)}")
    return i.bit_length() - 1


def _cdiv_constants(x: Operand, y: Operand) -> Operand:
    if not isinstance(x, int) or not isinstance(y, int) or y == 0:
        raise mistake(
            f"triton.cdiv takes constants, got {show(x)} and {show(y)}", remedy="use tl.cdiv"
        )
    return -(-x // y)


def _math_function(name: str) -> StaticCall:
    function: Callable[..., float] = getattr(math, name)

    def call(*args: Operand) -> Operand:
        try:
            return function(*args)
        except (TypeError, ValueError, OverflowError) as error:
            shown = ", ".join(show(arg) for arg in args)
            raise mistake(
                f"math.{name}({shown}) failed: {error}", remedy=f"on tiles, use tl.{name}"
            ) from error

    return StaticCall(f"math.{name}", call)


# ---- modules ----------------------------------------------------------------------------------

RANGE = Loop(
    "tl.range",
    hints=(
        "num_stages",
        "loop_unroll_factor",
        "disallow_acc_multi_buffer",
        "flatten",
        "warp_specialize",
        "disable_licm",
    ),
)
STATIC_RANGE = Loop("tl.static_range", is_static=True)
PYTHON_RANGE = Loop("range")

_TABLES = (
    math_functions.FUNCTIONS,
    inline_asm.FUNCTIONS,
    map_elementwise.FUNCTIONS,
    shapes.FUNCTIONS,
    memory.FUNCTIONS,
    atomics.FUNCTIONS,
    descriptors.FUNCTIONS,
    descriptor_maps.FUNCTIONS,
    made_descriptors.FUNCTIONS,
    block_pointers.FUNCTIONS,
    dot.FUNCTIONS,
    dot_scaled.FUNCTIONS,
    reductions.FUNCTIONS,
    random_numbers.FUNCTIONS,
    sorting.FUNCTIONS,
    indexing.FUNCTIONS,
    hints.FUNCTIONS,
    program.FUNCTIONS,
)
_FUNCTIONS: dict[str, Builtin] = {
    name: builtin(name, run) for table in _TABLES for name, run in table.items()
}

_MISSING_NAMES = "expect_zero void float8e4b8 float8e5b16 async_task extern_elementwise"
_MISSING = {name: Missing(name) for name in _MISSING_NAMES.split()}

_DTYPES: dict[str, Operand] = {theirs: VALUE_SCALARS[ours] for theirs, ours in DTYPE_NAMES.items()}

_CLASSES = language_classes(
    {
        "constexpr": _make_constexpr,
        "dtype": static_dtype,
        "pointer_type": _pointer_type,
        "block_type": _block_type,
        "tuple": _tuple_of,
        "tuple_type": _tuple_type,
        "constexpr_type": ConstexprType,
    }
)

_LANGUAGE: dict[str, Operand] = {
    **_FUNCTIONS,
    **_MISSING,
    **_DTYPES,
    "range": RANGE,
    "static_range": STATIC_RANGE,
    **_CLASSES,
    "PropagateNan": Module("triton.language.PropagateNan"),
    "math": Module("triton.language.math"),
    "libdevice": Module("triton.language.extra.libdevice"),
    "target_info": Module(TARGET_INFO),
    "aggregate_replace": StaticCall("tl.aggregate_replace", replaced, takes_values=True),
    "extra": Module("triton.language.extra"),
    "standard": Module("triton.language"),
    "core": Module("triton.language"),
    "TRITON_MAX_TENSOR_NUMEL": 1 << 20,
    "_log2": StaticCall("tl.standard._log2", _log2),
    "pi32_t": PointerType(SCALARS["i32"]),
    "condition": StaticCall("tl.condition", _condition, takes_values=True),
    "random": Module("triton.language.random"),
    "get_int_dtype": StaticCall("tl.get_int_dtype", _get_int_dtype),
}

_OWN_WORDS: dict[str, Operand] = {
    name: builtin(name, run) for name, run in clusters.FUNCTIONS.items()
}
"""Names of `aotc.language` beyond Triton's."""

_LIBDEVICE: dict[str, Operand] = {
    name: builtin(f"extra.libdevice.{name}", run) for name, run in libdevice.FUNCTIONS.items()
}

_MATH = {
    # Older releases had libdevice here.
    **_LIBDEVICE,
    **{name: _LANGUAGE[name] for name in math_functions.FUNCTIONS},
}

_PYTHON_MATH: dict[str, Operand] = {
    **{
        name: _math_function(name)
        for name in [
            "ceil",
            "copysign",
            "cos",
            "exp",
            "exp2",
            "fabs",
            "floor",
            "gcd",
            "isqrt",
            "lcm",
            "log",
            "log10",
            "log1p",
            "log2",
            "pow",
            "prod",
            "sin",
            "sqrt",
            "tan",
            "tanh",
            "trunc",
            "isnan",
            "isinf",
        ]
        if hasattr(math, name)
    },
    "pi": math.pi,
    "e": math.e,
    "tau": math.tau,
    "inf": math.inf,
    "nan": math.nan,
}

MODULES: dict[str, Mapping[str, Operand]] = {
    "triton": {
        "language": Module("triton.language"),
        "cdiv": StaticCall("triton.cdiv", _cdiv_constants),
        "next_power_of_2": StaticCall("triton.next_power_of_2", _next_power_of_2),
        "jit": External("triton.jit"),
        "autotune": External("triton.autotune"),
        "heuristics": External("triton.heuristics"),
        "constexpr_function": External("triton.constexpr_function"),
        "Config": External("triton.Config"),
        "__version__": "3.9.0",
    },
    "triton.language": _LANGUAGE,
    "aotc.language": {**_LANGUAGE, **_OWN_WORDS},
    "triton.language.math": _MATH,
    "triton.language.random": {name: _FUNCTIONS[name] for name in random_numbers.FUNCTIONS},
    "triton.language.PropagateNan": {"ALL": PropagateNan.ALL, "NONE": PropagateNan.NONE},
    TARGET_INFO: {name: External(f"{TARGET_INFO}.{name}") for name in target_info.NAMES},
    "triton.language.extra": {
        "libdevice": Module("triton.language.extra.libdevice"),
        "cuda": Module("triton.language.extra.cuda"),
    },
    "triton.language.extra.cuda": {
        "libdevice": Module("triton.language.extra.libdevice"),
        "utils": Module("triton.language.extra.cuda"),
        **{
            name: builtin(f"extra.cuda.{name}", run)
            for name, run in {
                **program.CUDA_FUNCTIONS,
                **descriptor_maps.CUDA_FUNCTIONS,
            }.items()
        },
    },
    "triton.language.extra.libdevice": _LIBDEVICE,
    # Code from TorchInductor, and copies of it, import them from here.
    "torch._inductor.runtime.triton_helpers": {
        "libdevice": Module("triton.language.extra.libdevice"),
        "math": Module("triton.language.math"),
    },
    "math": _PYTHON_MATH,
    **PYTHON_MODULES,
}
"""Contents of the modules built in here, by module name."""
MODULES["aotc"] = {**MODULES["triton"], "language": Module("aotc.language")}

ALIASES = {
    "triton.language.core": "triton.language",
    "triton.language.standard": "triton.language",
    "triton.language.extra.cuda.gdc": "triton.language.extra.cuda",
    "triton.language.extra.cuda.utils": "triton.language.extra.cuda",
    "triton.language.extra.cuda.libdevice": "triton.language.extra.libdevice",
    "triton.language.libdevice": "triton.language.extra.libdevice",
}
"""Aliases of modules."""

_PYTHON_CLASSES = {
    "float": python_class("float", float, _python_number(float)),
    "int": python_class("int", int, _python_number(int)),
    "tuple": python_class("tuple", tuple, _tuple_of),
    "list": python_class("list", list, _tuple_of),
}

PYTHON_BUILTINS: dict[str, Operand] = {
    **_PYTHON_CLASSES,
    "range": PYTHON_RANGE,
    "len": StaticCall("len", _length),
    "type": StaticCall("type", _type, takes_values=True),
    "print": _FUNCTIONS["device_print"],
    **{name: builtin(name, run) for name, run in math_functions.PYTHON_FUNCTIONS.items()},
}
"""Python's builtin names available in a kernel."""

METHODS: dict[str, Builtin] = {
    **{name: builtin(name, run) for name, run in math_functions.METHODS.items()},
    **{name: builtin(name, run) for name, run in OPERATOR_METHODS.items()},
    **{
        name: _FUNCTIONS[name]
        for name in [
            "to",
            "cast",
            "advance",
            "broadcast_to",
            "trans",
            "permute",
            "split",
            "view",
            "reshape",
            "expand_dims",
            "store",
            "exp",
            "exp2",
            "log",
            "log2",
            "cos",
            "sin",
            "sqrt",
            "sqrt_rn",
            "rsqrt",
            "abs",
            "erf",
            "floor",
            "ceil",
            "reduce",
            "associative_scan",
            "cdiv",
            "sigmoid",
            "softmax",
            "ravel",
            "max",
            "argmax",
            "min",
            "argmin",
            "sum",
            "xor_sum",
            "reduce_or",
            "cumsum",
            "cumprod",
            "flip",
            "sort",
            "topk",
            "gather",
            "histogram",
            "item",
            *atomics.FUNCTIONS,
        ]
    },
}
"""Functions callable as methods of a value, `x.sum()` for `tl.sum(x)`."""


DESCRIPTOR_METHODS: dict[str, Builtin | Missing] = {
    name: builtin(f"tensor_descriptor.{name}", run) for name, run in descriptors.METHODS.items()
}
"""Methods of a tensor descriptor, such as `desc.load(…)`."""


def module_member(module: Module, name: str) -> Operand:
    """Look up `module.name`. Raises: CompileError with the nearest name."""
    contents = MODULES[module.name]
    if name in contents:
        return contents[name]
    raise unknown_member(module.name, name, contents)


def unknown_member(module: str, name: str, contents: Mapping[str, Operand]) -> CompileError:
    """Return the error for a name missing in the module."""
    is_language = module in ("triton.language", "aotc.language")
    short = "tl" if is_language else module.replace("triton.language.", "tl.")
    remedy = did_you_mean(name, contents)
    if name in _OWN_WORDS:
        remedy = f"Triton has no such word: from aotc.language import {name}"
    return mistake(f"unknown name {short}.{name}", remedy=remedy, feature=f"{short}.{name}")
