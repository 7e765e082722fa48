"""Launch the variant under verification: the runtime's C code, over an archive of one variant.

A variant becomes an archive of its own, encoded and opened as any other, and `aotc.runtime` plans
each launch: the archive's records go through the same evaluator, selection and encoder as a real
launch. A manifest's variant, which is not assembled yet, gets a dummy cubin; its parameters, guards
and maps are those that `aotc build` would write.

Neighbouring launches, with arguments one off, are planned as well: they must select the variant
exactly where its guards hold. They also fill the plan cache with entries that a later launch
must not be mistaken for.

Invariant: one archive serves all launches of a variant, in order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

import zstandard

from aotc.compiler import PtxKernel
from aotc.ir import expression
from aotc.ir.expression import Expression, ExpressionError
from aotc.ir.params import GRID_SOURCES, SCRATCH_SOURCE
from aotc.metadata import Metadata
from aotc.package import archive as archives
from aotc.package.assemble import assemble
from aotc.package.cache import CachedKernel
from aotc.package.condition import launch_condition
from aotc.package.grid import Expansion, VariantSpec
from aotc.package.index import Archive, Kernel, parse_target
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
"""The emulator's name of each CUtensorMapDataType that it supports."""

_SWIZZLES = ((0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3))
"""The emulator's swizzle and atomicity of each CUtensorMapSwizzle."""

_MAX_SCRATCH_BYTES = 1 << 62
"""What no launch takes: the emulator sees what is used of scratch memory, and where it ends."""


def launcher_of_record(
    kernel: Kernel, guards: Sequence[Expression], fixed: Mapping[str, int]
) -> PlannedLauncher:
    """Return the launcher of a kernel's record that has one variant.

    Launches select the variant if `guards` hold; `fixed` are arguments whose value is compiled in.
    """
    (variant,) = kernel.variants
    record = replace(kernel, variants=(replace(variant, ptx=None),))
    data = archives.encode(Archive("verified", "0.0.0", (record,)))
    opened = _native.Archive(data, zstandard.decompress, False, None)  # noqa: FBT003 - positional-only
    return PlannedLauncher(record, opened[kernel.name], tuple(guards), fixed)


def launcher_of_request(
    expansion: Expansion,
    spec: VariantSpec,
    compiled: PtxKernel,
    module: Module,
    guards: Sequence[Expression],
    fixed: Mapping[str, int],
) -> PlannedLauncher:
    """Return the launcher of a manifest's variant that is compiled as far as PTX."""
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
        scratch_bytes=compiled.scratch_bytes,
    )
    cubin = stand_in_cubin(spec.target.name, compiled.symbol)
    built = CachedKernel(cubin, metadata)
    if launch_condition(spec.request, compiled.guards, compiled.params) is not None:
        # Other launches use the fallback, which is not needed here.
        rest = replace(metadata, params=(), guards=(), is_persistent=False, scratch_bytes=0)
        built = replace(built, fallback=CachedKernel(cubin, rest))
    kernel = assemble(expansion, [(spec, built)]).kernel
    return launcher_of_record(replace(kernel, variants=kernel.variants[:1]), guards, fixed)


def stand_in_cubin(target: str, symbol: str) -> bytes:
    """Return an ELF file with all that a loader checks of a cubin: target and function."""
    names = b"\0.shstrtab\0.text." + symbol.encode() + b"\0"
    section = struct.Struct("<IIQQQQIIQQ")
    table = section.pack(*[0] * 10)
    table += section.pack(1, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    table += section.pack(11, 1, 0, 0, 64 + len(names), 0, 0, 0, 1, 0)
    major, minor, _ = parse_target(target)
    ident = b"\x7fELF\x02\x01\x01"
    numbers = (2, 190, 1, 0, 0, 64 + len(names), (10 * major + minor) << 8, 64, 56, 0, 64, 3, 1)
    return struct.pack("<16sHHIQQQIHHHHHH", ident, *numbers) + names + table


@dataclass(frozen=True, slots=True)
class PlannedLauncher:
    """Plan launches of a record's only variant; see `aotc.verify.checks.launched.Launcher`."""

    record: Kernel
    kernel: _native.Kernel
    guards: tuple[Expression, ...]
    fixed: Mapping[str, int]

    def __call__(
        self, reference: Reference, addresses: Mapping[str, int], at_once: int
    ) -> Launched | None:
        """Return the launch that the runtime plans. Raises: ExecutionFault if it refuses."""
        args = self._arguments(reference, addresses)
        scratch = addresses.get(SCRATCH_SOURCE, 0)
        grid = None if self.record.variants[0].grid else reference.launch.grid
        try:
            plan = self._plan(args, grid, at_once, scratch)
        except AotcError as error:
            raise ExecutionFault(f"the launch is refused: {error}") from error
        self._check_neighbours(args, grid, at_once, scratch)
        if grid is not None:
            with suppress(AotcError):
                self._plan(args, (grid[0] + 1, *grid[1:]), at_once, scratch)
        again = self._plan(args, grid, at_once, scratch)  # from the cache, unless evicted
        if again != plan:
            raise ExecutionFault(f"the launcher plans {again} for a launch planned as {plan}")
        return None if plan is None else self._launched(plan)

    def _arguments(self, reference: Reference, addresses: Mapping[str, int]) -> list[object]:
        args: list[object] = []
        names = [variable.name for variable in self.record.type_variables]
        types = dict(zip(names, self.record.variants[0].types, strict=True))
        for param in self.record.params:
            buffer = reference.buffer(param.name)
            if buffer is not None and buffer.shape:
                place = addresses[param.name], buffer.pointee.name
                args.append(Tensor(*place, buffer.shape, buffer.strides))
            elif buffer is not None:
                args.append(Pointer(addresses[param.name], buffer.pointee.name))
            elif param.kind == "pointer":
                # The code of this variant, in which it is None, does not know it.
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
        for found in plan.maps:
            params[found.offset : found.offset + 128] = _encoded(found)
        layout = tuple((p.offset, p.size) for p in self.record.variants[0].cubin_params)
        return Launched(
            plan.grid, plan.block, plan.cluster, plan.dynamic_shared_bytes, bytes(params), layout
        )

    # ---- guards ------------------------------------------------------------------------------

    def _check_neighbours(
        self, args: list[object], grid: tuple[int, ...] | None, at_once: int, scratch: int
    ) -> None:
        """Check that launches select the variant iff its guards hold. Raises: ExecutionFault."""
        if not self.guards:
            return
        known = self._values(args)
        names = [frozenset(expression.free_names(guard)) for guard in self.guards]
        held = [_holds(guard, known) for guard in self.guards]
        for index, value in _neighbours(args):
            given = [*args[:index], value, *args[index + 1 :]]
            name, values = self.record.params[index].name, {**known, **self._named(index, value)}
            holds = all(
                _holds(guard, values) if name in named else was
                for guard, named, was in zip(self.guards, names, held, strict=True)
            )
            try:
                self._plan(given, grid, at_once, scratch)
                takes = True
            except AotcError as error:
                if not error.field.startswith(("variant", "promises")):
                    continue  # it is invalid for another reason
                takes = False
            if takes != holds:
                texts = " and ".join(expression.to_text(guard) for guard in self.guards)
                what = f"{self.record.params[index].name} = {value}"
                verb = "takes" if takes else "refuses"
                hold = "holds" if holds else "does not hold"
                raise ExecutionFault(f"the launcher {verb} {what}, where {texts} {hold}")

    def _values(self, args: Sequence[object]) -> dict[str, int]:
        """Return the values of all names in expressions."""
        values = dict(self.fixed)
        for index, arg in enumerate(args):
            values.update(self._named(index, arg))
        return values

    def _named(self, index: int, arg: object) -> dict[str, int]:
        """Return the values of the names that expressions have for an argument."""
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
        elif isinstance(arg, Pointer | Tensor):
            yield from ((index, arg._replace(address=arg.address + step)) for step in (2, 8, 16))
        if isinstance(arg, Tensor):
            for axis, extent in enumerate(arg.shape):
                shape = (*arg.shape[:axis], extent + 1, *arg.shape[axis + 1 :])
                yield index, arg._replace(shape=shape)
            strides = arg.strides or ()
            for axis, stride in enumerate(strides):
                yield (
                    index,
                    arg._replace(strides=(*strides[:axis], stride + 1, *strides[axis + 1 :])),
                )


def _holds(guard: Expression, values: Mapping[str, int]) -> bool:
    try:
        return bool(expression.evaluate(guard, values))
    except ExpressionError:
        return False


def _encoded(found: PlannedMap) -> bytes:
    """Encode a planned map for the emulator."""
    if found.data_type >= len(_ELEMENTS):
        raise ExecutionFault(f"the launcher asks for a map of data type {found.data_type}")
    swizzle, atomicity = _SWIZZLES[found.swizzle]
    tensor = TensorMap(
        _ELEMENTS[found.data_type],
        found.address,
        found.dims,
        found.strides,
        found.box,
        found.element_strides,
        swizzle=swizzle,
        atomicity=atomicity,
        interleave=found.interleave,
        fill=found.oob_fill,
        l2_promotion=found.l2_promotion,
    )
    try:
        return tensor.to_bytes()
    except TensorMapError as error:
        raise ExecutionFault(
            f"the launcher asks for a map that no driver encodes: {error}"
        ) from None
