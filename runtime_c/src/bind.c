/* bind.c: check the arguments and choices of a launch, and number their combination.
 *
 * On the path of every launch: one pass over the arguments, one over the choices. Code that
 * composes messages is in separate functions, called only on failure.
 */
#include <inttypes.h>
#include <string.h>

#include "select.h"

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[] = {
    [AOTC_DTYPE_NONE] = {"none", 0}, [AOTC_I1] = {"i1", 1},     [AOTC_I8] = {"i8", 1},
    [AOTC_I16] = {"i16", 2},         [AOTC_I32] = {"i32", 4},   [AOTC_I64] = {"i64", 8},
    [AOTC_U8] = {"u8", 1},           [AOTC_U16] = {"u16", 2},   [AOTC_U32] = {"u32", 4},
    [AOTC_U64] = {"u64", 8},         [AOTC_FP16] = {"fp16", 2}, [AOTC_BF16] = {"bf16", 2},
    [AOTC_FP32] = {"fp32", 4},       [AOTC_FP64] = {"fp64", 8}, [AOTC_FP8E4NV] = {"fp8e4nv", 1},
    [AOTC_FP8E5] = {"fp8e5", 1},
};

static const char *const kind_names[] = {"nothing", "a pointer", "a scalar", "a tensor"};

const char *aotc_dtype_name(aotc_dtype dtype) {
    const size_t index = (size_t)dtype;
    return index < sizeof dtypes / sizeof *dtypes ? dtypes[index].name : "unknown";
}

uint32_t aotc_dtype_bytes(aotc_dtype dtype) {
    const size_t index = (size_t)dtype;
    return index < sizeof dtypes / sizeof *dtypes ? dtypes[index].bytes : 0;
}

/* ---- arguments --------------------------------------------------------------------------------
 */

aotc_status aotci_bad_argument(const struct aotc_kernel *kernel, aotc_error *error, uint32_t param,
                               const char *expected, const char *got) {
    const struct aotc_archive *archive = kernel->archive;
    const uint32_t name = aotci_param(&kernel->tables, kernel->record->first_param + param)->name;
    return AOTCI_FAIL(error, AOTC_ERROR_ARG, .file = archive->name, .kernel = kernel->name,
                      .field = aotci_text("argument '%s'", aotci_string(&kernel->tables, name)).chars,
                      .expected = expected, .got = got);
}

static aotc_status wrong_count(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                               aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    struct aotci_text names = {""};
    for (uint32_t i = 0; i < kernel->record->param_count; ++i) {
        const struct param_record *param = aotci_param(&kernel->tables, kernel->record->first_param + i);
        aotci_text_add(&names, "%s%s", i == 0 ? "" : ", ", aotci_string(&kernel->tables, param->name));
    }
    return AOTCI_FAIL(
        error, AOTC_ERROR_ARG, .file = archive->name, .kernel = kernel->name, .field = "arguments",
        .expected = aotci_text("%" PRIu32 " (%s)", kernel->record->param_count, names.chars).chars,
        .got = aotci_text("%" PRIu32, desc->arg_count).chars);
}

static aotc_status wrong_kind(const struct aotc_kernel *kernel, uint32_t index, const aotc_arg *arg,
                              aotc_error *error) {
    const struct param_record *param =
        aotci_param(&kernel->tables, kernel->record->first_param + index);
    return aotci_bad_argument(kernel, error, index, kind_names[param->kind],
                              arg->kind <= AOTC_TENSOR ? kind_names[arg->kind] : "an unknown kind");
}

/* The dtypes allowed for a type variable, as text. */
static struct aotci_text dtype_list(const struct type_variable_record *variable) {
    struct aotci_text list = {""};
    for (unsigned i = 0; i < variable->dtype_count; ++i) {
        aotci_text_add(&list, "%s%s", i == 0 ? "" : ", ",
                       aotc_dtype_name((aotc_dtype)variable->dtypes[i]));
    }
    return list;
}

static aotc_status wrong_dtype(const struct aotc_kernel *kernel, uint32_t index,
                               const aotc_arg *arg, unsigned bound, aotc_error *error) {
    const struct param_record *param = aotci_param(&kernel->tables, kernel->record->first_param + index);
    const char *got = aotc_dtype_name((aotc_dtype)arg->dtype);
    if (param->type_variable == 0) {
        return aotci_bad_argument(kernel, error, index, aotc_dtype_name((aotc_dtype)param->dtype),
                                  got);
    }
    const struct type_variable_record *variable = aotci_type_variable(&kernel->tables, kernel->record->first_type_variable + param->type_variable - 1u);
    const char *name = aotci_string(&kernel->tables, variable->name);
    if (bound != AOTC_DTYPE_NONE) {
        return aotci_bad_argument(kernel, error, index,
                                  aotci_text("%s, as the arguments of type %s before it",
                                             aotc_dtype_name((aotc_dtype)bound), name)
                                      .chars,
                                  got);
    }
    return aotci_bad_argument(kernel, error, index,
                              aotci_text("%s for %s", dtype_list(variable).chars, name).chars, got);
}

/* Check kind and rank of an argument; its dtype is bound by the caller. */
static aotc_status check_form(const struct aotc_kernel *kernel, uint32_t index, const aotc_arg *arg,
                              const struct param_record *param, aotc_error *error) {
    if (arg->kind != param->kind) {
        return wrong_kind(kernel, index, arg, error);
    }
    if (param->kind == AOTC_SCALAR && arg->dtype == AOTC_I1 && (arg->as.bits & 0xFF) > 1) {
        return aotci_bad_argument(kernel, error, index, "0 or 1",
                                  aotci_text("%u", (unsigned)(arg->as.bits & 0xFF)).chars);
    }
    if (param->kind == AOTC_TENSOR) {
        const aotc_tensor *tensor = arg->as.tensor;
        if (tensor == NULL || tensor->shape == NULL || tensor->strides == NULL) {
            return aotci_bad_argument(kernel, error, index, "a tensor with shape and strides",
                                      "NULL");
        }
        if (tensor->rank != param->rank) {
            return aotci_bad_argument(kernel, error, index,
                                      aotci_text("a tensor of rank %u", param->rank).chars,
                                      aotci_text("rank %" PRIu32, tensor->rank).chars);
        }
        for (uint32_t i = 0; i < tensor->rank; ++i) {
            if (tensor->shape[i] < 0) {
                return aotci_bad_argument(
                    kernel, error, index, "extents of 0 or more",
                    aotci_text("%" PRId64 " of axis %" PRIu32, tensor->shape[i], i).chars);
            }
        }
    }
    return AOTC_OK;
}

/* The dtype that arguments so far bind to a type variable; AOTC_DTYPE_NONE before the first. */
struct binding {
    uint8_t dtype;
    uint8_t digit;
};

/* Bind a type variable to the dtype of an argument, or compare it with the bound dtype. */
static bool bind_type(const struct type_variable_record *variable, struct binding *binding,
                      uint32_t dtype) {
    if (binding->dtype != AOTC_DTYPE_NONE) {
        return binding->dtype == dtype;
    }
    for (unsigned digit = 0; digit < variable->dtype_count; ++digit) {
        if (variable->dtypes[digit] == dtype) {
            *binding = (struct binding){(uint8_t)dtype, (uint8_t)digit};
            return true;
        }
    }
    return false;
}

/* Return whether all arguments of a type variable are NULL: their dtype does not matter.
 */
static bool are_null(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                     uint32_t variable) {
    for (uint32_t i = 0; i < kernel->record->param_count; ++i) {
        const struct param_record *param =
            aotci_param(&kernel->tables, kernel->record->first_param + i);
        if (param->type_variable == variable + 1u && desc->args[i].as.pointer != NULL) {
            return false;
        }
    }
    return true;
}

/* Number the combination of dtypes of the type variables. */
static aotc_status number_types(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                                const struct binding *bindings, uint32_t *combination,
                                aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    *combination = 0;
    for (uint32_t i = 0; i < kernel->record->type_variable_count; ++i) {
        const struct type_variable_record *variable =
            aotci_type_variable(&kernel->tables, kernel->record->first_type_variable + i);
        if (bindings[i].dtype == AOTC_DTYPE_NONE && variable->dtype_count > 1 &&
            !are_null(kernel, desc, i)) {
            return AOTCI_FAIL(
                error, AOTC_ERROR_ARG, .file = archive->name, .kernel = kernel->name,
                .field = aotci_text("type %s", aotci_string(&kernel->tables, variable->name)).chars,
                .expected =
                    aotci_text("an argument that says which: %s", dtype_list(variable).chars).chars,
                .got = "pointers without a dtype");
        }
        *combination = *combination * variable->dtype_count + bindings[i].digit;
    }
    return AOTC_OK;
}

static aotc_status bind_types(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                              uint32_t *combination, aotc_error *error) {
    const struct kernel_record *record = kernel->record;
    struct binding bindings[LIMIT_TYPE_VARIABLES] = {{0}};
    if (desc->arg_count != record->param_count ||
        (record->param_count != 0 && desc->args == NULL)) {
        return wrong_count(kernel, desc, error);
    }
    for (uint32_t i = 0; i < record->param_count; ++i) {
        const struct param_record *param = aotci_param(&kernel->tables, record->first_param + i);
        const aotc_arg *arg = &desc->args[i];
        const aotc_status status = check_form(kernel, i, arg, param, error);
        if (status != AOTC_OK) {
            return status;
        }
        if (arg->dtype == AOTC_DTYPE_NONE && param->kind == AOTC_POINTER) {
            continue;
        }
        if (param->type_variable == 0) {
            if (arg->dtype != param->dtype) {
                return wrong_dtype(kernel, i, arg, AOTC_DTYPE_NONE, error);
            }
            continue;
        }
        const unsigned variable = param->type_variable - 1u;
        if (!bind_type(aotci_type_variable(&kernel->tables, record->first_type_variable + variable),
                       &bindings[variable], arg->dtype)) {
            return wrong_dtype(kernel, i, arg, bindings[variable].dtype, error);
        }
    }
    return number_types(kernel, desc, bindings, combination, error);
}

/* ---- choices ----------------------------------------------------------------------------------
 */

struct aotci_text aotci_value_text(const aotc_value *value) {
    switch (value->kind) {
    case AOTC_VALUE_NULL:
        return aotci_text("null");
    case AOTC_VALUE_BOOL:
        return aotci_text("%s", value->as.integer != 0 ? "true" : "false");
    case AOTC_VALUE_INT:
        return aotci_text("%" PRId64, value->as.integer);
    case AOTC_VALUE_STRING:
        return aotci_text("\"%s\"", value->as.string == NULL ? "" : value->as.string);
    case AOTC_VALUE_FLOAT:
        return aotci_text("%.17g", value->as.real);
    default:
        return aotci_text("a value of unknown kind %" PRIu32, value->kind);
    }
}

bool aotci_same_value(const aotc_value *a, const aotc_value *b) {
    if (a->kind != b->kind) {
        return false;
    }
    switch (a->kind) {
    case AOTC_VALUE_NULL:
        return true;
    case AOTC_VALUE_STRING:
        return a->as.string != NULL && b->as.string != NULL &&
               strcmp(a->as.string, b->as.string) == 0;
    case AOTC_VALUE_FLOAT:
        return memcmp(&a->as.real, &b->as.real, sizeof a->as.real) == 0;
    default:
        return a->as.integer == b->as.integer;
    }
}

static aotc_value choice_value(const struct aotc_kernel *kernel, const struct choice_record *choice,
                               uint32_t index) {
    return aotci_value_of(&kernel->tables, aotci_value(&kernel->tables, choice->first_value + index));
}

static aotc_status wrong_choice(const struct aotc_kernel *kernel,
                                const struct choice_record *choice, const aotc_value *given,
                                aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    struct aotci_text list = {""};
    for (uint32_t i = 0; i < choice->value_count; ++i) {
        const aotc_value value = choice_value(kernel, choice, i);
        aotci_text_add(&list, "%s%s", i == 0 ? "" : ", ", aotci_value_text(&value).chars);
    }
    return AOTCI_FAIL(error, AOTC_ERROR_ARG, .file = archive->name, .kernel = kernel->name,
                      .field = aotci_text("choice '%s'", aotci_string(&kernel->tables, choice->name)).chars,
                      .expected = aotci_text("one of %s", list.chars).chars,
                      .got = given == NULL ? "nothing" : aotci_value_text(given).chars);
}

static aotc_status unknown_choice(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                                  aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    struct aotci_text list = {""};
    for (uint32_t i = 0; i < kernel->record->choice_count; ++i) {
        const struct choice_record *choice =
            aotci_choice(&kernel->tables, kernel->record->first_choice + i);
        aotci_text_add(&list, "%s%s", i == 0 ? "" : ", ", aotci_string(&kernel->tables, choice->name));
    }
    struct aotci_text given = {""};
    for (uint32_t i = 0; i < desc->choice_count; ++i) {
        const char *name = desc->choices[i].name;
        aotci_text_add(&given, "%s%s", i == 0 ? "" : ", ", name == NULL ? "NULL" : name);
    }
    return AOTCI_FAIL(error, AOTC_ERROR_ARG, .file = archive->name, .kernel = kernel->name,
                      .field = "choices",
                      .expected = kernel->record->choice_count == 0
                                      ? "none: the kernel has no choices"
                                      : aotci_text("each once, of %s", list.chars).chars,
                      .got = given.chars);
}

/* The caller's value for a choice, or NULL. */
static const aotc_value *find_given(const aotc_launch_desc *desc, const char *name, uint32_t hint) {
    if (hint < desc->choice_count && desc->choices[hint].name != NULL &&
        strcmp(desc->choices[hint].name, name) == 0) {
        return &desc->choices[hint];
    }
    for (uint32_t i = 0; i < desc->choice_count; ++i) {
        if (desc->choices[i].name != NULL && strcmp(desc->choices[i].name, name) == 0) {
            return &desc->choices[i];
        }
    }
    return NULL;
}

static aotc_status bind_choices(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                                uint32_t *combination, aotc_error *error) {
    uint32_t used_count = 0;
    for (uint32_t i = 0; i < kernel->record->choice_count; ++i) {
        const struct choice_record *choice =
            aotci_choice(&kernel->tables, kernel->record->first_choice + i);
        const aotc_value *given = find_given(desc, aotci_string(&kernel->tables, choice->name), i);
        uint32_t digit = 0;
        if (given != NULL) {
            used_count += 1;
            for (; digit < choice->value_count; ++digit) {
                const aotc_value value = choice_value(kernel, choice, digit);
                if (aotci_same_value(&value, given)) {
                    break;
                }
            }
        }
        if (digit == choice->value_count || (given == NULL && choice->value_count > 1)) {
            return wrong_choice(kernel, choice, given, error);
        }
        *combination = *combination * choice->value_count + digit;
    }
    return used_count == desc->choice_count ? AOTC_OK : unknown_choice(kernel, desc, error);
}

aotc_status aotci_bind(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                       uint32_t *combination, aotc_error *error) {
    const aotc_status status = bind_types(kernel, desc, combination, error);
    return status == AOTC_OK ? bind_choices(kernel, desc, combination, error) : status;
}
