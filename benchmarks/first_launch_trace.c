/* first_launch_trace.c: how long the driver takes of what first_launch.c measures, by entry point.
 *
 * Linked into the program with -rdynamic, so that both it and the library find this cuGetProcAddress_v2: it returns
 * functions that call the driver's and add up what they take. The clock is asked twice for each call. So are the
 * library's digests, with --wrap=aotci_sha256,--wrap=aotci_sha256_update.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

extern void *driver; /* of first_launch.c */

struct entry_point {
    const char *name;
    void *wrapper;
    void *found;
    double taken_ns;
    unsigned calls;
};

static int is_counted; /* from trace_begin to trace_end */

static double now_ns(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void add(struct entry_point *entry, double taken_ns) {
    if (is_counted) {
        entry->taken_ns += taken_ns;
        entry->calls += 1;
    }
}

/* X(symbol, parameters, arguments): what is called before a first launch has finished. */
#define ENTRY_POINTS(X)                                                                            \
    X(cuDeviceGetAttribute, (int *a, int b, int c), (a, b, c))                                     \
    X(cuCtxGetCurrent, (void *a), (a))                                                             \
    X(cuCtxGetDevice, (void *a), (a))                                                              \
    X(cuCtxGetId, (void *a, void *b), (a, b))                                                      \
    X(cuThreadExchangeStreamCaptureMode, (void *a), (a))                                           \
    X(cuLibraryLoadData,                                                                           \
      (void *a, const void *b, void *c, void *d, unsigned e, void *f, void *g, unsigned h),        \
      (a, b, c, d, e, f, g, h))                                                                    \
    X(cuLibraryGetKernel, (void *a, void *b, const char *c), (a, b, c))                            \
    X(cuModuleLoadData, (void *a, const void *b), (a, b))                                          \
    X(cuModuleGetFunction, (void *a, void *b, const char *c), (a, b, c))                           \
    X(cuFuncSetAttribute, (void *a, int b, int c), (a, b, c))                                      \
    X(cuKernelSetAttribute, (int a, int b, void *c, int d), (a, b, c, d))                          \
    X(cuKernelGetParamInfo, (void *a, size_t b, void *c, void *d), (a, b, c, d))                   \
    X(cuKernelGetFunction, (void *a, void *b), (a, b))                                             \
    X(cuFuncLoad, (void *a), (a))                                                                  \
    X(cuLaunchKernel,                                                                              \
      (void *a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned g,            \
       unsigned h, void *i, void *j, void *k),                                                     \
      (a, b, c, d, e, f, g, h, i, j, k))                                                           \
    X(cuLaunchKernelEx, (const void *a, void *b, void *c, void *d), (a, b, c, d))                  \
    X(cuCtxSynchronize, (void), ())

enum {
#define NUMBER(symbol, parameters, arguments) NUMBER_##symbol,
    ENTRY_POINTS(NUMBER) FIND,
    DIGEST,
    ENTRY_COUNT
#undef NUMBER
};

static struct entry_point entries[ENTRY_COUNT];

#define WRAPPER(symbol, parameters, arguments)                                                     \
    static int traced_##symbol parameters {                                                        \
        int(*function) parameters = (int(*) parameters)(uintptr_t)entries[NUMBER_##symbol].found;  \
        const double started_ns = now_ns();                                                        \
        const int result = function arguments;                                                     \
        add(&entries[NUMBER_##symbol], now_ns() - started_ns);                                     \
        return result;                                                                             \
    }
ENTRY_POINTS(WRAPPER)

static struct entry_point entries[ENTRY_COUNT] = {
#define ENTRY(symbol, parameters, arguments)                                                       \
    [NUMBER_##symbol] = {.name = #symbol, .wrapper = (void *)(uintptr_t)traced_##symbol},
    ENTRY_POINTS(ENTRY)
#undef ENTRY
        [FIND] = {.name = "cuGetProcAddress"},
        [DIGEST] = {.name = "SHA-256"}};

void __real_aotci_sha256(const void *data, size_t size_bytes, unsigned char *digest);
void __real_aotci_sha256_update(void *hash, const void *data, size_t size_bytes);

void __wrap_aotci_sha256(const void *data, size_t size_bytes, unsigned char *digest) {
    const double started_ns = now_ns();
    __real_aotci_sha256(data, size_bytes, digest);
    add(&entries[DIGEST], now_ns() - started_ns);
}

void __wrap_aotci_sha256_update(void *hash, const void *data, size_t size_bytes) {
    const double started_ns = now_ns();
    __real_aotci_sha256_update(hash, data, size_bytes);
    add(&entries[DIGEST], now_ns() - started_ns);
}

int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *query) {
    static int (*find)(const char *, void **, int, uint64_t, int *);
    if (find == NULL) {
        find = (int (*)(const char *, void **, int, uint64_t, int *))(uintptr_t)dlsym(
            driver, "cuGetProcAddress_v2");
    }
    const double started_ns = now_ns();
    const int result = find(name, found, version, flags, query);
    add(&entries[FIND], now_ns() - started_ns);
    for (unsigned i = 0; result == 0 && *found != NULL && i < FIND; ++i) {
        if (strcmp(entries[i].name, name) == 0) {
            entries[i].found = *found;
            *found = entries[i].wrapper;
        }
    }
    return result;
}

/* Of first_launch_spans.c, if it is there. */
__attribute__((weak)) void spans_begin(void);
__attribute__((weak)) void spans_end(void);
__attribute__((weak)) void spans_print(void);

void trace_begin(void) {
    for (unsigned i = 0; i < ENTRY_COUNT; ++i) {
        entries[i].taken_ns = 0;
        entries[i].calls = 0;
    }
    is_counted = 1;
    if (spans_begin != NULL) {
        spans_begin();
    }
}

void trace_end(void) {
    is_counted = 0;
    if (spans_end != NULL) {
        spans_end();
    }
}

void trace_print(void) {
    const char *before = "";
    (void)printf(", \"driver\": {");
    for (unsigned i = 0; i < ENTRY_COUNT; ++i) {
        if (entries[i].calls != 0) {
            (void)printf("%s\"%s\": [%.0f, %u]", before, entries[i].name, entries[i].taken_ns,
                         entries[i].calls);
            before = ", ";
        }
    }
    (void)printf("}");
    if (spans_print != NULL) {
        spans_print();
    }
}
