/* aotc.h: load an archive of compiled GPU kernels and launch them.
 *
 * A minimal program:
 *
 *     aotc_archive *archive = NULL;
 *     const aotc_kernel *kernel = NULL;
 *     aotc_error error = AOTC_ERROR_INIT;
 *
 *     if (aotc_open_file("dist/llm.aotc", NULL, &archive, &error) != AOTC_OK ||
 *         aotc_load(archive, NULL, &error) != AOTC_OK ||
 *         aotc_kernel_get(archive, "add", &kernel, &error) != AOTC_OK) {
 *         fprintf(stderr, "%s\n", error.message);
 *     }
 *     aotc_arg args[] = {aotc_pointer(x, AOTC_FP32), aotc_pointer(y, AOTC_FP32),
 *                        aotc_pointer(out, AOTC_FP32), aotc_i32(n)};
 *     aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
 *     desc.args = args;
 *     desc.arg_count = 4;
 *     desc.stream = stream;
 *     if (aotc_launch(kernel, &desc, &error) != AOTC_OK) { ... }
 *     aotc_release(archive);
 *
 * All functions:
 *
 *   - They return an `aotc_status`. An `aotc_error` is optional (NULL), belongs to the caller, and is
 *     written only on failure. Nothing is printed, nothing exits, no state is kept outside handles.
 *   - A handle in an out-parameter is set to NULL on failure.
 *   - Structs begin with `struct_size`, set by the `_INIT` macros, and only ever grow at the end. A
 *     struct larger than the library's is accepted if its unknown fields are zero.
 *   - Threads: everything may run at the same time, also on one archive, except that the last
 *     release comes after all else, and an unload after the launches in its context. Loads and
 *     unloads of one archive wait for each other; `aotc_select` and `aotc_launch` take no lock,
 *     allocate nothing, and never wait for a load.
 *   - CUDA is found at run time, in `aotc_load`: in the program if linked there, or as libcuda.so.1.
 *     Opening and queries need no driver.
 */
#ifndef AOTC_AOTC_H
#define AOTC_AOTC_H

#include <stddef.h>
#include <stdint.h>

#define AOTC_VERSION_MAJOR 0
#define AOTC_VERSION_MINOR 1
#define AOTC_VERSION_PATCH 0
#define AOTC_VERSION_NUMBER                                                                        \
    (AOTC_VERSION_MAJOR * 10000u + AOTC_VERSION_MINOR * 100u + AOTC_VERSION_PATCH)

#ifndef AOTC_API
#if defined(__GNUC__)
#define AOTC_API __attribute__((visibility("default")))
#else
#define AOTC_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* CUstream, without cuda.h: the types are the same. */
struct CUstream_st;
struct CUfunc_st;

/* ---- Statuses and errors ------------------------------------------------------------------ */

/* Pinned: a number is never reused or changed. */
typedef enum aotc_status {
    AOTC_OK = 0,
    AOTC_ERROR_IO = 1,          /* the file cannot be read; os_error has errno */
    AOTC_ERROR_FORMAT = 2,      /* not an archive, or a damaged one */
    AOTC_ERROR_VERSION = 3,     /* a major version or feature unknown here */
    AOTC_ERROR_LIMIT = 4,       /* a size or a count above what the format allows */
    AOTC_ERROR_CHECKSUM = 5,    /* the bytes differ from those written */
    AOTC_ERROR_SIGNATURE = 6,   /* a signature is required and there is none */
    AOTC_ERROR_NOT_FOUND = 7,   /* no such kernel, symbol, or variant */
    AOTC_ERROR_ARCH = 8,        /* nothing in the archive runs on this GPU */
    AOTC_ERROR_DRIVER = 9,      /* no CUDA driver, too old a driver, or no GPU */
    AOTC_ERROR_ARG = 10,        /* an argument of the call or of the kernel is wrong */
    AOTC_ERROR_STATE = 11,      /* not loaded yet, or no context is current */
    AOTC_ERROR_CAPTURE = 12,    /* forbidden during a stream capture */
    AOTC_ERROR_FORKED = 13,     /* the archive was loaded before this process was forked */
    AOTC_ERROR_NOMEM = 14,      /* host memory */
    AOTC_ERROR_CUDA = 15,       /* the driver reports an error; `cuda` has the CUresult */
    AOTC_ERROR_UNSUPPORTED = 16 /* this build or this driver lacks a required feature */
} aotc_status;

/* An error. Fields that do not apply are empty strings; `message` has everything in one line.
 */
typedef struct aotc_error {
    uint32_t struct_size;
    int32_t status;   /* aotc_status */
    int32_t cuda;     /* CUresult, or 0 */
    int32_t os_error; /* errno, or 0 */
    char file[256];
    char kernel[256];
    char field[256];
    char expected[512];
    char got[512];
    char remedy[512];
    char message[2048];
} aotc_error;

#define AOTC_ERROR_INIT {(uint32_t)sizeof(aotc_error), 0, 0, 0, "", "", "", "", "", "", ""}

/* Name of a status without its prefix, such as "NOT_FOUND"; "UNKNOWN" for other numbers. */
AOTC_API const char *aotc_status_name(aotc_status status);

/* AOTC_VERSION_NUMBER of the running library. */
AOTC_API uint32_t aotc_version(void);

/* ---- Archives ----------------------------------------------------------------------------- */

typedef struct aotc_archive aotc_archive;
typedef struct aotc_kernel aotc_kernel; /* borrowed from its archive */

/* Memory for an archive's lifetime and for decoding blobs. `allocate` returns memory aligned as
 * malloc's, or NULL. Both NULL: malloc and free, and 32 KB of the library's own. They may be called
 * from every thread that opens, loads or releases. */
typedef struct aotc_allocator {
    void *(*allocate)(void *user, size_t size_bytes);
    void (*deallocate)(void *user, void *memory, size_t size_bytes);
    void *user;
} aotc_allocator;

/* Decode one zstd frame of `source_bytes` into exactly `target_bytes`; nonzero on failure. */
typedef int (*aotc_decompress_fn)(void *user, const void *source, size_t source_bytes, void *target,
                                  size_t target_bytes);

enum {
    AOTC_OPEN_COPY = 1u << 0, /* copy everything to memory: borrow nothing, keep no file open */
    AOTC_OPEN_REQUIRE_SIGNATURE = 1u << 1, /* refuse unsigned archives (all of format 8.0 are) */
    AOTC_OPEN_VERIFY_BLOBS = 1u << 2, /* check every SHA-256 and index now, not at its use */
    /* Map the file instead of reading it, for the shortest time to a first launch. The caller
     * guarantees that the file is not changed or truncated in place. Replacing it, as every writer
     * of aotc does, has no effect. */
    AOTC_OPEN_MAP = 1u << 3,
    /* Compare no SHA-256: for verified data that cannot change, such as a file of an image that the
     * system verifies on reading. Offsets and sizes are still checked, so nothing outside of the
     * archive is read; other damage, especially of code, goes undetected. Not together with
     * AOTC_OPEN_VERIFY_BLOBS. */
    AOTC_OPEN_TRUSTED = 1u << 4
};

typedef struct aotc_open_options {
    uint32_t struct_size;
    uint32_t flags; /* AOTC_OPEN_* */
    aotc_allocator allocator;
    aotc_decompress_fn decompress; /* NULL: libzstd if the library was built with it */
    void *decompress_user;
    const char *driver_path; /* NULL: "libcuda.so.1" */
} aotc_open_options;

#define AOTC_OPEN_OPTIONS_INIT                                                                     \
    {(uint32_t)sizeof(aotc_open_options), 0, {NULL, NULL, NULL}, NULL, NULL, NULL}

/* Open an archive. Its header and its list of kernels are read and checked now, a kernel when it is
 * first requested, code when it is loaded. The file stays open until the archive is released,
 * unless AOTC_OPEN_COPY is set: replacing it has no effect, a change in place is CHECKSUM. IO,
 * FORMAT, VERSION, LIMIT, CHECKSUM, SIGNATURE, ARG, NOMEM. */
AOTC_API aotc_status aotc_open_file(const char *path, const aotc_open_options *options,
                                    aotc_archive **archive, aotc_error *error);

/* The same for an archive in memory of any alignment. The memory must not change until the archive
 * is released, unless AOTC_OPEN_COPY is set. */
AOTC_API aotc_status aotc_open_memory(const void *data, size_t size_bytes,
                                      const aotc_open_options *options, aotc_archive **archive,
                                      aotc_error *error);

/* Count references; opening gives one. The last release unloads everything: the launches must have
 * finished. Releasing NULL, in a forked child, or after the context was destroyed is allowed. */
AOTC_API void aotc_retain(aotc_archive *archive);
AOTC_API void aotc_release(aotc_archive *archive);

enum { AOTC_CURRENT_CONTEXT = -1 };

typedef struct aotc_load_options {
    uint32_t struct_size;
    int32_t
        device; /* ordinal: its primary context, retained until release; or AOTC_CURRENT_CONTEXT */
    const char *kernel; /* NULL: all kernels for the device */
    uint32_t flags;     /* AOTC_LOAD_* */
    uint32_t reserved;  /* 0 */
} aotc_load_options;

/* Load the code of a variant in the first launch or aotc_select that selects it. That call then
 * waits for other loads, allocates, and may fail like a load. A load of the same kernel without
 * this flag loads the rest. */
enum { AOTC_LOAD_LAZY = 1 };

#define AOTC_LOAD_OPTIONS_INIT                                                                     \
    {(uint32_t)sizeof(aotc_load_options), AOTC_CURRENT_CONTEXT, NULL, 0, 0}

/* Prepare kernels in one context, for every device that is to launch them: modules are loaded,
 * attributes set, dispatch tables built. Afterwards launches load nothing, unless AOTC_LOAD_LAZY is
 * set, and take the same time from the first one on. Loaded kernels are skipped. NULL options: all
 * kernels, current context. With all kernels, those without a variant for the device are left out;
 * ARCH if all are. */
AOTC_API aotc_status aotc_load(aotc_archive *archive, const aotc_load_options *options,
                               aotc_error *error);

/* Unload everything from one context: the current one (AOTC_CURRENT_CONTEXT), or a device's primary
 * one, which is released if a load retained it. Other devices continue to launch. The launches
 * there must have finished, and graphs with such launches must not be launched again; a launch
 * there is an error until the next load. Code shared with another context of the archive stays on
 * the GPU until its context is destroyed. Without loaded kernels the call does nothing. STATE
 * without a current context, ARG for a device that does not exist, FORKED, CUDA. */
AOTC_API aotc_status aotc_unload(aotc_archive *archive, int32_t device, aotc_error *error);

/* ---- The contents of an archive ----------------------------------------------------------- */
/* Strings are borrowed from the archive, NUL-terminated UTF-8, never NULL. An index out of range:
 * ARG. Set `struct_size` of the result to its sizeof before the call; the rest is written. */

typedef enum aotc_dtype {
    AOTC_DTYPE_NONE = 0, /* an untyped pointer; nothing else */
    AOTC_I1 = 1,         /* a byte, 0 or 1 */
    AOTC_I8 = 2,
    AOTC_I16 = 3,
    AOTC_I32 = 4,
    AOTC_I64 = 5,
    AOTC_U8 = 6,
    AOTC_U16 = 7,
    AOTC_U32 = 8,
    AOTC_U64 = 9,
    AOTC_FP16 = 10,
    AOTC_BF16 = 11,
    AOTC_FP32 = 12,
    AOTC_FP64 = 13,
    AOTC_FP8E4NV = 14,
    AOTC_FP8E5 = 15
} aotc_dtype;

/* "fp16" and so on; "none", or "unknown" for other numbers. */
AOTC_API const char *aotc_dtype_name(aotc_dtype dtype);
/* Size of an element; 0 for other numbers. */
AOTC_API uint32_t aotc_dtype_bytes(aotc_dtype dtype);

typedef struct aotc_archive_info {
    uint32_t struct_size;
    uint32_t kernel_count;
    uint32_t target_count;
    uint32_t reserved;
    const char *name;
    const char *version;
    const char *toolchain;
} aotc_archive_info;

AOTC_API aotc_status aotc_archive_get_info(const aotc_archive *archive, aotc_archive_info *info);

/* The name of a kernel, in order; `index` below kernel_count. */
AOTC_API aotc_status aotc_archive_get_kernel_name(const aotc_archive *archive, uint32_t index,
                                                  const char **name);

/* Find a kernel. The first request reads and checks its part of the archive. NOT_FOUND names the
 * nearest ones; IO, CHECKSUM, FORMAT, LIMIT, NOMEM, UNSUPPORTED. */
AOTC_API aotc_status aotc_kernel_get(const aotc_archive *archive, const char *name,
                                     const aotc_kernel **kernel, aotc_error *error);
/* Kernels in the order of their names; `index` below kernel_count. Otherwise the same. */
AOTC_API aotc_status aotc_kernel_get_at(const aotc_archive *archive, uint32_t index,
                                        const aotc_kernel **kernel);

typedef struct aotc_kernel_info {
    uint32_t struct_size;
    uint32_t param_count;
    uint32_t type_variable_count;
    uint32_t choice_count;
    uint32_t constant_count;
    uint32_t guard_count;
    uint32_t config_count;
    uint32_t variant_count;
    uint32_t grid_rank; /* 0: the caller gives the grid */
    uint32_t selection_count; /* number of trees that select a launch's config, for all GPUs and
                               * types */
    const char *name;
} aotc_kernel_info;

typedef enum aotc_param_kind { AOTC_POINTER = 1, AOTC_SCALAR = 2, AOTC_TENSOR = 3 } aotc_param_kind;

/* One argument of a launch. `dtype` is AOTC_DTYPE_NONE if type variable `type_variable` determines
 * it; otherwise `type_variable` is -1. */
typedef struct aotc_param_info {
    uint32_t struct_size;
    uint32_t kind; /* aotc_param_kind */
    uint32_t dtype;
    int32_t type_variable;
    uint32_t rank;         /* of a tensor */
    uint32_t divisibility; /* promised divisor of the value or address */
    uint32_t optional;     /* 1: variants without the promise exist */
    uint32_t access;       /* bit 0 read, bit 1 written; 0 unknown */
    const char *name;
    uint32_t nullable; /* 1: a pointer that may be NULL, None in the source */
    uint32_t reserved;
} aotc_param_info;

typedef struct aotc_type_variable_info {
    uint32_t struct_size;
    uint32_t dtype_count;
    uint8_t dtypes[16];
    const char *name;
} aotc_type_variable_info;

typedef struct aotc_choice_info {
    uint32_t struct_size;
    uint32_t value_count;
    const char *name;
} aotc_choice_info;

typedef struct aotc_guard_info {
    uint32_t struct_size;
    uint32_t promised; /* 1: must hold for every variant */
    const char *text;
    const char *expression;
} aotc_guard_info;

typedef enum aotc_value_kind {
    AOTC_VALUE_NULL = 0,
    AOTC_VALUE_BOOL = 1,
    AOTC_VALUE_INT = 2,
    AOTC_VALUE_STRING = 3,
    AOTC_VALUE_FLOAT = 4
} aotc_value_kind;

/* A constant, a choice with its value, or one entry of a config. */
typedef struct aotc_value {
    const char *name;
    uint32_t kind; /* aotc_value_kind */
    uint32_t reserved;
    union {
        int64_t integer; /* INT, and BOOL as 0 or 1 */
        double real;
        const char *string;
    } as;
} aotc_value;

typedef struct aotc_variant_info {
    uint32_t struct_size;
    uint32_t config;      /* index */
    uint32_t combination; /* of dtypes and choices: docs/reference/archive-format.md, section 5 */
    uint32_t num_threads;
    uint64_t guards; /* bit i: guard i must hold */
    uint32_t cluster[3];
    uint32_t dynamic_shared_bytes;
    uint32_t static_shared_bytes;
    uint32_t registers;
    uint32_t stack_bytes;
    uint32_t spill_bytes;
    uint32_t cubin_bytes;
    uint32_t waits_pdl;
    const char *target;
    const char *symbol;
    const char *remarks;
    const char *condition;   /* further condition besides the guards; NULL if none */
    uint32_t is_persistent;  /* a launch has as many CTAs as are resident, and each runs several
                                program instances */
    uint32_t cooperative;    /* its programs wait for each other: all of a launch run at once */
} aotc_variant_info;

AOTC_API aotc_status aotc_kernel_get_info(const aotc_kernel *kernel, aotc_kernel_info *info);
AOTC_API aotc_status aotc_kernel_get_param(const aotc_kernel *kernel, uint32_t index,
                                           aotc_param_info *info);
AOTC_API aotc_status aotc_kernel_get_type_variable(const aotc_kernel *kernel, uint32_t index,
                                                   aotc_type_variable_info *info);
AOTC_API aotc_status aotc_kernel_get_choice(const aotc_kernel *kernel, uint32_t index,
                                            aotc_choice_info *info);
AOTC_API aotc_status aotc_kernel_get_choice_value(const aotc_kernel *kernel, uint32_t choice,
                                                  uint32_t index, aotc_value *value);
AOTC_API aotc_status aotc_kernel_get_constant(const aotc_kernel *kernel, uint32_t index,
                                              aotc_value *value);
AOTC_API aotc_status aotc_kernel_get_guard(const aotc_kernel *kernel, uint32_t index,
                                           aotc_guard_info *info);
AOTC_API aotc_status aotc_kernel_get_config_size(const aotc_kernel *kernel, uint32_t config,
                                                 uint32_t *entry_count);
AOTC_API aotc_status aotc_kernel_get_config_entry(const aotc_kernel *kernel, uint32_t config,
                                                  uint32_t index, aotc_value *value);
AOTC_API aotc_status aotc_kernel_get_variant(const aotc_kernel *kernel, uint32_t index,
                                             aotc_variant_info *info);

/* ---- Launching ---------------------------------------------------------------------------- */

/* An argument of kind TENSOR. Sizes and strides in elements, `rank` of each, outermost first. */
typedef struct aotc_tensor {
    void *address;
    uint32_t rank;
    uint32_t reserved;
    const int64_t *shape;
    const int64_t *strides;
} aotc_tensor;

/* One launch argument. For a scalar, the kernel gets as many low bytes as the dtype has. */
typedef struct aotc_arg {
    uint32_t kind;  /* aotc_param_kind */
    uint32_t dtype; /* aotc_dtype of the scalar or the element; a pointer may say AOTC_DTYPE_NONE */
    union {
        uint64_t bits;
        void *pointer;
        const aotc_tensor *tensor;
        int64_t i64;
        double fp64;
        float fp32;
    } as;
} aotc_arg;

static inline aotc_arg aotc_arg_bits(aotc_param_kind kind, aotc_dtype dtype, uint64_t bits) {
    aotc_arg arg;
    arg.kind = (uint32_t)kind;
    arg.dtype = (uint32_t)dtype;
    arg.as.bits = bits;
    return arg;
}

static inline aotc_arg aotc_pointer(const void *pointer, aotc_dtype dtype) {
    return aotc_arg_bits(AOTC_POINTER, dtype, (uint64_t)(uintptr_t)pointer);
}

/* A scalar of any integer dtype (or of a 16-bit or 8-bit float, by its bits). */
static inline aotc_arg aotc_integer(int64_t value, aotc_dtype dtype) {
    return aotc_arg_bits(AOTC_SCALAR, dtype, (uint64_t)value);
}

static inline aotc_arg aotc_i1(int value) { return aotc_integer(value != 0, AOTC_I1); }
static inline aotc_arg aotc_i8(int8_t value) { return aotc_integer(value, AOTC_I8); }
static inline aotc_arg aotc_i16(int16_t value) { return aotc_integer(value, AOTC_I16); }
static inline aotc_arg aotc_i32(int32_t value) { return aotc_integer(value, AOTC_I32); }
static inline aotc_arg aotc_i64(int64_t value) { return aotc_integer(value, AOTC_I64); }
static inline aotc_arg aotc_u8(uint8_t value) { return aotc_integer(value, AOTC_U8); }
static inline aotc_arg aotc_u16(uint16_t value) { return aotc_integer(value, AOTC_U16); }
static inline aotc_arg aotc_u32(uint32_t value) { return aotc_integer(value, AOTC_U32); }
static inline aotc_arg aotc_u64(uint64_t value) {
    return aotc_arg_bits(AOTC_SCALAR, AOTC_U64, value);
}
static inline aotc_arg aotc_fp16_bits(uint16_t bits) {
    return aotc_arg_bits(AOTC_SCALAR, AOTC_FP16, bits);
}
static inline aotc_arg aotc_bf16_bits(uint16_t bits) {
    return aotc_arg_bits(AOTC_SCALAR, AOTC_BF16, bits);
}

static inline aotc_arg aotc_fp32(float value) {
    aotc_arg arg = aotc_arg_bits(AOTC_SCALAR, AOTC_FP32, 0);
    arg.as.fp32 = value;
    return arg;
}

static inline aotc_arg aotc_fp64(double value) {
    aotc_arg arg = aotc_arg_bits(AOTC_SCALAR, AOTC_FP64, 0);
    arg.as.fp64 = value;
    return arg;
}

/* `tensor` is read during the launch only. */
static inline aotc_arg aotc_tensor_arg(const aotc_tensor *tensor, aotc_dtype dtype) {
    return aotc_arg_bits(AOTC_TENSOR, dtype, (uint64_t)(uintptr_t)tensor);
}

static inline aotc_value aotc_value_bits(const char *name, aotc_value_kind kind, int64_t integer) {
    aotc_value value;
    value.name = name;
    value.kind = (uint32_t)kind;
    value.reserved = 0;
    value.as.integer = integer;
    return value;
}

static inline aotc_value aotc_bool_value(const char *name, int value) {
    return aotc_value_bits(name, AOTC_VALUE_BOOL, value != 0);
}

static inline aotc_value aotc_int_value(const char *name, int64_t value) {
    return aotc_value_bits(name, AOTC_VALUE_INT, value);
}

static inline aotc_value aotc_string_value(const char *name, const char *string) {
    aotc_value value = aotc_value_bits(name, AOTC_VALUE_STRING, 0);
    value.as.string = string;
    return value;
}

static inline aotc_value aotc_float_value(const char *name, double real) {
    aotc_value value = aotc_value_bits(name, AOTC_VALUE_FLOAT, 0);
    value.as.real = real;
    return value;
}

static inline aotc_value aotc_null_value(const char *name) {
    return aotc_value_bits(name, AOTC_VALUE_NULL, 0);
}

enum {
    /* Programmatic dependent launch: the kernel may start before the preceding kernel in the stream
     * has ended. ARG for a variant that does not wait: if the kernel does not call gdc_wait on
     * every path, or for a GPU before sm_90. */
    AOTC_LAUNCH_PDL = 1u << 0
};

typedef struct aotc_launch_desc {
    uint32_t struct_size;
    uint32_t flags;            /* AOTC_LAUNCH_* */
    const aotc_arg *args;      /* one for each param, in order */
    const aotc_value *choices; /* by name; a choice with one value may be left out */
    const aotc_value *config;  /* entries required of the config; none: the best config */
    uint32_t arg_count;
    uint32_t choice_count;
    uint32_t config_count;
    uint32_t grid_rank;         /* 0: the kernel's own grid; 1 to 3: `grid` instead */
    int64_t grid[3];            /* programs; dimensions from grid_rank on count as 1 */
    struct CUstream_st *stream; /* NULL: the legacy stream of the current context */
    void *scratch; /* device memory, if aotc_selection requires some; NULL: the launch takes it from
                    * a pool, in stream order */
    uint64_t scratch_bytes;
} aotc_launch_desc;

#define AOTC_LAUNCH_DESC_INIT                                                                      \
    {(uint32_t)sizeof(aotc_launch_desc), 0, NULL, NULL, NULL, 0, 0, 0, 0, {0, 0, 0}, NULL, NULL, 0}

/* The effect of a launch. */
typedef struct aotc_selection {
    uint32_t struct_size;
    uint32_t variant; /* index, for aotc_kernel_get_variant */
    uint32_t grid[3]; /* gridDim: program instances times cluster, or fewer for a persistent kernel;
                         zero for an empty launch */
    uint32_t block[3];
    uint32_t cluster[3];
    uint32_t dynamic_shared_bytes;
    uint64_t scratch_bytes;
    uint32_t scratch_align;
    uint32_t reserved;
    struct CUfunc_st *function; /* for the caller's own driver calls, such as occupancy */
} aotc_selection;

/* Choose the variant for these arguments, in the context of `desc->stream` (the current one for
 * NULL). `desc->scratch` is ignored. Errors as aotc_launch. */
AOTC_API aotc_status aotc_select(const aotc_kernel *kernel, const aotc_launch_desc *desc,
                                 aotc_selection *selection, aotc_error *error);

/* Choose a variant and launch it. A grid with a zero in it launches nothing and succeeds. Nothing
 * is locked, loaded or set; the arguments are copied before it returns. Nothing is allocated,
 * unless the variant needs scratch memory and the caller passes none: it comes from a pool of the
 * context and returns to it in stream order, as nodes of the graph in a capture.
 *   STATE      the kernel is not loaded in any context
 *   ARG        an argument, choice, config, grid or stream is wrong; names it
 *   ARCH       the kernel has no variant for this GPU
 *   NOT_FOUND  no variant fits; names the guards that failed
 *   FORKED, CAPTURE, CUDA, UNSUPPORTED */
AOTC_API aotc_status aotc_launch(const aotc_kernel *kernel, const aotc_launch_desc *desc,
                                 aotc_error *error);

/* ---- Tensor maps in memory ----------------------------------------------------------------- */

/* A CUtensorMap, for device memory: 128 bytes at a multiple of 64. */
typedef struct aotc_tensor_map {
    uint64_t words[16];
} aotc_tensor_map;

/* Encode the tensor map of a tensor for kernels that take maps from memory, such as an array of
 * them (tl.reinterpret_tensor_descriptor in the source). `block` is the source's block_shape, the
 * extents of a tile, one for each axis of the tensor, outermost first; elements outside of the
 * tensor read as zero. The caller copies the map to the device, before the launch in its stream. It
 * holds the tensor's address, and is the same for all kernels with such tiles and for all GPUs.
 *   STATE      the archive is loaded nowhere yet
 *   ARG        no map can describe the tensor or the tile; names the dimension
 *   CUDA, UNSUPPORTED */
AOTC_API aotc_status aotc_tensor_map_encode(const aotc_archive *archive, const aotc_tensor *tensor,
                                            aotc_dtype dtype, const uint32_t *block,
                                            aotc_tensor_map *map, aotc_error *error);

#ifdef __cplusplus
}
#endif

#endif
