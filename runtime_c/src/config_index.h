/* config_index.h: find a kernel's candidates by config entries of a launch.
 *
 * For each entry in any config, such as num_warps = 8, the index has a row with a bit for each
 * candidate; candidates with several entries are the intersection of rows. So a launch with a
 * config is no slower among hundreds of them than among two.
 */
#ifndef AOTCI_CONFIG_INDEX_H
#define AOTCI_CONFIG_INDEX_H

#include "archive.h"

struct aotci_candidate;

/* A name of entries; its values are a list. */
struct aotci_config_key {
    const char *name;
    uint32_t first; /* in `values` */
};

struct aotci_config_value {
    aotc_value value;
    uint32_t next; /* the next value of the same name, or FORMAT_NONE */
};

/* Built when the kernel is loaded, and constant afterwards. */
struct aotci_config_index {
    uint32_t capacity; /* of `keys` and of `values` */
    uint32_t key_count;
    uint32_t value_count;
    uint32_t word_count; /* of a row */
    struct aotci_config_key *keys;
    struct aotci_config_value *values;
    uint64_t *rows; /* one for each value */
};

/* The rows of a launch's entries: all of a candidate's bits must be set. */
struct aotci_config_filter {
    bool has_unknown; /* an entry that no candidate has */
    uint32_t count;
    const uint64_t *rows[LIMIT_CONFIG_ENTRIES];
};

/* Index candidates of a kernel. Returns false if memory runs out; the rest must be freed. */
bool aotci_config_index_build(struct aotci_config_index *index, const struct aotc_kernel *kernel,
                              const struct aotci_candidate *candidates, uint32_t count);

void aotci_config_index_free(struct aotci_config_index *index, const aotc_allocator *allocator);

/* Find the rows of a launch's entries. */
void aotci_config_ask(const struct aotci_config_index *index, const aotc_launch_desc *desc,
                      struct aotci_config_filter *filter);

/* The first candidate of `from` to `end` - 1 with all entries, or `end`. */
uint32_t aotci_config_next(const struct aotci_config_filter *filter, uint32_t from, uint32_t end);

/* Return whether a candidate has the entries of a launch. */
static inline bool aotci_config_has(const struct aotci_config_filter *filter, uint32_t candidate) {
    return (filter->count == 0 && !filter->has_unknown) ||
           aotci_config_next(filter, candidate, candidate + 1) == candidate;
}

#endif
