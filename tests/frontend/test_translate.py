from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.frontend import autotune_configs, translate
from aotc.ir.diagnostics import CompileError
from aotc.ir.text import print_kernel
from tests.frontend.conftest import PRELUDE, Sources
from tests.support.extent import examples

SOFTMAX = """
@triton.jit
def k(x, out, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    value = tl.load(x + row * stride + offs, mask=mask, other=-float("inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row * stride + offs, value / tl.sum(value, axis=0), mask=mask)
"""
SIGNATURE = {"x": "*fp16:16", "out": "*fp16:16", "stride": "i32:16", "n": "i32"}


def test_the_same_input_gives_the_same_text(sources: Sources) -> None:
    path = sources.write(SOFTMAX)
    texts = {
        print_kernel(translate(path, "k", SIGNATURE, {"BLOCK": 64}).kernel, locs=True)
        for _ in range(3)
    }
    assert len(texts) == 1


def test_translation_is_quick(sources: Sources) -> None:
    path = sources.write(SOFTMAX)
    translate(path, "k", SIGNATURE, {"BLOCK": 64})
    best = min(_timed(path) for _ in range(5))
    # About 1 ms; the bound only catches a change of order.
    assert best < 0.02


def _timed(path: str) -> float:
    start = time.perf_counter()
    translate(path, "k", SIGNATURE, {"BLOCK": 64})
    return time.perf_counter() - start


def test_a_changed_file_is_read_again(sources: Sources) -> None:
    path = sources.write("@triton.jit\ndef k(p):\n    tl.store(p, 1)\n")
    assert "value = 1" in print_kernel(translate(path, "k", {"p": "*i32"}, {}).kernel)
    path = sources.write("@triton.jit\ndef k(p):\n    tl.store(p, 12345)\n")
    assert "value = 12345" in print_kernel(translate(path, "k", {"p": "*i32"}, {}).kernel)


def test_importing_the_frontend_is_light() -> None:
    import subprocess

    code = "import sys, aotc.frontend; print('numpy' in sys.modules, 'llvmlite' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


def test_methods_and_nested_functions(sources: Sources) -> None:
    text = """
    class Kernels:
        @staticmethod
        @triton.jit
        def one(p):
            tl.store(p, 1)

    def make():
        @triton.jit
        def two(p):
            tl.store(p, 2)
        return two
    """
    assert "value = 1" in sources.text(text, {"p": "*i32"}, kernel="Kernels.one")
    assert "value = 2" in sources.text(text, {"p": "*i32"}, kernel="make.<locals>.two")


@pytest.mark.parametrize("kernel", ["kk", "", ".", "K", "a.b"])
def test_missing_kernels(sources: Sources, kernel: str) -> None:
    error = sources.error("@triton.jit\ndef k():\n    pass\n", kernel=kernel)
    assert "has no function" in error.message
    assert "'k'" in error.remedy or "it has k" in error.remedy


def test_a_plain_function_is_no_kernel(sources: Sources) -> None:
    error = sources.error("def k():\n    pass\n")
    assert error.message == "k is a plain Python function"


def test_missing_files(tmp_path: Path) -> None:
    for path in (tmp_path / "none.py", tmp_path):
        with pytest.raises(CompileError, match="cannot read"):
            translate(str(path), "k", {}, {})


def test_locations_reach_the_ir(sources: Sources) -> None:
    translation = sources.translate(
        "@triton.jit\ndef f(x):\n    return x + 1\n@triton.jit\ndef k(n):\n    y = f(n)\n",
        {"n": "i32"},
    )
    add = next(op for op in translation.kernel.walk() if op.opcode == "arith.add")
    assert [loc.line for loc in add.loc.chain()] == [5, 8]


# ---- autotuning -------------------------------------------------------------------------------

TUNED = """
def options():
    configs = []
    for block in [64, 128]:
        configs.append(triton.Config({"BLOCK": block}, num_warps=block // 32))
    return configs

@triton.autotune(configs=options() + [
    triton.Config({"BLOCK": b, "GROUP": g}, num_warps=w, num_stages=s)
    for b in (32,) for g in [1, 2] for w, s in [(4, 3), (8, 2)] if g < 2 or w > 4
], key=["n"])
@triton.jit
def k(n, BLOCK: tl.constexpr):
    pass
"""


def test_autotune_configs(sources: Sources) -> None:
    assert autotune_configs(sources.write(TUNED), "k") == [
        {"BLOCK": 64, "num_warps": 2, "num_stages": 3},
        {"BLOCK": 128, "num_warps": 4, "num_stages": 3},
        {"BLOCK": 32, "GROUP": 1, "num_warps": 4, "num_stages": 3},
        {"BLOCK": 32, "GROUP": 1, "num_warps": 8, "num_stages": 2},
        {"BLOCK": 32, "GROUP": 2, "num_warps": 8, "num_stages": 2},
    ]


@pytest.mark.parametrize(
    "configs",
    [
        "[triton.Config({'BLOCK': b}, w) for b, w in itertools.product((64, 128), (2, 4)) if b == 32 * w]",
        "list(filter(fits, [triton.Config({'BLOCK': b}, num_warps=w) for b in SIZES for w in (2, 4)]))",
        "list(map(lambda w: triton.Config({'BLOCK': 32 * w}, num_warps=w), sorted([4, 2])))",
        "sorted(ALL, key=lambda config: config.num_warps)",
        "made(2)",
        "list(itertools.chain(ALL[1:], ALL[:1]))",
        "getattr(CHOSEN, 'configs', None)() if False else made()",
    ],
)
@pytest.mark.parametrize("decorator", ["triton.autotune", "cached_autotune", "elsewhere.tuned"])
def test_how_configs_are_made(sources: Sources, configs: str, decorator: str) -> None:
    text = f"""
import itertools
import elsewhere
from elsewhere import cached_autotune
SIZES = [64, 128]
CHOSEN = elsewhere.chosen

def fits(config):
    return config.kwargs["BLOCK"] == 32 * config.num_warps

def made(first=2):
    def config(warps, scale=32):
        return triton.Config({{"BLOCK": warps * scale}}, num_warps=warps)
    return [config(warps) for warps in (first, 4)]

ALL = made()[::-1]

@{decorator}(configs={configs}, key=["n"])
@triton.jit
def k(n, BLOCK: tl.constexpr):
    pass
"""
    assert autotune_configs(sources.write(text), "k") == [
        {"BLOCK": 64, "num_warps": 2, "num_stages": 3},
        {"BLOCK": 128, "num_warps": 4, "num_stages": 3},
    ]


def test_a_model_that_orders_configs_drops_none(sources: Sources) -> None:
    text = TUNED.replace('key=["n"]', 'key=["n"], prune_configs_by={"perf_model": f, "top_k": 2}')
    assert len(autotune_configs(sources.write(text), "k")) == 5


PRUNED = """
import torch
LIMIT = 128

def fitting(configs, named_args, **kwargs):
    args = {{**named_args, **kwargs}}
    kept = [c for c in configs if c.kwargs["BLOCK"] <= args["n"]]
    return kept or [min(configs, key=lambda c: c.num_warps)]

def of_kernel(limit):
    def prune(configs, named_args, **kwargs):
        return [c for c in configs if c.kwargs["BLOCK"] < limit]
    return prune

def by_device(configs, *args, **kwargs):
    return configs if torch.cuda.device_count() > 1 else configs[1:]

class Prunes:
    table = {{"early_config_prune": of_kernel(128)}}

@triton.autotune(
    configs=[triton.Config({{"BLOCK": b}}, num_warps=b // 32) for b in (64, 128, 256)],
    key=["n"], prune_configs_by={})
@triton.jit
def k(n, BLOCK: tl.constexpr):
    pass
"""


@pytest.mark.parametrize(
    ("prune", "constants", "blocks"),
    [
        ('{"early_config_prune": of_kernel(LIMIT)}', {}, [64]),
        ("dict(early_config_prune=of_kernel(256))", {}, [64, 128]),
        ("Prunes.table", {}, [64]),
        ('{"early_config_prune": fitting}', {"n": 128}, [64, 128]),
        ('{"early_config_prune": fitting, "perf_model": unknown, "top_k": 1}', {"n": 1}, [64]),
        ('{"early_config_prune": None}', {}, [64, 128, 256]),
        ("None", {}, [64, 128, 256]),
    ],
)
def test_what_drops_configs_is_evaluated(
    sources: Sources, prune: str, constants: dict[str, object], blocks: list[int]
) -> None:
    configs = autotune_configs(sources.write(PRUNED.format(prune)), "k", constants)
    assert [config["BLOCK"] for config in configs] == blocks


@pytest.mark.parametrize(
    ("prune", "reason"),
    [
        ('{"early_config_prune": fitting}', "the argument n is not known without running the file"),
        ('{"early_config_prune": by_device}', "torch.cuda.device_count() is not known"),
        ("elsewhere", "elsewhere is not defined"),
    ],
)
def test_what_drops_configs_by_a_launch_is_refused(
    sources: Sources, prune: str, reason: str
) -> None:
    with pytest.raises(CompileError) as caught:
        autotune_configs(sources.write(PRUNED.format(prune)), "k")
    start = "the early_config_prune of k cannot be evaluated at build time: "
    assert caught.value.message.startswith(start + reason)
    assert "list the configs in the manifest" in caught.value.remedy
    assert caught.value.loc is not None
    assert caught.value.loc.line == 25


def test_a_kernel_takes_no_keywords_of_any_name(sources: Sources) -> None:
    text = "@triton.jit\ndef f(**more): return 1\n@triton.jit\ndef k(n): f()\n"
    assert "f takes `**more`" in sources.error(text, {"n": "i32"}).message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("@triton.jit\ndef k():\n    pass\n", "k has no @triton.autotune decorator"),
        ("@triton.autotune()\n@triton.jit\ndef k():\n    pass\n", "lists no configs"),
        (
            "@triton.autotune(configs=[1])\n@triton.jit\ndef k():\n    pass\n",
            "list of triton.Config",
        ),
        ("import x\n@triton.autotune(configs=x.c)\n@triton.jit\ndef k():\n    pass\n", "got x.c"),
        (
            "@triton.autotune([], [])\n@triton.autotune([], [])\n@triton.jit\ndef k():\n    pass\n",
            "k has 2 @triton.autotune decorators",
        ),
        (
            (
                "import torch\n@triton.autotune([triton.Config({}, w) for w in (4, 8)\n"
                "    if torch.cuda.get_device_capability()[0] >= w], [])\n@triton.jit\ndef k(): pass\n"
            ),
            "torch.cuda.get_device_capability() is not known without running the file",
        ),
    ],
)
def test_autotune_mistakes(sources: Sources, text: str, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        autotune_configs(sources.write(text), "k")
    assert message in caught.value.message


# ---- garbage ----------------------------------------------------------------------------------

_ATOMS = st.sampled_from(
    [
        "p",
        "n",
        "x",
        "y",
        "0",
        "1",
        "-1",
        "2.5",
        "True",
        "None",
        "'a'",
        "tl",
        "BLOCK",
        "p+n",
        "tl.arange(0,BLOCK)",
        "tl.load(p)",
        "n.dtype",
        "tl.float16",
        "(1,2)",
        "[n]",
        "x[0]",
        "x[:,None]",
        "tl.zeros((4,),tl.int8)",
        "undefined",
        "tl.nope",
        "range(n)",
    ]
)
_EXPRESSIONS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(
            inner,
            st.sampled_from(
                [
                    "+",
                    "-",
                    "*",
                    "/",
                    "//",
                    "%",
                    "**",
                    "&",
                    "|",
                    "^",
                    "<<",
                    ">>",
                    "and",
                    "or",
                    "<",
                    "==",
                    "is",
                    "in",
                    "@",
                ]
            ),
            inner,
        ).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"),
        st.tuples(
            st.sampled_from(
                [
                    "tl.sum",
                    "tl.max",
                    "tl.where",
                    "tl.exp",
                    "tl.cast",
                    "tl.reshape",
                    "tl.join",
                    "tl.split",
                    "tl.trans",
                    "tl.cat",
                    "tl.cumsum",
                    "tl.store",
                    "tl.load",
                    "f",
                    "len",
                    "int",
                    "tl.full",
                    "tl.reduce",
                    "tl.flip",
                    "tl.dot",
                    "x.to",
                ]
            ),
            st.lists(inner, max_size=3),
        ).map(lambda parts: f"{parts[0]}({', '.join(parts[1])})"),
        st.tuples(inner, inner, inner).map(
            lambda parts: f"({parts[0]} if {parts[1]} else {parts[2]})"
        ),
        inner.map(lambda text: f"(-{text})"),
        inner.map(lambda text: f"(not {text})"),
        st.tuples(inner, inner).map(lambda parts: f"{parts[0]}[{parts[1]}]"),
        st.tuples(
            inner, st.sampled_from(["shape", "dtype", "T", "sum", "to", "type", "value"])
        ).map(".".join),
    ),
    max_leaves=6,
)
_SIMPLE = st.one_of(
    _EXPRESSIONS.map(lambda text: f"x = {text}"),
    _EXPRESSIONS.map(lambda text: f"y += {text}"),
    _EXPRESSIONS.map(lambda text: f"x, y = {text}"),
    _EXPRESSIONS.map(lambda text: f"z: tl.constexpr = {text}"),
    _EXPRESSIONS.map(lambda text: f"return {text}"),
    _EXPRESSIONS.map(lambda text: f"assert {text}"),
    _EXPRESSIONS,
)
_STATEMENTS = st.recursive(
    _SIMPLE.map(lambda line: [line]),
    lambda inner: st.tuples(
        st.sampled_from(
            ["if {}:", "for i in range({}):", "while {}:", "for i in tl.static_range({}):"]
        ),
        _EXPRESSIONS,
        inner,
    ).map(lambda parts: [parts[0].format(parts[1]), *("    " + line for line in parts[2])]),
    max_leaves=4,
)


@settings(max_examples=examples(400))
@given(st.lists(_STATEMENTS, min_size=1, max_size=5))
def test_random_kernels_give_ir_or_a_diagnostic(tmp_path_factory, statements) -> None:
    from aotc.ir.verify import verify

    lines = [
        "    x = n + 1",
        "    y = p",
        *("    " + line for group in statements for line in group),
    ]
    text = PRELUDE + "@triton.jit\ndef f(a, b):\n    return a\n@triton.jit\n"
    text += "def k(p, n, BLOCK: tl.constexpr):\n" + "\n".join(lines) + "\n"
    path = tmp_path_factory.mktemp("fuzz") / "kernel.py"
    path.write_text(text)
    try:
        translation = translate(str(path), "k", {"p": "*fp32", "n": "i32"}, {"BLOCK": 8})
    except CompileError as error:
        assert error.message
        assert str(error)
    else:
        verify(translation.kernel)


@settings(max_examples=examples(200))
@given(st.binary(max_size=200))
def test_random_bytes_give_a_diagnostic(tmp_path_factory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "kernel.py"
    path.write_bytes(data)
    with pytest.raises(CompileError):
        translate(str(path), "k", {}, {})


_ENUMERATED = """
import enum
import torch
import triton

class Backend(enum.Enum):
    ADA = 101376
    HOPPER = 232448

    @classmethod
    def shared(cls, arch):
        try:
            return cls[arch.upper()].value
        except KeyError:
            return cls.ADA.value

def found(names, name):
    try:
        return names[name]
    except (AttributeError, KeyError):
        return 1

@triton.autotune(
    [
        triton.Config({"BLOCK": Backend.shared("hopper")}),
        triton.Config({"BLOCK": Backend.shared("none")}),
        triton.Config({"BLOCK": found({"a": 3}, "a")}),
        triton.Config({"BLOCK": found({"a": 3}, "b")}),
    ],
    key=[],
)
@triton.jit
def k(x, BLOCK: tl.constexpr):
    pass
"""


def test_configs_of_enumerations_and_caught_keys(sources: Sources) -> None:
    configs = autotune_configs(sources.write(_ENUMERATED), "k")
    assert [config["BLOCK"] for config in configs] == [232448, 101376, 3, 1]


def test_a_missing_key_that_nothing_catches(sources: Sources) -> None:
    text = _ENUMERATED.replace("(AttributeError, KeyError)", "AttributeError")
    with pytest.raises(CompileError, match="there is no item 'b'"):
        autotune_configs(sources.write(text), "k")
