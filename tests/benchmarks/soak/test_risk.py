"""Kernels likely to hang are recognised from their PTX."""

from __future__ import annotations

from benchmarks.soak.risk import is_risky


def test_a_copy_under_a_predicate_is_risky() -> None:
    copy = (
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd2]"
    )
    assert is_risky(f"\t@%p6 {copy};")
    assert is_risky(f"\t@!%p6 {copy};")
    assert not is_risky(f"@%p6 bra $L1;\n\t{copy};\n$L1:")
    assert not is_risky("@%p1 cp.async.cg.shared.global [%r1], [%rd2], 16;")
