/* load.c: make kernels ready to launch: libraries, attributes, dispatch tables.
 *
 * A library is loaded once for a blob, whatever the number of GPUs; attributes are set for each
 * device; the code is forced into each context, because the driver would otherwise load it at the
 * first launch, which a stream capture forbids. A kernel's table is built whole and then published,
 * so a load that fails half-way leaves what was there before.
 */
#define _GNU_SOURCE /* MADV_WIPEONFORK */
#include "load.h"

#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cubin.h"

enum { DEFAULT_SHARED_BYTES = 48 << 10, PORTABLE_CLUSTER = 8 };

/* ---- forks ----------------------------------------------------------------------------------- */

/* A page that the kernel clears in a forked child tells the two apart for the price of one read; where
 * there is no such page, the process id does, for the price of a system call. */
static void mark_process(struct aotc_archive *archive) {
    archive->process = (long)getpid();
#ifdef MADV_WIPEONFORK
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return;
    }
    if (madvise(page, page_bytes, MADV_WIPEONFORK) != 0) {
        (void)munmap(page, page_bytes);
        return;
    }
    *(volatile uint32_t *)page = 1;
    archive->fork_page = page;
#endif
}

static void unmark_process(struct aotc_archive *archive) {
    if (archive->fork_page != NULL) {
        (void)munmap((void *)(uintptr_t)archive->fork_page, (size_t)sysconf(_SC_PAGESIZE));
        archive->fork_page = NULL;
    }
}

bool aotci_is_forked(const struct aotc_archive *archive) {
    return archive->fork_page != NULL ? *archive->fork_page == 0 : archive->process != (long)getpid();
}

/* ---- one variant ------------------------------------------------------------------------------ */

struct loading {
    struct aotc_archive *archive;
    const struct aotc_kernel *kernel;
    struct aotci_context *context;
    aotc_error *error;
};

static aotc_status cuda_failure(const struct loading *loading, CUresult result, const char *call,
                                const char *remedy) {
    const struct aotci_detail detail = {
        .file = loading->archive->name,
        .kernel = loading->kernel == NULL ? NULL : loading->kernel->name,
        .field = call,
        .remedy = remedy,
    };
    return aotci_driver_fail(&loading->archive->driver, result, loading->error, detail);
}

/* Check a decoded cubin and hand it to the driver. */
static aotc_status load_image(const struct loading *loading, const struct variant_record *variant,
                              const unsigned char *image, CUlibrary *library) {
    struct aotc_archive *archive = loading->archive;
    const struct target_record *target = aotci_target(archive, variant->target);
    const char *wrong = aotci_cubin_check(image, aotci_blob(archive, variant->cubin)->raw_bytes,
                                        10u * target->major + target->minor);
    if (wrong != NULL) {
        return AOTCI_FAIL(loading->error, AOTC_ERROR_FORMAT, .file = archive->name,
                          .kernel = loading->kernel->name,
                          .field = aotci_text("blob %" PRIu32, variant->cubin).chars,
                          .expected = aotci_text("a cubin for %s", aotci_string(archive, target->name)).chars,
                          .got = wrong, .remedy = "the archive is damaged or its writer is wrong: build it again");
    }
    const char *symbol = aotci_string(archive, variant->symbol);
    if (!aotci_cubin_has_function(image, symbol)) {
        return AOTCI_FAIL(loading->error, AOTC_ERROR_NOT_FOUND, .file = archive->name,
                          .kernel = loading->kernel->name,
                          .field = aotci_text("blob %" PRIu32, variant->cubin).chars,
                          .expected = aotci_text("the function %s", symbol).chars, .got = "a cubin without it",
                          .remedy = "the archive is damaged or its writer is wrong: build it again");
    }
    const CUresult result = archive->driver.library_load(library, image, NULL, NULL, 0, NULL, NULL, 0);
    return result == CUDA_SUCCESS ? AOTC_OK : cuda_failure(loading, result, "cuLibraryLoadData", NULL);
}

static aotc_status load_library(const struct loading *loading, const struct variant_record *variant) {
    struct aotc_archive *archive = loading->archive;
    CUlibrary *library = &archive->libraries[variant->cubin];
    unsigned char *image = NULL;
    if (*library != NULL) {
        return AOTC_OK;
    }
    aotc_status status = aotci_blob_decode(archive, variant->cubin, &image, loading->error);
    if (status != AOTC_OK) {
        return status;
    }
    status = load_image(loading, variant, image, library);
    if (status != AOTC_OK) {
        *library = NULL;
    }
    aotci_deallocate(&archive->allocator, image, aotci_blob(archive, variant->cubin)->raw_bytes, 1);
    return status;
}

/* Compare the index's parameters with what the driver says of the compiled function. */
static aotc_status check_params(const struct loading *loading, const struct variant_record *variant,
                                CUkernel kernel) {
    struct aotc_archive *archive = loading->archive;
    if (archive->driver.kernel_get_param_info == NULL) {
        return AOTC_OK;
    }
    uint32_t i = 0;
    size_t offset = 0;
    size_t size_bytes = 0;
    bool equal = true;
    for (; equal && i < variant->cubin_param_count; ++i) {
        const struct cubin_param_record *param = aotci_cubin_param(archive, variant->first_cubin_param + i);
        equal = archive->driver.kernel_get_param_info(kernel, i, &offset, &size_bytes) == CUDA_SUCCESS &&
                offset == param->offset && size_bytes == param->size;
    }
    if (equal && archive->driver.kernel_get_param_info(kernel, i, &offset, &size_bytes) != CUDA_SUCCESS) {
        return AOTC_OK;
    }
    return AOTCI_FAIL(loading->error, AOTC_ERROR_FORMAT, .file = archive->name, .kernel = loading->kernel->name,
                      .field = aotci_text("function %s", aotci_string(archive, variant->symbol)).chars,
                      .expected = "the parameters that the index lists",
                      .got = aotci_text("a difference at number %" PRIu32, equal ? i : i - 1).chars,
                      .remedy = "the archive is damaged or its writer is wrong: build it again");
}

static aotc_status find_kernel(const struct loading *loading, uint32_t index) {
    struct aotc_archive *archive = loading->archive;
    const struct variant_record *variant = aotci_variant(archive, index);
    CUkernel kernel = NULL;
    if (archive->cuda_kernels[index] != NULL) {
        return AOTC_OK;
    }
    aotc_status status = load_library(loading, variant);
    if (status != AOTC_OK) {
        return status;
    }
    const CUresult result = archive->driver.library_get_kernel(&kernel, archive->libraries[variant->cubin],
                                                               aotci_string(archive, variant->symbol));
    if (result != CUDA_SUCCESS) {
        return cuda_failure(loading, result, "cuLibraryGetKernel", NULL);
    }
    status = check_params(loading, variant, kernel);
    if (status == AOTC_OK) {
        archive->cuda_kernels[index] = kernel;
    }
    return status;
}

static aotc_status set_attributes(const struct loading *loading, const struct variant_record *variant,
                                  CUkernel kernel) {
    const struct aotci_driver *driver = &loading->archive->driver;
    const CUdevice device = loading->context->device;
    CUresult result = CUDA_SUCCESS;
    if ((uint64_t)variant->dynamic_shared_bytes + variant->static_shared_bytes > DEFAULT_SHARED_BYTES) {
        result = driver->kernel_set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                              (int)variant->dynamic_shared_bytes, kernel, device);
    }
    if (result == CUDA_SUCCESS &&
        variant->cluster[0] * variant->cluster[1] * variant->cluster[2] > PORTABLE_CLUSTER) {
        result = driver->kernel_set_attribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, kernel,
                                              device);
    }
    return result == CUDA_SUCCESS ? AOTC_OK : cuda_failure(loading, result, "cuKernelSetAttribute", NULL);
}

/* Load the code into the current context. */
static aotc_status force_load(const struct loading *loading, CUkernel kernel) {
    const struct aotci_driver *driver = &loading->archive->driver;
    CUfunction function = NULL;
    CUresult result = driver->kernel_get_function(&function, kernel);
    if (result != CUDA_SUCCESS) {
        return cuda_failure(loading, result, "cuKernelGetFunction", NULL);
    }
    int registers = 0;
    if (driver->function_load != NULL) {
        result = driver->function_load(function);
    } else {
        /* Before 12.4 the cheapest question that only loaded code can answer. */
        result = driver->function_get_attribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
    }
    return result == CUDA_SUCCESS ? AOTC_OK : cuda_failure(loading, result, "cuFuncLoad", NULL);
}

static aotc_status load_variant(const struct loading *loading, uint32_t index) {
    const struct variant_record *variant = aotci_variant(loading->archive, index);
    aotc_status status = find_kernel(loading, index);
    if (status == AOTC_OK) {
        status = set_attributes(loading, variant, loading->archive->cuda_kernels[index]);
    }
    if (status == AOTC_OK) {
        status = force_load(loading, loading->archive->cuda_kernels[index]);
    }
    return status;
}

/* ---- which variants --------------------------------------------------------------------------- */

/* How much better a target is for a compute capability than another: 0 if it does not run there. `a`
 * before `f` before plain, then the greater minor. */
static unsigned target_rank(const struct target_record *target, int major, int minor) {
    static const unsigned char order[] = {[FEATURE_PLAIN] = 1, [FEATURE_FAMILY] = 2, [FEATURE_ARCH] = 3};
    const bool runs = target->feature == FEATURE_ARCH ? target->minor == minor : target->minor <= minor;
    return target->major == major && runs ? order[target->feature] * 16u + target->minor : 0;
}

static bool fits_shared(const struct variant_record *variant, const struct aotci_context *context) {
    return (uint64_t)variant->dynamic_shared_bytes + variant->static_shared_bytes <= context->shared_bytes;
}

/* The variants of one target, and how far they are taken up into runs. */
struct span {
    unsigned rank;
    uint32_t next;
    uint32_t end;
};

/* Find the spans of a kernel's variants for the targets that run in a context, best first. A target is
 * one span because variants are in the order of targets. */
static unsigned find_spans(const struct loading *loading, struct span spans[LIMIT_TARGETS]) {
    const struct kernel_record *record = loading->kernel->record;
    const struct aotci_context *context = loading->context;
    unsigned count = 0;
    uint32_t start = record->first_variant;
    const uint32_t last = record->first_variant + record->variant_count;
    while (start < last) {
        const uint32_t target = aotci_variant(loading->archive, start)->target;
        uint32_t end = start;
        while (end < last && aotci_variant(loading->archive, end)->target == target) {
            ++end;
        }
        const unsigned rank =
            target_rank(aotci_target(loading->archive, target), context->major, context->minor);
        if (rank != 0) {
            unsigned place = count++;
            for (; place > 0 && spans[place - 1].rank < rank; --place) {
                spans[place] = spans[place - 1];
            }
            spans[place] = (struct span){rank, start, end};
        }
        start = end;
    }
    return count;
}

/* The smallest combination that the spans have left; false if none has any. */
static bool next_combination(const struct aotc_archive *archive, const struct span *spans, unsigned count,
                             uint32_t *combination) {
    bool found = false;
    for (unsigned i = 0; i < count; ++i) {
        if (spans[i].next < spans[i].end) {
            const uint32_t candidate = aotci_variant(archive, spans[i].next)->combination;
            *combination = found && *combination < candidate ? *combination : candidate;
            found = true;
        }
    }
    return found;
}

/* ---- dispatch tables --------------------------------------------------------------------------- */

static void free_dispatch(const struct aotc_archive *archive, const struct aotc_kernel *kernel,
                          struct aotci_dispatch *dispatch) {
    if (dispatch != NULL) {
        const uint32_t capacity = kernel->record->variant_count;
        aotci_deallocate(&archive->allocator, dispatch->runs, capacity, sizeof *dispatch->runs);
        aotci_deallocate(&archive->allocator, dispatch->candidates, capacity, sizeof *dispatch->candidates);
        aotci_deallocate(&archive->allocator, dispatch, 1, sizeof *dispatch);
    }
}

/* Merge the spans into runs: for each combination first the best target's variants, in their order. */
static aotc_status fill_dispatch(const struct loading *loading, struct span *spans, unsigned span_count,
                                 struct aotci_dispatch *dispatch) {
    const struct aotc_archive *archive = loading->archive;
    uint32_t combination = 0;
    while (next_combination(archive, spans, span_count, &combination)) {
        const uint32_t first = dispatch->candidate_count;
        for (unsigned i = 0; i < span_count; ++i) {
            for (; spans[i].next < spans[i].end &&
                   aotci_variant(archive, spans[i].next)->combination == combination;
                 ++spans[i].next) {
                const struct variant_record *variant = aotci_variant(archive, spans[i].next);
                if (!fits_shared(variant, loading->context)) {
                    continue;
                }
                const aotc_status status = load_variant(loading, spans[i].next);
                if (status != AOTC_OK) {
                    return status;
                }
                dispatch->candidates[dispatch->candidate_count++] = (struct aotci_candidate){
                    .guards = variant->guards,
                    .function = (CUfunction)archive->cuda_kernels[spans[i].next],
                    .variant = variant,
                };
            }
        }
        if (dispatch->candidate_count != first) {
            dispatch->runs[dispatch->run_count++] =
                (struct aotci_run){combination, first, dispatch->candidate_count - first};
        }
    }
    return AOTC_OK;
}

/* Load a kernel into a context unless it is there. A kernel that cannot run there gets an empty table. */
static aotc_status load_kernel(const struct loading *loading) {
    struct aotc_archive *archive = loading->archive;
    const struct aotc_kernel *kernel = loading->kernel;
    _Atomic(struct aotci_dispatch *) *place = &loading->context->dispatches[kernel->index];
    if (atomic_load_explicit(place, memory_order_relaxed) != NULL) {
        return AOTC_OK;
    }
    const uint32_t capacity = kernel->record->variant_count;
    struct aotci_dispatch *dispatch = aotci_allocate(&archive->allocator, 1, sizeof *dispatch);
    if (dispatch != NULL) {
        dispatch->runs = aotci_allocate(&archive->allocator, capacity, sizeof *dispatch->runs);
        dispatch->candidates = aotci_allocate(&archive->allocator, capacity, sizeof *dispatch->candidates);
    }
    if (dispatch == NULL || dispatch->runs == NULL || dispatch->candidates == NULL) {
        free_dispatch(archive, kernel, dispatch);
        return AOTCI_FAIL(loading->error, AOTC_ERROR_NOMEM, .file = archive->name, .kernel = kernel->name,
                          .field = "dispatch table", .expected = "memory", .got = "none");
    }
    struct span spans[LIMIT_TARGETS];
    const unsigned span_count = find_spans(loading, spans);
    const aotc_status status = fill_dispatch(loading, spans, span_count, dispatch);
    if (status != AOTC_OK) {
        free_dispatch(archive, kernel, dispatch);
        return status;
    }
    atomic_store_explicit(place, dispatch, memory_order_release);
    return AOTC_OK;
}

aotc_status aotci_refuse(const struct aotc_kernel *kernel, const struct aotci_context *context,
                         aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    const struct kernel_record *record = kernel->record;
    struct aotci_text targets = {""};
    uint64_t least_bytes = UINT64_MAX;
    uint32_t before = UINT32_MAX;
    for (uint32_t i = record->first_variant; i < record->first_variant + record->variant_count; ++i) {
        const struct variant_record *variant = aotci_variant(archive, i);
        const struct target_record *target = aotci_target(archive, variant->target);
        if (variant->target != before) {
            aotci_text_add(&targets, "%s%s", before == UINT32_MAX ? "" : ", ", aotci_string(archive, target->name));
            before = variant->target;
        }
        const uint64_t bytes = (uint64_t)variant->dynamic_shared_bytes + variant->static_shared_bytes;
        if (target_rank(target, context->major, context->minor) != 0 && bytes < least_bytes) {
            least_bytes = bytes;
        }
    }
    if (least_bytes != UINT64_MAX && least_bytes > context->shared_bytes) {
        return AOTCI_FAIL(error, AOTC_ERROR_ARG, .file = archive->name, .kernel = kernel->name,
                          .field = "shared memory",
                          .expected = aotci_text("at most %" PRIu32 " bytes, as this GPU has",
                                                 context->shared_bytes).chars,
                          .got = aotci_text("%" PRIu64 " bytes in the smallest variant", least_bytes).chars,
                          .remedy = "build a config that uses less");
    }
    return AOTCI_FAIL(error, AOTC_ERROR_ARCH, .file = archive->name, .kernel = kernel->name, .field = "target",
                      .expected = aotci_text("a GPU for %s", targets.chars).chars,
                      .got = aotci_text("compute capability %d.%d", context->major, context->minor).chars,
                      .remedy = aotci_text("build the archive for sm_%d%d", context->major, context->minor).chars);
}

/* ---- contexts ---------------------------------------------------------------------------------- */

/* Make the table of the current context, or find it. */
static aotc_status find_context(struct loading *loading, CUcontext current) {
    struct aotc_archive *archive = loading->archive;
    const struct aotci_driver *driver = &archive->driver;
    struct aotci_context *head = atomic_load_explicit(&archive->contexts, memory_order_relaxed);
    for (struct aotci_context *context = head; context != NULL; context = context->next) {
        if (context->context == current) {
            loading->context = context;
            return AOTC_OK;
        }
    }
    const size_t bytes =
        sizeof *head + aotci_count(archive, SECTION_KERNELS) * sizeof(_Atomic(struct aotci_dispatch *));
    struct aotci_context *context = aotci_allocate(&archive->allocator, bytes, 1);
    if (context == NULL) {
        return AOTCI_FAIL(loading->error, AOTC_ERROR_NOMEM, .file = archive->name, .field = "context",
                          .expected = "memory", .got = "none");
    }
    int shared_bytes = 0;
    context->context = current;
    context->next = head;
    CUresult result = driver->context_get_device(&context->device);
    const struct {
        int *value;
        int attribute;
    } questions[] = {
        {&context->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
        {&context->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
        {&shared_bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
    };
    for (size_t i = 0; result == CUDA_SUCCESS && i < sizeof questions / sizeof *questions; ++i) {
        result = driver->device_get_attribute(questions[i].value, questions[i].attribute, context->device);
    }
    if (result != CUDA_SUCCESS) {
        aotci_deallocate(&archive->allocator, context, bytes, 1);
        return cuda_failure(loading, result, "cuDeviceGetAttribute", NULL);
    }
    context->shared_bytes = (uint32_t)shared_bytes;
    loading->context = context;
    atomic_store_explicit(&archive->contexts, context, memory_order_release);
    return AOTC_OK;
}

/* Load one kernel (an error if it cannot run here), or all (an error if none can). */
static aotc_status load_kernels(struct loading *loading, const struct aotc_kernel *wanted) {
    struct aotc_archive *archive = loading->archive;
    const uint32_t kernel_count = aotci_count(archive, SECTION_KERNELS);
    uint32_t running_count = 0;
    for (uint32_t i = 0; i < kernel_count; ++i) {
        loading->kernel = &archive->kernels[i];
        if (wanted != NULL && wanted != loading->kernel) {
            continue;
        }
        const aotc_status status = load_kernel(loading);
        if (status != AOTC_OK) {
            return status;
        }
        const struct aotci_dispatch *dispatch =
            atomic_load_explicit(&loading->context->dispatches[i], memory_order_relaxed);
        running_count += dispatch->run_count != 0;
    }
    if (running_count == 0 && kernel_count != 0) {
        return aotci_refuse(wanted == NULL ? &archive->kernels[0] : wanted, loading->context, loading->error);
    }
    return AOTC_OK;
}

/* Load into a context, which is made current for the time, in a capture mode in which a stream that
 * somebody captures stays valid. */
static aotc_status load_in_context(struct loading *loading, CUcontext context, bool is_retained,
                                   const struct aotc_kernel *wanted) {
    const struct aotci_driver *driver = &loading->archive->driver;
    CUcontext popped = NULL;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result = driver->context_push(context);
    if (result != CUDA_SUCCESS) {
        return cuda_failure(loading, result, "cuCtxPushCurrent", NULL);
    }
    result = driver->exchange_capture_mode(&mode);
    aotc_status status = result == CUDA_SUCCESS
                             ? find_context(loading, context)
                             : cuda_failure(loading, result, "cuThreadExchangeStreamCaptureMode", NULL);
    if (status == AOTC_OK) {
        if (is_retained && !loading->context->is_retained) {
            loading->context->is_retained = true;
        } else if (is_retained) {
            (void)driver->primary_release(loading->context->device);
        }
        status = load_kernels(loading, wanted);
    }
    if (result == CUDA_SUCCESS) {
        (void)driver->exchange_capture_mode(&mode);
    }
    (void)driver->context_pop(&popped);
    return status;
}

/* ---- loading ----------------------------------------------------------------------------------- */

/* Find the driver and get what all loads share; once for an archive. */
static aotc_status prepare(struct aotc_archive *archive, aotc_error *error) {
    const uint32_t blob_count = aotci_count(archive, SECTION_BLOBS);
    const uint32_t variant_count = aotci_count(archive, SECTION_VARIANTS);
    if (archive->has_driver) {
        if (!aotci_is_forked(archive)) {
            return AOTC_OK;
        }
        return AOTCI_FAIL(error, AOTC_ERROR_FORKED, .file = archive->name, .field = "process",
                          .expected = "the one that loaded the archive", .got = "a fork of it",
                          .remedy = "start children with exec (spawn) and open the archive there");
    }
    if (archive->libraries == NULL) {
        archive->libraries = aotci_allocate(&archive->allocator, blob_count, sizeof *archive->libraries);
    }
    if (archive->cuda_kernels == NULL) {
        archive->cuda_kernels = aotci_allocate(&archive->allocator, variant_count, sizeof *archive->cuda_kernels);
    }
    if (archive->libraries == NULL || archive->cuda_kernels == NULL) {
        return AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = archive->name, .field = "loading",
                          .expected = "memory", .got = "none");
    }
    const aotc_status status = aotci_driver_open(&archive->driver, archive->driver_path, error);
    if (status == AOTC_OK) {
        mark_process(archive);
        archive->has_driver = true;
    }
    return status;
}

/* The context that a load is for: the current one, or a device's primary one, which is then retained. */
static aotc_status choose_context(const struct loading *loading, int32_t ordinal, CUcontext *context,
                                  CUdevice *device) {
    const struct aotci_driver *driver = &loading->archive->driver;
    if (ordinal == AOTC_CURRENT_CONTEXT) {
        const CUresult result = driver->context_get_current(context);
        if (result != CUDA_SUCCESS) {
            return cuda_failure(loading, result, "cuCtxGetCurrent", NULL);
        }
        if (*context == NULL) {
            return AOTCI_FAIL(loading->error, AOTC_ERROR_STATE, .file = loading->archive->name,
                              .field = "context", .expected = "a current CUDA context", .got = "none",
                              .remedy = "make one current, or name a device in aotc_load_options");
        }
        return AOTC_OK;
    }
    int device_count = 0;
    CUresult result = driver->device_get_count(&device_count);
    if (result == CUDA_SUCCESS && (ordinal < 0 || ordinal >= device_count)) {
        return AOTCI_FAIL(loading->error, AOTC_ERROR_ARG, .file = loading->archive->name, .field = "device",
                          .expected = aotci_text("0 to %d", device_count - 1).chars,
                          .got = aotci_text("%" PRId32, ordinal).chars);
    }
    result = result == CUDA_SUCCESS ? driver->device_get(device, ordinal) : result;
    result = result == CUDA_SUCCESS ? driver->primary_retain(context, *device) : result;
    return result == CUDA_SUCCESS ? AOTC_OK : cuda_failure(loading, result, "cuDevicePrimaryCtxRetain", NULL);
}

static aotc_status load_locked(struct aotc_archive *archive, const aotc_load_options *options,
                               const struct aotc_kernel *wanted, aotc_error *error) {
    struct loading loading = {.archive = archive, .error = error};
    CUcontext context = NULL;
    CUdevice device = 0;
    const bool is_primary = options->device != AOTC_CURRENT_CONTEXT;
    aotc_status status = prepare(archive, error);
    if (status == AOTC_OK) {
        status = choose_context(&loading, options->device, &context, &device);
    }
    if (status != AOTC_OK) {
        return status;
    }
    status = load_in_context(&loading, context, is_primary, wanted);
    if (is_primary && loading.context == NULL) {
        (void)archive->driver.primary_release(device); /* nobody took the reference over */
    }
    return status;
}

aotc_status aotc_load(aotc_archive *archive, const aotc_load_options *given, aotc_error *error) {
    const aotc_load_options defaults = AOTC_LOAD_OPTIONS_INIT;
    const aotc_load_options *options = given == NULL ? &defaults : given;
    const struct aotc_kernel *wanted = NULL;
    if (archive == NULL || !aotci_is_struct(options, options->struct_size, sizeof *options)) {
        return AOTCI_FAIL(error, AOTC_ERROR_ARG, .field = "aotc_load",
                          .expected = "an archive and AOTC_LOAD_OPTIONS_INIT", .got = "something else");
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

void aotci_unload(struct aotc_archive *archive) {
    const bool may_call = archive->has_driver && !aotci_is_forked(archive);
    const uint32_t blob_count = aotci_count(archive, SECTION_BLOBS);
    const uint32_t kernel_count = aotci_count(archive, SECTION_KERNELS);
    /* Errors mean that the driver has let go of it already: at exit, or with a destroyed context. */
    for (uint32_t i = 0; may_call && i < blob_count; ++i) {
        if (archive->libraries[i] != NULL) {
            (void)archive->driver.library_unload(archive->libraries[i]);
        }
    }
    struct aotci_context *context = atomic_load_explicit(&archive->contexts, memory_order_relaxed);
    while (context != NULL) {
        struct aotci_context *next = context->next;
        for (uint32_t i = 0; i < kernel_count; ++i) {
            free_dispatch(archive, &archive->kernels[i],
                          atomic_load_explicit(&context->dispatches[i], memory_order_relaxed));
        }
        if (may_call && context->is_retained) {
            (void)archive->driver.primary_release(context->device);
        }
        aotci_deallocate(&archive->allocator, context,
                         sizeof *context + kernel_count * sizeof(_Atomic(struct aotci_dispatch *)), 1);
        context = next;
    }
    if (archive->libraries != NULL) {
        aotci_deallocate(&archive->allocator, archive->libraries, blob_count, sizeof *archive->libraries);
    }
    aotci_deallocate(&archive->allocator, archive->cuda_kernels, aotci_count(archive, SECTION_VARIANTS),
                     sizeof *archive->cuda_kernels);
    unmark_process(archive);
}
