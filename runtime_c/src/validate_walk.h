/* validate_walk.h: the walk over the owners of records, shared by the checks of kernels and
 * variants.
 *
 * Invariant: each owner claims the slice right after the previous one, so tables are covered
 * without overlap and without holes.
 */
#ifndef AOTCI_VALIDATE_WALK_H
#define AOTCI_VALIDATE_WALK_H

#include "validate.h"

/* For checks of rare features: outside of the common path, a first launch fetches less code. */
#define AOTCI_APART __attribute__((noinline))

struct walk {
    const struct aotci_tables *tables;
    aotc_error *error;
    /* Nonzero for expressions with checked params: variants share most of them. */
    uint32_t *is_checked;
    /* Architecture of each cubin, by the first variant that names it; 0 before. Loading compares it
     * with the ELF header once for a cubin. */
    uint32_t *cubin_arch;
    const struct kernel_record *kernel;
    uint32_t name, text; /* known to be valid, the last ones checked: variants share them, too */
    bool has_typed_scalars; /* whose size follows from the combination */
    uint64_t combinations; /* of types and choices: the product so far, or all */
    uint32_t claimed[SECTION_COUNT + 1]; /* the claimed end of each section */
};

/* Claim the next `count` records of a section; return whether they begin at `first` and exist. */
static inline bool aotci_walk_claim(struct walk *walk, enum section_kind kind, uint32_t first,
                                    uint32_t count) {
    const uint32_t claimed = walk->claimed[kind];
    walk->claimed[kind] = claimed + count;
    return first == claimed && count <= aotci_count(walk->tables, kind) - claimed;
}

/* Report that `field` of record `index` of a section is wrong. */
AOTCI_COLD aotc_status aotci_walk_bad(const struct walk *walk, enum section_kind kind,
                                      uint32_t index, const char *field, const char *expected);

/* Report that a count is above a limit of the format. */
AOTCI_COLD aotc_status aotci_walk_above(const struct walk *walk, const char *what, uint64_t count,
                                        uint64_t most);

/* Return whether `index` is an expression over the params of the walk's kernel. */
bool aotci_walk_is_expression(struct walk *walk, uint32_t index);

/* Check the variants of the walk's kernel (validate_variant.c). */
aotc_status aotci_check_variants(struct walk *walk);

/* Check the selections of the walk's kernel (validate_selection.c). */
aotc_status aotci_check_selections(struct walk *walk);

#endif
