"""The audited cubins of a variant, and the report of findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from aotc.compiler import CompileRequest
from aotc.ir.diagnostics import ResourceError
from aotc.package.builder.workers import Done, Job
from aotc.package.manifest.read import load
from aotc.package.verify import audit
from aotc.package.verify.audit import audit_variant, verify_and_audit
from aotc.package.verify.report import Report
from aotc.package.verify.subjects import Subject, VerifyOptions, subjects_of_manifest
from aotc.package.verify.variants import VariantResult
from aotc.verify.checks.check import Finding as Launch
from aotc.verify.sass.findings import Finding, Step
from tests.support.verify_subjects import manifest_text


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    (tmp_path / "kernels.toml").write_text(manifest_text("sum_rows"))
    return subjects_of_manifest(load(str(tmp_path / "kernels.toml")))[0]


def _verified(subject: Subject, _: VerifyOptions) -> VariantResult:
    launch = Launch("full", {}, (1,), "right")
    return VariantResult(subject.label, subject.kernel, subject.target.name, (launch,))


def test_the_cubin_of_a_variant_is_audited(subject: Subject) -> None:
    assert audit_variant(subject) == ((),)
    assert verify_and_audit(subject, VerifyOptions(), _verified).cubins == ((),)


@pytest.mark.parametrize("kernel", ["matmul_descriptor", "accumulate_blocks", "scale_rows"])
def test_kernels_for_hopper_have_no_finding(kernel: str) -> None:
    subjects = subjects_of_manifest(load("kernels/descriptors.toml"), [kernel], ["sm_90a"])
    findings = [finding for cubin in audit_variant(subjects[0]) for finding in cubin]
    assert [finding.render() for finding in findings if finding.is_failure] == []


def test_what_is_dropped_is_not_audited(subject: Subject) -> None:
    dropped = VariantResult(subject.label, subject.kernel, "sm_80", (), "too large")
    assert verify_and_audit(subject, VerifyOptions(), lambda *_: dropped) == dropped


def test_what_a_build_drops_is_dropped(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """PTX is right, but ptxas spills more than the manifest allows."""

    def spilling(request: CompileRequest) -> NoReturn:
        raise ResourceError(f"{request.kernel} spills 4096 bytes, the limit is 256")

    monkeypatch.setattr(audit, "compile_kernel", spilling)
    outcome = verify_and_audit(subject, VerifyOptions(), _verified)
    assert outcome.status == "dropped"
    assert "spills 4096 bytes" in outcome.dropped
    assert outcome.launches == outcome.cubins == ()


def test_a_finding_names_the_source(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def every_store(sass: str, ptx: str = "") -> tuple[Finding, ...]:
        del ptx
        return tuple(
            Finding(
                "issued apart", instruction.address, instruction.opcode, "", (), instruction.source
            )
            for function in audit_text.parse(sass)
            for instruction in function.instructions
            if instruction.name == "STG"
        )

    from aotc.verify.sass import text as audit_text

    monkeypatch.setattr(audit, "audit", every_store)
    (findings,) = audit_variant(subject)
    assert findings
    assert all(":" in finding.source and ".py" in finding.source for finding in findings)


def _report(*cubins: tuple[Finding, ...]) -> Report:
    result = VariantResult("k sm_90a", "k", "sm_90a", _launches(), cubins=cubins)
    job = Job("k sm_90a", None)
    return Report(("aotc", "verify", "x"), [Done(job, result, 1.0)])  # type: ignore[arg-type]


def _launches() -> tuple[Launch, ...]:
    return (Launch("full", {}, (1,), "right", num_stored=64),)


WRONG = Finding("issued apart", 0x40, "UTMALDG", "twice", ((Step(0x20, 0x40),),), "k.py:7")
SLOW = Finding("spill in a loop", 0x80, "LDL", "2 accesses")


def test_findings_against_a_cubin_make_a_variant_wrong() -> None:
    report = _report((), (WRONG, SLOW))
    assert not report.is_right
    (text,) = report.wrong()
    assert text.splitlines()[1:-1] == [
        "  the cubin without tensor maps does not do what its PTX says:",
        "    issued apart: 0x0040: UTMALDG (k.py:7)",
        "      twice",
        "      some lanes come by 0x0020 → 0x0040",
    ]
    assert report.summary(1.0) == "1 wrong, 2 cubins audited (1.0 s)"


def test_of_many_findings_the_first_are_shown() -> None:
    (text,) = _report(tuple(replace(WRONG, address=address) for address in range(9))).wrong()
    assert text.count("issued apart") == 4
    assert "    and 5 more" in text.splitlines()


def test_spills_are_no_failure() -> None:
    report = _report((SLOW,))
    assert report.is_right
    assert report.wrong() == []
