/* scratch.h: scratch memory for launches whose caller passes none.
 *
 * Each context has a pool of the driver's, made when a kernel that needs it is loaded there. A
 * launch allocates and frees its memory in stream order. So memory of launches in flight never
 * overlaps, on any streams, and a capture records both as nodes of its graph. The pool keeps its
 * memory until it is closed, and never makes one stream wait for another.
 */
#ifndef AOTCI_SCRATCH_H
#define AOTCI_SCRATCH_H

#include "load.h"
#include "select.h"

/* Return whether launches of a kernel need scratch memory. */
bool aotci_scratch_is_used(const struct aotc_kernel *kernel);

/* Make the pool of a context, if missing. Without pools in the driver or device, launches must be
 * given scratch memory. */
void aotci_scratch_open(const struct aotc_archive *archive, struct aotci_context *context);

/* Close the pool: memory still in use is freed when it is returned. */
void aotci_scratch_close(const struct aotci_driver *driver, struct aotci_context *context);

/* Give `desc`, a copy of the caller's, memory for the selection; `taken` is the memory to return,
 * or 0 if the caller's own suffices or none is needed. ARG if it is too small, or missing without a
 * pool; CUDA. */
aotc_status aotci_scratch_take(const struct aotc_kernel *kernel, const struct aotci_context *context,
                               const struct aotci_chosen *chosen, aotc_launch_desc *desc,
                               CUdeviceptr *taken, aotc_error *error);

/* Free memory, in stream order. */
aotc_status aotci_scratch_return(const struct aotc_kernel *kernel, CUstream stream,
                                 CUdeviceptr taken, aotc_error *error);

#endif
