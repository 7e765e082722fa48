/* tensor_map.c: encode a CUtensorMap at launch.
 *
 * The driver's encoder answers a wrong size with INVALID_VALUE and no word more; the conditions
 * that it documents are checked here first, so that the message can name argument and dimension.
 * Source: CUDA driver API, cuTensorMapEncodeTiled.
 */
#include "tensor_map.h"

#include <inttypes.h>

#include "expression.h"
#include "map_cache.h"

#define MAX_DIM (INT64_C(1) << 32)
#define MAX_STRIDE_BYTES (INT64_C(1) << 40)

enum {
    INTERLEAVE_32B = 2,
    DATA_TYPE_16U4_ALIGN16B = 14, /* packed types that are aligned to 16 bytes: 14 and 15 */
};

enum { KEY_ADDRESS = 1, KEY_DIMS = 2, KEY_STRIDES = KEY_DIMS + LIMIT_RANK };
_Static_assert(KEY_STRIDES + LIMIT_RANK - 1 == MAP_KEY_WORDS, "what a map depends on");

static aotc_status wrong(const struct aotc_kernel *kernel, aotc_error *error,
                         const struct tensor_map_record *map, const char *what, unsigned dimension,
                         const char *expected, int64_t got) {
    return aotci_bad_argument(
        kernel, error, map->param,
        aotci_text("%s %u (0 is the innermost) %s", what, dimension, expected).chars,
        aotci_text("%" PRId64, got).chars);
}

static aotc_status evaluate(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                            const struct tensor_map_record *map, uint32_t index, int64_t *value,
                            aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    const struct expression_record *expression = aotci_expression(archive, index);
    const char *failure = aotci_evaluate(archive, expression, desc->args, value);
    if (failure == NULL) {
        return AOTC_OK;
    }
    return aotci_bad_argument(
        kernel, error, map->param,
        aotci_text("a value of %s", aotci_string(archive, expression->text)).chars, failure);
}

/* Evaluate what the map at `index` is to describe, and check it. The key's words: the index, the
 * address, five sizes, four strides. */
static aotc_status describe(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                            uint32_t index, struct aotci_map_key *key, aotc_error *error) {
    const struct tensor_map_record *map = aotci_tensor_map(kernel->archive, index);
    const bool is_wide =
        map->interleave == INTERLEAVE_32B || map->data_type >= DATA_TYPE_16U4_ALIGN16B;
    const int64_t alignment_bytes = is_wide ? 32 : 16;
    int64_t value = 0;
    *key = (struct aotci_map_key){.words = {index}};
    aotc_status status = evaluate(kernel, desc, map, map->address, &value, error);
    if (status != AOTC_OK) {
        return status;
    }
    if (value % alignment_bytes != 0) {
        return aotci_bad_argument(
            kernel, error, map->param,
            aotci_text("an address that is a multiple of %" PRId64, alignment_bytes).chars,
            aotci_text("%#" PRIx64, (uint64_t)value).chars);
    }
    key->words[KEY_ADDRESS] = (uint64_t)value;
    for (unsigned i = 0; i < map->rank; ++i) {
        status = evaluate(kernel, desc, map, map->dims[i], &value, error);
        if (status == AOTC_OK && (value < 1 || value > MAX_DIM)) {
            status = wrong(kernel, error, map, "size of dimension", i, "from 1 to 2^32", value);
        }
        key->words[KEY_DIMS + i] = (uint64_t)value;
        if (status == AOTC_OK && i != 0) {
            status = evaluate(kernel, desc, map, map->strides[i - 1], &value, error);
            if (status == AOTC_OK &&
                (value < 0 || value >= MAX_STRIDE_BYTES || value % alignment_bytes != 0)) {
                status = wrong(kernel, error, map, "stride of dimension", i,
                               is_wide ? "in bytes, a multiple of 32 below 2^40"
                                       : "in bytes, a multiple of 16 below 2^40",
                               value);
            }
            key->words[KEY_STRIDES + i - 1] = (uint64_t)value;
        }
        if (status != AOTC_OK) {
            return status;
        }
    }
    return AOTC_OK;
}

aotc_status aotci_tensor_map_encode(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                                    uint32_t index, CUtensorMap *encoded, aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    const struct aotci_driver *driver = &archive->driver;
    const struct tensor_map_record *map = aotci_tensor_map(archive, index);
    struct aotci_map_key key;
    uint32_t box[LIMIT_RANK] = {0};
    uint32_t element_strides[LIMIT_RANK] = {0};
    if (driver->tensor_map_encode == NULL) {
        return AOTCI_FAIL(error, AOTC_ERROR_UNSUPPORTED, .file = archive->name,
                          .kernel = kernel->name, .field = "cuTensorMapEncodeTiled",
                          .expected = "a driver that has it", .got = "none",
                          .remedy = "install a newer NVIDIA driver");
    }
    const aotc_status status = describe(kernel, desc, index, &key, error);
    if (status != AOTC_OK || aotci_map_find(archive->map_slots, &key, encoded)) {
        return status;
    }
    for (unsigned i = 0; i < map->rank; ++i) {
        box[i] = map->box[i];
        element_strides[i] = map->element_strides[i];
    }
    const CUresult result = driver->tensor_map_encode(
        encoded, map->data_type, map->rank, (void *)(uintptr_t)key.words[KEY_ADDRESS],
        &key.words[KEY_DIMS], &key.words[KEY_STRIDES], box, element_strides, map->interleave,
        map->swizzle, map->l2_promotion, map->oob_fill);
    if (result != CUDA_SUCCESS) {
        const struct aotci_detail detail = {
            .file = archive->name, .kernel = kernel->name, .field = "cuTensorMapEncodeTiled"};
        return aotci_driver_fail(driver, result, error, detail);
    }
    aotci_map_keep(archive->map_slots, &key, encoded);
    return AOTC_OK;
}
