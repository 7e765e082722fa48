"""Works of flash-linear-attention (0.6.0) for `public_sources.py`: attention, chunks."""

from __future__ import annotations

from collections.abc import Iterator

from public_work import Step, Work, causal_work, error_of, random_tensor


def attention() -> Iterator[Work]:
    """FLA's attention: a loop over whole blocks, then one along the diagonal."""
    batch, length, heads = 4, 4096, 16
    q, k, v, out = (random_tensor(batch, length, heads, 128) for _ in range(4))
    import torch

    lse = torch.empty(batch, length, heads, device="cuda")
    values = {"q": q, "k": k, "v": v, "o": out, "lse": lse, "scale": 128**-0.5, "T": length}
    values |= dict.fromkeys(("g_cumsum", "sink_bias", "cu_seqlens", "chunk_indices"))
    constants = {
        "W": None, "B": batch, "H": heads, "HQ": heads, "G": 1, "K": 128, "V": 128, "BK": 128,
        "BV": 128, "USE_G": False, "USE_SINK_BIAS": False, "USE_WINDOW": False, "IS_VARLEN": False,
    }  # fmt: skip
    step = Step(
        "fla_attention", "fla.ops.attn.parallel", "parallel_attn_fwd_kernel", values, constants,
        lambda config: (-(-length // config["BT"]), batch * heads),
    )  # fmt: skip
    yield causal_work("fla attention", step, q, k, v, out, 1)


def chunk() -> Iterator[Work]:
    """FLA's chunked linear attention: states of chunks, then outputs."""
    import torch

    batch, length, heads, width, size = 4, 8192, 16, 128, 64
    q, k, v, out = (random_tensor(batch, length, heads, width) for _ in range(4))
    states = torch.empty(
        batch, length // size, heads, width, width, device="cuda", dtype=torch.bfloat16
    )
    absent = ("g", "g_gamma", "cu_seqlens")
    common = {"H": heads, "K": width, "V": width, "BT": size, "USE_G": False, "USE_G_GAMMA": False}
    common |= {"IS_VARLEN": False, "STATE_V_FIRST": False}
    scale = width**-0.5
    state = Step(
        "fla_chunk_h", "fla.ops.common.chunk_h", "chunk_fwd_kernel_h",
        {
            "k": k, "v": v, "h": states, "T": length,
            **dict.fromkeys((*absent, "gk", "gv", "h0", "ht", "split_offsets")),
        },
        {
            **common, "BS": size, "USE_GK": False, "USE_GV": False, "USE_INITIAL_STATE": False,
            "STORE_FINAL_STATE": False,
        },
        lambda config: (width // config["BK"] * (width // config["BV"]) * batch * heads,),
    )  # fmt: skip
    output = Step(
        "fla_chunk_o", "fla.ops.common.chunk_o", "chunk_fwd_kernel_o",
        {
            "q": q, "k": k, "v": v, "h": states, "o": out, "scale": scale, "T": length,
            **dict.fromkeys((*absent, "chunk_indices")),
        },
        {**common, "HV": heads},
        lambda config: (width // config["BV"] * (length // size), batch * heads),
    )  # fmt: skip
    scores = q[0, :, 0].double() @ k[0, :, 0].double().T * scale
    expected = scores.tril() @ v[0, :, 0].double()

    def wrong() -> float:
        # States are rounded to bf16, and sums of thousands of tokens are large.
        return error_of(out[0, :, 0], expected)

    flops = 2.0 * batch * length * heads * width * (2 * width + 2 * size)
    yield Work(f"fla chunk {batch}x{heads}x{length}", flops, [state, output], wrong, [out, states])
