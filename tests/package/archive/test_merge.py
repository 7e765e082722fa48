"""Split and merge archives: the bytes of a joint build, or an error with the reason."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from aotc.ir.diagnostics import ManifestError
from aotc.package.archive.file import encode
from aotc.package.archive.index import Archive, Kernel, canonical
from aotc.package.archive.merge import merge
from aotc.package.archive.split import part_of


def named(*archives: Archive) -> list[tuple[str, Archive]]:
    return [(f"{number}.aotc", archive) for number, archive in enumerate(archives)]


def test_parts_by_target_merge_to_the_same_bytes(samples: SimpleNamespace) -> None:
    whole = samples.archive
    parts = [part_of(whole, [target]) for target in whole.targets]
    assert len(parts) > 1
    assert [part.targets for part in parts] == [(target,) for target in whole.targets]
    for order in itertools.permutations(parts):
        assert encode(merge(named(*order))) == encode(whole)


def test_parts_by_kernel_merge_to_the_same_bytes(samples: SimpleNamespace) -> None:
    whole = samples.archive
    parts = [part_of(whole, (), [kernel.name]) for kernel in whole.kernels]
    assert len(parts) > 1
    assert encode(merge(named(*reversed(parts)))) == encode(whole)
    assert encode(merge(named(whole, *parts))) == encode(whole)  # equal contents do not contradict


def test_a_part_keeps_what_a_launch_can_be_asked_for(samples: SimpleNamespace) -> None:
    target = samples.archive.targets[0]
    part = part_of(samples.archive, [target], [samples.norm.name])
    (kernel,) = part.kernels
    assert {selection.target for selection in kernel.selections} == {target}
    expected = replace(samples.norm, selections=kernel.selections)
    assert replace(kernel, variants=samples.norm.variants) == expected
    assert part.name == samples.archive.name


def test_selections_that_differ_are_no_merge(samples: SimpleNamespace) -> None:
    (selection, *other_selections) = samples.norm.selections
    for gpu, message in (("", "any GPU of sm_90a"), ("NVIDIA H100", "NVIDIA H100")):
        first, second = (
            replace(
                samples.norm, selections=(replace(selection, gpu=gpu, tree=tree), *other_selections)
            )
            for tree in ((0,), (1,))
        )
        archives = named(*(Archive("n", "1", (kernel,)) for kernel in (first, second)))
        with pytest.raises(ManifestError, match=f"select others for {message}"):
            merge(archives)
        (kernel,) = merge([archives[0], archives[0]]).kernels
        assert kernel == first
    apart = replace(samples.norm, selections=(replace(selection, gpu="NVIDIA A"),))
    joined = merge(named(Archive("n", "1", (apart,)), Archive("n", "1", (samples.norm,))))
    assert set(joined.kernels[0].selections) == {*apart.selections, *samples.norm.selections}


@pytest.mark.parametrize(
    ("targets", "kernels", "message"),
    [
        (["sm_91"], [], "expected a target of .*got 'sm_91'"),
        ([], ["nrm"], "expected a kernel of .*got 'nrm'"),
    ],
)
def test_parts_that_there_are_not(
    samples: SimpleNamespace, targets: list[str], kernels: list[str], message: str
) -> None:
    with pytest.raises(ManifestError, match=message):
        part_of(samples.archive, targets, kernels)


def test_a_kernel_that_a_target_lacks_is_no_part_for_it(samples: SimpleNamespace) -> None:
    whole = canonical(samples.archive)
    kernel = next(kernel for kernel in whole.kernels if len(kernel.targets) > 1)
    first, *_, last = kernel.targets
    assert first != last
    lacking = replace(kernel, variants=tuple(v for v in kernel.variants if v.target == first))
    other_kernels = tuple(part for part in whole.kernels if part.name != kernel.name)
    archive = replace(whole, kernels=(lacking, *other_kernels))
    assert lacking.name not in [part.name for part in part_of(archive, [last]).kernels]
    with pytest.raises(ManifestError, match="has none of these"):
        part_of(archive, [last], [lacking.name])


def test_access_is_of_both(samples: SimpleNamespace) -> None:
    kernel = samples.norm
    params = [replace(param, access="read") for param in kernel.params]
    first = replace(kernel, params=tuple(params))
    second = replace(kernel, params=tuple(replace(param, access="write") for param in params))
    merged = merge(named(Archive("n", "1", (first,)), Archive("n", "1", (second,))))
    assert {param.access for param in merged.kernels[0].params} == {"both"}


def contradictions(kernel: Kernel) -> dict[str, Kernel]:
    variant = kernel.variants[0]
    return {
        "different sources": replace(kernel, source_sha256=bytes(32)),
        "differ in configs": replace(kernel, configs=(*kernel.configs, (("EXTRA", 1),))),
        "differ in constants": replace(kernel, constants=(*kernel.constants, ("EXTRA", 1))),
        "differ in guards": replace(kernel, guards=kernel.guards[:-1]),
        "differ in params": replace(kernel, params=kernel.params[:-1]),
        "differ in norm": replace(
            kernel, variants=(replace(variant, registers=77), *kernel.variants[1:])
        ),
    }


@pytest.mark.parametrize(
    "reason",
    [
        "different sources",
        *(f"differ in {w}" for w in ("configs", "constants", "guards", "params")),
    ],
)
def test_two_kernels_of_one_name_are_refused(samples: SimpleNamespace, reason: str) -> None:
    other = contradictions(samples.norm)[reason]
    archives = named(Archive("n", "1", (samples.norm,)), Archive("n", "1", (other,)))
    with pytest.raises(ManifestError, match=f"0.aotc and of 1.aotc.*{reason}"):
        merge(archives)


def test_two_variants_of_one_label_are_refused(samples: SimpleNamespace) -> None:
    other = contradictions(samples.norm)["differ in norm"]
    archives = named(Archive("n", "1", (samples.norm,)), Archive("n", "1", (other,)))
    with pytest.raises(ManifestError, match=f"0.aotc and 1.aotc differ in {samples.norm.name} sm_"):
        merge(archives)


def test_names_versions_and_toolchains(samples: SimpleNamespace) -> None:
    first = Archive("one", "1", (samples.copy,), "aotc 1")
    second = Archive("two", "2", (samples.norm,), "aotc 2")
    with pytest.raises(ManifestError, match="archives of one name, got 'one'"):
        merge(named(first, second), version="3")
    with pytest.raises(ManifestError, match="archives of one version, got '1'"):
        merge(named(first, second), name="both")
    merged = merge(named(second, first), "both", "3")
    assert (merged.name, merged.version, merged.toolchain) == ("both", "3", "aotc 1 + aotc 2")
    third = Archive("both", "3", (replace(samples.copy, name="third"),), "aotc 2")
    assert merge(named(third, merged)) == replace(
        merged, kernels=(third.kernels[0], *merged.kernels)
    )
