/* fake_launch.c: libraries, modules, kernels, tensor maps, occupancy and launches.
 *
 * A library or module is a cubin with its functions and parameters. A launch copies its arguments
 * by these, for tests to see, and is judged: its code is loaded, its attributes and sizes are
 * legal.
 */
#include <stdio.h>
#include <string.h>

#include "fake_state.h"

/* Whether a capture in the global mode forbids a call. */
static bool is_forbidden(const char *symbol) {
    if ((fake.is_capturing || is_thread_capturing) &&
        capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
        fake.is_spoiled = true;
        is_thread_spoiled = true;
        violate("%s during a capture", symbol);
        return true;
    }
    return false;
}

/* A library to fill: a new one while the table lasts, so that handles of unloaded ones stay
 * invalid; then the slot of an unloaded one, whose kernels are forgotten. NULL if there is none. */
static struct CUlib_st *new_library(void) {
    if (fake.library_count < MAX_LIBRARIES) {
        return &fake.libraries[fake.library_count++];
    }
    for (int i = 0; i < MAX_LIBRARIES; ++i) {
        struct CUlib_st *library = &fake.libraries[i];
        if (library->is_alive) {
            continue;
        }
        for (int k = 0; k < fake.kernel_count; ++k) {
            if (fake.kernels[k].library == library) {
                fake.kernels[k] = (struct CUkern_st){.library = NULL};
            }
        }
        fake_cubin_free(&library->cubin);
        *library = (struct CUlib_st){.is_alive = false};
        return library;
    }
    return NULL;
}

static struct CUkern_st *new_kernel(void) {
    if (fake.kernel_count < MAX_KERNELS) {
        return &fake.kernels[fake.kernel_count++];
    }
    for (int i = 0; i < MAX_KERNELS; ++i) {
        if (fake.kernels[i].library == NULL || !fake.kernels[i].library->is_alive) {
            return &fake.kernels[i];
        }
    }
    return NULL;
}

void forget_code(CUcontext context) {
    for (int i = 0; i < fake.kernel_count; ++i) {
        fake.kernels[i].is_loaded[context_index(context)] = false;
    }
    for (int i = 0; i < fake.library_count; ++i) {
        if (fake.libraries[i].context == context) {
            fake.libraries[i].is_alive = false;
        }
    }
}

CUresult fake_cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options,
                                       void **jit_values, unsigned jit_count, int *options,
                                       void **values, unsigned count) {
    ENTER("cuLibraryLoadData");
    (void)jit_options, (void)jit_values, (void)options, (void)values;
    if (is_forbidden("cuLibraryLoadData")) {
        return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    REQUIRE(jit_count == 0 && count == 0, CUDA_ERROR_INVALID_VALUE, "cuLibraryLoadData: options");
    struct CUlib_st *loaded = new_library();
    REQUIRE(loaded != NULL, CUDA_ERROR_OUT_OF_MEMORY, "more libraries than the fake has");
    REQUIRE(fake_cubin_read(code, &loaded->cubin), CUDA_ERROR_INVALID_IMAGE,
            "cuLibraryLoadData: not a cubin");
    bool runs = false;
    for (int i = 0; i < fake.device_count; ++i) {
        runs = runs || fake.devices[i].major == loaded->cubin.arch / 10;
    }
    REQUIRE(runs, CUDA_ERROR_NO_BINARY_FOR_GPU, "cuLibraryLoadData: a cubin for sm_%d",
            loaded->cubin.arch);
    loaded->is_alive = true;
    *library = loaded;
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER("cuModuleLoadData");
    if (is_forbidden("cuModuleLoadData")) {
        return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    REQUIRE(current() != NULL && current()->is_alive, CUDA_ERROR_INVALID_CONTEXT,
            "cuModuleLoadData without a context");
    struct CUlib_st *loaded = new_library();
    REQUIRE(loaded != NULL, CUDA_ERROR_OUT_OF_MEMORY, "more libraries than the fake has");
    REQUIRE(fake_cubin_read(image, &loaded->cubin), CUDA_ERROR_INVALID_IMAGE,
            "cuModuleLoadData: not a cubin");
    REQUIRE(fake.devices[current()->device].major == loaded->cubin.arch / 10,
            CUDA_ERROR_NO_BINARY_FOR_GPU, "cuModuleLoadData: a cubin for sm_%d", loaded->cubin.arch);
    loaded->is_alive = true;
    loaded->context = current();
    *module = (CUmodule)loaded;
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuModuleUnload(CUmodule module) {
    ENTER("cuModuleUnload");
    struct CUlib_st *library = (CUlibrary)module;
    if (is_forbidden("cuModuleUnload")) {
        return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    REQUIRE(library->is_alive, CUDA_ERROR_INVALID_HANDLE,
            "cuModuleUnload twice, or after its context was destroyed");
    REQUIRE(library->context == current(), CUDA_ERROR_INVALID_CONTEXT,
            "cuModuleUnload in another context");
    library->is_alive = false;
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuLibraryUnload(CUlibrary library) {
    ENTER("cuLibraryUnload");
    if (is_forbidden("cuLibraryUnload")) {
        return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    REQUIRE(library->is_alive, CUDA_ERROR_INVALID_HANDLE, "cuLibraryUnload twice");
    library->is_alive = false;
    return leave(CUDA_SUCCESS);
}

/* A function of a library or module; between ENTER and leave. */
static CUresult find_function(CUkernel *kernel, CUlibrary library, const char *name) {
    const struct fake_function *function = fake_cubin_find(&library->cubin, name);
    if (function == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    for (int i = 0; i < fake.kernel_count; ++i) {
        if (fake.kernels[i].library == library && fake.kernels[i].function == function) {
            *kernel = &fake.kernels[i];
            return CUDA_SUCCESS;
        }
    }
    struct CUkern_st *made = new_kernel();
    if (made == NULL) {
        violate("more kernels than the fake has");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct CUkern_st){.library = library, .function = function};
    *kernel = made;
    return CUDA_SUCCESS;
}

CUresult fake_cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    ENTER("cuLibraryGetKernel");
    REQUIRE(library->is_alive, CUDA_ERROR_INVALID_HANDLE,
            "cuLibraryGetKernel of an unloaded library");
    return leave(find_function(kernel, library, name));
}

CUresult fake_cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    ENTER("cuModuleGetFunction");
    const CUlibrary library = (CUlibrary)module;
    REQUIRE(library->is_alive && library->context == current(), CUDA_ERROR_INVALID_HANDLE,
            "cuModuleGetFunction of an unloaded module, or in another context");
    return leave(find_function((CUkernel *)function, library, name));
}

CUresult fake_cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    ENTER("cuKernelGetFunction");
    REQUIRE(current() != NULL, CUDA_ERROR_INVALID_CONTEXT, "cuKernelGetFunction without a context");
    REQUIRE(fake.devices[current()->device].major == kernel->library->cubin.arch / 10,
            CUDA_ERROR_NO_BINARY_FOR_GPU, "cuKernelGetFunction: wrong GPU");
    *function = (CUfunction)kernel;
    return leave(CUDA_SUCCESS);
}

static CUresult set_attribute(const char *symbol, int attribute, int value, CUkernel kernel,
                              CUdevice device) {
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 ||
            value + kernel->function->static_shared_bytes > fake.devices[device].shared_bytes) {
            violate("%s: %d bytes of shared memory", symbol, value);
            return CUDA_ERROR_INVALID_VALUE;
        }
        kernel->max_dynamic_shared[device] = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        kernel->non_portable_cluster[device] = value != 0;
        return CUDA_SUCCESS;
    default:
        violate("%s: attribute %d", symbol, attribute);
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult fake_cuKernelSetAttribute(int attribute, int value, CUkernel kernel,
                                          CUdevice device) {
    ENTER("cuKernelSetAttribute");
    REQUIRE(device >= 0 && device < fake.device_count, 101, "cuKernelSetAttribute: device %d",
            device);
    return leave(set_attribute("cuKernelSetAttribute", attribute, value, kernel, device));
}

CUresult fake_cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    ENTER("cuFuncSetAttribute");
    REQUIRE(current() != NULL, CUDA_ERROR_INVALID_CONTEXT, "cuFuncSetAttribute without a context");
    return leave(set_attribute("cuFuncSetAttribute", attribute, value, (CUkernel)function,
                               current()->device));
}

static CUresult load_function(CUfunction function, const char *symbol) {
    if (is_forbidden(symbol)) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    ((CUkernel)function)->is_loaded[context_index(current())] = true;
    return CUDA_SUCCESS;
}

CUresult fake_cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    ENTER("cuFuncGetAttribute");
    *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
    return leave(load_function(function, "cuFuncGetAttribute"));
}

CUresult fake_cuFuncLoad(CUfunction function) {
    ENTER("cuFuncLoad");
    return leave(load_function(function, "cuFuncLoad"));
}

static CUresult get_param(const struct CUkern_st *kernel, size_t index, size_t *offset,
                          size_t *size_bytes) {
    if (index >= kernel->function->param_count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *offset = kernel->function->params[index].offset;
    *size_bytes = kernel->function->params[index].size_bytes;
    return CUDA_SUCCESS;
}

CUresult fake_cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset,
                                          size_t *size_bytes) {
    ENTER("cuKernelGetParamInfo");
    return leave(get_param(kernel, index, offset, size_bytes));
}

CUresult fake_cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset,
                                 size_t *size_bytes) {
    ENTER("cuFuncGetParamInfo");
    return leave(get_param((CUkernel)function, index, offset, size_bytes));
}

CUresult fake_cuTensorMapEncodeTiled(CUtensorMap *map, int data_type, unsigned rank,
                                            void *address, const uint64_t *dims,
                                            const uint64_t *strides, const uint32_t *box,
                                            const uint32_t *element_strides, int interleave,
                                            int swizzle, int l2_promotion, int oob_fill) {
    ENTER("cuTensorMapEncodeTiled");
    (void)element_strides, (void)interleave, (void)l2_promotion, (void)oob_fill;
    REQUIRE((uintptr_t)map % 64 == 0, CUDA_ERROR_INVALID_VALUE,
            "cuTensorMapEncodeTiled: map not aligned");
    REQUIRE((uintptr_t)address % 16 == 0, CUDA_ERROR_INVALID_VALUE,
            "cuTensorMapEncodeTiled: address");
    memset(map, 0, sizeof *map);
    map->opaque[0] = (uint64_t)(uintptr_t)address;
    map->opaque[1] = rank | (uint64_t)data_type << 8 | (uint64_t)swizzle << 16;
    for (unsigned i = 0; i < rank; ++i) {
        REQUIRE(dims[i] >= 1 && box[i] >= 1 && box[i] <= 256, CUDA_ERROR_INVALID_VALUE,
                "cuTensorMapEncodeTiled: dimension %u", i);
        map->opaque[2 + i] = dims[i];
        map->opaque[11 + i] = box[i];
        if (i + 1 < rank) {
            REQUIRE(strides[i] % 16 == 0 && strides[i] < UINT64_C(1) << 40,
                    CUDA_ERROR_INVALID_VALUE, "cuTensorMapEncodeTiled: stride %u", i);
            map->opaque[7 + i] = strides[i];
        }
    }
    return leave(CUDA_SUCCESS);
}

static CUresult read_attributes(const CUlaunchConfig *config, struct fake_launch *launch) {
    launch->cluster[0] = launch->cluster[1] = launch->cluster[2] = 1;
    for (unsigned i = 0; i < config->attribute_count; ++i) {
        const CUlaunchAttribute *attribute = &config->attributes[i];
        switch (attribute->id) {
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            launch->cluster[0] = attribute->value.cluster.x;
            launch->cluster[1] = attribute->value.cluster.y;
            launch->cluster[2] = attribute->value.cluster.z;
            break;
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
            launch->is_cooperative = attribute->value.cooperative;
            break;
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
            launch->is_pdl = attribute->value.programmatic_stream_serialization;
            break;
        default:
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

/* The limit of dynamic shared memory of a launch. */
static int64_t allowed_shared(const struct CUkern_st *kernel, int device) {
    return kernel->max_dynamic_shared[device] != 0
               ? kernel->max_dynamic_shared[device]
               : DEFAULT_SHARED_BYTES - kernel->function->static_shared_bytes;
}

/* How many CTAs the multiprocessors hold; shared memory bounds it, and the fake's own limit. */
static CUresult count_ctas(const char *symbol, CUfunction function, size_t dynamic_shared_bytes,
                             int *count) {
    const struct CUkern_st *kernel = (CUkernel)function;
    if (current() == NULL || !kernel->is_loaded[context_index(current())]) {
        violate("%s of %s: not loaded in the context before", symbol, kernel->function->name);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const int device = current()->device;
    const int bytes = (int)dynamic_shared_bytes + kernel->function->static_shared_bytes;
    int held = FAKE_CUDA_MAX_CTAS;
    if ((int64_t)dynamic_shared_bytes > allowed_shared(kernel, device)) {
        held = 0;
    } else if (bytes != 0 && fake.devices[device].shared_bytes / bytes < held) {
        held = fake.devices[device].shared_bytes / bytes;
    }
    *count = held * FAKE_CUDA_MULTIPROCESSORS;
    return CUDA_SUCCESS;
}

CUresult fake_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction function,
                                                                 int cta_threads,
                                                                 size_t dynamic_shared_bytes) {
    static const char symbol[] = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
    ENTER(symbol);
    REQUIRE(cta_threads >= 1 && cta_threads <= 1024, CUDA_ERROR_INVALID_VALUE, "%s: %d threads",
            symbol, cta_threads);
    const CUresult result = count_ctas(symbol, function, dynamic_shared_bytes, count);
    *count /= FAKE_CUDA_MULTIPROCESSORS;
    return leave(result);
}

CUresult fake_cuOccupancyMaxActiveClusters(int *count, CUfunction function,
                                                  const CUlaunchConfig *config) {
    static const char symbol[] = "cuOccupancyMaxActiveClusters";
    ENTER(symbol);
    struct fake_launch asked = {.is_pdl = 0};
    REQUIRE(read_attributes(config, &asked) == CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE,
            "%s: attribute", symbol);
    const unsigned size = asked.cluster[0] * asked.cluster[1] * asked.cluster[2];
    REQUIRE(size > 1 && config->grid_x % asked.cluster[0] == 0 &&
                config->grid_y % asked.cluster[1] == 0 && config->grid_z % asked.cluster[2] == 0,
            CUDA_ERROR_INVALID_CLUSTER_SIZE, "%s: a cluster of %u", symbol, size);
    const CUresult result = count_ctas(symbol, function, config->shared_bytes, count);
    if (size > 8 && !((CUkernel)function)->non_portable_cluster[current()->device]) {
        *count = 0;
    }
    *count /= (int)size;
    return leave(result);
}

CUresult fake_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
                                      void **params, void **extra) {
    const CUkernel kernel = (CUkernel)function;
    if (!atomic_load_explicit(&is_recording, memory_order_relaxed)) {
        (void)atomic_fetch_add_explicit(&launch_count, 1, memory_order_relaxed);
        return CUDA_SUCCESS;
    }
    ENTER("cuLaunchKernelEx");
    struct fake_launch launch = {.stream = config->stream, .shared_bytes = config->shared_bytes};
    const unsigned grid[3] = {config->grid_x, config->grid_y, config->grid_z};
    const unsigned block[3] = {config->block_x, config->block_y, config->block_z};
    memcpy(launch.grid, grid, sizeof grid);
    memcpy(launch.block, block, sizeof block);
    launch.context = config->stream == NULL ? current() : config->stream->context;
    REQUIRE(launch.context != NULL && launch.context->is_alive, CUDA_ERROR_INVALID_CONTEXT,
            "launch: context");
    launch.device = launch.context->device;
    REQUIRE(kernel->library != NULL && kernel->library->is_alive, CUDA_ERROR_INVALID_HANDLE,
            "launch: unloaded library");
    REQUIRE(kernel->library->context == NULL || kernel->library->context == launch.context,
            CUDA_ERROR_INVALID_HANDLE, "launch: a function of another context");
    if (!kernel->is_loaded[context_index(launch.context)]) {
        REQUIRE(!fake.is_capturing && !is_thread_capturing, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                "launch of %s in a capture: not loaded in the context before",
                kernel->function->name);
        kernel->is_loaded[context_index(launch.context)] = true;
    }
    REQUIRE(extra == NULL, CUDA_ERROR_INVALID_VALUE, "launch: extra");
    REQUIRE(read_attributes(config, &launch) == CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE,
            "launch: attribute");
    unsigned cluster = 1;
    for (unsigned i = 0; i < 3; ++i) {
        REQUIRE(grid[i] >= 1 && grid[i] <= (i == 0 ? 0x7FFFFFFFu : 65535u),
                CUDA_ERROR_INVALID_VALUE, "launch: grid[%u] = %u", i, grid[i]);
        REQUIRE(launch.cluster[i] >= 1 && grid[i] % launch.cluster[i] == 0,
                CUDA_ERROR_INVALID_VALUE, "launch: cluster[%u] = %u", i, launch.cluster[i]);
        cluster *= launch.cluster[i];
    }
    REQUIRE(block[0] * block[1] * block[2] >= 1 && block[0] * block[1] * block[2] <= 1024,
            CUDA_ERROR_INVALID_VALUE, "launch: block");
    REQUIRE(cluster <= 8 || kernel->non_portable_cluster[launch.device], CUDA_ERROR_INVALID_VALUE,
            "launch: a cluster of %u without the attribute", cluster);
    const int64_t allowed = allowed_shared(kernel, launch.device);
    REQUIRE((int64_t)config->shared_bytes <= allowed, CUDA_ERROR_INVALID_VALUE,
            "launch: %u bytes of shared memory, %d allowed", config->shared_bytes, (int)allowed);
    for (size_t i = 0; i < kernel->function->param_count; ++i) {
        const struct fake_param *param = &kernel->function->params[i];
        memcpy(launch.params + param->offset, params[i], param->size_bytes);
        launch.param_bytes = param->offset + param->size_bytes;
        launch.param_offsets[launch.param_count++] = param->offset;
    }
    launch.arch = kernel->library->cubin.arch;
    (void)snprintf(launch.symbol, sizeof launch.symbol, "%s", kernel->function->name);
    fake.last = launch;
    (void)atomic_fetch_add_explicit(&launch_count, 1, memory_order_relaxed);
    fake_pretend(&launch);
    fake_kernel *const run = fake.run;
    const CUresult result = leave(CUDA_SUCCESS);
    if (run != NULL) {
        run(&launch);
    }
    return result;
}
