"""Generate the typed C header of an archive: one launch function per kernel.

Everything is `static inline` over `aotc_launch` of `runtime_c`, so the header adds no object to
link, and a launch through it neither allocates nor locks. The kernels' handles are in a struct,
filled once by name: a launch needs no look-up, and a handle cannot be passed to the wrong function.

    llm_kernels kernels;
    llm_open(NULL, &archive, &error);                 (the archive in libllm.a; or aotc_open_file)
    aotc_load(archive, NULL, &error);
    llm_kernels_get(archive, &kernels, &error);
    llm_add(&kernels, stream, x, y, out, n, &error);

`NAME_archive` is a macro for a symbol with the digest of the header. So a program with the header
of one build and the library of another does not link, nor does one with two archives of one name.

Invariant: every name from the manifest becomes a C identifier, unique in its scope, and every text
from it is escaped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aotc.ir.diagnostics import ManifestError
from aotc.ir.expression import Expression, to_text
from aotc.package.archive.index import (
    Archive,
    Choice,
    Kernel,
    NamedValues,
    Param,
    TypeVariable,
    Value,
    canonical,
    null_test,
)

_MAX_LISTED = 8
_LINE_COLUMNS = 100

_KEYWORDS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
    char32_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
    constinit continue decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires restrict
    return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename typeof union unsigned using virtual void
    volatile wchar_t while xor xor_eq NULL
    """.split()  # noqa: SIM905 (a list of a hundred quoted words is harder to read)
)
_LOCALS = frozenset(
    """
    kernels stream error args choices desc scratch scratch_bytes flags grid_x grid_y grid_z
    """.split()  # noqa: SIM905 (as above)
)
_MEMBERS = frozenset(("open", "kernels", "kernels_get", "archive", "archive_size", "none"))
_ACCESSES = {
    "read": "Reads",
    "write": "Writes",
    "both": "Reads and writes",
    "unknown": "May read and write",
}
_FIND = (
    ["    (void)archive;", "    (void)kernels;", "    (void)error;"],
    ["    aotc_status status;"],
)


class _Scalar(NamedTuple):
    """The C type of a dtype, and the call converting a value to a launch argument."""

    c_type: str
    make: str


_SCALARS: dict[str, _Scalar] = {
    "i1": _Scalar("bool", "aotc_i1({})"),
    "i8": _Scalar("int8_t", "aotc_i8({})"),
    "i16": _Scalar("int16_t", "aotc_i16({})"),
    "i32": _Scalar("int32_t", "aotc_i32({})"),
    "i64": _Scalar("int64_t", "aotc_i64({})"),
    "u8": _Scalar("uint8_t", "aotc_u8({})"),
    "u16": _Scalar("uint16_t", "aotc_u16({})"),
    "u32": _Scalar("uint32_t", "aotc_u32({})"),
    "u64": _Scalar("uint64_t", "aotc_u64({})"),
    "fp16": _Scalar("uint16_t", "aotc_fp16_bits({})"),
    "bf16": _Scalar("uint16_t", "aotc_bf16_bits({})"),
    "fp32": _Scalar("float", "aotc_fp32({})"),
    "fp64": _Scalar("double", "aotc_fp64({})"),
    "fp8e4nv": _Scalar("uint8_t", "aotc_integer({}, AOTC_FP8E4NV)"),
    "fp8e5": _Scalar("uint8_t", "aotc_integer({}, AOTC_FP8E5)"),
}
# C has no types for these; pointers to CUDA's own types convert to `void *`.
_UNTYPED_POINTEES = frozenset(("i1", "fp16", "bf16", "fp8e4nv", "fp8e5"))

_CHOICES: dict[type, _Scalar] = {
    bool: _Scalar("bool ", "aotc_bool_value"),
    int: _Scalar("int64_t ", "aotc_int_value"),
    float: _Scalar("double ", "aotc_float_value"),
    str: _Scalar("const char *", "aotc_string_value"),
}


def c_identifier(name: str) -> str:
    """Replace every character invalid in a C identifier by `_`."""
    identifier = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{identifier}" if identifier[:1].isdigit() else identifier


def _comment(text: str) -> str:
    """Return a text on one line that cannot end its comment."""
    return " ".join(text.replace("*/", "* /").split())


def _string(text: str) -> str:
    """Return a C string literal; octal escapes, since hexadecimal ones have no end."""
    plain = re.compile(rb"[ !#->@-\[\]-~]")  # printable except `"`, `?` and backslash
    escaped = "".join(
        chr(byte) if plain.match(bytes([byte])) else f"\\{byte:03o}" for byte in text.encode()
    )
    return f'"{escaped}"'


def _value_text(value: Value) -> str:
    """Format a value as in the manifest."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _config_text(config: NamedValues) -> str:
    return ", ".join(f"{name}={_value_text(value)}" for name, value in config)


@dataclass(slots=True)
class _Scope:
    """Hand out unique C names; a reserved one gets a `_` appended, a duplicate is an error."""

    description: str
    reserved: frozenset[str]
    names: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, name: str) -> str:
        identifier = c_identifier(name)
        if identifier in self.reserved:
            identifier += "_"
        if identifier in self.names:
            other = self.names[identifier]
            message = f"{self.description}: {other!r} and {name!r} are both `{identifier}` in C"
            raise ManifestError(message, remedy="rename one of them")
        self.names[identifier] = name
        return identifier


class _Function:
    """The function of one kernel: its parameters, and the statements filling the launch."""

    def __init__(self, kernel: Kernel, prefix: str, kernel_name: str) -> None:
        self.kernel = kernel
        self.name = f"{prefix}_{kernel_name}"
        self.member = kernel_name
        self.scope = _Scope(f"kernel {kernel.name!r}", _KEYWORDS | _LOCALS)
        self.inputs = [f"const {prefix}_kernels *kernels", "struct CUstream_st *stream"]
        self.statements: list[str] = []
        self.num_choices = 0
        self.dtypes = {v.name: self.dtype_input(v) for v in kernel.type_variables}
        for choice in kernel.choices:
            if len(choice.values) > 1:
                self.choice(choice)
        if kernel.grid_rank == 0:
            self.grid()
        for index, param in enumerate(kernel.params):
            self.statements.append(f"args[{index}] = {self.argument(param)};")
        if any(variant.waits_pdl for variant in kernel.variants):
            self.inputs.append("uint32_t flags")
            self.statements.append("desc.flags = flags;")
        if any(variant.scratch_bytes is not None for variant in kernel.variants):
            self.inputs += ["void *scratch", "uint64_t scratch_bytes"]
            self.statements += ["desc.scratch = scratch;", "desc.scratch_bytes = scratch_bytes;"]
        self.inputs.append("aotc_error *error")

    def dtype_input(self, variable: TypeVariable) -> str:
        """Return the C expression of a type variable; an input if there is a choice."""
        if len(variable.dtypes) == 1:
            return _dtype(variable.dtypes[0])
        name = self.scope.add(variable.name)
        self.inputs.append(f"aotc_dtype {name}")
        return name

    def choice(self, choice: Choice) -> None:
        name = self.scope.add(choice.name)
        target = f"choices[{self.num_choices}]"
        self.num_choices += 1
        kinds = {type(value) for value in choice.values}
        row = _CHOICES.get(kinds.pop()) if len(kinds) == 1 else None
        if row is None:
            # Its C type depends on the value, so the caller makes it, as in aotc_null_value("").
            self.inputs.append(f"aotc_value {name}")
            self.statements += [f"{target} = {name};", f"{target}.name = {_string(choice.name)};"]
            return
        self.inputs.append(f"{row.c_type}{name}")
        self.statements.append(f"{target} = {row.make}({_string(choice.name)}, {name});")

    def grid(self) -> None:
        self.statements.append("desc.grid_rank = 3;")
        for dim, axis in enumerate("xyz"):
            self.inputs.append(f"uint32_t grid_{axis}")
            self.statements.append(f"desc.grid[{dim}] = (int64_t)grid_{axis};")

    def argument(self, param: Param) -> str:
        """Declare a launch argument and return the expression passing it."""
        name = self.scope.add(param.name)
        is_variable = param.element in self.dtypes
        dtype = self.dtypes[param.element] if is_variable else _dtype(param.element)
        if param.kind == "tensor":
            self.inputs.append(f"const aotc_tensor *{name}")
            return f"aotc_tensor_arg({name}, {dtype})"
        if param.kind == "pointer":
            untyped = is_variable or param.element in _UNTYPED_POINTEES
            pointee = "void" if untyped else _SCALARS[param.element].c_type
            const = "const " if param.access == "read" else ""
            self.inputs.append(f"{const}{pointee} *{name}")
            return f"aotc_pointer({name}, {dtype})"
        if is_variable:
            # Its C type depends on a value, so the caller makes it, as in aotc_fp32(0.5f).
            self.inputs.append(f"aotc_arg {name}")
            return name
        scalar = _SCALARS[param.element]
        self.inputs.append(f"{scalar.c_type} {name}")
        return scalar.make.format(name)

    def lines(self) -> list[str]:
        body = [f"aotc_arg args[{len(self.kernel.params)}];"] if self.kernel.params else []
        body += [f"aotc_value choices[{self.num_choices}];"] if self.num_choices else []
        body += ["aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;", *self.statements]
        if self.kernel.params:
            body += ["desc.args = args;", f"desc.arg_count = {len(self.kernel.params)};"]
        if self.num_choices:
            body += ["desc.choices = choices;", f"desc.choice_count = {self.num_choices};"]
        body += [
            "desc.stream = stream;",
            f"return aotc_launch(kernels->{self.member}, &desc, error);",
        ]
        return [
            *_doc(self.kernel),
            *_wrapped(f"static inline aotc_status {self.name}(", self.inputs),
            *(f"    {statement}" for statement in body),
            "}",
        ]


def _dtype(dtype: str) -> str:
    return f"AOTC_{dtype.upper()}"


def _wrapped(head: str, inputs: Iterable[str]) -> list[str]:
    """Format the head of a function, with its parameters wrapped into lines below the name."""
    lines = [head]
    for position, text in enumerate(inputs):
        piece = text if position == 0 else f" {text}"
        if position:
            lines[-1] += ","
        if len(lines[-1]) + len(piece) + 3 > _LINE_COLUMNS:
            lines.append(" " * len(head) if len(head) < 60 else " " * 8)
            piece = text
        lines[-1] += piece
    lines[-1] += ") {"
    return lines


def _shortened(items: Sequence[str]) -> list[str]:
    """Return the first items, and the number of the others."""
    if len(items) <= _MAX_LISTED:
        return list(items)
    return [*items[: _MAX_LISTED - 1], f"and {len(items) - _MAX_LISTED + 1} more"]


def _doc(kernel: Kernel) -> list[str]:
    """Return the comment above a kernel's function: the valid arguments, and the variants."""
    lines = [f"{kernel.name}", f"Targets: {' '.join(kernel.targets)}"]
    if kernel.variants[0].grid:
        grid = " x ".join(to_text(expression) for expression in kernel.variants[0].grid)
        differs = any(variant.grid != kernel.variants[0].grid for variant in kernel.variants)
        lines.append(f"Grid: {grid}" + (", for the first config" if differs else ""))
    else:
        lines.append("Grid: the caller's, in program instances")
    lines += _accesses(kernel)
    lines += [f"{v.name}: {' '.join(v.dtypes)}" for v in kernel.type_variables]
    lines += [f"{c.name}: {' '.join(map(_value_text, c.values))}" for c in kernel.choices]
    if any(variant.waits_pdl for variant in kernel.variants):
        lines.append("Flags: 0, or AOTC_LAUNCH_PDL to start before the previous launch has ended")
    if kernel.constants:
        lines.append(f"Constants: {_config_text(kernel.constants)}")
    configs = [_config_text(config) for config in kernel.configs if config]
    lines += [f"Config: {config}" for config in _shortened(configs)]
    lines += [f"Requires: {guard.text}" for guard in kernel.guards if guard.is_promise]
    lines += [f"{name} may be NULL, which is None" for name in kernel.nullable]
    lines += [
        f"Faster if: {guard.text}"
        for guard in kernel.guards
        if not guard.is_promise and not _is_null_test(kernel, guard.expression)
    ]
    return ["/*", *(f" * {_comment(line)}" for line in lines), " */"]


def _accesses(kernel: Kernel) -> list[str]:
    """Return a line for each kind of access, with the arguments whose memory has it."""
    lines: list[str] = []
    for access, text in _ACCESSES.items():
        names = [p.name for p in kernel.params if p.kind != "scalar" and p.access == access]
        lines += [f"{text}: {', '.join(names)}"] if names else []
    return lines


def _is_null_test(kernel: Kernel, root: Expression) -> bool:
    return any(
        root == null_test(name, is_null=is_null)
        for name in kernel.nullable
        for is_null in (True, False)
    )


_SYMBOL = re.compile(r"#define \w+_archive (\w+)$", re.MULTILINE)
_DIGEST_DIGITS = 16


def archive_symbol(header: str) -> str:
    """Return the symbol of an archive's bytes in a program that includes `header`."""
    symbol = _SYMBOL.search(header)
    assert symbol is not None, "every header defines it"
    return symbol[1]


def header_text(archive: Archive) -> str:
    """Return the C header of an archive, for C11 and C++11 and up.

    Raises: `ManifestError` if two names of the manifest are one identifier in C.
    """
    digest = hashlib.sha256(_header_text(archive, "").encode()).hexdigest()[:_DIGEST_DIGITS]
    return _header_text(archive, f"_{digest}")


def _header_text(archive: Archive, suffix: str) -> str:
    """Return the header; `suffix` follows the name of the archive's symbol."""
    archive = canonical(archive)
    prefix = c_identifier(archive.name)
    members = _Scope(f"archive {archive.name!r}", _KEYWORDS | _MEMBERS)
    kernels = [(kernel, members.add(kernel.name)) for kernel in archive.kernels]
    if prefix == "aotc":
        message = "an archive called 'aotc' would declare what the runtime declares"
        raise ManifestError(message, remedy="rename the package")
    guard = f"{prefix.upper()}_AOTC_H"
    finds = [
        f"    status = aotc_kernel_get(archive, {_string(kernel.name)}, &kernels->{member}, error);\n"
        "    if (status != AOTC_OK) {\n        return status;\n    }"
        for kernel, member in kernels
    ]
    fields = [f"    const aotc_kernel *{member};" for _, member in kernels]
    title = _comment(f"{archive.name} {archive.version}")
    open_inputs = (
        "const aotc_open_options *options",
        "aotc_archive **archive",
        "aotc_error *error",
    )
    get_inputs = ("const aotc_archive *archive", f"{prefix}_kernels *kernels", "aotc_error *error")
    lines = [
        f"/* {title}: typed launches of an archive of aotc. Generated: do not edit. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "#ifndef __cplusplus",
        "#include <stdbool.h>",
        "#endif",
        "",
        "#include <aotc/aotc.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"/* The archive itself, in the lib{_comment(archive.name)}.a of the same build. */",
        f"#define {prefix}_archive {prefix}_archive{suffix}",
        f"extern const unsigned char {prefix}_archive[];",
        f"extern const size_t {prefix}_archive_size;",
        "",
        "/* Open the archive that is linked in, as aotc_open_memory does. */",
        *_wrapped(f"static inline aotc_status {prefix}_open(", open_inputs),
        f"    return aotc_open_memory({prefix}_archive, {prefix}_archive_size, options, archive,",
        "                            error);",
        "}",
        "",
        "/* Handles of the kernels, valid as long as the archive is open. */",
        f"typedef struct {prefix}_kernels {{",
        *(fields or ["    const aotc_kernel *none; /* C allows no empty struct */"]),
        f"}} {prefix}_kernels;",
        "",
        "/* Find all kernels of the archive; NOT_FOUND if the header is for another archive. */",
        *_wrapped(f"static inline aotc_status {prefix}_kernels_get(", get_inputs),
        *_FIND[bool(kernels)],
        *finds,
        "    return AOTC_OK;",
        "}",
    ]
    for kernel, member in kernels:
        lines += ["", *_Function(kernel, prefix, member).lines()]
    lines += ["", "#ifdef __cplusplus", "}", "#endif", "", "#endif"]
    return "\n".join(lines) + "\n"
