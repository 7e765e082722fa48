/* unload.c: undo loads: all of them at the end, or earlier those in one context.
 *
 * Code is the driver's library, shared by all contexts: it is unloaded when no remaining context
 * launches it. An entry's own data, including modules, is freed at once. The entry itself stays in
 * the list, without a context, because launches on other devices walk along it without a lock
 * (load.h).
 */
#include "code.h"
#include "scratch.h"

/* Free an entry's tables, and release its primary context. No launch may be in it. */
static void empty_entry(struct aotc_archive *archive, struct aotci_context *entry, bool may_call) {
    const uint32_t kernel_count = aotci_count(&archive->root, SECTION_ENTRIES);
    for (uint32_t i = 0; may_call && i < kernel_count; ++i) {
        aotci_unload_modules(&archive->driver, entry, aotci_dispatch_of(entry, i));
    }
    atomic_store_explicit(&entry->context, NULL, memory_order_release);
    for (uint32_t i = 0; i < kernel_count; ++i) {
        _Atomic(struct aotci_dispatch *) *place = aotci_place_of(entry, i);
        if (place != NULL) {
            aotci_free_dispatch(archive, aotci_kernel(archive, i),
                                atomic_exchange_explicit(place, NULL, memory_order_acq_rel));
        }
    }
    if (may_call) {
        aotci_scratch_close(&archive->driver, entry);
    }
    entry->scratch_pool = NULL;
    if (may_call && entry->is_retained) {
        (void)archive->driver.primary_release(entry->device);
    }
    entry->is_retained = false;
    aotci_memo_free(&entry->plans, &archive->allocator);
    entry->plans = (struct aotci_memo){.slots = NULL};
}

/* ---- one context ------------------------------------------------------------------------------- */

/* Whether a context other than `leaving` launches from a blob of a kernel. */
static bool is_used(const struct aotc_kernel *kernel, uint32_t blob, CUcontext leaving) {
    for (const struct aotci_context *entry =
             atomic_load_explicit(&kernel->archive->contexts, memory_order_relaxed);
         entry != NULL; entry = entry->next) {
        const CUcontext handle = aotci_context_handle(entry);
        if (handle == NULL || handle == leaving) {
            continue;
        }
        const struct aotci_dispatch *dispatch = aotci_dispatch_of(entry, kernel->number);
        const uint32_t count = dispatch == NULL ? 0 : dispatch->candidate_count;
        for (uint32_t k = 0; k < count; ++k) {
            if (dispatch->candidates[k].variant->cubin == blob &&
                dispatch->candidates[k].is_taken && dispatch->candidates[k].module == NULL) {
                return true;
            }
        }
    }
    return false;
}

/* Unload the code of a kernel that only `leaving` launches. */
static void unload_libraries(struct aotc_kernel *kernel, CUcontext leaving) {
    const uint32_t blob_count = aotci_count(&kernel->tables, SECTION_BLOBS);
    for (uint32_t blob = 0; blob < blob_count; ++blob) {
        if (kernel->libraries[blob] == NULL || is_used(kernel, blob, leaving)) {
            continue;
        }
        (void)kernel->archive->driver.library_unload(kernel->libraries[blob]);
        kernel->libraries[blob] = NULL;
        const uint32_t variant_count = aotci_count(&kernel->tables, SECTION_VARIANTS);
        for (uint32_t i = 0; i < variant_count; ++i) {
            if (aotci_variant(&kernel->tables, i)->cubin == blob) {
                kernel->cuda_kernels[i] = NULL;
            }
        }
    }
}

static bool is_loaded(const struct aotc_archive *archive, CUcontext context) {
    for (const struct aotci_context *entry =
             atomic_load_explicit(&archive->contexts, memory_order_relaxed);
         entry != NULL; entry = entry->next) {
        if (aotci_context_handle(entry) == context) {
            return true;
        }
    }
    return false;
}

static aotc_status unload_context(const struct loading *loading, CUcontext context) {
    struct aotc_archive *archive = loading->archive;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* keeps streams under capture valid */
    if (!is_loaded(archive, context)) {
        return AOTC_OK;
    }
    const aotc_status status = aotci_driver_use(&archive->driver, DRIVER_UNLOAD, loading->error);
    if (status != AOTC_OK) {
        return status;
    }
    const CUresult result = archive->driver.exchange_capture_mode(&mode);
    if (result != CUDA_SUCCESS) {
        return aotci_load_failure(loading, result, "cuThreadExchangeStreamCaptureMode");
    }
    for (uint32_t i = 0; i < aotci_count(&archive->root, SECTION_ENTRIES); ++i) {
        if (aotci_kernel(archive, i) != NULL) {
            unload_libraries(aotci_kernel(archive, i), context);
        }
    }
    /* A destroyed context may have had the same address. */
    for (struct aotci_context *entry =
             atomic_load_explicit(&archive->contexts, memory_order_relaxed);
         entry != NULL; entry = entry->next) {
        if (aotci_context_handle(entry) == context) {
            empty_entry(archive, entry, true);
        }
    }
    (void)archive->driver.exchange_capture_mode(&mode);
    return AOTC_OK;
}

static aotc_status unload_locked(struct aotc_archive *archive, int32_t ordinal, aotc_error *error) {
    const struct loading loading = {.archive = archive, .error = error};
    CUcontext context = NULL;
    CUdevice device = 0;
    if (!archive->has_driver) {
        return AOTC_OK;
    }
    if (aotci_is_forked(archive)) {
        return AOTCI_FAIL(error, AOTC_ERROR_FORKED, .file = archive->name, .field = "process",
                          .expected = "the one that loaded the archive", .got = "a fork of it",
                          .remedy = "unload it there; a child needs nothing but aotc_release");
    }
    aotc_status status = aotci_choose_context(&loading, ordinal, &context, &device);
    if (status != AOTC_OK) {
        return status;
    }
    status = unload_context(&loading, context);
    if (ordinal != AOTC_CURRENT_CONTEXT) {
        (void)archive->driver.primary_release(device);
    }
    return status;
}

aotc_status aotc_unload(aotc_archive *archive, int32_t device, aotc_error *error) {
    if (archive == NULL) {
        return AOTCI_FAIL(error, AOTC_ERROR_ARG, .field = "aotc_unload", .expected = "an archive",
                          .got = "NULL");
    }
    (void)pthread_mutex_lock(&archive->lock);
    aotci_frame_drop(archive);
    const aotc_status status = unload_locked(archive, device, error);
    (void)pthread_mutex_unlock(&archive->lock);
    return status;
}

/* ---- all contexts ------------------------------------------------------------------------------- */

static void unload_all(const struct aotc_kernel *kernel) {
    const uint32_t blob_count = aotci_count(&kernel->tables, SECTION_BLOBS);
    for (uint32_t blob = 0; blob < blob_count; ++blob) {
        if (kernel->libraries[blob] != NULL) {
            (void)kernel->archive->driver.library_unload(kernel->libraries[blob]);
        }
    }
}

void aotci_unload(struct aotc_archive *archive) {
    const bool may_call = archive->has_driver && !aotci_is_forked(archive) &&
                          aotci_driver_use(&archive->driver, DRIVER_UNLOAD, NULL) == AOTC_OK;
    const uint32_t kernel_count = aotci_count(&archive->root, SECTION_ENTRIES);
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* keeps streams under capture valid */
    if (may_call) {
        (void)archive->driver.exchange_capture_mode(&mode);
    }
    /* Errors mean that the driver has already freed it: at exit, or with a destroyed context.
     */
    for (uint32_t i = 0; may_call && i < kernel_count; ++i) {
        if (aotci_kernel(archive, i) != NULL) {
            unload_all(aotci_kernel(archive, i));
        }
    }
    struct aotci_context *context = atomic_load_explicit(&archive->contexts, memory_order_relaxed);
    while (context != NULL) {
        struct aotci_context *next = context->next;
        empty_entry(archive, context, may_call);
        for (uint32_t i = 0; i < aotci_chunk_count(archive); ++i) {
            aotci_deallocate(&archive->allocator,
                             atomic_load_explicit(&context->chunks[i], memory_order_relaxed),
                             aotci_chunk_bytes(archive, i), 1);
        }
        aotci_deallocate(&archive->allocator, context, aotci_context_bytes(archive), 1);
        context = next;
    }
    if (may_call) {
        (void)archive->driver.exchange_capture_mode(&mode);
    }
}
