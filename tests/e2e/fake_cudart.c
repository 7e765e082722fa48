/* fake_cudart.c: the entry points of the CUDA runtime API that the examples use, without a GPU.
 *
 * Memory is the host's, contexts and streams are the fake driver's, and what is captured or
 * launched does nothing: a program that checks its results must find every output as it was
 * poisoned. When the program ends, the driver's verdict goes to stderr.
 */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"

enum { ALIGNMENT = 256 };

__attribute__((destructor)) static void report(void) {
    const char *violation = fake_cuda_violation();
    fprintf(stderr, "launches: %lu, live libraries: %d, violation: %s\n", fake_cuda_launches(),
            fake_cuda_live_libraries(), violation == NULL ? "none" : violation);
}

enum { MAX_DEVICES = 16 };

/* Primary contexts, held until the process ends; each thread has its own current one. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st *primaries[MAX_DEVICES];
static _Thread_local struct CUctx_st *context;

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= MAX_DEVICES) {
        return cudaErrorInvalidDevice;
    }
    pthread_mutex_lock(&lock);
    if (primaries[device] == NULL) {
        primaries[device] = fake_cuda_retain_primary(device);
    }
    context = primaries[device];
    pthread_mutex_unlock(&lock);
    fake_cuda_set_current(context);
    return context == NULL ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = fake_cuda_device_count();
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = (size_t)1 << 30;
    *total_bytes = (size_t)2 << 30;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess ? "no error" : "an error";
}

cudaError_t cudaMalloc(void **memory, size_t size_bytes) {
    *memory = aligned_alloc(ALIGNMENT, (size_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    return *memory == NULL ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFree(void *memory) {
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t size_bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    (void)stream;
    memcpy(target, source, size_bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t size_bytes, cudaStream_t stream) {
    (void)stream;
    memset(memory, value, size_bytes);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
    (void)flags;
    *stream = fake_cuda_create_stream(context);
    return *stream == NULL ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    (void)stream;
    if (mode == cudaStreamCaptureModeGlobal) {
        fake_cuda_begin_capture();
    } else {
        fake_cuda_begin_thread_capture();
    }
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    (void)stream;
    *graph = NULL;
    return fake_cuda_end_capture() ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph,
                                 unsigned long long flags) {
    (void)graph;
    (void)flags;
    *executable = NULL;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    (void)executable;
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    (void)graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    (void)executable;
    return cudaSuccess;
}
