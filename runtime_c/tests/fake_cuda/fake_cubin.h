/* fake_cubin.h: read the functions of a cubin and their parameters, as the driver does. */
#ifndef FAKE_CUBIN_H
#define FAKE_CUBIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fake_cuda.h"

enum { FAKE_MAX_FUNCTIONS = 16 };

struct fake_param {
    uint32_t offset, size_bytes;
};

struct fake_function {
    char name[256];
    int static_shared_bytes;
    size_t param_count;
    struct fake_param params[FAKE_CUDA_MAX_PARAMS];
};

struct fake_cubin {
    int arch;
    size_t function_count;
    struct fake_function *functions;
};

/* Read a cubin; its contents are copied. False if it is not one. */
bool fake_cubin_read(const void *image, struct fake_cubin *cubin);
const struct fake_function *fake_cubin_find(const struct fake_cubin *cubin, const char *name);
void fake_cubin_free(struct fake_cubin *cubin);

#endif
