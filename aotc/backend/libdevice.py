"""NVIDIA's libdevice: mathematical functions of more than one instruction.

Its bitcode holds 350 functions and takes longer to read than a kernel takes to compile. So it is
read only when a kernel calls one, and the result is cached: the called functions and their
dependencies, extracted, specialised to the target and simplified once, as text to replace the
kernel's declarations.

libdevice queries its compile options with `__nvvm_reflect`. The answers are Triton's: subnormal
fp32 numbers are flushed, square roots are precise. Remainders keep subnormals: a remainder is exact
or useless, and flushing would change only some results, at no gain.

Source: libdevice User's Guide, "Selecting Library Version"; LLVM "NVPTX: Reflection Parameters".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from aotc.backend.emitter import Emitter
from aotc.backend.llvm import binding, parse, run_passes
from aotc.backend.llvm_types import llvm_type
from aotc.backend.wheels import find_file
from aotc.ir.diagnostics import IRError
from aotc.ir.types import ScalarType

_BITCODE = "nvvm/libdevice/libdevice.10.bc"
_WHEEL = "nvidia-nvvm"
_DECLARED = re.compile(r"^declare [^\n@]*@(__nv_\w+)\([^\n]*\n", re.MULTILINE)
_NUMBERED = re.compile(r",? ![\w.]+(?: !\d+)?| #\d+")
_REFLECT = re.compile(r"call i32 @__nvvm_reflect\(ptr @([\w.]+)\)(?: #\d+)?")
_REFLECTED_STRING = re.compile(r'^@([\w.]+) = .* c"(__CUDA_\w+)\\00".*$', re.MULTILINE)

_DEFINED = re.compile(r"^define [^\n]*?@(\w+)\(", re.MULTILINE)
KEEPS_SUBNORMALS = "!aotc.libdevice.keeps.subnormals = !{}"
"""Metadata of a module whose libdevice functions do not flush."""

_KEEPS_SUBNORMALS = ("__nv_fmodf",)

_SIMPLIFY = (
    "always_inliner",
    "sccp",
    "instruction_combine",
    "simplify_cfg",
    "sroa",
    "instruction_combine",
    "global_dead_code_eliminate",
    "strip_dead_prototype",
)


# Functions of a single instruction: calls of them do not load the library.
_INTRINSICS = {
    f"__nv_{stem}{suffix}": f"llvm.{stem}.{kind}"
    for stem in ("ceil", "floor", "fma", "nearbyint", "rint", "trunc")
    for suffix, kind in (("f", "f32"), ("", "f64"))
}


def call_libdevice(
    emit: Emitter, symbol: str, dtype: ScalarType, arguments: Sequence[tuple[ScalarType, str]]
) -> str:
    """Return the result, of type `dtype`, of a libdevice function."""
    typed = [(llvm_type(element), operand) for element, operand in arguments]
    return emit.call(llvm_type(dtype), _INTRINSICS.get(symbol, symbol), typed)


def resolve(llvm_ir: str, arch: int) -> str:
    """Return the module with its declarations of libdevice functions replaced by definitions.

    Raises: IRError if libdevice has no such function.
    """
    # Almost no kernel calls one, and looking for the prefix is much faster than matching lines.
    symbols = _DECLARED.findall(llvm_ir) if "@__nv_" in llvm_ir else ()
    if not symbols:
        return llvm_ir
    flushes = KEEPS_SUBNORMALS not in llvm_ir
    definitions = _definitions(tuple(sorted(symbols)), arch, flushes=flushes)
    # Definitions come with declarations; drop the ones the module has.
    declarations = set(re.findall(r"^declare [^\n]*?@([\w.]+)\(", llvm_ir, re.MULTILINE))
    lines = [
        line
        for line in definitions.splitlines()
        if not (line.startswith("declare ") and _declared_name(line) in declarations)
    ]
    return _DECLARED.sub("", llvm_ir) + "\n".join(lines) + "\n"


def _declared_name(line: str) -> str:
    return line.split("@", 1)[1].split("(", 1)[0]


@lru_cache(maxsize=64)
def _definitions(symbols: tuple[str, ...], arch: int, *, flushes: bool) -> str:
    """Return the text of the functions and their dependencies, private and always inlined."""
    module = binding().parse_bitcode(find_file(_WHEEL, _BITCODE).read_bytes())
    functions = {function.name: function for function in module.functions}
    for symbol in symbols:
        if symbol not in functions:
            raise IRError(f"libdevice has no function {symbol}")
    for name, function in functions.items():
        if not function.is_declaration and name not in symbols:
            function.linkage = "internal"
    run_passes(module, ("global_dead_code_eliminate",))
    module = parse(_answer_reflection(str(module), arch, flushes=flushes))
    run_passes(module, _SIMPLIFY)
    return _as_part_of_a_module(str(module))


def _answer_reflection(text: str, arch: int, *, flushes: bool) -> str:
    strings = dict(_REFLECTED_STRING.findall(text))
    # Each part but the first begins with the name of the function it defines.
    first, *parts = _DEFINED.split(text)
    heads = _DEFINED.finditer(text)
    pieces = [first]
    for head, name, body in zip(heads, parts[::2], parts[1::2], strict=True):
        ftz = int(flushes and name not in _KEEPS_SUBNORMALS)
        answers = {"__CUDA_FTZ": ftz, "__CUDA_PREC_SQRT": 1, "__CUDA_ARCH": 10 * arch}
        answered = _REFLECT.sub(
            lambda call, answers=answers: f"add i32 0, {answers[strings[call[1]]]}", body
        )
        pieces += [head[0], answered]
    return "".join(pieces)


def _as_part_of_a_module(text: str) -> str:
    """Return the functions and globals of a module, without module-level entities."""
    skipped = (";", "source_filename", "target ", "attributes ", "!")
    lines = [line for line in text.splitlines() if line and not line.startswith(skipped)]
    return "\n".join(map(_without_numbers, lines))


def _without_numbers(line: str) -> str:
    """Strip a line's references to the module's numbered attributes and metadata.

    Definitions become private and always inlined.
    """
    line, _ = _NUMBERED.subn("", line)
    if not line.startswith("define "):
        return line
    signature = line.removeprefix("define ").removeprefix("internal ").removesuffix(" {")
    return f"define internal {signature} alwaysinline nounwind {{"
