/* bench_launch.c: the cost of a launch through the library over the driver's own.
 *
 *     bench_launch ARCHIVE KERNEL [LIBCUDA] [TENTHS_OF_SECONDS]
 *
 * Any kernel whose arguments are pointers and integers will do: pointers are to one buffer,
 * integers are 1 (so little is computed that the queue never fills). The kernel, the configuration
 * and the arguments of both are the same, and both are timed in turn in short bursts with a
 * synchronization between them. Printed: the medians over the bursts, in nanoseconds a launch, and
 * their ratio. Works on the fake driver too, where it shows the library's own time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "aotc/aotc.h"
#include "driver.h"

enum { BURST = 200, MAX_BURSTS = 4000, MAX_ARGS = 256, BUFFER_BYTES = 1 << 20 };

struct setup {
    struct aotci_driver driver;
    CUresult (*stream_create)(CUstream *, unsigned);
    CUresult (*stream_synchronize)(CUstream);
    CUresult (*memory_allocate)(uint64_t *, size_t);
    CUresult (*context_set_current)(CUcontext);
    CUstream stream;
    const aotc_kernel *kernel;
    aotc_launch_desc desc;
    aotc_arg args[MAX_ARGS];
    void *params[MAX_ARGS];
    CUlaunchConfig config;
    CUfunction function;
};

__attribute__((noreturn)) static void stop(const char *what, const char *why) {
    (void)fprintf(stderr, "bench_launch: %s: %s\n", what, why);
    exit(1);
}

static void demand(aotc_status status, const char *what, const aotc_error *error) {
    if (status != AOTC_OK) {
        stop(what, error->message);
    }
}

static void demand_cuda(CUresult result, const char *what) {
    if (result != CUDA_SUCCESS) {
        stop(what, "the driver reports an error");
    }
}

static double now_ns(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Entry points not used by the library itself. */
static void find_more(struct setup *setup, const char *path) {
    CUresult (*find)(const char *, void **, int, uint64_t, int *) = NULL;
    void *library = dlopen(path == NULL ? "libcuda.so.1" : path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library == NULL ? NULL : dlsym(library, "cuGetProcAddress_v2");
    int query = 0;
    if (symbol == NULL) {
        stop("libcuda", "no cuGetProcAddress_v2");
    }
    memcpy(&find, &symbol, sizeof symbol);
    const struct {
        const char *name;
        void *target;
        int version;
    } functions[] = {
        {"cuStreamCreate", &setup->stream_create, 2000},
        {"cuStreamSynchronize", &setup->stream_synchronize, 2000},
        {"cuMemAlloc", &setup->memory_allocate, 3020},
        {"cuCtxSetCurrent", &setup->context_set_current, 4000},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
        void *found = NULL;
        demand_cuda(find(functions[i].name, &found, functions[i].version, 0, &query),
                    functions[i].name);
        memcpy(functions[i].target, &found, sizeof found);
    }
}

static void fill_arguments(struct setup *setup, uint64_t buffer) {
    aotc_kernel_info info = {.struct_size = sizeof info};
    (void)aotc_kernel_get_info(setup->kernel, &info);
    for (uint32_t i = 0; i < info.param_count; ++i) {
        aotc_param_info param = {.struct_size = sizeof param};
        (void)aotc_kernel_get_param(setup->kernel, i, &param);
        aotc_dtype dtype = (aotc_dtype)param.dtype;
        if (param.type_variable >= 0) {
            aotc_type_variable_info variable = {.struct_size = sizeof variable};
            (void)aotc_kernel_get_type_variable(setup->kernel, (uint32_t)param.type_variable,
                                                &variable);
            dtype = (aotc_dtype)variable.dtypes[0];
        }
        setup->args[i] = param.kind == AOTC_POINTER ? aotc_arg_bits(AOTC_POINTER, dtype, buffer)
                                                    : aotc_integer(1, dtype);
        setup->params[i] = &setup->args[i].as;
    }
    setup->desc = (aotc_launch_desc)AOTC_LAUNCH_DESC_INIT;
    setup->desc.args = setup->args;
    setup->desc.arg_count = info.param_count;
    setup->desc.stream = setup->stream;
    setup->desc.grid_rank = info.grid_rank == 0;
    setup->desc.grid[0] = 1;
}

static void prepare(struct setup *setup, const char *path, const char *name, const char *libcuda) {
    aotc_error error = AOTC_ERROR_INIT;
    aotc_open_options options = AOTC_OPEN_OPTIONS_INIT;
    aotc_load_options load = AOTC_LOAD_OPTIONS_INIT;
    aotc_archive *archive = NULL;
    aotc_selection selection = {.struct_size = sizeof selection};
    CUcontext context = NULL;
    CUcontext current = NULL;
    CUdevice device = 0;
    uint64_t buffer = 0;
    options.driver_path = libcuda;
    load.device = 0;
    load.kernel = name;
    demand(aotc_open_file(path, &options, &archive, &error), "open", &error);
    demand(aotc_load(archive, &load, &error), "load", &error);
    demand(aotc_kernel_get(archive, name, &setup->kernel, &error), "kernel", &error);
    demand(aotci_driver_open(&setup->driver, libcuda, &current, &error), "driver", &error);
    demand(aotci_driver_use(&setup->driver, DRIVER_ALL, &error), "driver", &error);
    find_more(setup, libcuda);
    demand_cuda(setup->driver.device_get(&device, 0), "cuDeviceGet");
    demand_cuda(setup->driver.primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
    demand_cuda(setup->context_set_current(context), "cuCtxSetCurrent");
    demand_cuda(setup->stream_create(&setup->stream, 1), "cuStreamCreate");
    demand_cuda(setup->memory_allocate(&buffer, BUFFER_BYTES), "cuMemAlloc");
    fill_arguments(setup, buffer);
    demand(aotc_select(setup->kernel, &setup->desc, &selection, &error), "select", &error);
    setup->function = selection.function;
    setup->config = (CUlaunchConfig){selection.grid[0],
                                     selection.grid[1],
                                     selection.grid[2],
                                     selection.block[0],
                                     selection.block[1],
                                     selection.block[2],
                                     selection.dynamic_shared_bytes,
                                     setup->stream,
                                     NULL,
                                     0};
}

static double burst_raw(struct setup *setup) {
    const double start = now_ns();
    for (int i = 0; i < BURST; ++i) {
        demand_cuda(setup->driver.launch(&setup->config, setup->function, setup->params, NULL),
                    "cuLaunchKernelEx");
    }
    const double taken = now_ns() - start;
    demand_cuda(setup->stream_synchronize(setup->stream), "cuStreamSynchronize");
    return taken / BURST;
}

static double burst_aotc(struct setup *setup) {
    aotc_error error = AOTC_ERROR_INIT;
    const double start = now_ns();
    for (int i = 0; i < BURST; ++i) {
        demand(aotc_launch(setup->kernel, &setup->desc, &error), "aotc_launch", &error);
    }
    const double taken = now_ns() - start;
    demand_cuda(setup->stream_synchronize(setup->stream), "cuStreamSynchronize");
    return taken / BURST;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    static struct setup setup;
    static double raw[MAX_BURSTS], ours[MAX_BURSTS];
    if (argc < 3) {
        stop("usage", "bench_launch ARCHIVE KERNEL [LIBCUDA] [TENTHS_OF_SECONDS]");
    }
    prepare(&setup, argv[1], argv[2], argc > 3 && argv[3][0] != '\0' ? argv[3] : NULL);
    const double duration = (argc > 4 ? atof(argv[4]) : 20) * 1e8;
    const double start = now_ns();
    size_t count = 0;
    (void)burst_raw(&setup);
    (void)burst_aotc(&setup);
    while (count < MAX_BURSTS && (count < 3 || now_ns() - start < duration)) {
        raw[count] = burst_raw(&setup);
        ours[count] = burst_aotc(&setup);
        count += 1;
    }
    qsort(raw, count, sizeof *raw, compare);
    qsort(ours, count, sizeof *ours, compare);
    (void)printf("raw cuLaunchKernelEx %.1f ns, aotc_launch %.1f ns, ratio %.3f (medians of %zu "
                 "bursts of %d)\n",
                 raw[count / 2], ours[count / 2], ours[count / 2] / raw[count / 2], count, BURST);
    return 0;
}
