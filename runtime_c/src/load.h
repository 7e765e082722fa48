/* load.h: the tables of loaded kernels that launches read, one set for each context.
 *
 * A context's entry is published whole and stays in the list until the archive is closed. Unloading
 * removes the context from it, and a later load on the same device puts one in again. Its
 * dispatches go from NULL to a finished table, and back when unloaded. Launches read both with
 * acquire loads and need no lock. Data below an entry is read only by launches in its context,
 * which must have finished before it is unloaded.
 */
#ifndef AOTCI_LOAD_H
#define AOTCI_LOAD_H

#include "archive.h"
#include "config_index.h"

/* A variant that can be launched here. */
struct aotci_candidate {
    uint64_t guards;
    /* A module's function, or a CUkernel, which the driver accepts in its place (code.c). NULL
     * until the variant is loaded, and set last. */
    _Atomic(CUfunction) function;
    const struct variant_record *variant;
    struct aotci_guard condition; /* without an expression if there is none */
    uint32_t programs_at_once; /* resident program instances, if a launch depends on them; else 0 */
    uint32_t next_of_config;   /* in a run with a selection: the next with the same config, or
                                * FORMAT_NONE */
    /* Under the archive's lock: */
    bool is_taken;        /* its code is in use, perhaps by the launch loading it */
    CUmodule module;      /* NULL: its code is a library's */
    CUfunction of_module; /* its function */
};

static inline CUfunction aotci_function(const struct aotci_candidate *candidate) {
    return atomic_load_explicit(&candidate->function, memory_order_acquire);
}

/* The candidates of one combination of dtypes and choices, best first. */
struct aotci_run {
    uint32_t combination;
    uint32_t first;
    uint32_t count;
    uint32_t selection; /* the order of configs to try; FORMAT_NONE: none */
};

/* The table of a kernel's launches in a context: one allocation with its candidates and runs. */
struct aotci_dispatch {
    uint32_t run_count; /* in increasing order of combination; 0: nothing runs here */
    uint32_t candidate_count;
    struct aotci_run *runs;
    struct aotci_candidate *candidates;
    uint32_t *of_leaf_config; /* the first candidate for each LEAF_CONFIGS record of a run's
                               * selection, or FORMAT_NONE */
    uint32_t *of_config;      /* room to find these */
    struct aotci_config_index configs; /* over all candidates */
    atomic_bool has_configs; /* `configs` was built: after a lazy load when a launch first names a
                              * config */
};

/* The tables of so many adjacent kernels, NULL until loaded. A chunk exists if any of them was: a
 * table of thousands of kernels would take pages that nothing else touches. */
enum { KERNELS_PER_CHUNK = 64 };

struct aotci_chunk {
    _Atomic(struct aotci_dispatch *) dispatches[KERNELS_PER_CHUNK]; /* the last chunk has the
                                                                     * remaining ones */
};

struct aotci_context {
    struct aotci_context *next;
    _Atomic(CUcontext) context; /* NULL: unloaded */
    unsigned long long id;      /* distinguishes it from a later context at the same address */
    CUdevice device;            /* constant from here up to `shared_bytes` */
    int major, minor;           /* compute capability */
    int multiprocessors;        /* these two are 0 until a load needs them (dispatch.c) */
    atomic_int shared_bytes;    /* limit of one CTA */
    bool is_retained;                              /* a primary context retained by this archive */
    CUmemoryPool scratch_pool;                     /* NULL: none, or not needed by a kernel yet
                                                    * (scratch.h) */
    struct aotci_memo plans;                       /* of launches: plan.h */
    _Atomic(struct aotci_chunk *) chunks[];        /* of all kernels; they stay until the archive is
                                                    * closed */
};

static inline uint32_t aotci_chunk_count(const struct aotc_archive *archive) {
    const uint32_t kernel_count = aotci_count(&archive->root, SECTION_ENTRIES);
    return kernel_count / KERNELS_PER_CHUNK + (kernel_count % KERNELS_PER_CHUNK != 0);
}

static inline size_t aotci_chunk_bytes(const struct aotc_archive *archive, uint32_t chunk) {
    const uint32_t left = aotci_count(&archive->root, SECTION_ENTRIES) - chunk * KERNELS_PER_CHUNK;
    return (left < KERNELS_PER_CHUNK ? left : KERNELS_PER_CHUNK) *
           sizeof(_Atomic(struct aotci_dispatch *));
}

static inline size_t aotci_context_bytes(const struct aotc_archive *archive) {
    return sizeof(struct aotci_context) +
           aotci_chunk_count(archive) * sizeof(_Atomic(struct aotci_chunk *));
}

/* The slot of a kernel's table, or NULL if there is none. */
static inline _Atomic(struct aotci_dispatch *) *aotci_place_of(const struct aotci_context *context,
                                                               uint32_t kernel) {
    struct aotci_chunk *chunk =
        atomic_load_explicit(&context->chunks[kernel / KERNELS_PER_CHUNK], memory_order_acquire);
    return chunk == NULL ? NULL : &chunk->dispatches[kernel % KERNELS_PER_CHUNK];
}

static inline struct aotci_dispatch *aotci_dispatch_of(const struct aotci_context *context,
                                                       uint32_t kernel) {
    _Atomic(struct aotci_dispatch *) *place = aotci_place_of(context, kernel);
    return place == NULL ? NULL : atomic_load_explicit(place, memory_order_acquire);
}

static inline CUcontext aotci_context_handle(const struct aotci_context *entry) {
    return atomic_load_explicit(&entry->context, memory_order_acquire);
}

/* The loading of a missing variant: not at all; whole; or by the launch that follows, at which the
 * driver loads the code. */
enum aotci_late { LOAD_NOTHING, LOAD_WHOLE, LOAD_BY_LAUNCH };

/* State that a load leaves for the following launch: the thread's capture mode is relaxed, and was
 * another. */
struct aotci_entered {
    bool is_relaxed;
    int mode;
};

/* Whether a stream belongs to the current context: NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD. */
static inline bool aotci_is_of_current(CUstream stream) {
    return (uintptr_t)stream <= CU_STREAM_PER_THREAD;
}

/* Query the context of a stream outside the current one. The function is looked up at the first
 * need, without a lock: all threads find the same (select.c). */
__attribute__((noinline)) CUresult aotci_ask_stream(const struct aotc_archive *archive, CUstream stream,
                                                    CUcontext *context);

static inline CUresult aotci_stream_context(const struct aotc_archive *archive, CUstream stream,
                                            CUcontext *context) {
    const aotci_stream_context_function ask =
        atomic_load_explicit(&archive->stream_context, memory_order_relaxed);
    return ask != NULL ? ask(stream, context) : aotci_ask_stream(archive, stream, context);
}

/* Load a missing variant for a launch on a stream; launches of it may wait for one another. For a
 * captured stream it is loaded whole. A whole variant's function is stored in its candidate at
 * once; otherwise by aotci_finish_first. As aotc_load (load.c). */
aotc_status aotci_load_late(const struct aotc_kernel *kernel, const struct aotci_context *context,
                            struct aotci_candidate *candidate, CUstream stream,
                            enum aotci_late late, CUfunction *function, struct aotci_entered *entered,
                            aotc_error *error);

/* After the launch: restore the thread's capture mode, and free memory that the driver has copied
 * (load.c). */
void aotci_leave(const struct aotc_kernel *kernel, struct aotci_entered *entered);

/* Free a cubin after the launch that loads it: its memory is mostly the last allocation, and
 * freeing it makes an allocator tidy up (load.c). */
void aotci_spend(struct aotc_archive *archive, const struct aotci_content *image);

/* Publish a late-loaded variant to other launches, after its first launch. */
static inline void aotci_finish_first(const struct aotci_candidate *candidate, CUfunction function) {
    atomic_store_explicit(&((struct aotci_candidate *)(uintptr_t)candidate)->function, function,
                          memory_order_release);
}

/* Make the table of plans of a lazily loaded context, for the first launch with a plan to store;
 * unless a load is under way, or memory is short: then each launch is planned anew. */
void aotci_use_plans(const struct aotc_kernel *kernel, const struct aotci_context *context);

/* Build the index of configs of a lazily loaded kernel, once. NOMEM (dispatch.c). */
aotc_status aotci_use_configs(const struct aotc_kernel *kernel, const struct aotci_dispatch *dispatch,
                              aotc_error *error);

/* Record the loading process (fork.c). */
void aotci_mark_process(struct aotc_archive *archive);

/* Return whether this process is a fork of the one that loaded the archive (fork.c). */
bool aotci_is_forked(const struct aotc_archive *archive);

/* Let an archive without loads use this driver instead of the installed one: its loads and launches
 * call these functions. STATE if it has another driver, NOMEM. */
aotc_status aotci_use_driver(struct aotc_archive *archive, const struct aotci_driver *driver,
                             aotc_error *error);

/* Look up entry points that a launch needs and its load did not. As aotci_driver_use (load.c). */
aotc_status aotci_use_entries(const struct aotc_archive *archive, unsigned groups, aotc_error *error);

/* Undo all loads (unload.c); the driver is not called in a forked process. */
void aotci_unload(struct aotc_archive *archive);

/* Report why no variant of a kernel runs in a context: ARCH with the available targets, or ARG with
 * the missing shared memory (dispatch.c). */
aotc_status aotci_refuse(const struct aotc_kernel *kernel, const struct aotci_context *context,
                         aotc_error *error);

/* Read bytes of an archive. IO (frame.c). */
aotc_status aotci_read_file(const struct aotc_archive *archive, uint64_t offset,
                            unsigned char *target, uint64_t size_bytes, aotc_error *error);

void aotci_content_free(const struct aotc_archive *archive, const struct aotci_content *content);

/* Verify the index of a kernel with a known entry, and decode it, or use it in place. IO, CHECKSUM,
 * FORMAT, NOMEM, UNSUPPORTED (frame.c). */
aotc_status aotci_index_decode(struct aotc_kernel *kernel, aotc_error *error);

/* The offset of a kernel's frame. It is checked, not verified: the kernel's index has the digest of
 * the frame. FORMAT, IO (frame.c). */
aotc_status aotci_frame_place(const struct aotc_kernel *kernel, uint32_t number, uint64_t *offset,
                              aotc_error *error);

/* Report that a frame of a kernel lies elsewhere. FORMAT (frame.c). */
AOTCI_COLD aotc_status aotci_bad_place(const struct aotc_kernel *kernel, uint32_t number,
                                       const char *expected, aotc_error *error);

/* Open all kernels of an archive with a complete root, and compare every frame with its digest. As
 * aotci_kernel_open (verify.c). */
aotc_status aotci_verify_frames(struct aotc_archive *archive, aotc_error *error);

/* Compare a frame of a kernel's blobs, at `offset`, with its digest. IO, CHECKSUM, NOMEM (frame.c). */
aotc_status aotci_frame_verify(const struct aotc_kernel *kernel, uint32_t number, uint64_t offset,
                               aotc_error *error);

/* Decode a blob, perhaps into `room`. A frame of several blobs stays decoded until
 * `aotci_frame_drop`. As aotci_index_decode (frame.c). */
aotc_status aotci_blob_decode(const struct aotc_kernel *kernel, uint32_t index, struct aotci_room room,
                              struct aotci_content *content, aotc_error *error);

/* Free the decoded frame, if any (frame.c). */
void aotci_frame_drop(struct aotc_archive *archive);

/* Use this build's decompressor, if any, unless the caller names one (zstd.c). */
void aotci_use_default_decompress(struct aotc_archive *archive);
void aotci_free_decoder(struct aotc_archive *archive);

#endif
