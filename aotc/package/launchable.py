"""Compile a kernel for one specialisation, and launch it: `aotc.compile`.

    kernel = aotc.compile(add, args=(x, y, out, n), constants={"BLOCK": 1024})
    kernel[lambda meta: (cdiv(n, meta["BLOCK"]),)](x, y, out, n)

The runtime launches it from an archive of this one kernel, built and opened in memory at the first
launch. So its guards, tensor maps and checks of arguments are the same as for any archive.

Invariant: a launched kernel was compiled for the constants and fixed values of the launch; the
runtime checks dtypes and promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

from aotc.compiler import (
    CompiledKernel,
    CompileRequest,
    autotune_configs,
    compile_kernel,
    compile_request,
)
from aotc.config import CONFIG_KEYS
from aotc.frontend import KernelParameter, kernel_parameters
from aotc.ir.diagnostics import CompileError, Loc, ResourceError, did_you_mean
from aotc.limits import split_limits
from aotc.live_functions import locate, named_constant
from aotc.package.archive.file import encode
from aotc.package.archive.index import Archive
from aotc.package.builder.assemble import assemble
from aotc.package.builder.condition import launch_condition
from aotc.package.builder.toolchain import toolchain_text
from aotc.package.cache.store import CachedKernel
from aotc.package.inspect.cuda_driver import ask
from aotc.package.manifest.argument_type import DTYPE_WORDS, ArgumentType
from aotc.package.manifest.argument_type import parse as parse_type
from aotc.package.manifest.parameters import Function, Parameter
from aotc.package.manifest.spec import CartesianConfigs, KernelSpec
from aotc.package.manifest.variant_grid import expand
from aotc.runtime import ArgumentError, Kernel, Library, load
from aotc.target import TARGETS, best_for
from aotc.triton.specialization import (
    SCALARS,
    TYPE_NAMES,
    argument_type,
    constant,
    dtype_word,
    is_pointer,
    is_same_constant,
    items_of,
)
from aotc.tuple_type import TupleType, is_tuple_type, names_function, parse_tuple_type

NATIVE = "native"


def compile(  # noqa: A001 - the name users expect, as re.compile
    kernel: str | Callable[..., object],
    *,
    signature: Mapping[str, str] | None = None,
    args: Sequence[object] | Mapping[str, object] | None = None,
    source: str | None = None,
    constants: Mapping[str, object] | None = None,
    target: str = "sm_90a",
    debug: bool = False,
    without: Sequence[str] = (),
    map_pointers: bool = False,
    limits: Mapping[str, int] | None = None,
    enable_fp_fusion: bool = True,
    enable_reflect_ftz: bool = True,
    **config: int | None,
) -> LaunchableKernel:
    """Compile a kernel, given as "path/to/source.py:name" or as the Python function itself.

    `signature` gives each argument its type. With `args`, the arguments of a launch, in order or by
    name, it only needs the remaining types. Their types are Triton's, with the promises they keep,
    and `tl.constexpr` parameters among them are constants.

    With `source`, Python as text, `kernel` is a name in it; its imports are resolved from the
    current folder. A function without a file but with source text, as in a notebook, is compiled
    from its text.

    `target` may be "native": this machine's first GPU. `config` are config keys by name, the fields
    of `aotc.config.Config`: `num_warps=8, num_stages=4`, say. `without` names features of the
    target to leave unused, such as "wgmma". With `map_pointers` the kernel may use tensor maps for
    loads through pointers, as the first choice of a build does; `metadata.params` lists them, and
    `metadata.guards` their conditions. It may also be persistent: see `metadata.is_persistent`.
    `limits` bound the compile, by the names of `CompileLimits`. With `strict` they refuse a kernel
    with more than `spill_bytes` of spills per thread, else `metadata.remarks` reports it.

    Without `enable_fp_fusion`, a product and a sum are rounded each. Without `enable_reflect_ftz`,
    functions of libdevice keep subnormals.

    Raises: CompileError for mistakes in the kernel or the arguments; its subclass ResourceError for
    a kernel too large for a CTA of the target, or with spills beyond a strict limit.
    """
    types: Mapping[str, str] = {} if signature is None else signature
    if args is not None:
        parameters = kernel_parameters(*locate(kernel, source))
        argument_types, passed = _types_and_constants(
            parameters, args, {*types, *(constants or {})}
        )
        types, constants = {**argument_types, **types}, {**passed, **(constants or {})}
    elif signature is None:
        raise CompileError(
            "expected the types of the kernel's arguments",
            remedy='signature={"x_ptr": "*fp16:16", …}, or args=(x, …) as a launch passes them',
        )
    request = compile_request(
        kernel,
        signature=types,
        source=source,
        constants=_plain(constants),
        target=_native_target() if target == NATIVE else target,
        debug=debug,
        without=without,
        map_pointers=map_pointers,
        limits=limits,
        enable_fp_fusion=enable_fp_fusion,
        enable_reflect_ftz=enable_reflect_ftz,
        config=config,
    )
    compiled = compile_kernel(request, keep_asm=True)
    max_spill_bytes, _ = split_limits(limits or {})
    if max_spill_bytes is not None and (
        problem := compiled.metadata.spill_problem(max_spill_bytes)
    ):
        remedy = f"limits={{'spill_bytes': {compiled.metadata.local_bytes}}} allows it"
        raise ResourceError(problem, remedy=remedy)
    parameters = kernel_parameters(request.source, request.kernel)
    return LaunchableKernel(compiled.cubin, compiled.metadata, compiled.asm, request, parameters)


def _plain(constants: object) -> Any:
    """Return constants as stored in archives; a non-mapping is left to the check of the request."""
    if not isinstance(constants, Mapping):
        return constants
    mapping = cast("Mapping[str, object]", constants)
    # Name a function by its identity, as in an archive.
    return {name: constant(named_constant(value)) for name, value in mapping.items()}


def _native_target() -> str:
    machine = ask()
    for gpu in machine.gpus[:1]:
        target = best_for(gpu.major, gpu.minor)
        if target is not None:
            return target.name
    message = f"expected a GPU that aotc has a target for, got {machine.problem or 'another one'}"
    raise CompileError(message, remedy=f"name a target: {', '.join(TARGETS)}")


def _types_and_constants(
    parameters: Sequence[KernelParameter],
    args: Sequence[object] | Mapping[str, object],
    specified: Iterable[str],
) -> tuple[dict[str, str], dict[str, object]]:
    """Return the types and constants implied by arguments, except specified ones.

    Raises: CompileError.
    """
    names = [parameter.name for parameter in parameters]
    if isinstance(args, Mapping):
        passed = dict(args)
        for name in passed:
            if name not in names:
                raise CompileError(
                    f"args names {name!r}, which is no parameter of the kernel",
                    remedy=did_you_mean(name, names) or f"its parameters are {', '.join(names)}",
                )
    else:
        if len(args) > len(names):
            raise CompileError(
                f"expected at most {len(names)} arguments ({', '.join(names)}), got {len(args)}"
            )
        passed = dict(zip(names, args, strict=False))
    signature: dict[str, str] = {}
    constants: dict[str, object] = {}
    for parameter in parameters:
        if parameter.name not in passed or parameter.name in specified:
            continue
        value = passed[parameter.name]
        if parameter.is_constexpr:
            constants[parameter.name] = value
        else:
            annotated = _annotated_type(parameter.annotation, value)
            signature[parameter.name] = annotated or argument_type(value, named_constant)
    return signature, constants


def _annotated_type(annotation: str, value: object) -> str:
    """Return the type of a number from its annotation, or "" without one."""
    word = annotation.strip("'\"").rpartition(".")[2]
    if word not in TYPE_NAMES or is_pointer(value) or not isinstance(value, int | float):
        return ""
    element = dtype_word(word)
    if element not in SCALARS:
        return ""
    is_multiple = element[0] in "iu" and element != "i1" and int(value) % 16 == 0
    return element + ":16" * is_multiple


@dataclass(frozen=True)
class LaunchableKernel(CompiledKernel):
    """A compiled kernel that launches itself: `kernel[grid](*args)`, like a Triton function.

    `request` is its compile request, `parameters` are its function's.
    """

    request: CompileRequest
    parameters: tuple[KernelParameter, ...]
    _opened: dict[int | None, tuple[Library, Kernel]] = field(
        default_factory=dict[int | None, tuple[Library, Kernel]], repr=False, compare=False
    )

    def __getitem__(self, grid: object) -> Callable[..., None]:
        """Return a launcher for a grid: a number, up to three, or a function of all constants."""

        def launch(*args: object, **keywords: object) -> None:
            self.launch(args, keywords, grid=grid)

        return launch

    def launch(
        self,
        args: Sequence[object],
        keywords: Mapping[str, object] | None = None,
        *,
        grid: object,
        stream: object = None,
        scratch: tuple[int, int] | None = None,
    ) -> None:
        """Launch with the arguments of the function, in order and by name.

        Constants and arguments fixed by the signature may be left out; given ones must equal the
        compiled values. `stream` and `scratch` are as in `aotc.runtime`.

        Raises: `AotcError`, of a class for the reason.
        """
        passed = self._bind(args, keywords or {})
        extents: Any = grid({**self._built, **passed}) if callable(grid) else grid
        arguments = dict(self._arguments(passed))
        self.load(_device_of(arguments.values())).launch(
            arguments, grid=extents, stream=stream, scratch=scratch
        )

    def load(self, device: int | None = None, *, driver: str | None = None) -> Kernel:
        """Return the kernel loaded on a device, the current one for None; load it at first.

        `driver` is the CUDA driver's library, "libcuda.so.1" unless given. Raises: `AotcError`.
        """
        loaded = self._opened.get(device)
        if loaded is None:
            earlier = next(iter(self._opened.values()), None)
            if earlier is None:
                library = load(self.to_archive(), device=device, driver=driver)
            else:
                library = earlier[0]
                library.load(device)
            loaded = self._opened[device] = library, library[self.metadata.symbol]
        return loaded[1]

    def close(self) -> None:
        """Unload the kernel from all devices; its launches must have finished."""
        for library, _ in self._opened.values():
            library.close()
        self._opened.clear()

    def to_archive(self) -> bytes:
        """Return an archive of this kernel alone, as from `aotc build`; callers give the grid.

        Raises: CompileError, ManifestError if no archive can express its specialisation.
        """
        spec = self._spec()
        target = TARGETS[self.request.target].excluding(self.request.without)
        target = target.assembled_by(self.request.toolchain)
        expansion = expand(spec, (target,), autotune_configs)
        built = CachedKernel(self.cubin, self.metadata)
        needs = self.metadata.guards, self.metadata.params
        if launch_condition(expansion.variants[0].request, *needs) is not None:
            plain = compile_kernel(replace(self.request, map_pointers=False))
            built = replace(built, fallback=CachedKernel(plain.cubin, plain.metadata))
        record = assemble(expansion, [(expansion.variants[0], built)]).kernel
        return encode(Archive(record.name, "0.0.0", (record,), toolchain_text(target.toolchain)))

    @cached_property
    def _config(self) -> dict[str, Any]:
        """The config keys with a value, not left to the compiler."""
        values = {name: getattr(self.request.config, name) for name in CONFIG_KEYS}
        return {name: value for name, value in values.items() if value is not None}

    @cached_property
    def _built(self) -> dict[str, Any]:
        """Config keys and constants."""
        return {**self._config, **dict(self.request.constants)}

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """The function's parameters."""
        return tuple(parameter.name for parameter in self.parameters)

    @cached_property
    def _fixed(self) -> dict[str, ArgumentType]:
        """Arguments not passed to the runtime, by the runtime's names."""
        parsed = {name: parse_type(text) for name, text in self._flat.items()}
        return {name: argument for name, argument in parsed.items() if not argument.is_passed}

    @cached_property
    def _flat(self) -> dict[str, str]:
        """The type of each argument and item."""
        return {
            leaf: text
            for name, kind in self._types.items()
            for leaf, text in (kind.leaves(name) if isinstance(kind, TupleType) else [(name, kind)])
            if kind is text or not names_function(text, DTYPE_WORDS)
        }

    def _spec(self) -> KernelSpec:
        """Return the kernel as a manifest would describe it."""
        loc = Loc(self.request.source, 1)
        parameters = [
            Parameter(*(parameter.name, parameter.is_constexpr, True))
            for parameter in self.parameters
        ]
        types = self._types
        config = {n: v for n, v in self._config.items() if v != CONFIG_KEYS[n].default}
        return KernelSpec(
            name=self.metadata.symbol,
            source=self.request.source,
            function=Function(self.metadata.symbol, tuple(parameters), loc),
            signature={name: parse_type(text) for name, text in self._flat.items()},
            types={},
            constants={},
            choices={},
            configs=CartesianConfigs(tuple((name, (value,)) for name, value in config.items())),
            grid=None,
            where=None,
            guards="together",
            loc=loc,
            configs_loc=loc,
            tuples={name: kind for name, kind in types.items() if isinstance(kind, TupleType)},
            enable_fp_fusion=self.request.enable_fp_fusion,
            enable_reflect_ftz=self.request.enable_reflect_ftz,
        )

    @cached_property
    def _types(self) -> dict[str, str | TupleType]:
        """The types of the arguments, in the order of the function's parameters."""
        signature = dict(self.request.signature)
        return {
            parameter.name: parse_tuple_type(text) if is_tuple_type(text) else text
            for parameter in self.parameters
            if (text := signature.get(parameter.name)) is not None
        }

    def _bind(self, args: Sequence[object], keywords: Mapping[str, object]) -> dict[str, object]:
        """Map parameters to the arguments of a launch; constants are checked.

        Raises: ArgumentError.
        """
        names = self._names
        if len(args) > len(names):
            raise self._wrong("", f"at most {len(names)} arguments", str(len(args)))
        passed = dict(zip(names, args, strict=False))
        for name, value in keywords.items():
            if name in passed:
                raise self._wrong(name, "each argument once", "it twice")
            if name not in names and name not in CONFIG_KEYS:
                remedy = did_you_mean(name, [*names, *CONFIG_KEYS])
                raise self._wrong(name, "a parameter or a config key", repr(name), remedy)
            passed[name] = value
        built, types = self._built, self._types
        for name in [name for name in passed if name not in types]:
            value = passed.pop(name)
            if name not in built:
                remedy = f"give {name} among the constants when it is compiled"
                raise self._wrong(
                    name, "no value: it was compiled without one", repr(value), remedy
                )
            is_same = type(value) is type(built[name]) and value == built[name]
            if is_same or named_constant(value) == built[name]:
                continue
            if not is_same_constant(value, built[name]):
                raise self._wrong(name, repr(built[name]), repr(value), _COMPILE_AGAIN)
        return passed

    def _arguments(self, passed: Mapping[str, object]) -> Iterator[tuple[str, object]]:
        """Yield the arguments for the runtime. Raises: ArgumentError."""
        for name, kind in self._types.items():
            if name in passed:
                yield from self._leaves(name, kind, passed[name])
            elif name not in self._fixed:
                raise self._wrong(name, str(dict(self.request.signature)[name]), "nothing")

    def _leaves(
        self, name: str, kind: str | TupleType, value: object
    ) -> Iterator[tuple[str, object]]:
        if isinstance(kind, TupleType):
            items = items_of(value)
            if items is None or len(items) != len(kind.items):
                raise self._wrong(name, f"a tuple of {len(kind.items)}", repr(value))
            for key, item, leaf_value in zip(kind.keys(name), kind.items, items, strict=True):
                yield from self._leaves(key, item, leaf_value)
            return
        if name not in self._flat:
            if not _is_function(value, kind):
                raise self._wrong(name, f"the function {kind}", repr(value), _COMPILE_AGAIN)
            return
        fixed = self._fixed.get(name)
        if fixed is None:
            yield name, value
        elif value != fixed.value:
            raise self._wrong(name, kind, repr(value), _COMPILE_AGAIN)

    def _wrong(self, name: str, expected: str, actual: str, remedy: str = "") -> ArgumentError:
        """Return the error of an argument."""
        where = f"{self.metadata.symbol}{f', {name}' if name else ''}"
        suffix = f"; {remedy}" if remedy else ""
        error = ArgumentError(f"{where}: expected {expected}, got {actual}{suffix}")
        error.kernel, error.field = self.metadata.symbol, name
        error.expected, error.got, error.remedy = expected, actual, remedy
        return error


_COMPILE_AGAIN = "compile it again for this value"


def _is_function(value: object, name: str) -> bool:
    """Return whether a function, decorated or not, has this name, possibly with its file."""
    function = getattr(value, "fn", value)
    if not hasattr(function, "__code__"):
        return False
    if ":" not in name:
        return getattr(function, "__name__", "") == name.rpartition(".")[2]
    full = str(named_constant(value))
    return full == name if name.startswith("/") else full.endswith(f"/{name}")


def _device_of(values: Iterable[object]) -> int | None:
    """Return the device of the first tensor with one, or None."""
    for value in values:
        if hasattr(value, "get_device"):
            device = cast("Any", value).get_device()
            return device if device >= 0 else None
        index = getattr(getattr(value, "device", None), "index", None)
        if isinstance(index, int):
            return index
    return None
