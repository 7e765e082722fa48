/* memo.c: a lock-free cache of results.
 *
 * A slot is a sequence lock: its version is odd during a write, and a reader that sees the version
 * change discards its copy. So launches never wait for each other.
 *
 * Every word is atomic, because readers and writers do meet. Acquiring loads keep the second read
 * of the version after the words, releasing stores keep the words after the first change of it.
 */
#include "memo.h"

#include "archive.h"

enum { VERSION, SIZES, OWN_WORDS }; /* a version of 0: empty */

/* Compilers do not unroll loops over atomics on their own. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll 8")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

static uint64_t sizes_of(uint32_t key_words, uint32_t value_words) {
    return (uint64_t)value_words << 32 | key_words;
}

static _Atomic uint64_t *slot_of(const struct aotci_memo *memo, _Atomic uint64_t *slots,
                                 const uint64_t *key, uint32_t key_words) {
    /* A sum of products, which a processor computes in parallel; their high bits are the mixed
     * ones. */
    uint64_t hash = 0;
    uint64_t factor = UINT64_C(0x9E3779B97F4A7C15);
    UNROLL
    for (uint32_t i = 0; i < key_words; ++i) {
        hash += key[i] * factor;
        factor += UINT64_C(0xD1342543DE82EF94);
    }
    return slots + (size_t)(hash >> (64 - memo->bits)) * memo->slot_words;
}

bool aotci_memo_make(struct aotci_memo *memo, uint32_t bits, uint32_t entry_words,
                     const aotc_allocator *allocator) {
    const uint32_t slot_words = OWN_WORDS + entry_words;
    _Atomic uint64_t *slots =
        aotci_allocate(allocator, (size_t)slot_words << bits, sizeof *slots);
    memo->bits = bits;
    memo->slot_words = slot_words;
    atomic_store_explicit(&memo->slots, slots, memory_order_release);
    return slots != NULL;
}

void aotci_memo_free(const struct aotci_memo *memo, const aotc_allocator *allocator) {
    aotci_deallocate(allocator, atomic_load_explicit(&memo->slots, memory_order_relaxed),
                     (size_t)memo->slot_words << memo->bits, sizeof(_Atomic uint64_t));
}

bool aotci_memo_find(const struct aotci_memo *memo, const uint64_t *key, uint32_t key_words,
                     uint64_t *value, uint32_t value_words) {
    if (!atomic_load_explicit(&memo->is_used, memory_order_relaxed)) {
        return false;
    }
    _Atomic uint64_t *slots = atomic_load_explicit(&memo->slots, memory_order_acquire);
    const _Atomic uint64_t *slot = slot_of(memo, slots, key, key_words);
    const uint64_t version = atomic_load_explicit(&slot[VERSION], memory_order_acquire);
    const uint64_t sizes = atomic_load_explicit(&slot[SIZES], memory_order_acquire);
    const uint32_t kept_words = (uint32_t)(sizes >> 32);
    /* The sizes may belong to a concurrent write: copy no more than fits. */
    if (version == 0 || version % 2 != 0 || (uint32_t)sizes != key_words ||
        kept_words > value_words) {
        return false;
    }
    const _Atomic uint64_t *words = slot + OWN_WORDS;
    uint64_t difference = 0;
    UNROLL
    for (uint32_t i = 0; i < key_words; ++i) {
        difference |= atomic_load_explicit(&words[i], memory_order_acquire) ^ key[i];
    }
    if (difference != 0) {
        return false;
    }
    UNROLL
    for (uint32_t i = 0; i < kept_words; ++i) {
        value[i] = atomic_load_explicit(&words[key_words + i], memory_order_acquire);
    }
    return atomic_load_explicit(&slot[VERSION], memory_order_relaxed) == version;
}

void aotci_memo_keep(const struct aotci_memo *memo, const uint64_t *key, uint32_t key_words,
                     const uint64_t *value, uint32_t value_words) {
    _Atomic uint64_t *slots = atomic_load_explicit(&memo->slots, memory_order_acquire);
    if (slots == NULL || key_words + value_words > memo->slot_words - OWN_WORDS) {
        return;
    }
    if (!atomic_load_explicit(&memo->is_used, memory_order_relaxed)) {
        atomic_store_explicit(&((struct aotci_memo *)(uintptr_t)memo)->is_used, true,
                              memory_order_relaxed);
    }
    _Atomic uint64_t *slot = slot_of(memo, slots, key, key_words);
    uint64_t version = atomic_load_explicit(&slot[VERSION], memory_order_relaxed);
    if (version % 2 != 0 ||
        !atomic_compare_exchange_strong_explicit(&slot[VERSION], &version, version + 1,
                                                 memory_order_acq_rel, memory_order_relaxed)) {
        return;
    }
    _Atomic uint64_t *words = slot + OWN_WORDS;
    atomic_store_explicit(&slot[SIZES], sizes_of(key_words, value_words), memory_order_release);
    for (uint32_t i = 0; i < key_words; ++i) {
        atomic_store_explicit(&words[i], key[i], memory_order_release);
    }
    for (uint32_t i = 0; i < value_words; ++i) {
        atomic_store_explicit(&words[key_words + i], value[i], memory_order_release);
    }
    atomic_store_explicit(&slot[VERSION], version + 2, memory_order_release);
}
