/* fixture.h: an archive on the fake driver, and the launch common to most tests. */
#ifndef AOTC_TEST_FIXTURE_H
#define AOTC_TEST_FIXTURE_H

#include <stdint.h>

#include "fake_cuda.h"
#include "harness.h"

#define ADDRESS(number) ((void *)(uintptr_t)(number))

/* An archive loaded on device 0, with a stream of its own; reset before. */
struct fixture {
    struct blob_table *blobs;
    aotc_archive *archive;
    struct CUctx_st *context;
    struct CUstream_st *stream;
    aotc_error error;
};

/* Open an archive, with a context on device 0 and a stream of it. */
struct fixture set_up(const char *name);
/* Reset the driver, open an archive, and load it on device 0. */
struct fixture load(const char *name);
/* Release everything, and check for leaks and violations. */
void tear_down(struct fixture *fixture);

const aotc_kernel *kernel_of(const struct fixture *fixture, const char *name);

/* Numbers among a launch's parameters. */
uint32_t read_u32(const unsigned char *bytes);
uint64_t read_u64(const unsigned char *bytes);

/* A launch of the kernel `add`, on pointers that are not all aligned. */
struct add {
    aotc_arg args[4];
    aotc_launch_desc desc;
};

void add_call(struct add *add, const struct fixture *fixture, aotc_dtype dtype, int32_t n);

#endif
