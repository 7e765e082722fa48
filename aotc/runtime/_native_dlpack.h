/* _native_dlpack.h: the structs of DLPack 1.3 that the loader reads, with the layouts of dlpack.h.
 *
 * Source: DLPack, include/dlpack/dlpack.h and the Python specification of its documentation. A
 * major version fixes the layouts; a minor one appends fields.
 */
#ifndef AOTC_NATIVE_DLPACK_H
#define AOTC_NATIVE_DLPACK_H

#include <stdint.h>

enum { DL_MAJOR = 1, DL_MINOR = 3 };

/* DLDeviceType */
enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };

/* DLDataTypeCode */
enum {
    DL_INT = 0,
    DL_UINT = 1,
    DL_FLOAT = 2,
    DL_BFLOAT = 4,
    DL_BOOL = 6,
    DL_FLOAT8_E4M3FN = 10,
    DL_FLOAT8_E5M2 = 12
};

enum { DL_FLAG_READ_ONLY = 1u << 0, DL_FLAG_IS_COPIED = 1u << 1 };

struct dl_version {
    uint32_t major, minor;
};

struct dl_tensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t rank;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: no gaps */
    uint64_t byte_offset;
};

/* In a capsule "dltensor". */
struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
};

/* In a capsule "dltensor_versioned". */
struct dl_managed_versioned {
    struct dl_version version;
    void *context;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags;
    struct dl_tensor tensor;
};

/* In a capsule "dlpack_exchange_api", attribute __dlpack_c_exchange_api__ of a tensor's type. */
struct dl_exchange {
    struct dl_version version;
    const struct dl_exchange *previous; /* the same for an older major version */
    void (*allocate)(void);             /* three functions not used here */
    void (*managed_from_object)(void);
    void (*managed_to_object)(void);
    int (*tensor_from_object)(void *object, struct dl_tensor *tensor); /* may be NULL */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
};

#endif
