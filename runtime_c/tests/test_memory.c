/* test_memory.c: allocations in the library's reserve and beyond it. */
#include <pthread.h>
#include <string.h>

#include "archive.h"
#include "harness.h"
#include "memory.h"

enum { PIECE_COUNT = 64, THREAD_COUNT = 4, ROUND_COUNT = 2000 };

static const aotc_allocator own = {.user = NULL};

struct piece {
    unsigned char *bytes;
    size_t size_bytes;
    unsigned char mark;
};

static bool holds(const struct piece *piece, unsigned char mark) {
    for (size_t i = 0; i < piece->size_bytes; ++i) {
        if (piece->bytes[i] != mark) {
            return false;
        }
    }
    return true;
}

static struct piece take(size_t size_bytes, unsigned char mark) {
    struct piece piece = {aotci_allocate(&own, size_bytes, 1), size_bytes, mark};
    CHECK(piece.bytes != NULL && (uintptr_t)piece.bytes % 16 == 0 && holds(&piece, 0));
    memset(piece.bytes, mark, size_bytes);
    return piece;
}

static void give(struct piece *piece) {
    CHECK(holds(piece, piece->mark));
    aotci_deallocate(&own, piece->bytes, piece->size_bytes, 1);
}

/* Allocations keep their contents, whatever others do, and are cleared on reuse. */
static void test_pieces_are_apart(void) {
    static const size_t sizes[] = {1, 16, 17, 100, 4096, 5000, RESERVE_BYTES / 2, RESERVE_BYTES, 1 << 16};
    struct piece pieces[PIECE_COUNT];
    for (size_t step = 1; step < 6; step += 2) { /* odd: every piece comes in turn */
        for (size_t i = 0; i < PIECE_COUNT; ++i) {
            pieces[i] = take(sizes[i * step % (sizeof sizes / sizeof *sizes)], (unsigned char)(i + 1));
        }
        for (size_t i = 0; i < PIECE_COUNT; ++i) {
            give(&pieces[i * step % PIECE_COUNT]);
        }
    }
}

/* Freeing an allocation with later ones in use makes no room among them. */
static void test_pieces_come_and_go(void) {
    struct piece pieces[PIECE_COUNT];
    for (size_t i = 0; i < PIECE_COUNT; ++i) {
        pieces[i] = take(1 + i * 7 % 200, (unsigned char)(i + 1));
    }
    for (size_t round = 0; round < 20 * PIECE_COUNT; ++round) {
        struct piece *piece = &pieces[round * 37 % PIECE_COUNT];
        give(piece);
        *piece = take(1 + round * 11 % 200, piece->mark);
    }
    for (size_t i = 0; i < PIECE_COUNT; ++i) {
        give(&pieces[i]);
    }
}

/* The last allocation makes room for the next, and all of them for the first. */
static void test_room_comes_back(void) {
    struct piece first = take(100, 1);
    for (size_t i = 0; i < 1000; ++i) {
        struct piece last = take(RESERVE_BYTES / 4 + i % 7, 2);
        struct piece bytes = {aotci_allocate_bytes(&own, 50), 50, 3};
        memset(bytes.bytes, 3, 50);
        give(&bytes);
        give(&last);
    }
    unsigned char *const place = first.bytes;
    give(&first);
    first = take(200, 4);
#ifndef __SANITIZE_ADDRESS__
    CHECK(first.bytes == place);
#else
    (void)place;
#endif
    give(&first);
}

static void *take_and_give(void *number) {
    const unsigned char mark = (unsigned char)(1 + *(const size_t *)number);
    for (size_t i = 0; i < ROUND_COUNT; ++i) {
        struct piece a = take(64 + i % 512, mark);
        struct piece b = take(8 << i % 8, mark);
        give(i % 3 == 0 ? &a : &b);
        give(i % 3 == 0 ? &b : &a);
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[THREAD_COUNT];
    size_t numbers[THREAD_COUNT];
    for (size_t i = 0; i < THREAD_COUNT; ++i) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, take_and_give, &numbers[i]) == 0);
    }
    for (size_t i = 0; i < THREAD_COUNT; ++i) {
        (void)pthread_join(threads[i], NULL);
    }
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {test_pieces_are_apart, test_pieces_come_and_go,
                                          test_room_comes_back, test_threads};
    return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
