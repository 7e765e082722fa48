"""The guide's Dockerfile: its steps in a chroot for each stage, since a daemon is seldom at hand.

The last stage has no compiler and no Python; the server runs there on the fake driver.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import fake_gpu

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "serving-cpp.md"
# A container has /proc, and its mounts end with it.
ENTER = 'mount -t proc proc "$1/proc" && exec chroot "$1" /bin/sh -c "$2"'
# Of the machine, as Docker gives them to a container: names are resolved, certificates known.
SHARED = ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt")


def guide_files(page: Path) -> dict[str, str]:
    return dict(re.findall(r"(?ms)^<!-- file: (\S+) -->\n```\w*\n(.*?)^```$", page.read_text()))


def stages(dockerfile: str) -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each stage, with continued lines joined."""
    lines = [line for line in dockerfile.splitlines() if line and line[0] != "#"]
    text = "\n".join(lines).replace("\\\n", " ")
    by_stage: dict[str, list[tuple[str, str]]] = {}
    steps: list[tuple[str, str]] = []
    for line in text.splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            image, name = rest.split(" AS ")
            assert image == "debian:bookworm-slim"
            steps = by_stage[name] = []
        else:
            steps.append((instruction, rest))
    return by_stage


def test_the_image_that_serves_only_copies() -> None:
    files = guide_files(GUIDE)
    by_stage = stages(files["Dockerfile"])
    assert [*by_stage] == ["runtime", "building", "serving"]
    serving = [step for step in by_stage["serving"] if step[0] == "RUN"]
    assert serving == [("RUN", "ldconfig")]
    context = {*files, "aotc", *guide_files(ROOT / "README.md")}
    for steps in by_stage.values():
        for instruction, rest in steps:
            if instruction == "COPY" and not rest.startswith("--from="):
                assert {Path(name).parts[0] for name in rest.split()[:-1]} <= context


class Stage:
    """A root folder, and the steps run in it."""

    def __init__(self, root: Path, base: Path) -> None:
        self.root = root
        subprocess.run(["cp", "-a", base, root], check=True, timeout=300)  # devices stay devices
        for path in SHARED:
            (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, root / path[1:])

    def run(self, command: str) -> str:
        environment = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        process = subprocess.run(
            ["unshare", "--mount", "sh", "-c", ENTER, "sh", self.root, command],
            env={**environment, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert process.returncode == 0, f"{command}\n{process.stdout}{process.stderr}"[-20000:]
        return process.stdout

    def copy(self, arguments: str, context: Path, others: dict[str, Stage]) -> None:
        *sources, target = shlex.split(arguments)
        if sources[0].startswith("--from="):
            context = others[sources.pop(0).removeprefix("--from=")].root
        for source in sources:
            path, to = context / source.lstrip("/"), self.root / target.lstrip("/")
            to.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, to, symlinks=True)
                continue
            if target.endswith("/"):
                to.mkdir(parents=True, exist_ok=True)
                to = to / path.name
            shutil.copy(_inside(path, context), to)


def _inside(path: Path, root: Path) -> Path:
    """Resolve the links of a path within a root folder."""
    resolved = root
    for part in path.relative_to(root).parts:
        resolved = resolved / part
        while resolved.is_symlink():
            link = resolved.readlink()
            resolved = root / str(link)[1:] if link.is_absolute() else resolved.parent / link
    return resolved


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minimal Debian: that of AOTC_DEBIAN_ROOT, or a new one."""
    if given := os.environ.get("AOTC_DEBIAN_ROOT"):
        return Path(given)
    folder = tmp_path_factory.mktemp("debian") / "base"
    command = ["debootstrap", "--variant=minbase", "bookworm", str(folder)]
    subprocess.run(command, check=True, timeout=900, capture_output=True)
    return folder


@pytest.mark.exhaustive
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("debootstrap"), reason="needs root and debootstrap"
)
def test_the_steps_of_the_dockerfile(tmp_path: Path, base: Path) -> None:
    files = guide_files(GUIDE)
    context = tmp_path / "context"
    context.mkdir()
    for name, text in {**files, **guide_files(ROOT / "README.md")}.items():
        (context / name).write_text(text)
    checkout = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(checkout, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        target = context / "aotc" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, target, follow_symlinks=False)
    built: dict[str, Stage] = {}
    for name, steps in stages(files["Dockerfile"]).items():
        stage = built[name] = Stage(tmp_path / name, base)
        for instruction, rest in steps:
            if instruction == "COPY":
                stage.copy(rest, context, built)
            elif instruction == "RUN":
                stage.run(rest)

    check_server(built["serving"], built["building"])


def check_server(serving: Stage, building: Stage) -> None:
    """Run the server in the stage that serves, on the fake driver."""
    for program in ("python3", "cc", "gcc", "c++", "ld", "nvcc"):
        assert serving.run(f"command -v {program} || echo none") == "none\n"
    libraries = serving.run("ldd /usr/local/bin/server")
    assert "libcudart.so.13" in libraries
    assert not re.search(r"not found|libzstd|libaotc|libcuda\.so", libraries)

    fake = serving.root / "opt" / "fake"
    fake.mkdir(parents=True, exist_ok=True)
    fake_gpu.build(fake)
    headers = [f"-I{_inside(building.root / 'opt/cuda/include', building.root)}"]
    headers += [f"-I{fake_gpu.TESTS / 'fake_cuda'}", f"-I{ROOT / 'runtime_c' / 'include'}"]
    source = Path(__file__).parent / "fake_cudart.c"
    output = [f"-L{fake}", "-l:libcuda.so.1", "-o", str(fake / "libcudart.so.13")]
    compiler = ["cc", "-std=gnu11", "-O1", "-shared", "-fPIC", *headers]
    subprocess.run([*compiler, str(source), *output], check=True, timeout=120)
    text = serving.run("LD_LIBRARY_PATH=/opt/fake server 2>&1")
    assert "served\n" in text
    assert "launches: 2, live libraries: 0, violation: none" in text
