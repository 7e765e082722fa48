/* format.h: the records of an archive, as in memory. The meaning of each field, and the rules that
 * validate.c checks, are in docs/reference/archive-format.md.
 *
 * Records are used in place, so the host must be little-endian; the static assertions keep the C
 * layout equal to the file's.
 */
#ifndef AOTCI_FORMAT_H
#define AOTCI_FORMAT_H

#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "archives are read in place, which needs a little-endian host"
#endif

enum {
    FORMAT_MAJOR = 9,
    FORMAT_MINOR = 0,
    HEADER_BYTES = 128,
    ROOT_PIECE_BYTES = 512,  /* of the root; each has a digest after the root, and each piece of
                              * digests a seal before it */
    STORED_ALIGN = 64,       /* of frames that are not compressed */
    DIGEST_BYTES = 32,
    SECTION_COUNT = 24,
    FEATURE_ZSTD = 1 << 0,
    KNOWN_FEATURES = FEATURE_ZSTD,
};

#define FORMAT_NONE UINT32_C(0xFFFFFFFF)

/* Limits: section 8. */
#define LIMIT_FILE_BYTES (UINT64_C(4) << 30)
#define LIMIT_DECODED_BYTES (UINT64_C(4) << 30)
enum {
    LIMIT_INDEX_BYTES = 16 << 20,
    LIMIT_BLOB_BYTES = 64 << 20,
    LIMIT_KERNELS = 65536,
    LIMIT_VARIANTS = 1048576,
    LIMIT_TARGETS = 64,
    LIMIT_PARAMS = 256,
    LIMIT_TYPE_VARIABLES = 16,
    LIMIT_CHOICES = 32,
    LIMIT_CHOICE_VALUES = 1024,
    LIMIT_GUARDS = 64,
    LIMIT_CONFIGS = 65536,
    LIMIT_CONSTANTS = 1024,
    LIMIT_CONFIG_ENTRIES = 256,
    LIMIT_COMBINATIONS = 1048576,
    LIMIT_CUBIN_PARAMS = 1024,
    LIMIT_TENSOR_MAPS = 32,
    LIMIT_PARAM_BYTES = 4096,
    LIMIT_NAME_BYTES = 255,
    LIMIT_EXPRESSION_TEXT_BYTES = 1024,
    LIMIT_TEXT_BYTES = 65535,
    LIMIT_CODE_BYTES = 4096,
    LIMIT_STACK = 32,
    LIMIT_RANK = 5,
    LIMIT_FEATURES = 32,
    LIMIT_TREE_DEPTH = 32,
    LIMIT_LEAF_CONFIGS = 16,
};

/* Size of the digests of so many bytes. */
static inline uint64_t aotci_digest_bytes(uint64_t size_bytes) {
    return (size_bytes + ROOT_PIECE_BYTES - 1) / ROOT_PIECE_BYTES * DIGEST_BYTES;
}

struct header_record {
    unsigned char magic[8];
    uint16_t major, minor;
    uint32_t header_bytes;
    uint64_t required_features, optional_features;
    uint64_t file_bytes, root_offset, root_bytes;
    unsigned char root_sha256[32];
    unsigned char zero[40];
};

struct directory_entry {
    uint32_t kind, record_bytes, offset, count;
};

enum section_kind {
    SECTION_ARCHIVE = 1,
    SECTION_TARGETS,
    SECTION_ENTRIES,
    SECTION_SLOTS,
    SECTION_KERNELS,
    SECTION_PARAMS,
    SECTION_TYPE_VARIABLES,
    SECTION_CHOICES,
    SECTION_VALUES,
    SECTION_GUARDS,
    SECTION_CONFIGS,
    SECTION_VARIANTS,
    SECTION_CUBIN_PARAMS,
    SECTION_TENSOR_MAPS,
    SECTION_SELECTIONS,
    SECTION_FEATURES,
    SECTION_BRANCHES,
    SECTION_LEAVES,
    SECTION_LEAF_CONFIGS,
    SECTION_EXPRESSIONS,
    SECTION_BLOBS,
    SECTION_FRAMES,
    SECTION_CODE,
    SECTION_STRINGS,
};

struct archive_record {
    uint32_t name, version, toolchain, zero;
};

enum target_feature { FEATURE_PLAIN, FEATURE_ARCH, FEATURE_FAMILY };

struct target_record {
    uint32_t name;
    uint8_t major, minor, feature, zero;
};

struct frame_record {
    uint32_t stored_bytes, raw_bytes;
    unsigned char sha256[32];
};

struct entry_record {
    uint32_t name, frame_count;
    uint64_t offset; /* of the frame of the kernel's index, followed by an 8-byte offset of each of
                      * its frames */
    struct frame_record frame;
};

/* Size of a kernel's index in the file, with the offsets that follow it. */
static inline uint64_t aotci_index_bytes(const struct entry_record *entry) {
    return entry->frame.stored_bytes + entry->frame_count * (uint64_t)sizeof(uint64_t);
}

struct slot_record {
    uint32_t tag, kernel; /* the high half of its name's hash; 1 + number, or 0 */
};

struct kernel_record {
    uint64_t promises;
    unsigned char source_sha256[32];
    uint32_t name, grid_rank;
    uint32_t first_param, param_count;
    uint32_t first_type_variable, type_variable_count;
    uint32_t first_choice, choice_count;
    uint32_t first_guard, guard_count;
    uint32_t first_config, config_count;
    uint32_t first_constant, constant_count;
    uint32_t first_variant, variant_count;
    uint32_t first_selection, selection_count;
};

enum { PARAM_OPTIONAL = 1 << 0 };

struct param_record {
    uint32_t name;
    uint8_t kind, dtype, type_variable, rank;
    uint32_t divisibility;
    uint8_t flags, access;
    uint16_t zero;
};

struct type_variable_record {
    uint32_t name;
    uint8_t dtype_count, zero[3];
    uint8_t dtypes[16];
};

struct choice_record {
    uint32_t name, first_value, value_count, zero;
};

struct value_record {
    uint32_t name, kind;
    uint64_t payload;
};

struct guard_record {
    uint32_t expression, text;
};

struct config_record {
    uint32_t first_entry, entry_count;
};

enum {
    VARIANT_WAITS_PDL = 1 << 0,
    VARIANT_IS_PERSISTENT = 1 << 1,
    VARIANT_COOPERATIVE = 1 << 2,
};

struct variant_record {
    uint64_t guards;
    uint32_t combination, config, symbol, cubin, ptx, remarks;
    uint32_t first_cubin_param;
    uint32_t grid[3];
    uint32_t scratch_bytes, scratch_align;
    uint32_t first_tensor_map;
    uint32_t dynamic_shared_bytes, static_shared_bytes, stack_bytes, spill_bytes;
    uint16_t target, cubin_param_count, tensor_map_count, param_bytes, num_threads, registers;
    uint8_t cluster[3];
    uint8_t flags;
    uint32_t condition;
};

enum cubin_param_source {
    SOURCE_ARGUMENT = 1,
    SOURCE_SCRATCH,
    SOURCE_TENSOR_MAP,
    SOURCE_EXPRESSION,
    SOURCE_GRID,
};

struct cubin_param_record {
    uint16_t offset, size, source, zero;
    uint32_t index;
};

struct tensor_map_record {
    uint32_t param;
    uint8_t data_type, rank, interleave, swizzle, l2_promotion, oob_fill;
    uint16_t zero_a;
    uint32_t address;
    uint32_t dims[5];
    uint32_t strides[4];
    uint16_t box[5];
    uint16_t zero_b;
    uint8_t element_strides[5];
    uint8_t zero_c[3];
};

struct selection_record {
    uint32_t target, gpu, combination; /* gpu: the driver's name for it, or 0 for any */
    uint32_t first_feature, feature_count;
    uint32_t first_branch, branch_count;
    uint32_t first_leaf; /* of as many leaves as branches, plus one */
};

struct feature_record {
    uint32_t expression;
};

#define FORMAT_LEAF (UINT32_C(1) << 31)

/* `feature`, `low` and `high` count from the selection's first. A child with FORMAT_LEAF is a leaf. */
struct branch_record {
    int64_t threshold;
    uint32_t feature, low, high, zero;
};

struct leaf_record {
    uint32_t first_config, config_count;
};

struct leaf_config_record {
    uint32_t config;
};

struct expression_record {
    uint32_t code_offset, code_bytes, text;
    uint16_t stack_depth, zero;
};

enum { BLOB_CUBIN = 1, BLOB_PTX = 2 };

struct blob_record {
    uint32_t frame, start, raw_bytes, kind; /* start: the sum of the sizes before it in the frame */
};

_Static_assert(sizeof(struct header_record) == HEADER_BYTES, "docs/reference/archive-format.md, section 1");
_Static_assert(sizeof(struct directory_entry) == 16, "docs/reference/archive-format.md, section 2");
_Static_assert(sizeof(struct kernel_record) == 112, "docs/reference/archive-format.md, section 3");
_Static_assert(sizeof(struct param_record) == 16, "docs/reference/archive-format.md, section 3");
_Static_assert(sizeof(struct type_variable_record) == 24, "docs/reference/archive-format.md, section 3");
_Static_assert(sizeof(struct value_record) == 16, "docs/reference/archive-format.md, section 3");
_Static_assert(sizeof(struct variant_record) == 96, "docs/reference/archive-format.md, section 3");
_Static_assert(sizeof(struct cubin_param_record) == 12, "docs/reference/archive-format.md, section 3");
_Static_assert(sizeof(struct tensor_map_record) == 72, "docs/reference/archive-format.md, section 3");
_Static_assert(sizeof(struct selection_record) == 32, "docs/reference/archive-format.md, section 3");
_Static_assert(sizeof(struct branch_record) == 24, "docs/reference/archive-format.md, section 3");
_Static_assert(sizeof(struct expression_record) == 16, "docs/reference/archive-format.md, section 3");
_Static_assert(sizeof(struct entry_record) == 56, "docs/reference/archive-format.md, section 3");
_Static_assert(sizeof(struct slot_record) == 8, "docs/reference/archive-format.md, section 3");
_Static_assert(sizeof(struct frame_record) == 40, "docs/reference/archive-format.md, section 3");
_Static_assert(sizeof(struct blob_record) == 16, "docs/reference/archive-format.md, section 3");

/* The slot of a kernel of this name, and in the high half the slot's tag: FNV-1a. */
static inline uint64_t aotci_name_hash(const char *name) {
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (const unsigned char *at = (const unsigned char *)name; *at != 0; ++at) {
        hash = (hash ^ *at) * UINT64_C(0x100000001B3);
    }
    return hash;
}

#endif
