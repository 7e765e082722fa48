/* validate_variant.c: check the variants of a kernel: params of the cubin, tensor maps,
 * expressions. */
#include <stddef.h>
#include <string.h>

#include "expression.h"
#include "validate_walk.h"

static bool is_power_of_two(uint32_t value) { return value != 0 && (value & (value - 1)) == 0; }

/* The dtype of a param in a variant: its own, or the combination's digit of its type variable. */
AOTCI_APART static unsigned dtype_in(const struct walk *walk, const struct param_record *param,
                                     uint32_t combination) {
    const struct kernel_record *kernel = walk->kernel;
    for (uint32_t i = kernel->choice_count; i-- > 0;) {
        combination /= aotci_choice(walk->tables, kernel->first_choice + i)->value_count;
    }
    for (uint32_t i = kernel->type_variable_count; i-- > 0;) {
        const struct type_variable_record *variable =
            aotci_type_variable(walk->tables, kernel->first_type_variable + i);
        if (i + 1 == param->type_variable) {
            return variable->dtypes[combination % variable->dtype_count];
        }
        combination /= variable->dtype_count;
    }
    return AOTC_DTYPE_NONE;
}

static bool is_valid_argument(const struct walk *walk, const struct variant_record *variant,
                              const struct cubin_param_record *cubin_param) {
    const struct kernel_record *kernel = walk->kernel;
    if (cubin_param->index >= kernel->param_count) {
        return false;
    }
    const struct param_record *param =
        aotci_param(walk->tables, kernel->first_param + cubin_param->index);
    if (param->kind == AOTC_POINTER) {
        return cubin_param->size == 8;
    }
    const unsigned dtype =
        param->type_variable == 0 ? param->dtype : dtype_in(walk, param, variant->combination);
    return param->kind == AOTC_SCALAR && cubin_param->size == aotc_dtype_bytes((aotc_dtype)dtype);
}

AOTCI_APART static bool is_valid_source(struct walk *walk, const struct variant_record *variant,
                                        const struct cubin_param_record *cubin_param) {
    switch (cubin_param->source) {
    case SOURCE_SCRATCH:
        return cubin_param->index == 0 && cubin_param->size == 8 &&
               variant->scratch_bytes != FORMAT_NONE;
    case SOURCE_TENSOR_MAP:
        return cubin_param->index < variant->tensor_map_count && cubin_param->size == 128;
    case SOURCE_EXPRESSION:
        return (cubin_param->size == 4 || cubin_param->size == 8) &&
               aotci_walk_is_expression(walk, cubin_param->index);
    case SOURCE_GRID:
        return cubin_param->index < 3 && cubin_param->size == 4 &&
               (variant->flags & VARIANT_IS_PERSISTENT) != 0;
    default:
        return false;
    }
}

static aotc_status check_cubin_params(struct walk *walk, uint32_t number,
                                      const struct variant_record *variant) {
    uint32_t end = 0;
    for (uint32_t i = 0; i < variant->cubin_param_count; ++i) {
        const uint32_t index = variant->first_cubin_param + i;
        const struct cubin_param_record *cubin_param = aotci_cubin_param(walk->tables, index);
        const bool is_valid = cubin_param->source == SOURCE_ARGUMENT
                                  ? is_valid_argument(walk, variant, cubin_param)
                                  : is_valid_source(walk, variant, cubin_param);
        if (!is_valid || cubin_param->zero != 0) {
            return aotci_walk_bad(walk, SECTION_CUBIN_PARAMS, index, "source, index, size",
                                  "a source of that size");
        }
        /* A tensor map is aligned to 64 bytes in memory, but the block need not be. All sizes are powers of two. */
        const uint32_t alignment = cubin_param->size == 128 ? 16 : cubin_param->size;
        if (cubin_param->offset < end || (cubin_param->offset & (alignment - 1)) != 0) {
            return aotci_walk_bad(walk, SECTION_CUBIN_PARAMS, index, "offset",
                                  "aligned, after the previous one");
        }
        end = (uint32_t)cubin_param->offset + cubin_param->size;
    }
    if (end > LIMIT_PARAM_BYTES) {
        return aotci_walk_above(walk, "parameter block", end, LIMIT_PARAM_BYTES);
    }
    if (end != variant->param_bytes) {
        return aotci_walk_bad(walk, SECTION_VARIANTS, number, "param_bytes",
                              "the end of the last cubin param");
    }
    return AOTC_OK;
}

/* Size of an element of each CUtensorMapDataType, 0 for the packed ones, and whether it has a NaN
 * fill. */
static const struct {
    uint8_t bytes;
    bool has_nan;
} data_types[16] = {
    {1, false}, {2, false}, {4, false}, {4, false}, {8, false}, {8, false}, {2, true},  {4, true},
    {8, true},  {2, true},  {4, true},  {4, true},  {4, true},  {0, false}, {0, false}, {0, false},
};

/* Size of the rows that a swizzle permutes, by its number. */
static const uint8_t swizzle_spans[7] = {0, 32, 64, 128, 128, 128, 128};

/* Whether the driver accepts the innermost extent of the boxes and the fill. */
static bool has_valid_rows(const struct tensor_map_record *map) {
    const uint32_t row_bytes = (uint32_t)map->box[0] * data_types[map->data_type].bytes;
    const uint32_t span_bytes = swizzle_spans[map->swizzle];
    if (map->oob_fill != 0 && !data_types[map->data_type].has_nan) {
        return false;
    }
    if (map->interleave != 0 || row_bytes == 0) {
        return true;
    }
    return row_bytes % 16 == 0 && (span_bytes == 0 || row_bytes <= span_bytes);
}

static bool has_valid_boxes(const struct tensor_map_record *map) {
    for (unsigned i = 0; i < LIMIT_RANK; ++i) {
        const bool used = i < map->rank;
        const bool box_fits = used ? map->box[i] >= 1 && map->box[i] <= 256 : map->box[i] == 0;
        const bool step_fits = used ? map->element_strides[i] >= 1 && map->element_strides[i] <= 8
                                    : map->element_strides[i] == 0;
        if (!box_fits || !step_fits) {
            return false;
        }
    }
    return map->zero_b == 0 && map->zero_c[0] == 0 && map->zero_c[1] == 0 && map->zero_c[2] == 0 &&
           has_valid_rows(map);
}

/* Whether the fields before the boxes are valid. */
static bool has_valid_tensor(struct walk *walk, const struct tensor_map_record *map) {
    const struct kernel_record *kernel = walk->kernel;
    if (map->param >= kernel->param_count ||
        aotci_param(walk->tables, kernel->first_param + map->param)->kind == AOTC_SCALAR) {
        return false;
    }
    const unsigned least_rank = map->interleave != 0 ? 3 : 1;
    if (map->data_type > 15 || map->rank < least_rank || map->rank > LIMIT_RANK ||
        map->interleave > 2 || map->swizzle > 6 || map->l2_promotion > 3 || map->oob_fill > 1 ||
        (map->interleave == 2 && map->swizzle != 1)) {
        return false;
    }
    if (map->zero_a != 0 || !aotci_walk_is_expression(walk, map->address)) {
        return false;
    }
    for (unsigned i = 0; i < LIMIT_RANK; ++i) {
        const bool used = i < map->rank;
        if (used ? !aotci_walk_is_expression(walk, map->dims[i]) : map->dims[i] != FORMAT_NONE) {
            return false;
        }
        if (i != 0 && (used ? !aotci_walk_is_expression(walk, map->strides[i - 1])
                            : map->strides[i - 1] != FORMAT_NONE)) {
            return false;
        }
    }
    return true;
}

/* `other`, unless it is NULL, is a valid map. */
static bool is_valid_tensor_map(struct walk *walk, const struct tensor_map_record *other,
                                const struct tensor_map_record *map) {
    const bool is_known = other != NULL &&
                          memcmp(other, map, offsetof(struct tensor_map_record, box)) == 0;
    return (is_known || has_valid_tensor(walk, map)) && has_valid_boxes(map);
}

AOTCI_APART static aotc_status check_tensor_maps(struct walk *walk,
                                                 const struct variant_record *other,
                                                 const struct variant_record *variant) {
    const uint32_t known = other != NULL ? other->tensor_map_count : 0;
    for (uint32_t i = 0; i < variant->tensor_map_count; ++i) {
        const uint32_t index = variant->first_tensor_map + i;
        const struct tensor_map_record *like =
            i < known ? aotci_tensor_map(walk->tables, other->first_tensor_map + i) : NULL;
        if (!is_valid_tensor_map(walk, like, aotci_tensor_map(walk->tables, index))) {
            return aotci_walk_bad(walk, SECTION_TENSOR_MAPS, index, "fields",
                                  "what cuTensorMapEncodeTiled allows");
        }
    }
    return AOTC_OK;
}

/* The grid and the scratch memory of a variant, adjacent in its record. */
enum {
    FIRST_EXPRESSION = offsetof(struct variant_record, grid),
    EXPRESSION_BYTES = offsetof(struct variant_record, first_tensor_map) - FIRST_EXPRESSION,
};
_Static_assert(EXPRESSION_BYTES == 5 * sizeof(uint32_t), "three dimensions, size and alignment");

AOTCI_APART static aotc_status check_grid_and_scratch(struct walk *walk, uint32_t index,
                                                      const struct variant_record *variant) {
    for (unsigned i = 0; i < 3; ++i) {
        const bool fits = i < walk->kernel->grid_rank
                              ? aotci_walk_is_expression(walk, variant->grid[i])
                              : variant->grid[i] == FORMAT_NONE;
        if (!fits) {
            return aotci_walk_bad(walk, SECTION_VARIANTS, index, "grid",
                                  "as many expressions as the grid's rank");
        }
    }
    const bool scratch_fits = variant->scratch_bytes == FORMAT_NONE
                                  ? variant->scratch_align == 0
                                  : aotci_walk_is_expression(walk, variant->scratch_bytes) &&
                                        is_power_of_two(variant->scratch_align) &&
                                        variant->scratch_align <= 4096;
    if (!scratch_fits) {
        return aotci_walk_bad(walk, SECTION_VARIANTS, index, "scratch_bytes",
                              "an expression and its alignment");
    }
    return AOTC_OK;
}

static aotc_status check_variant_expressions(struct walk *walk, uint32_t index,
                                             const struct variant_record *other,
                                             const struct variant_record *variant) {
    aotc_status status = AOTC_OK;
    if (other == NULL ||
        memcmp((const unsigned char *)other + FIRST_EXPRESSION,
               (const unsigned char *)variant + FIRST_EXPRESSION, EXPRESSION_BYTES) != 0) {
        status = check_grid_and_scratch(walk, index, variant);
    }
    if (status == AOTC_OK && variant->condition != 0 &&
        !aotci_walk_is_expression(walk, variant->condition - 1)) {
        return aotci_walk_bad(walk, SECTION_VARIANTS, index, "condition", "an expression or 0");
    }
    return status == AOTC_OK && variant->tensor_map_count != 0
               ? check_tensor_maps(walk, other, variant)
               : status;
}

static bool is_name(struct walk *walk, uint32_t offset) {
    const bool is_known = offset == walk->name;
    walk->name = offset;
    return is_known || aotci_is_name(walk->tables, offset);
}

static bool is_text(struct walk *walk, uint32_t offset) {
    const bool is_known = offset == walk->text;
    walk->text = offset;
    return is_known || aotci_is_text(walk->tables, offset, LIMIT_TEXT_BYTES);
}

static aotc_status check_variant_numbers(struct walk *walk, uint32_t index,
                                         const struct variant_record *variant) {
    const struct aotci_tables *tables = walk->tables;
    const struct kernel_record *kernel = walk->kernel;
    const uint64_t known_guards =
        kernel->guard_count == 64 ? UINT64_MAX : (UINT64_C(1) << kernel->guard_count) - 1;
    if ((variant->guards & ~known_guards) != 0 || (kernel->promises & ~variant->guards) != 0) {
        return aotci_walk_bad(walk, SECTION_VARIANTS, index, "guards",
                              "the kernel's guards, with all promises");
    }
    if (variant->combination >= walk->combinations || variant->config >= kernel->config_count ||
        variant->target >= aotci_count(tables, SECTION_TARGETS)) {
        return aotci_walk_bad(walk, SECTION_VARIANTS, index, "combination, config, target",
                              "ones that exist");
    }
    if (!is_name(walk, variant->symbol) || !is_text(walk, variant->remarks)) {
        return aotci_walk_bad(walk, SECTION_VARIANTS, index, "symbol, remarks", "a name, a text");
    }
    const uint32_t blob_count = aotci_count(tables, SECTION_BLOBS);
    if (variant->cubin >= blob_count || aotci_blob(tables, variant->cubin)->kind != BLOB_CUBIN ||
        (variant->ptx != FORMAT_NONE &&
         (variant->ptx >= blob_count || aotci_blob(tables, variant->ptx)->kind != BLOB_PTX))) {
        return aotci_walk_bad(walk, SECTION_VARIANTS, index, "cubin, ptx", "blobs of that kind");
    }
    const struct target_record *target = aotci_target(tables, variant->target);
    const uint32_t arch = 10u * target->major + target->minor;
    uint32_t *cubin_arch = &walk->cubin_arch[variant->cubin];
    if (*cubin_arch != 0 && *cubin_arch != arch) {
        return aotci_walk_bad(walk, SECTION_VARIANTS, index, "cubin",
                              "a cubin of one architecture");
    }
    *cubin_arch = arch;
    const unsigned cluster =
        (unsigned)variant->cluster[0] * variant->cluster[1] * variant->cluster[2];
    if (variant->num_threads < 1 || variant->num_threads > 1024 || cluster < 1 || cluster > 16 ||
        variant->flags > (VARIANT_WAITS_PDL | VARIANT_IS_PERSISTENT | VARIANT_COOPERATIVE) ||
        (variant->flags & VARIANT_COOPERATIVE && variant->flags & VARIANT_IS_PERSISTENT)) {
        return aotci_walk_bad(walk, SECTION_VARIANTS, index, "num_threads, cluster, flags",
                              "what the format allows");
    }
    return AOTC_OK;
}

/* Whether a set of guards comes before another: more guards first, then the lesser number. */
AOTCI_APART static bool are_guards_before(uint64_t a, uint64_t b) {
    uint64_t left_a = a;
    uint64_t left_b = b;
    while (left_a != 0 && left_b != 0) {
        left_a &= left_a - 1; /* clears the lowest bit */
        left_b &= left_b - 1;
    }
    return left_a == left_b ? a < b : left_b == 0;
}

/* Order: target, combination, more guards first, guards, config, one with a condition first. */
static bool is_before(const struct variant_record *a, const struct variant_record *b) {
    if (a->target != b->target) {
        return a->target < b->target;
    }
    if (a->combination != b->combination) {
        return a->combination < b->combination;
    }
    if (a->guards != b->guards) {
        return are_guards_before(a->guards, b->guards);
    }
    return a->config != b->config ? a->config < b->config : a->condition != 0 && b->condition == 0;
}

/* Whether a variant has the cubin params of another, checked one, with the same meaning: dtypes
 * follow from the combination. */
static bool repeats_params(const struct walk *walk, const struct variant_record *other,
                           const struct variant_record *variant) {
    const struct aotci_table *table = &walk->tables->sections[SECTION_CUBIN_PARAMS];
    return other->cubin_param_count == variant->cubin_param_count &&
           other->param_bytes == variant->param_bytes &&
           (other->combination == variant->combination || !walk->has_typed_scalars) &&
           other->tensor_map_count == variant->tensor_map_count &&
           other->scratch_bytes == variant->scratch_bytes && other->flags == variant->flags &&
           memcmp(table->records + (size_t)other->first_cubin_param * table->stride,
                  table->records + (size_t)variant->first_cubin_param * table->stride,
                  (size_t)variant->cubin_param_count * table->stride) == 0;
}

/* Whether the params and the tensor maps of a variant are each the next ones, or the other's. */
static bool has_lists(struct walk *walk, const struct variant_record *other,
                      const struct variant_record *variant) {
    static const struct variant_record nothing;
    const struct variant_record *shared = other != NULL ? other : &nothing;
    const bool shares_params = variant->cubin_param_count != 0 &&
                               variant->first_cubin_param == shared->first_cubin_param &&
                               variant->cubin_param_count == shared->cubin_param_count;
    const bool shares_maps = variant->tensor_map_count != 0 &&
                             variant->first_tensor_map == shared->first_tensor_map &&
                             variant->tensor_map_count == shared->tensor_map_count;
    return (shares_params || aotci_walk_claim(walk, SECTION_CUBIN_PARAMS, variant->first_cubin_param,
                                              variant->cubin_param_count)) &&
           (shares_maps || aotci_walk_claim(walk, SECTION_TENSOR_MAPS, variant->first_tensor_map,
                                            variant->tensor_map_count));
}

static aotc_status check_variant(struct walk *walk, uint32_t index,
                                 const struct variant_record *other,
                                 const struct variant_record *variant) {
    if (variant->cubin_param_count > LIMIT_CUBIN_PARAMS) {
        return aotci_walk_above(walk, "cubin params of a variant", variant->cubin_param_count,
                                LIMIT_CUBIN_PARAMS);
    }
    if (variant->tensor_map_count > LIMIT_TENSOR_MAPS) {
        return aotci_walk_above(walk, "tensor maps of a variant", variant->tensor_map_count,
                                LIMIT_TENSOR_MAPS);
    }
    if (!has_lists(walk, other, variant)) {
        return aotci_walk_bad(walk, SECTION_VARIANTS, index, "first_cubin_param, first_tensor_map",
                              "the next records, or those of the variant before");
    }
    aotc_status status = check_variant_numbers(walk, index, variant);
    status = status == AOTC_OK ? check_variant_expressions(walk, index, other, variant) : status;
    if (status == AOTC_OK && (other == NULL || !repeats_params(walk, other, variant))) {
        status = check_cubin_params(walk, index, variant);
    }
    return status;
}

aotc_status aotci_check_variants(struct walk *walk) {
    const struct variant_record *before = NULL;
    const struct variant_record *others[2] = {NULL, NULL}; /* the last without tensor maps, and with
                                                            * some */
    for (uint32_t i = 0; i < walk->kernel->variant_count; ++i) {
        const struct variant_record *variant = aotci_variant(walk->tables, i);
        const struct variant_record **other = &others[variant->tensor_map_count != 0];
        const aotc_status status = check_variant(walk, i, *other, variant);
        if (status != AOTC_OK) {
            return status;
        }
        if (before != NULL && !is_before(before, variant)) {
            return aotci_walk_bad(walk, SECTION_VARIANTS, i, "order",
                                  "target, combination, guards, config, condition");
        }
        before = *other = variant;
    }
    return AOTC_OK;
}
