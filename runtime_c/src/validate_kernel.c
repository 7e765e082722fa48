/* validate_kernel.c: check the kernel of an index and everything it owns.
 *
 * Owners are walked in order, and each must claim the slice right after the previous one (`struct
 * walk` holds each table's claimed end), so tables are covered without overlap and without holes.
 */
#include <stddef.h>
#include <string.h>

#include "expression.h"
#include "validate_walk.h"

aotc_status aotci_walk_bad(const struct walk *walk, enum section_kind kind, uint32_t index,
                           const char *field, const char *expected) {
    return aotci_bad_record(walk->tables, walk->error, kind, index, field, expected);
}

aotc_status aotci_walk_above(const struct walk *walk, const char *what, uint64_t count,
                             uint64_t most) {
    return aotci_above_limit(walk->tables, walk->error, what, count, most);
}

bool aotci_walk_is_expression(struct walk *walk, uint32_t index) {
    if (index >= aotci_count(walk->tables, SECTION_EXPRESSIONS)) {
        return false;
    }
    if (walk->is_checked[index] == 0) {
        const struct expression_record *expression = aotci_expression(walk->tables, index);
        if (aotci_expression_check_params(walk->tables, walk->kernel, expression) != NULL) {
            return false;
        }
        walk->is_checked[index] = 1;
    }
    return true;
}

static bool is_dtype(unsigned dtype) { return dtype >= AOTC_I1 && dtype <= AOTC_FP8E5; }
static bool is_power_of_two(uint32_t value) { return value != 0 && (value & (value - 1)) == 0; }

/* ---- the kernel's lists ----------------------------------------------------------------------- */

/* Whether a record, which begins with its name, has a name not used by the records from `first` on.
 * Names are strings without repeats, so equal names have equal offsets. At most 1,024 of them. */
static bool has_new_name(const struct walk *walk, enum section_kind kind, uint32_t first,
                         uint32_t index) {
    const uint32_t *name = aotci_record(walk->tables, kind, index);
    for (uint32_t i = first; i < index; ++i) {
        const uint32_t *other = aotci_record(walk->tables, kind, i);
        if (*other == *name) {
            return false;
        }
    }
    return aotci_is_name(walk->tables, *name);
}

AOTCI_COLD static aotc_status bad_name(const struct walk *walk, enum section_kind kind,
                                       uint32_t index) {
    return aotci_walk_bad(walk, kind, index, "name", "a name that is not repeated");
}

static bool is_valid_value(const struct aotci_tables *tables, const struct value_record *value) {
    switch (value->kind) {
    case AOTC_VALUE_NULL:
        return value->payload == 0;
    case AOTC_VALUE_BOOL:
        return value->payload <= 1;
    case AOTC_VALUE_INT:
    case AOTC_VALUE_FLOAT:
        return true;
    case AOTC_VALUE_STRING:
        return value->payload <= UINT32_MAX &&
               aotci_is_text(tables, (uint32_t)value->payload, LIMIT_TEXT_BYTES);
    default:
        return false;
    }
}

static aotc_status check_named_values(const struct walk *walk, uint32_t first, uint32_t count) {
    for (uint32_t i = first; i < first + count; ++i) {
        const struct value_record *value = aotci_value(walk->tables, i);
        if (!has_new_name(walk, SECTION_VALUES, first, i)) {
            return bad_name(walk, SECTION_VALUES, i);
        }
        if (!is_valid_value(walk->tables, value)) {
            return aotci_walk_bad(walk, SECTION_VALUES, i, "payload", "a value of its kind");
        }
    }
    return AOTC_OK;
}

/* Multiply the combinations of dtypes and choices, saturating above the limit. */
static void multiply(struct walk *walk, uint32_t count) {
    walk->combinations *= walk->combinations <= LIMIT_COMBINATIONS ? count : 1;
}

static aotc_status check_type_variables(struct walk *walk) {
    for (uint32_t i = 0; i < walk->kernel->type_variable_count; ++i) {
        const struct type_variable_record *variable = aotci_type_variable(walk->tables, i);
        if (!has_new_name(walk, SECTION_TYPE_VARIABLES, 0, i)) {
            return bad_name(walk, SECTION_TYPE_VARIABLES, i);
        }
        uint32_t seen = 1 << AOTC_DTYPE_NONE;
        bool valid = variable->dtype_count >= 1 && variable->dtype_count <= AOTC_FP8E5 &&
                     (variable->zero[0] | variable->zero[1] | variable->zero[2]) == 0;
        for (unsigned k = 0; valid && k < sizeof variable->dtypes; ++k) {
            const unsigned dtype = variable->dtypes[k];
            valid = k < variable->dtype_count ? dtype <= AOTC_FP8E5 && (seen >> dtype & 1) == 0
                                              : dtype == AOTC_DTYPE_NONE;
            seen |= UINT32_C(1) << (dtype & 31);
        }
        if (!valid) {
            return aotci_walk_bad(walk, SECTION_TYPE_VARIABLES, i, "dtypes",
                                  "distinct dtypes, zeros after them");
        }
        multiply(walk, variable->dtype_count);
    }
    return AOTC_OK;
}

static aotc_status check_params(struct walk *walk) {
    const struct kernel_record *kernel = walk->kernel;
    for (uint32_t index = 0; index < kernel->param_count; ++index) {
        const struct param_record *param = aotci_param(walk->tables, index);
        if (!has_new_name(walk, SECTION_PARAMS, 0, index)) {
            return bad_name(walk, SECTION_PARAMS, index);
        }
        if (param->kind < AOTC_POINTER || param->kind > AOTC_TENSOR) {
            return aotci_walk_bad(walk, SECTION_PARAMS, index, "kind", "1 to 3");
        }
        const bool has_type = param->type_variable == 0
                                  ? is_dtype(param->dtype)
                                  : param->dtype == AOTC_DTYPE_NONE &&
                                        param->type_variable <= kernel->type_variable_count;
        if (!has_type) {
            return aotci_walk_bad(walk, SECTION_PARAMS, index, "dtype",
                                  "a dtype or a type variable");
        }
        const bool has_rank = param->kind == AOTC_TENSOR
                                  ? param->rank >= 1 && param->rank <= LIMIT_RANK
                                  : param->rank == 0;
        if (!has_rank || !is_power_of_two(param->divisibility) || param->flags > PARAM_OPTIONAL ||
            param->access > 3 || param->zero != 0) {
            return aotci_walk_bad(walk, SECTION_PARAMS, index, "rank, divisibility, flags",
                                  "what the format allows");
        }
        walk->has_typed_scalars |= param->kind == AOTC_SCALAR && param->type_variable != 0;
    }
    return AOTC_OK;
}

static aotc_status check_choice_values(const struct walk *walk,
                                       const struct choice_record *choice) {
    for (uint32_t i = 0; i < choice->value_count; ++i) {
        const struct value_record *value = aotci_value(walk->tables, choice->first_value + i);
        if (value->name != 0 || !is_valid_value(walk->tables, value)) {
            return aotci_walk_bad(walk, SECTION_VALUES, choice->first_value + i, "payload",
                                  "a value without a name");
        }
        for (uint32_t k = 0; k < i; ++k) {
            const struct value_record *other = aotci_value(walk->tables, choice->first_value + k);
            if (other->kind == value->kind && other->payload == value->payload) {
                return aotci_walk_bad(walk, SECTION_VALUES, choice->first_value + i, "payload",
                                      "distinct values");
            }
        }
    }
    return AOTC_OK;
}

AOTCI_APART static aotc_status check_choices(struct walk *walk) {
    aotc_status status = AOTC_OK;
    for (uint32_t i = 0; status == AOTC_OK && i < walk->kernel->choice_count; ++i) {
        const struct choice_record *choice = aotci_choice(walk->tables, i);
        if (choice->value_count > LIMIT_CHOICE_VALUES) {
            return aotci_walk_above(walk, "values of a choice", choice->value_count,
                                    LIMIT_CHOICE_VALUES);
        }
        if (!has_new_name(walk, SECTION_CHOICES, 0, i) || choice->zero != 0) {
            return bad_name(walk, SECTION_CHOICES, i);
        }
        if (choice->value_count == 0 ||
            !aotci_walk_claim(walk, SECTION_VALUES, choice->first_value, choice->value_count)) {
            return aotci_walk_bad(walk, SECTION_CHOICES, i, "first_value", "the next values");
        }
        multiply(walk, choice->value_count);
        status = check_choice_values(walk, choice);
    }
    return status;
}

/* VALUES has three owners, claimed in this order: constants, choices, configs. */
static aotc_status check_values(struct walk *walk) {
    const struct kernel_record *kernel = walk->kernel;
    if (!aotci_walk_claim(walk, SECTION_VALUES, kernel->first_constant, kernel->constant_count)) {
        return aotci_walk_bad(walk, SECTION_KERNELS, 0, "first_constant",
                              "the next values");
    }
    aotc_status status = check_named_values(walk, kernel->first_constant, kernel->constant_count);
    if (status == AOTC_OK && kernel->choice_count != 0) {
        status = check_choices(walk);
    }
    for (uint32_t i = 0; status == AOTC_OK && i < kernel->config_count; ++i) {
        const struct config_record *config = aotci_config(walk->tables, i);
        if (config->entry_count > LIMIT_CONFIG_ENTRIES) {
            return aotci_walk_above(walk, "entries of a config", config->entry_count,
                                    LIMIT_CONFIG_ENTRIES);
        }
        if (!aotci_walk_claim(walk, SECTION_VALUES, config->first_entry, config->entry_count)) {
            return aotci_walk_bad(walk, SECTION_CONFIGS, i, "first_entry", "the next values");
        }
        status = check_named_values(walk, config->first_entry, config->entry_count);
    }
    return status;
}

static aotc_status check_guards(struct walk *walk) {
    for (uint32_t i = 0; i < walk->kernel->guard_count; ++i) {
        const struct guard_record *guard = aotci_guard(walk->tables, i);
        if (guard->text == 0 || !aotci_is_text(walk->tables, guard->text, LIMIT_TEXT_BYTES)) {
            return aotci_walk_bad(walk, SECTION_GUARDS, i, "text", "a text that is not empty");
        }
        if (!aotci_walk_is_expression(walk, guard->expression)) {
            return aotci_walk_bad(walk, SECTION_GUARDS, i, "expression",
                                  "an expression over the kernel's params");
        }
    }
    return AOTC_OK;
}

/* ---- kernels --------------------------------------------------------------------------------- */

struct slice {
    uint32_t first, count;
};

/* The slices of a kernel, in the order of its record. */
enum { CONSTANTS = 5, LIMITED_SLICES, SLICES = LIMITED_SLICES + 2 };
static const uint32_t limits[LIMITED_SLICES] = {
    LIMIT_PARAMS, LIMIT_TYPE_VARIABLES, LIMIT_CHOICES, LIMIT_GUARDS, LIMIT_CONFIGS, LIMIT_CONSTANTS,
};
static const char limited[LIMITED_SLICES][32] = {
    "params of a kernel", "type variables of a kernel", "choices of a kernel",
    "guards of a kernel", "configs of a kernel",        "constants of a kernel",
};
static const uint8_t sections[SLICES] = {
    SECTION_PARAMS,  SECTION_TYPE_VARIABLES, SECTION_CHOICES,  SECTION_GUARDS,
    SECTION_CONFIGS, SECTION_VALUES,         SECTION_VARIANTS, SECTION_SELECTIONS,
};

/* Claim all but the constants, whose section has other owners too: slices of the kernel alone begin
 * with 0. */
static aotc_status claim_slices(struct walk *walk) {
    const struct kernel_record *kernel = walk->kernel;
    const struct slice *slices =
        (const void *)((const unsigned char *)kernel + offsetof(struct kernel_record, first_param));
    for (unsigned i = 0; i < LIMITED_SLICES; ++i) {
        if (slices[i].count > limits[i]) {
            return aotci_walk_above(walk, limited[i], slices[i].count, limits[i]);
        }
    }
    if (kernel->config_count == 0 || kernel->variant_count == 0 || kernel->grid_rank > 3) {
        return aotci_walk_bad(walk, SECTION_KERNELS, 0, "config_count, variant_count, grid_rank",
                              "a config, a variant, a rank up to 3");
    }
    for (unsigned i = 0; i < SLICES; ++i) {
        if (i != CONSTANTS &&
            !aotci_walk_claim(walk, sections[i], slices[i].first, slices[i].count)) {
            return aotci_walk_bad(walk, SECTION_KERNELS, 0, "slices", "the next records");
        }
    }
    return AOTC_OK;
}

AOTCI_APART static aotc_status check_kernel(struct walk *walk) {
    if (!aotci_is_name(walk->tables, walk->kernel->name)) {
        return aotci_walk_bad(walk, SECTION_KERNELS, 0, "name", "a name");
    }
    walk->name = walk->kernel->name;
    aotc_status status = claim_slices(walk);
    status = status == AOTC_OK ? check_type_variables(walk) : status;
    status = status == AOTC_OK ? check_params(walk) : status;
    status = status == AOTC_OK ? check_values(walk) : status;
    status = status == AOTC_OK ? check_guards(walk) : status;
    if (status == AOTC_OK && walk->combinations > LIMIT_COMBINATIONS) {
        return aotci_walk_above(walk, "combinations of types and choices", walk->combinations,
                                LIMIT_COMBINATIONS);
    }
    status = status == AOTC_OK ? aotci_check_variants(walk) : status;
    return status == AOTC_OK && walk->kernel->selection_count != 0 ? aotci_check_selections(walk)
                                                                   : status;
}

aotc_status aotci_validate_kernel(const struct aotc_kernel *kernel, aotc_error *error) {
    static const uint8_t owned[] = {
        SECTION_PARAMS,   SECTION_TYPE_VARIABLES, SECTION_CHOICES,
        SECTION_VALUES,   SECTION_GUARDS,         SECTION_CONFIGS,
        SECTION_VARIANTS, SECTION_CUBIN_PARAMS,   SECTION_TENSOR_MAPS,
        SECTION_SELECTIONS, SECTION_FEATURES,     SECTION_BRANCHES,
        SECTION_LEAVES,   SECTION_LEAF_CONFIGS,
    };
    const struct aotci_tables *tables = &kernel->tables;
    const aotc_allocator *allocator = &kernel->archive->allocator;
    struct walk walk = {.tables = tables, .error = error, .combinations = 1};
    if (aotci_count(tables, SECTION_KERNELS) != 1) {
        return aotci_walk_bad(&walk, SECTION_KERNELS, 0, "count", "one record");
    }
    walk.kernel = aotci_kernel_record(tables, 0);
    const uint32_t blob_count = aotci_count(tables, SECTION_BLOBS);
    const size_t mark_count = (size_t)aotci_count(tables, SECTION_EXPRESSIONS) + blob_count;
    uint32_t *marks = aotci_allocate(allocator, mark_count, sizeof *marks);
    if (marks == NULL) {
        return AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = tables->file,
                          .field = "memory to check the index");
    }
    walk.cubin_arch = marks;
    walk.is_checked = marks + blob_count;
    aotc_status status = check_kernel(&walk);
    aotci_deallocate(allocator, marks, mark_count, sizeof *marks);
    for (size_t i = 0; status == AOTC_OK && i < sizeof owned / sizeof *owned; ++i) {
        if (walk.claimed[owned[i]] != aotci_count(tables, owned[i])) {
            status = aotci_walk_bad(&walk, owned[i], walk.claimed[owned[i]], "owner",
                                    "a record that belongs to the kernel");
        }
    }
    if (status == AOTC_OK && strcmp(aotci_string(tables, walk.kernel->name), kernel->name) != 0) {
        status = aotci_walk_bad(&walk, SECTION_KERNELS, 0, "name", "the name in the root");
    }
    return status;
}
