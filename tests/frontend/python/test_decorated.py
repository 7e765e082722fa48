"""Autotuners and heuristics in files: numbers of configs, and computed constants."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.frontend import autotune_configs, translate
from aotc.ir.diagnostics import CompileError
from aotc.verify.interpreter.run import run
from tests.frontend.conftest import Sources

_IMPORTS = """
import copy
import functools
import itertools
import logging
import os
import torch
from triton import Config, autotune
"""
_KERNEL = """
def k(x, n, stride, BLOCK: tl.constexpr, KA: tl.constexpr = 1, KB: tl.constexpr = 7):
    tl.store(x, KA * 100 + KB)
"""
_TWO = "[Config({'BLOCK': 1}), Config({'BLOCK': 2})]"

_CONFIGS = {
    "extend": (
        """CFG = [Config({'BLOCK': 16})]
CFG += [Config({'BLOCK': 32})]
CFG.extend(Config({'BLOCK': 1 << i}) for i in range(6, 8))
@autotune(configs=CFG, key=['n'])""",
        4,
    ),
    "append_global_loop": (
        """CFG = []
for b in (16, 32):
    CFG.append(Config({'BLOCK': b}))
@autotune(configs=CFG, key=['n'])""",
        2,
    ),
    "starmap": (
        """def mk(b, w): return Config({'BLOCK': b}, num_warps=w)
@autotune(list(itertools.starmap(mk, [(32,1),(64,2)])), key=[])""",
        2,
    ),
    "partial": (
        """def mk(b, w=4): return Config({'BLOCK': b}, num_warps=w)
mk8 = functools.partial(mk, w=8)
@autotune([mk8(32), mk8(64)], key=[])""",
        2,
    ),
    "env_in": (
        """@autotune([Config({'BLOCK': 2}), Config({'BLOCK': 4})] if 'FULL' in os.environ else [Config({'BLOCK': 8})], key=[])""",
        1,
    ),
    "env": (
        """if os.environ.get('FAST', '0') == '1':
    CFG=[Config({'BLOCK': 1})]
else:
    CFG=[Config({'BLOCK': 2}), Config({'BLOCK': 4})]
@autotune(CFG, key=[])""",
        2,
    ),
    "dict_or": (
        """BASE = {'K2': 2}
@autotune([Config(BASE | {'BLOCK': b}) for b in (1,2)], key=[])""",
        2,
    ),
    "copy": (
        """import copy
BASE = [Config({'BLOCK': 1})]
MORE = copy.deepcopy(BASE)
@autotune(BASE + MORE, key=[])""",
        2,
    ),
    "generator": (
        """def gen():
    for b in (1, 2, 4):
        yield Config({'BLOCK': b})
@autotune(list(gen()), key=[])""",
        3,
    ),
    "print_in_helper": (
        """import logging
logger = logging.getLogger(__name__)
def get():
    logger.info('hi')
    print('hi')
    return [Config({'BLOCK': 1})]
@autotune(get(), key=[])""",
        1,
    ),
    "reduce": (
        """@autotune(functools.reduce(lambda a, b: a + b, [[Config({'BLOCK': 1})], [Config({'BLOCK': 2})]]), key=[])""",
        2,
    ),
    "chain_from": (
        """@autotune(list(itertools.chain.from_iterable([[Config({'BLOCK': 1})], [Config({'BLOCK': 2})]])), key=[])""",
        2,
    ),
    "filter_lambda": (
        """def keep(c):
    return c.kwargs['BLOCK'] * c.num_warps >= 256
CFG = [Config({'BLOCK': b}, num_warps=w) for b in (32,64,128) for w in (2,4)]
@autotune(list(filter(keep, CFG)), key=[])""",
        3,
    ),
    "star_product": (
        """SPACE = {'BLOCK': [32, 64], 'K2': [1, 2, 4]}
@autotune([Config(dict(zip(SPACE.keys(), v))) for v in itertools.product(*SPACE.values())], key=[])""",
        6,
    ),
    "driver": (
        """def smem():
    device = triton.runtime.driver.active.get_current_device()
    return triton.runtime.driver.active.utils.get_device_properties(device)['max_shared_mem']
@autotune([Config({'BLOCK': b}) for b in (64, 128, 256) if b * 1024 <= smem()], key=[])""",
        2,
    ),
    "try_except": (
        """try:
    props = triton.runtime.driver.active.utils.get_device_properties(0)
    BIG = props['max_shared_mem'] > 200000
except BaseException:
    BIG = False
@autotune([Config({'BLOCK': 64})] + ([Config({'BLOCK': 128})] if BIG else []), key=[])""",
        2,
    ),
    "cache": (
        """@functools.cache
def get(n=3):
    return [Config({'BLOCK': 64 * (i + 1)}) for i in range(n)]
@autotune(get(2), key=[])""",
        2,
    ),
    "early_prune": (
        """def prune(configs, named_args, **kwargs):
    return [c for c in configs if c.kwargs['BLOCK'] <= 64]
@autotune([Config({'BLOCK': 1 << i}) for i in range(5, 9)], key=[], prune_configs_by={'early_config_prune': prune})""",
        2,
    ),
    "perf_model": (
        """def est(x, n, BLOCK, **kw): return BLOCK
@autotune([Config({'BLOCK': 1 << i}) for i in range(5, 9)], key=[], prune_configs_by={'perf_model': est, 'top_k': 2})""",
        4,
    ),
    "dataclass": (
        """from dataclasses import dataclass
@dataclass(frozen=True)
class P:
    b: int
    w: int = 4
PS = [P(16), P(32, 8)]
@autotune([Config({'BLOCK': p.b}, num_warps=p.w) for p in PS], key=[])""",
        2,
    ),
    "namedtuple": (
        """from collections import namedtuple
P = namedtuple('P', 'b w')
@autotune([Config({'BLOCK': p.b}, num_warps=p.w) for p in (P(1, 2), P(b=3, w=4))], key=[])""",
        2,
    ),
    "enum_cls_const": (
        """class C:
    BS = [16, 32]
    @staticmethod
    def cfgs():
        return [Config({'BLOCK': b}) for b in C.BS]
@autotune(C.cfgs(), key=[])""",
        2,
    ),
    "while": (
        """def gen():
    out, b = [], 16
    while b <= 128:
        out.append(Config({'BLOCK': b}))
        b *= 2
    return out
@autotune(gen(), key=[])""",
        4,
    ),
}

_DECORATORS = {
    "factory": (
        """def tuned(block):
    return triton.autotune([Config({'BLOCK': block})], key=[])
@tuned(64)
@triton.jit""",
        1,
    ),
    "factory_cfg": (
        """class Cfg:
    blocks = [1, 2]
def tuned(cfg):
    def wrap(f):
        return triton.autotune([Config({'BLOCK': b}) for b in cfg.blocks], key=[])(f)
    return wrap
@tuned(Cfg)
@triton.jit""",
        2,
    ),
    "unknown_wrapper": (
        """from elsewhere import libentry, libtuner
@libentry()
@libtuner(configs=[Config({'BLOCK': 1})], key=['n'])
@triton.jit""",
        1,
    ),
    "fla_cache": (
        """from elsewhere import fla_cache_autotune
@triton.heuristics({'K2': lambda args: args['n'] is not None})
@fla_cache_autotune(configs=[Config({'BLOCK': 1})], key=['n'])
@triton.jit(do_not_specialize=['n'])""",
        1,
    ),
    "heuristics_above": (
        """@triton.heuristics(values={'K2': lambda args: 1})
@triton.autotune([Config({'BLOCK': 1})], key=[])
@triton.jit""",
        1,
    ),
    "heuristics_below": (
        """@triton.autotune([Config({'BLOCK': 1})], key=[])
@triton.heuristics({'K2': lambda args: 1})
@triton.jit""",
        1,
    ),
    "conditional_decorator": (
        """tune = triton.autotune([Config({'BLOCK': 1})], key=[]) if True else (lambda f: f)
@tune
@triton.jit""",
        1,
    ),
    "own_decorator": (
        """def tuned(f):
    return triton.autotune([Config({'BLOCK': 1})], key=[])(f)
@tuned
@triton.jit""",
        1,
    ),
    "dict_unpacked": (
        """KW = dict(configs=[Config({'BLOCK': 1})], key=[])
@triton.autotune(**KW)
@triton.jit""",
        1,
    ),
    "alias": (
        """from triton import autotune as at, jit as j
@at([Config({'BLOCK': 1})], [])
@j""",
        1,
    ),
    "maybe": (
        """def maybe(*a, **kw):
    if os.environ.get('NO_TUNE') == '1':
        return lambda f: f
    return triton.autotune(*a, **kw)
@maybe(configs=[Config({'BLOCK': 1})], key=['n'])
@triton.jit""",
        1,
    ),
}

_AFTER = {
    "rebound": (
        """k = triton.autotune([Config({'BLOCK': 1}), Config({'BLOCK': 2})], key=[])(k)""",
        2,
    ),
    "rebound_heur": (
        """k = triton.heuristics({'K2': lambda a: 2})(triton.autotune([Config({'BLOCK': 1})], key=[])(k))""",
        1,
    ),
    "rebound_partial": (
        """tune = functools.partial(triton.autotune, key=['n'])
k = tune([Config({'BLOCK': 1})])(k)""",
        1,
    ),
    "other_name": ("""k2 = triton.autotune([Config({'BLOCK': 1})], key=[])(k)""", 1),
}

_HEURISTICS = {
    "plain": (
        """@heuristics({'KA': lambda args: args['BLOCK'] // 2})
@triton.jit""",
        3207,
    ),
    "values_kw": (
        """@heuristics(values={'KA': lambda args: 1, 'KB': lambda a: 2})
@triton.jit""",
        102,
    ),
    "named_fn": (
        """def ka(args):
    b = args['BLOCK']
    if b > 32:
        return 5
    return 6
@triton.heuristics({'KA': ka})
@triton.jit""",
        507,
    ),
    "global_dict": (
        """H_ = {'KA': lambda args: triton.next_power_of_2(args['H'])}
@triton.heuristics(H_)
@triton.jit""",
        1607,
    ),
    "dict_call": (
        """@triton.heuristics(dict(KA=lambda args: 4))
@triton.jit""",
        407,
    ),
    "stacked": (
        """@triton.heuristics({'KA': lambda args: 4})
@triton.heuristics({'KB': lambda args: args['KA'] + 1})
@triton.jit""",
        405,
    ),
    "is_none": (
        """@triton.heuristics({'KA': lambda args: args['x'] is not None})
@triton.jit""",
        107,
    ),
    "kw_get": (
        """@triton.heuristics({'KA': lambda args: 3 if args.get('H', 1) > 5 else 2})
@triton.jit""",
        307,
    ),
    "fixed_arg": (
        """@triton.heuristics({'KA': lambda args: 1 if args['stride'] == 1 else 2})
@triton.jit""",
        107,
    ),
    "mod": (
        """@triton.heuristics({'KA': lambda args: int(args['BLOCK'] % 16 == 0)})
@triton.jit""",
        107,
    ),
    "factory": (
        """def heur(v):
    return triton.heuristics({'KA': lambda args: v})
@heur(9)
@triton.jit""",
        907,
    ),
    "own": (
        """def deco(f):
    return triton.heuristics({'KA': lambda args: 8})(f)
@deco
@triton.jit""",
        807,
    ),
    "partial": (
        """H4 = functools.partial(triton.heuristics, {'KA': lambda a: 6})
@H4()
@triton.jit""",
        607,
    ),
    "merged": (
        """A = {'KA': lambda a: 6}
B = {'KB': lambda a: 1}
@triton.heuristics({**A, **B})
@triton.jit""",
        601,
    ),
    "or": (
        """A = {'KA': lambda a: 6}
B = {'KB': lambda a: 1}
@triton.heuristics(A | B)
@triton.jit""",
        601,
    ),
    "added": (
        """A = {}
A['KA'] = lambda a: 6
A.update({'KB': lambda a: 2})
@triton.heuristics(A)
@triton.jit""",
        602,
    ),
    "device": (
        """@triton.heuristics({'KA': lambda args: 2 if torch.cuda.get_device_capability()[0] >= 9 else 1})
@triton.jit""",
        207,
    ),
    "num_warps": (
        """@triton.heuristics({'KA': lambda args: 2, 'num_warps': lambda args: 8})
@triton.jit""",
        207,
    ),
    "closure_loop": (
        """NAMES = ['KA', 'KB']
@triton.heuristics({n: (lambda args, n=n: len(n) + 1) for n in NAMES})
@triton.jit""",
        303,
    ),
    "math": (
        """@triton.heuristics({'KA': lambda args: math.ceil(args['H'] / 4), 'KB': lambda args: max(args['H'], 3)})
@triton.jit""",
        309,
    ),
    "staticmethod": (
        """class P:
    @staticmethod
    def ka(args): return 3
@triton.heuristics({'KA': P.ka})
@triton.jit""",
        307,
    ),
}


_TUNED = """from somewhere import settings as REMOTE
def tuned(by):
    return lambda f: autotune([Config({'BLOCK': b}, num_warps=by.warps) for b in by.blocks], key=[])(f)
"""
_OBJECTS = {
    "dataclass": (
        "@dataclasses.dataclass(frozen=True)\nclass T:\n    blocks: tuple\n    warps: int = 4\n",
        "T((16, 32))",
        2,
    ),
    "object": (
        """class T:
    warps = 8
    def __init__(self, n, step=16):
        if n > 2:
            step = 2 * step
        self.blocks = [step * (i + 1) for i in range(n)]
""",
        "T(3)",
        3,
    ),
    "class": ("class T:\n    blocks, warps = [1, 2, 4, 8], 4\n", "T", 4),
}


@pytest.mark.parametrize("name", _OBJECTS)
def test_a_factory_takes_an_object(sources: Sources, name: str) -> None:
    text, factory, expected = _OBJECTS[name]
    text = f"import dataclasses\n{_TUNED}{text}TUNING = {factory}\n@tuned(TUNING)\n@triton.jit{_KERNEL}"
    assert configs(sources, text) == expected


def test_methods_of_objects_make_configs(sources: Sources) -> None:
    text = """class T:
    def __init__(self, blocks):
        self.blocks = blocks
    def configs(self, warps):
        return [Config({'BLOCK': b}, num_warps=warps) for b in self.blocks]
@autotune(T([16, 32, 64]).configs(8), key=[])
@triton.jit"""
    path = sources.write(_IMPORTS + text + _KERNEL)
    configs = autotune_configs(path, "k", target="sm_90a")
    assert [config["BLOCK"] for config in configs] == [16, 32, 64]
    assert {config["num_warps"] for config in configs} == {8}


def configs(sources: Sources, text: str, kernel: str = "k") -> int:
    return len(autotune_configs(sources.write(_IMPORTS + text), kernel, target="sm_90a"))


@pytest.mark.parametrize("name", _CONFIGS)
def test_configs(sources: Sources, name: str) -> None:
    text, expected = _CONFIGS[name]
    assert configs(sources, f"{text}\n@triton.jit{_KERNEL}") == expected


@pytest.mark.parametrize("name", _DECORATORS)
def test_decorators(sources: Sources, name: str) -> None:
    text, expected = _DECORATORS[name]
    assert configs(sources, text + _KERNEL) == expected


@pytest.mark.parametrize("name", _AFTER)
def test_decorated_after_its_definition(sources: Sources, name: str) -> None:
    text, expected = _AFTER[name]
    kernel = "k2" if text.startswith("k2") else "k"
    assert configs(sources, f"\n@triton.jit{_KERNEL}{text}\n", kernel) == expected


_WITH_H = _KERNEL.replace("stride,", "stride, H: tl.constexpr,")


@pytest.mark.parametrize("name", _HEURISTICS)
def test_heuristics(sources: Sources, name: str) -> None:
    text, expected = _HEURISTICS[name]
    assert stored(sources, text + _WITH_H.replace(" = 1", "")) == expected


def test_heuristics_after_the_definition(sources: Sources) -> None:
    after = "k = triton.heuristics({'KA': lambda args: 4})(k)\n"
    assert stored(sources, f"@triton.jit{_WITH_H}{after}") == 407


def stored(sources: Sources, text: str) -> int:
    """Return the kernel's output with the constants of heuristics and defaults."""
    path = sources.write(f"import math\nfrom triton import heuristics\n{_IMPORTS}{text}")
    signature = {"x": "*i32", "n": "i32", "stride": "i32=1"}
    translation = translate(path, "k", signature, {"H": 9, "BLOCK": 64}, target="sm_90a")
    out = np.zeros(1, np.int32)
    run(translation.kernel, (1,), [out, 3])
    return int(out[0])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("@tuned(REMOTE)", "somewhere.settings.blocks is not known without running the file"),
        ("@tuned(Config({}))", "a triton.Config has no attribute 'blocks'"),
        ("@tuned(Property())", "Property().blocks is not known without running the file"),
    ],
)
def test_a_decorator_that_is_not_known_is_named(sources: Sources, line: str, expected: str) -> None:
    text = f"{_TUNED}class Property:\n    def __init__(self):\n        self.n = 1\n"
    text += "    @property\n    def blocks(self):\n        return [1]\n"
    with pytest.raises(CompileError) as caught:
        configs(sources, f"{text}{line}\n@triton.jit{_KERNEL}")
    assert expected in caught.value.message
    assert caught.value.loc is not None
    assert line in caught.value.render()


def test_two_autotuners_are_refused(sources: Sources) -> None:
    again = f"k = triton.autotune({_TWO}, key=[])(k)\n"
    with pytest.raises(CompileError, match="k has 2 @triton.autotune decorators"):
        configs(sources, f"\n@triton.jit{_KERNEL}{again * 2}")


def test_what_changes_a_list_and_is_not_known_makes_it_unknown(sources: Sources) -> None:
    text = f"CFG = {_TWO}\nCFG.append(os.getpid())\n@autotune(CFG, key=[])\n@triton.jit{_KERNEL}"
    with pytest.raises(CompileError, match="must be a list of triton.Config, got"):
        configs(sources, text)
