"""Small gpu IR programs built op by op, run by the lockstep machine, compared as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from aotc.backend import lower_kernel
from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import arith, gpu, scf, tile
from aotc.ir.layout import LinearLayout
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.types import PointerType, ScalarType, TileType, Type
from aotc.ir.verify import verify
from aotc.target import TARGETS, Target
from tests.backend.simt import Machine

OpT = TypeVar("OpT", bound=Op)

NUMPY: dict[str, Any] = {
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2, "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16, "fp32": np.float32, "fp64": np.float64,
}  # fmt: skip

SM_80, SM_90 = TARGETS["sm_80"], TARGETS["sm_90a"]


def row_layout(num_elems: int, num_warps: int = 1) -> LinearLayout:
    """Return a layout of one axis: registers lowest, then lanes, then warps."""
    bits = [1 << bit for bit in range(num_elems.bit_length() - 1)]
    threads = 5 + num_warps.bit_length() - 1
    columns = bits[max(0, len(bits) - threads) :] + [0] * max(0, threads - len(bits))
    return LinearLayout(
        {
            "register": [(bit,) for bit in bits[: max(0, len(bits) - threads)]],
            "lane": [(bit,) for bit in columns[:5]],
            "warp": [(bit,) for bit in columns[5:]],
        },
        (num_elems,),
    )


class Program:
    """Build a kernel that loads, transforms and stores tiles."""

    def __init__(self, num_warps: int = 1) -> None:
        self.body = Block()
        self.add = Builder(self.body)
        self.num_warps = num_warps
        self.params: list[ParamInfo] = []
        self.inputs: list[Value] = []
        self.outputs: list[tuple[Value, tuple[int, ...]]] = []

    def param(self, type_: Type, divisibility: int = 1) -> Value:
        """Add a parameter of the kernel."""
        self.params.append(ParamInfo(f"p{len(self.params)}", divisibility))
        return self.body.add_arg(type_, self.params[-1].name)

    def pointers(self, pointer: Value, layout: LinearLayout) -> Value:
        """Return pointers to the elements, in row-major order, of a tile of `layout`."""
        num_elems = prod(layout.shape)
        flat = layout.reshape((num_elems,))
        index = self.add(tile.Arange(0, num_elems, flat)).out
        return self.add(arith.AddPtr(self.splat(pointer, flat), index)).out

    def splat(self, value: Value, layout: LinearLayout) -> Value:
        """Return a scalar as a tile."""
        return self.add(tile.Splat(value, layout.shape, layout)).out

    def load(self, element: ScalarType, layout: LinearLayout) -> Value:
        """Return a tile of the next input array."""
        pointer = self.param(PointerType(element), 16)
        self.inputs.append(pointer)
        loaded = self.add(gpu.Load(self.pointers(pointer, layout))).out
        return self.add(tile.Reshape(loaded, layout.shape)).out

    def store(self, value: Value) -> None:
        """Store a tile, or a scalar, as the next output array."""
        kind = value.type
        if not isinstance(kind, TileType):
            assert not isinstance(kind, PointerType)
            pointer = self.param(PointerType(kind), 16)
            self.add(gpu.Store(pointer, value))
            self.outputs.append((pointer, ()))
            return
        assert kind.layout is not None
        assert isinstance(kind.element, ScalarType)
        pointer = self.param(PointerType(kind.element), 16)
        flat = self.add(tile.Reshape(value, (kind.num_elems,))).out
        self.add(gpu.Store(self.pointers(pointer, kind.layout), flat))
        self.outputs.append((pointer, kind.shape))

    def block(
        self, types: Sequence[Type], make: Callable[[Builder, list[Value]], Sequence[Value]]
    ) -> Block:
        """Return a nested block yielding the values from `make`."""
        block_ = Block(types)
        builder = Builder(block_)
        builder(scf.Yield(make(builder, block_.args)))
        return block_

    def kernel(self) -> Kernel:
        """Return the finished kernel."""
        if self.body.last is None or not self.body.last.terminator:
            self.add(scf.Return())
        kernel = Kernel("program", tuple(self.params), self.body, num_warps=self.num_warps)
        verify(kernel)
        return kernel

    def llvm_ir(self, target: Target = SM_90) -> str:
        """Return the kernel as LLVM IR."""
        return lower_kernel(self.kernel(), target).llvm_ir

    def run(self, *arrays: Any, target: Target = SM_90, grid: tuple[int, ...] = (1,)) -> list[Any]:
        """Run the kernel on input arrays, or scalars in their places; return the outputs."""
        machine = Machine()
        remaining = iter(arrays)
        args: list[Any] = []
        addresses: dict[Value, int] = {}
        kinds: dict[Value, Any] = {}
        shapes = dict(self.outputs)
        for value in self.body.args:
            if value in shapes:
                assert isinstance(value.type, PointerType)
                kinds[value] = np.dtype(NUMPY[value.type.pointee.name])
                size = prod(shapes[value]) * kinds[value].itemsize
                addresses[value] = machine.alloc(np.full(size, 0xEE, np.uint8))
                args.append(addresses[value])
            elif value in self.inputs:
                args.append(machine.alloc(next(remaining)))
            else:
                args.append(next(remaining))
        machine.run(self.llvm_ir(target), args, grid)
        self.machine = machine
        return [machine.read(addresses[v], kinds[v], shape) for v, shape in self.outputs]
