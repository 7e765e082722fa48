/* fake_timing.c: pretended times, results, hangs and faults of kernels; events, copies, and a wait for all.
 *
 * `FAKE_CUDA_KERNELS` scripts kernels by a part of "SYMBOL block:X shared:BYTES grid:X,Y,Z;":
 * "BLOCK_64=12.5;shared:4096 =3+0.5*2;x=hang".
 * A number is the microseconds of a launch; `A+B*I` adds B for each unit of the kernel's parameter I, of 4
 * bytes. A kernel with an entry writes a pattern to its first pointer. `hang` never ends, `fault` loses the
 * context, `wrong` writes another pattern. `FAKE_CUDA_NOISE` is the part by which times vary.
 *
 * The clock is that of pretended launches: events read it, and real time plays no part.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_state.h"

enum { MAX_EVENTS = 4096, PATTERN_BYTES = 64, ILLEGAL_ADDRESS = 700 };

static const double default_microseconds = 10.0;

static double now; /* microseconds */
static double events[MAX_EVENTS];
static int event_count;
static bool is_hung;
static bool is_lost;
static uint64_t noise_state;

/* A number in [-1, 1) that differs from launch to launch and from process to process. */
static double noise(void) {
    if (noise_state == 0) {
        noise_state = (uint64_t)getpid() * 0x9E3779B97F4A7C15u;
    }
    noise_state = noise_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(noise_state >> 11) / (double)(1ull << 52) - 1.0;
}

static double time_of(const char *text, const struct fake_launch *launch) {
    double base = 0;
    double slope = 0;
    unsigned index = 0;
    if (sscanf(text, "%lf+%lf*%u", &base, &slope, &index) == 3 && index < launch->param_count) {
        int value = 0;
        memcpy(&value, launch->params + launch->param_offsets[index], sizeof value);
        base += slope * value;
    }
    return base;
}

static void write_pattern(const struct fake_launch *launch, bool is_wrong) {
    unsigned char *out = NULL;
    if (launch->param_count == 0) {
        return;
    }
    memcpy(&out, launch->params + launch->param_offsets[0], sizeof out);
    for (int i = 0; out != NULL && i < PATTERN_BYTES; ++i) {
        out[i] = (unsigned char)(is_wrong ? 0x3E : i % 4 < 3 ? 1 : 0x3C);
    }
}

void fake_pretend(const struct fake_launch *launch) {
    const char *script = getenv("FAKE_CUDA_KERNELS");
    const char *part = getenv("FAKE_CUDA_NOISE");
    double microseconds = default_microseconds;
    char about[512];
    (void)snprintf(about, sizeof about, "%s block:%u shared:%u grid:%u,%u,%u;", launch->symbol,
                   launch->block[0], launch->shared_bytes, launch->grid[0], launch->grid[1],
                   launch->grid[2]);
    for (const char *at = script == NULL ? "" : script; *at != '\0';) {
        char key[256];
        char effect[64];
        int used = 0;
        if (sscanf(at, "%255[^=]=%63[^;]%n", key, effect, &used) != 2) {
            break;
        }
        at += used;
        at += *at == ';';
        if (strstr(about, key) == NULL) {
            continue;
        }
        is_hung |= strcmp(effect, "hang") == 0;
        is_lost |= strcmp(effect, "fault") == 0;
        const bool is_wrong = strcmp(effect, "wrong") == 0;
        const double scripted = time_of(effect, launch);
        microseconds = scripted > 0 ? scripted : default_microseconds;
        if (!is_hung && !is_lost) {
            write_pattern(launch, is_wrong);
        }
        break;
    }
    now += microseconds * (1 + (part == NULL ? 0 : atof(part)) * noise());
}

/* Wait for the launches: for ever for one that hangs. */
static CUresult wait_for_all(void) {
    while (is_hung) {
        (void)pause();
    }
    return is_lost ? ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

CUresult fake_cuCtxSynchronize(void) { return wait_for_all(); }

CUresult fake_cuMemcpyHtoD(uint64_t target, const void *source, size_t size_bytes) {
    const CUresult result = wait_for_all();
    if (result == CUDA_SUCCESS) {
        memcpy((void *)(uintptr_t)target, source, size_bytes);
    }
    return result;
}

CUresult fake_cuMemcpyDtoH(void *target, uint64_t source, size_t size_bytes) {
    const CUresult result = wait_for_all();
    if (result == CUDA_SUCCESS) {
        memcpy(target, (const void *)(uintptr_t)source, size_bytes);
    }
    return result;
}

CUresult fake_cuMemcpyDtoD(uint64_t target, uint64_t source, size_t size_bytes) {
    const CUresult result = wait_for_all();
    if (result == CUDA_SUCCESS) {
        memmove((void *)(uintptr_t)target, (const void *)(uintptr_t)source, size_bytes);
    }
    return result;
}

/* Only for flushes of the L2, never read. */
CUresult fake_cuMemsetD8Async(uint64_t target, unsigned char value, size_t count, CUstream stream) {
    (void)target, (void)value, (void)count, (void)stream;
    return is_lost ? ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

CUresult fake_cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    *event = &events[event_count++ % MAX_EVENTS];
    return CUDA_SUCCESS;
}

CUresult fake_cuEventDestroy(void *event) {
    (void)event;
    return CUDA_SUCCESS;
}

CUresult fake_cuEventRecord(void *event, CUstream stream) {
    (void)stream;
    *(double *)event = now;
    return CUDA_SUCCESS;
}

CUresult fake_cuEventElapsedTime(float *milliseconds, void *start, void *end) {
    *milliseconds = (float)((*(double *)end - *(double *)start) / 1000);
    return CUDA_SUCCESS;
}
