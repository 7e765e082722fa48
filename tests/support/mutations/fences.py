"""Bugs in fences: of the wrong address space, scope or direction, of another address, or left out."""

from __future__ import annotations

from tests.support.mutations.plant import Mutation, in_ptx

_ASYNC = r"fence\.proxy\.async;"
_SHARED = r"fence\.proxy\.async\.shared::cta;"
_ACQUIRE = r"(fence\.proxy\.tensormap::generic)\.acquire"
_OF_THE_FIRST_WARP = (
    "{ .reg .pred first; .reg .b32 thread; mov.u32 thread, %tid.x; setp.lt.u32 first, thread, 32;"
    " @first fence.proxy.async.shared::cta; }"
)

MUTATIONS = tuple(
    Mutation(name, stands_for, kernel, in_ptx(pattern, new), "sm_90a")
    for name, stands_for, kernel, pattern, new in (
        (
            "a fence of shared memory for one of global memory",
            "copies of the tensor may not see what threads stored",
            "write_and_load",
            _ASYNC,
            "fence.proxy.async.shared::cta;",
        ),
        (
            "no fence between stores and a copy of the tensor",
            "copies of the tensor may not see what threads stored",
            "write_and_load",
            _ASYNC,
            "",
        ),
        (
            "a fence of memory for one of the proxy",
            "an ordinary fence does not reach the asynchronous proxy",
            "write_and_load",
            _ASYNC,
            "fence.acq_rel.gpu;",
        ),
        (
            "a fence of global memory for one of shared memory",
            "a copy may store what shared memory held before",
            "turn_blocks",
            _SHARED,
            "fence.proxy.async.global;",
        ),
        (
            "a fence of memory for one of the proxy of shared memory",
            "an ordinary fence does not reach the asynchronous proxy",
            "turn_blocks",
            _SHARED,
            "fence.acq_rel.cta;",
        ),
        (
            "a map that is made is not acquired",
            "a copy may go by the map that was there before",
            "add_groups",
            rf"{_ACQUIRE}.*$",
            "",
        ),
        (
            "a map is released where it should be acquired",
            "a release does not let a thread see another map",
            "add_groups",
            rf"{_ACQUIRE}(\.\w+) .*$",
            r"\1.release\2;",
        ),
        (
            "a map that is made is acquired from its CTA",
            "what reads maps is no thread of the CTA",
            "add_groups",
            rf"({_ACQUIRE})\.gpu",
            r"\1.cta",
        ),
        (
            "a map that is made is released to its CTA",
            "what reads maps is no thread of the CTA",
            "add_groups",
            r"(tensormap\.cp_fenceproxy.*release)\.gpu",
            r"\1.cta",
        ),
        (
            "another map is acquired",
            "a fence is of the 128 bytes at its address",
            "add_groups",
            rf"({_ACQUIRE}\.\w+ \[%rd\d+)\]",
            r"\1+128]",
        ),
        (
            "one warp fences what all have stored",
            "a fence is of the accesses of the threads that run it",
            "turn_blocks",
            _SHARED,
            _OF_THE_FIRST_WARP,
        ),
        (
            "a map of the host's is not acquired",
            "a copy may go by the map that was there before",
            "copy_mapped",
            rf"{_ACQUIRE}.*$",
            "",
        ),
        (
            "a map of the host's is acquired from the GPU",
            "the host is no thread of the GPU",
            "copy_mapped",
            rf"({_ACQUIRE})\.sys",
            r"\1.gpu",
        ),
        (
            "a map of the host's is released",
            "a release does not let a thread see another map",
            "copy_mapped",
            rf"{_ACQUIRE}(\.\w+) .*$",
            r"\1.release\2;",
        ),
        (
            "mbarriers are made without a fence",
            "a copy may complete before it sees its mbarrier",
            "turn_blocks",
            r"fence\.mbarrier_init\.release\.cluster;",
            "",
        ),
        (
            "mbarriers are made with a fence of global memory",
            "a copy may complete before it sees its mbarrier",
            "turn_blocks",
            r"fence\.mbarrier_init\.release\.cluster;",
            "fence.proxy.async.global;",
        ),
        (
            "what the last program reads is fenced for its CTA",
            "the parts of other CTAs may not be seen yet",
            "last_adds_up",
            r"(fence\.acq_rel|\.acq_rel)\.gpu",
            r"\1.cta",
        ),
        (
            "what the last program reads is fenced for its cluster",
            "the parts of other CTAs may not be seen yet",
            "last_adds_up",
            r"(fence\.acq_rel|\.acq_rel)\.gpu",
            r"\1.cluster",
        ),
        (
            "parts are acquired and not released",
            "a fence for acquiring orders no write before it",
            "last_adds_up",
            r"fence\.acq_rel\.gpu",
            "fence.acquire.gpu",
        ),
        (
            "parts are released and not acquired",
            "a fence for releasing orders no read after it",
            "last_adds_up",
            r"fence\.acq_rel\.gpu",
            "fence.release.gpu",
        ),
    )
)
