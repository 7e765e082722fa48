/* scratch.h: scratch memory for launches whose caller passes none.
 *
 * Each context has a pool of the driver's, made when a kernel is loaded there that has a variant in
 * need of it. A launch takes its piece and gives it back in the order of its stream, so that pieces
 * of launches in flight never overlap, whatever the streams, and a capture records both as nodes of
 * its graph. The pool keeps what it has until it is closed, and never makes one stream wait for
 * another.
 */
#ifndef AOTCI_SCRATCH_H
#define AOTCI_SCRATCH_H

#include "load.h"
#include "select.h"

/* Say whether launches of a kernel need scratch memory. */
bool aotci_scratch_is_used(const struct aotc_kernel *kernel);

/* Make the pool of a context, if there is none. Where the driver or the device has no pools, there is
 * none, and launches must be given scratch memory. */
void aotci_scratch_open(const struct aotc_archive *archive, struct aotci_context *context);

/* Close the pool: memory still in use goes when it is given back. */
void aotci_scratch_close(const struct aotci_driver *driver, struct aotci_context *context);

/* Give `desc`, a copy of the caller's, memory for what was chosen; `taken` is what to give back, or 0
 * if the caller's own does or none is needed. ARG if it is too little, or none and there is no pool;
 * CUDA. */
aotc_status aotci_scratch_take(const struct aotc_kernel *kernel, const struct aotci_context *context,
                               const struct aotci_chosen *chosen, aotc_launch_desc *desc,
                               CUdeviceptr *taken, aotc_error *error);

/* Give memory back, in the order of the stream. */
aotc_status aotci_scratch_return(const struct aotc_kernel *kernel, CUstream stream,
                                 CUdeviceptr taken, aotc_error *error);

#endif
