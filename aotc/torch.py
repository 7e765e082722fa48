"""Kernels of an archive as PyTorch operators, for `torch.compile`, `torch.export`, CUDA graphs.

    lib = aotc.load("dist/llm.aotc")
    ops = aotc.torch.register(lib)
    ops.rmsnorm(x, weight, out, x.stride(0), n_rows, n_cols, 1e-6)     # torch.ops.llm.rmsnorm when traced

An archive records for each argument whether the kernel writes through it. This is an operator's
schema, and a fake implementation as well: a kernel returns nothing, and makes no tensor. Traced
calls go through the dispatcher. Eager ones go straight to the loader, past tens of microseconds.

Invariant: an operator takes the arguments of `lib["name"]`, in order and choices by name, and
launches the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from aotc.runtime.errors import AotcError

if TYPE_CHECKING:
    from aotc.runtime import Kernel, Library
    from aotc.runtime.info import KernelInfo, ParamInfo, Value

_WRITES = ("write", "both", "unknown")
_GRID = "grid"
_CHOICE_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}


class Operators:
    """The operators of an archive by the names of its kernels, as attributes or as items."""

    def __init__(self, operators: dict[str, Operator]) -> None:
        self._operators = operators

    def __getattr__(self, name: str) -> Operator:
        if name.startswith("_") or name not in self._operators:
            raise AttributeError(f"no operator {name!r}; there are {', '.join(self._operators)}")
        return self._operators[name]

    def __getitem__(self, name: str) -> Operator:
        return self._operators[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._operators)

    def __len__(self) -> int:
        return len(self._operators)

    def __dir__(self) -> list[str]:
        return list(self._operators)


Operator = Callable[..., None]


def register(
    library: Library,
    *,
    kernels: Iterable[str] | None = None,
    namespace: str | None = None,
    device_type: str = "cuda",
) -> Operators:
    """Make operators of the kernels of a loaded archive: `torch.ops.NAMESPACE.KERNEL`.

    `kernels` are names; None is all. `namespace` is the archive's name unless given. `device_type`
    is the tensors'. Operators stay registered as long as the returned object lives; the library
    must stay open as long.

    Raises: ImportError without PyTorch; ValueError for a kernel without a schema, or a name in use.
    """
    torch = import_module("torch")
    space = library.name if namespace is None else namespace
    infos = [library[name].info for name in (library.kernels if kernels is None else kernels)]
    schemas = [schema_of(info) for info in infos]
    for info in infos:
        if hasattr(getattr(torch.ops, space), info.name):
            message = f"torch.ops.{space}.{info.name} is registered already"
            raise ValueError(f"{message}; give another namespace")
    torch_library = torch.library.Library(space, "FRAGMENT")
    operators: dict[str, Operator] = {}
    for info, schema in zip(infos, schemas, strict=True):
        kernel = library[info.name]
        # Strides are numbers among the arguments, so a compiler must not lay tensors out otherwise.
        torch_library.define(
            schema, tags=(torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)
        )
        launch = _launcher(kernel, info, torch)
        torch_library.impl(info.name, launch, device_type.upper())
        torch_library.impl(info.name, _fake, "Meta")
        traced = getattr(getattr(torch.ops, space), info.name)
        operators[info.name] = _operator(kernel, traced.default, launch, torch)
    registered = Operators(operators)
    vars(registered)["_library"] = torch_library
    return registered


def schema_of(info: KernelInfo) -> str:
    """Return the schema of a kernel's operator.

    Raises: ValueError for choices of several types, impossible in a schema.
    """
    params = [_parameter(index, param, info) for index, param in enumerate(info.params)]
    choices = [_choice(info, name, values) for name, values in info.choices.items()]
    grid = [] if info.grid_rank else [f"SymInt[] {grid_name(info)}"]
    keywords = ["*", *grid, *choices] if grid or choices else []
    return f"{info.name}({', '.join([*params, *keywords])}) -> ()"


def grid_name(info: KernelInfo) -> str:
    """Return the grid keyword of a kernel without a grid of its own."""
    used_names = {*(param.name for param in info.params), *info.choices}
    return _GRID if _GRID not in used_names else f"launch_{_GRID}"


def _parameter(index: int, param: ParamInfo, info: KernelInfo) -> str:
    if param.kind == "scalar":
        return f"{_scalar_type(info.types.get(param.element, (param.element,)))} {param.name}"
    alias = f"(a{index}!)" if param.access in _WRITES else ""
    return f"Tensor{alias}{'?' if param.may_be_none else ''} {param.name}"


def _scalar_type(dtypes: Sequence[str]) -> str:
    kinds = {
        "bool" if name == "i1" else "SymInt" if name[0] in "iu" else "float" for name in dtypes
    }
    return kinds.pop() if len(kinds) == 1 else "Scalar"


def _choice(info: KernelInfo, name: str, values: Sequence[Value]) -> str:
    kinds = {_CHOICE_TYPES[type(value)] for value in values if value is not None}
    if len(kinds) != 1:
        listed = ", ".join(map(repr, values))
        message = f"expected choices of one type for {name!r} of kernel {info.name!r}, got {listed}"
        raise ValueError(f"{message}; a schema has one type: name the other kernels in `kernels`")
    return f"{kinds.pop()}{'?' if None in values else ''} {name}"


def _fake(*args: object, **keywords: object) -> None:
    """Do nothing: a kernel returns nothing, and the schema declares its writes."""
    del args, keywords


def _launcher(kernel: Kernel, info: KernelInfo, torch: Any) -> Operator:
    """Return the operator's implementation for the dispatcher."""
    keyword = grid_name(info)

    def launch(*args: Any, **keywords: Any) -> None:
        grid = keywords.pop(keyword, None)
        choices = keywords or None
        try:
            kernel.launch(args, grid=grid, choices=choices)
        except AotcError as error:
            if error.field != "scratch":
                raise
            selection = kernel.select(args, grid=grid, choices=choices)
            device = next(tensor.device for tensor in args if isinstance(tensor, torch.Tensor))
            num_bytes, align = selection.scratch_bytes, selection.scratch_align
            buffer = torch.empty(num_bytes + align, dtype=torch.uint8, device=device)
            address = -(-buffer.data_ptr() // align) * align
            kernel.launch(args, grid=grid, choices=choices, scratch=(address, num_bytes))

    return launch


def _operator(kernel: Kernel, traced: Any, launch: Operator, torch: Any) -> Operator:
    """Return a callable: the operator under tracing, the loader elsewhere."""
    is_compiling = torch.compiler.is_compiling
    # A mode, such as the one of fake tensors, sees operators alone, and so does a subclass of a
    # tensor.
    num_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001 - nothing public asks for it
    plain = {torch.Tensor, torch.nn.Parameter, int, float, bool, type(None)}
    symbols = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)

    def is_traced(args: tuple[Any, ...]) -> bool:
        return any(issubclass(kind, symbols) for kind in {*map(type, args)} - plain)

    def call(*args: Any, **keywords: Any) -> None:
        if (
            is_compiling()
            or num_modes()
            or (not plain.issuperset(map(type, args)) and is_traced(args))
        ):
            traced(*args, **keywords)
        else:
            try:
                kernel(*args, **keywords)
            except AotcError as error:
                if error.field != "scratch":
                    raise
                launch(*args, **keywords)

    call.__name__ = call.__qualname__ = kernel.name
    call.__doc__ = f"Launch {kernel!r}."
    return call
