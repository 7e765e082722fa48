"""One valid use of every op class, to test generic code against all of them.

A sample builds ops from a fixed set of arguments, covering optional operands and attributes away
from their defaults. A test asserts that `SAMPLES` names every registered opcode, so each new op
needs a sample. Printing, parsing, cloning and verifying are then tested for free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotc.ir.core import Block, Kernel, Op, Value
from aotc.ir.dialects import (
    arith,
    assembly,
    cache,
    cluster,
    descriptor,
    gpu,
    grid,
    indexing,
    map_store,
    mapped,
    mbarrier,
    opaque,
    roles,
    scf,
    thread_copy,
    tile,
    tma,
    wgmma,
)
from aotc.ir.layout import LinearLayout
from aotc.ir.params import ParamInfo
from aotc.ir.rewrite import Builder
from aotc.ir.types import (
    BF16,
    FP16,
    FP32,
    FP64,
    I1,
    I32,
    I64,
    U64,
    PointerType,
    ScalarType,
    TensorMapType,
    TileType,
    Type,
)
from tests.support.dot_samples import sample_dot, sample_gpu_dot, sample_products
from tests.support.op_sampler import (
    BUFFER,
    EXTENT,
    REPEATS,
    ROW,
    SWAPPED,
    TEMPLATE,
    Sampler,
    argument_types,
    repeated,
)

Sample = Callable[[Sampler], object]


def _yielding(types: Sequence[Type], make: Callable[[Builder, list[Value]], list[Value]]) -> Block:
    block = Block(types)
    builder = Builder(block)
    builder(scf.Yield(make(builder, block.args)))
    return block


def _sum(builder: Builder, args: list[Value]) -> list[Value]:
    half = len(args) // 2
    pairs = zip(args[:half], args[half:], strict=True)
    return [builder(arith.Add(left, right)).out for left, right in pairs]


def _binary(cls: type[arith.Binary], element: str) -> Sample:
    return lambda s: s.add(cls(s.tile(element), s.tile(element)))


def _unary(cls: type[arith.Unary]) -> Sample:
    return lambda s: s.add(cls(s.tile("fp32")))


def _reduce(cls: type[tile.Reduce | gpu.Reduce]) -> Sample:
    def sample(s: Sampler) -> None:
        combine = _yielding([FP32, I32, FP32, I32], _sum)
        s.add(cls([s.tile("fp32"), s.tile("i32")], 0, combine))

    return sample


def _cluster_reduce(s: Sampler) -> None:
    combine = _yielding([FP32, I32, FP32, I32], _sum)
    s.add(grid.ClusterReduce([s.x, s.i], combine))


def _scan(cls: type[tile.Scan | gpu.Scan]) -> Sample:
    def sample(s: Sampler) -> None:
        s.add(cls([s.tile("fp32")], 0, _yielding([FP32, FP32], _sum), reverse=True))

    return sample


def _for(s: Sampler) -> None:
    step = s.add(arith.Constant(1, I32))
    body = _yielding(
        [I32, FP32, s.tile("fp32").type],
        lambda add, args: [add(arith.Mul(args[1], args[1])).out, args[2]],
    )
    s.add(
        scf.For(
            *(s.i, s.j, step.out, [s.x, s.tile("fp32")], body),
            num_stages=3,
            unroll=2,
            flatten=True,
            warp_specialize=True,
            disallow_acc_multi_buffer=True,
        )
    )


def _if(s: Sampler) -> None:
    s.add(
        scf.If(
            s.flag,
            _yielding([], lambda add, _: [add(arith.Neg(s.x)).out, s.i]),
            _yielding([], lambda _, __: [s.x, s.j]),
        )
    )


def _while(s: Sampler) -> None:
    before = Block([I32, FP32])
    less = Builder(before)(arith.Compare(before.args[0], s.j, "lt"))
    Builder(before)(scf.Condition(less.out, [before.args[1], before.args[0]]))
    after = _yielding([FP32, I32], lambda add, args: [add(arith.Add(args[1], s.i)).out, args[0]])
    s.add(scf.While([s.i, s.x], before, after))


def _pointee(pointer: Value) -> ScalarType:
    assert isinstance(pointer.type, PointerType)
    return pointer.type.pointee


def _shared(s: Sampler) -> gpu.SharedAlloc:
    return s.add(gpu.SharedAlloc(FP32, (EXTENT,), BUFFER, 128, offset_bytes=256, group_bytes=512))


def _concat(s: Sampler) -> gpu.Concat:
    halves = [s.add(gpu.Extract(s.pairs, (0, half), (EXTENT, 1))).out for half in range(2)]
    assert isinstance(s.pairs.type, TileType)
    assert s.pairs.type.layout is not None
    return s.add(gpu.Concat(halves, 1, s.pairs.type.layout))


def _slots(s: Sampler) -> Value:
    return s.add(gpu.SharedAlloc(FP32, (EXTENT,), BUFFER, num_stages=3)).out


def _whole(s: Sampler) -> Value:
    """Return a block of the descriptor, always without a layout."""
    return s.add(arith.Constant(0.5, TileType(FP32, (EXTENT,)))).out


def _row_tensor(s: Sampler) -> Value:
    """Return a descriptor for gathering rows of a tensor."""
    stride = s.add(arith.Cast(s.i, I64)).out
    return s.add(descriptor.DescriptorOf(s.pointer, [s.i, s.i, stride], (1, 64))).out


def _row_indices(s: Sampler) -> Value:
    return s.add(arith.Constant(1, TileType(I32, (8,)))).out


def _mbarrier(s: Sampler) -> Value:
    layout = LinearLayout.from_columns([("offset", [])], (("dim0", 0),))
    return s.add(gpu.SharedAlloc(U64, (1,), layout, 8, offset_bytes=1024)).out


def _tma_load(s: Sampler) -> None:
    buffer, barrier = _shared(s).out, _mbarrier(s)
    s.add(tma.TmaLoad(s.tensor_map, buffer, barrier, [s.i]))
    s.add(tma.TmaLoad(s.tensor_map, buffer, barrier, [s.j], arrive=False, eviction="evict_last"))


def _bulk_load(s: Sampler) -> None:
    buffer, barrier = _shared(s).out, _mbarrier(s)
    s.add(tma.BulkLoad(s.pointer, buffer, barrier, s.i))
    s.add(tma.BulkLoad(s.pointer, buffer, barrier, s.j, arrive=False, eviction="evict_first"))


def _thread_load(s: Sampler) -> None:
    buffer, barrier = _shared(s).out, _mbarrier(s)
    s.add(thread_copy.ThreadLoad(s.tile("ptr"), buffer, barrier))
    more = {"cache": "ca", "eviction": "evict_first", "prefetch_bytes": 128}
    s.add(thread_copy.ThreadLoad(s.tile("ptr"), buffer, barrier, s.tile("i1"), vector=4, **more))


def _masked_shared_load(s: Sampler) -> None:
    buffer = _shared(s).out
    layout = ROW if s.layout is None else s.layout
    kind = TileType(FP32, (EXTENT,), layout)
    mask = s.add(arith.Constant(value=True, type=TileType(I1, (EXTENT,), layout))).out
    other = s.add(arith.Constant(0.5, kind)).out
    s.add(gpu.MaskedSharedLoad(buffer, layout, 4, mask=mask, other=other))
    s.add(gpu.MaskedSharedLoad(buffer, layout, 2, mask=mask))


def _specialize(s: Sampler) -> None:
    barrier = _mbarrier(s)
    s.add(mbarrier.MbarrierInit(barrier, 4))
    consumers, producer = Block(), Block()
    Builder(consumers)(mbarrier.MbarrierArrive(barrier, 4))
    other_roles = Block()
    Builder(other_roles)(scf.Yield([]))
    Builder(producer)(roles.Beside(other_roles))
    Builder(producer)(mbarrier.MbarrierWait(barrier, s.i))
    for role in (consumers, producer):
        Builder(role)(scf.Yield([]))
    s.add(roles.Specialize(consumers, producer, 232, producer_registers=40))


def _broadcast(s: Sampler) -> None:
    layout = None if s.layout is None else repeated(s.layout)
    s.add(tile.Broadcast(s.column, (EXTENT, REPEATS), layout))


SAMPLES: dict[str, Sample] = {
    "arith.constant": lambda s: [
        s.add(arith.Constant(value, kind))
        for value, kind in (
            (1.5, FP32),
            (-0.0, FP64),
            (float("inf"), FP32),
            (float("-inf"), FP32),
            (float("nan"), FP32),
            (1e-30, FP32),
            (1e300, FP64),
            (-7, I32),
            (2**64 - 1, U64),
            (True, I1),
            (0.0, TileType(FP32, (EXTENT,), s.layout)),
        )
    ],
    "arith.add": _binary(arith.Add, "fp32"),
    "arith.sub": _binary(arith.Sub, "i32"),
    "arith.mul": _binary(arith.Mul, "fp16"),
    "arith.div": _binary(arith.Div, "i32"),
    "arith.div_rn": _binary(arith.DivRn, "fp32"),
    "arith.rem": _binary(arith.Rem, "i32"),
    "arith.mulhi": _binary(arith.MulHi, "i32"),
    "arith.and": _binary(arith.And, "i1"),
    "arith.or": _binary(arith.Or, "i32"),
    "arith.xor": _binary(arith.Xor, "i32"),
    "arith.shl": _binary(arith.Shl, "i32"),
    "arith.shr": _binary(arith.Shr, "i32"),
    "arith.min": lambda s: s.add(arith.Min(s.x, s.x)),
    "arith.max": lambda s: s.add(arith.Max(s.x, s.x, propagate_nan=True)),
    "arith.compare": lambda s: s.add(arith.Compare(s.tile("i32"), s.tile("i32"), "le")),
    "arith.neg": _unary(arith.Neg),
    "arith.abs": _unary(arith.Abs),
    "arith.exp": _unary(arith.Exp),
    "arith.exp2": _unary(arith.Exp2),
    "arith.log": _unary(arith.Log),
    "arith.log2": _unary(arith.Log2),
    "arith.sqrt": _unary(arith.Sqrt),
    "arith.sqrt_rn": _unary(arith.SqrtRn),
    "arith.rsqrt": _unary(arith.Rsqrt),
    "arith.sin": _unary(arith.Sin),
    "arith.cos": _unary(arith.Cos),
    "arith.erf": _unary(arith.Erf),
    "arith.floor": _unary(arith.Floor),
    "arith.ceil": _unary(arith.Ceil),
    "arith.fma": lambda s: s.add(arith.Fma(s.x, s.x, s.x)),
    "arith.select": lambda s: s.add(arith.Select(s.tile("i1"), s.tile("fp32"), s.tile("fp32"))),
    "arith.cast": lambda s: [
        s.add(arith.Cast(s.tile("fp32"), FP16, rounding="rtz")),
        s.add(arith.Cast(s.i, I64)),
    ],
    "arith.bitcast": lambda s: [
        s.add(arith.Bitcast(s.tile("i32"), FP32)),
        s.add(arith.Bitcast(s.pointer, U64)),
        s.add(arith.Bitcast(s.pointer, PointerType(FP16))),
    ],
    "arith.addptr": lambda s: s.add(arith.AddPtr(s.tile("ptr"), s.tile("i32"))),
    "arith.libdevice": lambda s: s.add(
        arith.Libdevice("__nv_powf", FP32, [s.tile("fp32"), s.tile("fp32")])
    ),
    "asm.inline": lambda s: [
        s.add(
            assembly.InlineAsm(
                '{ add.f32 $0, $2, $3; // "sum"\n mov.b32 $1, $2; }',
                *("=f,=&r,f,f", (FP32, I32), 1, [s.tile("fp32"), s.tile("fp32")]),
            )
        ),
        s.add(assembly.InlineAsm("mov.b32 $0, $1;", "=r,r", (FP16,), 2, [s.tile("fp16")])),
    ],
    "asm.volatile": lambda s: [
        s.add(assembly.VolatileAsm("mov.u64 $0, %globaltimer;", "=l", (I64,), 1, [])),
        s.add(assembly.VolatileAsm("mov.b32 $0, $1;", "=r,0", (I32,), 1, [s.tile("i32")])),
    ],
    "map.elements": lambda s: s.add(
        mapped.Map(
            [s.tile("fp32"), s.tile("i32")],
            2,
            _yielding(
                [FP32, FP32, I32, I32], lambda add, args: [*args[2:], *_sum(add, args[:2]), args[0]]
            ),
        )
    ),
    "tile.program_id": lambda s: s.add(tile.ProgramId(2)),
    "tile.num_programs": lambda s: s.add(tile.NumPrograms(1)),
    "tile.arange": lambda s: s.add(tile.Arange(0, EXTENT, s.layout)),
    "tile.splat": lambda s: [
        s.add(tile.Splat(s.x, (EXTENT,), s.layout)),
        s.add(tile.Splat(s.pointer, (EXTENT,), s.layout)),
    ],
    "tile.broadcast": _broadcast,
    "tile.expand_dims": lambda s: s.add(tile.ExpandDims(s.tile("fp32"), 1)),
    "tile.reshape": lambda s: s.add(tile.Reshape(s.tile("fp32"), (2, EXTENT // 2))),
    "tile.trans": lambda s: s.add(tile.Trans(s.pairs, (1, 0))),
    "tile.join": lambda s: s.add(tile.Join(s.tile("fp32"), s.tile("fp32"))),
    "tile.split": lambda s: s.add(tile.Split(s.pairs)),
    "tile.load": lambda s: [
        s.add(tile.Load(s.pointer)),
        s.add(tile.Load(s.tile("ptr"), s.tile("i1"))),
        s.add(
            tile.Load(
                *(s.tile("ptr"), s.tile("i1"), s.tile("fp32")),
                cache=".cg",
                eviction="evict_last",
                volatile=True,
            )
        ),
    ],
    "tile.store": lambda s: [
        s.add(tile.Store(s.pointer, s.x)),
        s.add(tile.Store(s.tile("ptr"), s.tile("fp32"), s.tile("i1"), cache=".cs")),
    ],
    "tile.atomic_rmw": lambda s: [
        s.add(tile.AtomicRmw(s.tile("ptr"), s.tile("fp32"), "max", s.tile("i1"), "relaxed", "sys")),
        s.add(tile.AtomicRmw(s.pointer, s.x, "add")),
    ],
    "tile.atomic_cas": lambda s: [
        s.add(tile.AtomicCas(s.tile("ptr"), s.tile("fp32"), s.tile("fp32"), "release", "cta")),
        s.add(tile.AtomicCas(s.pointer, s.x, s.x)),
    ],
    "tile.dot": sample_dot,
    "tile.reduce": _reduce(tile.Reduce),
    "tile.scan": _scan(tile.Scan),
    "tile.gather": lambda s: s.add(indexing.Gather(s.tile("fp32"), s.tile("i32"), 0)),
    "tile.histogram": lambda s: s.add(indexing.Histogram(s.tile("i32"), 64, s.tile("i1"))),
    "gpu.shared_gather": lambda s: s.add(
        indexing.SharedGather(_shared(s).out, s.tile("i32"), axis=0)
    ),
    "gpu.shared_count": lambda s: s.add(
        indexing.SharedCount(
            s.add(gpu.SharedAlloc(I32, (EXTENT,), BUFFER)).out, s.tile("i32"), s.tile("i1")
        )
    ),
    "tile.hint": lambda s: s.add(
        tile.Hint(s.tile("i32"), divisibility=(16,), contiguity=(EXTENT,), constancy=(1,))
    ),
    "tile.assume": lambda s: s.add(tile.Assume(s.flag)),
    "tile.assert": lambda s: s.add(tile.Assert(s.tile("i1"), 'a "quoted"\n ünïcode \u2028 line')),
    "tile.print": lambda s: s.add(
        tile.Print(*[s.add(tile.ProgramId(0)).out] * 3, s.tile("fp32"), " 100% of x: ", hex=True)
    ),
    "tile.barrier": lambda s: s.add(tile.Barrier()),
    "gpu.load": lambda s: s.add(
        gpu.Load(s.tile("ptr"), s.tile("i1"), s.tile("fp32"), vector=4, cache=".ca")
    ),
    "gpu.store": lambda s: s.add(gpu.Store(s.tile("ptr"), s.tile("fp32"), s.tile("i1"), vector=2)),
    "gpu.atomic_rmw": lambda s: s.add(
        gpu.AtomicRmw(s.tile("ptr"), s.tile("fp32"), "add", s.tile("i1"), "cta", vector=4)
    ),
    "gpu.atomic_cas": lambda s: s.add(
        gpu.AtomicCas(s.tile("ptr"), s.tile("fp32"), s.tile("fp32"), "sys")
    ),
    "gpu.fence": lambda s: s.add(gpu.Fence("sys")),
    "gpu.convert": lambda s: s.add(gpu.Convert(s.tile("fp32"), SWAPPED)),
    "gpu.shuffle_convert": lambda s: s.add(
        gpu.ShuffleConvert(s.tile("fp32"), SWAPPED, plan=((1, "xor"), (), None))
    ),
    "gpu.shared_alloc": _shared,
    "gpu.shared_store": lambda s: s.add(gpu.SharedStore(s.tile("fp32"), _shared(s).out, vector=4)),
    "gpu.shared_load": lambda s: s.add(gpu.SharedLoad(_shared(s).out, ROW, vector=4)),
    "gpu.shared_stage": lambda s: s.add(gpu.SharedStage(_slots(s), s.i, ahead=2)),
    "gpu.shared_trans": lambda s: s.add(gpu.SharedTrans(_shared(s).out, (0,))),
    "gpu.next_stage": lambda s: s.add(gpu.NextStage(s.i, num_stages=3, ahead=2)),
    "gpu.async_copy": lambda s: [
        s.add(gpu.AsyncCopy(s.tile("ptr"), _shared(s).out)),
        s.add(
            gpu.AsyncCopy(
                *(s.tile("ptr"), s.add(gpu.SharedStage(_slots(s), s.i)).out, s.tile("i1"), s.flag),
                vector=4,
                cache="ca",
                eviction="evict_first",
                prefetch_bytes=128,
            )
        ),
    ],
    "gpu.async_commit": lambda s: s.add(gpu.AsyncCommit()),
    "gpu.async_wait": lambda s: s.add(gpu.AsyncWait(pending=1)),
    "gpu.dot": sample_gpu_dot,
    "gpu.undefined": lambda s: s.add(gpu.Undefined(TileType(FP16, (EXTENT,), s.layout))),
    "gpu.wgmma": sample_products,
    "gpu.turn": lambda s: s.add(wgmma.Turn("take")),
    "gpu.wgmma_wait": lambda s: s.add(wgmma.WgmmaWait(sample_products(s), 1, (0, 24, 0))),
    "gpu.concat": _concat,
    "gpu.extract": lambda s: s.add(gpu.Extract(s.pairs, (0, 1), (EXTENT, 1))),
    "tile.descriptor_at": lambda s: s.add(descriptor.DescriptorAt(s.pointer, BF16, (16, 64))),
    "tile.descriptor_of": lambda s: s.add(
        descriptor.DescriptorOf(
            s.pointer, [s.i, s.i, s.add(arith.Cast(s.i, I64)).out], (16, 64), fill_nan=True
        )
    ),
    "tile.descriptor_load": lambda s: s.add(
        descriptor.DescriptorLoad(s.tensor, [s.i], eviction="evict_first")
    ),
    "tile.descriptor_prefetch": lambda s: s.add(descriptor.DescriptorPrefetch(s.tensor, [s.i])),
    "gpu.tma_prefetch": lambda s: s.add(cache.TmaPrefetch(s.tensor_map, [s.i], (EXTENT,))),
    "tile.descriptor_store": lambda s: s.add(
        descriptor.DescriptorStore(s.tensor, _whole(s), [s.i])
    ),
    "tile.descriptor_reduce": lambda s: s.add(
        descriptor.DescriptorReduce(s.tensor, _whole(s), [s.i], kind="add")
    ),
    "tile.descriptor_gather": lambda s: s.add(
        descriptor.DescriptorGather(_row_tensor(s), _row_indices(s), s.i)
    ),
    "tile.descriptor_scatter": lambda s: s.add(
        descriptor.DescriptorScatter(
            _row_tensor(s),
            s.add(arith.Constant(1.0, TileType(FP32, (8, 64)))).out,
            _row_indices(s),
            s.i,
        )
    ),
    "tile.descriptor_extent": lambda s: s.add(descriptor.DescriptorExtent(s.tensor, 0)),
    "tile.descriptor_stride": lambda s: s.add(descriptor.DescriptorStride(s.tensor, 0)),
    "tile.map_address": lambda s: s.add(descriptor.MapAddress(s.tensor)),
    "tile.descriptor_in": lambda s: s.add(
        descriptor.DescriptorIn(s.pointer, s.add(arith.Cast(s.i, I64)).out, [s.i], shape=(16,))
    ),
    "gpu.tensor_map_address": lambda s: s.add(tma.TensorMapAddress(s.tensor_map)),
    "gpu.tensor_map_at": lambda s: s.add(
        tma.TensorMapAt(s.pointer, TensorMapType(FP16, (16, 64), 128, fill_nan=True))
    ),
    "gpu.made_tensor_map": lambda s: s.add(
        tma.MadeTensorMap(s.pointer, TensorMapType(FP16, (16, 64), 128))
    ),
    "gpu.acquired_tensor_map": lambda s: s.add(
        tma.AcquiredTensorMap(s.pointer, TensorMapType(FP16, (16, 64), 128))
    ),
    "gpu.make_tensor_map": lambda s: s.add(
        tma.MakeTensorMap(
            s.pointer,
            s.pointer,
            s.add(gpu.SharedAlloc(U64, (16,), TEMPLATE, 128)).out,
            [s.i],
            type=TensorMapType(_pointee(s.pointer), (8,), 32, fill_nan=True),
        )
    ),
    "tile.store_map": lambda s: s.add(
        map_store.StoreMap(
            s.pointer, s.pointer, [s.i, s.i, s.add(arith.Cast(s.i, I64)).out], (16, 64)
        )
    ),
    "gpu.publish_map": lambda s: s.add(
        map_store.PublishMap(
            s.pointer,
            s.pointer,
            s.add(gpu.SharedAlloc(U64, (16,), TEMPLATE, 128)).out,
            [s.i],
            type=TensorMapType(_pointee(s.pointer), (8,), 32),
        )
    ),
    "gpu.sync_tma_load": lambda s: s.add(
        tma.SyncTmaLoad(s.tensor_map, _shared(s).out, [s.i], eviction="evict_first", num_parts=2)
    ),
    "gpu.tma_load": _tma_load,
    "gpu.sync_bulk_load": lambda s: s.add(
        tma.SyncBulkLoad(s.pointer, _shared(s).out, s.i, eviction="evict_last")
    ),
    "gpu.bulk_load": _bulk_load,
    "gpu.sync_thread_load": lambda s: s.add(
        thread_copy.SyncThreadLoad(
            *(s.tile("ptr"), _shared(s).out, s.tile("i1")),
            vector=4,
            cache="ca",
            eviction="evict_first",
            prefetch_bytes=128,
        )
    ),
    "gpu.thread_load": _thread_load,
    "gpu.bulk_store": lambda s: [
        s.add(tma.BulkStore(s.pointer, _shared(s).out, s.i)),
        s.add(tma.BulkStore(s.pointer, _shared(s).out, s.i, "add")),
    ],
    "gpu.masked_shared_load": _masked_shared_load,
    "gpu.tma_store": lambda s: s.add(tma.TmaStore(s.tensor_map, _shared(s).out, [s.i])),
    "gpu.tma_reduce": lambda s: s.add(
        tma.TmaReduce(s.tensor_map, _shared(s).out, [s.i], kind="add")
    ),
    "gpu.staged_tma_store": lambda s: [
        s.add(tma.StagedTmaStore(s.tensor_map, s.tile("fp32"), _shared(s).out, [s.i])),
        s.add(
            tma.StagedTmaStore(
                s.tensor_map, s.tile("fp32"), _shared(s).out, [s.i], "add", written=True
            )
        ),
    ],
    "gpu.staged_bulk_store": lambda s: [
        s.add(tma.StagedBulkStore(s.pointer, s.tile("fp32"), _shared(s).out, s.i)),
        s.add(tma.StagedBulkStore(s.pointer, s.tile("fp32"), _shared(s).out, s.i, "add")),
    ],
    "gpu.tma_buffer_wait": lambda s: s.add(tma.TmaBufferWait(_shared(s).out, pending=1)),
    "gpu.tma_store_wait": lambda s: s.add(tma.TmaStoreWait(pending=1, written=True)),
    "gpu.proxy_fence": lambda s: s.add(tma.ProxyFence(whole=True)),
    "gpu.mbarrier_init": lambda s: s.add(mbarrier.MbarrierInit(_mbarrier(s), count=2)),
    "gpu.mbarrier_arrive": lambda s: [
        s.add(mbarrier.MbarrierArrive(_mbarrier(s), count=4)),
        s.add(mbarrier.MbarrierArrive(_mbarrier(s), 4, s.flag, num_ctas=2)),
    ],
    "gpu.mbarrier_wait": lambda s: s.add(mbarrier.MbarrierWait(_mbarrier(s), s.i)),
    "gpu.specialize": _specialize,
    "gpu.beside": _specialize,
    "gpu.consumer_group": lambda s: s.add(roles.ConsumerGroup()),
    "gpu.opaque_thread_id": lambda s: s.add(opaque.OpaqueThreadId()),
    "gpu.opaque": lambda s: [
        s.add(opaque.Opaque(s.tile("fp16"))),
        s.add(opaque.Opaque(s.tile("fp32"), s.i)),
    ],
    "gpu.barrier": lambda s: s.add(gpu.Barrier()),
    "gpu.reduce": _reduce(gpu.Reduce),
    "gpu.warp_all": lambda s: s.add(gpu.WarpAll(s.tile("i1"))),
    "gpu.scan": _scan(gpu.Scan),
    "grid.cta_rank": lambda s: s.add(grid.CtaRank()),
    "grid.cluster_barrier": lambda s: s.add(grid.ClusterBarrier()),
    "grid.cluster_reduce": _cluster_reduce,
    "grid.cluster_arrive": lambda s: s.add(grid.ClusterArrive()),
    "grid.cluster_wait": lambda s: s.add(grid.ClusterWait()),
    "gpu.cluster_send": lambda s: s.add(grid.ClusterSend(s.x, _shared(s).out, _mbarrier(s))),
    "gpu.cluster_store": lambda s: s.add(grid.ClusterStore(s.x, _shared(s).out)),
    "grid.grid_barrier": lambda s: s.add(
        grid.GridBarrier(s.add(arith.Bitcast(s.pointer, PointerType(I32))).out)
    ),
    "cluster.permute": lambda s: s.add(cluster.ClusterPermute(s.tile("fp32"), (1, 2, 3, 0))),
    "cluster.transpose": lambda s: s.add(cluster.ClusterTranspose(s.tile("fp32"), s.layout)),
    "gpu.cluster_send_parts": lambda s: s.add(
        cluster.SendParts(s.tile("fp32"), _shared(s).out, _mbarrier(s), s.i, 4)
    ),
    "cluster.read": lambda s: s.add(cluster.ClusterRead(s.tile("fp32"), s.i)),
    "gpu.cluster_send_tile": lambda s: s.add(
        cluster.SendTile(s.tile("fp32"), _shared(s).out, _mbarrier(s), s.i, 4)
    ),
    "gpu.cluster_arrive_at": lambda s: s.add(cluster.RemoteArrive(_mbarrier(s), s.i, 4)),
    "gpu.cluster_load": lambda s: s.add(
        cluster.RemoteLoad(_shared(s).out, s.i, ROW if s.layout is None else s.layout, 4)
    ),
    "grid.wait": lambda s: s.add(grid.GridWait()),
    "grid.launch_dependents": lambda s: s.add(grid.LaunchDependents()),
    "scf.yield": _if,
    "scf.return": lambda _: None,
    "scf.condition": _while,
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
}


def sample_kernel(opcode: str, *, layout: LinearLayout | None = None) -> Kernel:
    """Return a small valid kernel around the sample of `opcode`; gpu ops always get layouts."""
    return kernel_of([SAMPLES[opcode]], ROW if opcode.startswith("gpu.") else layout)


def kernel_of(samples: Sequence[Sample], layout: LinearLayout | None = None) -> Kernel:
    """Return a kernel of `samples` in sequence."""
    types = argument_types(layout)
    body = Block(list(types.values()))
    builder = Builder(body)
    sampler = Sampler(builder, dict(zip(types, body.args, strict=True)), layout)
    for sample in samples:
        sample(sampler)
    builder(scf.Return())
    params = tuple(ParamInfo(name, 16 if name == "pointer" else 1) for name in types)
    return Kernel("sample", params, body)


def ops_of(kernel: Kernel, opcode: str) -> list[Op]:
    """Return the ops of `kernel` with `opcode`, in order."""
    return [op for op in kernel.walk() if op.opcode == opcode]
