/* select.h: from the arguments of a launch to the variant and the grid. */
#ifndef AOTCI_SELECT_H
#define AOTCI_SELECT_H

#include "load.h"

/* The effect of a launch. */
struct aotci_chosen {
    const struct aotci_candidate *candidate;
    uint32_t programs[3]; /* requested; with a zero, nothing is launched */
    uint32_t grid[3];     /* gridDim */
    uint64_t scratch_bytes;
    bool is_empty;
    bool is_first; /* this launch loaded the variant, and must restore what it entered (aotci_leave) */
    struct aotci_entered entered;
    CUfunction function;
};

/* Find the loaded entry for the context of a launch's stream, and check that the launch can be
 * read. ARG, STATE, FORKED, CUDA. */
aotc_status aotci_find_context(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                               const struct aotci_context **context, aotc_error *error);

/* A status of these functions only: the selection is not loaded, and may not be loaded now. */
enum { AOTCI_NOT_READY = 1 << 30 };

/* Check the arguments and choose a variant; load it if missing (with LOAD_NOTHING: AOTCI_NOT_READY,
 * and no error is written). The caller must leave `entered` whatever the status. Errors as
 * aotc_launch. */
aotc_status aotci_choose(const struct aotc_kernel *kernel, const struct aotci_context *context,
                         const aotc_launch_desc *desc, enum aotci_late late,
                         struct aotci_chosen *chosen, aotc_error *error);

/* Report a wrong argument of a launch: the param's name, the expected and the actual value. */
aotc_status aotci_bad_argument(const struct aotc_kernel *kernel, aotc_error *error, uint32_t param,
                               const char *expected, const char *got);

/* Return whether two values have the same kind and the same content. */
bool aotci_same_value(const aotc_value *a, const aotc_value *b);

/* A value as text. */
struct aotci_text aotci_value_text(const aotc_value *value);

/* The digit of a combination for a choice name and value, and the combination of dtypes (bind.c).
 */
aotc_status aotci_bind(const struct aotc_kernel *kernel, const aotc_launch_desc *desc,
                       uint32_t *combination, aotc_error *error);

#endif
