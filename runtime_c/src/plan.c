/* plan.c: make the plan of a launch, or find the stored one of an equal launch.
 *
 * The key of a plan is everything that it depends on: the kernel, flags, grid, arguments with the
 * sizes of tensors, choices and config entries by their text; the table belongs to a context. Only
 * plans without an error are stored, so a stored plan needs no check. Scratch memory is not part of
 * it.
 */
#include "plan.h"

#include <string.h>

#include "expression.h"

_Static_assert(sizeof(struct aotci_chosen) <= CHOSEN_WORDS * sizeof(uint64_t), "its words");
_Static_assert(CHOSEN_WORDS * sizeof(uint64_t) % _Alignof(CUtensorMap) == 0, "maps are aligned");

/* ---- keys --------------------------------------------------------------------------------------
 */

/* A longer key would leave no room for a plan. */
enum { MAX_KEY_WORDS = PLAN_ENTRY_WORDS - CHOSEN_WORDS, MAX_COUNT = UINT16_MAX };

/* Each part states its length or is self-delimiting, so different launches have different words.
 * Arguments that do not fit or cannot be read make no key: later checks report them. */
struct key {
    uint32_t count;
    uint64_t words[MAX_KEY_WORDS];
};

static bool add_text(struct key *key, const char *text) {
    const size_t bytes = text == NULL ? 0 : strlen(text) + 1;
    const size_t words = (bytes + sizeof *key->words - 1) / sizeof *key->words;
    if (words == 0 || words > MAX_KEY_WORDS - key->count) {
        return false;
    }
    key->words[key->count + words - 1] = 0;
    memcpy(&key->words[key->count], text, bytes);
    key->count += (uint32_t)words;
    return true;
}

static bool add_values(struct key *key, const aotc_value *values, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
        const aotc_value *value = &values[i];
        if (!add_text(key, value->name) || MAX_KEY_WORDS - key->count < 2) {
            return false;
        }
        key->words[key->count++] = value->kind;
        if (value->kind != AOTC_VALUE_STRING) {
            key->words[key->count++] = (uint64_t)value->as.integer;
        } else if (!add_text(key, value->as.string)) {
            return false;
        }
    }
    return true;
}

static bool add_arguments(struct key *key, const struct aotc_kernel *kernel,
                          const aotc_arg *args) {
    const struct kernel_record *record = kernel->record;
    uint64_t *words = key->words;
    uint32_t at = key->count;
    for (uint32_t i = 0; i < record->param_count; ++i) {
        const aotc_arg *arg = &args[i];
        if (MAX_KEY_WORDS - at < 2 + 2 * LIMIT_RANK) {
            return false;
        }
        words[at++] = (uint64_t)arg->dtype << 32 | arg->kind;
        if (arg->kind != AOTC_TENSOR) {
            words[at++] = arg->as.bits;
            continue;
        }
        const aotc_tensor *tensor = arg->as.tensor;
        const uint32_t rank = aotci_param(&kernel->tables, record->first_param + i)->rank;
        if (tensor == NULL || tensor->shape == NULL || tensor->strides == NULL ||
            tensor->rank != rank) {
            return false;
        }
        words[at++] = (uint64_t)(uintptr_t)tensor->address;
        for (uint32_t k = 0; k < rank; ++k) {
            words[at++] = (uint64_t)tensor->shape[k];
            words[at++] = (uint64_t)tensor->strides[k];
        }
    }
    key->count = at;
    return true;
}

static bool make_key(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                     struct key *key) {
    const uint32_t param_count = kernel->record->param_count;
    if (desc->arg_count != param_count || (param_count != 0 && desc->args == NULL) ||
        desc->grid_rank > 3 || desc->choice_count > MAX_COUNT || desc->config_count > MAX_COUNT) {
        return false;
    }
    key->words[0] = (uint64_t)kernel->number << 32 | desc->flags << 2 | desc->grid_rank;
    key->words[1] = (uint64_t)desc->choice_count << 32 | desc->config_count;
    key->count = 2;
    for (uint32_t i = 0; i < desc->grid_rank; ++i) {
        key->words[key->count++] = (uint64_t)desc->grid[i];
    }
    return add_arguments(key, kernel, desc->args) &&
           add_values(key, desc->choices, desc->choice_count) &&
           add_values(key, desc->config, desc->config_count);
}

/* ---- plans -------------------------------------------------------------------------------------
 */

static aotc_status compute_value(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                                 const struct cubin_param_record *param, uint64_t *word,
                                 aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    const struct expression_record *expression = aotci_expression(&kernel->tables, param->index);
    int64_t value = 0;
    const char *failure = aotci_evaluate(kernel, expression, desc->args, &value);
    if (failure == NULL && param->size == 4 && (value < INT32_MIN || value > INT32_MAX)) {
        failure = "a value above 32 bits";
    }
    if (failure != NULL) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_ARG, .file = archive->name, .kernel = kernel->name,
            .field = "computed parameter",
            .expected = aotci_text("a value of %s", aotci_string(&kernel->tables, expression->text)).chars,
            .got = failure);
    }
    *word = (uint64_t)value;
    return AOTC_OK;
}

/* Encode the maps and compute the parameters of the chosen variant; return the plan's length. */
static aotc_status compute(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                           struct aotci_plan *plan, uint32_t *plan_words, aotc_error *error) {
    const struct variant_record *variant = plan->as.chosen.candidate->variant;
    uint32_t value_count = 0;
    aotc_status status = AOTC_OK;
    for (uint32_t i = 0; status == AOTC_OK && i < variant->cubin_param_count; ++i) {
        const struct cubin_param_record *param =
            aotci_cubin_param(&kernel->tables, variant->first_cubin_param + i);
        if (param->source == SOURCE_TENSOR_MAP) {
            status =
                aotci_tensor_map_encode(kernel, desc, variant->first_tensor_map + param->index,
                                        aotci_plan_map(plan, param->index), error);
        } else if (param->source == SOURCE_EXPRESSION) {
            status = compute_value(kernel, desc, param, aotci_plan_value(plan, value_count++),
                                   error);
        }
    }
    *plan_words = CHOSEN_WORDS + variant->tensor_map_count * (uint32_t)MAP_WORDS + value_count;
    return status;
}

aotc_status aotci_plan_launch(const struct aotc_kernel *kernel, const struct aotci_context *context,
                              const aotc_launch_desc *desc, enum aotci_late late,
                              struct aotci_plan *plan, aotc_error *error) {
    struct key key;
    uint32_t plan_words = 0;
    const bool has_key = make_key(kernel, desc, &key);
    if (has_key && aotci_memo_find(&context->plans, key.words, key.count, plan->as.words,
                                   MAX_PLAN_WORDS)) {
        return AOTC_OK;
    }
    memset(plan->as.words, 0, CHOSEN_WORDS * sizeof *plan->as.words);
    aotc_status status = aotci_choose(kernel, context, desc, late, &plan->as.chosen, error);
    if (status != AOTC_OK || plan->as.chosen.is_empty) {
        return status;
    }
    status = compute(kernel, desc, plan, &plan_words, error);
    /* A variant's first launch leaves the table, and its pages, to repeated launches. */
    if (status == AOTC_OK && has_key && !plan->as.chosen.is_first) {
        if (atomic_load_explicit(&context->plans.slots, memory_order_relaxed) == NULL) {
            aotci_use_plans(kernel, context);
        }
        aotci_memo_keep(&context->plans, key.words, key.count, plan->as.words, plan_words);
    }
    return status;
}
