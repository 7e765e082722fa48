/* tensor_map.c: encode a CUtensorMap, at launch or for memory.
 *
 * The driver's encoder reports any wrong size as INVALID_VALUE only. Its documented conditions are
 * checked here first, so that the message can name argument and dimension. Source: CUDA driver API,
 * cuTensorMapEncodeTiled.
 */
#include "tensor_map.h"

#include <inttypes.h>
#include <string.h>

#include "expression.h"

#define MAX_DIM (INT64_C(1) << 32)
#define MAX_STRIDE_BYTES (INT64_C(1) << 40)

enum {
    INTERLEAVE_32B = 2,
    DATA_TYPE_16U4_ALIGN16B = 14, /* packed types with 16-byte alignment: 14 and 15 */
};

/* The key of a map: the record's index, the address, five sizes, four strides; unused words are
 * zero. */
struct map_key {
    uint64_t words[MAP_KEY_WORDS];
};

enum { KEY_ADDRESS = 1, KEY_DIMS = 2, KEY_STRIDES = KEY_DIMS + LIMIT_RANK };
_Static_assert(KEY_STRIDES + LIMIT_RANK - 1 == MAP_KEY_WORDS, "what a map depends on");

/* An error in a tensor: a map's requirement, and the actual value. */
struct fault {
    struct aotci_text expected, got;
};

static bool is_wrong(struct fault *fault, const char *what, unsigned dimension,
                     const char *expected, int64_t got) {
    fault->expected = aotci_text("%s %u (0 is the innermost) %s", what, dimension, expected);
    fault->got = aotci_text("%" PRId64, got);
    return true;
}

/* Return whether no map can describe a key's tensor, and why. */
static bool has_fault(const struct map_key *key, unsigned rank, bool is_wide,
                      struct fault *fault) {
    const int64_t alignment_bytes = is_wide ? 32 : 16;
    const uint64_t address = key->words[KEY_ADDRESS];
    if (address % (uint64_t)alignment_bytes != 0) {
        fault->expected = aotci_text("an address that is a multiple of %" PRId64, alignment_bytes);
        fault->got = aotci_text("%#" PRIx64, address);
        return true;
    }
    for (unsigned i = 0; i < rank; ++i) {
        const int64_t size = (int64_t)key->words[KEY_DIMS + i];
        if (size < 1 || size > MAX_DIM) {
            return is_wrong(fault, "size of dimension", i, "from 1 to 2^32", size);
        }
        if (i == 0) {
            continue;
        }
        const int64_t stride = (int64_t)key->words[KEY_STRIDES + i - 1];
        if (stride < 0 || stride >= MAX_STRIDE_BYTES || stride % alignment_bytes != 0) {
            return is_wrong(fault, "stride of dimension", i,
                            is_wide ? "in bytes, a multiple of 32 below 2^40"
                                    : "in bytes, a multiple of 16 below 2^40",
                            stride);
        }
    }
    return false;
}

static aotc_status evaluate(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                            const struct tensor_map_record *map, uint32_t index, int64_t *value,
                            aotc_error *error) {
    const struct expression_record *expression = aotci_expression(&kernel->tables, index);
    const char *failure = aotci_evaluate(kernel, expression, desc->args, value);
    if (failure == NULL) {
        return AOTC_OK;
    }
    return aotci_bad_argument(
        kernel, error, map->param,
        aotci_text("a value of %s", aotci_string(&kernel->tables, expression->text)).chars, failure);
}

/* Evaluate the tensor for the map at `index`. */
static aotc_status describe(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                            uint32_t index, struct map_key *key, aotc_error *error) {
    const struct tensor_map_record *map = aotci_tensor_map(&kernel->tables, index);
    int64_t value = 0;
    *key = (struct map_key){.words = {(uint64_t)kernel->number << 32 | index}};
    aotc_status status = evaluate(kernel, desc, map, map->address, &value, error);
    key->words[KEY_ADDRESS] = (uint64_t)value;
    for (unsigned i = 0; status == AOTC_OK && i < map->rank; ++i) {
        status = evaluate(kernel, desc, map, map->dims[i], &value, error);
        key->words[KEY_DIMS + i] = (uint64_t)value;
        if (status == AOTC_OK && i != 0) {
            status = evaluate(kernel, desc, map, map->strides[i - 1], &value, error);
            key->words[KEY_STRIDES + i - 1] = (uint64_t)value;
        }
    }
    return status;
}

static aotc_status no_encoder(const struct aotc_archive *archive, const char *kernel,
                              aotc_error *error) {
    return AOTCI_FAIL(error, AOTC_ERROR_UNSUPPORTED, .file = archive->name, .kernel = kernel,
                      .field = "cuTensorMapEncodeTiled", .expected = "a driver that has it",
                      .got = "none", .remedy = "install a newer NVIDIA driver");
}

/* Check a tensor and have the driver encode its map. */
static aotc_status encode_new(const struct aotc_kernel *kernel, const struct tensor_map_record *map,
                              const struct map_key *key, CUtensorMap *encoded,
                              aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    const struct aotci_driver *driver = &archive->driver;
    const bool is_wide =
        map->interleave == INTERLEAVE_32B || map->data_type >= DATA_TYPE_16U4_ALIGN16B;
    struct fault fault;
    uint32_t box[LIMIT_RANK] = {0};
    uint32_t element_strides[LIMIT_RANK] = {0};
    if (driver->tensor_map_encode == NULL) {
        return no_encoder(archive, kernel->name, error);
    }
    if (has_fault(key, map->rank, is_wide, &fault)) {
        return aotci_bad_argument(kernel, error, map->param, fault.expected.chars,
                                  fault.got.chars);
    }
    for (unsigned i = 0; i < map->rank; ++i) {
        box[i] = map->box[i];
        element_strides[i] = map->element_strides[i];
    }
    const CUresult result = driver->tensor_map_encode(
        encoded, map->data_type, map->rank, (void *)(uintptr_t)key->words[KEY_ADDRESS],
        &key->words[KEY_DIMS], &key->words[KEY_STRIDES], box, element_strides, map->interleave,
        map->swizzle, map->l2_promotion, map->oob_fill);
    if (result != CUDA_SUCCESS) {
        const struct aotci_detail detail = {
            .file = archive->name, .kernel = kernel->name, .field = "cuTensorMapEncodeTiled"};
        return aotci_driver_fail(driver, result, error, detail);
    }
    aotci_memo_keep(&archive->maps, key->words, MAP_KEY_WORDS, encoded->opaque, MAP_WORDS);
    return AOTC_OK;
}

/* Only checked tensors are in the cache, so only new ones are checked. */
aotc_status aotci_tensor_map_encode(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                                    uint32_t index, CUtensorMap *encoded, aotc_error *error) {
    const struct aotc_archive *archive = kernel->archive;
    struct map_key key;
    const aotc_status status = describe(kernel, desc, index, &key, error);
    if (status != AOTC_OK || aotci_memo_find(&archive->maps, key.words, MAP_KEY_WORDS,
                                             encoded->opaque, MAP_WORDS)) {
        return status;
    }
    return encode_new(kernel, aotci_tensor_map(&kernel->tables, index), &key, encoded, error);
}

/* ---- maps that kernels take from memory
 * ---------------------------------------------------------------------------- */

/* The compiler uses the same data types and boxes for maps of these tiles. */
enum { MAX_BOX_ELEMS = 256, MIN_ROW_BYTES = 16, L2_PROMOTION_128B = 2 };

static const uint8_t data_types[] = {
    [AOTC_I1] = 0,  [AOTC_I8] = 0,   [AOTC_I16] = 1,  [AOTC_I32] = 3,     [AOTC_I64] = 5,
    [AOTC_U8] = 0,  [AOTC_U16] = 1,  [AOTC_U32] = 2,  [AOTC_U64] = 4,     [AOTC_FP16] = 6,
    [AOTC_BF16] = 9, [AOTC_FP32] = 7, [AOTC_FP64] = 8, [AOTC_FP8E4NV] = 0, [AOTC_FP8E5] = 0,
};

static aotc_status refuse(const aotc_archive *archive, aotc_error *error, const char *field,
                          const char *expected, const char *got) {
    return AOTCI_FAIL(error, AOTC_ERROR_ARG, .file = archive->name, .field = field,
                      .expected = expected, .got = got);
}

/* Check that tiles of a shape can be moved. */
static aotc_status check_block(const aotc_archive *archive, const uint32_t *block, unsigned rank,
                               uint32_t size_bytes, aotc_error *error) {
    for (unsigned i = 0; i < rank; ++i) {
        if (block[i] == 0 || (block[i] & (block[i] - 1)) != 0) {
            return refuse(archive, error, aotci_text("block[%u]", i).chars, "a power of two",
                          aotci_text("%" PRIu32, block[i]).chars);
        }
    }
    if ((uint64_t)block[rank - 1] * size_bytes < MIN_ROW_BYTES) {
        return refuse(archive, error, aotci_text("block[%u]", rank - 1).chars,
                      aotci_text("%" PRIu32 " or more", MIN_ROW_BYTES / size_bytes).chars,
                      aotci_text("%" PRIu32, block[rank - 1]).chars);
    }
    return AOTC_OK;
}

/* Fill the key with the tensor, its innermost dimension first. */
static aotc_status take_tensor(const aotc_archive *archive, const aotc_tensor *tensor,
                               uint32_t size_bytes, struct map_key *key, aotc_error *error) {
    const unsigned rank = tensor->rank;
    struct fault fault;
    if (tensor->strides[rank - 1] != 1 && tensor->shape[rank - 1] > 1) {
        return refuse(archive, error, "tensor", "a last axis without gaps",
                      aotci_text("a stride of %" PRId64, tensor->strides[rank - 1]).chars);
    }
    *key = (struct map_key){.words = {0}};
    key->words[KEY_ADDRESS] = (uint64_t)(uintptr_t)tensor->address;
    for (unsigned i = 0; i < rank; ++i) {
        int64_t stride_bytes = 0;
        key->words[KEY_DIMS + i] = (uint64_t)tensor->shape[rank - 1 - i];
        if (i == 0) {
            continue;
        }
        if (__builtin_mul_overflow(tensor->strides[rank - 1 - i], (int64_t)size_bytes,
                                   &stride_bytes)) {
            stride_bytes = -1;
        }
        key->words[KEY_STRIDES + i - 1] = (uint64_t)stride_bytes;
    }
    if (has_fault(key, rank, false, &fault)) {
        return refuse(archive, error, "tensor", fault.expected.chars, fault.got.chars);
    }
    return AOTC_OK;
}

/* Divide tiles into boxes, innermost dimension first; return the swizzle's number. With several
 * rows, a box row is as wide as the largest swizzle span it fills; a single row is as wide as a box
 * can be. */
static int cut(const uint32_t *block, unsigned rank, uint32_t size_bytes, uint32_t *box) {
    int swizzle = 0;
    bool has_rows = false;
    for (unsigned i = 0; i < rank; ++i) {
        const uint32_t extent = block[rank - 1 - i];
        box[i] = extent < MAX_BOX_ELEMS ? extent : MAX_BOX_ELEMS;
        has_rows = has_rows || (i != 0 && extent > 1);
    }
    for (int number = 3; has_rows && number > 0 && swizzle == 0; --number) {
        const uint32_t span_bytes = 16u << number;
        if ((uint64_t)block[rank - 1] * size_bytes >= span_bytes) {
            swizzle = number;
            box[0] = span_bytes / size_bytes;
        }
    }
    return swizzle;
}

aotc_status aotc_tensor_map_encode(const aotc_archive *archive, const aotc_tensor *tensor,
                                   aotc_dtype dtype, const uint32_t *block, aotc_tensor_map *map,
                                   aotc_error *error) {
    static const uint32_t element_strides[LIMIT_RANK] = {1, 1, 1, 1, 1};
    const uint32_t size_bytes = aotc_dtype_bytes(dtype);
    if (archive == NULL || tensor == NULL || tensor->shape == NULL || tensor->strides == NULL ||
        tensor->rank < 1 || tensor->rank > LIMIT_RANK || block == NULL || map == NULL ||
        size_bytes == 0) {
        return AOTCI_FAIL(error, AOTC_ERROR_ARG, .field = "aotc_tensor_map_encode",
                          .expected = "a tensor of rank 1 to 5, its dtype, a block, and a place",
                          .got = "something else");
    }
    const struct aotci_driver *driver = &archive->driver;
    if (atomic_load_explicit(&archive->contexts, memory_order_acquire) == NULL) {
        return AOTCI_FAIL(error, AOTC_ERROR_STATE, .file = archive->name, .field = "archive",
                          .expected = "to be loaded", .got = "not yet",
                          .remedy = "call aotc_load first");
    }
    if (driver->tensor_map_encode == NULL) { /* or no load has needed it yet */
        const aotc_status found = aotci_use_entries(archive, DRIVER_MAPS, error);
        if (found != AOTC_OK || driver->tensor_map_encode == NULL) {
            return found != AOTC_OK ? found : no_encoder(archive, NULL, error);
        }
    }
    struct map_key key;
    aotc_status status = check_block(archive, block, tensor->rank, size_bytes, error);
    if (status == AOTC_OK) {
        status = take_tensor(archive, tensor, size_bytes, &key, error);
    }
    if (status != AOTC_OK) {
        return status;
    }
    CUtensorMap encoded;
    uint32_t box[LIMIT_RANK] = {0};
    const int swizzle = cut(block, tensor->rank, size_bytes, box);
    const CUresult result = driver->tensor_map_encode(
        &encoded, data_types[dtype], tensor->rank, (void *)(uintptr_t)key.words[KEY_ADDRESS],
        &key.words[KEY_DIMS], &key.words[KEY_STRIDES], box, element_strides, 0, swizzle,
        L2_PROMOTION_128B, 0);
    if (result != CUDA_SUCCESS) {
        const struct aotci_detail detail = {.file = archive->name,
                                            .field = "cuTensorMapEncodeTiled"};
        return aotci_driver_fail(driver, result, error, detail);
    }
    memcpy(map, &encoded, sizeof encoded);
    return AOTC_OK;
}

_Static_assert(sizeof(aotc_tensor_map) == sizeof(CUtensorMap), "what a map takes");
