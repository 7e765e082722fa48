/* guard.h: conditions on the arguments of a launch. */
#ifndef AOTCI_GUARD_H
#define AOTCI_GUARD_H

#include "archive.h"

/* One comparison with a constant: of an argument, or of a tensor's size or stride. */
struct aotci_test {
    int64_t constant;
    uint16_t param;
    uint8_t load;     /* enum opcode: OP_ARG, OP_SHAPE, OP_STRIDE */
    uint8_t dim;      /* of the tensor */
    uint8_t relation; /* enum opcode: OP_EQ to OP_GE, or OP_MOD for no bit of the constant */
    bool is_enough;   /* or the next one holds */
};

/* Write the tests of a checked program; `tests` NULL only counts. Returns 0 unless it consists of
 * comparisons, and pairs of them joined by `or`, joined by `and`. */
uint32_t aotci_guard_compile(const struct aotc_kernel *kernel,
                             const struct expression_record *expression, struct aotci_test *tests);

/* The guard of the expression at `index`. */
struct aotci_guard aotci_guard_of(const struct aotc_kernel *kernel, uint32_t index);

/* Return whether a guard is just a test of an argument for 0. */
bool aotci_guard_is_null_test(const struct aotci_guard *guard, uint32_t param);

/* Return whether a guard holds; one without a value does not. */
bool aotci_guard_holds(const struct aotc_kernel *kernel, const struct aotci_guard *guard,
                       const aotc_arg *args);

#endif
