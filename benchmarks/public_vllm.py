"""Works of vLLM's attention (0.33.0) for `public_sources.py`: prefill, unified, decode, paged."""

from __future__ import annotations

import enum
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

from public_work import Step, Values, Work, attended, causal_work, error_of, numbers, random_tensor

OPS = "vllm.v1.attention.ops"
HEADS, KV_HEADS, FEATURES, PAGE = 64, 8, 128, 16
SCALE = FEATURES**-0.5
_ABSENT = """
    sink_ptr alibi_slopes_ptr qq_bias_ptr q_scale k_scale v_scale per_seq_causal_ptr
    mm_prefix_range_ptr k_scale_cache_ptr v_scale_cache_ptr stride_ks_blk stride_ks_slot
    stride_ks_head stride_vs_blk stride_vs_slot stride_vs_head segm_output_ptr segm_max_ptr
    segm_expsum_ptr
"""
_OFF = """
    USE_ALIBI_SLOPES USE_ALIBI_SQRT USE_QQ_BIAS USE_SOFTCAP USE_SINKS USE_PER_SEQ_CAUSAL
    USE_MM_PREFIX USE_R_SWA USE_FP8
"""
_SHARED = """
    output_ptr segm_output_ptr segm_max_ptr segm_expsum_ptr seq_lens_ptr num_seqs output_stride_0
    output_stride_1 block_table_stride query_start_len_ptr
"""
LOG2_E = 1.4426950408889634


class _Platform:
    """Stands in for vLLM's description of a GPU."""

    @staticmethod
    def fp8_dtype() -> Any:
        import torch

        return torch.float8_e4m3fn

    @staticmethod
    def get_device_capability() -> tuple[int, int]:
        return (9, 0)

    def __getattr__(self, name: str) -> Callable[..., bool]:
        return lambda *_: not name.startswith("is_rocm")


def stand_in() -> None:
    """Replace modules' imports not needed by their kernels by stand-ins."""
    import triton
    import triton.language as tl

    class KVQuantMode(enum.IntEnum):
        NONE = 0
        INT8_PER_TOKEN_HEAD = 2
        FP8_PER_TOKEN_HEAD = 3
        INT4_PER_TOKEN_HEAD = 4

    class _Logger:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_: None

    modules: dict[str, dict[str, Any]] = {
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.logger": {"init_logger": lambda _: _Logger()},
        "vllm.platforms": {"current_platform": _Platform()},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.v1.kv_cache_interface": {"KVQuantMode": KVQuantMode},
        "vllm.utils": {},
        "vllm.utils.math_utils": {"RCP_LN2": LOG2_E},
        "vllm._custom_ops": {},
    }
    if importlib.util.find_spec("packaging") is None:
        modules["packaging"] = {"version": SimpleNamespace(parse=_version)}
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        sys.modules[name] = module


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def prefill() -> Iterator[Work]:
    """Causal, sequences without padding."""
    batch, length = 2, 4096
    q, k, v, out = (
        random_tensor(batch, length, heads, FEATURES)
        for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)
    )
    flat = [tensor.view(batch * length, -1, FEATURES) for tensor in (q, k, v, out)]
    strides = {
        f"stride_{name}{axis}": tensor.stride(axis_index)
        for name, tensor in zip("qkvo", flat, strict=True)
        for axis_index, axis in enumerate(("bs", "h"))
    }
    values = {
        "Q": flat[0], "K": flat[1], "V": flat[2], "Sinks": flat[0], "sm_scale": SCALE * LOG2_E,
        "B_Start_Loc": numbers(*range(0, batch * length, length)),
        "B_Seqlen": numbers(*[length] * batch), "Out": flat[3], **strides,
    }  # fmt: skip
    constants = {
        "kv_group_num": HEADS // KV_HEADS, "BLOCK_DMODEL": FEATURES, "IS_CAUSAL": True,
        "SLIDING_WINDOW_Q": 0, "SLIDING_WINDOW_K": 0, "SINKS_BIAS_KEY0": False, "USE_SINKS": False,
        "Lk": FEATURES,
    }  # fmt: skip
    step = Step(
        "vllm_prefill", f"{OPS}.triton_prefill_attention", "_fwd_kernel", values, constants,
        lambda config: (batch, HEADS, -(-length // config["BLOCK_M"])),
    )  # fmt: skip
    yield causal_work("vllm prefill", step, q, k, v, out, HEADS // KV_HEADS)


class _Paged:
    """Random caches of pages in any order, and the tokens of each sequence."""

    def __init__(self, batch: int, length: int, *, of_latents: bool = False) -> None:
        import torch

        pages = batch * length // PAGE
        if of_latents:
            self.k = random_tensor(pages, PAGE, 1, 576)
            self.v = self.k[..., :512]
        else:
            self.k, self.v = (random_tensor(pages, PAGE, KV_HEADS, FEATURES) for _ in range(2))
        order = torch.randperm(pages, device="cuda", dtype=torch.int32)
        self.table = order.view(batch, length // PAGE)
        self.lengths = numbers(*[length] * batch)

    def seen(self, sequence: int, head: int) -> tuple[Any, Any]:
        """Return the keys and the values of a head of a sequence."""
        pages = self.table[sequence].long()
        return self.k[pages, :, head].flatten(0, 1), self.v[pages, :, head].flatten(0, 1)

    def by_features(self) -> tuple[Any, Any]:
        """Return keys in pieces of eight features of all tokens of a page, and values transposed."""
        k = self.k.view(-1, PAGE, KV_HEADS, FEATURES // 8, 8).permute(0, 2, 3, 1, 4).contiguous()
        return k, self.v.permute(0, 2, 3, 1).contiguous()


def _errors(out: Any, new: int, cache: _Paged, q: Any) -> Callable[[], float]:
    """Return the error of rows of two heads; each sequence's last `new` tokens are queries."""
    import torch

    length, batch = int(cache.lengths[0]), len(cache.lengths)
    heads, kv_heads = q.shape[1], cache.k.shape[2]
    rows = torch.unique(
        torch.cat([torch.randint(0, new, (126,)), torch.tensor([0, new - 1])])
    ).cuda()
    picked = [(0, 0), (batch - 1, heads - 1)]
    expected = [
        attended(
            q[b * new + rows, h], *cache.seen(b, h // (heads // kv_heads)), rows + length - new
        )
        for b, h in picked
    ]

    def wrong() -> float:
        pairs = zip(picked, expected, strict=True)
        return max(
            error_of(out[b * new + rows, h], expected_head) for (b, h), expected_head in pairs
        )

    return wrong


def _unified(
    batch: int, new: int, length: int, parts: list[Any]
) -> tuple[Values, Values, _Paged, Any, Any]:
    cache = _Paged(batch, length)
    q, out = (random_tensor(batch * new, HEADS, FEATURES) for _ in range(2))
    values: dict[str, Any] = {
        **dict.fromkeys(_ABSENT.split()), "output_ptr": out, "query_ptr": q, "key_cache_ptr": cache.k,
        "value_cache_ptr": cache.v, "block_tables_ptr": cache.table, "seq_lens_ptr": cache.lengths,
        "scale": SCALE, "out_scale": 1.0, "softcap": 0.0,
        "block_table_stride": cache.table.stride(0), "query_stride_0": q.stride(0),
        "query_stride_1": q.stride(1), "output_stride_0": out.stride(0),
        "output_stride_1": out.stride(1), "qq_bias_stride_0": 0,
        "rswa_prefix_lens_ptr": cache.lengths, "num_seqs": batch,
        "query_start_len_ptr": numbers(*range(0, (batch + 1) * new, new)),
        **{f"stride_k_cache_{axis}": cache.k.stride(axis) for axis in range(3)},
        **{f"stride_v_cache_{axis}": cache.v.stride(axis) for axis in range(3)},
    }  # fmt: skip
    names = ("segm_output_ptr", "segm_max_ptr", "segm_expsum_ptr")
    values |= dict(zip(names, parts, strict=False))
    constants = {
        **dict.fromkeys(_OFF.split(), False), "num_query_heads": HEADS,
        "num_queries_per_kv": HEADS // KV_HEADS, "BLOCK_SIZE": PAGE, "HEAD_SIZE": FEATURES,
        "HEAD_SIZE_PADDED": FEATURES, "SLIDING_WINDOW": 0, "USE_CAUSAL": True, "MAX_MM_RANGES": 0,
        "R_SWA_WINDOW": 0, "stride_k_cache_3": 1, "stride_v_cache_3": 1,
        "NUM_SEGMENTS_PER_SEQ": parts[1].shape[-1] if parts else 1, "IS_3D": bool(parts),
    }  # fmt: skip
    return values, constants, cache, q, out


def unified() -> Iterator[Work]:
    """New tokens see a paged cache with themselves already in it."""
    batch, new, length = 4, 2048, 4096
    values, constants, cache, q, out = _unified(batch, new, length, [])
    step = Step(
        "vllm_unified", f"{OPS}.triton_unified_attention", "kernel_unified_attention", values,
        constants, lambda config: (batch * new // config["BLOCK_Q"] + batch, KV_HEADS),
    )  # fmt: skip
    flops = 4.0 * batch * HEADS * new * (length - new / 2) * FEATURES
    name = f"vllm unified {batch}x{new} of {length}"
    yield Work(name, flops, [step], _errors(out, new, cache, q), [out])


def unified_decode() -> Iterator[Work]:
    """One token for each sequence, split into segments, then combined."""
    import torch

    batch, length, segments = 16, 8192, 16
    parts = [torch.zeros(batch, HEADS, segments, FEATURES, device="cuda")]
    parts += [torch.zeros(batch, HEADS, segments, device="cuda") for _ in range(2)]
    values, constants, cache, q, out = _unified(batch, 1, length, parts)
    blocks = {"BLOCK_M": 16, "BLOCK_Q": 2}
    module = f"{OPS}.triton_unified_attention"
    split = Step(
        "vllm_unified_split", module, "kernel_unified_attention", values, {**constants, **blocks},
        lambda _: (batch // 2 + batch, KV_HEADS, segments),
    )  # fmt: skip
    combine = Step(
        "vllm_segments", module, "reduce_segments",
        {
            **{name: values[name] for name in _SHARED.split()},
            "out_scale_inv": 1.0,
        },
        {
            "num_query_heads": HEADS, "HEAD_SIZE": FEATURES, "HEAD_SIZE_PADDED": FEATURES,
            "BLOCK_Q": 2, "NUM_SEGMENTS_PER_SEQ": segments, "USE_FP8": False,
        },
        lambda _: (batch, HEADS),
    )  # fmt: skip
    flops = 4.0 * batch * HEADS * length * FEATURES
    name = f"vllm unified decode {batch}x{length}"
    yield Work(name, flops, [split, combine], _errors(out, 1, cache, q), [out, *parts])


def decode() -> Iterator[Work]:
    """One token for each sequence, split, then combined."""
    batch, length = 16, 8192
    cache = _Paged(batch, length)
    q = random_tensor(batch, HEADS, FEATURES)
    yield _decoded(f"vllm decode {batch}x{length}", "vllm_decode", cache, q)


def mla() -> Iterator[Work]:
    """The same of latents: values are the first 512 of 576 features of a key, and loaded once."""
    batch, length = 16, 8192
    cache = _Paged(batch, length, of_latents=True)
    q = random_tensor(batch, 128, 576)
    yield _decoded(f"vllm mla {batch}x{length}", "vllm_mla", cache, q)


def _decoded(name: str, kernel: str, cache: _Paged, q: Any) -> Work:
    import torch

    (batch, heads, width), values, splits = q.shape, cache.v.shape[-1], 16
    length, group, block_h = int(cache.lengths[0]), heads // cache.k.shape[2], 16
    main = 1 << width.bit_length() - 1
    out = random_tensor(batch, heads, values)
    mid = torch.zeros(batch, heads, splits, values + 1, device="cuda")
    lse = torch.zeros(batch, heads, device="cuda")
    unit_scale = torch.ones((), device="cuda")
    module = f"{OPS}.triton_decode_attention"
    mids = {f"stride_mid_o{axis}": mid.stride(axis_index) for axis_index, axis in enumerate("bhs")}
    split = Step(
        kernel, module, "_fwd_grouped_kernel_stage1",
        {
            "Q": q, "K_Buffer": cache.k, "V_Buffer": cache.v, "sm_scale": width**-0.5,
            "Req_to_tokens": cache.table, "B_Seqlen": cache.lengths, "Att_Out": mid,
            "stride_req_to_tokens_b": cache.table.stride(0), "stride_qbs": q.stride(0),
            "stride_qh": q.stride(1), **mids, "k_scale": unit_scale, "v_scale": unit_scale,
            **{
                f"stride_buf_{name}{axis}": tensor.stride(axis_index)
                for name, tensor in (("k", cache.k), ("v", cache.v))
                for axis_index, axis in enumerate(("pbs", "bs", "h"))
            },
        },
        {
            "kv_group_num": group, "q_head_num": heads, "BLOCK_DMODEL": main,
            "BLOCK_DPE": width - main, "BLOCK_DV": values, "BLOCK_H": block_h,
            "NUM_KV_SPLITS": splits, "PAGE_SIZE": PAGE, "logit_cap": 0.0, "Lk": width, "Lv": values,
            "IS_MLA": width > values,
        },
        lambda _: (batch, -(-heads // min(block_h, group)), splits),
    )  # fmt: skip
    combine = Step(
        f"{kernel}_combine", module, "_fwd_kernel_stage2",
        {
            "Mid_O": mid, "o": out, "lse": lse, "B_Seqlen": cache.lengths, **mids,
            "stride_obs": out.stride(0), "stride_oh": out.stride(1), "stride_lse_bs": lse.stride(0),
        },
        {"NUM_KV_SPLITS": splits, "BLOCK_DV": values, "Lv": values, "OUTPUT_FP16": 0},
        lambda _: (batch, heads),
    )  # fmt: skip
    flops = 2.0 * batch * heads * length * (width + values)
    return Work(name, flops, [split, combine], _errors(out, 1, cache, q), [out, mid])


def paged() -> Iterator[Work]:
    """One token for each sequence, not split, over a cache in pieces of eight features."""
    import torch

    batch, length = 64, 4096
    cache = _Paged(batch, length)
    q, out = (random_tensor(batch, HEADS, FEATURES) for _ in range(2))
    k, v = cache.by_features()
    unit_scale = torch.ones((), device="cuda")
    values = {
        "output_ptr": out, "query_ptr": q, "key_cache_ptr": k, "value_cache_ptr": v,
        "sink_ptr": None, "block_tables_ptr": cache.table, "seq_lens_ptr": cache.lengths,
        "alibi_slopes_ptr": None, "scale": SCALE, "k_scale": unit_scale, "v_scale": unit_scale,
        "out_scale_inv": 1.0, "block_table_stride": cache.table.stride(0),
        **{f"query_stride_{axis}": q.stride(axis) for axis in range(2)},
        **{f"output_stride_{axis}": out.stride(axis) for axis in range(2)},
        **{f"stride_k_cache_{axis}": k.stride(axis) for axis in range(5)},
        **{f"stride_v_cache_{axis}": v.stride(axis) for axis in range(4)},
        "query_start_len_ptr": numbers(*range(batch + 1)),
    }  # fmt: skip
    constants = {
        "num_query_heads": HEADS, "num_queries_per_kv": HEADS // KV_HEADS,
        "num_queries_per_kv_padded": 16, "PHYSICAL_BLOCK_SIZE": PAGE, "HEAD_SIZE": FEATURES,
        "HEAD_SIZE_PADDED": FEATURES, "USE_ALIBI_SLOPES": False, "SLIDING_WINDOW": 0, "x": 8,
        "filter_by_query_len": True, "USE_SINKS": False, "USE_FP8": False,
        "INTERLEAVED_V_PACK_FACTOR": 0,
    }  # fmt: skip
    step = Step(
        "vllm_paged", f"{OPS}.chunked_prefill_paged_decode", "kernel_paged_attention_2d", values,
        constants, lambda _: (batch, KV_HEADS),
    )  # fmt: skip
    flops = 4.0 * batch * HEADS * length * FEATURES
    yield Work(f"vllm paged {batch}x{length}", flops, [step], _errors(out, 1, cache, q), [out])


def prefix() -> Iterator[Work]:
    """New tokens see earlier ones in a paged cache, and each other."""
    import torch

    batch, new, before = 4, 2048, 2048
    cache = _Paged(batch, new + before)
    k_cache, v_cache = cache.by_features()
    q, out = (random_tensor(batch * new, HEADS, FEATURES) for _ in range(2))
    fresh = [
        torch.stack([
            torch.cat([cache.seen(b, h)[side][before:] for b in range(batch)]) for h in range(KV_HEADS)
        ], 1).contiguous()
        for side in range(2)
    ]  # fmt: skip
    unit_scale = torch.ones((), device="cuda")
    strided = {"q": q, "k": fresh[0], "v": fresh[1], "o": out}
    values = {
        "Q": q, "K": fresh[0], "V": fresh[1], "K_cache": k_cache, "V_cache": v_cache,
        "sink_ptr": None, "B_Loc": cache.table, "sm_scale": SCALE, "k_scale": unit_scale, "v_scale": unit_scale,
        "out_scale_inv": 1.0, "B_Start_Loc": numbers(*range(0, (batch + 1) * new, new)),
        "B_Seqlen": cache.lengths, "Out": out, "stride_b_loc_b": cache.table.stride(0),
        "stride_b_loc_s": cache.table.stride(1),
        **{
            f"stride_{name}{axis}": tensor.stride(side)
            for name, tensor in strided.items()
            for side, axis in enumerate(("bs", "h", "d"))
        },
        **{f"stride_k_cache_{axis}": k_cache.stride(side) for axis, side in (
            ("bs", 0), ("h", 1), ("d", 2), ("x", 4)
        )},
        **{f"stride_v_cache_{axis}": v_cache.stride(side) for side, axis in enumerate(
            ("bs", "h", "d", "bl")
        )},
    }  # fmt: skip
    constants = {
        "x": 8, "stride_k_cache_bl": k_cache.stride(3), "num_queries_per_kv": HEADS // KV_HEADS,
        "IN_PRECISION": None, "BLOCK_DMODEL": FEATURES, "BLOCK_DMODEL_PADDED": FEATURES,
        "PHYSICAL_BLOCK_SIZE": PAGE, "SLIDING_WINDOW": 0, "num_unroll_request": 1,
        "SKIP_DECODE": False, "USE_SINKS": False, "USE_FP8": False, "CAUSAL": True, "MAX_Q_LEN": 0,
        "INTERLEAVED_V_PACK_FACTOR": 0, "MAX_CTX_LEN": 0, "KV_FROM_CACHE": False,
    }  # fmt: skip
    step = Step(
        "vllm_prefix", f"{OPS}.prefix_prefill", "_fwd_kernel", values, constants,
        lambda config: (batch, HEADS, -(-new // config["BLOCK_M"])),
    )  # fmt: skip
    flops = 4.0 * batch * HEADS * new * (before + new / 2) * FEATURES
    name = f"vllm prefix {batch}x{new} behind {before}"
    yield Work(name, flops, [step], _errors(out, new, cache, q), [out])
