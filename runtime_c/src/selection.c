/* selection.c: the order of configs for a launch: pick the trees for a device, and walk them.
 *
 * Trees are used in place in the index. For each config of a leaf a load records the first
 * candidate with it, and for each candidate the next one, so a launch searches for nothing.
 */
#include "selection.h"

#include <string.h>

#include "expression.h"

static bool ask_name(const struct loading *loading, char *name, int name_bytes) {
    struct aotci_driver *driver = &loading->archive->driver;
    return aotci_driver_use(driver, DRIVER_QUERIES, NULL) == AOTC_OK &&
           driver->device_get_name != NULL &&
           driver->device_get_name(name, name_bytes, loading->context->device) == CUDA_SUCCESS;
}

/* The offset of the device's name in the kernel's selections, or 0 if none is for this device only. */
static uint32_t own_gpu(const struct loading *loading) {
    const struct aotci_tables *tables = &loading->kernel->tables;
    char name[LIMIT_NAME_BYTES + 1] = "";
    uint32_t before = 0;
    for (uint32_t i = 0; i < aotci_count(tables, SECTION_SELECTIONS); ++i) {
        const uint32_t gpu = aotci_selection(tables, i)->gpu;
        if (gpu == 0 || gpu == before) {
            continue;
        }
        if (before == 0 && !ask_name(loading, name, (int)sizeof name)) {
            return 0;
        }
        if (strcmp(aotci_string(tables, gpu), name) == 0) {
            return gpu;
        }
        before = gpu;
    }
    return 0;
}

static bool is_before(const struct selection_record *selection, const struct selection_record *other) {
    if (selection->target != other->target) {
        return selection->target < other->target;
    }
    if (selection->gpu != other->gpu) {
        return selection->gpu < other->gpu;
    }
    return selection->combination < other->combination;
}

/* The number of a selection, or FORMAT_NONE. */
static uint32_t find_selection(const struct aotci_tables *tables, uint32_t target, uint32_t gpu,
                               uint32_t combination) {
    const struct selection_record wanted = {.target = target, .gpu = gpu, .combination = combination};
    const uint32_t count = aotci_count(tables, SECTION_SELECTIONS);
    uint32_t low = 0;
    uint32_t high = count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (is_before(aotci_selection(tables, middle), &wanted)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < count && !is_before(&wanted, aotci_selection(tables, low)) ? low : FORMAT_NONE;
}

/* Record the candidates of a run for the configs of its leaves. */
static void link_leaves(const struct aotci_tables *tables, struct aotci_dispatch *dispatch,
                        const struct aotci_run *run) {
    const struct selection_record *selection = aotci_selection(tables, run->selection);
    const struct leaf_record *first = aotci_leaf(tables, selection->first_leaf);
    const struct leaf_record *last =
        aotci_leaf(tables, selection->first_leaf + selection->branch_count);
    uint32_t *newest = dispatch->of_config;
    memset(newest, 0xFF, aotci_count(tables, SECTION_CONFIGS) * sizeof *newest);
    for (uint32_t i = run->first + run->count; i-- > run->first;) {
        struct aotci_candidate *candidate = &dispatch->candidates[i];
        candidate->next_of_config = newest[candidate->variant->config];
        newest[candidate->variant->config] = i;
    }
    for (uint32_t i = first->first_config; i < last->first_config + last->config_count; ++i) {
        dispatch->of_leaf_config[i] = newest[aotci_leaf_config(tables, i)->config];
    }
}

void aotci_pick_selections(const struct loading *loading, struct aotci_dispatch *dispatch) {
    const struct aotci_tables *tables = &loading->kernel->tables;
    const uint32_t gpu = own_gpu(loading);
    for (uint32_t i = 0; i < dispatch->run_count; ++i) {
        struct aotci_run *run = &dispatch->runs[i];
        const uint32_t target = dispatch->candidates[run->first].variant->target;
        run->selection = find_selection(tables, target, gpu, run->combination);
        if (run->selection == FORMAT_NONE && gpu != 0) {
            run->selection = find_selection(tables, target, 0, run->combination);
        }
        if (run->selection != FORMAT_NONE) {
            link_leaves(tables, dispatch, run);
        }
    }
}

/* A feature without a value is above every threshold. */
static int64_t value_of(const struct aotc_kernel *kernel, uint32_t feature, const aotc_arg *args) {
    const uint32_t index = aotci_feature(&kernel->tables, feature)->expression;
    int64_t value = 0;
    const char *failure =
        aotci_evaluate(kernel, aotci_expression(&kernel->tables, index), args, &value);
    return failure == NULL ? value : INT64_MAX;
}

/* Walk from the root to a leaf. `stride` is constant after inlining: a product for each branch
 * would double the time. Each arm continues by itself: a processor then predicts the path, instead
 * of waiting for three dependent loads before the next comparison. */
static inline uint32_t walk(const struct aotc_kernel *kernel, const struct selection_record *tree,
                            size_t stride, const aotc_arg *args) {
    const unsigned char *branches = aotci_record(&kernel->tables, SECTION_BRANCHES, tree->first_branch);
    int64_t values[LIMIT_FEATURES];
    uint32_t evaluated = 0;
    uint32_t node = 0;
    for (;;) {
        const struct branch_record *branch = (const void *)(branches + node * stride);
        const uint32_t bit = UINT32_C(1) << branch->feature;
        if ((evaluated & bit) == 0) {
            evaluated |= bit;
            values[branch->feature] = value_of(kernel, tree->first_feature + branch->feature, args);
        }
        if (values[branch->feature] <= branch->threshold) {
            node = branch->low;
            if ((node & FORMAT_LEAF) != 0) {
                break;
            }
        } else {
            node = branch->high;
            if ((node & FORMAT_LEAF) != 0) {
                break;
            }
        }
    }
    return node & ~FORMAT_LEAF;
}

const struct leaf_record *aotci_find_leaf(const struct aotc_kernel *kernel, uint32_t selection,
                                          const aotc_arg *args) {
    const struct selection_record *tree = aotci_selection(&kernel->tables, selection);
    const size_t stride = kernel->tables.sections[SECTION_BRANCHES].stride;
    uint32_t leaf = 0;
    if (tree->branch_count != 0) {
        leaf = stride == sizeof(struct branch_record)
                   ? walk(kernel, tree, sizeof(struct branch_record), args)
                   : walk(kernel, tree, stride, args);
    }
    return aotci_leaf(&kernel->tables, tree->first_leaf + leaf);
}
