"""The manifests of the repository: variants to assemble and to verify in tests/e2e.

All variants take hours of a core: `aotc verify kernels/NAME.toml`. Mistakes of the compiler mostly
show with two of a variant's values, so tests verify variants with all pairs of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from pathlib import Path

from aotc.compiler import autotune_configs
from aotc.package.manifest.read import load
from aotc.package.manifest.spec import Manifest
from aotc.package.manifest.variant_grid import VariantSpec, expand
from aotc.package.verify.subjects import Subject, subjects_of_manifest
from aotc.target import TARGETS

ROOT = Path(__file__).parents[2]
ONE_CTA = ("rmsnorm_backward", "layernorm_backward", "partial_sums")
_SM_90A = TARGETS["sm_90a"]


@dataclass(frozen=True)
class CheckedManifest:
    """A manifest with its choice of subjects.

    Subjects of a kernel and a target go in tests of at most `group`. Those of `verified` cover all
    pairs of values; others run with --exhaustive. With `audits`, cubins are audited too.
    """

    path: Path
    verified: Callable[[list[Subject]], list[Subject]] = list
    seed: int = 5
    min_findings: int = 4
    group: int = 1
    audits: bool = False
    is_slow: bool = False

    @property
    def manifest(self) -> Manifest:
        """The manifest as read."""
        return _loaded(self.path)

    def variants(self, kernel: str) -> tuple[VariantSpec, ...]:
        """Return the variants of a kernel for the manifest's targets."""
        return _expanded(self.path, kernel, None)

    def hopper_variants(self, kernel: str) -> tuple[VariantSpec, ...]:
        """Return the variants of a kernel for sm_90a, whatever the manifest's targets."""
        return _expanded(self.path, kernel, "sm_90a")

    def subject_groups(self) -> Iterator[tuple[str, list[Subject], bool]]:
        """Yield the label and the subjects of each test, and whether it is exhaustive."""
        subjects = self.verified(subjects_of_manifest(self.manifest))
        chosen = {subject.label for subject in covering(subjects)}
        by_test: dict[tuple[str, str, bool], list[Subject]] = {}
        for subject in subjects:
            key = subject.kernel, subject.target.name, subject.label not in chosen
            by_test.setdefault(key, []).append(subject)
        for (kernel, target, is_exhaustive), members in by_test.items():
            for start in range(0, len(members), self.group):
                part = members[start : start + self.group]
                label = f"{kernel} {target} {start}" if self.group > 1 else part[0].label
                yield label, part, is_exhaustive


def covering(subjects: list[Subject]) -> list[Subject]:
    """Return subjects with each pair of words in the labels of their kernel's subjects."""
    pairs_of: dict[str, dict[str, set[tuple[str, str]]]] = {}
    for subject in subjects:
        words = subject.label.split()
        # Variants without promises have fewer words: their number stands for that.
        pairs = set(combinations_with_replacement(sorted({*words, str(len(words))}), 2))
        pairs_of.setdefault(subject.kernel, {})[subject.label] = pairs
    labels: set[str] = set()
    for by_label in pairs_of.values():
        left = set[tuple[str, str]]().union(*by_label.values())
        while left:
            label = max(by_label, key=lambda label: len(by_label[label] & left))
            left -= by_label[label]
            labels.add(label)
    return [subject for subject in subjects if subject.label in labels]


@cache
def _loaded(path: Path) -> Manifest:
    return load(str(path))


@cache
def _expanded(path: Path, name: str, target: str | None) -> tuple[VariantSpec, ...]:
    manifest = _loaded(path)
    targets = manifest.targets if target is None else [TARGETS[target]]
    return expand(manifest.kernel(name), targets, autotune_configs).variants


def _clusters(subjects: list[Subject]) -> list[Subject]:
    return [
        subject
        for subject in subjects
        if subject.kernel in ("ring", "reduce_scatter")
        or "T=bf16 stride:16 BLOCK=1024" in subject.label
    ]


def _cooperative(subjects: list[Subject]) -> list[Subject]:
    return [next(s for s in subjects if "sm_90a T=bf16 BLOCK=1024" in s.label)]


def _whole_tails(subjects: list[Subject]) -> list[Subject]:
    """Leave out splits of the tail of 132 programs: two minutes each, and emulated elsewhere."""
    splits = ("persistent_linear_split", "persistent_columns_split")
    return [subject for subject in subjects if not subject.label.startswith(splits)]


def _first_clusters(subjects: list[Subject]) -> list[Subject]:
    """Return the first build of each kernel for clusters, or for one CTA if there is no other."""
    by_kernel = {
        subject.kernel: subject
        for subject in reversed(subjects)
        if ("num_ctas=" in subject.label or subject.kernel in ONE_CTA)
        and "n_cols:16" in subject.label
    }
    return list(by_kernel.values())


def _last_of_kernels(subjects: list[Subject]) -> list[Subject]:
    return list({subject.kernel: subject for subject in subjects}.values())


KERNELS = ROOT / "kernels"
MANIFESTS = {
    "kernels": CheckedManifest(ROOT / "kernels.toml", group=1000, audits=True, seed=0),
    "matrix": CheckedManifest(
        KERNELS / "matrix.toml", group=4, audits=True, seed=0, min_findings=1
    ),
    "hopper": CheckedManifest(KERNELS / "hopper.toml", _whole_tails),
    "rows": CheckedManifest(KERNELS / "rows.toml", _first_clusters, seed=7),
    "serving": CheckedManifest(KERNELS / "serving.toml", _last_of_kernels, is_slow=True),
    "functions": CheckedManifest(KERNELS / "functions.toml", seed=3, min_findings=1),
    "descriptors": CheckedManifest(KERNELS / "descriptors.toml"),
    "moe": CheckedManifest(KERNELS / "moe.toml", min_findings=1),
    "clusters": CheckedManifest(KERNELS / "clusters.toml", _clusters, min_findings=1),
    "cooperative": CheckedManifest(
        KERNELS / "cooperative.toml", _cooperative, seed=3, min_findings=1
    ),
}
