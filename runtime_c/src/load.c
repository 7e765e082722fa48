/* load.c: prepare kernels for launches in a context.
 *
 * Loads of an archive wait for each other. Each finished part is published on its own (dispatch.c),
 * so a load that fails half-way leaves the earlier state intact, and launches continue meanwhile.
 */
#include "load.h"

#include <inttypes.h>

#include "dispatch.h"
#include "plan.h"
#include "scratch.h"

/* ---- contexts ----------------------------------------------------------------------------------
 */

/* Make the table of launch plans of a context, if missing; false without memory. */
static bool make_plans(const struct aotc_archive *archive, struct aotci_context *context) {
    return atomic_load_explicit(&context->plans.slots, memory_order_relaxed) != NULL ||
           aotci_memo_make(&context->plans, PLAN_CACHE_BITS, PLAN_ENTRY_WORDS, &archive->allocator);
}

void aotci_use_plans(const struct aotc_kernel *kernel, const struct aotci_context *context) {
    struct aotc_archive *archive = kernel->archive;
    if (pthread_mutex_trylock(&archive->lock) == 0) {
        (void)make_plans(archive, (struct aotci_context *)(uintptr_t)context);
        (void)pthread_mutex_unlock(&archive->lock);
    }
}

/* Find the entry of the current context, or an unloaded one of the same device to reuse. A context
 * at the address of a destroyed one has neither: launches find the first entry with its address. */
static struct aotci_context *find_entry(const struct aotc_archive *archive, CUcontext current,
                                        unsigned long long id, CUdevice device) {
    struct aotci_context *unloaded = NULL;
    for (struct aotci_context *entry =
             atomic_load_explicit(&archive->contexts, memory_order_relaxed);
         entry != NULL; entry = entry->next) {
        const CUcontext handle = aotci_context_handle(entry);
        if (handle == current) {
            return entry->id == id ? entry : NULL;
        }
        if (handle == NULL && entry->device == device && unloaded == NULL) {
            unloaded = entry;
        }
    }
    if (unloaded != NULL) {
        unloaded->id = id;
        atomic_store_explicit(&unloaded->context, current, memory_order_release);
    }
    return unloaded;
}

/* Make an entry for the current context, in front of the others. */
static aotc_status make_entry(struct loading *loading, CUcontext current, unsigned long long id,
                              CUdevice device) {
    struct aotc_archive *archive = loading->archive;
    const struct aotci_driver *driver = &archive->driver;
    const size_t bytes = aotci_context_bytes(archive);
    struct aotci_context *context = aotci_allocate(&archive->allocator, bytes, 1);
    if (context == NULL) {
        return AOTCI_FAIL(loading->error, AOTC_ERROR_NOMEM, .file = archive->name,
                          .field = "context", .expected = "memory", .got = "none");
    }
    atomic_init(&context->context, current);
    context->id = id;
    context->next = atomic_load_explicit(&archive->contexts, memory_order_relaxed);
    context->device = device;
    CUresult result = driver->device_get_attribute(
        &context->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    if (result == CUDA_SUCCESS) {
        result = driver->device_get_attribute(
            &context->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    }
    if (result != CUDA_SUCCESS) {
        aotci_deallocate(&archive->allocator, context, bytes, 1);
        return aotci_load_failure(loading, result, "cuDeviceGetAttribute");
    }
    loading->context = context;
    atomic_store_explicit(&archive->contexts, context, memory_order_release);
    return AOTC_OK;
}

/* Find or make the table of the current context. A context at the address of a destroyed one gets a
 * table of its own, before the old one, since nothing is loaded in it. */
static aotc_status find_context(struct loading *loading, CUcontext current) {
    const struct aotci_driver *driver = &loading->archive->driver;
    unsigned long long id = 0;
    CUdevice device = 0;
    CUresult result = driver->context_get_id(current, &id);
    if (result != CUDA_SUCCESS) {
        return aotci_load_failure(loading, result, "cuCtxGetId");
    }
    result = driver->context_get_device(&device);
    if (result != CUDA_SUCCESS) {
        return aotci_load_failure(loading, result, "cuCtxGetDevice");
    }
    loading->context = find_entry(loading->archive, current, id, device);
    return loading->context != NULL ? AOTC_OK : make_entry(loading, current, id, device);
}

/* Look up the driver's functions for tensor maps and scratch memory, if a kernel needs them. */
static aotc_status use_driver(const struct loading *loading, bool has_scratch) {
    const bool has_maps = aotci_count(&loading->kernel->tables, SECTION_TENSOR_MAPS) != 0;
    const unsigned groups = (has_maps ? DRIVER_MAPS : 0u) | (has_scratch ? DRIVER_POOLS : 0u);
    return aotci_driver_use(&loading->archive->driver, groups, loading->error);
}

/* Enter the relaxed capture mode, so that later calls do not invalidate streams under capture. */
static aotc_status relax(struct loading *loading) {
    if (loading->is_relaxed) {
        return AOTC_OK;
    }
    loading->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const CUresult result = loading->archive->driver.exchange_capture_mode(&loading->mode);
    loading->is_relaxed = result == CUDA_SUCCESS;
    return loading->is_relaxed
               ? AOTC_OK
               : aotci_load_failure(loading, result, "cuThreadExchangeStreamCaptureMode");
}

/* Load one kernel (an error if it cannot run here), or all (an error if none can). */
static aotc_status load_kernels(struct loading *loading, const struct aotc_kernel *wanted) {
    struct aotc_archive *archive = loading->archive;
    const uint32_t kernel_count = aotci_count(&archive->root, SECTION_ENTRIES);
    uint32_t running_count = 0;
    const uint32_t first = wanted == NULL ? 0 : wanted->number;
    const uint32_t end = wanted == NULL ? kernel_count : first + 1;
    for (uint32_t i = first; i < end; ++i) {
        aotc_status status = aotci_kernel_open(archive, i, NULL, loading->error);
        loading->kernel = aotci_kernel(archive, i);
        const bool has_scratch = status == AOTC_OK && aotci_scratch_is_used(loading->kernel);
        status = status == AOTC_OK ? use_driver(loading, has_scratch) : status;
        if (status == AOTC_OK && (!loading->is_lazy || has_scratch)) {
            status = relax(loading);
        }
        if (status == AOTC_OK && has_scratch) {
            aotci_scratch_open(archive, loading->context);
        }
        status = status == AOTC_OK ? aotci_load_kernel(loading) : status;
        aotci_frame_drop(archive);
        if (status != AOTC_OK) {
            return status;
        }
        running_count += aotci_dispatch_of(loading->context, i)->run_count != 0;
    }
    if (running_count == 0 && kernel_count != 0) {
        return aotci_refuse(wanted == NULL ? aotci_kernel(archive, 0) : wanted, loading->context,
                            loading->error);
    }
    return AOTC_OK;
}

/* Make a context current, unless it is known to be. */
static aotc_status enter(struct loading *loading, CUcontext context, bool is_current) {
    struct aotci_driver *driver = &loading->archive->driver;
    CUcontext current = context;
    CUresult result = is_current ? CUDA_SUCCESS : driver->context_get_current(&current);
    if (result == CUDA_SUCCESS && current != context) {
        const aotc_status status = aotci_driver_use(driver, DRIVER_STACK, loading->error);
        if (status != AOTC_OK) {
            return status;
        }
        result = driver->context_push(context);
        loading->is_pushed = result == CUDA_SUCCESS;
    }
    return result == CUDA_SUCCESS ? AOTC_OK
                                  : aotci_load_failure(loading, result, "cuCtxPushCurrent");
}

/* Restore the thread's state after a load. */
static void leave(struct loading *loading) {
    const struct aotci_driver *driver = &loading->archive->driver;
    CUcontext popped = NULL;
    if (loading->is_relaxed) {
        (void)driver->exchange_capture_mode(&loading->mode);
    }
    if (loading->is_pushed) {
        (void)driver->context_pop(&popped);
    }
}

static aotc_status load_in_context(struct loading *loading, CUcontext context, bool is_retained,
                                   const struct aotc_kernel *wanted) {
    const struct aotci_driver *driver = &loading->archive->driver;
    aotc_status status = enter(loading, context, !is_retained);
    if (status != AOTC_OK) {
        return status;
    }
    status = find_context(loading, context);
    if (status == AOTC_OK) {
        if (is_retained && !loading->context->is_retained) {
            loading->context->is_retained = true;
        } else if (is_retained) {
            (void)driver->primary_release(loading->context->device);
        }
        status = loading->is_lazy || make_plans(loading->archive, loading->context)
                     ? load_kernels(loading, wanted)
                     : AOTCI_FAIL(loading->error, AOTC_ERROR_NOMEM, .file = loading->archive->name,
                                  .field = "context", .expected = "memory", .got = "none");
    }
    leave(loading);
    return status;
}

void aotci_spend(struct aotc_archive *archive, const struct aotci_content *image) {
    aotci_content_free(archive, &archive->spent); /* of another thread, during its launch */
    archive->spent = *image;
}

static void free_spent(struct aotc_archive *archive) {
    aotci_spend(archive, &(struct aotci_content){.owned = NULL});
}

/* Whether the driver may load code at a launch on a stream; captures forbid it. */
static bool may_load_by_launch(const struct loading *loading, CUstream stream) {
    struct aotci_driver *driver = &loading->archive->driver;
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    if ((uintptr_t)stream <= CU_STREAM_LEGACY) {
        return true; /* a stream that cannot be captured */
    }
    return aotci_driver_use(driver, DRIVER_CAPTURES, NULL) == AOTC_OK &&
           driver->stream_is_capturing != NULL &&
           driver->stream_is_capturing(stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_NONE;
}

aotc_status aotci_load_late(const struct aotc_kernel *kernel, const struct aotci_context *context,
                            struct aotci_candidate *candidate, CUstream stream,
                            enum aotci_late late, CUfunction *function, struct aotci_entered *entered,
                            aotc_error *error) {
    struct aotc_archive *archive = kernel->archive;
    struct loading loading = {
        .archive = archive,
        .kernel = aotci_kernel(archive, kernel->number),
        .context = (struct aotci_context *)(uintptr_t)context,
        .error = error,
    };
    *entered = (struct aotci_entered){.is_relaxed = false};
    (void)pthread_mutex_lock(&archive->lock);
    aotc_status status = enter(&loading, aotci_context_handle(context), aotci_is_of_current(stream));
    status = status == AOTC_OK ? relax(&loading) : status;
    if (status == AOTC_OK) {
        const bool is_whole = late == LOAD_WHOLE || !may_load_by_launch(&loading, stream);
        status = aotci_load_candidate(&loading, candidate, is_whole, function);
    }
    if (status == AOTC_OK && late == LOAD_BY_LAUNCH) { /* the launch, too, must leave captures valid */
        *entered = (struct aotci_entered){.is_relaxed = true, .mode = loading.mode};
        loading.is_relaxed = false;
    } else {
        free_spent(archive);
    }
    leave(&loading);
    (void)pthread_mutex_unlock(&archive->lock);
    return status;
}

void aotci_leave(const struct aotc_kernel *kernel, struct aotci_entered *entered) {
    struct aotc_archive *archive = kernel->archive;
    if (entered->is_relaxed) {
        (void)archive->driver.exchange_capture_mode(&entered->mode);
        entered->is_relaxed = false;
        (void)pthread_mutex_lock(&archive->lock);
        free_spent(archive);
        (void)pthread_mutex_unlock(&archive->lock);
    }
}

/* ---- loading -----------------------------------------------------------------------------------
 */

/* Find the driver and the data shared by all loads; once for an archive. `*current` is the current
 * context if it was requested, else NULL. */
static aotc_status prepare(struct aotc_archive *archive, CUcontext *current, aotc_error *error) {
    if (archive->has_driver) {
        if (!aotci_is_forked(archive)) {
            return AOTC_OK;
        }
        return AOTCI_FAIL(error, AOTC_ERROR_FORKED, .file = archive->name, .field = "process",
                          .expected = "the one that loaded the archive", .got = "a fork of it",
                          .remedy = "start children with exec (spawn) and open the archive there");
    }
    const aotc_status status =
        aotci_driver_open(&archive->driver, archive->driver_path, current, error);
    if (status == AOTC_OK) {
        aotci_mark_process(archive);
        archive->has_driver = true;
    }
    return status;
}

aotc_status aotci_use_driver(struct aotc_archive *archive, const struct aotci_driver *driver,
                             aotc_error *error) {
    aotc_status status = AOTC_OK;
    (void)pthread_mutex_lock(&archive->lock);
    if (!archive->has_driver) {
        archive->driver = *driver;
        atomic_store_explicit(&archive->stream_context, driver->stream_get_context,
                              memory_order_relaxed);
        aotci_mark_process(archive);
        archive->has_driver = true;
    } else if (archive->driver.launch != driver->launch) {
        status = AOTCI_FAIL(error, AOTC_ERROR_STATE, .file = archive->name, .field = "driver",
                            .expected = "an archive that is not loaded",
                            .got = "one that another driver has loaded");
    }
    (void)pthread_mutex_unlock(&archive->lock);
    return status;
}

aotc_status aotci_use_entries(const struct aotc_archive *archive, unsigned groups, aotc_error *error) {
    struct aotc_archive *changed = (struct aotc_archive *)(uintptr_t)archive;
    (void)pthread_mutex_lock(&changed->lock);
    const aotc_status status = aotci_driver_use(&changed->driver, groups, error);
    (void)pthread_mutex_unlock(&changed->lock);
    return status;
}

aotc_status aotci_choose_context(const struct loading *loading, int32_t ordinal, CUcontext *context,
                                 CUdevice *device) {
    struct aotci_driver *driver = &loading->archive->driver;
    if (ordinal == AOTC_CURRENT_CONTEXT) {
        const CUresult result =
            *context == NULL ? driver->context_get_current(context) : CUDA_SUCCESS;
        if (result != CUDA_SUCCESS) {
            return aotci_load_failure(loading, result, "cuCtxGetCurrent");
        }
        if (*context == NULL) {
            return AOTCI_FAIL(loading->error, AOTC_ERROR_STATE, .file = loading->archive->name,
                              .field = "context", .expected = "a current CUDA context",
                              .got = "none",
                              .remedy = "make one current, or name a device in aotc_load_options");
        }
        return AOTC_OK;
    }
    const aotc_status status = aotci_driver_use(driver, DRIVER_DEVICES, loading->error);
    if (status != AOTC_OK) {
        return status;
    }
    int device_count = 0;
    CUresult result = driver->device_get_count(&device_count);
    if (result == CUDA_SUCCESS && (ordinal < 0 || ordinal >= device_count)) {
        return AOTCI_FAIL(loading->error, AOTC_ERROR_ARG, .file = loading->archive->name,
                          .field = "device",
                          .expected = aotci_text("0 to %d", device_count - 1).chars,
                          .got = aotci_text("%" PRId32, ordinal).chars);
    }
    result = result == CUDA_SUCCESS ? driver->device_get(device, ordinal) : result;
    result = result == CUDA_SUCCESS ? driver->primary_retain(context, *device) : result;
    return result == CUDA_SUCCESS ? AOTC_OK
                                  : aotci_load_failure(loading, result, "cuDevicePrimaryCtxRetain");
}

static aotc_status load_locked(struct aotc_archive *archive, const aotc_load_options *options,
                               const struct aotc_kernel *wanted, aotc_error *error) {
    struct loading loading = {
        .archive = archive, .error = error, .is_lazy = (options->flags & AOTC_LOAD_LAZY) != 0};
    CUcontext context = NULL;
    CUdevice device = 0;
    const bool is_primary = options->device != AOTC_CURRENT_CONTEXT;
    aotc_status status = prepare(archive, &context, error);
    if (status == AOTC_OK && !loading.is_lazy) {
        status = aotci_driver_use(&archive->driver, DRIVER_ALL, error);
        atomic_store_explicit(&archive->stream_context, archive->driver.stream_get_context,
                              memory_order_relaxed);
    }
    if (status == AOTC_OK) {
        status = aotci_choose_context(&loading, options->device, &context, &device);
    }
    if (status != AOTC_OK) {
        return status;
    }
    status = load_in_context(&loading, context, is_primary, wanted);
    if (is_primary && loading.context == NULL) {
        (void)archive->driver.primary_release(device); /* no entry took over the reference */
    }
    return status;
}

aotc_status aotc_load(aotc_archive *archive, const aotc_load_options *given, aotc_error *error) {
    const aotc_load_options defaults = AOTC_LOAD_OPTIONS_INIT;
    const aotc_load_options *options = given == NULL ? &defaults : given;
    const struct aotc_kernel *wanted = NULL;
    if (archive == NULL || !aotci_is_struct(options, options->struct_size, sizeof *options) ||
        (options->flags & ~(uint32_t)AOTC_LOAD_LAZY) != 0 || options->reserved != 0) {
        return AOTCI_FAIL(error, AOTC_ERROR_ARG, .field = "aotc_load",
                          .expected = "an archive, AOTC_LOAD_OPTIONS_INIT and known flags",
                          .got = "something else");
    }
    if (options->kernel != NULL) {
        const aotc_status status = aotc_kernel_get(archive, options->kernel, &wanted, error);
        if (status != AOTC_OK) {
            return status;
        }
    }
    (void)pthread_mutex_lock(&archive->lock);
    const aotc_status status = load_locked(archive, options, wanted, error);
    (void)pthread_mutex_unlock(&archive->lock);
    return status;
}
