/* dispatch.c: load a kernel's variants and lay out the table that launches search.
 *
 * A variant is loaded in four steps: its blob becomes a library (once for an archive, whatever the
 * number of GPUs), the function is found and compared with the index, attributes are set for the
 * device, and the code is forced into the context, because the driver would otherwise load it at
 * the first launch, which a stream capture forbids. The table is built whole and then published; of a
 * lazy load before the variants are, each of which is published when its first launch loads it.
 */
#include "dispatch.h"

#include <inttypes.h>
#include <string.h>

#include "cubin.h"
#include "guard.h"

/* What a CTA may use without an attribute: 48 KiB, of which some GPUs keep one for themselves. */
enum { DEFAULT_SHARED_BYTES = 47 << 10, PORTABLE_CLUSTER = 8 };

static uint64_t shared_bytes_of(const struct variant_record *variant) {
    return (uint64_t)variant->dynamic_shared_bytes + variant->static_shared_bytes;
}

static int shared_bytes_in(const struct aotci_context *context) {
    return atomic_load_explicit(&context->shared_bytes, memory_order_relaxed);
}

static bool is_large(const struct variant_record *variant) {
    return shared_bytes_of(variant) > DEFAULT_SHARED_BYTES;
}

static const char damaged[] = "the archive is damaged or its writer is wrong: build it again";

aotc_status aotci_load_failure(const struct loading *loading, CUresult result, const char *call) {
    const struct aotci_detail detail = {
        .file = loading->archive->name,
        .kernel = loading->kernel == NULL ? NULL : loading->kernel->name,
        .field = call,
    };
    return aotci_driver_fail(&loading->archive->driver, result, loading->error, detail);
}

/* ---- one variant ------------------------------------------------------------------------------
 */

static aotc_status other_params(const struct loading *loading, const struct variant_record *variant,
                                uint32_t number) {
    const char *symbol = aotci_string(&loading->kernel->tables, variant->symbol);
    return AOTCI_FAIL(loading->error, AOTC_ERROR_FORMAT, .file = loading->archive->name,
                      .kernel = loading->kernel->name,
                      .field = aotci_text("function %s", symbol).chars,
                      .expected = "the parameters that the index lists",
                      .got = aotci_text("a difference at number %" PRIu32, number).chars,
                      .remedy = damaged);
}

/* Compare the index's parameters with those that the cubin lists, if it does. */
static aotc_status check_listed_params(const struct loading *loading, uint32_t index,
                                       const struct aotci_cubin_function *function) {
    const struct aotc_kernel *kernel = loading->kernel;
    const struct variant_record *variant = aotci_variant(&kernel->tables, index);
    const struct aotci_table *table = &kernel->tables.sections[SECTION_CUBIN_PARAMS];
    uint32_t wrong = 0;
    switch (aotci_cubin_check_params(
        function, table->records + (size_t)variant->first_cubin_param * table->stride, table->stride,
        variant->cubin_param_count, &wrong)) {
    case PARAMS_NOT_LISTED:
        return AOTC_OK;
    case PARAMS_EQUAL:
        kernel->has_params[index] = true;
        return AOTC_OK;
    default:
        return other_params(loading, variant, wrong);
    }
}

/* Compare a checked cubin with what the index says of all variants that are in it: it is decoded
 * once. */
static aotc_status check_functions(const struct loading *loading, uint32_t cubin,
                                   const unsigned char *image) {
    const struct aotc_archive *archive = loading->archive;
    const struct aotc_kernel *kernel = loading->kernel;
    for (uint32_t i = 0; i < aotci_count(&kernel->tables, SECTION_VARIANTS); ++i) {
        const struct variant_record *variant = aotci_variant(&kernel->tables, i);
        if (variant->cubin != cubin) {
            continue;
        }
        const char *symbol = aotci_string(&kernel->tables, variant->symbol);
        const struct aotci_cubin_function function = aotci_cubin_find(image, symbol);
        if (!function.exists) {
            return AOTCI_FAIL(loading->error, AOTC_ERROR_NOT_FOUND, .file = archive->name,
                              .kernel = kernel->name,
                              .field = aotci_text("blob %" PRIu32, cubin).chars,
                              .expected = aotci_text("the function %s", symbol).chars,
                              .got = "a cubin without it", .remedy = damaged);
        }
        if (function.static_shared_bytes != variant->static_shared_bytes) {
            return AOTCI_FAIL(
                loading->error, AOTC_ERROR_FORMAT, .file = archive->name, .kernel = kernel->name,
                .field = aotci_text("blob %" PRIu32, cubin).chars,
                .expected = aotci_text("%" PRIu32
                                       " bytes of static shared memory in %s, as the index says",
                                       variant->static_shared_bytes, symbol)
                                .chars,
                .got = aotci_text("%" PRIu64, function.static_shared_bytes).chars, .remedy = damaged);
        }
        const aotc_status status = check_listed_params(loading, i, &function);
        if (status != AOTC_OK) {
            return status;
        }
    }
    return AOTC_OK;
}

/* Check a decoded cubin and hand it to the driver. */
static aotc_status load_image(const struct loading *loading, const struct variant_record *variant,
                              const unsigned char *image, CUlibrary *library) {
    struct aotc_archive *archive = loading->archive;
    const struct target_record *target = aotci_target(&loading->kernel->tables, variant->target);
    const char *wrong = aotci_cubin_check(image, aotci_blob(&loading->kernel->tables, variant->cubin)->raw_bytes,
                                          10u * target->major + target->minor);
    if (wrong != NULL) {
        return AOTCI_FAIL(
            loading->error, AOTC_ERROR_FORMAT, .file = archive->name,
            .kernel = loading->kernel->name,
            .field = aotci_text("blob %" PRIu32, variant->cubin).chars,
            .expected = aotci_text("a cubin for %s", aotci_string(&loading->kernel->tables, target->name)).chars,
            .got = wrong,
            .remedy = damaged);
    }
    const aotc_status status = check_functions(loading, variant->cubin, image);
    if (status != AOTC_OK) {
        return status;
    }
    const CUresult result =
        archive->driver.library_load(library, image, NULL, NULL, 0, NULL, NULL, 0);
    return result == CUDA_SUCCESS ? AOTC_OK
                                  : aotci_load_failure(loading, result, "cuLibraryLoadData");
}

static aotc_status load_library(const struct loading *loading,
                                const struct variant_record *variant) {
    struct aotc_archive *archive = loading->archive;
    CUlibrary *library = &loading->kernel->libraries[variant->cubin];
    struct aotci_content image;
    if (*library != NULL) {
        return AOTC_OK;
    }
    aotc_status status = aotci_blob_decode(loading->kernel, variant->cubin, &image, loading->error);
    if (status != AOTC_OK) {
        return status;
    }
    status = load_image(loading, variant, image.bytes, library);
    if (status != AOTC_OK) {
        *library = NULL;
    }
    aotci_content_free(archive, &image);
    return status;
}

/* Compare the index's parameters with what the driver says of a function whose cubin does not list them. */
static aotc_status check_params(const struct loading *loading, uint32_t index, CUkernel kernel) {
    struct aotc_archive *archive = loading->archive;
    const struct variant_record *variant = aotci_variant(&loading->kernel->tables, index);
    uint32_t i = 0;
    size_t offset = 0;
    size_t size_bytes = 0;
    bool equal = true;
    if (loading->kernel->has_params[index]) {
        return AOTC_OK;
    }
    const aotc_status status = aotci_driver_use(&archive->driver, DRIVER_PARAMS, loading->error);
    if (status != AOTC_OK || archive->driver.kernel_get_param_info == NULL) {
        return status;
    }
    for (; equal && i < variant->cubin_param_count; ++i) {
        const struct cubin_param_record *param =
            aotci_cubin_param(&loading->kernel->tables, variant->first_cubin_param + i);
        equal = archive->driver.kernel_get_param_info(kernel, i, &offset, &size_bytes) ==
                    CUDA_SUCCESS &&
                offset == param->offset && size_bytes == param->size;
    }
    if (equal &&
        archive->driver.kernel_get_param_info(kernel, i, &offset, &size_bytes) != CUDA_SUCCESS) {
        return AOTC_OK;
    }
    return other_params(loading, variant, equal ? i : i - 1);
}

static aotc_status find_kernel(const struct loading *loading, uint32_t index) {
    struct aotc_archive *archive = loading->archive;
    const struct variant_record *variant = aotci_variant(&loading->kernel->tables, index);
    CUkernel kernel = NULL;
    if (loading->kernel->cuda_kernels[index] != NULL) {
        return AOTC_OK;
    }
    aotc_status status = load_library(loading, variant);
    if (status != AOTC_OK) {
        return status;
    }
    const CUresult result = archive->driver.library_get_kernel(
        &kernel, loading->kernel->libraries[variant->cubin], aotci_string(&loading->kernel->tables, variant->symbol));
    if (result != CUDA_SUCCESS) {
        return aotci_load_failure(loading, result, "cuLibraryGetKernel");
    }
    status = check_params(loading, index, kernel);
    if (status == AOTC_OK) {
        loading->kernel->cuda_kernels[index] = kernel;
    }
    return status;
}

static aotc_status set_attributes(const struct loading *loading,
                                  const struct variant_record *variant, CUkernel kernel) {
    struct aotci_driver *driver = &loading->archive->driver;
    const CUdevice device = loading->context->device;
    CUresult result = CUDA_SUCCESS;
    const bool is_wide =
        variant->cluster[0] * variant->cluster[1] * variant->cluster[2] > PORTABLE_CLUSTER;
    if (!is_large(variant) && !is_wide) {
        return AOTC_OK;
    }
    const aotc_status status = aotci_driver_use(driver, DRIVER_ATTRIBUTES, loading->error);
    if (status != AOTC_OK) {
        return status;
    }
    if (is_large(variant)) {
        result = driver->kernel_set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                              (int)variant->dynamic_shared_bytes, kernel, device);
    }
    if (result == CUDA_SUCCESS && is_wide) {
        result = driver->kernel_set_attribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                                              1, kernel, device);
    }
    return result == CUDA_SUCCESS ? AOTC_OK
                                  : aotci_load_failure(loading, result, "cuKernelSetAttribute");
}

/* Load the code into the current context. */
static aotc_status force_load(const struct loading *loading, CUkernel kernel) {
    struct aotci_driver *driver = &loading->archive->driver;
    CUfunction function = NULL;
    const aotc_status status = aotci_driver_use(driver, DRIVER_CODE, loading->error);
    if (status != AOTC_OK) {
        return status;
    }
    CUresult result = driver->kernel_get_function(&function, kernel);
    if (result != CUDA_SUCCESS) {
        return aotci_load_failure(loading, result, "cuKernelGetFunction");
    }
    int registers = 0;
    if (driver->function_load != NULL) {
        result = driver->function_load(function);
    } else {
        /* Before 12.4 the cheapest question that only loaded code can answer. */
        const aotc_status found = aotci_driver_use(driver, DRIVER_QUERIES, loading->error);
        if (found != AOTC_OK) {
            return found;
        }
        result = driver->function_get_attribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
    }
    return result == CUDA_SUCCESS ? AOTC_OK : aotci_load_failure(loading, result, "cuFuncLoad");
}

/* Without `is_whole`, leave it to the launch that follows to load the code. */
static aotc_status load_variant(const struct loading *loading, uint32_t index, bool is_whole) {
    const struct variant_record *variant = aotci_variant(&loading->kernel->tables, index);
    aotc_status status = find_kernel(loading, index);
    if (status == AOTC_OK) {
        status = set_attributes(loading, variant, loading->kernel->cuda_kernels[index]);
    }
    if (status == AOTC_OK && is_whole) {
        status = force_load(loading, loading->kernel->cuda_kernels[index]);
    }
    return status;
}

/* ---- which variants ---------------------------------------------------------------------------
 */

/* How much better a target is for a compute capability than another: 0 if it does not run there.
 * `a` before `f` before plain, then the greater minor. */
static unsigned target_rank(const struct target_record *target, int major, int minor) {
    static const unsigned char order[] = {
        [FEATURE_PLAIN] = 1, [FEATURE_FAMILY] = 2, [FEATURE_ARCH] = 3};
    const bool runs =
        target->feature == FEATURE_ARCH ? target->minor == minor : target->minor <= minor;
    return target->major == major && runs ? order[target->feature] * 16u + target->minor : 0;
}

/* Ask how much shared memory a CTA may use, if a variant uses more than every GPU has. */
static aotc_status ask_shared_bytes(const struct loading *loading) {
    const struct kernel_record *record = loading->kernel->record;
    for (uint32_t i = 0; i < record->variant_count; ++i) {
        if (is_large(aotci_variant(&loading->kernel->tables, record->first_variant + i))) {
            int shared_bytes = shared_bytes_in(loading->context);
            const aotc_status status = aotci_ask_device(
                loading, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &shared_bytes);
            atomic_store_explicit(&loading->context->shared_bytes, shared_bytes, memory_order_relaxed);
            return status;
        }
    }
    return AOTC_OK;
}

/* Whether a variant can be launched here. One that takes maps where another does not is nothing for
 * a driver that encodes none. */
static bool can_run(const struct loading *loading, const struct variant_record *variant) {
    const bool has_maps = variant->condition == 0 || variant->tensor_map_count == 0 ||
                          loading->archive->driver.tensor_map_encode != NULL;
    return has_maps && (!is_large(variant) ||
                        shared_bytes_of(variant) <= (uint64_t)shared_bytes_in(loading->context));
}

/* The variants of one target, and how far they are taken up into runs. */
struct span {
    unsigned rank;
    uint32_t next;
    uint32_t end;
};

/* Find the spans of a kernel's variants for the targets that run in a context, best first. A target
 * is one span because variants are in the order of targets. */
static unsigned find_spans(const struct loading *loading, struct span spans[LIMIT_TARGETS]) {
    const struct kernel_record *record = loading->kernel->record;
    const struct aotci_context *context = loading->context;
    unsigned count = 0;
    uint32_t start = record->first_variant;
    const uint32_t last = record->first_variant + record->variant_count;
    while (start < last) {
        const uint32_t target = aotci_variant(&loading->kernel->tables, start)->target;
        uint32_t end = start;
        while (end < last && aotci_variant(&loading->kernel->tables, end)->target == target) {
            ++end;
        }
        const unsigned rank =
            target_rank(aotci_target(&loading->kernel->tables, target), context->major, context->minor);
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
static bool next_combination(const struct aotc_kernel *kernel, const struct span *spans,
                             unsigned count, uint32_t *combination) {
    bool found = false;
    for (unsigned i = 0; i < count; ++i) {
        if (spans[i].next < spans[i].end) {
            const uint32_t candidate = aotci_variant(&kernel->tables, spans[i].next)->combination;
            *combination = found && *combination < candidate ? *combination : candidate;
            found = true;
        }
    }
    return found;
}

/* ---- dispatch tables ---------------------------------------------------------------------------
 */

void aotci_free_dispatch(const struct aotc_archive *archive, const struct aotc_kernel *kernel,
                         struct aotci_dispatch *dispatch) {
    if (dispatch != NULL) {
        const uint32_t capacity = kernel->record->variant_count;
        aotci_config_index_free(&dispatch->configs, &archive->allocator);
        aotci_deallocate(&archive->allocator, dispatch->runs, capacity, sizeof *dispatch->runs);
        aotci_deallocate(&archive->allocator, dispatch->candidates, capacity,
                         sizeof *dispatch->candidates);
        aotci_deallocate(&archive->allocator, dispatch, 1, sizeof *dispatch);
    }
}

/* Merge the spans into runs: for each combination first the best target's variants, in their order.
 */
static void fill_dispatch(const struct loading *loading, struct span *spans, unsigned span_count,
                          struct aotci_dispatch *dispatch) {
    const struct aotc_kernel *kernel = loading->kernel;
    uint32_t combination = 0;
    while (next_combination(kernel, spans, span_count, &combination)) {
        const uint32_t first = dispatch->candidate_count;
        for (unsigned i = 0; i < span_count; ++i) {
            for (; spans[i].next < spans[i].end &&
                   aotci_variant(&kernel->tables, spans[i].next)->combination == combination;
                 ++spans[i].next) {
                const struct variant_record *variant = aotci_variant(&kernel->tables, spans[i].next);
                if (!can_run(loading, variant)) {
                    continue;
                }
                struct aotci_candidate *candidate =
                    &dispatch->candidates[dispatch->candidate_count++];
                atomic_init(&candidate->function, NULL);
                candidate->guards = variant->guards;
                candidate->variant = variant;
                candidate->condition = variant->condition == 0
                                           ? (struct aotci_guard){.expression = NULL}
                                           : aotci_guard_of(kernel, variant->condition - 1);
                candidate->programs_at_once = 0;
            }
        }
        if (dispatch->candidate_count != first) {
            dispatch->runs[dispatch->run_count++] =
                (struct aotci_run){combination, first, dispatch->candidate_count - first};
        }
    }
}

static aotc_status no_memory(const struct loading *loading) {
    return AOTCI_FAIL(loading->error, AOTC_ERROR_NOMEM, .file = loading->archive->name,
                      .kernel = loading->kernel->name, .field = "dispatch table",
                      .expected = "memory", .got = "none");
}

aotc_status aotci_load_candidate(const struct loading *loading, struct aotci_candidate *candidate,
                                 bool is_whole, CUfunction *function) {
    const uint32_t index = aotci_variant_number(loading->kernel, candidate->variant);
    const uint32_t counted = VARIANT_IS_PERSISTENT | VARIANT_COOPERATIVE;
    const bool needs_code = is_whole || (candidate->variant->flags & counted) != 0;
    *function = aotci_function(candidate);
    if (*function != NULL) {
        return AOTC_OK;
    }
    aotc_status status = load_variant(loading, index, needs_code);
    if (status == AOTC_OK && !candidate->is_taken) { /* else a launch reads it */
        status = aotci_count_programs(loading, index, &candidate->programs_at_once);
    }
    if (status == AOTC_OK) {
        *function = (CUfunction)loading->kernel->cuda_kernels[index];
        candidate->is_taken = true;
    }
    if (status == AOTC_OK && needs_code) {
        atomic_store_explicit(&candidate->function, *function, memory_order_release);
    }
    return status;
}

/* Load the code of all variants in a table, unless that is for later. */
static aotc_status load_candidates(const struct loading *loading,
                                   struct aotci_dispatch *dispatch) {
    aotc_status status = AOTC_OK;
    for (uint32_t i = 0; status == AOTC_OK && !loading->is_lazy && i < dispatch->candidate_count;
         ++i) {
        CUfunction function = NULL;
        status = aotci_load_candidate(loading, &dispatch->candidates[i], true, &function);
    }
    return status;
}

static aotc_status build_configs(const struct loading *loading, struct aotci_dispatch *dispatch) {
    if (!aotci_config_index_build(&dispatch->configs, loading->kernel, dispatch->candidates,
                                  dispatch->candidate_count)) {
        aotci_config_index_free(&dispatch->configs, &loading->archive->allocator);
        dispatch->configs = (struct aotci_config_index){.capacity = 0};
        return no_memory(loading);
    }
    atomic_store_explicit(&dispatch->has_configs, true, memory_order_release);
    return AOTC_OK;
}

aotc_status aotci_use_configs(const struct aotc_kernel *kernel, const struct aotci_dispatch *dispatch,
                              aotc_error *error) {
    struct aotc_archive *archive = kernel->archive;
    const struct loading loading = {
        .archive = archive, .kernel = aotci_kernel(archive, kernel->number), .error = error};
    aotc_status status = AOTC_OK;
    (void)pthread_mutex_lock(&archive->lock);
    if (!atomic_load_explicit(&dispatch->has_configs, memory_order_relaxed)) {
        status = build_configs(&loading, (struct aotci_dispatch *)(uintptr_t)dispatch);
    }
    (void)pthread_mutex_unlock(&archive->lock);
    return status;
}

aotc_status aotci_load_kernel(const struct loading *loading) {
    struct aotc_archive *archive = loading->archive;
    const struct aotc_kernel *kernel = loading->kernel;
    _Atomic(struct aotci_dispatch *) *place = &loading->context->dispatches[kernel->number];
    struct aotci_dispatch *there = atomic_load_explicit(place, memory_order_relaxed);
    if (there != NULL) {
        return load_candidates(loading, there);
    }
    const uint32_t capacity = kernel->record->variant_count;
    struct aotci_dispatch *dispatch = aotci_allocate(&archive->allocator, 1, sizeof *dispatch);
    if (dispatch != NULL) {
        dispatch->runs = aotci_allocate(&archive->allocator, capacity, sizeof *dispatch->runs);
        dispatch->candidates =
            aotci_allocate(&archive->allocator, capacity, sizeof *dispatch->candidates);
    }
    if (dispatch == NULL || dispatch->runs == NULL || dispatch->candidates == NULL) {
        aotci_free_dispatch(archive, kernel, dispatch);
        return no_memory(loading);
    }
    aotc_status status = ask_shared_bytes(loading);
    if (status == AOTC_OK) {
        struct span spans[LIMIT_TARGETS];
        const unsigned span_count = find_spans(loading, spans);
        fill_dispatch(loading, spans, span_count, dispatch);
        status = load_candidates(loading, dispatch);
    }
    if (status == AOTC_OK && !loading->is_lazy) {
        status = build_configs(loading, dispatch);
    }
    if (status != AOTC_OK) {
        aotci_free_dispatch(archive, kernel, dispatch);
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
    for (uint32_t i = record->first_variant; i < record->first_variant + record->variant_count;
         ++i) {
        const struct variant_record *variant = aotci_variant(&kernel->tables, i);
        const struct target_record *target = aotci_target(&kernel->tables, variant->target);
        if (variant->target != before) {
            aotci_text_add(&targets, "%s%s", before == UINT32_MAX ? "" : ", ",
                           aotci_string(&kernel->tables, target->name));
            before = variant->target;
        }
        const uint64_t bytes = shared_bytes_of(variant);
        if (target_rank(target, context->major, context->minor) != 0 && bytes < least_bytes) {
            least_bytes = bytes;
        }
    }
    if (least_bytes != UINT64_MAX && least_bytes > DEFAULT_SHARED_BYTES &&
        least_bytes > (uint64_t)shared_bytes_in(context)) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_ARG, .file = archive->name, .kernel = kernel->name,
            .field = "shared memory",
            .expected =
                aotci_text("at most %d bytes, as this GPU has", shared_bytes_in(context))
                    .chars,
            .got = aotci_text("%" PRIu64 " bytes in the smallest variant", least_bytes).chars,
            .remedy = "build a config that uses less");
    }
    return AOTCI_FAIL(
        error, AOTC_ERROR_ARCH, .file = archive->name, .kernel = kernel->name, .field = "target",
        .expected = aotci_text("a GPU for %s", targets.chars).chars,
        .got = aotci_text("compute capability %d.%d", context->major, context->minor).chars,
        .remedy =
            aotci_text("build the archive for sm_%d%d", context->major, context->minor).chars);
}
