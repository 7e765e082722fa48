/* archive.c: open an archive from a file or from memory, and let it go again.
 *
 * The file is read whole into memory of our own, and what was verified is that copy: replacing or
 * cutting the file afterwards has no effect. The order of the checks is docs/reference/archive-format.md,
 * section 1; sizes are checked before memory is asked for.
 */
#define _GNU_SOURCE /* O_CLOEXEC under -std=c11 */
#include "archive.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guard.h"
#include "load.h"
#include "sha256.h"
#include "tensor_map.h"
#include "validate.h"

static const unsigned char magic[8] = {'A', 'O', 'T', 'C', '\r', '\n', 0x1A, '\n'};
static const char damaged[] = "the archive is damaged: copy or build it again";

/* ---- the header ----------------------------------------------------------------------------- */

static aotc_status bad_header(const char *file, aotc_error *error, const char *field,
                              const char *expected, uint64_t got) {
    return AOTCI_FAIL(error, AOTC_ERROR_FORMAT, .file = file, .field = field, .expected = expected,
                      .got = aotci_text("%" PRIu64, got).chars, .remedy = damaged);
}

/* Check the first bytes of an archive of `size_bytes`, all but its checksum; at least 128 are there
 * unless `size_bytes` is less. */
static aotc_status check_header(const char *file, const unsigned char *data, uint64_t size_bytes,
                                struct header_record *header, aotc_error *error) {
    if (size_bytes < HEADER_BYTES || memcmp(data, magic, sizeof magic) != 0) {
        return AOTCI_FAIL(error, AOTC_ERROR_FORMAT, .file = file, .field = "header",
                          .expected = "an archive",
                          .got = size_bytes < HEADER_BYTES ? "fewer bytes than its header has"
                                                           : "a file of another kind",
                          .remedy = "check the path; archives end in .aotc");
    }
    memcpy(header, data, sizeof *header);
    if (header->major != FORMAT_MAJOR) {
        return AOTCI_FAIL(error, AOTC_ERROR_VERSION, .file = file, .field = "format version",
                          .expected = aotci_text("%d.x", FORMAT_MAJOR).chars,
                          .got = aotci_text("%u.%u", header->major, header->minor).chars,
                          .remedy = "use matching versions of aotc to build and to load");
    }
    const uint64_t unknown = header->required_features & ~(uint64_t)KNOWN_FEATURES;
    if (unknown != 0) {
        return AOTCI_FAIL(error, AOTC_ERROR_VERSION, .file = file, .field = "required features",
                          .expected = aotci_text("bits of %#x", (unsigned)KNOWN_FEATURES).chars,
                          .got = aotci_text("also %#" PRIx64, unknown).chars,
                          .remedy = "load it with a newer aotc");
    }
    if (header->header_bytes != HEADER_BYTES) {
        return bad_header(file, error, "header_bytes", "128", header->header_bytes);
    }
    if (header->index_offset != HEADER_BYTES) {
        return bad_header(file, error, "index_offset", "128", header->index_offset);
    }
    if (header->minor <= FORMAT_MINOR && header->optional_features != 0) {
        return bad_header(file, error, "optional_features", "0", header->optional_features);
    }
    for (size_t i = 0; i < sizeof header->zero; ++i) {
        if (header->zero[i] != 0) {
            return bad_header(file, error, "header, last bytes", "zeros", header->zero[i]);
        }
    }
    if (header->index_bytes > LIMIT_INDEX_BYTES || header->file_bytes > LIMIT_FILE_BYTES) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_LIMIT, .file = file, .field = "index_bytes, file_bytes",
            .expected = "at most 16 MiB and 4 GiB",
            .got = aotci_text("%" PRIu64 " and %" PRIu64, header->index_bytes, header->file_bytes)
                       .chars,
            .remedy = damaged);
    }
    if (header->file_bytes != size_bytes) {
        return bad_header(file, error, "file size",
                          aotci_text("%" PRIu64, header->file_bytes).chars, size_bytes);
    }
    if (header->index_bytes % 8 != 0 || header->index_bytes > size_bytes - HEADER_BYTES) {
        return bad_header(file, error, "index_bytes", "a multiple of 8 inside the file",
                          header->index_bytes);
    }
    return AOTC_OK;
}

static aotc_status check_index_sum(const struct aotc_archive *archive, aotc_error *error) {
    struct header_record header;
    unsigned char digest[AOTCI_SHA256_BYTES];
    struct aotci_sha256 hash;
    memcpy(&header, archive->index, sizeof header);
    memset(header.index_sha256, 0, sizeof header.index_sha256);
    aotci_sha256_begin(&hash);
    aotci_sha256_update(&hash, &header, sizeof header);
    aotci_sha256_update(&hash, archive->index + HEADER_BYTES, archive->index_bytes - HEADER_BYTES);
    aotci_sha256_end(&hash, digest);
    const struct header_record *stored = (const void *)archive->index;
    if (memcmp(digest, stored->index_sha256, sizeof digest) != 0) {
        return AOTCI_FAIL(error, AOTC_ERROR_CHECKSUM, .file = archive->name,
                          .field = "header and index", .expected = "the bytes that were written",
                          .got = "others", .remedy = damaged);
    }
    return AOTC_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static aotc_status no_memory(const char *file, aotc_error *error, const char *what) {
    return AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = file, .field = what, .expected = "memory",
                      .got = "none");
}

static char *copy_string(const aotc_allocator *allocator, const char *string) {
    char *copy = aotci_allocate(allocator, strlen(string) + 1, 1);
    if (copy != NULL) {
        memcpy(copy, string, strlen(string) + 1);
    }
    return copy;
}

static void free_string(const aotc_allocator *allocator, char *string) {
    if (string != NULL) {
        aotci_deallocate(allocator, string, strlen(string) + 1, 1);
    }
}

static void destroy(struct aotc_archive *archive) {
    const aotc_allocator allocator = archive->allocator;
    aotci_unload(archive);
    (void)pthread_mutex_destroy(&archive->lock);
    aotci_memo_free(&archive->maps, &allocator);
    aotci_deallocate(&allocator, archive->guards, aotci_count(archive, SECTION_GUARDS),
                     sizeof *archive->guards);
    if (archive->first_tests != NULL) {
        const size_t expression_count = aotci_count(archive, SECTION_EXPRESSIONS);
        aotci_deallocate(&allocator, archive->tests, archive->first_tests[expression_count],
                         sizeof *archive->tests);
        aotci_deallocate(&allocator, archive->first_tests, expression_count + 1,
                         sizeof *archive->first_tests);
    }
    aotci_deallocate(&allocator, archive->kernels, aotci_count(archive, SECTION_KERNELS),
                     sizeof *archive->kernels);
    aotci_deallocate(&allocator, archive->index, archive->index_bytes, 1);
    aotci_deallocate(&allocator, archive->owned_file, (size_t)archive->file_bytes, 1);
    free_string(&allocator, archive->driver_path);
    free_string(&allocator, archive->name);
    aotci_deallocate(&allocator, archive, 1, sizeof *archive);
}

/* The expressions that are comparisons, in the form in which launches read them. A test takes at
 * least six bytes of code, so the memory is bounded by the size of the index. */
static aotc_status make_tests(struct aotc_archive *archive, aotc_error *error) {
    const uint32_t count = aotci_count(archive, SECTION_EXPRESSIONS);
    archive->first_tests =
        aotci_allocate(&archive->allocator, (size_t)count + 1, sizeof *archive->first_tests);
    if (archive->first_tests == NULL) {
        return no_memory(archive->name, error, "expressions");
    }
    uint32_t *first = archive->first_tests;
    for (uint32_t i = 0; i < count; ++i) {
        first[i + 1] = first[i] + aotci_guard_compile(archive, aotci_expression(archive, i), NULL);
    }
    archive->tests = aotci_allocate(&archive->allocator, first[count], sizeof *archive->tests);
    if (archive->tests == NULL) {
        return no_memory(archive->name, error, "expressions");
    }
    for (uint32_t i = 0; i < count; ++i) {
        if (first[i + 1] != first[i]) {
            (void)aotci_guard_compile(archive, aotci_expression(archive, i),
                                      archive->tests + first[i]);
        }
    }
    return AOTC_OK;
}

/* Kernels and guards in the form in which launches read them. */
static aotc_status make_kernels(struct aotc_archive *archive, aotc_error *error) {
    const uint32_t kernel_count = aotci_count(archive, SECTION_KERNELS);
    const uint32_t guard_count = aotci_count(archive, SECTION_GUARDS);
    archive->kernels = aotci_allocate(&archive->allocator, kernel_count, sizeof *archive->kernels);
    archive->guards = aotci_allocate(&archive->allocator, guard_count, sizeof *archive->guards);
    if (archive->kernels == NULL || archive->guards == NULL) {
        return no_memory(archive->name, error, "kernels");
    }
    if (aotci_count(archive, SECTION_TENSOR_MAPS) != 0 &&
        !aotci_memo_make(&archive->maps, MAP_CACHE_BITS, MAP_ENTRY_WORDS, &archive->allocator)) {
        return no_memory(archive->name, error, "tensor maps");
    }
    for (uint32_t i = 0; i < guard_count; ++i) {
        archive->guards[i] = aotci_guard_of(archive, aotci_guard(archive, i)->expression);
    }
    for (uint32_t i = 0; i < kernel_count; ++i) {
        const struct kernel_record *record = aotci_kernel_record(archive, i);
        archive->kernels[i] = (struct aotc_kernel){
            .archive = archive,
            .record = record,
            .index = i,
            .name = aotci_string(archive, record->name),
            .guards = archive->guards + record->first_guard,
        };
    }
    return AOTC_OK;
}

/* Make room for header and index, whose sizes were checked. */
static aotc_status make_index(struct aotc_archive *archive, const struct header_record *header,
                              aotc_error *error) {
    const uint32_t index_bytes = (uint32_t)(HEADER_BYTES + header->index_bytes);
    archive->index = aotci_allocate(&archive->allocator, index_bytes, 1);
    if (archive->index == NULL) {
        return no_memory(archive->name, error, "index");
    }
    archive->index_bytes = index_bytes;
    return AOTC_OK;
}

/* Take header and index out of an archive whose bytes are at `archive->file`. */
static aotc_status copy_index(struct aotc_archive *archive, aotc_error *error) {
    struct header_record header;
    aotc_status status =
        check_header(archive->name, archive->file, archive->file_bytes, &header, error);
    if (status == AOTC_OK) {
        status = make_index(archive, &header, error);
    }
    if (status != AOTC_OK) {
        return status;
    }
    memcpy(archive->index, archive->file, archive->index_bytes);
    return check_index_sum(archive, error);
}

/* Check an archive whose bytes are at `archive->file`, and whose index is what was written. */
static aotc_status check_contents(struct aotc_archive *archive, uint32_t flags, aotc_error *error) {
    aotc_status status = aotci_validate_directory(archive, error);
    if (status == AOTC_OK) {
        status = aotci_validate_records(archive, error);
    }
    if (status == AOTC_OK && (flags & AOTC_OPEN_REQUIRE_SIGNATURE) != 0) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_SIGNATURE, .file = archive->name, .field = "signature",
            .expected = "a signed archive", .got = "none: format 1.0 has no signatures",
            .remedy = "verify the file before opening it, and drop AOTC_OPEN_REQUIRE_SIGNATURE");
    }
    for (uint32_t i = 0; status == AOTC_OK && (flags & AOTC_OPEN_VERIFY_BLOBS) != 0 &&
                         i < aotci_count(archive, SECTION_BLOBS);
         ++i) {
        if (aotci_blob(archive, i)->start == 0) { /* else it is in a frame that was verified */
            status = aotci_blob_verify(archive, i, error);
        }
    }
    status = status == AOTC_OK ? make_tests(archive, error) : status;
    return status == AOTC_OK ? make_kernels(archive, error) : status;
}

/* Make an archive without contents, from options that may be NULL. */
static aotc_status create(const char *name, const aotc_open_options *given,
                          struct aotc_archive **created, uint32_t *flags, aotc_error *error) {
    const aotc_open_options defaults = AOTC_OPEN_OPTIONS_INIT;
    const aotc_open_options *options = given == NULL ? &defaults : given;
    const uint32_t known_flags =
        AOTC_OPEN_COPY | AOTC_OPEN_REQUIRE_SIGNATURE | AOTC_OPEN_VERIFY_BLOBS;
    if (!aotci_is_struct(options, options->struct_size, sizeof *options) ||
        (options->flags & ~known_flags) != 0 ||
        (options->allocator.allocate == NULL) != (options->allocator.deallocate == NULL)) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_ARG, .file = name, .field = "aotc_open_options",
            .expected = "AOTC_OPEN_OPTIONS_INIT, known flags, both allocator functions or none",
            .got = "something else");
    }
    struct aotc_archive *archive = aotci_allocate(&options->allocator, 1, sizeof *archive);
    if (archive == NULL) {
        return no_memory(name, error, "archive");
    }
    archive->allocator = options->allocator;
    atomic_init(&archive->references, 1);
    atomic_init(&archive->contexts, NULL);
    (void)pthread_mutex_init(&archive->lock, NULL);
    archive->decompress =
        options->decompress == NULL ? aotci_default_decompress() : options->decompress;
    archive->decompress_user = options->decompress_user;
    archive->name = copy_string(&archive->allocator, name);
    if (options->driver_path != NULL) {
        archive->driver_path = copy_string(&archive->allocator, options->driver_path);
    }
    if (archive->name == NULL || (options->driver_path != NULL && archive->driver_path == NULL)) {
        destroy(archive);
        return no_memory(name, error, "archive");
    }
    *flags = options->flags;
    *created = archive;
    return AOTC_OK;
}

/* Hand an archive out if all went well. */
static aotc_status finish(struct aotc_archive *archive, aotc_status status, aotc_archive **out) {
    if (status == AOTC_OK) {
        *out = archive;
    } else {
        destroy(archive);
    }
    return status;
}

static aotc_status io_error(const char *path, aotc_error *error, const char *field, int number,
                            const char *got) {
    return AOTCI_FAIL(error, AOTC_ERROR_IO, .file = path, .field = field,
                      .expected = "a file that can be read",
                      .got = got == NULL ? strerror(number) : got, .os_error = number,
                      .remedy = "check the path and its permissions");
}

/* Read up to `size_bytes` from the start; fewer only at the end of the file. -1 with errno. */
static int64_t read_bytes(int descriptor, unsigned char *target, uint64_t size_bytes) {
    uint64_t done = 0;
    while (done < size_bytes) {
        const ssize_t count =
            pread(descriptor, target + done, (size_t)(size_bytes - done), (off_t)done);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            return -1;
        }
        if (count == 0) {
            break;
        }
        done += (uint64_t)count;
    }
    return (int64_t)done;
}

/* Read the first `size_bytes`, which were there when the file's size was asked for. */
static aotc_status read_all(const struct aotc_archive *archive, int descriptor,
                            unsigned char *target, uint64_t size_bytes, aotc_error *error) {
    const int64_t got_bytes = read_bytes(descriptor, target, size_bytes);
    if (got_bytes < 0) {
        return io_error(archive->name, error, "read", errno, NULL);
    }
    if ((uint64_t)got_bytes != size_bytes) {
        return io_error(archive->name, error, "read", EIO,
                        "a file that became shorter while it was read");
    }
    return AOTC_OK;
}

static aotc_status read_file(struct aotc_archive *archive, int descriptor, aotc_error *error) {
    struct stat information;
    if (fstat(descriptor, &information) != 0) {
        return io_error(archive->name, error, "fstat", errno, NULL);
    }
    if (!S_ISREG(information.st_mode)) {
        return io_error(archive->name, error, "file",
                        S_ISDIR(information.st_mode) ? EISDIR : EINVAL,
                        S_ISDIR(information.st_mode) ? "a directory" : "not a regular file");
    }
    /* Header and index first: what they say is checked before memory for the rest is asked for. */
    unsigned char head[HEADER_BYTES] = {0};
    struct header_record header;
    const uint64_t size_bytes = (uint64_t)information.st_size;
    const int64_t head_bytes = read_bytes(descriptor, head, sizeof head);
    if (head_bytes < 0) {
        return io_error(archive->name, error, "read", errno, NULL);
    }
    const uint64_t seen_bytes = head_bytes < HEADER_BYTES ? (uint64_t)head_bytes : size_bytes;
    aotc_status status = check_header(archive->name, head, seen_bytes, &header, error);
    if (status == AOTC_OK) {
        status = make_index(archive, &header, error);
    }
    if (status == AOTC_OK) {
        status = read_all(archive, descriptor, archive->index, archive->index_bytes, error);
    }
    if (status == AOTC_OK) {
        memcpy(archive->index, head, sizeof head); /* the one that was checked */
        status = check_index_sum(archive, error);
    }
    if (status != AOTC_OK) {
        return status;
    }
    archive->owned_file = aotci_allocate(&archive->allocator, (size_t)size_bytes, 1);
    if (archive->owned_file == NULL) {
        return no_memory(archive->name, error, "file");
    }
    archive->file = archive->owned_file;
    archive->file_bytes = size_bytes;
    return read_all(archive, descriptor, archive->owned_file, size_bytes, error);
}

aotc_status aotc_open_file(const char *path, const aotc_open_options *options,
                           aotc_archive **archive, aotc_error *error) {
    if (archive != NULL) {
        *archive = NULL;
    }
    if (path == NULL || archive == NULL) {
        return AOTCI_FAIL(error, AOTC_ERROR_ARG, .field = "aotc_open_file",
                          .expected = "a path and a result", .got = "NULL");
    }
    struct aotc_archive *created = NULL;
    uint32_t flags = 0;
    aotc_status status = create(path, options, &created, &flags, error);
    if (status != AOTC_OK) {
        return status;
    }
    /* O_NONBLOCK: opening a FIFO must not wait for a writer. */
    int descriptor = -1;
    do {
        descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0) {
        status = io_error(path, error, "open", errno, NULL);
        return finish(created, status, archive);
    }
    status = read_file(created, descriptor, error);
    (void)close(descriptor);
    if (status == AOTC_OK) {
        status = check_contents(created, flags, error);
    }
    return finish(created, status, archive);
}

aotc_status aotc_open_memory(const void *data, size_t size_bytes, const aotc_open_options *options,
                             aotc_archive **archive, aotc_error *error) {
    if (archive != NULL) {
        *archive = NULL;
    }
    if (data == NULL || archive == NULL) {
        return AOTCI_FAIL(error, AOTC_ERROR_ARG, .field = "aotc_open_memory",
                          .expected = "bytes and a result", .got = "NULL");
    }
    struct aotc_archive *created = NULL;
    uint32_t flags = 0;
    aotc_status status = create("memory", options, &created, &flags, error);
    if (status != AOTC_OK) {
        return status;
    }
    created->file = data;
    if ((flags & AOTC_OPEN_COPY) != 0) {
        struct header_record header;
        status = check_header(created->name, data, size_bytes, &header, error);
        if (status == AOTC_OK) {
            created->owned_file = aotci_allocate(&created->allocator, size_bytes, 1);
            status =
                created->owned_file == NULL ? no_memory(created->name, error, "copy") : AOTC_OK;
        }
        if (status == AOTC_OK) {
            created->file = memcpy(created->owned_file, data, size_bytes);
        }
    }
    created->file_bytes = size_bytes;
    status = status == AOTC_OK ? copy_index(created, error) : status;
    if (status == AOTC_OK) {
        status = check_contents(created, flags, error);
    }
    return finish(created, status, archive);
}

void aotc_retain(aotc_archive *archive) {
    if (archive != NULL) {
        (void)atomic_fetch_add_explicit(&archive->references, 1, memory_order_relaxed);
    }
}

void aotc_release(aotc_archive *archive) {
    if (archive != NULL &&
        atomic_fetch_sub_explicit(&archive->references, 1, memory_order_acq_rel) == 1) {
        destroy(archive);
    }
}
