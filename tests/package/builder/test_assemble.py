"""From compiled variants to records: a tensor's maps, numbers and guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from aotc.compiler import CompiledKernel, CompileRequest, compile_kernel
from aotc.ir.diagnostics import ManifestError, ResourceError
from aotc.ir.expression import to_text
from aotc.metadata import TensorMapSpec
from aotc.package.archive.file import decode, encode
from aotc.package.archive.index import Archive, Kernel, Variant
from aotc.package.builder.assemble import assemble, stored_params
from aotc.package.builder.workers import compile_both_ways
from aotc.package.cache.store import CachedKernel
from aotc.package.manifest.read import load
from aotc.package.manifest.variant_grid import Expansion, VariantSpec, expand
from tests.support import mapped
from tests.support.descriptor_manifest import built


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    return built(tmp_path_factory.mktemp("descriptors"))


def _variant(kernel: Kernel, target: str, dtype: str) -> Variant:
    return next(v for v in kernel.variants if (v.target, v.types) == (target, (dtype,)))


def test_a_map_for_each_tensor(kernel: Kernel) -> None:
    x, y = _variant(kernel, "sm_90a", "bf16").tensor_maps
    assert (x.param, x.data_type, x.box, x.swizzle, x.oob_fill) == (0, 9, (64, 16), 3, 1)
    assert (y.param, y.data_type, y.box, y.swizzle, y.oob_fill) == (1, 7, (32, 16), 3, 0)
    assert to_text(x.address) == "x"
    assert list(map(to_text, x.dims)) == ["x.shape[1]", "x.shape[0]"]
    assert list(map(to_text, x.strides)) == ["x.strides[0] * 2"]
    assert list(map(to_text, y.strides)) == ["y.strides[0] * 4"]
    assert (x.element_strides, x.interleave) == ((1, 1), 0)
    # A loop walks along the rows of x, 128 bytes at a time; y is stored.
    assert (x.l2_promotion, y.l2_promotion) == (3, 2)


def test_parameters_are_maps_and_what_the_code_asks_for(kernel: Kernel) -> None:
    params = _variant(kernel, "sm_90a", "bf16").cubin_params
    assert [(p.size, p.source, p.index) for p in params] == [
        (128, "tensor_map", 0),
        (128, "tensor_map", 1),
        (4, "argument", 2),
        (4, "expression", 0),
        *((4, "grid", axis) for axis in range(3)),
    ]
    # Maps are aligned to 64 bytes relative to the start of the parameter block at 0x210.
    assert [p.offset for p in params] == [48, 176, 304, 308, 312, 316, 320]
    assert params[3].expression is not None
    assert to_text(params[3].expression) == "x.shape[1]"


def test_a_kernel_over_tensors_loops_over_programs_in_one_variant(kernel: Kernel) -> None:
    """It has no other form: maps can be made of all valid arguments."""
    keys = [(v.target, v.types) for v in kernel.variants]
    assert len(keys) == len(set(keys))
    looped = {v.target: v.is_persistent for v in kernel.variants}
    assert looped == {"sm_80": False, "sm_90a": True}
    assert all(v.condition is None for v in kernel.variants)


def test_without_tensor_copies_the_parts_are_passed(kernel: Kernel) -> None:
    variant = _variant(kernel, "sm_80", "bf16")
    assert variant.tensor_maps == ()
    passed = [to_text(p.expression) for p in variant.cubin_params if p.expression is not None]
    assert passed[:2] == ["x", "y"]
    assert {"x.strides[0]", "y.strides[0]", "x.shape[0]", "y.shape[1]"} <= set(passed)


def test_guards_and_access(kernel: Kernel) -> None:
    """Rows that are only loaded may end anywhere; stored rows are whole."""
    assert [guard.text for guard in kernel.guards] == [
        "x is 16-byte aligned, its last axis dense",
        "y is 16-byte aligned, its last axis dense and a multiple of 4 elements",
    ]
    assert all(guard.is_promise for guard in kernel.guards)
    assert [(p.kind, p.rank, p.access) for p in kernel.params[:2]] == [
        ("tensor", 2, "read"),
        ("tensor", 2, "write"),
    ]


def test_an_archive_keeps_all_of_it(kernel: Kernel) -> None:
    read = decode(encode(Archive("descriptors", "0.1.0", (kernel,)))).kernels[0]
    for before, after in zip(
        sorted(kernel.variants, key=lambda v: (v.target, v.types)),
        sorted(read.variants, key=lambda v: (v.target, v.types)),
        strict=True,
    ):
        assert after.tensor_maps == before.tensor_maps
        slots = stored_params(read, after)
        assert slots == stored_params(kernel, before)
        maps = [slot for slot in slots if slot.tensor_map is not None]
        if after.target == "sm_90a" and after.types == ("fp32",):
            assert maps[0].argument == "x"
            extents = (("x.shape[0]", "x.shape[1]"), ("x.strides[0]",))
            form = ("fp32", (16, 32), 128, True)
            assert maps[0].tensor_map == TensorMapSpec(*form, "x", *extents)


# ---- kernels compiled both ways ------------------------------------------------------

_Compiled = Sequence[tuple[VariantSpec, CachedKernel]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Expansion, _Compiled]:
    """The variants for sm_90a of a kernel compiled with and without a tensor map."""
    manifest = load(str(mapped.written(tmp_path_factory.mktemp("mapped"))))
    expansion = expand(manifest.kernels[0], manifest.targets_for(["sm_90a"], []), lambda *_: [])
    return expansion, [
        (spec, compile_both_ways(mapped.compile_mapped, spec.request))
        for spec in expansion.variants
    ]


def _big(result: CachedKernel) -> CachedKernel:
    """Return a kernel with more shared memory than the target has."""
    return replace(result, metadata=replace(result.metadata, shared_bytes=1 << 20))


def test_a_config_has_two_variants(pair: tuple[Expansion, _Compiled]) -> None:
    kernel = assemble(*pair).kernel
    read = decode(encode(Archive("mapped", "0.1.0", (kernel,)))).kernels[0]
    assert [(v.config, v.symbol, len(v.tensor_maps)) for v in read.variants] == [
        (0, "twice_mapped", 1),
        (0, "twice", 0),
        (1, "twice_mapped", 1),
        (1, "twice", 0),
    ]
    conditions = [v.condition and to_text(v.condition) for v in read.variants]
    assert conditions == [mapped.condition(16), None, mapped.condition(32), None]
    first = read.variants[0]
    assert first.guards == read.variants[1].guards
    (tensor_map,) = first.tensor_maps
    assert read.params[tensor_map.param].name == "x_ptr"
    assert to_text(tensor_map.address) == "x_ptr"
    assert list(map(to_text, tensor_map.dims)) == ["max(1, cols)", "max(1, rows)"]
    assert list(map(to_text, tensor_map.strides)) == ["stride * 4"]
    assert stored_params(read, first) == stored_params(kernel, kernel.variants[0])


def test_what_does_not_fit_is_left_out_alone(pair: tuple[Expansion, _Compiled]) -> None:
    expansion, compiled = pair
    assembled = assemble(expansion, [(spec, _big(result)) for spec, result in compiled])
    assert [v.symbol for v in assembled.kernel.variants] == ["twice", "twice"]
    assert assembled.dropped[0].startswith(
        "twice sm_90a BLOCK=16 with tensor maps: 1048576 bytes of"
    )


def test_maps_do_not_stand_in_for_what_serves_all_launches(
    pair: tuple[Expansion, _Compiled],
) -> None:
    expansion, compiled = pair
    without = [
        (spec, replace(result, fallback=result.fallback and _big(result.fallback)))
        for spec, result in compiled
    ]
    with pytest.raises(ManifestError, match="expected a config of 'twice' that sm_90a can hold"):
        assemble(expansion, without)


class _Roomless:
    """A compiler for a target without room for kernels with tensor maps, without, or either."""

    def __init__(self, *, with_maps: bool, without: bool) -> None:
        self.roomless = {True: with_maps, False: without}

    def __call__(self, request: CompileRequest) -> CompiledKernel:
        if self.roomless[request.map_pointers]:
            raise ResourceError("3 moons, the limit is 1", remedy="fewer moons")
        return mapped.compile_mapped(request)


def test_maps_that_take_too_much_are_done_without(pair: tuple[Expansion, _Compiled]) -> None:
    expansion, _ = pair
    compiler = _Roomless(with_maps=True, without=False)
    compiled = [(spec, compile_both_ways(compiler, spec.request)) for spec in expansion.variants]
    assembled = assemble(expansion, compiled)
    assert [v.symbol for v in assembled.kernel.variants] == ["twice", "twice"]
    remark = "not built with tensor maps: 3 moons, the limit is 1; what may help: fewer moons"
    assert assembled.kernel.variants[0].remarks[-1] == remark


def test_maps_alone_do_not_serve_all_launches(pair: tuple[Expansion, _Compiled]) -> None:
    expansion, compiled = pair
    compiler = _Roomless(with_maps=False, without=True)
    (first, _), second = compiled
    alone = compile_both_ways(compiler, first.request)
    assert alone.fallback is None
    assembled = assemble(expansion, [(first, alone), second])
    assert [v.symbol for v in assembled.kernel.variants] == [
        "twice_mapped",
        "twice_mapped",
        "twice",
    ]
    text = "twice sm_90a BLOCK=16 without tensor maps: 3 moons, the limit is 1"
    assert assembled.dropped == (f"{text}; what may help: fewer moons",)
    with pytest.raises(ManifestError, match="without tensor maps: 3 moons"):
        assemble(expansion, [(first, alone)])


def test_neither_way_has_room(pair: tuple[Expansion, _Compiled]) -> None:
    expansion, compiled = pair
    compiler = _Roomless(with_maps=True, without=True)
    (first, _), second = compiled
    neither = compile_both_ways(compiler, first.request)
    assert neither.is_misfit
    assembled = assemble(expansion, [(first, neither), second])
    assert [v.config for v in assembled.kernel.variants] == [1, 1]
    text = "twice sm_90a BLOCK=16: 3 moons, the limit is 1; what may help: fewer moons"
    assert assembled.dropped == (text,)


def test_one_compile_where_nothing_is_mapped(pair: tuple[Expansion, _Compiled]) -> None:
    requests: list[CompileRequest] = []

    def compiler(request: CompileRequest):
        requests.append(request)
        return mapped.compile_mapped(replace(request, map_pointers=False))

    request = pair[0].variants[0].request
    assert compile_both_ways(compiler, request).fallback is None
    assert requests == [request]


@pytest.mark.parametrize(
    ("body", "is_free"),
    [
        ("v = d.load([0, 0])", True),
        ("v = d.load([0, 0]) + d.shape[1].to(tl.float32)", True),
        ("v = d.load([0, 0]); d.store([16, 0], v)", False),
        ("v = d.load([0, 0]); d.atomic_add([16, 0], v)", False),
        ("v = d.gather(tl.arange(0, 16), 0)", False),
        ("v = tl.full((16, 64), 1.0, tl.float32)", True),
    ],
)
def test_rows_are_whole_unless_they_are_only_loaded(
    tmp_path: Path, body: str, is_free: bool
) -> None:
    rows = 1 if "gather" in body else 16
    (tmp_path / "k.py").write_text(
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(d, out):\n"
        f"    {body}\n"
        "    at = tl.arange(0, 16)[:, None] * 64 + tl.arange(0, 64)[None, :]\n"
        "    tl.store(out + at, v)\n"
    )
    (tmp_path / "kernels.toml").write_text(
        '[package]\nname = "p"\nversion = "0.1.0"\ntargets = ["sm_90a"]\n'
        '[[kernel]]\nsource = "k.py:k"\n'
        f'signature = {{ d = "tensordesc<fp32[{rows},64]>", out = "*fp32" }}\n'
    )
    manifest = load(str(tmp_path / "kernels.toml"))
    expansion = expand(manifest.kernels[0], manifest.targets, lambda *_: [])
    compiled = [
        (spec, compile_both_ways(compile_kernel, spec.request)) for spec in expansion.variants
    ]
    (guard,) = assemble(expansion, compiled).kernel.guards
    assert guard.text.startswith("d is 16-byte aligned, its last axis dense")
    assert guard.text.endswith("a multiple of 4 elements") == (not is_free)
    assert ("shape[1] % 4" in to_text(guard.expression)) == (not is_free)
