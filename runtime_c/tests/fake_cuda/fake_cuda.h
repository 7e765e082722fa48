/* fake_cuda.h: script and inspect the fake libcuda.so.1 of the tests.
 *
 * The fake has the runtime's entry points with the driver's documented behaviour, minus the GPU: it
 * reads the cubins for their functions and parameters, copies launches, and judges every call. A
 * call that a correct program never makes is a *violation*, stored as a text whatever the call
 * returned.
 *
 * Without a control call it is one device of capability 9.0 and CUDA 13.0, or as set by the
 * environment:
 *
 *   FAKE_CUDA_DEVICES         "9.0:232448,8.0:166912"     capability, and shared bytes of one CTA
 *   FAKE_CUDA_DRIVER_VERSION  "12000"
 *   FAKE_CUDA_FAIL            "cuLaunchKernelEx:0:700,…"  symbol, which call from now on (0: next),
 *                                                         CUresult
 *   FAKE_CUDA_RECORD          "0"                         as fake_cuda_set_recording(0), for
 *                                                         benchmarks
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUctx_st;
struct CUstream_st;

/* A device with less shared memory is named as a MIG instance. */
enum { FAKE_CUDA_MIG_BELOW_BYTES = 32 << 10 };

/* Every device has as many multiprocessors, and each holds so many CTAs without shared memory. */
enum { FAKE_CUDA_MULTIPROCESSORS = 5, FAKE_CUDA_MAX_CTAS = 2 };

/* The maximum number of parameters of a kernel. */
enum { FAKE_CUDA_MAX_PARAMS = 64 };

/* Of CUdevice_attribute: queries of measurements. */
enum { FAKE_CUDA_L2_BYTES = 38, FAKE_CUDA_CLOCK_KHZ = 13 };

struct fake_device {
    int major, minor;
    int shared_bytes;
};

struct fake_launch {
    char symbol[256];
    unsigned grid[3], block[3], cluster[3];
    unsigned shared_bytes;
    int device;
    int is_pdl;
    int is_cooperative;
    struct CUctx_st *context;
    struct CUstream_st *stream;
    unsigned char params[4096];
    size_t param_bytes;
    int arch; /* the architecture of its cubin, as 90 */
    unsigned param_count;
    unsigned param_offsets[FAKE_CUDA_MAX_PARAMS]; /* into params */
};

/* Runs in place of a kernel, in the thread that launches, when the driver is free for other calls. */
typedef void fake_kernel(const struct fake_launch *launch);

/* Reset all state, and read the environment again. */
void fake_cuda_reset(void);
void fake_cuda_set_driver_version(int version);
void fake_cuda_set_devices(const struct fake_device *devices, int count);
/* Let the call of `symbol` after the next `skip` ones return `result`, once. */
void fake_cuda_fail(const char *symbol, int skip, int result);
/* Hide a symbol from cuGetProcAddress. */
void fake_cuda_hide(const char *symbol);
/* Pretend that another thread captures a stream in the global mode: calls unsafe in a capture fail
 * with 900 and invalidate it, unless the calling thread is in the relaxed mode. */
void fake_cuda_begin_capture(void);
/* This thread captures a stream in the thread-local mode: the same, for its own calls. */
void fake_cuda_begin_thread_capture(void);
/* End either; 1 if it is valid. */
int fake_cuda_end_capture(void);
/* Without recording, launches take no lock, so that a thread sanitizer sees only the caller's. */
void fake_cuda_set_recording(int on);
/* Run a function at each recorded launch in place of the kernel; NULL for none. */
void fake_cuda_set_kernel(fake_kernel *kernel);

struct CUctx_st *fake_cuda_create_context(int device);
struct CUctx_st *fake_cuda_primary_context(int device);
/* Hold a device's primary context, as the CUDA runtime API does; NULL if there is no such device. */
struct CUctx_st *fake_cuda_retain_primary(int device);
int fake_cuda_device_count(void);
void fake_cuda_destroy_context(struct CUctx_st *context);
/* Destroy it, and create another at the same address. */
void fake_cuda_replace_context(struct CUctx_st *context);
/* The same, on another device. */
void fake_cuda_move_context(struct CUctx_st *context, int device);
void fake_cuda_set_current(struct CUctx_st *context);
struct CUstream_st *fake_cuda_create_stream(struct CUctx_st *context);

const char *fake_cuda_violation(void); /* the first one, or NULL */
unsigned long fake_cuda_calls(const char *symbol);
unsigned long fake_cuda_launches(void);
void fake_cuda_last_launch(struct fake_launch *launch);
int fake_cuda_live_libraries(void);
int fake_cuda_retained_contexts(void);
int fake_cuda_live_pools(void);
/* Pool allocations not yet returned. */
int fake_cuda_live_pieces(void);

#ifdef __cplusplus
}
#endif

#endif
