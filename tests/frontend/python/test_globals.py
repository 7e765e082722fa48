from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from aotc.ir.text import print_kernel
from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources


def value_of(sources: Sources, definitions: str, expression: str = "X", **options: object) -> str:
    """Return a kernel's print of a global."""
    text = f"{definitions}\n@triton.jit\ndef k():\n    tl.static_print({expression})\n"
    return sources.translate(text, **options).prints[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("definitions", "expected"),
    [
        ("X = tl.constexpr(4)", "4"),
        ("X: tl.constexpr = 4", "4"),
        ("import math\nX = tl.constexpr(math.log2(8))", "3.0"),
        ("Y = 3\nX = tl.constexpr(Y * 2)", "6"),
        ("Y = tl.constexpr(3)\nX = Y * 2", "6"),
        ("X = None", "None"),
        ("X = tl.float16", "fp16"),
        ("X = tl.constexpr('abc')", "abc"),
        ("X = tl.constexpr((1, 2))[1]", "2"),
        ("import os\nX = tl.constexpr(int(os.environ.get('A', '7')))", "7"),
        ("import os\nX = tl.constexpr(os.getenv('A', 'b') == 'b')", "True"),
        ("if 1 > 2:\n    X = tl.constexpr(1)\nelse:\n    X = tl.constexpr(2)", "2"),
        ("X = tl.constexpr(1)\nX = tl.constexpr(2)", "2"),
        ("FAST = hasattr(tl, 'exp')\nX = tl.constexpr(1 if FAST else 2)", "1"),
        ("NEW = hasattr(tl, 'nothing_such')\nX = tl.constexpr(1 if NEW else 2)", "2"),
        (
            "def f(n):\n    s = 0\n    for i in range(n):\n        s += i\n    return s\nX = tl.constexpr(f(5))",
            "10",
        ),
        ("D = {'a': 1, **{'b': 2}}\nX = tl.constexpr(D['b'])", "2"),
        ("X = tl.constexpr([i * 2 for i in range(4) if i % 2][-1])", "6"),
        ("X = tl.constexpr(triton.cdiv(7, 2) + triton.next_power_of_2(5))", "12"),
        ("X = tl.constexpr(f'{tl.float32}-{1 + 1}')", "fp32-2"),
        ("f = lambda a, b=1: a\nX = tl.constexpr(4)", "4"),
        (
            "try:\n    import missing\n    X = tl.constexpr(missing.a)\nexcept ImportError:\n    X = tl.constexpr(3)",
            None,
        ),
    ],
)
def test_global_values(sources: Sources, definitions: str, expected: str | None) -> None:
    if expected is None:
        error = sources.error(f"{definitions}\n@triton.jit\ndef k():\n    tl.static_print(X)\n")
        assert "missing.a is not known without running the file" in error.message
        return
    assert value_of(sources, definitions) == expected


@pytest.mark.parametrize("value", ["3", "1.5", "True", "math.sqrt(2.0)"])
def test_plain_numbers_are_constants_with_a_remark(sources: Sources, value: str) -> None:
    translation = sources.translate(
        f"import math\nX = {value}\n@triton.jit\ndef k():\n    tl.static_print(X)\n"
    )
    shown = {"math.sqrt(2.0)": "1.4142135623730951"}.get(value, value)
    assert list(translation.prints) == [shown]
    assert f"X is read as {shown}; Triton asks for tl.constexpr({shown})" in translation.remarks[0]


@pytest.mark.parametrize("value", ["'a'", "(1, 2)", "[1]"])
def test_plain_globals_are_refused_with_a_remedy(sources: Sources, value: str) -> None:
    error = sources.error(f"X = {value}\n@triton.jit\ndef k():\n    y = X\n")
    assert "kernels read only constexpr globals, X is a plain" in error.message
    assert "X = tl.constexpr(" in error.remedy


def test_a_plain_global_may_be_a_default(sources: Sources) -> None:
    text = (
        "N = 8\n@triton.jit\ndef k(p, n: tl.constexpr = N):\n    tl.store(p + tl.arange(0, n), 1)\n"
    )
    assert "tile<8x*i32>" in sources.text(text, {"p": "*i32"})


def test_target_queries(sources: Sources) -> None:
    definitions = (
        "def is_cuda():\n"
        "    return triton.runtime.driver.active.get_current_target().backend == 'cuda'\n"
        "X = tl.constexpr(triton.runtime.driver.active.get_current_target().arch if is_cuda() else 0)"
    )
    assert value_of(sources, definitions, target="sm_89") == "89"


def test_imports_of_other_files(sources: Sources) -> None:
    sources.write("", "pkg/__init__.py")
    sources.write(
        "@triton.jit\ndef double(x):\n    return x * FACTOR\nFACTOR = tl.constexpr(2)\n",
        "pkg/helpers.py",
    )
    sources.write("from .helpers import double as twice\nONE = tl.constexpr(1)\n", "pkg/api.py")
    for imported, call in (
        ("from pkg.helpers import double", "double(n)"),
        ("from pkg.api import twice", "twice(n)"),
        ("from pkg.api import *", "twice(n) * ONE"),
        ("import pkg.helpers as h", "h.double(n)"),
        ("import pkg.helpers", "pkg.helpers.double(n)"),
        ("from pkg import helpers", "helpers.double(n)"),
        (
            "try:\n    from nowhere import double\nexcept ImportError:\n    from pkg.helpers import double",
            "double(n)",
        ),
    ):
        text = f"{imported}\n@triton.jit\ndef k(p, n):\n    tl.store(p, {call})\n"
        translation = sources.translate(text, {"p": "*i32", "n": "i32"})
        read = [Path(path).name for path, _ in translation.source_files]
        assert read[0] == "kernel.py"
        assert "helpers.py" in read
        for path, digest in translation.source_files:
            assert digest == hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_relative_imports(sources: Sources) -> None:
    sources.write("", "pkg/__init__.py")
    sources.write("", "pkg/deep/__init__.py")
    sources.write("X = tl.constexpr(5)\n", "pkg/consts.py")
    path = sources.write(
        "from ..consts import X\n@triton.jit\ndef k():\n    tl.static_print(X)\n",
        "pkg/deep/kernels.py",
    )
    from aotc.frontend import translate

    assert translate(path, "k", {}, {}).prints == ("5",)


def test_a_file_is_parsed_and_never_run(sources: Sources) -> None:
    marker = sources.folder / "ran"
    text = f"import torch\nopen({str(marker)!r}, 'w')\n@triton.jit\ndef k():\n    pass\n"
    sources.translate(text)
    assert not marker.exists()


def test_unknown_modules_are_an_error_only_when_used(sources: Sources) -> None:
    text = "import torch\nfrom torch import nn\nA = torch.foo(3)\n@triton.jit\ndef k():\n    {}\n"
    sources.translate(text.format("pass"))
    error = sources.error(text.format("x = torch.sum(1)"))
    assert "torch.sum is not known without running the file" in error.message
    error = sources.error(text.format("x = A + 1"))
    assert "torch.foo() is not known without running the file" in error.message


def test_a_name_that_tl_lacks_is_an_error_where_it_is_used(sources: Sources) -> None:
    error = sources.error(
        "from triton.language import cumsumm\n@triton.jit\ndef k():\n    x = cumsumm(1)\n"
    )
    assert "cumsumm" in error.message


def test_cycles(sources: Sources) -> None:
    error = sources.error(
        "A = tl.constexpr(B)\nB = tl.constexpr(A)\n@triton.jit\ndef k():\n    x = A\n"
    )
    assert "defined by itself" in error.message


@pytest.mark.parametrize("count", [4096, 4097, 20_000])
def test_chains_of_bindings_are_bounded(sources: Sources, count: int) -> None:
    error = sources.error(
        "A = 1\n" + "A = A + 1\n" * (count - 1) + "@triton.jit\ndef k():\n    x = A\n"
    )
    is_beyond = f"the global A is bound {count} times, at most 4096" in error.message
    assert is_beyond == (count > 4096)


def test_endless_evaluation(sources: Sources) -> None:
    text = "def f():\n    while True:\n        pass\nX = tl.constexpr(f())\n@triton.jit\ndef k():\n    x = X\n"
    assert "takes too long" in sources.error(text).message
    text = "def f():\n    return f()\nX = tl.constexpr(f())\n@triton.jit\ndef k():\n    x = X\n"
    assert "deep" in sources.error(text).message


def test_a_mistake_in_a_global_shows_the_use(sources: Sources) -> None:
    error = sources.error("X = tl.constexpr(1 // 0)\n@triton.jit\ndef k():\n    x = X\n")
    assert error.loc is not None
    assert error.loc.line == 3
    assert "called from" in str(error)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("torch.finfo(torch.float32).max", "3.4028234663852886e+38"),
        ("torch.finfo(torch.float16).min", "-65504.0"),
        ("torch.finfo(torch.bfloat16).eps", "0.0078125"),
        ("torch.iinfo(torch.int32).max", "2147483647"),
        ("torch.iinfo(torch.int64).min", "-9223372036854775808"),
        ("torch.iinfo(torch.uint8).max", "255"),
    ],
)
def test_limits_of_types(sources: Sources, expression: str, expected: str) -> None:
    assert value_of(sources, f"import torch\nX = tl.constexpr({expression})") == expected


def test_files_that_import_each_other(sources: Sources) -> None:
    sources.write("from . import helpers\nfrom .api import *\n", "pkg/__init__.py")
    sources.write("from pkg import *\nX = tl.constexpr(3)\n", "pkg/helpers.py")
    sources.write("from .helpers import *\nfrom . import *\nY = tl.constexpr(4)\n", "pkg/api.py")
    assert value_of(sources, "from pkg import helpers, Y", "helpers.X + Y") == "7"
    error = sources.error("from pkg import *\n@triton.jit\ndef k():\n    x = Z\n")
    assert error.message == "Z is not defined"


def test_functions_marked_as_constants(sources: Sources) -> None:
    text = (
        "@tl.constexpr\ndef wide(dtype):\n"
        "    if dtype.is_int():\n        return tl.core.get_int_dtype(64, True)\n"
        "    return tl.float32\n"
    )
    assert value_of(sources, text, "wide(tl.int8), wide(tl.float16)") == "int64 fp32"


def test_globals_that_functions_rebind_are_not_known(sources: Sources) -> None:
    text = "X = tl.constexpr(1)\ndef set_x():\n    global X\n    X = tl.constexpr(2)\nset_x()\n"
    error = sources.error(f"{text}@triton.jit\ndef k():\n    y = X + 1\n")
    assert "not known without running the file" in error.message


def test_globals_that_are_only_declared_are_not_known(sources: Sources) -> None:
    """Like a platform detected at run time by a module; the branch for all others is taken."""
    declared = "platform: object\n"
    error = sources.error(f"{declared}@triton.jit\ndef k():\n    y = platform.count_cores() + 1\n")
    assert "not known without running the file" in error.message
    text = (
        f"{declared}if platform.is_other():\n    @triton.jit\n    def turn(x):\n        return -x\n"
        "else:\n    @triton.jit\n    def turn(x):\n        return tl.abs(x)\n"
        "@triton.jit\ndef k(p, x):\n    tl.store(p, turn(x))\n"
    )
    assert "arith.abs" in sources.text(text, {"p": "*fp32", "x": "fp32"})


def test_what_is_tried_is_evaluated(sources: Sources) -> None:
    definitions = (
        "def backend():\n"
        "    try:\n        found = triton.runtime.driver.active.get_current_target().backend\n"
        "    except RuntimeError:\n        return 'none'\n"
        "    else:\n        found += '!'\n"
        "    finally:\n        found += '?'\n"
        "    return found\n"
        "X = tl.constexpr(len(backend()))"
    )
    assert value_of(sources, definitions) == "6"
    fails = "def f():\n    try:\n        return open('x')\n    except OSError:\n        return 1\n"
    error = sources.error(f"{fails}X = tl.constexpr(f())\n@triton.jit\ndef k():\n    y = X\n")
    assert "open" in error.message


def test_the_first_fallback_that_exists_is_taken(sources: Sources) -> None:
    text = (
        "try:\n    import nothing\n    shim = nothing.math\n"
        "except ImportError:\n"
        "    try:\n        shim = triton.language.extra.libdevice\n"
        "    except AttributeError:\n        shim = triton.language.no_such\n"
        "tanh = shim.tanh\n@triton.jit\ndef k(p):\n    tl.store(p, tanh(tl.load(p)))\n"
    )
    assert "__nv_tanhf" in sources.text(text, {"p": "*fp32"})


def test_texts_are_put_together_outside_of_kernels(sources: Sources) -> None:
    """Existing kernels write assembly of several registers this way."""
    translation = sources.translate(
        """
        def _copies(count):
            text = ""
            for i in range(count):
                text += "{" + "mov.b32 ${out}, ${given};".format(out=i, given=i + count) + "}\\n"
            return " ".join(text.split("\\n"))

        def _constraints(count):
            return ",".join("=r" for i in range(count)) + "," + ",".join("r" for i in range(count))

        COPIES = tl.constexpr(_copies(1))
        CONSTRAINTS: tl.constexpr = tl.constexpr(_constraints(1).replace("x", "r"))

        @triton.jit
        def k(out, n):
            log: tl.constexpr = tl.standard._log2(64)
            x = tl.inline_asm_elementwise(COPIES, CONSTRAINTS, [n], tl.int32, True, 1)
            tl.store(out + tl.arange(0, 1 << log), x)
        """,
        {"out": "*i32", "n": "i32"},
    )
    text = print_kernel(translation.kernel)
    assert 'text = "{mov.b32 $0, $1;} "' in text
    assert 'constraints = "=r,r"' in text
    assert "tile<64x" in text


def test_functions_that_stand_in_for_kernels_are_not_taken(sources: Sources) -> None:
    """As in files importable without Triton."""
    text = """
        import nothing
        if nothing.has_triton():
            @triton.jit
            def scale(x): return x * 2
        else:
            def scale(*args): raise RuntimeError("needs Triton")
        @triton.jit
        def k(p):
            tl.store(p, scale(tl.load(p)))
        """
    assert "arith.mul" in sources.text(text, {"p": "*fp32"})
    plain = text.replace("@triton.jit\n            def scale", "def scale")
    error = sources.error(plain, {"p": "*fp32"})
    assert error.message == "scale is a plain Python function, which a kernel cannot call"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("torch.cuda.get_device_capability() >= (9, 0)", True),
        ("torch.cuda.get_device_capability()[0]", 9),
        ("torch.cuda.is_available()", True),
        ("version.parse(triton.__version__) >= version.parse('3.5.0rc1')", True),
        ("version.Version('3.10') < version.Version('3.9.1')", False),
    ],
)
def test_facts_that_modules_ask_for(sources: Sources, expression: str, value: object) -> None:
    translation = sources.translate(
        f"""
        import torch
        from packaging import version
        FACT = tl.constexpr({expression})
        @triton.jit
        def k():
            tl.static_print(FACT)
        """
    )
    assert translation.prints == (str(value),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from platforms import current\nX = tl.constexpr(1 if current.is_cuda() else 2)", 1),
        ("from platforms import current\nX = tl.constexpr(1 if current.is_rocm() else 2)", 2),
        ("import platforms\nX = tl.constexpr(int(platforms.current().is_cuda_alike()))", 1),
        (
            """
from triton.runtime import driver
X = tl.constexpr(1 if hasattr(driver, 'active') else 2)""",
            1,
        ),
        (
            """
wrap = getattr(triton.runtime.jit, 'constexpr_function', None)
bits = wrap(tl.get_int_dtype)
twice = wrap(double)
def double(x): return 2 * x
X = tl.constexpr(3)""",
            3,
        ),
    ],
)
def test_what_libraries_ask_of_their_platform(sources: Sources, text: str, expected: int) -> None:
    uses = " + twice(1) - 2 + bits(32, True)(0)" if "twice" in text else ""
    source = f"{text}\n@triton.jit\ndef k(p):\n    tl.store(p, X{uses})\n"
    out = np.zeros(1, np.int32)
    run(sources.translate(source, {"p": "*i32"}).kernel, (1,), [out])
    assert out[0] == expected


def test_what_the_environment_says_is_remarked(sources: Sources) -> None:
    text = """
    import os
    FAST = os.environ.get("FAST", "0") == "1"
    N = tl.constexpr(int(os.getenv("N", "7")) if "M" not in os.environ else 8)

    @triton.jit
    def k():
        tl.static_print(N if not FAST else 0)
    """
    translation = sources.translate(text)
    assert translation.prints == ("7",)
    remarks = [remark.partition(": ")[2] for remark in translation.remarks]
    for name in ("FAST", "N", "M"):
        assert f"os.environ['{name}'] is read as unset; a build sees no environment" in remarks


def test_a_configuration_that_asks_the_environment_is_remarked(sources: Sources) -> None:
    text = """
    import os

    @triton.autotune([triton.Config({}, num_warps=8 if os.environ.get("WIDE") else 4)], key=[])
    @triton.jit
    def k():
        pass
    """
    assert "os.environ['WIDE'] is read as unset" in "".join(sources.translate(text).remarks)


def test_numbers_of_modules_and_classes_are_remarked(sources: Sources) -> None:
    sources.write("STEP = 3\nWIDTH = tl.constexpr(4)\n", "sizes.py")
    text = """
    import sizes

    class Sizes:
        BLOCK = 16

    @triton.jit
    def k():
        tl.static_print(sizes.STEP, Sizes.BLOCK, sizes.WIDTH)
    """
    translation = sources.translate(text)
    assert translation.prints == ("3 16 4",)
    remarks = " ".join(translation.remarks)
    assert "sizes.STEP is read as 3; later changes do not count" in remarks
    assert "Sizes.BLOCK is read as 16" in remarks
    assert "WIDTH" not in remarks


CONFIG = "C = triton.Config({'BLOCK': 64}, num_warps=8)\n"


@pytest.mark.parametrize(
    ("definitions", "expected"),
    [
        ("X = tl.constexpr(len((1, 2, 3)))", "3"),
        ("A, B = 1, 2\nX = tl.constexpr(A + B)", "3"),
        ("(A, B), C = (1, 2), 3\nX = tl.constexpr(A + B + C)", "6"),
        ("A, *B = 1, 2, 3\nX = tl.constexpr(B[1])", "3"),
        ("*A, B = (1,)\nX = tl.constexpr(B + len(A))", "1"),
        ("T = {'a': {}}\nT['a']['b'] = 4\nX = tl.constexpr(T['a']['b'])", "4"),
        ("T = {'a': 1}\nT['a'] += 2\nX = tl.constexpr(T['a'])", "3"),
        ("T = {'a': 1, 'b': 2}\ndel T['a']\nX = tl.constexpr(len(T))", "1"),
        ("for i in range(3):\n    X = tl.constexpr(i)", "2"),
        ("X = 1\nfor i in range(3):\n    X = X * 2", "8"),
        ("i = 0\nwhile i < 3:\n    i += 1\nX = tl.constexpr(i)", "3"),
        ("X = tl.constexpr(4)\nfor i in range(0):\n    X = tl.constexpr(i)", "4"),
        ("X = tl.constexpr(f'{3:04d} {1.5:.2f} {str(2)!r} {7:{4}d}')", "0003 1.50 '2'    7"),
        ("import os\nX = tl.constexpr(os.path.basename('/a/b.py'))", "b.py"),
        ("from os.path import splitext\nX = tl.constexpr(splitext('b.py')[0])", "b"),
        ("import operator\nX = tl.constexpr(operator.mul(3, 4))", "12"),
        ("import itertools\nX = tl.constexpr(len(itertools.product('ab', (1, 2, 3))))", "6"),
        ("D = dict.fromkeys(['a'], 5)\nX = tl.constexpr(D['a'])", "5"),
        ("X = tl.constexpr(divmod(7, 2)[0] + pow(2, 3) + ord('a'))", "108"),
        ("X = tl.constexpr((1, 2).index(2) + 'abc'.find('c'))", "3"),
        ("import torch\nD = {torch.half: 3}\nX = tl.constexpr(D[torch.float16])", "3"),
        ("class C:\n    A = 3\n    B = A + 1\nX = tl.constexpr(C.B)", "4"),
        ("def f():\n    from math import ceil\n    return ceil(1.2)\nX = tl.constexpr(f())", "2"),
        (
            "def f():\n    a = [0, 1]\n    a[1] += 3\n    del a[0]\n    return a[0]\nX = tl.constexpr(f())",
            "4",
        ),
        (f"{CONFIG}X = tl.constexpr(C.all_kwargs()['num_warps'])", "8"),
        (f"{CONFIG}X = tl.constexpr(C.all_kwargs()['BLOCK'])", "64"),
        (f"{CONFIG}X = tl.constexpr('maxnreg' in C.all_kwargs())", "False"),
        (f"{CONFIG}C.num_warps = 2\nX = tl.constexpr(C.num_warps)", "2"),
        (f"{CONFIG}C.kwargs['BLOCK'] = 2\nX = tl.constexpr(C.all_kwargs()['BLOCK'])", "2"),
        (
            f"{CONFIG}L = [C]\nfor c in L:\n    c.num_warps = 2\nX = tl.constexpr(L[0].num_warps)",
            "2",
        ),
        (
            "import importlib\nX = tl.constexpr(importlib.util.find_spec('triton') is not None)",
            "True",
        ),
    ],
)
def test_code_around_kernels(sources: Sources, definitions: str, expected: str) -> None:
    assert value_of(sources, definitions) == expected


@pytest.mark.parametrize(
    ("definitions", "message"),
    [
        (
            "import importlib\nX = tl.constexpr(importlib.util.find_spec('absent') is None)",
            "importlib.util.find_spec('absent') is not known without running the file",
        ),
        ("import lib\nX = tl.constexpr(lib.make() is None)", "lib.make() is not known"),
        ("S = set()\nS.add(3)\nX = tl.constexpr(3 in S)", "is not known without running the file"),
        ("A, *B = ()\nX = tl.constexpr(len(B))", "expected at least 1 values to unpack, got 0"),
        ("import os\nX = tl.constexpr(os.path.exists('a'))", "os.path.exists() is not known"),
        (
            "import lib\nX = tl.constexpr(triton.Config(lib.make()).num_warps)",
            "lib.make() is not known",
        ),
    ],
)
def test_code_around_kernels_that_nobody_can_evaluate(
    sources: Sources, definitions: str, message: str
) -> None:
    error = sources.error(f"{definitions}\n@triton.jit\ndef k():\n    tl.static_print(X)\n")
    assert message in error.message


def test_find_spec_finds_what_lies_near_the_kernel(sources: Sources) -> None:
    sources.write("A = 1", "near.py")
    text = "import importlib.util\nX = tl.constexpr(bool(importlib.util.find_spec('near')))"
    assert value_of(sources, text) == "True"


@pytest.mark.parametrize(
    ("definitions", "expected"),
    [
        ("A = 1\nX = tl.constexpr(A)\nA = 2", "1"),
        ("A = 1\nY = A\nA = 2\nX = tl.constexpr(10 * Y + A)", "12"),
        ("def f(): return A\nA = 1\nX = tl.constexpr(f())\nA = 2", "1"),
        ("def f(): return 1\ng = f\ndef f(): return 2\nX = tl.constexpr(10 * g() + f())", "12"),
        ("X = tl.constexpr(1)\nB = X\nX = tl.constexpr(2)", "2"),
    ],
)
def test_a_statement_sees_what_is_bound_before_it(
    sources: Sources, definitions: str, expected: str
) -> None:
    assert value_of(sources, definitions) == expected


def test_a_kernel_that_another_function_of_its_name_follows(sources: Sources) -> None:
    text = "@triton.jit\ndef k(p):\n    tl.static_print(1)\n_k = k\ndef k(*args):\n    _k[(1,)](*args)\n"
    assert sources.translate(text, {"p": "*fp32"}, kernel="_k").prints == ("1",)
    assert "k is a plain Python function" in sources.error(text, {"p": "*fp32"}).message
