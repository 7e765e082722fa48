"""Launch a Python function from archives: find the kernels once, then call them.

The first launch with given constants, options and argument types finds the matching kernels. Later
launches use the extension's cache; it binds arguments and tries the kernels in order. The loader
checks dtypes, promises and ranges at every launch.

Invariant: the launched kernel was built with the launch's constants and options, and with the types
Triton would infer for its arguments. The grid is the caller's.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from aotc.runtime import ArchError, ArgumentError, Kernel, NotFoundError, StateError, _native
from aotc.triton.archives import ArchivedKernel, Archives
from aotc.triton.specialization import (
    SCALARS,
    TYPE_NAMES,
    Described,
    NotInArchiveError,
    is_pointer,
    is_same_constant,
    not_in_archive,
    scalar_type,
)

if TYPE_CHECKING:
    from typing_extensions import Self

# (kernel, indices of its parameters, config, choices) of each kernel; then the indices of the first
# kernel's arguments distinguishing them.
Found = tuple[
    tuple[tuple[Kernel, tuple[int, ...], dict[str, Any], dict[str, Any]], ...], tuple[int, ...]
]
# Compile options of a launch, with Triton's defaults.
DEFAULTS: dict[str, Any] = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None}
# Options of a kernel, not of a config.
_FUSION, _FTZ, _COOPERATIVE = "enable_fp_fusion", "enable_reflect_ftz", "launch_cooperative_grid"
# Options with fixed values in all archives (besides None), then options without effect on them.
_FIXED: dict[str, tuple[object, ...]] = {
    "arch": (),
    "backend_name": ("cuda",),
    "default_dot_input_precision": ("tf32",),
    "extern_libs": (),
    "max_num_imprecise_acc_default": (),
    "ptx_options": ("",),
    "warp_size": (32,),
}
_IGNORED = (
    *("debug", "launch_pdl", "ir_override", "instrumentation_mode", "sanitize_overflow"),
    *("ptx_version", "supported_fp8_dtypes", "deprecated_fp8_dot_operand_dtypes"),
    *("allowed_dot_input_precisions", "num_consumer_groups", "num_buffers_warp_spec"),
    *("reg_dec_producer", "reg_inc_consumer", "minRegAutoWS", "maxRegAutoWS", "pingpongAutoWS"),
)
_MISSES = (NotFoundError, ArgumentError, ArchError)


class Probe(NamedTuple):
    """Sentinel passed as `warmup` through decorators: find a kernel, launch nothing."""


PROBE = Probe()


class Candidate(NamedTuple):
    """A kernel with a config matching a launch, and its parameters' names.

    The candidate with the least `rank` is launched. Rank orders by: distance from Triton's default
    config, number of promises (most first), width of integers, order in archives and manifests.
    `arguments` are set by `probe`.
    """

    rank: tuple[int, ...]
    kernel: ArchivedKernel
    passed: tuple[str, ...]
    config: dict[str, Any] | None
    choices: dict[str, Any]
    arguments: Sequence[Any] = ()


class Launcher(_native.Launcher):
    """Launcher of a function from archives: `launcher[grid](*args, **kwargs)`."""

    function: Any
    constexprs: frozenset[str]
    signature: inspect.Signature
    names: tuple[str, ...]
    options: tuple[str, ...]
    _nested: Mapping[str, Any] | None
    kernels: list[ArchivedKernel]
    _reason: str
    _loaded: set[tuple[int, int | None]]  # kernels, by order, and devices

    def __new__(
        cls,
        function: Any,
        constexprs: frozenset[str],
        archives: Archives,
        hooks: list[Callable[..., object]],
        signature: inspect.Signature | None = None,
        nested: Mapping[str, Any] | None = None,
    ) -> Self:
        """Create the launcher of a jitted function; `hooks` are called before each launch.

        With tuples flattened in `signature`, `nested` has the tuples of the items' names.
        """
        signature = signature or inspect.signature(function.fn)
        names = tuple(signature.parameters)
        defaults = tuple(
            _MISSING if parameter.default is inspect.Parameter.empty else parameter.default
            for parameter in signature.parameters.values()
        )
        options = tuple(
            name
            for name in (*DEFAULTS, _FUSION, _FTZ, _COOPERATIVE, *_FIXED, *_IGNORED)
            if name not in names
        )
        kernels, reason = archives.kernels_of(function)
        fixed: dict[str, tuple[object, ...]] = {}
        for kernel in kernels:
            for name, value in kernel.info.constants.items():
                if name not in constexprs:
                    fixed[name] = (*fixed.get(name, ()), value)
        self = super().__new__(cls, names, defaults, constexprs, fixed, options, hooks, _FAILED)
        self.function, self.constexprs, self._nested = function, constexprs, nested
        self.signature, self.names, self.options = signature, names, options
        self.kernels, self._reason = kernels, reason
        self._loaded = set()
        return self

    # -- called by the extension -----------------------------------------------------------------

    def _find(self, bound: dict[str, Any], options: dict[str, Any]) -> Found:
        """Return the kernels built with these constants, options and argument types.

        Raises: NotInArchiveError if there are none.
        """
        missing = [name for name, value in bound.items() if value is _MISSING]
        if missing:
            raise TypeError(f"{self.function.fn.__name__} is launched without {', '.join(missing)}")
        candidates = self.candidates(bound, options)
        if not candidates:
            raise self.miss(bound, options, self._reason or _OTHER_CONSTANTS)
        return self._as_found(candidates, bound)

    def _find_again(
        self, error: Exception, bound: dict[str, Any], options: dict[str, Any]
    ) -> Found:
        """Load kernels missing on this device, for another try at the launch.

        Raises: NotInArchiveError if nothing fits.
        """
        loaded = set(self._loaded)
        candidates = self.candidates(bound, options)
        # A first launch on a device: tensors or the current context are of a new device.
        is_first = loaded != self._loaded or getattr(error, "field", "") == "stream"
        if not candidates or not is_first:
            self._refuse(error, bound, options)
        return self._as_found(candidates, bound)

    def _refuse(self, error: Exception, bound: dict[str, Any], options: dict[str, Any]) -> NoReturn:
        """Report a launch without a fitting kernel.

        Raises: NotInArchiveError.
        """
        raise self.miss(bound, options, str(error)) from error

    def _as_found(self, candidates: Sequence[Candidate], bound: Mapping[str, Any]) -> Found:
        candidates = _joined(candidates)
        choices = tuple(
            (
                candidate.kernel.kernel,
                tuple(map(self.names.index, candidate.passed)),
                candidate.config or {},
                candidate.choices,
            )
            for candidate in candidates
        )
        return choices, telling(candidates, bound)

    # -- done once per specialisation ------------------------------------------------------------

    def candidates(self, bound: Mapping[str, Any], options: Mapping[str, Any]) -> list[Candidate]:
        """Return the kernels built with these constants and options, best first."""
        devices = {_device_of(value) for value in bound.values()} - {-1}
        for name, built in _FIXED.items():
            value = options.get(name)
            if value is not None and value not in built and not _is_libdevice(name, value):
                raise self.miss(bound, options, f"{name}={value} is not built")
        requested = {**{n: bound[n] for n in DEFAULTS if n in bound}, **options}
        candidates = [
            candidate
            for kernel in self.kernels
            if kernel.fuses_multiplies == (options.get(_FUSION) is not False)
            if kernel.reflects_ftz == (options.get(_FTZ) is not False)
            if kernel.is_cooperative or not options.get(_COOPERATIVE)
            for candidate in self._of_kernel(kernel, bound, requested)
            if self._is_loaded(kernel, devices or {None})
        ]
        return sorted(candidates, key=lambda candidate: candidate.rank)

    def _is_loaded(self, kernel: ArchivedKernel, devices: Iterable[int | None]) -> bool:
        """Load a kernel on its arguments' devices; return whether it runs there."""
        try:
            for device in devices:
                kernel.load(device)
                self._loaded.add((kernel.order, device))
        except ArchError as error:
            self._reason = str(error)
            return False
        return True

    def _of_kernel(
        self, kernel: ArchivedKernel, bound: Mapping[str, Any], requested: Mapping[str, Any]
    ) -> Iterator[Candidate]:
        """Yield a candidate for each config of a kernel matching the launch."""
        info = kernel.info
        params = {param.name: param for param in info.params}
        if not params.keys() <= bound.keys() - self.constexprs:
            return
        if not kernel.functions.keys() <= bound.keys():  # built for tuples of other items
            return
        width = 0
        rest: dict[str, Any] = {}  # to be matched by the config
        for name, value in bound.items():
            if name in params:
                param = params[name]
                if not _takes(param, self._is_annotated(name), value):
                    return
                width += int(param.element[1:]) if param.element[:1] in "iu" else 0
            elif name in info.choices:
                if not any(is_same_constant(value, choice) for choice in info.choices[name]):
                    return
            elif name in info.constants or name in kernel.functions:
                if not self._is_built(kernel, name, value):
                    return
            else:
                rest[name] = value
        promises = sum(guard.is_promise for guard in info.guards)
        promises += sum(name in info.constants for name in bound.keys() - self.constexprs)
        choices = {
            name: next(choice for choice in values if is_same_constant(bound[name], choice))
            for name, values in info.choices.items()
        }
        for index, config in enumerate(info.configs):
            constants = {**info.constants, **choices, **config}
            if not all(
                bound[name].block == block_of(kernel.blocks[name], constants)
                for name, param in params.items()
                if param.kind == "tensor"
            ):
                continue
            if all(self._is_default(name, value, config) for name, value in rest.items()):
                strange = _strangeness(config, requested)
                if strange is not None:
                    strange += kernel.is_cooperative and not requested.get(_COOPERATIVE)
                    rank = (strange, -promises, width, kernel.order, index)
                    whole = config if len(info.configs) > 1 else None
                    yield Candidate(rank, kernel, tuple(params), whole, choices)

    def _is_annotated(self, name: str) -> bool:
        """Return whether a parameter's annotation fixes its type."""
        annotation = self.signature.parameters[name].annotation
        dtype_name = getattr(annotation, "name", None)  # `tl.const` has a name of another kind
        names = [text for text in (annotation, dtype_name) if isinstance(text, str)]
        text = names[0] if names else repr(annotation)
        return text.strip().rpartition(".")[2] in TYPE_NAMES

    @staticmethod
    def _is_built(kernel: ArchivedKernel, name: str, value: Any) -> bool:
        function = kernel.functions.get(name)
        return is_same_constant(value, function or kernel.info.constants[name])

    def _is_default(self, name: str, value: Any, config: Mapping[str, Any]) -> bool:
        """Return whether a value equals the config's constant, or else the default."""
        if name in config:
            return is_same_constant(value, config[name])
        default = self.signature.parameters[name].default
        return default is not inspect.Parameter.empty and is_same_constant(value, default)

    def probe(self, bound: Mapping[str, Any], options: Mapping[str, Any]) -> Candidate | None:
        """Return the kernel for a launch, None without one."""
        for candidate in self.candidates(bound, options):
            arguments = [bound[name] for name in candidate.passed]
            try:
                candidate.kernel.kernel.select(
                    arguments, grid=1, config=candidate.config, choices=candidate.choices
                )
            except _MISSES:
                continue
            return candidate._replace(arguments=arguments)
        return None

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Launcher, dict[str, Any], dict[str, Any]]:
        """Return the launcher, the arguments by parameter, and the options.

        Raises: TypeError as a call does, KeyError for an option unknown to Triton.
        """
        unknown = [name for name in kwargs if name not in self.names and name not in self.options]
        if unknown:  # as Triton
            message = f"Keyword argument {unknown[0]} was specified but unrecognised"
            raise KeyError(message)
        passed = {name: value for name, value in kwargs.items() if name in self.names}
        bound = self.signature.bind(*args, **passed)
        bound.apply_defaults()
        return self, dict(bound.arguments), {name: kwargs.get(name) for name in self.options}

    def miss(
        self, bound: Mapping[str, Any], options: Mapping[str, Any], reason: str
    ) -> NotInArchiveError:
        """Return the error for a launch missing from the archives."""
        unsaid = (*_IGNORED, *_FIXED)
        settings = {name: value for name, value in options.items() if name not in unsaid}
        if self._nested is not None:
            bound = {name: _nest(keys, bound) for name, keys in self._nested.items()}
        if reason == _OTHER_CONSTANTS:
            reason = f"{reason}: {self._built()}"
        return not_in_archive(self.function, self.constexprs, bound, settings, reason)

    def _built(self) -> str:
        """Return the constants and configs of a function's kernels, the first few."""
        built = [
            {**{k: v for k, v in kernel.info.constants.items() if k in self.constexprs}, **config}
            for kernel in self.kernels
            for config in kernel.info.configs or ({},)
        ]
        texts = [
            ", ".join(f"{name}={value!r}" for name, value in constants.items())
            for constants in built
        ]
        distinct = [*dict.fromkeys(filter(None, texts))]
        more = "; …" if len(distinct) > _MAX_BUILT else ""
        return f"{'; '.join(distinct[:_MAX_BUILT]) or 'without any'}{more}"


def _is_libdevice(option: str, value: Any) -> bool:
    """Return whether an option adds no library except libdevice (linked by default)."""
    return option == "extern_libs" and set(dict(value)) <= {"libdevice"}


_MISSING = object()
_FAILED = (*_MISSES, StateError)
_MAX_BUILT = 4  # constants and configs listed in the error
_OTHER_CONSTANTS = "its kernels were built with other constants, options, or kinds of arguments"


def _nest(keys: Any, values: Mapping[str, Any]) -> Any:
    """Replace the names in nested tuples by their values."""
    if isinstance(keys, str):
        return values[keys]
    items = [_nest(key, values) for key in keys]
    make: Callable[[list[Any]], Any] = getattr(keys, "_make", tuple)
    return make(items)


def _takes(param: Any, is_annotated: bool, value: Any) -> bool:  # noqa: FBT001
    """Return whether a kernel's parameter has the type Triton infers for an argument."""
    if param.kind == "pointer":
        return is_pointer(value) or (value is None and param.may_be_none)
    if param.kind == "tensor":
        return isinstance(value, Described) and is_pointer(value[0])
    if param.kind != "scalar":
        return False
    kind = scalar_type(value)
    if not kind or is_annotated:  # the annotation fixed the type
        return bool(kind)
    is_wider = kind in ("i32", "i64") and param.element in ("i32", "i64", "u64")
    return is_wider or kind == param.element


def block_of(
    built: tuple[Sequence[int | str], bool], constants: Mapping[str, Any]
) -> tuple[tuple[int, ...], bool] | None:
    """Return the block of a descriptor for given constants, None if its extents are invalid."""
    try:
        extents = tuple(
            extent
            if isinstance(extent, int)
            else _evaluated(ast.parse(extent, mode="eval").body, constants)
            for extent in built[0]
        )
    except (LookupError, SyntaxError, TypeError, ValueError, ZeroDivisionError):
        return None
    return extents, built[1]


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}


def _evaluated(node: ast.expr, constants: Mapping[str, Any]) -> int:
    """Evaluate an extent's expression. Raises: LookupError, TypeError for unsupported syntax."""
    match node:
        case ast.Name(name):
            return int(constants[name])
        case ast.Constant(int(value)):
            return value
        case ast.BinOp(left, op, right):
            apply = _OPERATORS[type(op)]
            return apply(_evaluated(left, constants), _evaluated(right, constants))
        case ast.Call(ast.Name(name), [first, *others], []) if name in ("cdiv", "min", "max"):
            values = [_evaluated(argument, constants) for argument in (first, *others)]
            if name == "cdiv":
                return -(-values[0] // values[1])
            return min(values) if name == "min" else max(values)
        case _:
            raise TypeError(f"an extent has a {type(node).__name__}")


def _strangeness(config: Mapping[str, Any], requested: Mapping[str, Any]) -> int | None:
    """Count a config's non-default options among those the launch leaves open.

    Returns None if the config contradicts the launch's options.
    """
    strange = 0
    for name, default in DEFAULTS.items():
        built, setting = config.get(name, default), requested.get(name)
        if setting is not None and setting != built:
            return None
        strange += setting is None and built != default
    return strange


def common_config(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries common to all configs."""
    return {
        name: value
        for name, value in configs[0].items()
        if all(name in config and is_same_constant(value, config[name]) for config in configs)
    }


def _joined(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Join a kernel's equally ranked configs into one candidate, left to its selection."""
    groups: dict[object, list[Candidate]] = {}
    for index, candidate in enumerate(candidates):
        is_selected = candidate.kernel.info.num_selections and candidate.config is not None
        groups.setdefault(candidate.rank[:-1] if is_selected else index, []).append(candidate)
    return [
        group[0]._replace(config=common_config([member.config or {} for member in group]))
        if len(group) > 1
        else group[0]
        for group in groups.values()
    ]


def telling(candidates: Sequence[Candidate], bound: Mapping[str, Any]) -> tuple[int, ...]:
    """Return indices of the first candidate's arguments distinguishing the candidates.

    These have promises in some kernel, or different dtypes.
    """
    guards = "\n".join(
        guard.text for candidate in candidates for guard in candidate.kernel.info.guards
    )
    promised = set(re.findall(r"\w+", guards))
    elements: dict[str, set[str]] = {}
    for candidate in candidates:
        for param in candidate.kernel.info.params:
            elements.setdefault(param.name, set()).add(param.element)
    return tuple(
        index
        for index, name in enumerate(candidates[0].passed)
        if bound[name] is not None
        and (name in promised or len(elements[name]) > 1 or not elements[name] <= SCALARS)
    )


def _device_of(value: Any) -> int:
    """Return a tensor's device, -1 if unknown."""
    if isinstance(value, Described):
        return _device_of(value[0])
    if hasattr(value, "get_device"):
        return value.get_device()
    index = getattr(getattr(value, "device", None), "index", None)
    return index if isinstance(index, int) else -1
