"""A build's note on address overflows, over all variants of a kernel."""

from __future__ import annotations

from aotc.ir.expression import parse
from aotc.package.archive.index import Kernel, Variant
from aotc.package.builder.index_limits import IndexLimit, index_limits, notes
from aotc.schedule.remarks import Remark


def _variant(*remarks: str, grid: tuple[str, ...] = (), target: str = "sm_90a") -> Variant:
    expressions = tuple(parse(text) for text in grid)
    return Variant(target, "k", b"", 128, grid=expressions, remarks=remarks)


def _remark(location: str, limit: str) -> str:
    return f"{location}: {Remark.INDEX_LIMIT(limit=f'{limit} > 2147483647')}"


def test_a_limit_is_one_of_arguments() -> None:
    remark = _remark("norm.py:9:21", "(num_programs(0) - 1) * stride")
    for grid, expected in (
        ((), "(num_programs(0) - 1) * stride"),
        (("n_rows",), "(n_rows - 1) * stride"),
        (("cdiv(M, 64)",), "(cdiv(M, 64) - 1) * stride"),
        (("M // 2", "N"), "((M // 2) - 1) * stride"),
    ):
        kernel = Kernel("norm", b"", (_variant("norm.py:1:1: else", remark, grid=grid),))
        limit = IndexLimit("norm", "norm.py:9:21", f"{expected} > 2147483647")
        assert index_limits([kernel]) == (limit,)
    second = _remark("norm.py:9:21", "n * (num_programs(1) - 1)")
    kernel = Kernel("norm", b"", (_variant(second, grid=("n_rows",)),))
    assert index_limits([kernel])[0].condition == "n * (1 - 1) > 2147483647"


def test_variants_share_a_line_and_kernels_are_counted() -> None:
    first, other = (_remark(f"norm.py:{line}:21", "n * stride") for line in (9, 12))
    twice = (_variant(first), _variant(first, target="sm_80"))
    kernels = [Kernel("norm", b"", twice), Kernel("quiet", b"", (_variant(),))]
    (line,) = notes(index_limits(kernels))
    assert line == (
        "norm: addresses overflow 32 bits where n * stride > 2147483647 (norm.py:9); "
        "`.to(tl.int64)` on an operand avoids it"
    )
    kernels = [Kernel(f"k{i}", b"", (_variant(first, other),)) for i in range(6)]
    lines = notes(index_limits(kernels))
    assert "(norm.py:9), and 1 more (-v lists them); " in lines[0]
    assert [line.partition(":")[0] for line in lines[:-1]] == ["k0", "k1", "k2", "k3"]
    assert lines[-1] == "addresses of 2 more kernels overflow 32 bits (-v lists them)"
