/* kernel.c: find kernels by name, and query an archive's contents. */
#include <inttypes.h>
#include <string.h>

#include "archive.h"
#include "guard.h"

/* ---- by name -----------------------------------------------------------------------------------
 */

enum {
    NEAREST_COUNT = 3,
    MAX_COMPARED = 4096, /* in an archive with more kernels, the rest are never suggested */
};

/* Levenshtein distance of two names, each of at most LIMIT_NAME_BYTES. */
static unsigned distance(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    uint16_t row[LIMIT_NAME_BYTES + 1];
    for (size_t j = 0; j <= b_bytes; ++j) {
        row[j] = (uint16_t)j;
    }
    for (size_t i = 1; i <= a_bytes; ++i) {
        unsigned diagonal = row[0];
        row[0] = (uint16_t)i;
        for (size_t j = 1; j <= b_bytes; ++j) {
            const unsigned above = row[j];
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);
            best = above + 1 < best ? above + 1 : best;
            best = row[j - 1] + 1u < best ? row[j - 1] + 1u : best;
            row[j] = (uint16_t)best;
            diagonal = above;
        }
    }
    return row[b_bytes];
}

/* The kernels with the nearest names, as text; empty if none is near. */
static struct aotci_text nearest_names(const aotc_archive *archive, const char *name) {
    struct aotci_text list = {""};
    const size_t name_bytes = strlen(name);
    const uint32_t count = aotci_count(&archive->root, SECTION_ENTRIES);
    unsigned best[NEAREST_COUNT];
    uint32_t found[NEAREST_COUNT];
    unsigned found_count = 0;
    if (name_bytes > LIMIT_NAME_BYTES) {
        return list;
    }
    for (uint32_t i = 0; i < count && i < MAX_COMPARED; ++i) {
        const char *other = aotci_kernel_name(archive, i);
        const size_t other_bytes = strlen(other);
        const unsigned steps = distance(name, name_bytes, other, other_bytes);
        if (steps > 2 + (name_bytes > other_bytes ? name_bytes : other_bytes) / 3) {
            continue;
        }
        unsigned place = found_count < NEAREST_COUNT ? found_count++ : NEAREST_COUNT;
        for (; place > 0 && best[place - 1] > steps; --place) {
            if (place < NEAREST_COUNT) {
                best[place] = best[place - 1];
                found[place] = found[place - 1];
            }
        }
        if (place < NEAREST_COUNT) {
            best[place] = steps;
            found[place] = i;
        }
    }
    for (unsigned i = 0; i < found_count; ++i) {
        aotci_text_add(&list, "%s'%s'", i == 0 ? "did you mean " : " or ",
                       aotci_kernel_name(archive, found[i]));
    }
    return list;
}

static aotc_status unknown_kernel(const aotc_archive *archive, const char *name,
                                  aotc_error *error) {
    struct aotci_text remedy = nearest_names(archive, name);
    const uint32_t count = aotci_count(&archive->root, SECTION_ENTRIES);
    if (remedy.chars[0] == '\0') {
        aotci_text_add(&remedy, count == 0 ? "the archive has no kernels" : "it has ");
        for (uint32_t i = 0; i < count && i < 16; ++i) {
            aotci_text_add(&remedy, "%s'%s'", i == 0 ? "" : ", ",
                           aotci_kernel_name(archive, i));
        }
    }
    return AOTCI_FAIL(error, AOTC_ERROR_NOT_FOUND, .file = archive->name, .kernel = name,
                      .field = "kernel", .expected = "the name of a kernel in the archive",
                      .got = aotci_text("'%s'", name).chars, .remedy = remedy.chars);
}

/* Find a kernel and open it; NULL if there is none. */
static aotc_status find_kernel(struct aotc_archive *archive, const char *name,
                               const aotc_kernel **kernel, aotc_error *error) {
    uint32_t number = UINT32_MAX;
    aotc_status status = aotci_root_find(archive, name, &number, error);
    if (status != AOTC_OK || number == UINT32_MAX) {
        return status;
    }
    status = aotci_kernel_open(archive, number, name, error);
    struct aotc_kernel *found = status == AOTC_OK ? aotci_kernel(archive, number) : NULL;
    if (found != NULL && strcmp(found->name, name) == 0) {
        atomic_store_explicit(&archive->last, found, memory_order_release);
        *kernel = found;
    }
    return status;
}

aotc_status aotc_kernel_get(const aotc_archive *archive, const char *name,
                            const aotc_kernel **kernel, aotc_error *error) {
    if (kernel != NULL) {
        *kernel = NULL;
    }
    if (archive == NULL || name == NULL || kernel == NULL) {
        return AOTCI_FAIL(error, AOTC_ERROR_ARG, .field = "aotc_kernel_get",
                          .expected = "an archive, a name and a result", .got = "NULL");
    }
    struct aotc_archive *changed = (struct aotc_archive *)(uintptr_t)archive;
    struct aotc_kernel *found = atomic_load_explicit(&archive->last, memory_order_acquire);
    if (found != NULL && strcmp(found->name, name) == 0) { /* loads the kernel that was just
                                                            * requested */
        *kernel = found;
        return AOTC_OK;
    }
    aotc_status status = find_kernel(changed, name, kernel, error);
    if (status == AOTC_ERROR_FORMAT || (status == AOTC_OK && *kernel == NULL)) {
        /* An unverified root may have another kernel in its slot: search again once it is verified. */
        status = aotci_root_complete(archive, error);
        status = status == AOTC_OK ? find_kernel(changed, name, kernel, error) : status;
    }
    if (status != AOTC_OK || *kernel != NULL) {
        return status;
    }
    return unknown_kernel(archive, name, error);
}

aotc_status aotc_kernel_get_at(const aotc_archive *archive, uint32_t index,
                               const aotc_kernel **kernel) {
    if (kernel == NULL) {
        return AOTC_ERROR_ARG;
    }
    *kernel = NULL;
    if (archive == NULL || index >= aotci_count(&archive->root, SECTION_ENTRIES)) {
        return AOTC_ERROR_ARG;
    }
    const aotc_status status =
        aotci_kernel_open((struct aotc_archive *)(uintptr_t)archive, index, NULL, NULL);
    *kernel = status == AOTC_OK ? aotci_kernel(archive, index) : NULL;
    return status;
}

aotc_status aotc_archive_get_kernel_name(const aotc_archive *archive, uint32_t index,
                                         const char **name) {
    if (name == NULL) {
        return AOTC_ERROR_ARG;
    }
    *name = NULL;
    if (archive == NULL || index >= aotci_count(&archive->root, SECTION_ENTRIES)) {
        return AOTC_ERROR_ARG;
    }
    const aotc_status status = aotci_root_complete(archive, NULL);
    *name = status == AOTC_OK ? aotci_kernel_name(archive, index) : NULL;
    return status;
}

/* ---- contents ----------------------------------------------------------------------------------
 */

aotc_value aotci_value_of(const struct aotci_tables *tables, const struct value_record *record) {
    aotc_value value = {.name = aotci_string(tables, record->name), .kind = record->kind};
    if (record->kind == AOTC_VALUE_STRING) {
        value.as.string = aotci_string(tables, (uint32_t)record->payload);
    } else {
        memcpy(&value.as, &record->payload, sizeof record->payload);
    }
    return value;
}

/* Copy a record to the caller: as many bytes as both sides know. Nothing is written to a struct
 * smaller than the first version's. */
static aotc_status give(void *target, uint32_t struct_size, const void *source,
                        size_t known_bytes) {
    if (struct_size < known_bytes) {
        return AOTC_ERROR_ARG;
    }
    memset(target, 0, struct_size);
    memcpy(target, source, known_bytes);
    memcpy(target, &struct_size, sizeof struct_size);
    return AOTC_OK;
}

#define GIVE(info, record) give((info), (info)->struct_size, &(record), sizeof(record))

aotc_status aotc_archive_get_info(const aotc_archive *archive, aotc_archive_info *info) {
    if (archive == NULL || info == NULL) {
        return AOTC_ERROR_ARG;
    }
    const aotc_status status = aotci_root_complete(archive, NULL);
    if (status != AOTC_OK) {
        return status;
    }
    const struct archive_record *record = aotci_record(&archive->root, SECTION_ARCHIVE, 0);
    const aotc_archive_info known = {
        .kernel_count = aotci_count(&archive->root, SECTION_ENTRIES),
        .target_count = aotci_count(&archive->root, SECTION_TARGETS),
        .name = aotci_string(&archive->root, record->name),
        .version = aotci_string(&archive->root, record->version),
        .toolchain = aotci_string(&archive->root, record->toolchain),
    };
    return GIVE(info, known);
}

aotc_status aotc_kernel_get_info(const aotc_kernel *kernel, aotc_kernel_info *info) {
    if (kernel == NULL || info == NULL) {
        return AOTC_ERROR_ARG;
    }
    const struct kernel_record *record = kernel->record;
    const aotc_kernel_info known = {
        .param_count = record->param_count,
        .type_variable_count = record->type_variable_count,
        .choice_count = record->choice_count,
        .constant_count = record->constant_count,
        .guard_count = record->guard_count,
        .config_count = record->config_count,
        .variant_count = record->variant_count,
        .grid_rank = record->grid_rank,
        .selection_count = record->selection_count,
        .name = kernel->name,
    };
    return GIVE(info, known);
}

/* Return whether variants differ in a pointer being NULL: only a guard can tell. */
static bool is_nullable(const struct aotc_kernel *kernel, uint32_t param, uint8_t kind) {
    for (uint32_t i = 0; kind == AOTC_POINTER && i < kernel->record->guard_count; ++i) {
        if (aotci_guard_is_null_test(&kernel->guards[i], param)) {
            return true;
        }
    }
    return false;
}

aotc_status aotc_kernel_get_param(const aotc_kernel *kernel, uint32_t index,
                                  aotc_param_info *info) {
    if (kernel == NULL || info == NULL || index >= kernel->record->param_count) {
        return AOTC_ERROR_ARG;
    }
    const struct param_record *param =
        aotci_param(&kernel->tables, kernel->record->first_param + index);
    const aotc_param_info known = {
        .kind = param->kind,
        .dtype = param->dtype,
        .type_variable = (int32_t)param->type_variable - 1,
        .rank = param->rank,
        .divisibility = param->divisibility,
        .optional = param->flags & PARAM_OPTIONAL,
        .access = param->access,
        .name = aotci_string(&kernel->tables, param->name),
        .nullable = is_nullable(kernel, index, param->kind),
    };
    return GIVE(info, known);
}

aotc_status aotc_kernel_get_type_variable(const aotc_kernel *kernel, uint32_t index,
                                          aotc_type_variable_info *info) {
    if (kernel == NULL || info == NULL || index >= kernel->record->type_variable_count) {
        return AOTC_ERROR_ARG;
    }
    const struct type_variable_record *variable =
        aotci_type_variable(&kernel->tables, kernel->record->first_type_variable + index);
    aotc_type_variable_info known = {
        .dtype_count = variable->dtype_count,
        .name = aotci_string(&kernel->tables, variable->name),
    };
    memcpy(known.dtypes, variable->dtypes, sizeof known.dtypes);
    return GIVE(info, known);
}

aotc_status aotc_kernel_get_choice(const aotc_kernel *kernel, uint32_t index,
                                   aotc_choice_info *info) {
    if (kernel == NULL || info == NULL || index >= kernel->record->choice_count) {
        return AOTC_ERROR_ARG;
    }
    const struct choice_record *choice =
        aotci_choice(&kernel->tables, kernel->record->first_choice + index);
    const aotc_choice_info known = {
        .value_count = choice->value_count,
        .name = aotci_string(&kernel->tables, choice->name),
    };
    return GIVE(info, known);
}

aotc_status aotc_kernel_get_choice_value(const aotc_kernel *kernel, uint32_t choice, uint32_t index,
                                         aotc_value *value) {
    if (kernel == NULL || value == NULL || choice >= kernel->record->choice_count) {
        return AOTC_ERROR_ARG;
    }
    const struct choice_record *record =
        aotci_choice(&kernel->tables, kernel->record->first_choice + choice);
    if (index >= record->value_count) {
        return AOTC_ERROR_ARG;
    }
    *value =
        aotci_value_of(&kernel->tables, aotci_value(&kernel->tables, record->first_value + index));
    value->name = aotci_string(&kernel->tables, record->name);
    return AOTC_OK;
}

aotc_status aotc_kernel_get_constant(const aotc_kernel *kernel, uint32_t index, aotc_value *value) {
    if (kernel == NULL || value == NULL || index >= kernel->record->constant_count) {
        return AOTC_ERROR_ARG;
    }
    *value = aotci_value_of(&kernel->tables,
                            aotci_value(&kernel->tables, kernel->record->first_constant + index));
    return AOTC_OK;
}

aotc_status aotc_kernel_get_guard(const aotc_kernel *kernel, uint32_t index,
                                  aotc_guard_info *info) {
    if (kernel == NULL || info == NULL || index >= kernel->record->guard_count) {
        return AOTC_ERROR_ARG;
    }
    const struct guard_record *guard =
        aotci_guard(&kernel->tables, kernel->record->first_guard + index);
    const aotc_guard_info known = {
        .promised = (uint32_t)(kernel->record->promises >> index & 1),
        .text = aotci_string(&kernel->tables, guard->text),
        .expression = aotci_string(&kernel->tables,
                                   aotci_expression(&kernel->tables, guard->expression)->text),
    };
    return GIVE(info, known);
}

aotc_status aotc_kernel_get_config_size(const aotc_kernel *kernel, uint32_t config,
                                        uint32_t *entry_count) {
    if (kernel == NULL || entry_count == NULL || config >= kernel->record->config_count) {
        return AOTC_ERROR_ARG;
    }
    *entry_count =
        aotci_config(&kernel->tables, kernel->record->first_config + config)->entry_count;
    return AOTC_OK;
}

aotc_status aotc_kernel_get_config_entry(const aotc_kernel *kernel, uint32_t config, uint32_t index,
                                         aotc_value *value) {
    if (kernel == NULL || value == NULL || config >= kernel->record->config_count) {
        return AOTC_ERROR_ARG;
    }
    const struct config_record *record =
        aotci_config(&kernel->tables, kernel->record->first_config + config);
    if (index >= record->entry_count) {
        return AOTC_ERROR_ARG;
    }
    *value =
        aotci_value_of(&kernel->tables, aotci_value(&kernel->tables, record->first_entry + index));
    return AOTC_OK;
}

static const char *condition_text(const struct aotc_kernel *kernel,
                                  const struct variant_record *variant) {
    return aotci_string(&kernel->tables, aotci_expression(&kernel->tables, variant->condition - 1)->text);
}

aotc_status aotc_kernel_get_variant(const aotc_kernel *kernel, uint32_t index,
                                    aotc_variant_info *info) {
    if (kernel == NULL || info == NULL || index >= kernel->record->variant_count) {
        return AOTC_ERROR_ARG;
    }
    const struct variant_record *variant =
        aotci_variant(&kernel->tables, kernel->record->first_variant + index);
    const aotc_variant_info known = {
        .config = variant->config,
        .combination = variant->combination,
        .num_threads = variant->num_threads,
        .guards = variant->guards,
        .cluster = {variant->cluster[0], variant->cluster[1], variant->cluster[2]},
        .dynamic_shared_bytes = variant->dynamic_shared_bytes,
        .static_shared_bytes = variant->static_shared_bytes,
        .registers = variant->registers,
        .stack_bytes = variant->stack_bytes,
        .spill_bytes = variant->spill_bytes,
        .cubin_bytes = aotci_blob(&kernel->tables, variant->cubin)->raw_bytes,
        .waits_pdl = (variant->flags & VARIANT_WAITS_PDL) != 0,
        .is_persistent = (variant->flags & VARIANT_IS_PERSISTENT) != 0,
        .cooperative = (variant->flags & VARIANT_COOPERATIVE) != 0,
        .target = aotci_string(&kernel->tables, aotci_target(&kernel->tables, variant->target)->name),
        .symbol = aotci_string(&kernel->tables, variant->symbol),
        .remarks = aotci_string(&kernel->tables, variant->remarks),
        .condition = variant->condition == 0 ? NULL : condition_text(kernel, variant),
    };
    return GIVE(info, known);
}
