"""Works of SGLang (0.4.9) for `public_sources.py`: prefill, extend, decode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from public_work import Step, Work, attended, causal_work, error_of, numbers, random_tensor


def prefill() -> Iterator[Work]:
    """SGLang's prefill: causal, sequences without padding."""
    for batch, length, heads, kv_heads in ((4, 4096, 16, 16), (2, 4096, 64, 8)):
        q, k, v = (random_tensor(batch, length, h, 128) for h in (heads, kv_heads, kv_heads))
        out = random_tensor(batch, length, heads, 128)
        flat = [tensor.view(batch * length, -1, 128) for tensor in (q, k, v, out)]
        strides = dict(
            zip(
                [f"stride_{t}{axis}" for t in "qkvo" for axis in ("bs", "h")],
                [tensor.stride(axis) for tensor in flat for axis in range(2)],
                strict=True,
            )
        )
        values = {
            **dict(zip(("Q", "K", "V"), flat, strict=False)), "sm_scale": 128**-0.5,
            "B_Start_Loc": numbers(*range(0, batch * length, length)),
            "B_Seqlen": numbers(*[length] * batch), "Out": flat[3], **strides,
        }  # fmt: skip
        constants = {
            "kv_group_num": heads // kv_heads, "BLOCK_DMODEL": 128, "IS_CAUSAL": True, "Lk": 128,
        }  # fmt: skip
        step = Step(
            "sglang_prefill", "sglang.srt.layers.attention.triton_ops.prefill_attention",
            "_fwd_kernel", values, constants,
            lambda config, batch=batch, heads=heads, length=length: (
                batch, heads, -(-length // config["BLOCK_M"])
            ),
        )  # fmt: skip
        yield causal_work("sglang prefill", step, q, k, v, out, heads // kv_heads)


def extend() -> Iterator[Work]:
    """SGLang's extend: new tokens see a prefix, gathered by token, and earlier new tokens."""
    import torch

    batch, new, prefix, heads, kv_heads = 4, 2048, 2048, 32, 8
    k_cache, v_cache = (random_tensor(batch * prefix, kv_heads, 128) for _ in range(2))
    q, k, v, out = (random_tensor(batch * new, h, 128) for h in (heads, kv_heads, kv_heads, heads))
    order = torch.randperm(batch * prefix, device="cuda")
    strided = {"q": q, "k": k, "v": v, "o": out, "buf_k": k_cache, "buf_v": v_cache}
    values = {
        "Q_Extend": q, "K_Extend": k, "V_Extend": v, "O_Extend": out, "K_Buffer": k_cache,
        "V_Buffer": v_cache, "qo_indptr": numbers(*range(0, (batch + 1) * new, new)),
        "kv_indptr": numbers(*range(0, (batch + 1) * prefix, prefix)), "kv_indices": order,
        "mask_ptr": None, "mask_indptr": None, "sm_scale": 128**-0.5,
        "kv_group_num": heads // kv_heads,
        **{
            f"stride_{name}{axis}": tensor.stride(axis_index)
            for name, tensor in strided.items()
            for axis_index, axis in enumerate(("bs", "h"))
        },
    }  # fmt: skip
    constants = {
        "SLIDING_WINDOW_SIZE": -1, "logit_cap": 0.0, "Lq": 128, "Lv": 128, "BLOCK_DMODEL": 128,
        "BLOCK_DPE": 0, "BLOCK_DV": 128, "USE_CUSTOM_MASK": False, "IS_CAUSAL": True,
        "SKIP_PREFIX_CUSTOM_MASK": True, "STORE_TRANSPOSE": False,
    }  # fmt: skip
    step = Step(
        "sglang_extend", "sglang.srt.layers.attention.triton_ops.extend_attention", "_fwd_kernel",
        values, constants, lambda config: (batch, heads, -(-new // config["BLOCK_M"])),
    )  # fmt: skip
    rows = torch.randint(0, new, (128,), device="cuda")
    picked = [(0, 0), (batch - 1, heads - 1)]
    expected: list[Any] = []
    for b, h in picked:
        before, new_rows = order[b * prefix : (b + 1) * prefix], slice(b * new, (b + 1) * new)
        kv_head = h // (heads // kv_heads)
        keys, seen = (
            torch.cat([cache[before, kv_head], fresh[new_rows, kv_head]])
            for cache, fresh in ((k_cache, k), (v_cache, v))
        )
        expected.append(attended(q[new_rows][rows, h], keys, seen, rows + prefix))

    def wrong() -> float:
        pairs = zip(picked, expected, strict=True)
        return max(
            error_of(out[b * new + rows, h], expected_head) for (b, h), expected_head in pairs
        )

    flops = 4.0 * batch * heads * new * (prefix + new / 2) * 128
    yield Work(f"sglang extend {batch}x{new} behind {prefix}", flops, [step], wrong, [out])


def decode() -> Iterator[Work]:
    """SGLang's decode: tokens gathered one by one, split, then combined."""
    for batch, length in ((16, 8192), (64, 8192)):
        k, v = (random_tensor(batch * length, 8, 128) for _ in range(2))
        q = random_tensor(batch, 64, 128)
        yield _decoded(f"sglang decode {batch}x{length} 64/8", "sglang_decode", q, k, v)


def mla() -> Iterator[Work]:
    """The same of latents: values are the first 512 of 576 features of a key."""
    for batch, length in ((16, 8192),):
        k = random_tensor(batch * length, 1, 576)
        q = random_tensor(batch, 128, 576)
        yield _decoded(f"sglang mla {batch}x{length}", "sglang_mla", q, k, k[..., :512])


def _decoded(name: str, kernel: str, q: Any, k: Any, v: Any) -> Work:
    import torch

    (batch, heads, width), values = q.shape, v.shape[-1]
    length, kv_heads, splits = k.shape[0] // batch, k.shape[1], 16
    group, block_h = heads // kv_heads, 16
    main = 1 << width.bit_length() - 1
    out = random_tensor(batch, heads, values)
    order = torch.randperm(batch * length, device="cuda")
    parts = torch.zeros(batch, heads, splits, values, device="cuda")
    lse = torch.zeros(batch, heads, splits, device="cuda")
    shared = {
        "kv_indptr": numbers(*range(0, (batch + 1) * length, length)),
        "num_kv_splits": numbers(*[splits] * batch),
        **{
            f"stride_mid_o{axis}": parts.stride(axis_index) for axis_index, axis in enumerate("bhs")
        },
    }
    buffers = {
        f"stride_buf_{t}{axis}": tensor.stride(axis_index)
        for t, tensor in (("k", k), ("v", v))
        for axis_index, axis in enumerate(("bs", "h"))
    }
    module = "sglang.srt.layers.attention.triton_ops.decode_attention"
    split = Step(
        kernel, module, "_fwd_grouped_kernel_stage1",
        {
            "Q": q, "K_Buffer": k, "V_Buffer": v, "sm_scale": width**-0.5, "kv_indices": order,
            "Att_Out": parts, "Att_Lse": lse, "stride_qbs": q.stride(0),
            "stride_qh": q.stride(1), **buffers, **shared,
        },
        {
            "kv_group_num": group, "q_head_num": heads, "BLOCK_DMODEL": main,
            "BLOCK_DPE": width - main, "BLOCK_DV": values, "BLOCK_H": block_h, "MIN_BLOCK_KV": 32,
            "logit_cap": 0.0, "Lk": width, "Lv": values,
        },
        lambda _: (batch, -(-heads // min(block_h, group)), splits),
    )  # fmt: skip
    combine = Step(
        f"{kernel}_combine", module, "_fwd_kernel_stage2",
        {
            "Mid_O": parts, "Mid_O_1": lse, "O": out, "stride_obs": out.stride(0),
            "stride_oh": out.stride(1), **shared,
        },
        {"MAX_KV_SPLITS": splits, "MIN_BLOCK_KV": 32, "BLOCK_DV": values, "Lv": values},
        lambda _: (batch, heads),
    )  # fmt: skip
    picked = [(0, 0), (batch - 1, heads - 1)]
    expected: list[Any] = []
    for b, h in picked:
        tokens = order[b * length : (b + 1) * length]
        expected.append(attended(q[b, h : h + 1], k[tokens, h // group], v[tokens, h // group])[0])

    def wrong() -> float:
        return max(
            error_of(out[b, h], expected_head)
            for (b, h), expected_head in zip(picked, expected, strict=True)
        )

    flops = 2.0 * batch * heads * length * (width + values)
    return Work(name, flops, [split, combine], wrong, [out, parts])
