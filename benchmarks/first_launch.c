/* first_launch.c: the time from a context to a first launch that has finished, in a process of its own.
 *
 *     first_launch WAY LAUNCH [LIBCUDA [TIMES]]
 *
 * WAY is `bare` (read a cubin's file, cuLibraryLoadData, cuLibraryGetKernel, cuLaunchKernel) or `module` (the same
 * by cuModuleLoadData); `lazy` or `eager` (open an archive, aotc_load with or without AOTC_LOAD_LAZY, aotc_launch) or
 * `mapped` (as lazy, with AOTC_OPEN_MAP), any of them with `_trusted` (AOTC_OPEN_TRUSTED). LAUNCH is written by
 * first_launch_in_c.py, line by line: what to open, the launch as the driver sees it and as a caller says it.
 * The driver's library is loaded, a context current and memory allocated before the clock starts; libzstd is
 * linked as a program links it. Printed, once or TIMES times with unloading in between, as JSON: the parts,
 * nanoseconds and page faults of each.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "aotc/aotc.h"

enum { MAX_ARGS = 64, MAX_PARAM_BYTES = 4096, BUFFER_BYTES = 256 << 20, MAX_SHARED = 8 };

struct launch {
    char archive[512], cubin[512], kernel[256], symbol[256];
    unsigned grid[3], threads, shared_bytes;
    unsigned char params[MAX_PARAM_BYTES];
    size_t param_bytes;
    unsigned pointers[MAX_ARGS], pointer_count; /* where in the parameters addresses stand */
    aotc_arg args[MAX_ARGS];
    uint32_t arg_count;
    aotc_value choices[MAX_ARGS];
    char names[MAX_ARGS][64], strings[MAX_ARGS][64];
    uint32_t choice_count;
    uint32_t grid_rank;
    int64_t programs[3];
};

static struct launch launch;
static void *driver;

__attribute__((noreturn)) static void stop(const char *what, const char *why) {
    (void)fprintf(stderr, "first_launch: %s: %s\n", what, why);
    exit(1);
}

/* A function of the driver, NULL if it has none: the tests' driver lacks some. */
static void *entry(const char *name) {
    int (*find)(const char *, void **, int, uint64_t, int *) =
        (int (*)(const char *, void **, int, uint64_t, int *))(uintptr_t)dlsym(
            RTLD_DEFAULT, "cuGetProcAddress_v2");
    void *found = NULL;
    int why = 0;
    return find == NULL || find(name, &found, 12040, 0, &why) != 0 ? NULL : found;
}

#define CALL(name, types, ...)                                                                     \
    do {                                                                                           \
        int(*function) types = (int(*) types)(uintptr_t)entry(#name);                              \
        if (function != NULL && function(__VA_ARGS__) != 0) {                                      \
            stop(#name, "the driver reports an error");                                            \
        }                                                                                          \
    } while (0)

static double now_ns(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void read_launch(const char *path) {
    char word[32];
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        stop(path, "cannot be read");
    }
    while (fscanf(file, "%31s", word) == 1) {
        unsigned count = 0;
        if (strcmp(word, "archive") == 0) {
            count = (unsigned)fscanf(file, "%511s %255s", launch.archive, launch.kernel);
        } else if (strcmp(word, "cubin") == 0) {
            count = (unsigned)fscanf(file, "%511s %255s", launch.cubin, launch.symbol);
        } else if (strcmp(word, "grid") == 0) {
            count = (unsigned)fscanf(file, "%u %u %u %u %u", &launch.grid[0], &launch.grid[1],
                                     &launch.grid[2], &launch.threads, &launch.shared_bytes);
        } else if (strcmp(word, "param") == 0) {
            unsigned byte = 0;
            count = (unsigned)fscanf(file, "%2x", &byte);
            launch.params[launch.param_bytes++] = (unsigned char)byte;
        } else if (strcmp(word, "address") == 0) {
            count = (unsigned)fscanf(file, "%u", &launch.pointers[launch.pointer_count++]);
        } else if (strcmp(word, "arg") == 0) {
            unsigned kind = 0, dtype = 0;
            uint64_t bits = 0;
            count = (unsigned)fscanf(file, "%u %u %" SCNu64, &kind, &dtype, &bits);
            launch.args[launch.arg_count++] = aotc_arg_bits((aotc_param_kind)kind, (aotc_dtype)dtype, bits);
        } else if (strcmp(word, "choice") == 0) {
            aotc_value *choice = &launch.choices[launch.choice_count];
            char *name = launch.names[launch.choice_count];
            char *string = launch.strings[launch.choice_count++];
            count = (unsigned)fscanf(file, "%63s %u %" SCNd64 " %63s", name, &choice->kind,
                                     &choice->as.integer, string);
            choice->name = name;
            if (choice->kind == AOTC_VALUE_STRING) {
                choice->as.string = string;
            }
        } else if (strcmp(word, "programs") == 0) {
            count = (unsigned)fscanf(file, "%u %" SCNd64 " %" SCNd64 " %" SCNd64, &launch.grid_rank,
                                     &launch.programs[0], &launch.programs[1], &launch.programs[2]);
        }
        if (count == 0) {
            stop(path, word);
        }
    }
    (void)fclose(file);
}

/* Let all pointers be the address of the memory that there is. */
static void set_addresses(uint64_t buffer) {
    for (unsigned i = 0; i < launch.pointer_count; ++i) {
        memcpy(launch.params + launch.pointers[i], &buffer, sizeof buffer);
    }
    for (unsigned i = 0; i < launch.arg_count; ++i) {
        if (launch.args[i].kind == AOTC_POINTER) {
            launch.args[i].as.bits = buffer;
        }
    }
}

/* What a launch is measured in. */
enum { MAX_PARTS = 8 };
static struct {
    const char *name;
    double taken_ns;
    long faults;
} parts[MAX_PARTS];
static unsigned part_count;
static double started_ns;
static long faults_before;


/* Page faults that need no disk: memory and code that is touched for the first time. */
static long fault_count(void) {
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

static void begin(void) {
    faults_before = fault_count();
    started_ns = now_ns();
}

/* End a part, and begin the next. */
static void end(const char *name) {
    const double taken_ns = now_ns() - started_ns;
    const long faults = fault_count() - faults_before;
    parts[part_count].name = name;
    parts[part_count].taken_ns = taken_ns;
    parts[part_count++].faults = faults;
    begin();
}

static void print_parts(void) {
    (void)printf("{\"parts\": {");
    for (unsigned i = 0; i < part_count; ++i) {
        (void)printf("%s\"%s\": [%.0f, %ld]", i == 0 ? "" : ", ", parts[i].name, parts[i].taken_ns,
                     parts[i].faults);
    }
    (void)printf("}");
    (void)printf("}\n");
}

static void *read_cubin(void) {
    FILE *file = fopen(launch.cubin, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        stop(launch.cubin, "cannot be read");
    }
    const size_t bytes = (size_t)ftell(file);
    void *image = malloc(bytes);
    rewind(file);
    if (fread(image, 1, bytes, file) != bytes) {
        stop(launch.cubin, "cannot be read");
    }
    (void)fclose(file);
    return image;
}

/* A cubin by cuModuleLoadData, and the function in it. */
static void *load_module(const void *image, void **module) {
    void *found = NULL;
    CALL(cuModuleLoadData, (void **, const void *), module, image);
    end("load");
    CALL(cuModuleGetFunction, (void **, void *, const char *), &found, *module, launch.symbol);
    return found;
}

static void run_bare(const char *way) {
    void *library = NULL, *module = NULL, *kernel = NULL;
    begin();
    void *image = read_cubin();
    end("open");
    if (strcmp(way, "module") == 0) {
        kernel = load_module(image, &module);
    } else {
        CALL(cuLibraryLoadData,
             (void **, const void *, void *, void *, unsigned, void *, void *, unsigned), &library, image,
             NULL, NULL, 0, NULL, NULL, 0);
        end("load");
        CALL(cuLibraryGetKernel, (void **, void *, const char *), &kernel, library, launch.symbol);
    }
    if (launch.shared_bytes > 47 << 10 && module != NULL) {
        CALL(cuFuncSetAttribute, (void *, int, int), kernel, MAX_SHARED, (int)launch.shared_bytes);
    } else if (launch.shared_bytes > 47 << 10) {
        CALL(cuKernelSetAttribute, (int, int, void *, int), MAX_SHARED, (int)launch.shared_bytes, kernel, 0);
    }
    end("kernel");
    void *extra[] = {(void *)1, launch.params, (void *)2, &launch.param_bytes, NULL};
    CALL(cuLaunchKernel,
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
          void **),
         kernel, launch.grid[0], launch.grid[1], launch.grid[2], launch.threads, 1, 1,
         launch.shared_bytes, NULL, NULL, extra);
    end("launch");
    CALL(cuCtxSynchronize, (void));
    end("finish");
    if (library != NULL) {
        CALL(cuLibraryUnload, (void *), library);
    }
    if (module != NULL) {
        CALL(cuModuleUnload, (void *), module);
    }
    free(image);
}

static void demand(aotc_status status, const char *what, const aotc_error *error) {
    if (status != AOTC_OK) {
        stop(what, error->message);
    }
}

static void *(*create_decoder)(void);
static size_t (*decode)(void *, void *, size_t, const void *, size_t);

/* As the library's own, which a build without zstd.h lacks. */
static int decompress(void *user, const void *source, size_t source_bytes, void *target,
                      size_t target_bytes) {
    static void *decoder;
    (void)user;
    decoder = decoder == NULL ? create_decoder() : decoder;
    return decode(decoder, target, target_bytes, source, source_bytes) == target_bytes ? 0 : 1;
}

static void run_archive(bool is_lazy, uint32_t flags) {
    aotc_error error = AOTC_ERROR_INIT;
    aotc_open_options options = AOTC_OPEN_OPTIONS_INIT;
    aotc_load_options load = AOTC_LOAD_OPTIONS_INIT;
    aotc_archive *archive = NULL;
    const aotc_kernel *kernel = NULL;
    options.decompress = decompress;
    options.flags = flags;
    load.kernel = launch.kernel;
    load.flags = is_lazy ? AOTC_LOAD_LAZY : 0;
    begin();
    demand(aotc_open_file(launch.archive, &options, &archive, &error), "open", &error);
    end("open");
    demand(aotc_kernel_get(archive, launch.kernel, &kernel, &error), "kernel", &error);
    end("kernel");
    demand(aotc_load(archive, &load, &error), "load", &error);
    end("load");
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    desc.args = launch.args;
    desc.arg_count = launch.arg_count;
    desc.choices = launch.choices;
    desc.choice_count = launch.choice_count;
    desc.grid_rank = launch.grid_rank;
    memcpy(desc.grid, launch.programs, sizeof launch.programs);
    demand(aotc_launch(kernel, &desc, &error), "launch", &error);
    end("launch");
    CALL(cuCtxSynchronize, (void));
    end("finish");
    aotc_release(archive);
}

/* Touch the pages of the stack that a driver has used, which that of the tests has not. */
__attribute__((noinline)) static void use_stack(void) {
    volatile char bytes[1 << 16];
    for (size_t i = 0; i < sizeof bytes; i += 1 << 10) {
        bytes[i] = 0;
    }
    (void)bytes[0];
}

int main(int argc, char **argv) {
    const char *libcuda = argc > 3 ? argv[3] : "libcuda.so.1";
    uint64_t buffer = 0;
    void *context = NULL;
    if (argc < 3) {
        stop("usage", "first_launch WAY LAUNCH [LIBCUDA]");
    }
    /* Before the driver starts, which leaves little of it in the caches: then neither way has read a file just now. */
    read_launch(argv[2]);
    driver = dlopen(libcuda, RTLD_NOW | RTLD_GLOBAL);
    void *library = dlopen("libzstd.so.1", RTLD_NOW);
    if (driver == NULL || library == NULL) {
        stop("dlopen", dlerror());
    }
    void *function = dlsym(library, "ZSTD_createDCtx");
    memcpy(&create_decoder, &function, sizeof function);
    function = dlsym(library, "ZSTD_decompressDCtx");
    memcpy(&decode, &function, sizeof function);
    CALL(cuInit, (unsigned), 0);
    CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, 0);
    CALL(cuCtxSetCurrent, (void *), context);
    CALL(cuMemAlloc, (uint64_t *, size_t), &buffer, BUFFER_BYTES);
    CALL(cuMemsetD8, (uint64_t, unsigned char, size_t), buffer, 0, BUFFER_BYTES);
    CALL(cuCtxSynchronize, (void));
    set_addresses(buffer);
    use_stack();
    const int count = argc > 4 ? atoi(argv[4]) : 1;
    for (int i = 0; i < count; ++i) {
        const bool is_mapped = strstr(argv[1], "mapped") == argv[1];
        const bool is_lazy = is_mapped || strstr(argv[1], "lazy") == argv[1];
        uint32_t flags = is_mapped ? AOTC_OPEN_MAP : 0;
        flags |= strstr(argv[1], "_trusted") != NULL ? AOTC_OPEN_TRUSTED : 0;
        part_count = 0;
        if (is_lazy || strcmp(argv[1], "eager") == 0) {
            run_archive(is_lazy, flags);
        } else {
            run_bare(argv[1]);
        }
        print_parts();
    }
    return 0;
}
