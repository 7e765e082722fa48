/* select.c: choose the variant and the grid for a launch.
 *
 * This runs before every launch, so it takes no lock and allocates nothing. A context is found
 * among the loaded ones, the combination's run by binary search, and variants of a requested config
 * by an index. A guard is evaluated only for a variant under consideration. The rules are
 * docs/reference/archive-format.md, section 5.
 */
#include "select.h"

#include <inttypes.h>
#include <string.h>

#include "expression.h"
#include "guard.h"
#include "selection.h"

/* gridDim limits: the same on every GPU of the archive's targets. */
static const uint64_t max_grid[3] = {INT32_MAX, 65535, 65535};
static const char dimension_names[3] = {'x', 'y', 'z'};

static aotc_status fail(const struct aotc_kernel *kernel, aotc_error *error, aotc_status status,
                        const char *field, const char *expected, const char *got,
                        const char *remedy) {
    return AOTCI_FAIL(error, status, .file = kernel->archive->name, .kernel = kernel->name,
                      .field = field, .expected = expected, .got = got, .remedy = remedy);
}

/* ---- the context -------------------------------------------------------------------------------
 */

static aotc_status not_loaded(const struct aotc_kernel *kernel, aotc_error *error) {
    for (const struct aotci_context *context =
             atomic_load_explicit(&kernel->archive->contexts, memory_order_acquire);
         context != NULL; context = context->next) {
        if (aotci_dispatch_of(context, kernel->number) != NULL) {
            return fail(kernel, error, AOTC_ERROR_ARG, "stream",
                        "a stream of a context with the kernel loaded", "one of another context",
                        "call aotc_load for that context, or use a stream of yours");
        }
    }
    return fail(kernel, error, AOTC_ERROR_STATE, "kernel", "a loaded kernel",
                "one that is not loaded", "call aotc_load first, outside of any capture");
}

CUresult aotci_ask_stream(const struct aotc_archive *archive, CUstream stream, CUcontext *context) {
    const aotci_stream_context_function found = aotci_driver_find_streams(&archive->driver);
    atomic_store_explicit(&((struct aotc_archive *)(uintptr_t)archive)->stream_context, found,
                          memory_order_relaxed);
    return found == NULL ? CUDA_ERROR_NOT_FOUND : found(stream, context);
}

/* Find the loaded entry for the context of a stream. */
static aotc_status find_context(const struct aotc_kernel *kernel, CUstream stream,
                                const struct aotci_context **found, aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    const struct aotci_context *context =
        atomic_load_explicit(&archive->contexts, memory_order_acquire);
    CUcontext current; /* for the driver to set; reading its store over a NULL is slower
                        * (docs/internals) */
    CUresult result = CUDA_SUCCESS;
    if (context == NULL) {
        return not_loaded(kernel, error); /* there may be no driver yet */
    }
    if (aotci_is_forked(archive)) {
        return fail(kernel, error, AOTC_ERROR_FORKED, "process", "the one that loaded the archive",
                    "a fork of it", "start children with exec (spawn) and open the archive there");
    }
    if (aotci_is_of_current(stream)) {
        result = archive->driver.context_get_current(&current);
    } else {
        result = aotci_stream_context(archive, stream, &current);
    }
    if (result != CUDA_SUCCESS) {
        return aotci_driver_fail(&archive->driver, result, error,
                                 (struct aotci_detail){.file = archive->name,
                                                       .kernel = kernel->name,
                                                       .field = "context of the stream"});
    }
    if (current == NULL) {
        return fail(kernel, error, AOTC_ERROR_STATE, "context", "a current CUDA context", "none",
                    "make one current, or launch on a stream");
    }
    while (context != NULL && aotci_context_handle(context) != current) {
        context = context->next;
    }
    *found = context;
    return context == NULL ? not_loaded(kernel, error) : AOTC_OK;
}

/* ---- the variant -------------------------------------------------------------------------------
 */

/* Guards of a launch: the evaluated ones, and the ones that hold. Also the last condition that
 * failed: adjacent configs often share it. */
struct guard_state {
    uint64_t known;
    uint64_t holding;
    const struct expression_record *refused;
};

/* Return whether all the guards in a mask hold. */
static bool all_hold(const struct aotc_kernel *kernel, const aotc_arg *args, uint64_t wanted,
                     struct guard_state *state) {
    for (uint64_t open = wanted & ~state->known; open != 0; open &= open - 1) {
        const unsigned index = (unsigned)__builtin_ctzll(open);
        const uint64_t bit = UINT64_C(1) << index;
        state->known |= bit;
        if (!aotci_guard_holds(kernel, &kernel->guards[index], args)) {
            return false;
        }
        state->holding |= bit;
    }
    return (wanted & ~state->holding) == 0;
}

/* Return whether a candidate's condition holds. One without a value does not. */
static bool condition_holds(const struct aotc_kernel *kernel, const aotc_arg *args,
                            const struct aotci_guard *condition, struct guard_state *state) {
    if (condition->expression == NULL) {
        return true;
    }
    if (condition->expression == state->refused) {
        return false;
    }
    if (aotci_guard_holds(kernel, condition, args)) {
        return true;
    }
    state->refused = condition->expression;
    return false;
}

static const struct aotci_run *find_run(const struct aotci_dispatch *dispatch,
                                        uint32_t combination) {
    uint32_t low = 0;
    uint32_t high = dispatch->run_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (dispatch->runs[middle].combination < combination) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < dispatch->run_count && dispatch->runs[low].combination == combination
               ? &dispatch->runs[low]
               : NULL;
}

static void add_condition(struct aotci_text *list, const char *text) {
    aotci_text_add(list, "%s%s", list->chars[0] == '\0' ? "" : "; ", text);
}

/* The failed guards. */
static uint64_t failed_guards(const struct aotc_kernel *kernel, const aotc_arg *args) {
    uint64_t mask = 0;
    for (uint32_t i = 0; i < kernel->record->guard_count; ++i) {
        mask |= (uint64_t)!aotci_guard_holds(kernel, &kernel->guards[i], args) << i;
    }
    return mask;
}

static struct aotci_text guard_texts(const struct aotc_kernel *kernel, uint64_t mask) {
    struct aotci_text list = {""};
    for (uint32_t i = 0; i < kernel->record->guard_count; ++i) {
        if ((mask >> i & 1) != 0) {
            const uint32_t text = aotci_guard(&kernel->tables, kernel->record->first_guard + i)->text;
            add_condition(&list, aotci_string(&kernel->tables, text));
        }
    }
    return list;
}

/* Return whether all guards in a mask come from ':16' in a signature: `load % 2^n == 0`. */
static bool are_multiples(const struct aotc_kernel *kernel, uint64_t mask) {
    for (uint32_t i = 0; i < kernel->record->guard_count; ++i) {
        const struct aotci_guard *guard = &kernel->guards[i];
        if ((mask >> i & 1) != 0 &&
            (guard->test_count != 1 || guard->tests[0].relation != OP_MOD)) {
            return false;
        }
    }
    return true;
}

static aotc_status broken_promise(const struct aotc_kernel *kernel, const aotc_arg *args,
                                  aotc_error *error) {
    return fail(kernel, error, AOTC_ERROR_ARG, "promises of the signature",
                guard_texts(kernel, failed_guards(kernel, args) & kernel->record->promises).chars,
                "arguments for which that is false",
                "pass such arguments, or relax the signature in the manifest");
}

static aotc_status nothing_fits(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                                const struct aotci_dispatch *dispatch, const struct aotci_run *run,
                                const struct aotci_config_filter *filter, aotc_error *error) {
    if (run == NULL) {
        return fail(kernel, error, AOTC_ERROR_NOT_FOUND, "variant",
                    "one for these dtypes and choices", "none for this GPU",
                    "build that combination");
    }
    /* Of the variants, take the one with the fewest failed guards, and report these: the others'
     * guards would not help. */
    const uint64_t broken = failed_guards(kernel, desc->args);
    uint64_t lacking = 0;
    const struct expression_record *condition = NULL;
    bool has_config = false;
    const uint32_t end = run->first + run->count;
    for (uint32_t i = run->first; (i = aotci_config_next(filter, i, end)) < end; ++i) {
        const struct aotci_candidate *candidate = &dispatch->candidates[i];
        const uint64_t its = candidate->guards & broken;
        if (!has_config || __builtin_popcountll(its) < __builtin_popcountll(lacking)) {
            lacking = its;
            condition = candidate->condition.expression;
        }
        has_config = true;
    }
    if (!has_config) {
        struct aotci_text wanted = {""};
        for (uint32_t i = 0; i < desc->config_count; ++i) {
            const char *name = desc->config[i].name;
            aotci_text_add(&wanted, "%s%s = %s", i == 0 ? "" : ", ", name == NULL ? "NULL" : name,
                           aotci_value_text(&desc->config[i]).chars);
        }
        return fail(kernel, error, AOTC_ERROR_NOT_FOUND, "config", "one that was built",
                    wanted.chars, "see the kernel's configs with aotc inspect");
    }
    struct aotci_text failed = guard_texts(kernel, lacking);
    const char *remedy = "build a config that `where` lets pass for them";
    if (lacking == 0 && condition != NULL) {
        add_condition(&failed, aotci_string(&kernel->tables, condition->text));
        remedy = "build the kernel without tensor maps as well";
    } else if (are_multiples(kernel, lacking)) {
        remedy = "build a variant without the promise (':16?')";
    }
    return fail(kernel, error, AOTC_ERROR_NOT_FOUND, "variant", failed.chars,
                "arguments for which that is false", remedy);
}

/* The first candidate of a leaf's configs that accepts the arguments; NULL if none does. */
static struct aotci_candidate *find_selected(const struct aotc_kernel *kernel, const aotc_arg *args,
                                             const struct aotci_dispatch *dispatch,
                                             const struct leaf_record *leaf,
                                             const struct aotci_config_filter *filter,
                                             struct guard_state *state) {
    for (uint32_t i = leaf->first_config; i < leaf->first_config + leaf->config_count; ++i) {
        for (uint32_t at = dispatch->of_leaf_config[i]; at != FORMAT_NONE;) {
            struct aotci_candidate *candidate = &dispatch->candidates[at];
            if (aotci_config_has(filter, at) && all_hold(kernel, args, candidate->guards, state) &&
                condition_holds(kernel, args, &candidate->condition, state)) {
                return candidate;
            }
            at = candidate->next_of_config;
        }
    }
    return NULL;
}

static aotc_status find_candidate(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                                  const struct aotci_dispatch *dispatch, uint32_t combination,
                                  bool may_load, struct aotci_candidate **found,
                                  aotc_error *error) {
    const struct aotci_run *run = find_run(dispatch, combination);
    struct guard_state state = {0, 0, NULL};
    struct aotci_config_filter filter;
    if (!all_hold(kernel, desc->args, kernel->record->promises, &state)) {
        return broken_promise(kernel, desc->args, error);
    }
    if (desc->config_count != 0 &&
        !atomic_load_explicit(&dispatch->has_configs, memory_order_acquire)) {
        const aotc_status status =
            may_load ? aotci_use_configs(kernel, dispatch, error) : AOTCI_NOT_READY;
        if (status != AOTC_OK) {
            return status;
        }
    }
    aotci_config_ask(&dispatch->configs, desc, &filter);
    if (run != NULL && run->selection != FORMAT_NONE) {
        const struct leaf_record *leaf = aotci_find_leaf(kernel, run->selection, desc->args);
        *found = find_selected(kernel, desc->args, dispatch, leaf, &filter, &state);
        if (*found != NULL) {
            return AOTC_OK;
        }
    }
    const uint32_t end = run == NULL ? 0 : run->first + run->count;
    for (uint32_t i = run == NULL ? 0 : run->first;
         (i = aotci_config_next(&filter, i, end)) < end; ++i) {
        struct aotci_candidate *candidate = &dispatch->candidates[i];
        if (all_hold(kernel, desc->args, candidate->guards, &state) &&
            condition_holds(kernel, desc->args, &candidate->condition, &state)) {
            *found = candidate;
            return AOTC_OK;
        }
    }
    return nothing_fits(kernel, desc, dispatch, run, &filter, error);
}

/* ---- the grid ----------------------------------------------------------------------------------
 */

static aotc_status evaluate(const struct aotc_kernel *kernel, const aotc_arg *args, uint32_t index,
                            const char *what, int64_t *value, aotc_error *error) {
    const struct expression_record *expression = aotci_expression(&kernel->tables, index);
    const char *failure = aotci_evaluate(kernel, expression, args, value);
    if (failure == NULL) {
        return AOTC_OK;
    }
    return fail(kernel, error, AOTC_ERROR_ARG, what,
                aotci_text("a value of %s", aotci_string(&kernel->tables, expression->text)).chars, failure,
                NULL);
}

static aotc_status check_dimension(const struct aotc_kernel *kernel, unsigned dimension,
                                   int64_t programs, unsigned cluster, uint32_t *result,
                                   aotc_error *error) {
    if (programs >= 0 && (uint64_t)programs <= max_grid[dimension] / cluster) {
        *result = (uint32_t)programs;
        return AOTC_OK;
    }
    return fail(kernel, error, AOTC_ERROR_ARG,
                aotci_text("grid.%c", dimension_names[dimension]).chars,
                aotci_text("0 to %" PRIu64 " programs", max_grid[dimension] / cluster).chars,
                aotci_text("%" PRId64, programs).chars, NULL);
}

/* From program instances to CTAs: a cluster for each; or, for a persistent kernel, a row of the
 * resident number. The row's length has 32 bits. */
static aotc_status size_launch(const struct aotc_kernel *kernel, struct aotci_chosen *chosen,
                               aotc_error *error) {
    const uint8_t *cluster = chosen->candidate->variant->cluster;
    const uint32_t at_once = chosen->candidate->programs_at_once;
    const uint32_t *programs = chosen->programs;
    const uint64_t total = (uint64_t)programs[0] * programs[1] * programs[2]; /* below 2^63 */
    const bool is_cooperative = (chosen->candidate->variant->flags & VARIANT_COOPERATIVE) != 0;
    if (is_cooperative && total > at_once) {
        return fail(kernel, error, AOTC_ERROR_ARG, "grid",
                    aotci_text("at most %" PRIu32 " programs, which wait for each other", at_once).chars,
                    aotci_text("%" PRIu64, total).chars,
                    "let each program do more: this GPU runs no more of them at a time");
    }
    if (at_once == 0 || is_cooperative || chosen->is_empty) {
        for (unsigned i = 0; i < 3; ++i) {
            chosen->grid[i] = programs[i] * cluster[i];
        }
        return AOTC_OK;
    }
    const uint64_t most = max_grid[0] / cluster[0];
    if (total > most) {
        return fail(kernel, error, AOTC_ERROR_ARG, "grid",
                    aotci_text("at most %" PRIu64 " programs", most).chars,
                    aotci_text("%" PRIu64, total).chars, NULL);
    }
    /* The fewest that finish in the same number of waves: more would only use power. */
    const uint64_t waves = (total + at_once - 1) / at_once;
    chosen->grid[0] = (uint32_t)((total + waves - 1) / waves) * cluster[0];
    chosen->grid[1] = cluster[1];
    chosen->grid[2] = cluster[2];
    return AOTC_OK;
}

static aotc_status find_grid(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                             struct aotci_chosen *chosen, aotc_error *error) {
    const struct variant_record *variant = chosen->candidate->variant;
    const uint32_t own_rank = kernel->record->grid_rank;
    if (desc->grid_rank > 3 || (desc->grid_rank == 0 && own_rank == 0)) {
        return fail(kernel, error, AOTC_ERROR_ARG, "grid", "1 to 3 dimensions",
                    aotci_text("%" PRIu32, desc->grid_rank).chars,
                    "the manifest gives this kernel no grid: pass one");
    }
    chosen->is_empty = false;
    for (unsigned i = 0; i < 3; ++i) {
        int64_t programs = 1;
        aotc_status status = AOTC_OK;
        if (desc->grid_rank != 0) {
            programs = i < desc->grid_rank ? desc->grid[i] : 1;
        } else if (i < own_rank) {
            status = evaluate(kernel, desc->args, variant->grid[i], "grid", &programs, error);
        }
        if (status == AOTC_OK) {
            status = check_dimension(kernel, i, programs, variant->cluster[i], &chosen->programs[i],
                                     error);
        }
        if (status != AOTC_OK) {
            return status;
        }
        chosen->is_empty = chosen->is_empty || programs == 0;
    }
    return size_launch(kernel, chosen, error);
}

static aotc_status find_scratch(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                                struct aotci_chosen *chosen, aotc_error *error) {
    const struct variant_record *variant = chosen->candidate->variant;
    int64_t bytes = 0;
    chosen->scratch_bytes = 0;
    if (variant->scratch_bytes == FORMAT_NONE || chosen->is_empty) {
        return AOTC_OK;
    }
    const aotc_status status =
        evaluate(kernel, desc->args, variant->scratch_bytes, "scratch", &bytes, error);
    if (status != AOTC_OK) {
        return status;
    }
    int64_t total = bytes;
    bool valid = bytes >= 0;
    for (unsigned i = 0; i < 3; ++i) {
        valid = valid && !__builtin_mul_overflow(total, (int64_t)chosen->programs[i], &total);
    }
    if (!valid) {
        return fail(kernel, error, AOTC_ERROR_ARG, "scratch", "a size below 2^63 bytes",
                    aotci_text("%" PRId64 " bytes for one program", bytes).chars, NULL);
    }
    chosen->scratch_bytes = (uint64_t)total;
    return AOTC_OK;
}

/* ---- overlapping launches ----------------------------------------------------------------------
 */

/* A launch that starts before its predecessor has ended needs code that waits for it. */
static aotc_status check_overlap(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                                 const struct variant_record *variant, aotc_error *error) {
    if ((desc->flags & AOTC_LAUNCH_PDL) == 0 || (variant->flags & VARIANT_WAITS_PDL) != 0) {
        return AOTC_OK;
    }
    const char *target =
        aotci_string(&kernel->tables, aotci_target(&kernel->tables, variant->target)->name);
    return fail(kernel, error, AOTC_ERROR_ARG, "AOTC_LAUNCH_PDL",
                "a variant that waits for the launch before it",
                aotci_text("one for %s that does not", target).chars,
                "launch it without the flag, or let every path of the kernel call gdc_wait");
}

/* ---- all together ------------------------------------------------------------------------------
 */

aotc_status aotci_find_context(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                               const struct aotci_context **context, aotc_error *error) {
    if (kernel == NULL || desc == NULL || !aotci_is_struct(desc, desc->struct_size, sizeof *desc) ||
        (desc->flags & ~(uint32_t)AOTC_LAUNCH_PDL) != 0 ||
        (desc->choice_count != 0 && desc->choices == NULL) ||
        (desc->config_count != 0 && desc->config == NULL)) {
        return AOTCI_FAIL(error, AOTC_ERROR_ARG, .field = "aotc_launch_desc",
                          .expected = "AOTC_LAUNCH_DESC_INIT, known flags, arrays for the counts",
                          .got = "something else");
    }
    return find_context(kernel, desc->stream, context, error);
}

aotc_status aotci_choose(const struct aotc_kernel *kernel, const struct aotci_context *context,
                         const aotc_launch_desc *desc, enum aotci_late late,
                         struct aotci_chosen *chosen, aotc_error *error) {
    uint32_t combination = 0;
    struct aotci_candidate *candidate = NULL;
    const struct aotci_dispatch *dispatch =
        aotci_dispatch_of(context, kernel->number);
    if (dispatch == NULL) {
        return not_loaded(kernel, error);
    }
    if (dispatch->run_count == 0) {
        return aotci_refuse(kernel, context, error);
    }
    aotc_status status = aotci_bind(kernel, desc, &combination, error);
    if (status == AOTC_OK) {
        status = find_candidate(kernel, desc, dispatch, combination, late != LOAD_NOTHING,
                                &candidate, error);
    }
    chosen->entered.is_relaxed = false;
    chosen->function = status == AOTC_OK ? aotci_function(candidate) : NULL;
    chosen->is_first = status == AOTC_OK && chosen->function == NULL;
    if (chosen->is_first) {
        status = late == LOAD_NOTHING ? (aotc_status)AOTCI_NOT_READY
                                      : aotci_load_late(kernel, context, candidate, desc->stream, late,
                                                        &chosen->function, &chosen->entered, error);
    }
    chosen->candidate = candidate;
    if (status == AOTC_OK) {
        status = check_overlap(kernel, desc, chosen->candidate->variant, error);
    }
    if (status == AOTC_OK) {
        status = find_grid(kernel, desc, chosen, error);
    }
    if (status == AOTC_OK) {
        status = find_scratch(kernel, desc, chosen, error);
    }
    return status;
}
