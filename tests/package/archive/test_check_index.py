"""Each rule of the archive format once, and its limits at their edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aotc.ir.expression import Binary, Expression, Name, parse
from aotc.package.archive.check_index import check_archive
from aotc.package.archive.index import (
    Archive,
    ArchiveError,
    Choice,
    CubinParam,
    Guard,
    Kernel,
    Param,
    TensorMap,
    TypeVariable,
    Variant,
)
from aotc.package.archive.selection import ANY_GPU, Branch, Selection, Tree


def error_of(kernel: Kernel) -> ArchiveError | None:
    try:
        check_archive(Archive("n", "1", (kernel,)))
    except ArchiveError as error:
        return error
    return None


def variant_with(**fields: Any) -> Callable[[Kernel], Kernel]:
    def change(kernel: Kernel) -> Kernel:
        first, *rest = kernel.variants
        return replace(kernel, variants=(replace(first, **fields), *rest))

    return change


def kernel_with(**fields: Any) -> Callable[[Kernel], Kernel]:
    return lambda kernel: replace(kernel, **fields)


def param_with(index: int, **fields: Any) -> Callable[[Kernel], Kernel]:
    def change(kernel: Kernel) -> Kernel:
        params = list(kernel.params)
        params[index] = replace(params[index], **fields)
        return replace(kernel, params=tuple(params))

    return change


def map_with(**fields: Any) -> Callable[[Kernel], Kernel]:
    def change(kernel: Kernel) -> Kernel:
        (tensor_map,) = kernel.variants[0].tensor_maps
        return variant_with(tensor_maps=(replace(tensor_map, **fields),))(kernel)

    return change


def selection_with(**fields: Any) -> Callable[[Kernel], Kernel]:
    selection = replace(Selection("sm_90a", ANY_GPU, 0, (1, 0)), **fields)
    return kernel_with(selections=(selection,))


def chain(depth: int, num_features: int = 1) -> Tree:
    tree: Tree = (0,)
    for level in reversed(range(depth)):
        tree = Branch(parse(f"n_rows + {level % num_features}"), 7, (1,), tree)
    return tree


def wide(num_features: int) -> Tree:
    """Return a tree of little depth over many features."""
    trees: list[Tree] = [(0,)] * (num_features + 1)
    while len(trees) > 1:
        low, high, *trees = trees
        trees.append(Branch(parse(f"n_rows + {len(trees)}"), 7, low, high))
    return trees[0]


def guard(text: str) -> tuple[Guard, ...]:
    return (Guard(parse(text), "text"),)


_SELECTIONS = [
    (selection_with(target="sm_80"), "FORMAT", "no variant has its target"),
    (selection_with(gpu="\0"), "FORMAT", "NUL"),
    (selection_with(gpu="G" * 256), "LIMIT", "256 bytes"),
    (selection_with(combination=4), "FORMAT", "combination is 4"),
    (selection_with(tree=()), "FORMAT", "a leaf has no config"),
    (selection_with(tree=(0, 0)), "FORMAT", "a config twice"),
    (selection_with(tree=(2,)), "FORMAT", "a config of a leaf is 2"),
    (selection_with(tree=tuple(range(17))), "LIMIT", "17 configs of a leaf"),
    (selection_with(tree=chain(33)), "LIMIT", "33 branches above a leaf"),
    (selection_with(tree=wide(33)), "LIMIT", "33 features"),
    (selection_with(tree=Branch(parse("eps"), 0, (0,), (1,))), "FORMAT", "which is a fp32"),
    (selection_with(tree=Branch(parse("m"), 0, (0,), (1,))), "FORMAT", "no arguments"),
    (
        selection_with(tree=Branch(parse("n_rows"), (1 << 63) - 1, (0,), (1,))),
        "FORMAT",
        "threshold",
    ),
    (
        kernel_with(selections=(Selection("sm_90a", "", 0, (0,)),) * 2),
        "FORMAT",
        "another selection",
    ),
]

_GOOD_SELECTIONS = [
    selection_with(),
    selection_with(tree=chain(32)),
    selection_with(tree=chain(32, num_features=32)),
    selection_with(tree=Branch(parse("n_rows"), 0, (1,), chain(6, 6))),
    selection_with(tree=Branch(parse("n_rows"), (1 << 63) - 2, (0,), (1,))),
]

_NORM = [
    (kernel_with(name=""), "FORMAT", "is empty"),
    (kernel_with(source_sha256=bytes(31)), "FORMAT", "32 bytes"),
    (kernel_with(configs=()), "FORMAT", "no config"),
    (kernel_with(variants=()), "FORMAT", "no variant"),
    (kernel_with(configs=((("a", 1), ("a", 2)),) * 2), "FORMAT", "two config entry names"),
    (kernel_with(configs=((),) * 65537), "LIMIT", "65537 configs"),
    (kernel_with(constants=(("x", 1 << 63),)), "FORMAT", "constant 'x'"),
    (kernel_with(constants=(("x", float("nan")),)), "FORMAT", "not a number"),
    (kernel_with(constants=(("x", "a\0"),)), "FORMAT", "NUL"),
    (kernel_with(constants=(("x", "a" * 65536),)), "LIMIT", "65536 bytes"),
    (kernel_with(type_variables=(TypeVariable("fp32", ("i8",)),)), "FORMAT", "called as a dtype"),
    (kernel_with(type_variables=(TypeVariable("T", ()),)), "FORMAT", "dtypes of T"),
    (kernel_with(type_variables=(TypeVariable("T", ("i8", "i8")),)), "FORMAT", "twice"),
    (kernel_with(type_variables=(TypeVariable("T", ("i7",)),)), "FORMAT", "unknown dtypes"),
    (kernel_with(choices=(Choice("C", ()),)), "FORMAT", "no values"),
    (kernel_with(choices=(Choice("C", (1, 1)),)), "FORMAT", "a value twice"),
    (kernel_with(choices=(Choice("C", tuple(range(1025))),)), "LIMIT", "1025 values"),
    (
        kernel_with(choices=tuple(Choice(f"C{i}", tuple(range(1024))) for i in range(3))),
        "LIMIT",
        "combinations",
    ),
    (param_with(0, name="stride"), "FORMAT", "two param names"),
    (param_with(0, element="U"), "FORMAT", "no dtype and no type variable"),
    (param_with(0, rank=1), "FORMAT", "rank"),
    (param_with(0, divisibility=12), "FORMAT", "power of two"),
    (param_with(0, divisibility=0), "FORMAT", "divisibility"),
    (kernel_with(guards=guard("x")), "FORMAT", "names \\['x'\\]"),
    (kernel_with(guards=guard("eps > 0")), "FORMAT", "'eps', which is a fp32"),
    (kernel_with(guards=guard("x_ptr.shape[0] > 0")), "FORMAT", "rank 0"),
    (kernel_with(guards=(Guard(parse("1"), ""),)), "FORMAT", "no text"),
    (kernel_with(guards=guard("1") * 65), "LIMIT", "65 guards"),
    (variant_with(symbol=""), "FORMAT", "the symbol is empty"),
    (variant_with(target="sm_9"), "FORMAT", "expected a target"),
    (variant_with(types=("fp32",)), "FORMAT", "T cannot be fp32"),
    (variant_with(choices=(1,)), "FORMAT", "CAUSAL cannot be 1"),
    (variant_with(guards=(0, 1, 3)), "FORMAT", "guard index is 3"),
    (variant_with(guards=(0,)), "FORMAT", "every promise"),
    (variant_with(guards=(0, 1, 1)), "FORMAT", "twice"),
    (variant_with(config=2), "FORMAT", "config index is 2"),
    (variant_with(config=1), "FORMAT", "another variant"),
    (variant_with(condition=parse("x > 0")), "FORMAT", "names \\['x'\\]"),
    (variant_with(condition=parse("eps > 0")), "FORMAT", "'eps', which is a fp32"),
    (variant_with(num_threads=0), "FORMAT", "num_threads is 0"),
    (variant_with(num_threads=1025), "FORMAT", "num_threads is 1025"),
    (variant_with(registers=65536), "FORMAT", "registers"),
    (variant_with(dynamic_shared_bytes=-1), "FORMAT", "dynamic_shared_bytes"),
    (variant_with(stack_bytes=1 << 32), "FORMAT", "stack_bytes"),
    (variant_with(cluster=(0, 1, 1)), "FORMAT", "cluster dimension"),
    (variant_with(cluster=(8, 4, 1)), "FORMAT", "cluster size is 32"),
    (variant_with(grid=(parse("1"),) * 4), "FORMAT", "rank of the grid is 4"),
    (variant_with(grid=(parse("1"),) * 2), "FORMAT", "differ in rank"),
    (variant_with(remarks=("a\nb",)), "FORMAT", "not one line"),
    (variant_with(remarks=("",)), "FORMAT", "not one line"),
    (variant_with(cubin=b""), "FORMAT", "a blob is empty"),
    (variant_with(ptx=b""), "FORMAT", "a blob is empty"),
    (variant_with(scratch_bytes=None), "FORMAT", "does not have"),
    (variant_with(scratch_align=0), "FORMAT", "scratch_align 0"),
    (variant_with(scratch_align=8192), "FORMAT", "scratch_align 8192"),
    (variant_with(cubin_params=(CubinParam(0, 4),)), "FORMAT", "size is 4, expected 8"),
    (variant_with(cubin_params=(CubinParam(4, 8),)), "FORMAT", "not aligned"),
    (variant_with(cubin_params=(CubinParam(0, 8), CubinParam(0, 8))), "FORMAT", "overlaps"),
    (variant_with(cubin_params=(CubinParam(0, 8, index=5),)), "FORMAT", "the argument is 5"),
    (variant_with(cubin_params=(CubinParam(0, 8, "expression"),)), "FORMAT", "do not fit"),
    (variant_with(cubin_params=(CubinParam(0, 8, "scratch", 1),)), "FORMAT", "the index is 1"),
    (variant_with(cubin_params=(CubinParam(4096, 8),)), "LIMIT", "4104 bytes of parameters"),
    (variant_with(cubin_params=(CubinParam(0, 4, "grid"),)), "FORMAT", "is not persistent"),
    (
        variant_with(cubin_params=(CubinParam(0, 4, "grid", 3),), is_persistent=True),
        "FORMAT",
        "the axis is 3",
    ),
    (
        variant_with(cubin_params=(CubinParam(0, 8, "grid", 2),), is_persistent=True),
        "FORMAT",
        "size is 8, expected 4",
    ),
]
_COPY = [
    (param_with(0, rank=0), "FORMAT", "the rank is 0"),
    (param_with(0, rank=6), "FORMAT", "the rank is 6"),
    (param_with(0, rank=1), "FORMAT", "dimension 1 of 'x', which has rank 1"),
    (variant_with(tensor_maps=()), "FORMAT", "the tensor map is 0"),
    (variant_with(cubin_params=(CubinParam(0, 8, index=0),)), "FORMAT", "cannot be passed as is"),
    (variant_with(cubin_params=(CubinParam(0, 8, "scratch"),)), "FORMAT", "no scratch memory"),
    (variant_with(cubin_params=(CubinParam(24, 128, "tensor_map"),)), "FORMAT", "not aligned"),
    (map_with(param=2), "FORMAT", "the argument of a tensor map is 2"),
    (map_with(param=1), "FORMAT", "a scalar has no tensor map"),
    (map_with(data_type=16), "FORMAT", "data_type is 16"),
    (map_with(swizzle=7), "FORMAT", "swizzle is 7"),
    (map_with(interleave=1), "FORMAT", "rank 3 or more"),
    (map_with(box=(257, 1)), "FORMAT", "box dimension is 257"),
    (map_with(box=(64,)), "FORMAT", "different ranks"),
    (map_with(element_strides=(0, 1)), "FORMAT", "element stride is 0"),
    (map_with(strides=()), "FORMAT", "different ranks"),
    (map_with(address=parse("y")), "FORMAT", "names \\['y'\\]"),
]


@pytest.mark.parametrize(("change", "kind", "message"), _NORM)
def test_rules_of_kernels_and_variants(
    samples: SimpleNamespace, change: Callable[[Kernel], Kernel], kind: str, message: str
) -> None:
    with pytest.raises(ArchiveError, match=message) as error:
        check_archive(Archive("n", "1", (change(samples.norm),)))
    assert error.value.kind == kind


@pytest.mark.parametrize(("change", "kind", "message"), _SELECTIONS)
def test_rules_of_selections(
    samples: SimpleNamespace, change: Callable[[Kernel], Kernel], kind: str, message: str
) -> None:
    error = error_of(change(samples.norm))
    assert error is not None
    assert (error.kind, message in error.message) == (kind, True), error.message


@pytest.mark.parametrize("change", _GOOD_SELECTIONS)
def test_selections_at_the_limits(
    samples: SimpleNamespace, change: Callable[[Kernel], Kernel]
) -> None:
    assert error_of(change(samples.norm)) is None


@pytest.mark.parametrize(("change", "kind", "message"), _COPY)
def test_rules_of_tensors_and_tensor_maps(
    samples: SimpleNamespace, change: Callable[[Kernel], Kernel], kind: str, message: str
) -> None:
    with pytest.raises(ArchiveError, match=message) as error:
        check_archive(Archive("n", "1", (change(samples.copy),)))
    assert error.value.kind == kind


def test_the_samples_pass(samples: SimpleNamespace) -> None:
    check_archive(samples.archive)


def bare(**fields: Any) -> Kernel:
    """Return a kernel with one variant and nothing else."""
    variant = Variant("sm_80", "k", b"cubin", 32, **fields.pop("variant", {}))
    return Kernel("k", bytes(32), (variant,), **fields)


@pytest.mark.parametrize(
    ("field", "make", "most"),
    [
        ("params", lambda i: Param(f"p{i}", "scalar", "i32"), 256),
        ("type_variables", lambda i: TypeVariable(f"T{i}", ("i8",)), 16),
        ("choices", lambda i: Choice(f"C{i}", (None,)), 32),
        ("constants", lambda i: (f"c{i}", i), 1024),
    ],
)
def test_limits_are_exact(field: str, make: Callable[[int], Any], most: int) -> None:
    def kernel(count: int) -> Kernel:
        fields: dict[str, Any] = {field: tuple(make(index) for index in range(count))}
        types = ("i8",) * count if field == "type_variables" else ()
        choices = (None,) * count if field == "choices" else ()
        return bare(variant={"types": types, "choices": choices}, **fields)

    assert error_of(kernel(most)) is None
    error = error_of(kernel(most + 1))
    assert error is not None
    assert error.kind == "LIMIT"


def test_expressions_beyond_the_evaluator_are_refused() -> None:
    deep: Expression = Name("n")
    for _ in range(40):
        deep = Binary("+", Name("n"), deep)
    params = (Param("n", "scalar", "i32"),)
    error = error_of(bare(params=params, guards=(Guard(deep, "deep"),)))
    assert error is not None
    assert error.kind == "LIMIT"
    long: Expression = Name("n" * 255)
    for _ in range(5):
        long = Binary("+", long, Name("n" * 255))
    params = (Param("n" * 255, "scalar", "i32"),)
    error = error_of(bare(params=params, guards=(Guard(long, "long"),)))
    assert error is not None
    assert error.kind == "LIMIT"


def test_a_scalar_of_a_variable_dtype_counts_as_floating() -> None:
    def kernel(dtypes: tuple[str, ...]) -> Kernel:
        return bare(
            params=(Param("n", "scalar", "T"),),
            type_variables=(TypeVariable("T", dtypes),),
            guards=guard("n > 0"),
            variant={"types": dtypes[:1]},
        )

    assert error_of(kernel(("i32", "i64"))) is None
    assert error_of(kernel(("i32", "fp16"))) is not None


def test_a_scalar_has_the_size_of_the_variants_dtype() -> None:
    def kernel(size: int) -> Kernel:
        return bare(
            params=(Param("n", "scalar", "T"),),
            type_variables=(TypeVariable("T", ("i32", "i64")),),
            variant={"types": ("i64",), "cubin_params": (CubinParam(0, size),)},
        )

    assert error_of(kernel(8)) is None
    assert error_of(kernel(4)) is not None


def test_interleaved_tensor_maps_need_their_swizzle() -> None:
    def kernel(swizzle: int) -> Kernel:
        unit = parse("1")
        tensor_map = TensorMap(
            0, 9, parse("x"), (unit,) * 3, (unit,) * 2, (1,) * 3, (1,) * 3, 2, swizzle
        )
        params = (Param("x", "pointer", "bf16"),)
        return bare(params=params, variant={"tensor_maps": (tensor_map,)})

    assert error_of(kernel(1)) is None
    assert error_of(kernel(0)) is not None
