/* driver.h: the CUDA driver, found at run time.
 *
 * Building needs no CUDA header and no CUDA library. The few types used are declared here with the
 * layouts documented in cuda.h. Every entry point is looked up through cuGetProcAddress, for the
 * version in the table, so a newer driver behaves the same.
 */
#ifndef AOTCI_DRIVER_H
#define AOTCI_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"

typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef struct CUlib_st *CUlibrary;
typedef struct CUmod_st *CUmodule;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef unsigned long long CUdeviceptr;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
    CUDA_ERROR_INVALID_CLUSTER_SIZE = 912,

    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,

    CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,

    CU_STREAM_LEGACY = 1, /* like NULL, unless NULL is the per-thread stream */
    CU_STREAM_PER_THREAD = 2,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_STREAM_CAPTURE_STATUS_NONE = 0,

    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3, /* an int */
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,                 /* a uint64_t */

    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
};

typedef struct CUlaunchAttribute {
    int id;
    char pad[4];
    union {
        char pad[64];
        void *alignment;
        struct {
            unsigned x, y, z;
        } cluster;
        int cooperative;
        int programmatic_stream_serialization;
    } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    CUstream stream;
    CUlaunchAttribute *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

typedef struct CUmemPoolProps {
    int allocation_type;
    int handle_types;
    int location_type;
    int location_id;
    void *security_attributes;
    size_t max_bytes;
    unsigned char reserved[56];
} CUmemPoolProps;

typedef struct CUtensorMap {
    _Alignas(64) uint64_t opaque[16];
} CUtensorMap;

/* Entry points are looked up at their first need: most first launches need few. */
enum aotci_driver_group {
    DRIVER_CORE = 1 << 0,
    DRIVER_ERRORS = 1 << 1,
    DRIVER_DEVICES = 1 << 2,
    DRIVER_UNLOAD = 1 << 3,
    DRIVER_CODE = 1 << 4,
    DRIVER_ATTRIBUTES = 1 << 5,
    DRIVER_OCCUPANCY = 1 << 6,
    DRIVER_PARAMS = 1 << 7,
    DRIVER_MAPS = 1 << 8,
    DRIVER_POOLS = 1 << 9,
    DRIVER_QUERIES = 1 << 10,
    DRIVER_START = 1 << 11,
    DRIVER_STACK = 1 << 12,
    DRIVER_CAPTURES = 1 << 13,
    DRIVER_LIBRARIES = 1 << 14,
    DRIVER_STREAMS = 1 << 15,
    DRIVER_ALL = (1 << 16) - 1,
};

/* X(member, groups, symbol, version for cuGetProcAddress, required, parameters). The functions of a
 * first launch come first, and are adjacent in memory. */
#define AOTCI_DRIVER_FUNCTIONS(X)                                                                                \
    X(context_get_current, DRIVER_CORE, cuCtxGetCurrent, 4000, true, (CUcontext * context))                      \
    X(context_get_device, DRIVER_CORE, cuCtxGetDevice, 2000, true, (CUdevice * device))                          \
    X(device_get_attribute, DRIVER_CORE, cuDeviceGetAttribute, 2000, true,                                       \
      (int *value, int attribute, CUdevice device))                                                              \
    X(exchange_capture_mode, DRIVER_CORE, cuThreadExchangeStreamCaptureMode, 10010, true, (int *mode))           \
    X(module_load, DRIVER_CORE, cuModuleLoadData, 2000, true, (CUmodule * module, const void *image))            \
    X(module_get_function, DRIVER_CORE, cuModuleGetFunction, 2000, true,                                         \
      (CUfunction * function, CUmodule module, const char *name))                                                \
    X(launch, DRIVER_CORE, cuLaunchKernelEx, 11060, true,                                                        \
      (const CUlaunchConfig *config, CUfunction function, void **params, void **extra))                          \
    X(context_get_id, DRIVER_CORE, cuCtxGetId, 12000, true, (CUcontext context, unsigned long long *id))         \
    X(stream_get_context, DRIVER_STREAMS, cuStreamGetCtx, 9020, true, (CUstream stream, CUcontext * context))    \
    X(init, DRIVER_START, cuInit, 2000, true, (unsigned flags))                                                  \
    X(get_error_name, DRIVER_ERRORS, cuGetErrorName, 6000, true, (CUresult result, const char **text))           \
    X(get_error_string, DRIVER_ERRORS, cuGetErrorString, 6000, true, (CUresult result, const char **text))       \
    X(device_get_count, DRIVER_START | DRIVER_DEVICES, cuDeviceGetCount, 2000, true, (int *count))               \
    X(device_get, DRIVER_DEVICES, cuDeviceGet, 2000, true, (CUdevice * device, int ordinal))                     \
    X(primary_retain, DRIVER_DEVICES, cuDevicePrimaryCtxRetain, 7000, true,                                      \
      (CUcontext * context, CUdevice device))                                                                    \
    X(primary_release, DRIVER_DEVICES, cuDevicePrimaryCtxRelease, 11000, true, (CUdevice device))                \
    X(context_push, DRIVER_STACK | DRIVER_UNLOAD, cuCtxPushCurrent, 4000, true, (CUcontext context))             \
    X(context_pop, DRIVER_STACK | DRIVER_UNLOAD, cuCtxPopCurrent, 4000, true, (CUcontext * context))             \
    X(stream_is_capturing, DRIVER_CAPTURES, cuStreamIsCapturing, 10000, true, (CUstream stream, int *status))    \
    X(library_load, DRIVER_LIBRARIES, cuLibraryLoadData, 12000, true,                                            \
      (CUlibrary * library, const void *code, int *jit_options, void **jit_values, unsigned jit_count,           \
       int *options, void **values, unsigned count))                                                             \
    X(library_unload, DRIVER_UNLOAD, cuLibraryUnload, 12000, true, (CUlibrary library))                          \
    X(library_get_kernel, DRIVER_LIBRARIES, cuLibraryGetKernel, 12000, true,                                     \
      (CUkernel * kernel, CUlibrary library, const char *name))                                                  \
    X(module_unload, DRIVER_UNLOAD, cuModuleUnload, 2000, true, (CUmodule module))                               \
    X(kernel_get_function, DRIVER_CODE, cuKernelGetFunction, 12000, true,                                        \
      (CUfunction * function, CUkernel kernel))                                                                  \
    X(kernel_set_attribute, DRIVER_ATTRIBUTES, cuKernelSetAttribute, 12000, true,                                \
      (int attribute, int value, CUkernel kernel, CUdevice device))                                              \
    X(function_set_attribute, DRIVER_ATTRIBUTES, cuFuncSetAttribute, 9000, true,                                 \
      (CUfunction function, int attribute, int value))                                                           \
    X(function_get_attribute, DRIVER_QUERIES, cuFuncGetAttribute, 2020, true,                                    \
      (int *value, int attribute, CUfunction function))                                                          \
    X(device_get_name, DRIVER_QUERIES, cuDeviceGetName, 2000, false,                                             \
      (char *name, int name_bytes, CUdevice device))                                                             \
    X(occupancy_max_blocks, DRIVER_OCCUPANCY, cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, true,           \
      (int *count, CUfunction function, int cta_threads, size_t dynamic_shared_bytes))                           \
    X(occupancy_max_clusters, DRIVER_OCCUPANCY, cuOccupancyMaxActiveClusters, 11070, true,                       \
      (int *count, CUfunction function, const CUlaunchConfig *config))                                           \
    X(function_load, DRIVER_CODE, cuFuncLoad, 12040, false, (CUfunction function))                               \
    X(kernel_get_param_info, DRIVER_PARAMS, cuKernelGetParamInfo, 12040, false,                                  \
      (CUkernel kernel, size_t index, size_t *offset, size_t *size_bytes))                                       \
    X(function_get_param_info, DRIVER_PARAMS, cuFuncGetParamInfo, 12040, false,                                  \
      (CUfunction function, size_t index, size_t *offset, size_t *size_bytes))                                   \
    X(tensor_map_encode, DRIVER_MAPS, cuTensorMapEncodeTiled, 12000, false,                                      \
      (CUtensorMap * map, int data_type, unsigned rank, void *address, const uint64_t *dims,                     \
       const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides, int interleave,            \
       int swizzle, int l2_promotion, int oob_fill))                                                             \
    X(pool_create, DRIVER_POOLS, cuMemPoolCreate, 11020, false,                                                  \
      (CUmemoryPool * pool, const CUmemPoolProps *properties))                                                   \
    X(pool_destroy, DRIVER_POOLS, cuMemPoolDestroy, 11020, false, (CUmemoryPool pool))                           \
    X(pool_set_attribute, DRIVER_POOLS, cuMemPoolSetAttribute, 11020, false,                                     \
      (CUmemoryPool pool, int attribute, void *value))                                                           \
    X(pool_allocate, DRIVER_POOLS, cuMemAllocFromPoolAsync, 11020, false,                                        \
      (CUdeviceptr * address, size_t size_bytes, CUmemoryPool pool, CUstream stream))                            \
    X(pool_free, DRIVER_POOLS, cuMemFreeAsync, 11020, false, (CUdeviceptr address, CUstream stream))

typedef CUresult (*aotci_find_function)(const char *symbol, void **function, int version, uint64_t flags,
                                        int *query_result);

typedef CUresult (*aotci_stream_context_function)(CUstream stream, CUcontext *context);

struct aotci_driver {
    unsigned groups;          /* groups looked up so far */
    aotci_find_function find; /* NULL: all are found */
    const char *path;
#define AOTCI_DRIVER_MEMBER(member, group, symbol, version, required, parameters)                  \
    CUresult(*member) parameters;
    AOTCI_DRIVER_FUNCTIONS(AOTCI_DRIVER_MEMBER)
#undef AOTCI_DRIVER_MEMBER
};

/* Find the driver, initialize it unless a context proves that it is, and look up DRIVER_CORE.
 * `path` must outlive it; NULL is "libcuda.so.1", taken from the program if it is linked there. The
 * library stays in memory until the process ends, because the driver does not survive being
 * unloaded. After an error `driver` is empty; `*current` is the current context if there is one.
 * DRIVER, CUDA. */
aotc_status aotci_driver_open(struct aotci_driver *driver, const char *path, CUcontext *current,
                              aotc_error *error);

/* Return whether this process may be a fork of a driver's user, where the driver does not work
 * (fork.c). */
bool aotci_may_be_forked(void);

/* Look up groups of entry points, unless already done; under the archive's lock. DRIVER. */
aotc_status aotci_driver_use(struct aotci_driver *driver, unsigned groups, aotc_error *error);

/* Look up the query for a stream's context without storing it; thread-safe. NULL if the driver
 * lacks it. */
aotci_stream_context_function aotci_driver_find_streams(const struct aotci_driver *driver);

/* Report a CUresult: its status, its name, its text and a remedy. `detail` may carry file, kernel
 * and field (the call that failed). */
aotc_status aotci_driver_fail(const struct aotci_driver *driver, CUresult result, aotc_error *error,
                              struct aotci_detail detail);

#endif
