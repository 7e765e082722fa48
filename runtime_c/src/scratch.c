/* scratch.c: see scratch.h.
 */
#include "scratch.h"

#include <inttypes.h>

/* The alignment of a pool's addresses with any driver. */
enum { POOL_ALIGNMENT = 256 };

bool aotci_scratch_is_used(const struct aotc_kernel *kernel) {
    const uint32_t count = aotci_count(&kernel->tables, SECTION_VARIANTS);
    for (uint32_t i = 0; i < count; ++i) {
        if (aotci_variant(&kernel->tables, i)->scratch_bytes != FORMAT_NONE) {
            return true;
        }
    }
    return false;
}

void aotci_scratch_open(const struct aotc_archive *archive, struct aotci_context *context) {
    const struct aotci_driver *driver = &archive->driver;
    const CUmemPoolProps properties = {
        .allocation_type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location_type = CU_MEM_LOCATION_TYPE_DEVICE,
        .location_id = context->device,
    };
    uint64_t threshold = UINT64_MAX;
    int waits_for_streams = 0;
    CUmemoryPool pool = NULL;
    if (context->scratch_pool != NULL || driver->pool_create == NULL ||
        driver->pool_set_attribute == NULL || driver->pool_destroy == NULL ||
        driver->pool_allocate == NULL || driver->pool_free == NULL) {
        return;
    }
    if (driver->pool_create(&pool, &properties) != CUDA_SUCCESS) {
        return;
    }
    if (driver->pool_set_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) !=
            CUDA_SUCCESS ||
        driver->pool_set_attribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                                   &waits_for_streams) != CUDA_SUCCESS) {
        (void)driver->pool_destroy(pool);
        return;
    }
    context->scratch_pool = pool;
}

void aotci_scratch_close(const struct aotci_driver *driver, struct aotci_context *context) {
    if (context->scratch_pool != NULL) {
        (void)driver->pool_destroy(context->scratch_pool);
        context->scratch_pool = NULL;
    }
}

/* Check the caller's scratch memory against the launch's requirement. */
static aotc_status check(const struct aotc_kernel *kernel, const struct aotci_chosen *chosen,
                         const aotc_launch_desc *desc, aotc_error *error) {
    const bool has_any = desc->scratch != NULL || desc->scratch_bytes != 0;
    const uint32_t align = chosen->candidate->variant->scratch_align;
    if (desc->scratch != NULL && desc->scratch_bytes >= chosen->scratch_bytes &&
        (uintptr_t)desc->scratch % align == 0) {
        return AOTC_OK;
    }
    return AOTCI_FAIL(
        error, AOTC_ERROR_ARG, .file = kernel->archive->name, .kernel = kernel->name,
        .field = "scratch",
        .expected = aotci_text("%" PRIu64 " bytes of device memory, aligned to %" PRIu32,
                               chosen->scratch_bytes, align)
                        .chars,
        .got = aotci_text("%" PRIu64 " bytes at %p", desc->scratch_bytes, desc->scratch).chars,
        .remedy = has_any ? "ask aotc_select for the size"
                          : "pass some: neither driver nor device has a pool to take it from");
}

aotc_status aotci_scratch_take(const struct aotc_kernel *kernel, const struct aotci_context *context,
                               const struct aotci_chosen *chosen, aotc_launch_desc *desc,
                               CUdeviceptr *taken, aotc_error *error) {
    const struct aotci_driver *driver = &kernel->archive->driver;
    const uint32_t align = chosen->scratch_bytes == 0 ? 1 : chosen->candidate->variant->scratch_align;
    const uint64_t slack = align > POOL_ALIGNMENT ? align - POOL_ALIGNMENT : 0;
    *taken = 0;
    if (chosen->scratch_bytes == 0) {
        return AOTC_OK;
    }
    if (desc->scratch != NULL || desc->scratch_bytes != 0 || context->scratch_pool == NULL) {
        return check(kernel, chosen, desc, error);
    }
    const CUresult result = driver->pool_allocate(taken, (size_t)(chosen->scratch_bytes + slack),
                                                  context->scratch_pool, desc->stream);
    if (result != CUDA_SUCCESS) {
        *taken = 0;
        return aotci_driver_fail(driver, result, error,
                                 (struct aotci_detail){.file = kernel->archive->name,
                                                       .kernel = kernel->name,
                                                       .field = "cuMemAllocFromPoolAsync"});
    }
    desc->scratch = (void *)(uintptr_t)((*taken + align - 1) / align * align);
    desc->scratch_bytes = chosen->scratch_bytes;
    return AOTC_OK;
}

aotc_status aotci_scratch_return(const struct aotc_kernel *kernel, CUstream stream,
                                 CUdeviceptr taken, aotc_error *error) {
    const struct aotci_driver *driver = &kernel->archive->driver;
    const CUresult result = driver->pool_free(taken, stream);
    return result == CUDA_SUCCESS
               ? AOTC_OK
               : aotci_driver_fail(driver, result, error,
                                   (struct aotci_detail){.file = kernel->archive->name,
                                                         .kernel = kernel->name,
                                                         .field = "cuMemFreeAsync"});
}
