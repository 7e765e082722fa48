/* dispatch.c: load a kernel's variants and lay out the table that launches search.
 *
 * The table is built whole and then published. A lazy load publishes it before its variants, and
 * each variant is published when its first launch loads it.
 */
#include "dispatch.h"

#include <inttypes.h>
#include <string.h>

#include "code.h"
#include "guard.h"
#include "selection.h"

static int shared_bytes_in(const struct aotci_context *context) {
    return atomic_load_explicit(&context->shared_bytes, memory_order_relaxed);
}

aotc_status aotci_load_failure(const struct loading *loading, CUresult result, const char *call) {
    const struct aotci_detail detail = {
        .file = loading->archive->name,
        .kernel = loading->kernel == NULL ? NULL : loading->kernel->name,
        .field = call,
    };
    return aotci_driver_fail(&loading->archive->driver, result, loading->error, detail);
}

/* ---- variants ---------------------------------------------------------------------------------
 */

/* Tegra with plain targets: its cubins run on it alone, and it runs no others. */
static bool is_on_chip(int major, int minor) {
    return major == 8 && (minor == 7 || minor == 8);
}

/* How much better a target is for a compute capability than another: 0 if it does not run there.
 * `a` before `f` before plain, then the greater minor. */
static unsigned target_rank(const struct target_record *target, int major, int minor) {
    static const unsigned char order[] = {
        [FEATURE_PLAIN] = 1, [FEATURE_FAMILY] = 2, [FEATURE_ARCH] = 3};
    const bool is_exact = target->feature == FEATURE_ARCH || is_on_chip(target->major, target->minor) ||
                          is_on_chip(major, minor);
    const bool runs = is_exact ? target->minor == minor : target->minor <= minor;
    return target->major == major && runs ? order[target->feature] * 16u + target->minor : 0;
}

/* Query the limit of shared memory per CTA, if a variant exceeds the guaranteed limit. */
static aotc_status ask_shared_bytes(const struct loading *loading) {
    const struct kernel_record *record = loading->kernel->record;
    for (uint32_t i = 0; i < record->variant_count; ++i) {
        if (aotci_is_large(aotci_variant(&loading->kernel->tables, record->first_variant + i))) {
            int shared_bytes = shared_bytes_in(loading->context);
            const aotc_status status = aotci_ask_device(
                loading, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &shared_bytes);
            atomic_store_explicit(&loading->context->shared_bytes, shared_bytes, memory_order_relaxed);
            return status;
        }
    }
    return AOTC_OK;
}

/* Whether a variant can be launched here. If the driver cannot encode tensor maps, a variant with
 * maps is skipped in favour of one without. */
static bool can_run(const struct loading *loading, const struct variant_record *variant) {
    const bool has_maps = variant->condition == 0 || variant->tensor_map_count == 0 ||
                          loading->archive->driver.tensor_map_encode != NULL;
    return has_maps && (!aotci_is_large(variant) ||
                        aotci_shared_bytes(variant) <= (uint64_t)shared_bytes_in(loading->context));
}

/* The variants of one target, and the position of the merge in them. */
struct span {
    unsigned rank;
    uint32_t next;
    uint32_t end;
};

/* Find the spans of a kernel's variants for the targets that run in a context, best first. A target
 * is one span because variants are ordered by target. */
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

/* The smallest remaining combination of the spans; false if none is left. */
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

static size_t dispatch_bytes(const struct aotc_kernel *kernel) {
    const size_t each = sizeof(struct aotci_candidate) + sizeof(struct aotci_run);
    const size_t leaf_configs = aotci_count(&kernel->tables, SECTION_LEAF_CONFIGS);
    const size_t numbers = leaf_configs == 0 ? 0 : leaf_configs + kernel->record->config_count;
    return sizeof(struct aotci_dispatch) + kernel->record->variant_count * each +
           numbers * sizeof(uint32_t);
}

void aotci_free_dispatch(const struct aotc_archive *archive, const struct aotc_kernel *kernel,
                         struct aotci_dispatch *dispatch) {
    if (dispatch != NULL) {
        aotci_config_index_free(&dispatch->configs, &archive->allocator);
        aotci_deallocate(&archive->allocator, dispatch, dispatch_bytes(kernel), 1);
    }
}

/* Merge the spans into runs: for each combination the best target's variants first, in their order.
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
            dispatch->runs[dispatch->run_count++] = (struct aotci_run){
                combination, first, dispatch->candidate_count - first, FORMAT_NONE};
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
    const uint32_t counted = VARIANT_IS_PERSISTENT | VARIANT_COOPERATIVE;
    const bool needs_code = is_whole || (candidate->variant->flags & counted) != 0;
    CUfunction own = NULL;
    *function = aotci_function(candidate);
    if (*function != NULL) {
        return AOTC_OK;
    }
    aotc_status status = aotci_load_code(loading, candidate, is_whole, function);
    if (status == AOTC_OK && needs_code) {
        status = aotci_force_code(loading, candidate, &own);
    }
    if (status == AOTC_OK && !candidate->is_taken) { /* else a launch reads it */
        status = aotci_count_programs(loading, candidate->variant, own, &candidate->programs_at_once);
    }
    if (status == AOTC_OK) {
        candidate->is_taken = true;
    }
    if (status == AOTC_OK && needs_code) {
        atomic_store_explicit(&candidate->function, *function, memory_order_release);
    }
    return status;
}

/* Load the code of all variants in a table, unless the load is lazy. */
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

/* The slot for a kernel's table; NULL without memory. */
static _Atomic(struct aotci_dispatch *) *make_place(const struct loading *loading) {
    const uint32_t number = loading->kernel->number;
    _Atomic(struct aotci_chunk *) *chunk = &loading->context->chunks[number / KERNELS_PER_CHUNK];
    if (atomic_load_explicit(chunk, memory_order_relaxed) == NULL) {
        const size_t bytes = aotci_chunk_bytes(loading->archive, number / KERNELS_PER_CHUNK);
        struct aotci_chunk *made = aotci_allocate(&loading->archive->allocator, bytes, 1);
        atomic_store_explicit(chunk, made, memory_order_release);
    }
    return aotci_place_of(loading->context, number);
}

aotc_status aotci_load_kernel(const struct loading *loading) {
    struct aotc_archive *archive = loading->archive;
    const struct aotc_kernel *kernel = loading->kernel;
    _Atomic(struct aotci_dispatch *) *place = make_place(loading);
    if (place == NULL) {
        return no_memory(loading);
    }
    struct aotci_dispatch *there = atomic_load_explicit(place, memory_order_relaxed);
    if (there != NULL) {
        return load_candidates(loading, there);
    }
    struct aotci_dispatch *dispatch =
        aotci_allocate(&archive->allocator, dispatch_bytes(kernel), 1);
    if (dispatch == NULL) {
        return no_memory(loading);
    }
    dispatch->candidates = (struct aotci_candidate *)(dispatch + 1);
    dispatch->runs = (struct aotci_run *)(dispatch->candidates + kernel->record->variant_count);
    dispatch->of_leaf_config = (uint32_t *)(dispatch->runs + kernel->record->variant_count);
    dispatch->of_config =
        dispatch->of_leaf_config + aotci_count(&kernel->tables, SECTION_LEAF_CONFIGS);
    aotc_status status = ask_shared_bytes(loading);
    if (status == AOTC_OK) {
        struct span spans[LIMIT_TARGETS];
        const unsigned span_count = find_spans(loading, spans);
        fill_dispatch(loading, spans, span_count, dispatch);
        if (kernel->record->selection_count != 0) {
            aotci_pick_selections(loading, dispatch);
        }
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
        const uint64_t bytes = aotci_shared_bytes(variant);
        if (target_rank(target, context->major, context->minor) != 0 && bytes < least_bytes) {
            least_bytes = bytes;
        }
    }
    if (least_bytes != UINT64_MAX && least_bytes > AOTCI_DEFAULT_SHARED_BYTES &&
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
