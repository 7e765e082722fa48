"""Matrix products whose last tiles are split along K, so that no SM is idle while they are computed.

C = A @ B^T, in tiles, by NUM_SMS programs. 352 tiles for 132 of them are two rounds and 88 tiles more,
which would keep a third of a GPU waiting for the others. Here these 88 are cut into SPLIT_K parts each, and
three times 88 parts are two rounds of a third of the time. Fewer tiles than SMs are all split.

Parts are begun together: all first parts, then all second ones, and so on. Programs that run at one
time so read the same blocks of A and B at the same time, once for all of them. (Shares as equal as can
be, cut wherever they end, leave every program with its own place in K, and nothing to share.)

A part is left in `workspace_ptr`, fp32, (tiles that are split, SPLIT_K, BLOCK_M, BLOCK_N or COLUMNS). Whichever
program has the last part of a tile adds them up in their order, so the result does not depend on who that was.
`counter_ptr` has an int32 for each tile, 0 before the first launch; every launch leaves zeros.
Launches that may run at one time need a workspace and counters of their own.
"""

import triton
import triton.language as tl
from matmul import tile_of_program
from persistent_matmul import columns_of_parts


@triton.jit
def split_tail_matmul_kernel(
    a, b, c,
    workspace_ptr, counter_ptr,
    M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EPILOGUE_N: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr, NUM_SMS: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr = False,  # noqa: FBT002 - a constant
    COLUMNS: tl.constexpr = 0,
):  # fmt: skip
    """Store A (M, K) @ B (N, K)^T to C (M, N), summed in fp32, by NUM_SMS programs.

    Blocks of descriptors are as in `persistent_matmul_kernel`, and COLUMNS, too.
    """
    WIDTH: tl.constexpr = COLUMNS if COLUMNS > 0 else BLOCK_N
    tl.static_assert(WIDTH <= BLOCK_N and WIDTH % EPILOGUE_N == 0, "tiles are whole EPILOGUE_N")
    NUM_PIECES: tl.constexpr = WIDTH // EPILOGUE_N
    PIECE: tl.constexpr = BLOCK_M * EPILOGUE_N
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, WIDTH)
    tiles, steps = num_m * num_n, tl.cdiv(K, BLOCK_K)
    whole = tiles // NUM_SMS * NUM_SMS
    split = tiles - whole
    program = tl.program_id(0)
    # Parts that are this program's: each NUM_SMSth, from its own number on.
    num_parts = max(tl.cdiv(split * SPLIT_K - program, NUM_SMS), 0)
    m, n = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, EPILOGUE_N)[None, :]
    places = workspace_ptr + m * EPILOGUE_N + n
    for item in tl.range(0, num_parts + whole // NUM_SMS, warp_specialize=WARP_SPECIALIZE):
        index = program + (item - num_parts) * NUM_SMS
        from_step, to_step = 0, steps
        place = 0
        if item < num_parts:
            part, place = (program + item * NUM_SMS) // split, (program + item * NUM_SMS) % split
            index = whole + place
            place = place * SPLIT_K + part
            from_step, to_step = steps * part // SPLIT_K, steps * (part + 1) // SPLIT_K
        tile_m, tile_n = tile_of_program(index, num_m, num_n, GROUP_M)
        row, column = tile_m * BLOCK_M, tile_n * WIDTH
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(from_step, to_step):
            k = step * BLOCK_K
            acc = tl.dot(a.load([row, k]), b.load([column, k]).T, acc)
        pieces = columns_of_parts(acc, EPILOGUE_N)
        if item < num_parts:
            mine = places + place.to(tl.int64) * (NUM_PIECES * PIECE)
            for piece in tl.static_range(NUM_PIECES):
                tl.store(mine + piece * PIECE, pieces[piece])
        else:
            for piece in tl.static_range(NUM_PIECES):
                c.store([row, column + piece * EPILOGUE_N], pieces[piece].to(c.dtype))
    tl.debug_barrier()  # parts are stored before they are counted
    for item in tl.range(0, num_parts):
        place = (program + item * NUM_SMS) % split
        if tl.atomic_add(counter_ptr + place, 1, sem="acq_rel") == SPLIT_K - 1:
            tl.store(counter_ptr + place, 0)
            tile_m, tile_n = tile_of_program(whole + place, num_m, num_n, GROUP_M)
            row, column = tile_m * BLOCK_M, tile_n * WIDTH
            first = places + place.to(tl.int64) * (SPLIT_K * NUM_PIECES * PIECE)
            sums = ()
            for piece in tl.static_range(NUM_PIECES):
                total = tl.load(first + piece * PIECE)
                for part in tl.static_range(1, SPLIT_K):
                    total += tl.load(first + (part * NUM_PIECES + piece) * PIECE)
                sums += (total,)
            for piece in tl.static_range(NUM_PIECES):
                c.store([row, column + piece * EPILOGUE_N], sums[piece].to(c.dtype))
