/* _native_plan.c: the plan of a launch, without a GPU: variant, dimensions, parameters, maps.
 *
 * An archive gets a recording driver: loads and launches are the C library's own, to the last call,
 * and this driver records the arguments instead of loading code, encoding a map or launching. A map
 * is encoded as its arguments, 128 bytes that the library stores and copies like a real map; the
 * launch copies the data behind its parameters.
 *
 * The driver's functions get no data but handles, which encode it all: a device is its number
 * (capability, and program instances at a time), a context its device, a stream the recorder. The
 * only state is the current context of each thread, as in the real driver.
 */
#include "_native.h"

#include <string.h>

/* ---- maps ----------------------------------------------------------------------------------- */

static const char map_mark[8] = {'a', 'o', 't', 'c', ' ', 'm', 'a', 'p'};

/* The arguments of cuTensorMapEncodeTiled, in place of the map. */
struct recorded_map {
    char mark[sizeof map_mark];
    uint64_t address;
    uint64_t dims[LIMIT_RANK];
    uint64_t strides[LIMIT_RANK - 1];
    uint32_t box[LIMIT_RANK];
    uint8_t element_strides[LIMIT_RANK];
    uint8_t data_type, rank, interleave, swizzle, l2_promotion, oob_fill;
};

_Static_assert(sizeof(struct recorded_map) <= sizeof(CUtensorMap), "it stands for a map");

static CUresult encode(CUtensorMap *map, int data_type, unsigned rank, void *address,
                       const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                       const uint32_t *element_strides, int interleave, int swizzle,
                       int l2_promotion, int oob_fill) {
    struct recorded_map recorded = {
        .address = (uint64_t)(uintptr_t)address,
        .data_type = (uint8_t)data_type,
        .rank = (uint8_t)rank,
        .interleave = (uint8_t)interleave,
        .swizzle = (uint8_t)swizzle,
        .l2_promotion = (uint8_t)l2_promotion,
        .oob_fill = (uint8_t)oob_fill,
    };
    if (rank < 1 || rank > LIMIT_RANK) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(recorded.mark, map_mark, sizeof map_mark);
    memcpy(recorded.dims, dims, rank * sizeof *dims);
    memcpy(recorded.strides, strides, (rank - 1) * sizeof *strides);
    memcpy(recorded.box, box, rank * sizeof *box);
    for (unsigned i = 0; i < rank; ++i) {
        recorded.element_strides[i] = (uint8_t)element_strides[i];
    }
    memset(map, 0, sizeof *map);
    memcpy(map, &recorded, sizeof recorded);
    return CUDA_SUCCESS;
}

/* ---- devices and contexts ------------------------------------------------------------------- */

/* A device is ((program instances at a time) * 100 + major) * 10 + minor. */
enum { MAX_AT_ONCE = 1 << 20, MAX_MAJOR = 99, MAX_MINOR = 9 };

static CUdevice device_of(int major, int minor, int at_once) {
    return (at_once * 100 + major) * 10 + minor;
}

static _Thread_local CUcontext current_context;

/* The recorder that a launch of this thread may name as its stream; any other number is invalid. */
static _Thread_local struct recorder *current_recorder;

static CUresult get_error_text(CUresult result, const char **text) {
    (void)result;
    *text = "no GPU, only a plan";
    return CUDA_SUCCESS;
}

static CUresult device_get_count(int *count) {
    *count = device_of(MAX_MAJOR, MAX_MINOR, MAX_AT_ONCE) + 1;
    return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult device_get_attribute(int *value, int attribute, CUdevice device) {
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = device / 10 % 100;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = device % 10;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = device / 1000;
        break;
    default: /* the fit to a GPU was decided when the archive was built */
        *value = INT32_MAX;
        break;
    }
    return CUDA_SUCCESS;
}

static CUcontext context_of(CUdevice device) { return (CUcontext)((uintptr_t)device + 1); }

static CUresult primary_retain(CUcontext *context, CUdevice device) {
    *context = context_of(device);
    return CUDA_SUCCESS;
}

static CUresult primary_release(CUdevice device) {
    (void)device;
    return CUDA_SUCCESS;
}

static CUresult context_get_current(CUcontext *context) {
    *context = current_context;
    return CUDA_SUCCESS;
}

static CUresult context_push(CUcontext context) {
    current_context = context; /* loads push one and pop it */
    return CUDA_SUCCESS;
}

static CUresult context_pop(CUcontext *context) {
    *context = current_context;
    current_context = NULL;
    return CUDA_SUCCESS;
}

static CUresult context_get_device(CUdevice *device) {
    *device = (CUdevice)((uintptr_t)current_context - 1);
    return CUDA_SUCCESS;
}

static CUresult context_get_id(CUcontext context, unsigned long long *id) {
    *id = (unsigned long long)(uintptr_t)context;
    return CUDA_SUCCESS;
}

static CUresult stream_get_context(CUstream stream, CUcontext *context) {
    if (current_recorder == NULL || (void *)stream != (void *)current_recorder) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *context = current_recorder->context;
    return CUDA_SUCCESS;
}

static CUresult exchange_capture_mode(int *mode) {
    (void)mode;
    return CUDA_SUCCESS;
}

/* ---- code ----------------------------------------------------------------------------------- */

/* A library is a list of its kernels; each is a unique handle of a variant. */
struct node {
    struct node *next;
};

static CUresult new_node(struct node **node) {
    *node = PyMem_RawCalloc(1, sizeof **node);
    return *node == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult library_load(CUlibrary *library, const void *code, int *jit_options,
                             void **jit_values, unsigned jit_count, int *options, void **values,
                             unsigned count) {
    struct node *node = NULL;
    (void)code, (void)jit_options, (void)jit_values, (void)jit_count;
    (void)options, (void)values, (void)count;
    const CUresult result = new_node(&node);
    *library = (CUlibrary)(void *)node;
    return result;
}

static CUresult library_unload(CUlibrary library) {
    for (struct node *node = (struct node *)(void *)library; node != NULL;) {
        struct node *next = node->next;
        PyMem_RawFree(node);
        node = next;
    }
    return CUDA_SUCCESS;
}

static CUresult library_get_kernel(CUkernel *kernel, CUlibrary library, const char *name) {
    struct node *head = (struct node *)(void *)library;
    struct node *node = NULL;
    (void)name;
    const CUresult result = new_node(&node);
    if (result == CUDA_SUCCESS) {
        node->next = head->next;
        head->next = node;
    }
    *kernel = (CUkernel)(void *)node;
    return result;
}

static CUresult kernel_get_function(CUfunction *function, CUkernel kernel) {
    *function = (CUfunction)(void *)kernel;
    return CUDA_SUCCESS;
}

static CUresult kernel_set_attribute(int attribute, int value, CUkernel kernel, CUdevice device) {
    (void)attribute, (void)value, (void)kernel, (void)device;
    return CUDA_SUCCESS;
}

static CUresult function_get_attribute(int *value, int attribute, CUfunction function) {
    (void)attribute, (void)function;
    *value = 0;
    return CUDA_SUCCESS;
}

static CUresult occupancy_max_blocks(int *count, CUfunction function, int cta_threads,
                                     size_t dynamic_shared_bytes) {
    (void)function, (void)cta_threads, (void)dynamic_shared_bytes;
    *count = 1; /* on each multiprocessor, with one multiprocessor for each program instance at a
                 * time */
    return CUDA_SUCCESS;
}

static CUresult occupancy_max_clusters(int *count, CUfunction function,
                                       const CUlaunchConfig *config) {
    (void)function, (void)config;
    *count = (int)((uintptr_t)current_context - 1) / 1000;
    return CUDA_SUCCESS;
}

/* ---- launches ------------------------------------------------------------------------------- */

static bool find_variant(const aotc_kernel *kernel, CUfunction function, uint32_t *index) {
    for (*index = 0; *index < aotci_count(&kernel->tables, SECTION_VARIANTS); ++*index) {
        if ((CUfunction)(void *)kernel->cuda_kernels[*index] == function) {
            return true;
        }
    }
    return false;
}

static CUresult launch(const CUlaunchConfig *config, CUfunction function, void **params,
                       void **extra) {
    struct recorder *recorder = current_recorder;
    (void)extra;
    if (recorder == NULL || (void *)config->stream != (void *)recorder ||
        !find_variant(recorder->kernel, function, &recorder->variant)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const struct variant_record *variant = aotci_variant(&recorder->kernel->tables, recorder->variant);
    for (uint32_t i = 0; i < variant->cubin_param_count; ++i) {
        const struct cubin_param_record *param =
            aotci_cubin_param(&recorder->kernel->tables, variant->first_cubin_param + i);
        memcpy(recorder->params + param->offset, params[i], param->size);
    }
    for (unsigned i = 0; i < config->attribute_count; ++i) {
        const CUlaunchAttribute *attribute = &config->attributes[i];
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            recorder->cluster[0] = attribute->value.cluster.x;
            recorder->cluster[1] = attribute->value.cluster.y;
            recorder->cluster[2] = attribute->value.cluster.z;
        }
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
            recorder->is_pdl = attribute->value.programmatic_stream_serialization != 0;
        }
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
            recorder->is_cooperative = attribute->value.cooperative != 0;
        }
    }
    const uint32_t grid[3] = {config->grid_x, config->grid_y, config->grid_z};
    const uint32_t block[3] = {config->block_x, config->block_y, config->block_z};
    memcpy(recorder->grid, grid, sizeof grid);
    memcpy(recorder->block, block, sizeof block);
    recorder->shared_bytes = config->shared_bytes;
    recorder->is_launched = true;
    return CUDA_SUCCESS;
}

/* ---- scratch memory ------------------------------------------------------------------------- */

static CUresult pool_create(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    (void)properties;
    *pool = (CUmemoryPool)(uintptr_t)1;
    return CUDA_SUCCESS;
}

static CUresult pool_set_attribute(CUmemoryPool pool, int attribute, void *value) {
    (void)pool, (void)attribute, (void)value;
    return CUDA_SUCCESS;
}

static CUresult pool_destroy(CUmemoryPool pool) {
    (void)pool;
    return CUDA_SUCCESS;
}

/* An address for scratch memory, never used by a launch: a multiple of exactly 256. */
static const uint64_t scratch_address = UINT64_C(0x7b0000000100);

static CUresult pool_allocate(CUdeviceptr *address, size_t size_bytes, CUmemoryPool pool,
                              CUstream stream) {
    (void)pool;
    if (current_recorder == NULL || (void *)stream != (void *)current_recorder) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    current_recorder->scratch = *address = scratch_address;
    current_recorder->scratch_bytes = size_bytes;
    return CUDA_SUCCESS;
}

static CUresult pool_free(CUdeviceptr address, CUstream stream) {
    if (current_recorder == NULL || (void *)stream != (void *)current_recorder) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    current_recorder->is_scratch_returned = current_recorder->is_launched && address == scratch_address;
    return CUDA_SUCCESS;
}

static CUresult init(unsigned flags) {
    (void)flags;
    return CUDA_SUCCESS;
}

static const struct aotci_driver recording_driver = {
    .groups = DRIVER_ALL,
    .init = init,
    .get_error_name = get_error_text,
    .get_error_string = get_error_text,
    .device_get_count = device_get_count,
    .device_get = device_get,
    .device_get_attribute = device_get_attribute,
    .primary_retain = primary_retain,
    .primary_release = primary_release,
    .context_get_current = context_get_current,
    .context_push = context_push,
    .context_pop = context_pop,
    .context_get_device = context_get_device,
    .context_get_id = context_get_id,
    .stream_get_context = stream_get_context,
    .exchange_capture_mode = exchange_capture_mode,
    .library_load = library_load,
    .library_unload = library_unload,
    .library_get_kernel = library_get_kernel,
    .kernel_get_function = kernel_get_function,
    .kernel_set_attribute = kernel_set_attribute,
    .function_get_attribute = function_get_attribute,
    .occupancy_max_blocks = occupancy_max_blocks,
    .occupancy_max_clusters = occupancy_max_clusters,
    .launch = launch,
    .tensor_map_encode = encode,
    .pool_create = pool_create,
    .pool_set_attribute = pool_set_attribute,
    .pool_destroy = pool_destroy,
    .pool_allocate = pool_allocate,
    .pool_free = pool_free,
};

/* ---- plans ---------------------------------------------------------------------------------- */

int native_plan_begin(const struct native_kernel *kernel, int major, int minor, int at_once,
                      struct recorder *recorder) {
    struct native_handle *handle = kernel->handle;
    const char *name = PyUnicode_AsUTF8(kernel->name);
    aotc_error error;
    error.struct_size = (uint32_t)sizeof error;
    if (major < 0 || major > MAX_MAJOR || minor < 0 || minor > MAX_MINOR || at_once < 1 ||
        at_once > MAX_AT_ONCE) {
        PyErr_SetString(PyExc_ValueError, "expected a compute capability, and programs at a time");
        return -1;
    }
    if (name == NULL) {
        return -1;
    }
    if (handle->archive == NULL) {
        return NATIVE_FAIL(kernel->state, AOTC_ERROR_STATE, .file = handle->path, .kernel = name,
                           .field = "library", .expected = "an open one",
                           .got = "one that was closed", .remedy = "load it again");
    }
    aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
    options.device = device_of(major, minor, at_once);
    options.kernel = name;
    memset(recorder, 0, sizeof *recorder);
    recorder->outer = current_recorder;
    recorder->kernel = kernel->kernel;
    recorder->context = context_of(options.device);
    for (unsigned i = 0; i < 3; ++i) {
        recorder->cluster[i] = 1;
    }
    if (aotci_use_driver(handle->archive, &recording_driver, &error) != AOTC_OK) {
        return native_raise(kernel->state, &error);
    }
    if (native_load(kernel->state, handle, &options) < 0) {
        return -1;
    }
    current_recorder = recorder;
    return 0;
}

void native_plan_end(const struct recorder *recorder) { current_recorder = recorder->outer; }

static PyObject *numbers(const uint64_t *values, unsigned count) {
    PyObject *tuple = PyTuple_New(count);
    for (unsigned i = 0; tuple != NULL && i < count; ++i) {
        PyObject *number = PyLong_FromUnsignedLongLong(values[i]);
        if (number == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SET_ITEM(tuple, i, number);
        }
    }
    return tuple;
}

static PyObject *map_object(const struct native_kernel *kernel, const struct recorder *recorder,
                            uint32_t offset) {
    struct recorded_map map;
    uint64_t box[LIMIT_RANK];
    uint64_t element_strides[LIMIT_RANK];
    memcpy(&map, recorder->params + offset, sizeof map);
    if (memcmp(map.mark, map_mark, sizeof map_mark) != 0) {
        PyErr_SetString(PyExc_SystemError, "a parameter for a tensor map holds none");
        return NULL;
    }
    for (unsigned i = 0; i < map.rank; ++i) {
        box[i] = map.box[i];
        element_strides[i] = map.element_strides[i];
    }
    return PyObject_CallMethod(
        kernel->state->describe, "PlannedMap", "IiKNNNNiiii", offset, (int)map.data_type,
        (unsigned long long)map.address, numbers(map.dims, map.rank),
        numbers(map.strides, map.rank - 1u), numbers(box, map.rank),
        numbers(element_strides, map.rank), (int)map.interleave, (int)map.swizzle,
        (int)map.l2_promotion, (int)map.oob_fill);
}

static PyObject *map_objects(const struct native_kernel *kernel, const struct recorder *recorder) {
    const struct variant_record *variant = aotci_variant(&recorder->kernel->tables, recorder->variant);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < variant->cubin_param_count; ++i) {
        const struct cubin_param_record *param =
            aotci_cubin_param(&recorder->kernel->tables, variant->first_cubin_param + i);
        if (param->source == SOURCE_TENSOR_MAP) {
            PyObject *map = map_object(kernel, recorder, param->offset);
            if (map == NULL || PyList_Append(list, map) < 0) {
                Py_CLEAR(list);
            }
            Py_XDECREF(map);
        }
    }
    PyObject *tuple = list == NULL ? NULL : PyList_AsTuple(list);
    Py_XDECREF(list);
    return tuple;
}

PyObject *native_plan_object(const struct native_kernel *kernel, const struct recorder *recorder) {
    if (!recorder->is_launched) {
        Py_RETURN_NONE;
    }
    aotc_archive *archive = native_hold(kernel->handle);
    if (archive == NULL) {
        return NATIVE_FAIL(kernel->state, AOTC_ERROR_STATE, .file = kernel->handle->path,
                           .field = "library", .expected = "an open one",
                           .got = "one that was closed") < 0
                   ? NULL
                   : Py_None;
    }
    const struct variant_record *variant = aotci_variant(&kernel->kernel->tables, recorder->variant);
    aotc_kernel_info info = {.struct_size = (uint32_t)sizeof info};
    (void)aotc_kernel_get_info(kernel->kernel, &info);
    PyObject *plan = PyObject_CallMethod(
        kernel->state->describe, "Plan", "Is(III)(III)(III)IOy#NO(KK)O",
        recorder->variant - kernel->kernel->record->first_variant,
        aotci_string(&kernel->kernel->tables, variant->symbol), recorder->grid[0], recorder->grid[1],
        recorder->grid[2], recorder->block[0], recorder->block[1], recorder->block[2],
        recorder->cluster[0], recorder->cluster[1], recorder->cluster[2], recorder->shared_bytes,
        recorder->is_pdl ? Py_True : Py_False, recorder->params, (Py_ssize_t)variant->param_bytes,
        map_objects(kernel, recorder), recorder->is_cooperative ? Py_True : Py_False,
        (unsigned long long)recorder->scratch, (unsigned long long)recorder->scratch_bytes,
        recorder->is_scratch_returned ? Py_True : Py_False);
    native_let_go(archive);
    return plan;
}
