/* code.h: the code of a variant: a library's, which all contexts share, or a module's of one context. */
#ifndef AOTCI_CODE_H
#define AOTCI_CODE_H

#include "dispatch.h"

static inline uint64_t aotci_shared_bytes(const struct variant_record *variant) {
    return (uint64_t)variant->dynamic_shared_bytes + variant->static_shared_bytes;
}

/* What a CTA may use without an attribute: 48 KiB, of which some GPUs keep one for themselves. */
enum { AOTCI_DEFAULT_SHARED_BYTES = 47 << 10 };

static inline bool aotci_is_large(const struct variant_record *variant) {
    return aotci_shared_bytes(variant) > AOTCI_DEFAULT_SHARED_BYTES;
}

/* Load the cubin of a candidate, unless it is, find and check its function and set attributes; unless `is_whole` it may
 * be for the current context alone. What the driver takes in a launch is `*function`; it may load the code then. */
aotc_status aotci_load_code(const struct loading *loading, struct aotci_candidate *candidate,
                            bool is_whole, CUfunction *function);

/* Load the code of a candidate, which went through aotci_load_code, into the current context; its function there is
 * `*function`. */
aotc_status aotci_force_code(const struct loading *loading, const struct aotci_candidate *candidate,
                             CUfunction *function);

/* Unload the modules of a table of an entry, unless its context was destroyed; DRIVER_UNLOAD was looked up. */
void aotci_unload_modules(const struct aotci_driver *driver, const struct aotci_context *entry,
                          const struct aotci_dispatch *dispatch);

#endif
