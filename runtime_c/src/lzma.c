/* lzma.c: decode a raw LZMA stream (lc 3, lp 0, pb 2) that ends with its marker.
 *
 * The whole output is the dictionary, so there is no window to keep: a match copies from what was
 * written before. Every symbol writes a byte or ends the stream, and input that is cut short reads as
 * zeros until the symbol is over: time and memory are bounded by the sizes that the caller gives.
 * Source: Igor Pavlov, "LZMA specification", 2015.
 */
#include "lzma.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    LITERAL_CONTEXT_BITS = 3,
    POSITION_STATES = 4,
    STATES = 12,
    FIRST_STATE_AFTER_MATCH = 7, /* below it the last symbol was a literal */
    MIN_MATCH_BYTES = 2,
    LENGTH_STATES = 4,
    SLOT_BITS = 6,
    FIRST_DIRECT_SLOT = 14, /* distances of this slot and above have bits of no model */
    ALIGN_BITS = 4,
    NEAR_DISTANCES = 115,
    PROBABILITY_BITS = 11,
    ADAPTION_SHIFT = 5,
    HEAD_BYTES = 5,
};

static const uint32_t end_of_stream = UINT32_MAX;
static const uint32_t least_range = UINT32_C(1) << 24;

typedef uint16_t probability;

struct length_model {
    probability is_not_low, is_high;
    probability low[POSITION_STATES][1 << 3], middle[POSITION_STATES][1 << 3], high[1 << 8];
};

struct model {
    probability is_match[STATES][POSITION_STATES], is_repeated[STATES], is_not_first[STATES],
        is_long[STATES][POSITION_STATES], is_not_second[STATES], is_fourth[STATES];
    probability slot[LENGTH_STATES][1 << SLOT_BITS], near[NEAR_DISTANCES], align[1 << ALIGN_BITS];
    struct length_model length, repeated_length;
    probability literal[1 << LITERAL_CONTEXT_BITS][3 << 8];
};

struct decoder {
    const unsigned char *at, *end;
    uint32_t range, code;
    bool is_cut; /* the input ended too early */
    struct model model;
};

/* ---- bits ------------------------------------------------------------------------------------ */

static void refill(struct decoder *decoder) {
    if (decoder->range < least_range) {
        unsigned next = 0;
        if (decoder->at < decoder->end) {
            next = *decoder->at++;
        } else {
            decoder->is_cut = true;
        }
        decoder->range <<= 8;
        decoder->code = decoder->code << 8 | next;
    }
}

static unsigned decode_bit(struct decoder *decoder, probability *zero) {
    refill(decoder);
    const uint32_t bound = (decoder->range >> PROBABILITY_BITS) * *zero;
    if (decoder->code < bound) {
        decoder->range = bound;
        *zero = (probability)(*zero + (((1u << PROBABILITY_BITS) - *zero) >> ADAPTION_SHIFT));
        return 0;
    }
    decoder->range -= bound;
    decoder->code -= bound;
    *zero = (probability)(*zero - (*zero >> ADAPTION_SHIFT));
    return 1;
}

static uint32_t decode_direct(struct decoder *decoder, unsigned count) {
    uint32_t value = 0;
    for (; count > 0; --count) {
        refill(decoder);
        decoder->range >>= 1;
        const bool is_one = decoder->code >= decoder->range;
        decoder->code -= is_one ? decoder->range : 0;
        value = value << 1 | is_one;
    }
    return value;
}

/* Decode bits from the highest to the lowest: a walk down a tree of 2^count leaves, whose root is 1. */
static unsigned decode_tree(struct decoder *decoder, probability *tree, unsigned count) {
    unsigned node = 1;
    for (unsigned i = 0; i < count; ++i) {
        node = node << 1 | decode_bit(decoder, &tree[node]);
    }
    return node - (1u << count);
}

/* The same from the lowest bit to the highest, without the unused root's place: nodes begin at 0. */
static unsigned decode_reverse(struct decoder *decoder, probability *tree, unsigned count) {
    unsigned node = 1;
    unsigned value = 0;
    for (unsigned i = 0; i < count; ++i) {
        const unsigned bit = decode_bit(decoder, &tree[node - 1]);
        node = node << 1 | bit;
        value |= bit << i;
    }
    return value;
}

/* ---- symbols --------------------------------------------------------------------------------- */

static unsigned char decode_literal(struct decoder *decoder, unsigned state, unsigned before,
                                    unsigned matched) {
    probability *model = decoder->model.literal[before >> (8 - LITERAL_CONTEXT_BITS)];
    unsigned node = 1;
    if (state >= FIRST_STATE_AFTER_MATCH) { /* the byte that a match would go on with is a hint */
        unsigned bit = 0;
        unsigned hint = 0;
        do {
            hint = matched >> 7 & 1;
            matched <<= 1;
            bit = decode_bit(decoder, &model[((1 + hint) << 8) + node]);
            node = node << 1 | bit;
        } while (bit == hint && node < 1u << 8);
    }
    while (node < 1u << 8) {
        node = node << 1 | decode_bit(decoder, &model[node]);
    }
    return (unsigned char)node;
}

static unsigned decode_length(struct decoder *decoder, struct length_model *model,
                              unsigned position) {
    if (decode_bit(decoder, &model->is_not_low) == 0) {
        return decode_tree(decoder, model->low[position], 3);
    }
    if (decode_bit(decoder, &model->is_high) == 0) {
        return 8 + decode_tree(decoder, model->middle[position], 3);
    }
    return 16 + decode_tree(decoder, model->high, 8);
}

static uint32_t decode_distance(struct decoder *decoder, unsigned length) {
    struct model *model = &decoder->model;
    const unsigned kind = length < LENGTH_STATES ? length : LENGTH_STATES - 1;
    const unsigned slot = decode_tree(decoder, model->slot[kind], SLOT_BITS);
    if (slot < 4) {
        return slot;
    }
    const unsigned count = (slot >> 1) - 1;
    const uint32_t base = (uint32_t)(2 | (slot & 1)) << count;
    if (slot < FIRST_DIRECT_SLOT) {
        return base + decode_reverse(decoder, &model->near[base - slot], count);
    }
    const uint32_t direct = decode_direct(decoder, count - ALIGN_BITS) << ALIGN_BITS;
    return base + direct + decode_reverse(decoder, model->align, ALIGN_BITS);
}

/* Decode a match: its size, and its distance at the front of the last four; 0 ends the stream. */
static size_t decode_match(struct decoder *decoder, unsigned *state, unsigned position,
                           uint32_t distances[4]) {
    struct model *model = &decoder->model;
    const unsigned before = *state;
    const bool was_literal = before < FIRST_STATE_AFTER_MATCH;
    if (decode_bit(decoder, &model->is_repeated[before]) == 0) {
        const unsigned length = decode_length(decoder, &model->length, position);
        memmove(&distances[1], &distances[0], 3 * sizeof distances[0]);
        distances[0] = decode_distance(decoder, length);
        *state = was_literal ? 7 : 10;
        return distances[0] == end_of_stream ? 0 : MIN_MATCH_BYTES + length;
    }
    if (decode_bit(decoder, &model->is_not_first[before]) == 0) {
        if (decode_bit(decoder, &model->is_long[before][position]) == 0) {
            *state = was_literal ? 9 : 11;
            return 1;
        }
    } else {
        unsigned which = 1;
        if (decode_bit(decoder, &model->is_not_second[before]) != 0) {
            which = 2 + decode_bit(decoder, &model->is_fourth[before]);
        }
        const uint32_t distance = distances[which];
        memmove(&distances[1], &distances[0], which * sizeof distances[0]);
        distances[0] = distance;
    }
    *state = was_literal ? 8 : 11;
    return MIN_MATCH_BYTES + decode_length(decoder, &model->repeated_length, position);
}

static void copy_match(unsigned char *target, size_t distance, size_t size_bytes) {
    if (distance >= size_bytes) {
        memcpy(target, target - distance, size_bytes);
        return;
    }
    for (size_t i = 0; i < size_bytes; ++i) {
        target[i] = target[i - distance];
    }
}

static unsigned state_after_literal(unsigned state) {
    return state < 4 ? 0 : state < 10 ? state - 3 : state - 6;
}

/* ---- streams --------------------------------------------------------------------------------- */

static bool begin(struct decoder *decoder, const unsigned char *source, size_t source_bytes) {
    if (source_bytes < HEAD_BYTES || source[0] != 0) {
        return false;
    }
    decoder->at = source + HEAD_BYTES;
    decoder->end = source + source_bytes;
    decoder->range = UINT32_MAX;
    decoder->code = 0;
    for (unsigned i = 1; i < HEAD_BYTES; ++i) {
        decoder->code = decoder->code << 8 | source[i];
    }
    decoder->is_cut = false;
    probability *all = (probability *)&decoder->model;
    for (size_t i = 0; i < sizeof decoder->model / sizeof *all; ++i) {
        all[i] = 1 << (PROBABILITY_BITS - 1);
    }
    return true;
}

/* The marker must be the last of the input, and of the size that was promised. */
static bool is_whole(struct decoder *decoder, size_t left_bytes) {
    refill(decoder);
    return left_bytes == 0 && !decoder->is_cut && decoder->at == decoder->end && decoder->code == 0;
}

bool aotci_lzma_decode(const unsigned char *source, size_t source_bytes, unsigned char *target,
                       size_t target_bytes) {
    struct decoder decoder;
    struct model *model = &decoder.model;
    uint32_t distances[4] = {0, 0, 0, 0};
    unsigned state = 0;
    size_t done = 0;
    if (!begin(&decoder, source, source_bytes)) {
        return false;
    }
    while (!decoder.is_cut) {
        const unsigned position = done % POSITION_STATES;
        if (decode_bit(&decoder, &model->is_match[state][position]) == 0) {
            if (done == target_bytes) {
                return false;
            }
            /* After a match its distance, which is one less than how far back it was, is known to fit. */
            const bool is_after_match = state >= FIRST_STATE_AFTER_MATCH;
            const unsigned matched = is_after_match ? target[done - distances[0] - 1] : 0;
            const unsigned before = done == 0 ? 0 : target[done - 1];
            target[done++] = decode_literal(&decoder, state, before, matched);
            state = state_after_literal(state);
            continue;
        }
        const size_t size_bytes = decode_match(&decoder, &state, position, distances);
        if (size_bytes == 0) {
            return is_whole(&decoder, target_bytes - done);
        }
        if (distances[0] >= done || size_bytes > target_bytes - done) {
            return false;
        }
        copy_match(target + done, (size_t)distances[0] + 1, size_bytes);
        done += size_bytes;
    }
    return false;
}
