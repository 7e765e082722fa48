/* archive.h: an opened archive in memory.
 *
 * Opening a kernel checks its index (validate.c), and opening all of them checks the root, so
 * afterwards their records are used in place and without checks. load.c adds the state on GPUs. It
 * only ever grows, and each part is published whole, so launches read it without a lock.
 */
#ifndef AOTCI_ARCHIVE_H
#define AOTCI_ARCHIVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "driver.h"
#include "error.h"
#include "format.h"
#include "memo.h"

/* A section of an index. `stride` exceeds the record's size in archives of a newer minor version.
 */
struct aotci_table {
    const unsigned char *records; /* NULL for a root not in memory: root.c */
    uint32_t count;
    uint32_t stride;
    uint32_t offset; /* in the root or index */
};

/* The tables of the root of an archive, or of the index of a kernel. Tables of the other kind have
 * no records. */
struct aotci_tables {
    const char *file;           /* for messages */
    const unsigned char *bytes; /* aligned to 8 */
    uint32_t size_bytes;
    bool is_partial; /* verified only in part: root.c */
    bool is_newer; /* of a newer minor version than this library's */
    struct aotci_table sections[SECTION_COUNT + 1];
};

struct aotci_test; /* a comparison: guard.h */

/* A condition on the arguments: tests that must all hold, or bytecode if there are none. */
struct aotci_guard {
    const struct expression_record *expression;
    const struct aotci_test *tests;
    uint32_t test_count;
};

/* The contents of a frame or a blob, aligned to 8: within the archive, or in memory of
 * `size_bytes`. */
struct aotci_content {
    const unsigned char *bytes;
    unsigned char *owned; /* NULL: the archive's */
    size_t size_bytes;
};

/* A kernel; it exists once opened (kernel_index.c). */
struct aotc_kernel {
    struct aotc_archive *archive;
    struct entry_record entry; /* of the root */
    const struct kernel_record *record;
    struct aotci_tables tables;
    uint32_t number; /* in the archive */
    const char *name;
    struct aotci_content index;
    const unsigned char *places; /* offsets of its frames, after the index; NULL: read when needed */
    struct aotci_guard *guards; /* start of one allocation with all that follows (kernel_index.c) */
    struct aotci_test *tests; /* of all expressions made of tests alone, in order */
    uint32_t *first_tests;    /* index of each expression's first test, and the end */

    /* Changed only by loads, under the archive's lock. */
    CUlibrary *libraries;   /* one for each blob, NULL until loaded */
    bool *has_params;       /* one for each variant: its cubin lists its params as the index does */
    CUkernel *cuda_kernels; /* one for each variant, NULL until loaded */
};

struct aotci_context; /* the state loaded in one context: load.h */

/* A caller's memory, aligned to 8, to read contents into if they fit. */
struct aotci_room {
    unsigned char *bytes;
    size_t size_bytes;
};

/* A frame of several blobs, decoded while a kernel with variants in it is loaded. After a variant
 * is loaded by its launch the frame stays decoded, because the next variant is likely in it. */
struct aotci_frame {
    struct aotci_content content; /* without bytes: none */
    struct frame_record record;   /* frames with equal digests are equal */
    /* The last cubin found in it (frame.c): the search for later ones continues there. */
    const struct aotc_kernel *kernel; /* NULL: no search yet */
    uint32_t blob;
    const unsigned char *rest, *code_end;
};

/* The state of a piece of a root in memory. */
enum aotci_piece { PIECE_THERE, PIECE_VERIFIED };

/* State for a root not in memory: its seals, which the header's digest covers, and one piece of
 * digests. */
struct aotci_remote {
    uint32_t piece; /* its number; UINT32_MAX: none */
    unsigned char digests[ROOT_PIECE_BYTES];
    unsigned char seals[];
};

/* The first bytes of a file, read at once: all that opening needs, unless the root is nearly a
 * megabyte. For an archive of a few dozen kernels this includes the whole root. */
struct aotci_start {
    uint32_t size_bytes;
    _Alignas(8) unsigned char bytes[4096];
};

struct aotc_archive {
    atomic_uint references;
    aotc_allocator allocator;
    aotc_decompress_fn decompress;
    void *decompress_user;
    _Atomic(void *) decoder; /* of the default decompressor, between two frames (zstd.c) */
    char *name; /* for messages: the path, or "memory" */
    char *driver_path;

    const unsigned char *file; /* NULL: frames are read from `descriptor` */
    int descriptor;            /* -1: none */
    uint64_t file_bytes;
    unsigned char *owned_file; /* NULL if borrowed or mapped */
    bool is_mapped;
    bool is_compressed;
    bool is_trusted; /* compare no digests */
    const unsigned char *head; /* header, seals, root, digests of its pieces; aligned; or NULL, and
                                * then: */
    struct aotci_remote *remote;
    unsigned char *owned_head; /* NULL if used in place, or not in memory */
    uint32_t head_bytes;
    struct aotci_tables root;
    _Atomic(struct aotc_kernel *) *kernels; /* NULL until opened */
    _Atomic(struct aotc_kernel *) last;     /* the kernel last requested by name */

    /* State of a root verified in pieces (root.c), changed while `index_lock` is held. */
    atomic_bool is_complete;
    uint8_t *pieces; /* an aotci_piece for each piece of the root and of its digests, or NULL */

    /* Held while a kernel is opened. Lock order: `lock` before this one. */
    pthread_mutex_t index_lock;
    struct aotci_memo maps; /* encoded maps: tensor_map.h; launches read and write it */

    /* Changed only by loads, under the lock. */
    pthread_mutex_t lock;
    bool has_driver;
    struct aotci_driver driver;
    struct aotci_frame frame;
    struct aotci_content spent; /* a cubin to free (aotci_spend); without memory: none */
    uint64_t process; /* the mark of the loading process: fork.c */

    /* Read by launches. */
    _Atomic(struct aotci_context *) contexts;
    _Atomic(aotci_stream_context_function) stream_context; /* of the driver; NULL: not looked up yet (load.h) */
};

/* Memory from the archive's allocator; zero bytes count as one. `aotci_allocate` clears it.
 * `aotci_allocate_bytes` does not, for memory that is overwritten at once. */
void *aotci_allocate(const aotc_allocator *allocator, size_t count, size_t element_bytes);
void *aotci_allocate_bytes(const aotc_allocator *allocator, size_t size_bytes);
void aotci_deallocate(const aotc_allocator *allocator, void *memory, size_t count,
                      size_t element_bytes);

static inline const void *aotci_record(const struct aotci_tables *tables, enum section_kind kind,
                                       uint32_t index) {
    const struct aotci_table *table = &tables->sections[kind];
    return table->records + (size_t)index * table->stride;
}

static inline uint32_t aotci_count(const struct aotci_tables *tables, enum section_kind kind) {
    return tables->sections[kind].count;
}

static inline const char *aotci_string(const struct aotci_tables *tables, uint32_t offset) {
    return (const char *)tables->sections[SECTION_STRINGS].records + offset;
}

#define AOTCI_RECORD_ACCESSOR(name, type, kind)                                                    \
    static inline const struct type *aotci_##name(const struct aotci_tables *tables,               \
                                                  uint32_t index) {                                \
        return (const struct type *)aotci_record(tables, kind, index);                             \
    }
AOTCI_RECORD_ACCESSOR(entry, entry_record, SECTION_ENTRIES)
AOTCI_RECORD_ACCESSOR(slot, slot_record, SECTION_SLOTS)
AOTCI_RECORD_ACCESSOR(target, target_record, SECTION_TARGETS)
AOTCI_RECORD_ACCESSOR(kernel_record, kernel_record, SECTION_KERNELS)
AOTCI_RECORD_ACCESSOR(param, param_record, SECTION_PARAMS)
AOTCI_RECORD_ACCESSOR(type_variable, type_variable_record, SECTION_TYPE_VARIABLES)
AOTCI_RECORD_ACCESSOR(choice, choice_record, SECTION_CHOICES)
AOTCI_RECORD_ACCESSOR(value, value_record, SECTION_VALUES)
AOTCI_RECORD_ACCESSOR(guard, guard_record, SECTION_GUARDS)
AOTCI_RECORD_ACCESSOR(config, config_record, SECTION_CONFIGS)
AOTCI_RECORD_ACCESSOR(variant, variant_record, SECTION_VARIANTS)
AOTCI_RECORD_ACCESSOR(cubin_param, cubin_param_record, SECTION_CUBIN_PARAMS)
AOTCI_RECORD_ACCESSOR(tensor_map, tensor_map_record, SECTION_TENSOR_MAPS)
AOTCI_RECORD_ACCESSOR(selection, selection_record, SECTION_SELECTIONS)
AOTCI_RECORD_ACCESSOR(feature, feature_record, SECTION_FEATURES)
AOTCI_RECORD_ACCESSOR(branch, branch_record, SECTION_BRANCHES)
AOTCI_RECORD_ACCESSOR(leaf, leaf_record, SECTION_LEAVES)
AOTCI_RECORD_ACCESSOR(leaf_config, leaf_config_record, SECTION_LEAF_CONFIGS)
AOTCI_RECORD_ACCESSOR(expression, expression_record, SECTION_EXPRESSIONS)
AOTCI_RECORD_ACCESSOR(blob, blob_record, SECTION_BLOBS)
AOTCI_RECORD_ACCESSOR(frame, frame_record, SECTION_FRAMES)
#undef AOTCI_RECORD_ACCESSOR

static inline const char *aotci_kernel_name(const struct aotc_archive *archive, uint32_t number) {
    return aotci_string(&archive->root, aotci_entry(&archive->root, number)->name);
}

/* The number of a variant of a kernel, from its record. */
static inline uint32_t aotci_variant_number(const struct aotc_kernel *kernel,
                                            const struct variant_record *variant) {
    const struct aotci_table *variants = &kernel->tables.sections[SECTION_VARIANTS];
    return (uint32_t)((size_t)((const unsigned char *)variant - variants->records) /
                      variants->stride);
}

/* Verify header and directory, or read, verify and check the whole root. CHECKSUM, FORMAT, LIMIT,
 * IO, NOMEM (root.c). */
aotc_status aotci_root_open(struct aotc_archive *archive, const struct header_record *header,
                            const struct aotci_start *first, bool is_whole, aotc_error *error);

/* Verify and check the remaining root, if any; thread-safe (root.c). */
aotc_status aotci_root_complete(const struct aotc_archive *archive, aotc_error *error);

/* Find a kernel by its name; `*number` is UINT32_MAX if there is none. In an incomplete root a
 * found kernel may have another name, and a missing one may exist. IO (root.c). */
aotc_status aotci_root_find(const struct aotc_archive *archive, const char *name, uint32_t *number,
                            aotc_error *error);

/* Verify, check and read the record of a kernel, and unless `name` is NULL its name, of at most
 * LIMIT_NAME_BYTES and a NUL; `index_lock` is held. CHECKSUM, FORMAT, LIMIT, IO (root.c). */
aotc_status aotci_root_kernel(struct aotc_kernel *kernel, char *name, aotc_error *error);

void aotci_root_close(struct aotc_archive *archive);

/* An opened kernel, or NULL. */
static inline struct aotc_kernel *aotci_kernel(const struct aotc_archive *archive, uint32_t number) {
    return atomic_load_explicit(&archive->kernels[number], memory_order_acquire);
}

/* Read, decode and check the index of a kernel, unless already done; thread-safe. Its name is
 * `name`, or if that is NULL the root's. CHECKSUM, FORMAT, LIMIT, IO, NOMEM, UNSUPPORTED
 * (kernel_index.c). */
aotc_status aotci_kernel_open(struct aotc_archive *archive, uint32_t number, const char *name,
                              aotc_error *error);

/* Free an opened kernel (kernel_index.c). */
void aotci_kernel_close(struct aotc_kernel *kernel);

/* Convert a value record to the caller's form. */
aotc_value aotci_value_of(const struct aotci_tables *tables, const struct value_record *record);

#endif
