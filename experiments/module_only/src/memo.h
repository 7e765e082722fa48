/* memo.h: results kept by what they were computed from.
 *
 * Keys and values are words. A table is of fixed size: what is kept takes the place of something
 * else, so whoever does not find a result computes it anew.
 */
#ifndef AOTCI_MEMO_H
#define AOTCI_MEMO_H

#include <aotc/aotc.h>
#include <stdatomic.h>
#include <stdbool.h>

struct aotci_memo {
    _Atomic(_Atomic uint64_t *) slots; /* NULL: nothing is kept */
    atomic_bool is_used;     /* something was kept: before, no page of the table need be touched */
    uint32_t bits;
    uint32_t slot_words;
};

/* Make an empty table of 2^bits slots, with room for `entry_words` of a key and its value in each, of one that is
 * cleared; false if there is no memory for it. Others may look for results meanwhile. */
bool aotci_memo_make(struct aotci_memo *memo, uint32_t bits, uint32_t entry_words,
                     const aotc_allocator *allocator);
void aotci_memo_free(const struct aotci_memo *memo, const aotc_allocator *allocator);

/* Copy the value of a key into `value`, which has `value_words`; false if it is not there, and then
 * `value` may hold anything. */
bool aotci_memo_find(const struct aotci_memo *memo, const uint64_t *key, uint32_t key_words,
                     uint64_t *value, uint32_t value_words);

/* Keep a value, in place of another if need be. One that is too long is not kept, nor one that comes
 * while somebody else writes there. */
void aotci_memo_keep(const struct aotci_memo *memo, const uint64_t *key, uint32_t key_words,
                     const uint64_t *value, uint32_t value_words);

#endif
