/* dispatch.h: load one kernel into one context. */
#ifndef AOTCI_DISPATCH_H
#define AOTCI_DISPATCH_H

#include "load.h"

/* The state of a load. */
struct loading {
    struct aotc_archive *archive;
    struct aotc_kernel *kernel;
    struct aotci_context *context;
    aotc_error *error;
    bool is_lazy; /* leave the code of variants for their first launch */
    bool is_pushed; /* pushed a context that was not current */
    bool is_relaxed; /* set the relaxed capture mode, in which others' captures stay valid; the
                      * previous mode: */
    int mode;
};

/* Find the context of a load or unload: the current one, perhaps in `*context` already, or a
 * device's primary one, which is then retained (load.c). STATE, ARG, CUDA. */
aotc_status aotci_choose_context(const struct loading *loading, int32_t ordinal, CUcontext *context,
                                 CUdevice *device);

/* Load the missing parts of a kernel into the current context, which `loading` names. A kernel that
 * cannot run there gets an empty table. */
aotc_status aotci_load_kernel(const struct loading *loading);

/* Load a variant of a table, unless loaded, and return its function. Unless `is_whole`, the code
 * may be left to the launch that follows, and the candidate gets the function in
 * `aotci_finish_first`. */
aotc_status aotci_load_candidate(const struct loading *loading, struct aotci_candidate *candidate,
                                 bool is_whole, CUfunction *function);

/* Query an attribute of the device, unless `*value` is known, not 0 (occupancy.c). */
aotc_status aotci_ask_device(const struct loading *loading, int attribute, int *value);

/* Count the resident program instances of a loaded variant, by its function in the context, if its
 * launches depend on the number: a persistent launch has as many, a cooperative one at most. A
 * variant that does not fit counts as one, and its launch reports why (occupancy.c). */
aotc_status aotci_count_programs(const struct loading *loading, const struct variant_record *variant,
                                 CUfunction function, uint32_t *programs);

void aotci_free_dispatch(const struct aotc_archive *archive, const struct aotc_kernel *kernel,
                         struct aotci_dispatch *dispatch);

/* Report a CUresult of a call, with the names of archive and kernel. */
aotc_status aotci_load_failure(const struct loading *loading, CUresult result, const char *call);

#endif
