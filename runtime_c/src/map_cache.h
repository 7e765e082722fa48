/* map_cache.h: encoded tensor maps, kept by what they were encoded from. */
#ifndef AOTCI_MAP_CACHE_H
#define AOTCI_MAP_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"

enum { MAP_CACHE_BITS = 10, MAP_CACHE_SLOTS = 1 << MAP_CACHE_BITS, MAP_KEY_WORDS = 11 };

/* All that a map depends on: which record, address, sizes and strides. Words that are not used are
 * zero. */
struct aotci_map_key {
    uint64_t words[MAP_KEY_WORDS];
};

struct aotci_map_slot;

size_t aotci_map_slot_bytes(void);

/* Copy the map of a key out of `slots`, MAP_CACHE_SLOTS of them; false if it is not there, and then
 * `map` may hold anything. */
bool aotci_map_find(struct aotci_map_slot *slots, const struct aotci_map_key *key,
                    CUtensorMap *map);

/* Keep a map, in place of another if need be. While somebody else writes there it is not kept. */
void aotci_map_keep(struct aotci_map_slot *slots, const struct aotci_map_key *key,
                    const CUtensorMap *map);

#endif
