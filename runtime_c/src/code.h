/* code.h: the code of a variant: a library, shared by all contexts, or a module of one context. */
#ifndef AOTCI_CODE_H
#define AOTCI_CODE_H

#include "dispatch.h"

static inline uint64_t aotci_shared_bytes(const struct variant_record *variant) {
    return (uint64_t)variant->dynamic_shared_bytes + variant->static_shared_bytes;
}

/* Dynamic shared memory available without an attribute: 48 KiB, less 1 reserved by some GPUs. */
enum { AOTCI_DEFAULT_SHARED_BYTES = 47 << 10 };

static inline bool aotci_is_large(const struct variant_record *variant) {
    return aotci_shared_bytes(variant) > AOTCI_DEFAULT_SHARED_BYTES;
}

/* Load the cubin of a candidate, unless loaded, find and check its function, and set attributes;
 * unless `is_whole` perhaps for the current context only. `*function` is the function for a launch,
 * at which the driver may still load the code. */
aotc_status aotci_load_code(const struct loading *loading, struct aotci_candidate *candidate,
                            bool is_whole, CUfunction *function);

/* Force the code of a candidate, already passed to aotci_load_code, into the current context;
 * `*function` is its function there. */
aotc_status aotci_force_code(const struct loading *loading, const struct aotci_candidate *candidate,
                             CUfunction *function);

/* Unload the modules of an entry's table, unless its context was destroyed; requires DRIVER_UNLOAD. */
void aotci_unload_modules(const struct aotci_driver *driver, const struct aotci_context *entry,
                          const struct aotci_dispatch *dispatch);

#endif
