/* memo.h: a lock-free cache of results.
 *
 * Keys and values are words. A table is of fixed size: a new entry replaces another, and a missing
 * result is computed again.
 */
#ifndef AOTCI_MEMO_H
#define AOTCI_MEMO_H

#include <aotc/aotc.h>
#include <stdatomic.h>
#include <stdbool.h>

struct aotci_memo {
    _Atomic(_Atomic uint64_t *) slots; /* NULL: no cache */
    atomic_bool is_used;     /* has had an entry: before, no page of the table need be touched */
    uint32_t bits;
    uint32_t slot_words;
};

/* Make an empty table of 2^bits slots in cleared memory, each with room for `entry_words` of key
 * and value; false if memory is short. Concurrent lookups are allowed. */
bool aotci_memo_make(struct aotci_memo *memo, uint32_t bits, uint32_t entry_words,
                     const aotc_allocator *allocator);
void aotci_memo_free(const struct aotci_memo *memo, const aotc_allocator *allocator);

/* Copy the value of a key into `value`, of `value_words`; false if it is missing, and then `value`
 * is undefined. */
bool aotci_memo_find(const struct aotci_memo *memo, const uint64_t *key, uint32_t key_words,
                     uint64_t *value, uint32_t value_words);

/* Store a value, perhaps replacing another. It is dropped if it is too long, or during a concurrent
 * write to the slot. */
void aotci_memo_keep(const struct aotci_memo *memo, const uint64_t *key, uint32_t key_words,
                     const uint64_t *value, uint32_t value_words);

#endif
