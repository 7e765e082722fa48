/* dispatch.h: load one kernel into one context. */
#ifndef AOTCI_DISPATCH_H
#define AOTCI_DISPATCH_H

#include "load.h"

/* What a load is at. */
struct loading {
    struct aotc_archive *archive;
    struct aotc_kernel *kernel;
    struct aotci_context *context;
    aotc_error *error;
    bool is_lazy; /* leave the code of variants for their first launch */
    bool is_pushed; /* a context that was not current */
    bool is_relaxed; /* in a capture mode in which streams that somebody captures stay valid; before was: */
    int mode;
};

/* Find the context that a load or unload is for: the current one, which may be in `*context` already, or a device's
 * primary one, which is then retained (load.c). STATE, ARG, CUDA. */
aotc_status aotci_choose_context(const struct loading *loading, int32_t ordinal, CUcontext *context,
                                 CUdevice *device);

/* Load a kernel into the current context, which `loading` names, or what of it is not there yet. A
 * kernel that cannot run there gets an empty table. */
aotc_status aotci_load_kernel(const struct loading *loading);

/* Load a variant of a table, unless it is, and say what its function is. Unless `is_whole`, the code may be left to a
 * launch of it that follows, and the candidate does not have the function before `aotci_finish_first`. */
aotc_status aotci_load_candidate(const struct loading *loading, struct aotci_candidate *candidate,
                                 bool is_whole, CUfunction *function);

/* Ask for an attribute of the device, unless `*value` is not 0: then it is known (occupancy.c). */
aotc_status aotci_ask_device(const struct loading *loading, int attribute, int *value);

/* How many program instances of a loaded variant are resident at a time, if its launches have CTAs
 * for these, by its function in the context: as many if it is persistent, no more if it is cooperative. One that does not fit at all
 * counts as one, and its launch says why (occupancy.c). */
aotc_status aotci_count_programs(const struct loading *loading, const struct variant_record *variant,
                                 CUfunction function, uint32_t *programs);

void aotci_free_dispatch(const struct aotc_archive *archive, const struct aotc_kernel *kernel,
                         struct aotci_dispatch *dispatch);

/* Report a CUresult of a call, with the names of archive and kernel. */
aotc_status aotci_load_failure(const struct loading *loading, CUresult result, const char *call);

#endif
