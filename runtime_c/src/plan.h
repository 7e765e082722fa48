/* plan.h: the plan of a launch.
 *
 * Everything that follows from a launch's arguments and choices: the variant, the grid, the encoded
 * tensor maps, the computed parameters. It is stored, so an equal launch looks it up.
 */
#ifndef AOTCI_PLAN_H
#define AOTCI_PLAN_H

#include "tensor_map.h"

enum {
    /* An entry has room for two dozen arguments and five tensor maps; with its slot's header it is
     * 20 cache lines. */
    PLAN_CACHE_BITS = 11,
    PLAN_ENTRY_WORDS = 158,
    CHOSEN_WORDS = 8,
    MAX_PLAN_WORDS = CHOSEN_WORDS + LIMIT_TENSOR_MAPS * MAP_WORDS + LIMIT_PARAM_BYTES / 4,
};

/* The maps follow the selection, in order, and then comes a word for each computed parameter.
 * Unused parts of a plan are not written. */
struct aotci_plan {
    union {
        struct aotci_chosen chosen;
        _Alignas(CUtensorMap) uint64_t words[MAX_PLAN_WORDS];
    } as;
};

static inline CUtensorMap *aotci_plan_map(struct aotci_plan *plan, uint32_t index) {
    return (CUtensorMap *)&plan->as.words[CHOSEN_WORDS] + index;
}

static inline uint64_t *aotci_plan_value(struct aotci_plan *plan, uint32_t index) {
    const uint32_t map_count = plan->as.chosen.candidate->variant->tensor_map_count;
    return &plan->as.words[CHOSEN_WORDS + map_count * MAP_WORDS + index];
}

/* Find or make the plan of a launch in a context (aotci_find_context). Errors as aotc_launch. */
aotc_status aotci_plan_launch(const struct aotc_kernel *kernel, const struct aotci_context *context,
                              const aotc_launch_desc *desc, enum aotci_late late,
                              struct aotci_plan *plan, aotc_error *error);

/* Launch; without `may_load`, AOTCI_NOT_READY instead of loading a variant (launch.c). */
aotc_status aotci_launch(const aotc_kernel *kernel, const aotc_launch_desc *desc, bool may_load,
                         aotc_error *error);

#endif
