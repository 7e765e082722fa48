"""ptxas and nvdisasm in their own processes: what they report, and how they fail."""

from __future__ import annotations

import errno
import os
import re
import time
from pathlib import Path

import pytest

from aotc.backend import assemble, disassemble, ptxas, wheels
from aotc.backend.ptxas import FewRegistersError, fall_back
from aotc.backend.result_cache import ResultCache
from aotc.ir.diagnostics import HostError, IRError, ManifestError
from aotc.package.archive.elf import check_cubin, toolchain_of
from aotc.target import TARGETS, TOOLCHAINS
from tests.backend.programs import SM_90

HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n"
EMPTY = HEADER + ".visible .entry k() { ret; }\n"


def fake_ptxas(tmp_path, monkeypatch, script: str) -> None:
    """Let a shell script stand for ptxas and nvdisasm."""
    fake = tmp_path / "ptxas"
    fake.write_text(f"#!/bin/sh\n{script}")
    fake.chmod(0o755)
    monkeypatch.setattr(ptxas, "find_ptxas", lambda *_: fake)
    monkeypatch.setattr(ptxas, "find_file", lambda *_: fake)


def test_numbers_are_reported() -> None:
    body = HEADER + (
        ".visible .entry k(.param .u64 p) {\n .shared .align 4 .b8 s[256];\n"
        " .reg .b32 %r<4>; .reg .b64 %rd<2>;\n ld.param.b64 %rd1, [p];\n mov.u32 %r1, %tid.x;\n"
        " st.shared.b32 [s], %r1;\n bar.sync 0;\n ld.shared.b32 %r2, [s+4];\n"
        " st.global.b32 [%rd1], %r2;\n ret;\n}\n"
    )
    assembly = assemble(body, SM_90)
    assert assembly.static_shared_bytes == 256
    assert 0 < assembly.registers < 32
    assert (assembly.spill_bytes, assembly.stack_bytes, assembly.warnings) == (0, 0, ())
    assert assembly.cubin.startswith(b"\x7fELF")


def test_the_cubin_depends_on_the_text_alone() -> None:
    assert assemble(EMPTY, SM_90).cubin == assemble(EMPTY, SM_90).cubin


def test_a_tool_may_be_started_before_there_is_ptx() -> None:
    with ptxas.Ptxas(SM_90) as started:
        assert assemble(EMPTY, SM_90, started=started) == assemble(EMPTY, SM_90)


def test_equal_ptx_is_assembled_once_on_request(tmp_path, monkeypatch) -> None:
    text = HEADER + ".visible .entry once() { ret; }\n"
    made = assemble(text, SM_90, reuses=True)
    fake_ptxas(tmp_path, monkeypatch, "echo it ran; exit 1\n")
    assert assemble(text, SM_90, reuses=True) is made
    for other in (
        {"ptx": text, "target": SM_90},
        {"ptx": text, "target": TARGETS["sm_80"], "reuses": True},
        {"ptx": text, "target": SM_90, "maxnreg": 32, "reuses": True},
        {"ptx": f"{text}//\n", "target": SM_90, "reuses": True},
    ):
        with pytest.raises(IRError, match="it ran"):
            assemble(**other)


def test_no_tool_starts_early_after_ptx_assembled_before(monkeypatch) -> None:
    monkeypatch.setattr(ptxas, "_results", ResultCache())
    for text, is_early in ((EMPTY, True), (EMPTY, True), (EMPTY, False), (EMPTY + "//", False)):
        with ptxas.Ptxas(SM_90, reuses=True) as started:
            assert (started._process is not None) == is_early
            assemble(text, SM_90, started=started, reuses=True)
    with ptxas.Ptxas(SM_90, reuses=True) as started:
        assert started._process is not None
    assemble(EMPTY, SM_90, reuses=True)
    with ptxas.Ptxas(SM_90) as started:
        assert started._process is not None


def test_a_started_tool_ends_with_its_context(tmp_path, monkeypatch) -> None:
    numbers = tmp_path / "pid"
    script = f"echo $$ > {numbers}.new; mv {numbers}.new {numbers}\nsleep 30\n"
    fake_ptxas(tmp_path, monkeypatch, script)
    with pytest.raises(KeyError, match="interrupted"), ptxas.Ptxas(SM_90):
        while not numbers.exists():
            time.sleep(0.01)
        raise KeyError("interrupted")
    with pytest.raises(ProcessLookupError):
        os.kill(int(numbers.read_text()), 0)


def test_a_failed_start_matters_once_the_tool_is_needed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ptxas, "find_ptxas", lambda *_: tmp_path / "absent")
    with ptxas.Ptxas(SM_90) as started, pytest.raises(IRError, match="absent cannot be started"):
        started.run(EMPTY, 1.0)


def test_a_tool_takes_its_memory_in_large_pages_unless_the_user_says_otherwise(
    tmp_path, monkeypatch
) -> None:
    fake_ptxas(tmp_path, monkeypatch, 'cat > /dev/null; echo "[$GLIBC_TUNABLES]"; exit 1\n')

    def tunables() -> list[str]:
        with pytest.raises(IRError) as raised:
            assemble(EMPTY, SM_90)
        return str(raised.value).partition("[")[2].partition("]")[0].split(":")

    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    ours = tunables()
    assert "glibc.malloc.hugetlb=1" in ours
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    assert tunables() == [*ours, "glibc.malloc.hugetlb=0"]


def test_an_error_shows_its_line() -> None:
    with pytest.raises(IRError, match=r"status 255[\s\S]*line 4[\s\S]*4: \.visible .* nonsense"):
        assemble(EMPTY.replace("ret;", "nonsense;"), SM_90)


def test_a_failed_allocation_of_registers_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = "ptxas fatal : (C7600) Register allocation failed with register count of '112'."
    fake_ptxas(tmp_path, monkeypatch, f'echo "{report}"; exit 255\n')
    with pytest.raises(FewRegistersError) as caught:
        assemble(EMPTY, SM_90)
    assert (caught.value.needed, caught.value.available) == (None, 112)


def test_performance_warnings_are_kept() -> None:
    body = EMPTY.replace("ret;", "setmaxnreg.dec.sync.aligned.u32 40; ret;")
    (warning,) = assemble(body, SM_90).warnings
    assert "C7508" in warning


def live_values(count: int, directives: str = "") -> str:
    """Return a kernel that loads so many values before a barrier and stores them after it."""
    lines = [f" ld.global.b32 %r{i}, [%rd1+{4 * i}];" for i in range(count)]
    lines += [" bar.sync 0;"]
    lines += [f" st.global.b32 [%rd1+{4 * (count + i)}], %r{i};" for i in range(count)]
    return HEADER + (
        f".visible .entry k(.param .u64 p)\n{directives}"
        f"{{\n .reg .b32 %r<{count}>; .reg .b64 %rd<2>;\n"
        " ld.param.b64 %rd1, [p];\n" + "\n".join(lines) + "\n ret;\n}\n"
    )


def test_only_the_excess_is_spilled() -> None:
    made = assemble(live_values(300, ".reqntid 256\n"), SM_90)
    assert made.registers == 255
    assert made.stack_bytes <= 4 * (300 - 255 + 32)


@pytest.mark.parametrize(
    ("directives", "registers", "asked"),
    [
        (".reqntid 256\n", 32, True),
        (".reqntid 256\n", 255, False),
        (".reqntid 1024\n", 64, False),
        (".reqntid 1024\n", 32, True),
        (".reqntid 640\n", 96, False),
        (".reqntid 640\n", 88, True),
        ("", 255, False),
        ("", 128, True),
        (".reqntid 256\n.maxnreg 32\n", 32, False),
        (".reqntid 256\n.minnctapersm 2\n", 32, False),
    ],
)
def test_a_block_is_given_an_sm_where_registers_were_left_over(
    tmp_path, monkeypatch, directives: str, registers: int, *, asked: bool
) -> None:
    calls = tmp_path / "calls"
    fake_ptxas(
        tmp_path,
        monkeypatch,
        f'echo "$@" >> {calls}\nwhile [ "$1" != -o ]; do shift; done; touch "$2"\n'
        f'echo "Used {registers} registers"; echo "5000 bytes spill stores"\n',
    )
    assemble(live_values(1, directives), SM_90)
    options = [line.partition("kernel.cubin")[2] for line in calls.read_text().splitlines()]
    # So much is spilled that nothing else is tried.
    assert options == ["", " -minnctapersm=1"] if asked else [""]


def test_a_cap_on_registers_spills() -> None:
    body = live_values(120)
    assert assemble(body, SM_90).spill_bytes == 0
    capped = assemble(body, SM_90, maxnreg=32)
    assert capped.registers <= 32
    assert capped.spill_bytes > 0
    assert capped.stack_bytes > 0


def reports(tmp_path, monkeypatch, spills: dict[str, tuple[int, int]]) -> list[str]:
    """Let ptxas report what is spilled and of stack, by its option; return the ways it is called."""
    calls = tmp_path / "calls"
    cases = "\n".join(
        f"*{option}*) n={spill}; s={stack};;" for option, (spill, stack) in spills.items()
    )
    fake_ptxas(
        tmp_path,
        monkeypatch,
        f'echo "$@" >> {calls}\ncase "$*" in\n{cases}\nesac\n'
        'while [ "$1" != -o ]; do shift; done; echo "$s" > "$2"\n'
        'echo "$s bytes stack frame, $n bytes spill stores, $n bytes spill loads"\n',
    )
    made = assemble(EMPTY, SM_90, maxnreg=64)
    options = [line.partition("kernel.cubin ")[2] for line in calls.read_text().splitlines()]
    return [f"{made.spill_bytes} {made.cubin.decode().strip()}", *options]


@pytest.mark.parametrize(
    ("spills", "best", "count"),
    [
        ({"": (0, 0)}, "0 0", 1),
        ({"": (0, 8)}, "0 8", 1),  # a call needs a stack, however it is assembled
        ({"-O2": (0, 0), "": (4, 8)}, "0 0", 2),
        ({"-O2": (8, 8), "level=0": (2, 8), "": (4, 8)}, "4 8", 3),
        ({"-O2": (8, 8), "level=0": (9, 8), "": (4, 4)}, "8 4", 3),
    ],
)
def test_other_ways_are_tried_while_registers_spill(
    tmp_path, monkeypatch, spills, best: str, count: int
) -> None:
    found, *calls = reports(tmp_path, monkeypatch, spills)
    assert found == best
    expected = ["", "-O2 ", "--register-usage-level=0 "][:count]
    assert calls == [f"{option}-maxrregcount=64" for option in expected]


CRASHES = {
    "internal": ('echo "ptxas fatal   : (C7907) Internal compiler error."; exit 255', "C7907"),
    "signal": ("kill -SEGV $$", "ended by SIGSEGV"),
}


def crashing_ptxas(tmp_path, monkeypatch, crash: str, works: str) -> None:
    """Let ptxas crash but where its command matches a pattern of the shell."""
    monkeypatch.setattr(ptxas, "fall_back", fall_back)
    fake_ptxas(
        tmp_path,
        monkeypatch,
        f'cat > /dev/null; echo "$@" >> {tmp_path}/calls\ncase "$*" in {works}) ;; *) {crash};; esac\n'
        'while [ "$1" != -o ]; do shift; done; echo "$@" > "$2"\necho "8 bytes spill stores"\n',
    )


@pytest.mark.parametrize("kind", CRASHES)
@pytest.mark.parametrize("works", [0, 1, 2])
def test_a_lower_level_is_used_where_ptxas_crashes(
    tmp_path, monkeypatch, kind: str, works: int
) -> None:
    crash, reason = CRASHES[kind]
    levels = ["-Ofc=mid", "-O1", "-O0"]
    crashing_ptxas(tmp_path, monkeypatch, crash, f"*{levels[works]}*")
    made = assemble(EMPTY, SM_90)
    assert made.level == levels[works]
    assert reason in made.crash
    calls = (tmp_path / "calls").read_text().splitlines()
    options = [call.partition("kernel.cubin")[2].strip() for call in calls]
    assert options == ["", "--register-usage-level=10", *levels[: works + 1]]


@pytest.mark.parametrize(("count", "level"), [(24_998, ""), (24_999, "-Ofc=mid")])
def test_a_long_kernel_is_optimised_less(count: int, level: str) -> None:
    body = "{ .reg .b32 %r<2>;\n" + "mov.b32 %r1, 0;\n" * count + "ret;\n}\n"
    made = assemble(HEADER + f".visible .entry k()\n{body}", SM_90)
    assert (made.level, made.crash) == (level, "")


@pytest.mark.parametrize(("count", "level"), [(512, ""), (513, "-Ofc=max")])
def test_a_kernel_of_many_blocks_is_optimised_least(count: int, level: str) -> None:
    blocks = "".join(f"$L__BB0_{i}:\nadd.u32 %r1, %r1, {i};\n" for i in range(count))
    body = "{ .reg .b32 %r<2>;\nmov.b32 %r1, 0;\n" + blocks + "ret;\n}\n"
    assembly = assemble(HEADER + f".visible .entry k()\n{body}", SM_90)
    assert (assembly.level, assembly.crash) == (level, "")


def test_registers_are_allocated_in_another_way_first(tmp_path, monkeypatch) -> None:
    crashing_ptxas(tmp_path, monkeypatch, CRASHES["internal"][0], "*level=10*")
    made = assemble(EMPTY, SM_90)
    assert (made.level, made.crash) == ("", "")
    assert "level=10" in made.cubin.decode()


def test_a_crash_at_every_level_is_an_error(tmp_path, monkeypatch) -> None:
    crashing_ptxas(tmp_path, monkeypatch, CRASHES["internal"][0], "none")
    with pytest.raises(ptxas.CrashError, match="C7907"):
        assemble(EMPTY, SM_90)


def test_a_crash_with_other_options_is_no_matter(tmp_path, monkeypatch) -> None:
    """Options that are tried since registers spill only add to what there is."""
    crashing_ptxas(tmp_path, monkeypatch, CRASHES["internal"][0], '*"kernel.cubin"')
    made = assemble(EMPTY, SM_90)
    assert (made.spill_bytes, made.level, made.crash) == (8, "", "")


def test_an_endless_tool_is_killed_with_its_children(tmp_path, monkeypatch) -> None:
    witness = tmp_path / "survived"
    fake_ptxas(tmp_path, monkeypatch, f"(sleep 2; touch {witness}) & \nsleep 30\n")
    with pytest.raises(IRError, match=r"ptxas did not end within 0.3 seconds"):
        assemble(EMPTY, SM_90, timeout_seconds=0.3)
    time.sleep(2.2)
    assert not witness.exists()


@pytest.mark.slow
def test_memory_is_bounded() -> None:
    with pytest.raises(ptxas.OverLimitError, match=r"ptxas took more than 128 MiB of memory"):
        assemble(live_values(4000), SM_90, mebibytes=128)


def test_an_unusable_tool_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ptxas, "find_ptxas", lambda *_: tmp_path / "absent")
    with pytest.raises(IRError, match="absent cannot be started"):
        assemble(EMPTY, SM_90)


def test_a_full_disk_is_told_as_one(tmp_path, monkeypatch) -> None:
    """As ptxas tells it, and as it does not: it may end with 0 and half of a cubin."""
    whole = assemble(EMPTY, SM_90).cubin
    for length in (len(whole) - 1, len(whole) // 2, 70, 63, 5):
        (tmp_path / "part").write_bytes(whole[:length])
        copy = 'while [ "$1" != -o ]; do shift; done; cat PART > "$2"\n'
        fake_ptxas(tmp_path, monkeypatch, copy.replace("PART", str(tmp_path / "part")))
        with pytest.raises(
            HostError, match=r"error: ptxas cannot write to /.*\n  help: free space"
        ):
            assemble(EMPTY, SM_90)
    for line in ("Output file 'k' could not be opened", "Failed to write to outp file 'k'"):
        fake_ptxas(tmp_path, monkeypatch, f'echo "ptxas fatal   : {line}"\nexit 255\n')
        with pytest.raises(HostError, match="ptxas cannot write to /"):
            assemble(EMPTY, SM_90)


@pytest.mark.parametrize("start", ["", "cat > /dev/null; "])
def test_a_tool_killed_by_the_system_is_no_bug(tmp_path, monkeypatch, start: str) -> None:
    """Before it has read its input, or after that."""
    fake_ptxas(tmp_path, monkeypatch, f"{start}kill -KILL $$\n")
    with pytest.raises(HostError, match="ended by SIGKILL; out of memory"):
        assemble(EMPTY, SM_90)


@pytest.mark.parametrize(
    ("number", "remedy"), [("XFSZ", "ulimit -f"), ("XCPU", "ulimit -t"), ("TERM", "build again")]
)
def test_limits_of_the_system_are_named(tmp_path, monkeypatch, number: str, remedy: str) -> None:
    fake_ptxas(tmp_path, monkeypatch, f"cat > /dev/null; kill -{number} $$\n")
    with pytest.raises(HostError, match=f"ended by SIG{number}.*\\n  help: .*{remedy}"):
        assemble(EMPTY, SM_90)


def test_no_room_for_a_folder_names_the_place(monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ptxas.tempfile, "mkdtemp", refuse)
    for call in (lambda: assemble(EMPTY, SM_90), lambda: disassemble(b"x")):
        with pytest.raises(
            HostError, match=r"cannot make a folder in /\S*: No space left on device .errno 28.\n"
        ):
            call()


def test_a_missing_package_is_named_with_its_remedy() -> None:
    with pytest.raises(HostError, match=r"nonsense is not installed\n  help: pip install nvidia-"):
        wheels.find_file("nvidia-cuda-nvcc", "bin/nonsense")


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_disassembly(target) -> None:
    version = "{}.{}".format(*target.ptx_version)
    ptx = EMPTY.replace("sm_90a", target.name).replace("8.8", version)
    cubin = assemble(ptx, target).cubin
    code, whole = disassemble(cubin), disassemble(cubin, with_lines=True, is_whole=True)
    assert "EXIT" in code
    assert "EXIT" in whole
    assert (".nv.info" in code, ".nv.info" in whole) == (False, True)


def test_other_files_than_cubins_are_refused() -> None:
    with pytest.raises(IRError, match="nvdisasm failed"):
        disassemble(b"nonsense")


def test_targets_of_indirect_jumps_are_listed() -> None:
    body = HEADER + (
        ".visible .entry k(.param .u64 p) {\n .reg .b64 %rd<2>; .reg .b32 %r<3>;\n"
        " ld.param.b64 %rd1, [p];\n mov.u32 %r1, %tid.x;\n and.b32 %r1, %r1, 3;\n"
        " T: .branchtargets A, B, C, D;\n brx.idx %r1, T;\n"
        " A: st.global.b32 [%rd1], %r1; ret;\n B: st.global.b32 [%rd1+4], %r1; ret;\n"
        " C: atom.global.add.u32 %r2, [%rd1], %r1; bar.sync 0; ret;\n"
        " D: st.global.b32 [%rd1+8], %r1; bar.sync 0; ret;\n}\n"
    )
    (jump,) = re.findall(r"BRX .*", disassemble(assemble(body, SM_90).cubin))
    assert jump.count(".L_x_") == 4


@pytest.mark.parametrize("toolchain", TOOLCHAINS)
@pytest.mark.parametrize("name", TARGETS)
def test_a_toolchain_assembles_for_the_targets_it_knows(name: str, toolchain: str) -> None:
    """The PTX is the same for all; the cubin says which one made it."""
    try:
        target = TARGETS[name].assembled_by(toolchain)
    except ManifestError:
        assert TARGETS[name].ptx_version > TOOLCHAINS[toolchain]
        return
    try:
        wheels.find_ptxas(toolchain)
    except HostError as error:
        pytest.skip(error.message)
    version = "{}.{}".format(*target.ptx_version)
    text = f".version {version}\n.target {name}\n.address_size 64\n.visible .entry k() {{ ret; }}\n"
    cubin = assemble(text, target).cubin
    check_cubin(cubin, name, "k")
    assert toolchain_of(cubin) == toolchain
    assert "EXIT" in disassemble(cubin)
