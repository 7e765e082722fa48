/* validate_selection.c: check the selections of a kernel: their trees, features and leaves.
 *
 * A tree is in level order: the children of its branches, one after the other, are the next branch
 * or the next leaf. So one pass over the branches sees every node once, each after its parent.
 */
#include "validate_walk.h"

/* The position of a pass over a tree's branches. */
struct tree {
    const struct selection_record *selection;
    uint32_t next_branch, next_leaf, feature_count;
    uint32_t level_end, depth;
};

static bool take_child(struct tree *tree, uint32_t child) {
    if (child == tree->next_branch && child < tree->selection->branch_count) {
        tree->next_branch += 1;
        return true;
    }
    return child == (FORMAT_LEAF | tree->next_leaf++);
}

static aotc_status check_branches(const struct walk *walk, const struct selection_record *selection) {
    struct tree tree = {.selection = selection, .next_branch = 1};
    for (uint32_t i = 0; i < selection->branch_count; ++i) {
        const uint32_t number = selection->first_branch + i;
        const struct branch_record *branch = aotci_branch(walk->tables, number);
        if (i >= tree.next_branch || branch->feature > tree.feature_count ||
            branch->feature >= selection->feature_count || branch->threshold == INT64_MAX ||
            branch->zero != 0) {
            return aotci_walk_bad(walk, SECTION_BRANCHES, number, "feature, threshold",
                                  "a feature in order, a threshold below 2^63 - 1");
        }
        if (i == tree.level_end) {
            tree.level_end = tree.next_branch;
            tree.depth += 1;
        }
        tree.feature_count += branch->feature == tree.feature_count;
        if (!take_child(&tree, branch->low) || !take_child(&tree, branch->high)) {
            return aotci_walk_bad(walk, SECTION_BRANCHES, number, "low, high",
                                  "the next branch or leaf");
        }
    }
    if (tree.feature_count != selection->feature_count) {
        return aotci_walk_bad(walk, SECTION_FEATURES, selection->first_feature + tree.feature_count,
                              "owner", "a feature of a branch");
    }
    if (tree.depth > LIMIT_TREE_DEPTH) {
        return aotci_walk_above(walk, "branches above a leaf", tree.depth, LIMIT_TREE_DEPTH);
    }
    return AOTC_OK;
}

static aotc_status check_leaf(struct walk *walk, uint32_t number) {
    const struct leaf_record *leaf = aotci_leaf(walk->tables, number);
    if (leaf->config_count > LIMIT_LEAF_CONFIGS) {
        return aotci_walk_above(walk, "configs of a leaf", leaf->config_count, LIMIT_LEAF_CONFIGS);
    }
    if (leaf->config_count == 0 ||
        !aotci_walk_claim(walk, SECTION_LEAF_CONFIGS, leaf->first_config, leaf->config_count)) {
        return aotci_walk_bad(walk, SECTION_LEAVES, number, "first_config", "the next configs");
    }
    for (uint32_t i = 0; i < leaf->config_count; ++i) {
        const uint32_t config = aotci_leaf_config(walk->tables, leaf->first_config + i)->config;
        bool is_valid = config < walk->kernel->config_count;
        for (uint32_t k = 0; k < i; ++k) {
            is_valid &= aotci_leaf_config(walk->tables, leaf->first_config + k)->config != config;
        }
        if (!is_valid) {
            return aotci_walk_bad(walk, SECTION_LEAF_CONFIGS, leaf->first_config + i, "config",
                                  "a config of the kernel, each once");
        }
    }
    return AOTC_OK;
}

static aotc_status check_features(struct walk *walk, const struct selection_record *selection) {
    for (uint32_t i = 0; i < selection->feature_count; ++i) {
        const uint32_t number = selection->first_feature + i;
        const uint32_t expression = aotci_feature(walk->tables, number)->expression;
        bool is_valid = aotci_walk_is_expression(walk, expression);
        for (uint32_t k = 0; k < i; ++k) {
            is_valid &=
                aotci_feature(walk->tables, selection->first_feature + k)->expression != expression;
        }
        if (!is_valid) {
            return aotci_walk_bad(walk, SECTION_FEATURES, number, "expression",
                                  "an expression over the kernel's params, each once");
        }
    }
    return AOTC_OK;
}

/* Whether a selection comes after another: by target, GPU, combination. */
static bool is_after(const struct selection_record *selection, const struct selection_record *before) {
    if (selection->target != before->target) {
        return selection->target > before->target;
    }
    if (selection->gpu != before->gpu) { /* offsets of strings are in the order of the strings */
        return selection->gpu > before->gpu;
    }
    return selection->combination > before->combination;
}

static aotc_status check_selection(struct walk *walk, uint32_t number) {
    const struct selection_record *selection = aotci_selection(walk->tables, number);
    if (selection->feature_count > LIMIT_FEATURES) {
        return aotci_walk_above(walk, "features of a selection", selection->feature_count,
                                LIMIT_FEATURES);
    }
    if (!aotci_walk_claim(walk, SECTION_FEATURES, selection->first_feature, selection->feature_count) ||
        !aotci_walk_claim(walk, SECTION_BRANCHES, selection->first_branch, selection->branch_count) ||
        !aotci_walk_claim(walk, SECTION_LEAVES, selection->first_leaf, selection->branch_count + 1)) {
        return aotci_walk_bad(walk, SECTION_SELECTIONS, number, "slices", "the next records");
    }
    if (selection->target >= aotci_count(walk->tables, SECTION_TARGETS) ||
        (selection->gpu != 0 && !aotci_is_name(walk->tables, selection->gpu)) ||
        selection->combination >= walk->combinations ||
        (number != 0 && !is_after(selection, aotci_selection(walk->tables, number - 1)))) {
        return aotci_walk_bad(walk, SECTION_SELECTIONS, number, "target, gpu, combination",
                              "those of the kernel, in increasing order");
    }
    aotc_status status = check_features(walk, selection);
    status = status == AOTC_OK ? check_branches(walk, selection) : status;
    for (uint32_t i = 0; status == AOTC_OK && i <= selection->branch_count; ++i) {
        status = check_leaf(walk, selection->first_leaf + i);
    }
    return status;
}

aotc_status aotci_check_selections(struct walk *walk) {
    aotc_status status = AOTC_OK;
    for (uint32_t i = 0; status == AOTC_OK && i < walk->kernel->selection_count; ++i) {
        status = check_selection(walk, i);
    }
    return status;
}
