"""Check that an archive's records are consistent, before writing and after reading.

The byte layout is checked in `decoder.py`. This file checks the fields: names, limits, indices,
masks, and that expressions only use launch arguments. The runtime in C makes the same checks when
it opens an archive, and then trusts the index.

Invariant: an archive that passes can be encoded, selected from and launched without any further
check of its index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NoReturn

from aotc.ir.expression import (
    MAX_TEXT_BYTES,
    Expression,
    ExpressionError,
    Extent,
    Name,
    free_names,
    to_text,
    walk,
)
from aotc.package.archive.bytecode import encode
from aotc.package.archive.flat_tree import depth, flatten
from aotc.package.archive.index import (
    DTYPE_BYTES,
    Archive,
    ArchiveError,
    CubinParam,
    Kernel,
    NamedValues,
    Param,
    TensorMap,
    Value,
    Variant,
    guard_mask,
    num_combinations,
    parse_target,
    selection_key,
    value_key,
    variant_key,
)
from aotc.package.archive.layout import LIMITS

_FLOATS = ("fp16", "bf16", "fp32", "fp64", "fp8e4nv", "fp8e5")
_MAX_RANK = 5
# Bytes per element of each CUtensorMapDataType, 0 for the packed ones, and whether it has a NaN.
_DATA_TYPES = (
    *((1, False), (2, False), (4, False), (4, False), (8, False), (8, False), (2, True), (4, True)),
    *((8, True), (2, True), (4, True), (4, True), (4, True), (0, False), (0, False), (0, False)),
)
_SWIZZLE_SPANS = (0, 32, 64, 128, 128, 128, 128)
_UINT16 = 1 << 16
_UINT32 = 1 << 32


class _Check:
    """Raise errors with messages that begin with the record being checked."""

    def __init__(self, record: str) -> None:
        self.record = record

    def fail(self, message: str) -> NoReturn:
        raise ArchiveError("FORMAT", f"{self.record}: {message}")

    def require(self, condition: object, message: str) -> None:
        if not condition:
            self.fail(message)

    def limit(self, counted: str, count: int, most: int) -> None:
        if count > most:
            raise ArchiveError("LIMIT", f"{self.record}: {count} {counted}, at most {most}")

    def within(self, field: str, value: int, least: int, end: int) -> None:
        if not least <= value < end:
            self.fail(f"{field} is {value}, expected {least} to {end - 1}")

    def text(self, field: str, text: str, most: int = LIMITS.text_bytes) -> None:
        self.require("\0" not in text, f"{field} {text!r} holds a NUL")
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            self.fail(f"{field} {text!r} is not Unicode text")
        self.limit(f"bytes in {field}", size, most)

    def name(self, field: str, name: str) -> None:
        self.require(name != "", f"{field} is empty")
        self.text(field, name, LIMITS.name_bytes)

    def names(self, field: str, names: Iterable[str]) -> None:
        seen: set[str] = set()
        for name in names:
            self.name(f"the name of a {field}", name)
            self.require(name not in seen, f"two {field} names are {name!r}")
            seen.add(name)

    def value(self, field: str, value: Value) -> None:
        if isinstance(value, str):
            self.text(field, value)
        elif isinstance(value, float):
            self.require(not math.isnan(value), f"{field} is not a number")
        elif value is not None:
            self.within(field, value, -(1 << 63), 1 << 63)

    def values(self, field: str, values: NamedValues) -> None:
        self.names(field, (name for name, _ in values))
        for name, value in values:
            self.value(f"{field} {name!r}", value)


def check_archive(archive: Archive) -> None:
    """Check all records, but not the contents of the blobs.

    Raises: `ArchiveError` LIMIT for a limit of the format, FORMAT for anything else.
    """
    check = _Check("archive")
    check.name("the name", archive.name)
    check.name("the version", archive.version)
    check.text("the toolchain", archive.toolchain)
    check.limit("kernels", len(archive.kernels), LIMITS.kernels)
    check.limit("variants", sum(len(k.variants) for k in archive.kernels), LIMITS.variants)
    check.limit("targets", len(archive.targets), LIMITS.targets)
    for target in archive.targets:
        parse_target(target)
    check.names("kernel", (kernel.name for kernel in archive.kernels))
    for kernel in archive.kernels:
        _check_kernel(kernel)


def _check_kernel(kernel: Kernel) -> None:
    check = _Check(f"kernel {kernel.name!r}")
    check.require(len(kernel.source_sha256) == 32, "the source digest is not 32 bytes")
    for counted, count, most in (
        ("params", len(kernel.params), LIMITS.params),
        ("type variables", len(kernel.type_variables), LIMITS.type_variables),
        ("choices", len(kernel.choices), LIMITS.choices),
        ("guards", len(kernel.guards), LIMITS.guards),
        ("configs", len(kernel.configs), LIMITS.configs),
        ("constants", len(kernel.constants), LIMITS.constants),
    ):
        check.limit(counted, count, most)
    check.require(bool(kernel.configs), "there is no config")
    check.require(bool(kernel.variants), "there is no variant")
    _check_types_and_choices(check, kernel)
    check.names("param", (param.name for param in kernel.params))
    for param in kernel.params:
        _check_param(_Check(f"{check.record}, param {param.name!r}"), kernel, param)
    for config in kernel.configs:
        check.limit("entries in a config", len(config), LIMITS.config_entries)
        check.values("config entry", config)
    check.values("constant", kernel.constants)
    expressions = _expression_checker(kernel)
    for guard in kernel.guards:
        check.require(guard.text != "", "a guard has no text")
        check.text("a guard's text", guard.text)
        expressions(check, guard.expression)
    promises = guard_mask(tuple(i for i, g in enumerate(kernel.guards) if g.is_promise))
    keys: set[tuple[str, int, int, int, int, bool]] = set()
    for variant in kernel.variants:
        variant_check = _Check(f"{check.record}, variant {variant.symbol!r} for {variant.target}")
        _check_variant(variant_check, kernel, variant, expressions)
        missing = promises & ~guard_mask(variant.guards)
        variant_check.require(not missing, "it does not require every promise")
        key = variant_key(kernel, variant)
        variant_check.require(
            key not in keys, "another variant has the same target, types and config"
        )
        keys.add(key)
    _check_selections(check, kernel, expressions)


def _check_selections(check: _Check, kernel: Kernel, expressions: _ExpressionChecker) -> None:
    keys: set[tuple[str, bytes, int]] = set()
    num = num_combinations(kernel.type_variables, kernel.choices)
    for selection in kernel.selections:
        selection_check = _Check(
            f"{check.record}, selection for {selection.gpu or selection.target}"
        )
        selection_check.require(selection.target in kernel.targets, "no variant has its target")
        selection_check.text("the GPU", selection.gpu, LIMITS.name_bytes)
        selection_check.within("the combination", selection.combination, 0, num)
        tree = flatten(selection.tree)
        selection_check.limit("features", len(tree.features), LIMITS.features)
        selection_check.limit("branches above a leaf", depth(tree.branches), LIMITS.tree_depth)
        for feature in tree.features:
            expressions(selection_check, feature)
        for branch in tree.branches:
            selection_check.within("a threshold", branch.threshold, -(1 << 63), (1 << 63) - 1)
        for leaf in tree.leaves:
            selection_check.limit("configs of a leaf", len(leaf), LIMITS.leaf_configs)
            selection_check.require(leaf, "a leaf has no config")
            selection_check.require(len(set(leaf)) == len(leaf), "a leaf has a config twice")
            for config in leaf:
                selection_check.within("a config of a leaf", config, 0, len(kernel.configs))
        key = selection_key(selection)
        selection_check.require(
            key not in keys, "another selection has the same target, GPU and types"
        )
        keys.add(key)


def _check_types_and_choices(check: _Check, kernel: Kernel) -> None:
    check.names("type variable", (variable.name for variable in kernel.type_variables))
    for variable in kernel.type_variables:
        name = variable.name
        check.require(name not in DTYPE_BYTES, f"type variable {name!r} is called as a dtype")
        check.within(f"the dtypes of {name}", len(variable.dtypes), 1, len(DTYPE_BYTES) + 1)
        unknown = [dtype for dtype in variable.dtypes if dtype not in DTYPE_BYTES]
        check.require(not unknown, f"{name} has unknown dtypes {unknown}")
        distinct = len(set(variable.dtypes)) == len(variable.dtypes)
        check.require(distinct, f"{name} lists a dtype twice")
    check.names("choice", (choice.name for choice in kernel.choices))
    for choice in kernel.choices:
        check.require(bool(choice.values), f"choice {choice.name!r} has no values")
        check.limit(f"values of {choice.name!r}", len(choice.values), LIMITS.choice_values)
        for value in choice.values:
            check.value(f"a value of {choice.name!r}", value)
        distinct = len({value_key(value) for value in choice.values}) == len(choice.values)
        check.require(distinct, f"choice {choice.name!r} lists a value twice")
    count = num_combinations(kernel.type_variables, kernel.choices)
    check.limit("combinations of types and choices", count, LIMITS.combinations)


def _check_param(check: _Check, kernel: Kernel, param: Param) -> None:
    for element in kernel.elements(param):
        check.require(element in DTYPE_BYTES, f"{element!r} is no dtype and no type variable")
    if param.kind == "tensor":
        check.within("the rank", param.rank, 1, _MAX_RANK + 1)
    else:
        check.within("the rank", param.rank, 0, 1)
    divisor = param.divisibility
    check.within("the divisibility", divisor, 1, _UINT32)
    check.require(divisor & (divisor - 1) == 0, f"divisibility {divisor} is no power of two")


_ExpressionChecker = Callable[[_Check, Expression], None]


def _expression_checker(kernel: Kernel) -> _ExpressionChecker:
    """Return a check that an expression only names launch arguments of `kernel`.

    Variants share most of their expressions, so each is checked once.
    """
    params = {param.name: param for param in kernel.params}
    indices = {param.name: index for index, param in enumerate(kernel.params)}
    seen: set[Expression] = set()

    def check_expression(check: _Check, root: Expression) -> None:
        if root in seen:
            return
        unknown = [name for name in free_names(root) if name not in params]
        check.require(not unknown, f"an expression names {unknown}, which are no arguments")
        try:
            encode(root, indices)
        except ExpressionError as error:
            raise ArchiveError("LIMIT", f"{check.record}: an expression {error.message}") from None
        check.limit("bytes in an expression", len(to_text(root).encode()), MAX_TEXT_BYTES)
        for node in walk(root):
            if isinstance(node, Name):
                param = params[node.name]
                floats = [dtype for dtype in kernel.elements(param) if dtype in _FLOATS]
                if param.kind == "scalar" and floats:
                    check.fail(f"an expression names {node.name!r}, which is a {floats[0]}")
            elif isinstance(node, Extent):
                rank = params[node.name].rank
                if node.dim >= rank:
                    check.fail(f"dimension {node.dim} of {node.name!r}, which has rank {rank}")
        seen.add(root)

    return check_expression


def _check_variant(
    check: _Check, kernel: Kernel, variant: Variant, expressions: _ExpressionChecker
) -> None:
    check.name("the symbol", variant.symbol)
    check.within("a config index", variant.config, 0, len(kernel.configs))
    for guard in variant.guards:
        check.within("a guard index", guard, 0, len(kernel.guards))
    distinct = len(set(variant.guards)) == len(variant.guards)
    check.require(distinct, "it requires a guard twice")
    check.within("num_threads", variant.num_threads, 1, 1025)
    check.within("registers", variant.registers, 0, _UINT16)
    for field, size in (
        ("dynamic_shared_bytes", variant.dynamic_shared_bytes),
        ("static_shared_bytes", variant.static_shared_bytes),
        ("stack_bytes", variant.stack_bytes),
        ("spill_bytes", variant.spill_bytes),
    ):
        check.within(field, size, 0, _UINT32)
    for dim in variant.cluster:
        check.within("a cluster dimension", dim, 1, 17)
    check.within("the cluster size", math.prod(variant.cluster), 1, 17)
    is_contradictory = variant.cooperative and variant.is_persistent
    check.require(not is_contradictory, "it is cooperative and persistent")
    check.within("the rank of the grid", len(variant.grid), 0, 4)
    same_rank = len(variant.grid) == kernel.grid_rank
    check.require(same_rank, "its grid and that of the first variant differ in rank")
    for remark in variant.remarks:
        one_line = remark != "" and "\n" not in remark
        check.require(one_line, f"the remark {remark!r} is not one line")
    check.text("the remarks", "\n".join(variant.remarks))
    for blob in (variant.cubin, variant.ptx):
        if blob is not None:
            check.require(bool(blob), "a blob is empty")
            check.limit("bytes in a blob", len(blob), LIMITS.blob_bytes)
    for expression in (variant.condition, *variant.grid):
        if expression is not None:
            expressions(check, expression)
    _check_scratch(check, variant, expressions)
    _check_cubin_params(check, kernel, variant, expressions)
    check.limit("tensor maps", len(variant.tensor_maps), LIMITS.tensor_maps)
    for tensor_map in variant.tensor_maps:
        _check_tensor_map(check, kernel, tensor_map, expressions)


def _check_scratch(check: _Check, variant: Variant, expressions: _ExpressionChecker) -> None:
    if variant.scratch_bytes is None:
        check.require(variant.scratch_align == 0, "it aligns scratch memory that it does not have")
        return
    align = variant.scratch_align
    power = 1 <= align <= 4096 and align & (align - 1) == 0
    check.require(power, f"scratch_align {align} is no power of two up to 4096")
    expressions(check, variant.scratch_bytes)


def _check_cubin_params(
    check: _Check, kernel: Kernel, variant: Variant, expressions: _ExpressionChecker
) -> None:
    check.limit("cubin params", len(variant.cubin_params), LIMITS.cubin_params)
    types = {v.name: t for v, t in zip(kernel.type_variables, variant.types, strict=False)}
    end = 0
    for index, cubin_param in enumerate(variant.cubin_params):
        param_check = _Check(f"{check.record}, cubin param {index}")
        sizes = _cubin_param_sizes(param_check, kernel, variant, cubin_param, types)
        size, offset = cubin_param.size, cubin_param.offset
        param_check.require(
            size in sizes, f"its size is {size}, expected {' or '.join(map(str, sizes))}"
        )
        param_check.require(offset >= end, "it overlaps the one before")
        param_check.require(offset % min(size, 16) == 0, f"offset {offset} is not aligned")
        end = offset + size
        is_expression = cubin_param.source == "expression"
        consistent = is_expression == (cubin_param.expression is not None)
        param_check.require(consistent, f"source {cubin_param.source} and expression do not fit")
        if cubin_param.expression is not None:
            expressions(param_check, cubin_param.expression)
        if cubin_param.source in ("expression", "scratch"):
            param_check.within("the index", cubin_param.index, 0, 1)
    check.limit("bytes of parameters", variant.param_bytes, LIMITS.param_bytes)


def _cubin_param_sizes(
    check: _Check,
    kernel: Kernel,
    variant: Variant,
    cubin_param: CubinParam,
    types: dict[str, str],
) -> tuple[int, ...]:
    """Return the sizes allowed for a cubin param."""
    match cubin_param.source:
        case "argument":
            check.within("the argument", cubin_param.index, 0, len(kernel.params))
            param = kernel.params[cubin_param.index]
            check.require(param.kind != "tensor", f"tensor {param.name!r} cannot be passed as is")
            if param.kind == "pointer":
                return (8,)
            dtype = types.get(param.element, param.element)
            return (DTYPE_BYTES.get(dtype, 0),)
        case "scratch":
            check.require(variant.scratch_bytes is not None, "the variant has no scratch memory")
            return (8,)
        case "tensor_map":
            check.within("the tensor map", cubin_param.index, 0, len(variant.tensor_maps))
            return (128,)
        case "expression":
            return (4, 8)
        case "grid":
            check.require(variant.is_persistent, "the variant is not persistent")
            check.within("the axis", cubin_param.index, 0, 3)
            return (4,)


def _check_tensor_map(
    check: _Check, kernel: Kernel, tensor_map: TensorMap, expressions: _ExpressionChecker
) -> None:
    check.within("the argument of a tensor map", tensor_map.param, 0, len(kernel.params))
    param = kernel.params[tensor_map.param]
    check = _Check(f"{check.record}, tensor map of {param.name!r}")
    check.require(param.kind != "scalar", "a scalar has no tensor map")
    rank = len(tensor_map.dims)
    check.within("the rank", rank, 1, _MAX_RANK + 1)
    lengths = (len(tensor_map.strides) + 1, len(tensor_map.box), len(tensor_map.element_strides))
    check.require(lengths == (rank, rank, rank), "its fields have different ranks")
    for size in tensor_map.box:
        check.within("a box dimension", size, 1, 257)
    for field, number, end in (
        ("data_type", tensor_map.data_type, 16),
        ("interleave", tensor_map.interleave, 3),
        ("swizzle", tensor_map.swizzle, 7),
        ("l2_promotion", tensor_map.l2_promotion, 4),
        ("oob_fill", tensor_map.oob_fill, 2),
    ):
        check.within(field, number, 0, end)
    element_bytes, has_nan = _DATA_TYPES[tensor_map.data_type]
    is_filled = tensor_map.oob_fill != 0
    check.require(has_nan or not is_filled, "it fills with NaN, which its data type does not have")
    if element_bytes and not tensor_map.interleave:
        row_bytes, span = tensor_map.box[0] * element_bytes, _SWIZZLE_SPANS[tensor_map.swizzle]
        check.require(row_bytes % 16 == 0, f"rows of {row_bytes} bytes, no multiple of 16")
        check.require(not span or row_bytes <= span, f"rows of {row_bytes} bytes, swizzled {span}")
    if tensor_map.interleave:
        check.require(rank >= 3, "interleaving needs rank 3 or more")
    if tensor_map.interleave == 2:
        check.require(tensor_map.swizzle == 1, "interleave 32 B needs swizzle 32 B")
    for stride in tensor_map.element_strides:
        check.within("an element stride", stride, 1, 9)
    for expression in (tensor_map.address, *tensor_map.dims, *tensor_map.strides):
        expressions(check, expression)
