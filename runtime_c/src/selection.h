/* selection.h: the order of configs for a launch. */
#ifndef AOTCI_SELECTION_H
#define AOTCI_SELECTION_H

#include "dispatch.h"

/* Pick the selection of each run of a table: the device's own, or the one for every GPU of the
 * target. A driver without device names uses the latter. */
void aotci_pick_selections(const struct loading *loading, struct aotci_dispatch *dispatch);

/* The leaf of a selection for checked arguments: it always has one, and nothing is allocated. */
const struct leaf_record *aotci_find_leaf(const struct aotc_kernel *kernel, uint32_t selection,
                                          const aotc_arg *args);

#endif
