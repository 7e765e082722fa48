/* test_threads.c: 64 threads launch, choose, and load kernels of one archive at once.
 *
 * Meant for the thread sanitizer. The fake driver's lock is off while launches run, so that it
 * cannot order accesses in the library's place.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "fake_cuda.h"
#include "harness.h"
#include "memo.h"

enum { THREADS = 64, ROUNDS = 2000 };

static aotc_archive *archive;
static struct CUstream_st *streams[2];
static atomic_ulong launched;
static atomic_ulong wrong;

/* Launch until the kernel is loaded and ROUNDS launches went through; every status but STATE is
 * final. */
static void *launch_many(void *argument) {
    const size_t number = (size_t)(uintptr_t)argument;
    const aotc_kernel *kernel = NULL;
    aotc_error error = AOTC_ERROR_INIT;
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    aotc_arg args[] = {aotc_pointer((void *)(uintptr_t)0x1000, AOTC_FP16),
                       aotc_pointer(NULL, AOTC_FP16), aotc_pointer(NULL, AOTC_FP16), aotc_i32(0)};
    desc.args = args;
    desc.arg_count = 4;
    desc.stream = streams[number % 2];
    if (aotc_kernel_get(archive, "add", &kernel, &error) != AOTC_OK) {
        return NULL;
    }
    for (unsigned long done = 0; done < ROUNDS;) {
        args[3] = aotc_i32((int32_t)(1 + done));
        const aotc_status status = aotc_launch(kernel, &desc, &error);
        if (status == AOTC_OK) {
            done += 1;
            (void)atomic_fetch_add_explicit(&launched, 1, memory_order_relaxed);
        } else if (status != AOTC_ERROR_STATE && status != AOTC_ERROR_ARG) {
            (void)atomic_fetch_add(&wrong, 1);
            return NULL;
        }
    }
    return NULL;
}

static void *load_both(void *argument) {
    (void)argument;
    aotc_error error = AOTC_ERROR_INIT;
    for (int32_t device = 0; device < 2; ++device) {
        aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
        options.device = device;
        if (aotc_load(archive, &options, &error) != AOTC_OK) {
            (void)atomic_fetch_add(&wrong, 1);
        }
    }
    return NULL;
}

static void test_threads(void) {
    static const struct fake_device devices[] = {{9, 0, 232448}, {9, 0, 232448}};
    struct blob_table *blobs = read_blobs("golden.aotc");
    const aotc_open_options options = fake_options(blobs);
    pthread_t threads[THREADS + 2];
    fake_cuda_reset();
    fake_cuda_set_devices(devices, 2);
    CHECK(aotc_open_file(golden_path("golden.aotc"), &options, &archive, NULL) == AOTC_OK);
    /* A load on each device first gives the primary contexts' streams; the archive under test is
     * another. */
    aotc_archive *first = archive;
    (void)load_both(NULL);
    for (int i = 0; i < 2; ++i) {
        streams[i] = fake_cuda_create_stream(fake_cuda_primary_context(i));
    }
    CHECK(aotc_open_file(golden_path("golden.aotc"), &options, &archive, NULL) == AOTC_OK);
    fake_cuda_set_recording(0);
    for (size_t i = 0; i < THREADS; ++i) {
        CHECK(pthread_create(&threads[i], NULL, launch_many, (void *)(uintptr_t)i) == 0);
    }
    for (size_t i = 0; i < 2; ++i) { /* two loads at once, while others launch already */
        CHECK(pthread_create(&threads[THREADS + i], NULL, load_both, NULL) == 0);
    }
    for (size_t i = 0; i < THREADS + 2; ++i) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(atomic_load(&wrong) == 0 && atomic_load(&launched) == (unsigned long)THREADS * ROUNDS);
    CHECK(fake_cuda_launches() == (unsigned long)THREADS * ROUNDS);
    fake_cuda_set_recording(1);
    aotc_release(archive);
    aotc_release(first);
    CHECK(fake_cuda_live_libraries() == 0 && fake_cuda_retained_contexts() == 0);
    NO_VIOLATION();
    free_blobs(blobs);
}

/* Device 1 leaves the set and comes back, again and again, while others launch on device 0. */
static void *come_and_go(void *argument) {
    (void)argument;
    aotc_error error = AOTC_ERROR_INIT;
    aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
    options.device = 1;
    for (int round = 0; round < 50; ++round) {
        if (aotc_load(archive, &options, &error) != AOTC_OK ||
            aotc_unload(archive, 1, &error) != AOTC_OK) {
            (void)atomic_fetch_add(&wrong, 1);
        }
    }
    return NULL;
}

static void test_unload(void) {
    static const struct fake_device devices[] = {{9, 0, 232448}, {9, 0, 232448}};
    struct blob_table *blobs = read_blobs("golden.aotc");
    const aotc_open_options options = fake_options(blobs);
    enum { LAUNCHERS = 8 };
    pthread_t threads[LAUNCHERS + 1];
    fake_cuda_reset();
    fake_cuda_set_devices(devices, 2);
    CHECK(aotc_open_file(golden_path("golden.aotc"), &options, &archive, NULL) == AOTC_OK);
    aotc_load_options first = AOTC_LOAD_OPTIONS_INIT;
    first.device = 0;
    CHECK(aotc_load(archive, &first, NULL) == AOTC_OK);
    streams[0] = fake_cuda_create_stream(fake_cuda_primary_context(0));
    atomic_store(&launched, 0);
    fake_cuda_set_recording(0);
    for (size_t i = 0; i < LAUNCHERS; ++i) {
        CHECK(pthread_create(&threads[i], NULL, launch_many, (void *)(uintptr_t)(2 * i)) == 0);
    }
    CHECK(pthread_create(&threads[LAUNCHERS], NULL, come_and_go, NULL) == 0);
    for (size_t i = 0; i < LAUNCHERS + 1; ++i) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(atomic_load(&wrong) == 0);
    CHECK(atomic_load(&launched) == (unsigned long)LAUNCHERS * ROUNDS);
    fake_cuda_set_recording(1);
    aotc_release(archive);
    CHECK(fake_cuda_live_libraries() == 0 && fake_cuda_retained_contexts() == 0);
    NO_VIOLATION();
    free_blobs(blobs);
}

/* ---- the cache ------------------------------------------------------------------------------- */

enum { MEMO_BITS = 8, ENTRIES = 3 << MEMO_BITS, MAX_KEY_WORDS = 4, MAX_VALUE_WORDS = 16 };

static struct aotci_memo memo;
static atomic_ulong found;

/* Look values up, store missing ones, and check that found ones are whole. Keys and values are of
 * several lengths. */
static void *look_and_keep(void *argument) {
    uint64_t state = (uintptr_t)argument + 1;
    for (int round = 0; round < 10 * ROUNDS; ++round) {
        state = state * UINT64_C(6364136223846793005) + 1;
        const uint64_t number = (state >> 33) % ENTRIES;
        const uint32_t key_words = 1 + number % MAX_KEY_WORDS;
        const uint32_t value_words = 1 + number % MAX_VALUE_WORDS;
        const uint64_t key[MAX_KEY_WORDS] = {number, 0x1000 * number, 1, 2};
        uint64_t value[MAX_VALUE_WORDS + 1];
        value[value_words] = ~number; /* nothing is written out of bounds */
        const bool is_there = aotci_memo_find(&memo, key, key_words, value, value_words);
        unsigned long bad = value[value_words] != ~number;
        for (uint32_t i = 0; is_there && i < value_words; ++i) {
            bad += value[i] != number + i;
        }
        (void)atomic_fetch_add_explicit(&found, is_there, memory_order_relaxed);
        (void)atomic_fetch_add(&wrong, bad);
        for (uint32_t i = 0; i < value_words; ++i) {
            value[i] = number + i;
        }
        if (!is_there) {
            aotci_memo_keep(&memo, key, key_words, value, value_words);
        }
    }
    return NULL;
}

static void test_memo(void) {
    enum { LOOKERS = 16 };
    const aotc_allocator allocator = {NULL, NULL, NULL};
    pthread_t threads[LOOKERS];
    CHECK(aotci_memo_make(&memo, MEMO_BITS, MAX_KEY_WORDS + MAX_VALUE_WORDS, &allocator));
    for (size_t i = 0; i < LOOKERS; ++i) {
        CHECK(pthread_create(&threads[i], NULL, look_and_keep, (void *)(uintptr_t)i) == 0);
    }
    for (size_t i = 0; i < LOOKERS; ++i) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(atomic_load(&wrong) == 0 && atomic_load(&found) != 0);
    aotci_memo_free(&memo, &allocator);
}

int main(int argc, char **argv) {
    static void (*const tests[])(void) = {test_threads, test_unload, test_memo};
    return run_tests(argc, argv, tests, 3);
}
