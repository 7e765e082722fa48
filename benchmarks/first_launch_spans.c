/* first_launch_spans.c: which functions the time of a first launch goes to, in the order of their calls.
 *
 * With first_launch_trace.c and the library, all compiled with -finstrument-functions: each call and return between
 * trace_begin and trace_end is written down with the CPU's clock, and printed as [address, depth, nanoseconds from the
 * start, nanoseconds taken, page faults]. What calls of libc take is told by --wrap.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define BARE __attribute__((no_instrument_function))

enum { MAX_SPANS = 20000, MAX_DEPTH = 64 };

static struct {
    void *function;
    uint64_t from, to;
    int depth;
} spans[MAX_SPANS];
static int open_spans[MAX_DEPTH];
static int span_count, depth;
static volatile int is_on;
static uint64_t first_tick, last_tick;
static double first_ns, last_ns;

BARE static double clock_ns(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

BARE void spans_begin(void) {
    for (int i = 0; i < MAX_SPANS; ++i) {
        spans[i].function = NULL; /* its pages are there then */
    }
    span_count = depth = 0;
    first_ns = clock_ns();
    first_tick = __rdtsc();
    is_on = 1;
}

BARE void spans_end(void) {
    is_on = 0;
    last_tick = __rdtsc();
    last_ns = clock_ns();
}

BARE void __cyg_profile_func_enter(void *function, void *site) {
    (void)site;
    if (is_on && span_count < MAX_SPANS && depth < MAX_DEPTH) {
        spans[span_count].function = function;
        spans[span_count].depth = depth;
        open_spans[depth++] = span_count;
        spans[span_count++].from = __rdtsc();
    }
}

BARE void __cyg_profile_func_exit(void *function, void *site) {
    (void)site;
    if (is_on && depth > 0 && spans[open_spans[depth - 1]].function == function) {
        spans[open_spans[--depth]].to = __rdtsc();
    }
}

BARE void spans_print(void) {
    const double ns = (last_ns - first_ns) / (double)(last_tick - first_tick);
    (void)printf(", \"anchor\": %lu, \"spans\": [", (unsigned long)(uintptr_t)&spans_begin);
    for (int i = 0; i < span_count; ++i) {
        const uint64_t to = spans[i].to == 0 ? last_tick : spans[i].to;
        (void)printf("%s[%lu, %d, %.0f, %.0f]", i == 0 ? "" : ",", (unsigned long)(uintptr_t)spans[i].function,
                     spans[i].depth, (double)(spans[i].from - first_tick) * ns,
                     (double)(to - spans[i].from) * ns);
    }
    (void)printf("]");
}

#define WRAPPED(result, name, parameters, arguments)                                               \
    result __real_##name parameters;                                                               \
    result __wrap_##name parameters;                                                               \
    result __wrap_##name parameters { return __real_##name arguments; }

WRAPPED(void *, malloc, (size_t size), (size))
WRAPPED(void *, calloc, (size_t count, size_t size), (count, size))
WRAPPED(void, free, (void *memory), (memory))
WRAPPED(ssize_t, pread, (int file, void *to, size_t size, off_t at), (file, to, size, at))
WRAPPED(int, fstat, (int file, struct stat *information), (file, information))
WRAPPED(void *, mmap, (void *at, size_t size, int protection, int flags, int file, off_t from),
        (at, size, protection, flags, file, from))
WRAPPED(int, close, (int file), (file))
WRAPPED(FILE *, fopen, (const char *path, const char *mode), (path, mode))
WRAPPED(size_t, fread, (void *to, size_t size, size_t count, FILE *file), (to, size, count, file))
WRAPPED(int, fseek, (FILE *file, long at, int from), (file, at, from))
WRAPPED(int, fclose, (FILE *file), (file))
WRAPPED(int, memcmp, (const void *a, const void *b, size_t size), (a, b, size))

int __real_open(const char *path, int flags, int mode);
int __wrap_open(const char *path, int flags, int mode);
int __wrap_open(const char *path, int flags, int mode) { return __real_open(path, flags, mode); }
