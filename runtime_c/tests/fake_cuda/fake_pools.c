/* fake_pools.c: pools of memory, allocated and freed in the order of a stream.
 *
 * Addresses are made up. An allocation belongs to its stream, and must be freed there: nothing else
 * orders the two for a launch.
 */
#include "fake_state.h"

enum { PIECE_BYTES = 1 << 20 };

static const CUdeviceptr first_address = 0x5c0000000000u;

static struct fake_piece *find_piece(CUdeviceptr address) {
    for (int i = 0; i < MAX_PIECES; ++i) {
        if (fake.pieces[i].address == address) {
            return &fake.pieces[i];
        }
    }
    return NULL;
}

CUresult fake_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    ENTER("cuMemPoolCreate");
    REQUIRE(properties->allocation_type == CU_MEM_ALLOCATION_TYPE_PINNED &&
                properties->location_type == CU_MEM_LOCATION_TYPE_DEVICE &&
                properties->location_id >= 0 && properties->location_id < fake.device_count,
            CUDA_ERROR_INVALID_VALUE, "cuMemPoolCreate: properties");
    for (int i = 0; i < MAX_POOLS; ++i) {
        if (!fake.pools[i].is_alive) {
            fake.pools[i] = (struct CUmemPoolHandle_st){true, properties->location_id};
            *pool = &fake.pools[i];
            return leave(CUDA_SUCCESS);
        }
    }
    REQUIRE(false, CUDA_ERROR_OUT_OF_MEMORY, "more pools than the fake has");
}

CUresult fake_cuMemPoolDestroy(CUmemoryPool pool) {
    ENTER("cuMemPoolDestroy");
    REQUIRE(pool->is_alive, CUDA_ERROR_INVALID_VALUE, "cuMemPoolDestroy twice");
    pool->is_alive = false;
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    ENTER("cuMemPoolSetAttribute");
    (void)value;
    REQUIRE(pool->is_alive && (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ||
                               attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES),
            CUDA_ERROR_INVALID_VALUE, "cuMemPoolSetAttribute: attribute %d", attribute);
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size_bytes, CUmemoryPool pool,
                                      CUstream stream) {
    ENTER("cuMemAllocFromPoolAsync");
    REQUIRE(pool->is_alive, CUDA_ERROR_INVALID_VALUE, "cuMemAllocFromPoolAsync: no pool");
    struct fake_piece *piece = find_piece(0);
    REQUIRE(piece != NULL, CUDA_ERROR_OUT_OF_MEMORY, "more pieces than the fake has");
    *piece = (struct fake_piece){first_address + fake.piece_count++ * PIECE_BYTES, size_bytes,
                                 stream};
    *address = piece->address;
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    ENTER("cuMemFreeAsync");
    struct fake_piece *piece = address == 0 ? NULL : find_piece(address);
    REQUIRE(piece != NULL, CUDA_ERROR_INVALID_VALUE, "cuMemFreeAsync: nothing is there");
    REQUIRE(piece->stream == stream, CUDA_ERROR_INVALID_VALUE, "cuMemFreeAsync: another stream");
    *piece = (struct fake_piece){.address = 0};
    return leave(CUDA_SUCCESS);
}

__attribute__((visibility("default"))) int fake_cuda_live_pools(void) {
    int count = 0;
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_POOLS; ++i) {
        count += fake.pools[i].is_alive;
    }
    (void)pthread_mutex_unlock(&lock);
    return count;
}

__attribute__((visibility("default"))) int fake_cuda_live_pieces(void) {
    int count = 0;
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_PIECES; ++i) {
        count += fake.pieces[i].address != 0;
    }
    (void)pthread_mutex_unlock(&lock);
    return count;
}
