"""Functions of NVIDIA's libdevice, as `triton.language.extra.libdevice` names them.

A signature is a string of one letter for each argument and one for the result: `f` fp32, `d` fp64,
`i`/`u` signed and unsigned 32-bit and `l`/`v` 64-bit integers, `b` a truth value returned as an i32.
Most functions have an fp32 and an fp64 version, `__nv_NAMEf` and `__nv_NAME`, so they need only their
number of arguments.

Source: libdevice User's Guide, "Function List".
"""

from __future__ import annotations

from collections.abc import Callable

from aotc.frontend.emitter import Emitter, mistake
from aotc.frontend.language.convert import broadcast, cast, to_value
from aotc.frontend.language.operators import common_type
from aotc.frontend.values import Operand, element, show, show_type
from aotc.ir.core import Value
from aotc.ir.diagnostics import CompileError
from aotc.ir.dialects import arith
from aotc.ir.types import FP32, FP64, I1, I32, I64, U32, U64, ScalarType

_LETTERS: dict[str, ScalarType] = {
    "f": FP32, "d": FP64, "i": I32, "u": U32, "l": I64, "v": U64, "b": I32,
}  # fmt: skip

_FLOAT_FUNCTIONS = {
    1: (
        "acos acosh asin asinh atan atanh cbrt ceil cos cosh cospi cyl_bessel_i0 cyl_bessel_i1 erf "
        "erfc erfcinv erfcx erfinv exp exp10 exp2 expm1 floor j0 j1 lgamma log log10 log1p log2 "
        "logb nearbyint normcdf normcdfinv rcbrt rint round rsqrt sin sinh sinpi sqrt tan tanh "
        "tgamma trunc y0 y1"
    ),
    2: "atan2 copysign fdim fmod hypot nextafter remainder rhypot",
    3: "fma norm3d rnorm3d",
    4: "norm4d rnorm4d",
}

_FAST_FUNCTIONS = {
    1: "cosf exp10f expf log10f log2f logf sinf tanf",
    2: "fdividef powf",
}

_ROUNDED_FUNCTIONS = {1: "rcp sqrt", 2: "add sub mul div"}

_SIGNATURES: dict[str, dict[str, str]] = {
    "abs": {"ii": "abs", "ll": "llabs", "ff": "fabsf", "dd": "fabs"},
    "pow": {"fif": "powif", "did": "powi", "fff": "powf", "ddd": "pow"},
    "ldexp": {"fif": "ldexpf", "did": "ldexp"},
    "scalbn": {"fif": "scalbnf", "did": "scalbn"},
    "ilogb": {"fi": "ilogbf", "di": "ilogb"},
    "jn": {"iff": "jnf", "idd": "jn"},
    "yn": {"iff": "ynf", "idd": "yn"},
    "isnan": {"fb": "isnanf", "db": "isnand"},
    "isinf": {"fb": "isinff", "db": "isinfd"},
    "finitef": {"fb": "finitef"},
    "isfinited": {"db": "isfinited"},
    "signbit": {"fi": "signbitf", "di": "signbitd"},
    "saturatef": {"ff": "saturatef"},
    "llrint": {"fl": "llrintf", "dl": "llrint"},
    "llround": {"fl": "llroundf", "dl": "llround"},
    "rsqrt_rn": {"ff": "frsqrt_rn"},
    "clz": {"ii": "clz", "li": "clzll"},
    "ffs": {"ii": "ffs", "li": "ffsll"},
    "popc": {"ii": "popc", "li": "popcll"},
    "brev": {"ii": "brev", "ll": "brevll"},
    "byte_perm": {"iiii": "byte_perm"},
    "mulhi": {"iii": "mulhi", "uuu": "umulhi", "lll": "mul64hi", "vvv": "umul64hi"},
    "mul24": {"iii": "mul24", "uuu": "umul24"},
    "hadd": {"iii": "hadd", "uuu": "uhadd"},
    "rhadd": {"iii": "rhadd", "uuu": "urhadd"},
    "sad": {"iiui": "sad", "uuuu": "usad"},
    "int_as_float": {"if": "int_as_float"},
    "uint_as_float": {"uf": "uint_as_float"},
    "float_as_int": {"fi": "float_as_int"},
    "float_as_uint": {"fi": "float_as_uint"},
    "longlong_as_double": {"ld": "longlong_as_double"},
    "double_as_longlong": {"dl": "double_as_longlong"},
    "hiloint2double": {"iid": "hiloint2double"},
    "double2loint": {"di": "double2loint"},
    "double2hiint": {"di": "double2hiint"},
}

_CONVERSIONS = {
    "double2float": "df", "double2int": "di", "double2uint": "di", "double2ll": "dl",
    "double2ull": "dl", "float2int": "fi", "float2uint": "fi", "float2ll": "fl",
    "float2ull": "fl", "int2float": "if", "uint2float": "uf", "ll2float": "lf",
    "ull2float": "vf", "ll2double": "ld", "ull2double": "vd",
}  # fmt: skip

_MODES = ("rn", "rz", "rd", "ru")


def _table() -> dict[str, dict[str, str]]:
    """Return every function: name -> signature -> libdevice symbol without its prefix."""
    table = dict(_SIGNATURES)
    for arity, names in _FLOAT_FUNCTIONS.items():
        for name in names.split():
            table[name] = {"f" * (arity + 1): f"{name}f", "d" * (arity + 1): name}
    for arity, names in _FAST_FUNCTIONS.items():
        for name in names.split():
            table[f"fast_{name}"] = {"f" * (arity + 1): f"fast_{name}"}
    table["fast_dividef"] = table.pop("fast_fdividef")
    for arity, names in _ROUNDED_FUNCTIONS.items():
        for name in names.split():
            for mode in _MODES:
                table[f"{name}_{mode}"] = {
                    "f" * (arity + 1): f"f{name}_{mode}",
                    "d" * (arity + 1): f"d{name}_{mode}",
                }
    for mode in _MODES:
        table[f"fma_{mode}"] = {"ffff": f"fmaf_{mode}", "dddd": f"fma_{mode}"}
        for name, signature in _CONVERSIONS.items():
            table[f"{name}_{mode}"] = {signature: f"{name}_{mode}"}
    return table


def _function(name: str, signatures: dict[str, str]) -> Callable[..., Operand]:
    arity = len(next(iter(signatures))) - 1

    def function(emit: Emitter, *args: Operand) -> Operand:
        if len(args) != arity:
            raise mistake(f"libdevice.{name} takes {arity} arguments, got {len(args)}")
        values = [to_value(emit, arg, f"an argument of libdevice.{name}") for arg in args]
        signature = _matching(values, signatures)
        if signature is None and arity > 1:
            kind = common_type(values, name)
            values = [cast(emit, value, kind) for value in values]
            signature = _matching(values, signatures)
        if signature is None:
            raise _refuse(name, values, signatures)
        return _emit_call(emit, signatures[signature], values, signature[-1])

    return function


def _matching(values: list[Value], signatures: dict[str, str]) -> str | None:
    kinds = [element(value) for value in values]
    for signature in signatures:
        if [_LETTERS[letter] for letter in signature[:-1]] == kinds:
            return signature
    return None


def _refuse(name: str, values: list[Value], signatures: dict[str, str]) -> CompileError:
    expected = " or ".join(
        "(" + ", ".join(show_type(_LETTERS[letter]) for letter in signature[:-1]) + ")"
        for signature in signatures
    )
    return mistake(
        f"libdevice.{name} takes {expected}, got {show(tuple(values))}",
        remedy="cast the arguments with .to(...)",
    )


def _emit_call(emit: Emitter, symbol: str, values: list[Value], letter: str) -> Operand:
    dtype = _LETTERS[letter]
    out = emit(arith.Libdevice(f"__nv_{symbol}", dtype, broadcast(emit, *values))).out
    return cast(emit, out, I1) if letter == "b" else out


FUNCTIONS: dict[str, Callable[..., Operand]] = {
    name: _function(name, signatures) for name, signatures in _table().items()
}
