/* fake_contexts.c: the driver's start, devices, contexts, streams and memory.
 *
 * A context is an entry of a table, and each thread has a stack of them. Streams belong to a
 * context and run nothing; memory is the host's.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fake_state.h"

CUresult fake_cuInit(unsigned flags) {
    ENTER("cuInit");
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE, "cuInit: flags");
    if (fake.device_count == 0) {
        return leave(CUDA_ERROR_NO_DEVICE);
    }
    fake.is_initialised = true;
    fake.process = getpid();
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuGetErrorName(CUresult result, const char **text) {
    static _Thread_local char name[32];
    (void)snprintf(name, sizeof name, "CUDA_ERROR_%d", result);
    *text = name;
    return CUDA_SUCCESS;
}

CUresult fake_cuGetErrorString(CUresult result, const char **text) {
    (void)result;
    *text = "as scripted";
    return CUDA_SUCCESS;
}

CUresult fake_cuDeviceGetCount(int *count) {
    ENTER("cuDeviceGetCount");
    *count = fake.device_count;
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER("cuDeviceGet");
    REQUIRE(ordinal >= 0 && ordinal < fake.device_count, 101, "cuDeviceGet(%d)", ordinal);
    *device = ordinal;
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    ENTER("cuDeviceGetAttribute");
    REQUIRE(device >= 0 && device < fake.device_count, 101, "cuDeviceGetAttribute: device %d",
            device);
    const struct fake_device *properties = &fake.devices[device];
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = properties->major;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = properties->minor;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = properties->shared_bytes;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = FAKE_CUDA_MULTIPROCESSORS;
        break;
    case FAKE_CUDA_L2_BYTES:
        *value = 1 << 20;
        break;
    case FAKE_CUDA_CLOCK_KHZ:
        *value = 1980000;
        break;
    default:
        REQUIRE(false, CUDA_ERROR_INVALID_VALUE, "cuDeviceGetAttribute: attribute %d", attribute);
    }
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER("cuDevicePrimaryCtxRetain");
    REQUIRE(device >= 0 && device < fake.device_count, 101, "cuDevicePrimaryCtxRetain: device %d",
            device);
    if (!fake.primaries[device].is_alive) {
        fake.primaries[device] = (struct CUctx_st){true, device, ++fake.last_id};
    }
    fake.primary_references[device] += 1;
    *context = &fake.primaries[device];
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuDevicePrimaryCtxRelease(CUdevice device) {
    ENTER("cuDevicePrimaryCtxRelease");
    REQUIRE(device >= 0 && device < fake.device_count && fake.primary_references[device] > 0,
            CUDA_ERROR_INVALID_CONTEXT, "cuDevicePrimaryCtxRelease(%d) without a retain", device);
    fake.primary_references[device] -= 1;
    if (fake.primary_references[device] == 0) { /* destroyed, with its code */
        fake.primaries[device].is_alive = false;
        forget_code(&fake.primaries[device]);
    }
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuCtxGetCurrent(CUcontext *context) {
    if (!atomic_load_explicit(&is_recording, memory_order_relaxed) && fake.is_initialised) {
        *context = current();
        return CUDA_SUCCESS;
    }
    ENTER("cuCtxGetCurrent");
    *context = current();
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuCtxPushCurrent(CUcontext context) {
    ENTER("cuCtxPushCurrent");
    if (context != NULL && !context->is_alive) {
        return leave(CUDA_ERROR_INVALID_CONTEXT);
    }
    REQUIRE(context != NULL && stack_size < MAX_STACK, CUDA_ERROR_INVALID_CONTEXT,
            "cuCtxPushCurrent");
    stack[stack_size++] = context;
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuCtxPopCurrent(CUcontext *context) {
    ENTER("cuCtxPopCurrent");
    REQUIRE(stack_size > 0, CUDA_ERROR_INVALID_CONTEXT, "cuCtxPopCurrent of an empty stack");
    *context = stack[--stack_size];
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuCtxGetDevice(CUdevice *device) {
    ENTER("cuCtxGetDevice");
    REQUIRE(current() != NULL, CUDA_ERROR_INVALID_CONTEXT, "cuCtxGetDevice without a context");
    *device = current()->device;
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuCtxGetId(CUcontext context, unsigned long long *id) {
    ENTER("cuCtxGetId");
    REQUIRE(context != NULL, CUDA_ERROR_INVALID_CONTEXT, "cuCtxGetId");
    if (!context->is_alive) {
        return leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    *id = context->id;
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuStreamGetCtx(CUstream stream, CUcontext *context) {
    if (!atomic_load_explicit(&is_recording, memory_order_relaxed)) {
        *context = stream->context;
        return CUDA_SUCCESS;
    }
    ENTER("cuStreamGetCtx");
    if (stream < fake.streams || stream >= fake.streams + fake.stream_count) {
        return leave(CUDA_ERROR_INVALID_HANDLE);
    }
    *context = stream->context;
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuStreamIsCapturing(CUstream stream, int *status) {
    (void)stream;
    ENTER("cuStreamIsCapturing");
    *status = fake.is_capturing || is_thread_capturing;
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER("cuThreadExchangeStreamCaptureMode");
    REQUIRE(*mode >= 0 && *mode <= 2, CUDA_ERROR_INVALID_VALUE, "capture mode %d", *mode);
    const int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuCtxSetCurrent(CUcontext context) {
    fake_cuda_set_current(context);
    return CUDA_SUCCESS;
}

CUresult fake_cuStreamCreate(CUstream *stream, unsigned flags) {
    (void)flags;
    *stream = fake_cuda_create_stream(current());
    return *stream == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult fake_cuStreamSynchronize(CUstream stream) {
    (void)stream;
    return CUDA_SUCCESS;
}

CUresult fake_cuMemAlloc(uint64_t *address, size_t size_bytes) {
    void *memory = aligned_alloc(256, (size_bytes + 255) / 256 * 256);
    *address = (uint64_t)(uintptr_t)memory;
    return memory == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult fake_cuMemFree(uint64_t address) {
    free((void *)(uintptr_t)address);
    return CUDA_SUCCESS;
}

CUresult fake_cuDeviceGetName(char *name, int size_bytes, CUdevice device) {
    ENTER("cuDeviceGetName");
    const struct fake_device *properties = &fake.devices[device];
    (void)snprintf(name, (size_t)size_bytes, "Fake GPU%s",
                   properties->shared_bytes < FAKE_CUDA_MIG_BELOW_BYTES ? " MIG 1g.10gb" : "");
    return leave(CUDA_SUCCESS);
}

CUresult fake_cuDeviceTotalMem(size_t *size_bytes, CUdevice device) {
    (void)device;
    ENTER("cuDeviceTotalMem");
    *size_bytes = (size_t)80 << 30;
    return leave(CUDA_SUCCESS);
}

/* Devices of one compute capability are neighbours, but for MIG instances. */
CUresult fake_cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    ENTER("cuDeviceCanAccessPeer");
    const struct fake_device *one = &fake.devices[device];
    const struct fake_device *other = &fake.devices[peer];
    *can = one->major == other->major && one->minor == other->minor &&
           one->shared_bytes >= FAKE_CUDA_MIG_BELOW_BYTES &&
           other->shared_bytes >= FAKE_CUDA_MIG_BELOW_BYTES;
    return leave(CUDA_SUCCESS);
}
