/* fake_cudart.c: the entry points of the CUDA runtime API that examples/cpp uses, without a GPU.
 *
 * Memory is the host's, contexts and streams are the fake driver's, and what is captured or
 * launched does nothing: a program that checks its results must find every output as it was
 * poisoned. When the program ends, the driver's verdict goes to stderr.
 */
#include <cuda_runtime_api.h>
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

static struct CUctx_st *context;

cudaError_t cudaSetDevice(int device) {
    context = fake_cuda_create_context(device);
    fake_cuda_set_current(context);
    return context == NULL ? cudaErrorInvalidDevice : cudaSuccess;
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
    (void)mode;
    fake_cuda_begin_capture();
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
