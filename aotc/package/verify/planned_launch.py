"""Plan launches of one variant with the runtime's C code, over an archive of it alone.

A variant becomes an archive of its own, encoded and opened as any other, and `aotc.runtime` plans
each launch. So the archive's records go through the same evaluator, selection and encoder as a real
launch. A manifest's variant is not assembled yet, so it gets a dummy cubin; its parameters, guards
and maps are the ones `aotc build` would write.

Neighbouring launches, with arguments one off, are planned as well. They must select the variant
exactly where its guards hold, and the driver must be able to encode their maps. They also fill the
plan cache with entries that a later launch must not confuse with its own.

Invariant: one archive serves all launches of a variant, in order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod

import zstandard

from aotc.compiler import PtxKernel
from aotc.ir import expression
from aotc.ir.expression import Expression, ExpressionError, Integer
from aotc.ir.params import GRID_SOURCES, SCRATCH_ALIGNMENT_BYTES, SCRATCH_SOURCE
from aotc.metadata import Metadata
from aotc.package.archive import file as archives
from aotc.package.archive.index import Archive, Kernel, parse_target
from aotc.package.builder.assemble import assemble
from aotc.package.builder.condition import launch_condition
from aotc.package.cache.store import CachedKernel
from aotc.package.manifest.argument_type import PROMISED_DIVISOR
from aotc.package.manifest.variant_grid import Expansion, VariantSpec
from aotc.package.verify import refusals
from aotc.package.verify.refusals import Needs
from aotc.runtime import AotcError, Pointer, Tensor, _native
from aotc.runtime.info import Plan, PlannedMap
from aotc.verify.checks.check import ExecutionFault
from aotc.verify.checks.launched import Launched
from aotc.verify.checks.reference import Reference
from aotc.verify.emulator.async_copies.tensor_map import TensorMap, TensorMapError
from aotc.verify.emulator.text.program import Module

_ELEMENTS = (
    *("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16"),
    *("f32.ftz", "tf32", "tf32.ftz"),
)
"""The emulator's name of each supported CUtensorMapDataType."""

_SWIZZLES = ((0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3))
"""The emulator's swizzle and atomicity of each CUtensorMapSwizzle."""

_MAX_SCRATCH_BYTES = 1 << 62
"""More than any launch uses: the emulator sees which scratch memory is used, and its end."""


def launcher_of_record(
    kernel: Kernel, guards: Sequence[Expression], fixed: Mapping[str, int], needs: Needs
) -> PlannedLauncher:
    """Return the launcher of a kernel's record with one variant; its code `needs` something.

    Launches select the variant if `guards` hold; `fixed` are arguments with compiled-in values.
    """
    (variant,) = kernel.variants
    record = kernel.alone(replace(variant, ptx=None))
    data = archives.encode(Archive("verified", "0.0.0", (record,)))
    opened = _native.Archive(data, zstandard.decompress, False, None)  # noqa: FBT003 - positional-only
    return PlannedLauncher(record, opened[kernel.name], tuple(guards), fixed, needs)


def launcher_of_request(
    expansion: Expansion,
    spec: VariantSpec,
    compiled: PtxKernel,
    module: Module,
    guards: Sequence[Expression],
    fixed: Mapping[str, int],
    needs: Needs,
) -> PlannedLauncher:
    """Return the launcher of a manifest's variant compiled as far as PTX."""
    metadata = Metadata(
        name=spec.kernel.name,
        symbol=compiled.symbol,
        target=spec.target.name,
        num_threads=module.kernels[compiled.symbol].cta_threads[0],
        num_ctas=max(1, prod(module.kernels[compiled.symbol].cluster_ctas)),
        shared_bytes=compiled.shared_bytes,
        static_shared_bytes=0,
        registers=0,
        spill_bytes=0,
        stack_bytes=0,
        params=compiled.params,
        remarks=(),
        ptxas_warnings=(),
        source_files=(),
        guards=compiled.guards,
        is_persistent=any(slot.source in GRID_SOURCES for slot in compiled.params),
        cooperative=compiled.cooperative,
        scratch_bytes=compiled.scratch_bytes,
        whole_rows=compiled.whole_rows,
        overflows=compiled.overflows,
    )
    cubin = stand_in_cubin(spec.target.name, compiled.symbol)
    built = CachedKernel(cubin, metadata)
    if launch_condition(spec.request, compiled.guards, compiled.params) is not None:
        # Other launches use the fallback; it is not needed here.
        rest = replace(
            metadata,
            params=(),
            guards=(),
            is_persistent=False,
            cooperative=False,
            scratch_bytes=0,
            whole_rows=(),
        )
        built = replace(built, fallback=CachedKernel(cubin, rest))
    kernel = assemble(expansion, [(spec, built)]).kernel
    variant = kernel.variants[0]
    # Guards derived from the code are not in the manifest.
    code_guards = [
        kernel.guards[index] for index in variant.guards if index >= len(expansion.guards)
    ]
    all_guards = (*guards, *(guard.expression for guard in code_guards))
    return launcher_of_record(kernel.alone(variant), all_guards, fixed, needs)


def stand_in_cubin(target: str, symbol: str) -> bytes:
    """Return an ELF file with the parts of a cubin that a loader checks: target and function."""
    names = b"\0.shstrtab\0.text." + symbol.encode() + b"\0"
    section = struct.Struct("<IIQQQQIIQQ")
    table = section.pack(*[0] * 10)
    table += section.pack(1, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    table += section.pack(11, 1, 0, 0, 64 + len(names), 0, 0, 0, 1, 0)
    major, minor, _ = parse_target(target)
    ident = b"\x7fELF\x02\x01\x01"
    numbers = (2, 190, 1, 0, 0, 64 + len(names), (10 * major + minor) << 8, 64, 56, 0, 64, 3, 1)
    return struct.pack("<16sHHIQQQIHHHHHH", ident, *numbers) + names + table


_MAX_EXTENT, _MAX_STRIDE = 1 << 32, 1 << 40
"""Limits of tensor maps: extents up to the first, and strides in bytes below the second."""


@dataclass(frozen=True, slots=True)
class PlannedLauncher:
    """Plan launches of a record's only variant; see `aotc.verify.checks.launched.Launcher`."""

    record: Kernel
    kernel: _native.Kernel
    guards: tuple[Expression, ...]
    fixed: Mapping[str, int]
    needs: Needs
    refused: list[int] = field(default_factory=list[int])
    """Number of the launch used to try arguments that must be refused: one is enough."""

    def __call__(
        self, reference: Reference, addresses: Mapping[str, int], at_once: int
    ) -> Launched | None:
        """Return the launch planned by the runtime. Raises: ExecutionFault if it refuses."""
        args = self._arguments(reference, addresses)
        scratch = addresses.get(SCRATCH_SOURCE, 0)
        grid = None if self.record.variants[0].grid else reference.launch.grid
        try:
            plan = self._plan(args, grid, at_once, scratch)
        except AotcError as error:
            raise ExecutionFault(f"the launch is refused: {error}") from error
        if plan is not None:
            self._check_plan(plan, args, reference, at_once)
        self._check_neighbours(args, grid, at_once, scratch)
        if grid is not None:
            self._check_other_grid(plan, args, (grid[0] + 1, *grid[1:]), at_once, scratch)
        with suppress(AotcError):  # the plan cache must not have this launch yet
            self._plan(_larger(args), grid, at_once, scratch)
        again = self._plan(args, grid, at_once, scratch)  # from the cache, unless evicted
        if again != plan:
            raise ExecutionFault(f"the launcher plans {again} for a launch planned as {plan}")
        return None if plan is None else self._launched(plan)

    def _check_other_grid(
        self,
        plan: Plan | None,
        args: Sequence[object],
        grid: tuple[int, ...],
        at_once: int,
        scratch: int,
    ) -> None:
        """Check that another grid has another plan. Raises: ExecutionFault."""
        with suppress(AotcError):
            other = self._plan(args, grid, at_once, scratch)
            if other is not None and other == plan:
                raise ExecutionFault(f"the launcher plans {plan} for a grid of {grid} as well")

    def _check_plan(
        self, plan: Plan, args: Sequence[object], reference: Reference, at_once: int
    ) -> None:
        """Check the parts of a plan besides parameters. Raises: ExecutionFault."""
        variant = self.record.variants[0]
        grid = None if variant.grid else reference.launch.grid
        refusals.check_plan(self.needs, plan)
        if self.needs.scratch_bytes:
            scratch_plan = self._plan(args, grid, at_once, 0)
            assert scratch_plan is not None
            offset = next(p.offset for p in variant.cubin_params if p.source == "scratch")
            pointer = int.from_bytes(scratch_plan.params[offset : offset + 8], "little")
            size_bytes = self.needs.scratch_bytes * prod(reference.launch.grid)
            refusals.check_scratch(scratch_plan, pointer, size_bytes, SCRATCH_ALIGNMENT_BYTES)
        if not self.refused:
            names = [param.name for param in self.record.params]
            refusals.check_refusals(
                self.needs,
                names,
                args,
                grid,
                at_once,
                lambda arguments, extents, most: self._plan(arguments, extents, most, 0),
            )
            self.refused.append(reference.launch.seed)

    def _arguments(self, reference: Reference, addresses: Mapping[str, int]) -> list[object]:
        args: list[object] = []
        names = [variable.name for variable in self.record.type_variables]
        types = dict(zip(names, self.record.variants[0].types, strict=True))
        for param in self.record.params:
            buffer = reference.buffer(param.name)
            if buffer is not None and buffer.shape:
                address = addresses[param.name], buffer.pointee.name
                args.append(Tensor(*address, buffer.shape, buffer.strides))
            elif buffer is not None:
                args.append(Pointer(addresses[param.name], buffer.pointee.name))
            elif param.kind == "pointer":
                # None in this variant, so its code does not use it.
                args.append(Pointer(0, types.get(param.element, param.element)))
            elif param.name in reference.launch.scalars:
                args.append(reference.launch.scalars[param.name])
            else:
                args.append(self.fixed[param.name])
        return args

    def _plan(
        self, args: Sequence[object], grid: tuple[int, ...] | None, at_once: int, scratch: int
    ) -> Plan | None:
        variant = self.record.variants[0]
        choices = zip((c.name for c in self.record.choices), variant.choices, strict=True)
        major, minor, _ = parse_target(variant.target)
        return self.kernel._plan(  # noqa: SLF001 - exists for this use
            (major, minor),
            at_once,
            tuple(args),
            grid=grid,
            choices=dict(choices) or None,
            scratch=(scratch, _MAX_SCRATCH_BYTES) if scratch else None,
        )

    def _launched(self, plan: Plan) -> Launched:
        params = bytearray(plan.params)
        for tensor_map in plan.maps:
            params[tensor_map.offset : tensor_map.offset + 128] = _encoded(tensor_map)
        layout = tuple((p.offset, p.size) for p in self.record.variants[0].cubin_params)
        return Launched(
            plan.grid, plan.block, plan.cluster, plan.dynamic_shared_bytes, bytes(params), layout
        )

    def _check_neighbours(
        self, args: list[object], grid: tuple[int, ...] | None, at_once: int, scratch: int
    ) -> None:
        """Check that launches select the variant iff its guards hold. Raises: ExecutionFault."""
        if not self.guards:
            return
        current = self._values(args)
        names = [frozenset(expression.free_names(guard)) for guard in self.guards]
        held_before = [_holds(guard, current) for guard in self.guards]
        for index, value in (*_neighbours(args), *self._boundaries(args)):
            changed = [*args[:index], value, *args[index + 1 :]]
            name, values = self.record.params[index].name, {**current, **self._named(index, value)}
            holds = all(
                _holds(guard, values) if name in named else was
                for guard, named, was in zip(self.guards, names, held_before, strict=True)
            )
            try:
                plan = self._plan(changed, grid, at_once, scratch)
                takes = True
                for tensor_map in () if plan is None else plan.maps:
                    _encoded(tensor_map)
            except AotcError as error:
                if not error.field.startswith(("variant", "promises")):
                    continue  # invalid for another reason
                takes = False
            if takes != holds:
                texts = " and ".join(expression.to_text(guard) for guard in self.guards)
                change = f"{self.record.params[index].name} = {value}"
                verb = "takes" if takes else "refuses"
                hold = "holds" if holds else "does not hold"
                raise ExecutionFault(f"the launcher {verb} {change}, where {texts} {hold}")

    def _boundaries(self, args: Sequence[object]) -> Iterator[tuple[int, int]]:
        """Yield integers around the constants of guards, for each integer argument in a guard."""
        indices = {param.name: param_index for param_index, param in enumerate(self.record.params)}
        for guard in self.guards:
            numbered = [indices.get(name) for name in sorted(expression.free_names(guard))]
            constants = [n.value for n in expression.walk(guard) if isinstance(n, Integer)]
            for index in numbered:
                if index is None or type(args[index]) is not int:
                    continue
                for constant in dict.fromkeys(constants):
                    yield from ((index, constant + step) for step in (-1, 0, 1))

    def _values(self, args: Sequence[object]) -> dict[str, int]:
        """Return the values of all names in expressions."""
        values = dict(self.fixed)
        for index, arg in enumerate(args):
            values.update(self._named(index, arg))
        return values

    def _named(self, index: int, arg: object) -> dict[str, int]:
        """Return the values of an argument's names in expressions."""
        name = self.record.params[index].name
        if isinstance(arg, int):
            return {name: int(arg)}
        if not isinstance(arg, Pointer | Tensor):
            return {}
        values = {name: arg.address}
        if isinstance(arg, Tensor):
            strides = arg.strides or ()
            values.update((f"{name}.shape[{i}]", n) for i, n in enumerate(arg.shape))
            values.update((f"{name}.strides[{i}]", n) for i, n in enumerate(strides))
        return values


def _neighbours(args: Sequence[object]) -> Iterator[tuple[int, object]]:
    """Yield arguments that are one off, with their indices."""
    for index, arg in enumerate(args):
        if isinstance(arg, bool):
            continue
        if isinstance(arg, int):
            yield from ((index, arg + step) for step in (1, -1, 8))
            yield index, -arg
        elif isinstance(arg, Pointer | Tensor):
            yield from ((index, arg._replace(address=arg.address + step)) for step in (2, 8, 16))
        if isinstance(arg, Tensor):
            yield from ((index, neighbour) for neighbour in _other_tensors(arg))


def _other_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """Yield tensors of other extents and strides, including some no map can describe."""
    for axis, extent in enumerate(tensor.shape):
        for size in (extent + 1, 0, _MAX_EXTENT + 1):
            yield tensor._replace(shape=(*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]))
    strides = tensor.strides or ()
    for axis, stride in enumerate(strides):
        for step in (stride + 1, _MAX_STRIDE):
            yield tensor._replace(strides=(*strides[:axis], step, *strides[axis + 1 :]))


def _larger(args: Sequence[object]) -> list[object]:
    """Return arguments with larger tensors along each axis."""
    return [
        arg._replace(shape=tuple(extent + PROMISED_DIVISOR for extent in arg.shape))
        if isinstance(arg, Tensor)
        else arg
        for arg in args
    ]


def _holds(guard: Expression, values: Mapping[str, int]) -> bool:
    try:
        return bool(expression.evaluate(guard, values))
    except ExpressionError:
        return False


def _encoded(tensor_map: PlannedMap) -> bytes:
    """Encode a planned map for the emulator."""
    if tensor_map.data_type >= len(_ELEMENTS):
        raise ExecutionFault(f"the launcher asks for a map of data type {tensor_map.data_type}")
    swizzle, atomicity = _SWIZZLES[tensor_map.swizzle]
    tensor = TensorMap(
        _ELEMENTS[tensor_map.data_type],
        tensor_map.address,
        tensor_map.dims,
        tensor_map.strides,
        tensor_map.box,
        tensor_map.element_strides,
        swizzle=swizzle,
        atomicity=atomicity,
        interleave=tensor_map.interleave,
        fill=tensor_map.oob_fill,
        l2_promotion=tensor_map.l2_promotion,
    )
    try:
        return tensor.to_bytes()
    except TensorMapError as error:
        raise ExecutionFault(
            f"the launcher asks for a map that no driver encodes: {error}"
        ) from None
