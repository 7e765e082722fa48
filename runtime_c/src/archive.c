/* archive.c: open an archive from a file or from memory, and close it.
 *
 * Of a file the first bytes are read, and the file stays open. The rest is read when needed, and
 * compared with digests that lead back to the header's. Only verified memory of the library's own
 * is used, so a file changed or truncated afterwards is an error, and a replaced file has no
 * effect. The order of the checks is docs/reference/archive-format.md, section 1; sizes are checked
 * before memory is allocated.
 */
#define _GNU_SOURCE /* O_CLOEXEC under -std=c11 */
#include "archive.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "first_touch.h"
#include "load.h"

static const unsigned char magic[8] = {'A', 'O', 'T', 'C', '\r', '\n', 0x1A, '\n'};
static const char damaged[] = "the archive is damaged: copy or build it again";

/* ---- the header ----------------------------------------------------------------------------- */

static aotc_status bad_header(const char *file, aotc_error *error, const char *field,
                              const char *expected, uint64_t got) {
    return AOTCI_FAIL(error, AOTC_ERROR_FORMAT, .file = file, .field = field, .expected = expected,
                      .got = aotci_text("%" PRIu64, got).chars, .remedy = damaged);
}

/* Check the first bytes of an archive of `size_bytes`, all but its checksum. At least 128 are
 * available unless `size_bytes` is less. */
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
                          .remedy = header->major < FORMAT_MAJOR
                                        ? "build it again with the aotc that loads it"
                                        : "use matching versions of aotc to build and to load");
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
    if (header->minor <= FORMAT_MINOR && header->optional_features != 0) {
        return bad_header(file, error, "optional_features", "0", header->optional_features);
    }
    for (size_t i = 0; i < sizeof header->zero; ++i) {
        if (header->zero[i] != 0) {
            return bad_header(file, error, "header, last bytes", "zeros", header->zero[i]);
        }
    }
    if (header->root_bytes > LIMIT_INDEX_BYTES || header->file_bytes > LIMIT_FILE_BYTES) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_LIMIT, .file = file, .field = "root_bytes, file_bytes",
            .expected = "at most 16 MiB and 4 GiB",
            .got = aotci_text("%" PRIu64 " and %" PRIu64, header->root_bytes, header->file_bytes)
                       .chars,
            .remedy = damaged);
    }
    if (header->file_bytes != size_bytes) {
        return bad_header(file, error, "file size",
                          aotci_text("%" PRIu64, header->file_bytes).chars, size_bytes);
    }
    const uint64_t digest_bytes = aotci_digest_bytes(header->root_bytes);
    const uint64_t seal_bytes = aotci_digest_bytes(digest_bytes);
    if (header->root_bytes % 8 != 0 ||
        header->root_bytes + digest_bytes + seal_bytes > size_bytes - HEADER_BYTES) {
        return bad_header(file, error, "root_bytes", "a multiple of 8 inside the file",
                          header->root_bytes);
    }
    if (header->root_offset != HEADER_BYTES + seal_bytes) {
        return bad_header(file, error, "root_offset", "the end of the seals", header->root_offset);
    }
    return AOTC_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static aotc_status no_memory(const char *file, aotc_error *error, const char *what) {
    return AOTCI_FAIL(error, AOTC_ERROR_NOMEM, .file = file, .field = what, .expected = "memory",
                      .got = "none");
}

static size_t text_bytes(const char *string) { return string == NULL ? 0 : strlen(string) + 1; }

/* An archive, its name and the driver's path are one piece of memory. */
static size_t archive_bytes(const char *name, const char *driver_path) {
    return sizeof(struct aotc_archive) + text_bytes(name) + text_bytes(driver_path);
}

static void destroy(struct aotc_archive *archive) {
    const aotc_allocator allocator = archive->allocator;
    const uint32_t kernel_count = aotci_count(&archive->root, SECTION_ENTRIES);
    aotci_unload(archive);
    aotci_frame_drop(archive);
    aotci_free_decoder(archive);
    (void)pthread_mutex_destroy(&archive->lock);
    (void)pthread_mutex_destroy(&archive->index_lock);
    aotci_memo_free(&archive->maps, &allocator);
    for (uint32_t i = 0; archive->kernels != NULL && i < kernel_count; ++i) {
        if (aotci_kernel(archive, i) != NULL) {
            aotci_kernel_close(aotci_kernel(archive, i));
        }
    }
    aotci_deallocate(&allocator, archive->kernels, kernel_count, sizeof *archive->kernels);
    aotci_root_close(archive);
    aotci_deallocate(&allocator, archive->owned_file, (size_t)archive->file_bytes, 1);
    if (archive->is_mapped) {
        (void)munmap((void *)(uintptr_t)archive->file, (size_t)archive->file_bytes);
    }
    if (archive->descriptor >= 0) {
        (void)close(archive->descriptor);
    }
    aotci_deallocate(&allocator, archive, archive_bytes(archive->name, archive->driver_path), 1);
}

/* Make room for kernels, all unopened. */
static aotc_status make_kernels(struct aotc_archive *archive, aotc_error *error) {
    const uint32_t kernel_count = aotci_count(&archive->root, SECTION_ENTRIES);
    archive->kernels = aotci_allocate(&archive->allocator, kernel_count, sizeof *archive->kernels);
    return archive->kernels == NULL ? no_memory(archive->name, error, "kernels") : AOTC_OK;
}

/* Read and check the root and, if requested, all the rest. */
static aotc_status check_contents(struct aotc_archive *archive, const struct header_record *header,
                                  const struct aotci_start *first, uint32_t flags,
                                  aotc_error *error) {
    aotc_status status =
        aotci_root_open(archive, header, first, (flags & AOTC_OPEN_VERIFY_BLOBS) != 0, error);
    if (status == AOTC_OK && (flags & AOTC_OPEN_REQUIRE_SIGNATURE) != 0) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_SIGNATURE, .file = archive->name, .field = "signature",
            .expected = "a signed archive", .got = "none: format 9.0 has no signatures",
            .remedy = "verify the file before opening it, and drop AOTC_OPEN_REQUIRE_SIGNATURE");
    }
    status = status == AOTC_OK ? make_kernels(archive, error) : status;
    if (status == AOTC_OK && (flags & AOTC_OPEN_VERIFY_BLOBS) != 0) {
        status = aotci_verify_frames(archive, error);
    }
    return status;
}

static bool has_both(uint32_t flags, uint32_t a, uint32_t b) { return (flags & (a | b)) == (a | b); }

/* Make an archive without contents, from options that may be NULL. */
static aotc_status create(const char *name, const aotc_open_options *given,
                          struct aotc_archive **created, uint32_t *flags, aotc_error *error) {
    aotci_fetch_code();
    const aotc_open_options defaults = AOTC_OPEN_OPTIONS_INIT;
    const aotc_open_options *options = given == NULL ? &defaults : given;
    const uint32_t known_flags = AOTC_OPEN_COPY | AOTC_OPEN_REQUIRE_SIGNATURE |
                                 AOTC_OPEN_VERIFY_BLOBS | AOTC_OPEN_MAP | AOTC_OPEN_TRUSTED;
    if (!aotci_is_struct(options, options->struct_size, sizeof *options) ||
        (options->flags & ~known_flags) != 0 ||
        has_both(options->flags, AOTC_OPEN_COPY, AOTC_OPEN_MAP) ||
        has_both(options->flags, AOTC_OPEN_TRUSTED, AOTC_OPEN_VERIFY_BLOBS) ||
        (options->allocator.allocate == NULL) != (options->allocator.deallocate == NULL)) {
        return AOTCI_FAIL(
            error, AOTC_ERROR_ARG, .file = name, .field = "aotc_open_options",
            .expected = "AOTC_OPEN_OPTIONS_INIT, known flags that agree, both allocator functions or none",
            .got = "something else");
    }
    const size_t bytes = archive_bytes(name, options->driver_path);
    struct aotc_archive *archive = aotci_allocate(&options->allocator, bytes, 1);
    if (archive == NULL) {
        return no_memory(name, error, "archive");
    }
    archive->name = memcpy(archive + 1, name, text_bytes(name));
    if (options->driver_path != NULL) {
        archive->driver_path = memcpy(archive->name + text_bytes(name), options->driver_path,
                                      text_bytes(options->driver_path));
    }
    archive->allocator = options->allocator;
    archive->descriptor = -1;
    archive->is_trusted = (options->flags & AOTC_OPEN_TRUSTED) != 0;
    atomic_init(&archive->references, 1);
    atomic_init(&archive->contexts, NULL);
    (void)pthread_mutex_init(&archive->lock, NULL);
    (void)pthread_mutex_init(&archive->index_lock, NULL);
    atomic_init(&archive->decoder, NULL);
    if (options->decompress == NULL) {
        aotci_use_default_decompress(archive);
    } else {
        archive->decompress = options->decompress;
        archive->decompress_user = options->decompress_user;
    }
    *flags = options->flags;
    *created = archive;
    return AOTC_OK;
}

/* Return the archive to the caller on success, else close it. */
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

/* Bring the file into memory: copied, or mapped. */
static aotc_status take_file(struct aotc_archive *archive, uint32_t flags, aotc_error *error) {
    const size_t size_bytes = (size_t)archive->file_bytes;
    if ((flags & AOTC_OPEN_MAP) != 0) {
        void *bytes = mmap(NULL, size_bytes, PROT_READ, MAP_PRIVATE, archive->descriptor, 0);
        if (bytes == MAP_FAILED) {
            return io_error(archive->name, error, "mmap", errno, NULL);
        }
        archive->file = bytes;
        archive->is_mapped = true;
    } else {
        archive->owned_file = aotci_allocate(&archive->allocator, size_bytes, 1);
        if (archive->owned_file == NULL) {
            return no_memory(archive->name, error, "file");
        }
        const aotc_status status =
            aotci_read_file(archive, 0, archive->owned_file, size_bytes, error);
        if (status != AOTC_OK) {
            return status;
        }
        archive->file = archive->owned_file;
    }
    (void)close(archive->descriptor);
    archive->descriptor = -1;
    return AOTC_OK;
}

/* Read the first bytes of an archive; for an aligned archive in memory, the header is enough. */
static aotc_status read_first(const struct aotc_archive *archive, struct aotci_start *first,
                              aotc_error *error) {
    const uint64_t most = archive->is_mapped ? HEADER_BYTES : sizeof first->bytes;
    first->size_bytes = (uint32_t)(archive->file_bytes < most ? archive->file_bytes : most);
    return aotci_read_file(archive, 0, first->bytes, first->size_bytes, error);
}

/* Check the file at `archive->descriptor` and read its first bytes, or all of it if it is to be in
 * memory. */
static aotc_status read_file(struct aotc_archive *archive, uint32_t flags, struct aotci_start *first,
                             struct header_record *header, aotc_error *error) {
    struct stat information;
    if (fstat(archive->descriptor, &information) != 0) {
        return io_error(archive->name, error, "fstat", errno, NULL);
    }
    if (!S_ISREG(information.st_mode)) {
        return io_error(archive->name, error, "file",
                        S_ISDIR(information.st_mode) ? EISDIR : EINVAL,
                        S_ISDIR(information.st_mode) ? "a directory" : "not a regular file");
    }
    /* Check the header before allocating memory for the rest. */
    aotc_status status = AOTC_OK;
    archive->file_bytes = (uint64_t)information.st_size;
    if ((flags & AOTC_OPEN_MAP) != 0 && archive->file_bytes >= HEADER_BYTES) {
        status = take_file(archive, flags, error);
    }
    status = status == AOTC_OK ? read_first(archive, first, error) : status;
    if (status == AOTC_OK) {
        status = check_header(archive->name, first->bytes, archive->file_bytes, header, error);
    }
    if (status == AOTC_OK && (flags & AOTC_OPEN_COPY) != 0) {
        status = take_file(archive, flags, error);
    }
    return status;
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
    do {
        created->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (created->descriptor < 0 && errno == EINTR);
    if (created->descriptor < 0) {
        status = io_error(path, error, "open", errno, NULL);
        return finish(created, status, archive);
    }
    struct header_record header;
    struct aotci_start first;
    status = read_file(created, flags, &first, &header, error);
    if (status == AOTC_OK) {
        status = check_contents(created, &header, &first, flags, error);
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
    struct header_record header;
    struct aotci_start first;
    created->file = data;
    created->file_bytes = size_bytes;
    status = read_first(created, &first, error);
    status = status == AOTC_OK
                 ? check_header(created->name, first.bytes, size_bytes, &header, error)
                 : status;
    if (status == AOTC_OK && (flags & AOTC_OPEN_COPY) != 0) {
        created->owned_file = aotci_allocate(&created->allocator, size_bytes, 1);
        if (created->owned_file == NULL) {
            status = no_memory(created->name, error, "copy");
        } else {
            created->file = memcpy(created->owned_file, data, size_bytes);
        }
    }
    if (status == AOTC_OK) {
        status = check_contents(created, &header, &first, flags, error);
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
