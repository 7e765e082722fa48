/* harness.h: shared parts of the C tests: checks, files, a decompressor from a table, a failing
 * allocator.
 *
 * A test program takes the directory of golden.py's archives and the path of the fake driver; it
 * exits with 1 if a check failed. A failed check is printed and the test goes on.
 */
#ifndef AOTC_TEST_HARNESS_H
#define AOTC_TEST_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aotc/aotc.h"

struct CUctx_st;
struct CUstream_st;

extern const char *driver_path; /* of the fake libcuda */

#define CHECK(condition) check((condition), __FILE__, __LINE__, #condition)
/* Check a status, and that the message of `error` (unless NULL) holds a text. */
#define EXPECT(call, status, error, text)                                                          \
    expect((call), (status), (error), (text), __FILE__, __LINE__, #call)

void check(bool holds, const char *file, int line, const char *text);
void expect(aotc_status got, aotc_status wanted, const aotc_error *error, const char *text,
            const char *file, int line, const char *call);

struct bytes {
    unsigned char *data;
    size_t size_bytes;
};

/* Contents of a file of the archives' directory, and its full name (in a buffer reused by the next
 * call). */
struct bytes read_golden(const char *name);
const char *golden_path(const char *name);

/* The decoded blobs beside an archive. */
struct blob_table {
    struct bytes file;
    unsigned long calls;
};

struct blob_table *read_blobs(const char *archive_name);
void free_blobs(struct blob_table *table);
/* An aotc_decompress_fn for uncompressed frames of golden.py: the indices of kernels. */
int decompress_stored(void *user, const void *source, size_t source_bytes, void *target,
                      size_t target_bytes);
/* An aotc_decompress_fn over a blob_table, which counts only frames in the table. */
int decompress_from_table(void *user, const void *source, size_t source_bytes, void *target,
                          size_t target_bytes);

/* An allocator that counts, and fails at one call. */
struct counting {
    long calls, live, live_bytes, peak_bytes;
    long fail_at; /* -1: never */
};

aotc_allocator counting_allocator(struct counting *counting);

/* Open an archive in memory, and each of its kernels, and release it; return the first status other
 * than AOTC_OK. No blob is decompressed. */
aotc_status open_bytes(const unsigned char *data, size_t size_bytes, uint32_t flags,
                       aotc_error *error);

/* Read all information on an archive's `count` kernels, and check that there is no more. */
void read_kernels(const aotc_archive *archive, uint32_t count);

/* The same for one kernel; nothing for NULL. */
void read_kernel(const aotc_kernel *kernel);

/* Check that the fake driver saw no violation. */
#define NO_VIOLATION() no_violation(__FILE__, __LINE__)
void no_violation(const char *file, int line);

/* Options for opening kernels, but not for loading them. */
aotc_open_options stored_options(void);

/* Options with the table's decompressor and the fake driver. */
aotc_open_options fake_options(struct blob_table *table);

/* Set `path` and run; for main. */
int run_tests(int argc, char **argv, void (*const *tests)(void), size_t count);

#endif
