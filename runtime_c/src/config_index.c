/* config_index.c: find a kernel's candidates by config entries of a launch. */
#include "config_index.h"

#include <string.h>

#include "load.h"
#include "select.h"

enum { WORD_BITS = 64 };

static const struct config_record *config_of(const struct aotc_kernel *kernel,
                                             const struct aotci_candidate *candidate) {
    return aotci_config(&kernel->tables, kernel->record->first_config + candidate->variant->config);
}

static uint32_t find_key(const struct aotci_config_index *index, const char *name) {
    uint32_t key = 0;
    while (key < index->key_count && strcmp(index->keys[key].name, name) != 0) {
        ++key;
    }
    return key;
}

/* The number of a value, or FORMAT_NONE. */
static uint32_t find_value(const struct aotci_config_index *index, const aotc_value *wanted) {
    const uint32_t key = wanted->name == NULL ? index->key_count : find_key(index, wanted->name);
    uint32_t value = key == index->key_count ? FORMAT_NONE : index->keys[key].first;
    while (value != FORMAT_NONE && !aotci_same_value(&index->values[value].value, wanted)) {
        value = index->values[value].next;
    }
    return value;
}

static void add_value(struct aotci_config_index *index, const aotc_value *value) {
    const uint32_t key = find_key(index, value->name);
    if (key == index->key_count) {
        index->keys[index->key_count++] = (struct aotci_config_key){value->name, FORMAT_NONE};
    }
    index->values[index->value_count] =
        (struct aotci_config_value){*value, index->keys[key].first};
    index->keys[key].first = index->value_count++;
}

bool aotci_config_index_build(struct aotci_config_index *index, const struct aotc_kernel *kernel,
                              const struct aotci_candidate *candidates, uint32_t count) {
    const struct aotc_archive *archive = kernel->archive;
    const aotc_allocator *allocator = &archive->allocator;
    for (uint32_t i = 0; i < count; ++i) {
        index->capacity += config_of(kernel, &candidates[i])->entry_count;
    }
    index->keys = aotci_allocate(allocator, index->capacity, sizeof *index->keys);
    index->values = aotci_allocate(allocator, index->capacity, sizeof *index->values);
    if (index->keys == NULL || index->values == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < count; ++i) {
        const struct config_record *config = config_of(kernel, &candidates[i]);
        for (uint32_t k = 0; k < config->entry_count; ++k) {
            const aotc_value value =
                aotci_value_of(&kernel->tables, aotci_value(&kernel->tables, config->first_entry + k));
            if (find_value(index, &value) == FORMAT_NONE) {
                add_value(index, &value);
            }
        }
    }
    index->word_count = (count + WORD_BITS - 1) / WORD_BITS;
    index->rows = aotci_allocate(allocator, (size_t)index->value_count * index->word_count,
                                 sizeof *index->rows);
    if (index->rows == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < count; ++i) {
        const struct config_record *config = config_of(kernel, &candidates[i]);
        for (uint32_t k = 0; k < config->entry_count; ++k) {
            const aotc_value value =
                aotci_value_of(&kernel->tables, aotci_value(&kernel->tables, config->first_entry + k));
            uint64_t *row = index->rows + (size_t)find_value(index, &value) * index->word_count;
            row[i / WORD_BITS] |= UINT64_C(1) << i % WORD_BITS;
        }
    }
    return true;
}

void aotci_config_index_free(struct aotci_config_index *index, const aotc_allocator *allocator) {
    aotci_deallocate(allocator, index->keys, index->capacity, sizeof *index->keys);
    aotci_deallocate(allocator, index->values, index->capacity, sizeof *index->values);
    aotci_deallocate(allocator, index->rows, (size_t)index->value_count * index->word_count,
                     sizeof *index->rows);
}

static bool has_row(const struct aotci_config_filter *filter, const uint64_t *row) {
    uint32_t i = 0;
    while (i < filter->count && filter->rows[i] != row) {
        ++i;
    }
    return i < filter->count;
}

void aotci_config_ask(const struct aotci_config_index *index, const aotc_launch_desc *desc,
                      struct aotci_config_filter *filter) {
    filter->has_unknown = false;
    filter->count = 0;
    for (uint32_t i = 0; i < desc->config_count; ++i) {
        const uint32_t value = find_value(index, &desc->config[i]);
        if (value == FORMAT_NONE) {
            filter->has_unknown = true;
            return;
        }
        const uint64_t *row = index->rows + (size_t)value * index->word_count;
        if (has_row(filter, row)) {
            continue;
        }
        if (filter->count == LIMIT_CONFIG_ENTRIES) {
            filter->has_unknown = true; /* no config has so many */
            return;
        }
        filter->rows[filter->count++] = row;
    }
}

uint32_t aotci_config_next(const struct aotci_config_filter *filter, uint32_t from, uint32_t end) {
    if (filter->has_unknown) {
        return end;
    }
    for (uint32_t start = from; start < end; start = (start / WORD_BITS + 1) * WORD_BITS) {
        uint64_t bits = UINT64_MAX << start % WORD_BITS;
        for (uint32_t i = 0; i < filter->count; ++i) {
            bits &= filter->rows[i][start / WORD_BITS];
        }
        if (bits != 0) {
            const uint32_t found =
                start / WORD_BITS * WORD_BITS + (uint32_t)__builtin_ctzll(bits);
            return found < end ? found : end;
        }
    }
    return end;
}
