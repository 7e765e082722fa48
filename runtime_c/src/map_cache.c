/* map_cache.c: encoded tensor maps, kept by what they were encoded from.
 *
 * Encoding a map costs the driver some 80 ns, and a server launches with the same weights again and
 * again. A slot is a sequence lock: its version is odd while it is written, and a reader that sees
 * another version after reading than before has read nothing. So launches never wait for each
 * other; whoever finds a slot taken encodes anew.
 *
 * Every word is atomic: readers and writers do meet. Acquiring loads keep the second look at the
 * version behind the words, releasing stores keep the words behind the first change of it.
 */
#include "map_cache.h"

#include <stdatomic.h>

enum { MAP_WORDS = sizeof(CUtensorMap) / sizeof(uint64_t) };

struct aotci_map_slot {
    atomic_uint version; /* 0 if empty */
    _Atomic uint64_t key[MAP_KEY_WORDS];
    _Atomic uint64_t map[MAP_WORDS];
};

size_t aotci_map_slot_bytes(void) { return sizeof(struct aotci_map_slot); }

static struct aotci_map_slot *slot_of(struct aotci_map_slot *slots,
                                      const struct aotci_map_key *key) {
    /* A sum of products, which a processor computes side by side; their high bits are the mixed
     * ones. */
    uint64_t hash = 0;
    uint64_t factor = UINT64_C(0x9E3779B97F4A7C15);
    for (unsigned i = 0; i < MAP_KEY_WORDS; ++i) {
        hash += key->words[i] * factor;
        factor += UINT64_C(0xD1342543DE82EF94);
    }
    return &slots[hash >> (64 - MAP_CACHE_BITS)];
}

bool aotci_map_find(struct aotci_map_slot *slots, const struct aotci_map_key *key,
                    CUtensorMap *map) {
    struct aotci_map_slot *slot = slot_of(slots, key);
    const unsigned version = atomic_load_explicit(&slot->version, memory_order_acquire);
    if (version == 0 || version % 2 != 0) {
        return false;
    }
    for (unsigned i = 0; i < MAP_KEY_WORDS; ++i) {
        if (atomic_load_explicit(&slot->key[i], memory_order_acquire) != key->words[i]) {
            return false;
        }
    }
    for (unsigned i = 0; i < MAP_WORDS; ++i) {
        map->opaque[i] = atomic_load_explicit(&slot->map[i], memory_order_acquire);
    }
    return atomic_load_explicit(&slot->version, memory_order_relaxed) == version;
}

void aotci_map_keep(struct aotci_map_slot *slots, const struct aotci_map_key *key,
                    const CUtensorMap *map) {
    struct aotci_map_slot *slot = slot_of(slots, key);
    unsigned version = atomic_load_explicit(&slot->version, memory_order_relaxed);
    if (version % 2 != 0 ||
        !atomic_compare_exchange_strong_explicit(&slot->version, &version, version + 1,
                                                 memory_order_acq_rel, memory_order_relaxed)) {
        return;
    }
    for (unsigned i = 0; i < MAP_KEY_WORDS; ++i) {
        atomic_store_explicit(&slot->key[i], key->words[i], memory_order_release);
    }
    for (unsigned i = 0; i < MAP_WORDS; ++i) {
        atomic_store_explicit(&slot->map[i], map->opaque[i], memory_order_release);
    }
    /* An even version that is not 0, also after 2^31 changes. */
    atomic_store_explicit(&slot->version, version + 2 == 0 ? 2 : version + 2,
                          memory_order_release);
}
