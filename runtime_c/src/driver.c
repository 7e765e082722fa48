/* driver.c: find the CUDA driver at run time, and translate its errors.
 *
 * libcuda is never linked: the program must start on a machine without a GPU, and report clearly if
 * it needs one.
 */
#define _GNU_SOURCE /* RTLD_DEFAULT under -std=c11 */
#include "driver.h"

#include <dlfcn.h>
#include <string.h>

#define DEFAULT_PATH "libcuda.so.1"

enum { MIN_DRIVER_VERSION = 12000 };

typedef CUresult (*driver_get_version_fn)(int *version);
typedef void (*generic_fn)(void);

/* ISO C has no conversion from object to function pointers; POSIX promises that the bits agree. */
static generic_fn to_function(void *object) {
    generic_fn function;
    _Static_assert(sizeof function == sizeof object, "POSIX: dlsym");
    memcpy(&function, &object, sizeof function);
    return function;
}

/* The version as of cuDriverGetVersion, 0 if unknown. Used for messages only. */
static int version_of(const struct aotci_driver *driver) {
    int version = 0;
    int query = 0;
    void *found = NULL;
    if (driver->find == NULL ||
        driver->find("cuDriverGetVersion", &found, 2020, 0, &query) != CUDA_SUCCESS || found == NULL) {
        return 0;
    }
    return ((driver_get_version_fn)to_function(found))(&version) == CUDA_SUCCESS ? version : 0;
}

static struct aotci_text version_text(int version) {
    return aotci_text("CUDA %d.%d", version / 1000, version % 1000 / 10);
}

static aotc_status too_old(const char *path, int version, aotc_error *error) {
    return AOTCI_FAIL(error, AOTC_ERROR_DRIVER, .file = path, .field = "CUDA driver",
                      .expected = "CUDA 12.0 or newer (driver 525)",
                      .got = version_text(version).chars, .remedy = "install a newer NVIDIA driver");
}

/* Find cuGetProcAddress, for looking up the others; CUDA 12.0 introduced this version. */
static aotc_status find_loader(void *library, const char *path, aotci_find_function *found,
                               aotc_error *error) {
    int version = 0;
    *found = (aotci_find_function)to_function(dlsym(library, "cuGetProcAddress_v2"));
    if (*found != NULL) {
        return AOTC_OK;
    }
    const driver_get_version_fn get_version =
        (driver_get_version_fn)to_function(dlsym(library, "cuDriverGetVersion"));
    if (get_version == NULL || get_version(&version) != CUDA_SUCCESS) {
        return AOTCI_FAIL(error, AOTC_ERROR_DRIVER, .file = path, .field = "CUDA driver",
                          .expected = "a library with cuDriverGetVersion", .got = "none",
                          .remedy = "check that this is the library of the NVIDIA driver");
    }
    return too_old(path, version, error);
}

static aotc_status lacks(const struct aotci_driver *driver, const char *symbol, aotc_error *error) {
    const int version = version_of(driver);
    if (version != 0 && version < MIN_DRIVER_VERSION) {
        return too_old(driver->path, version, error);
    }
    return AOTCI_FAIL(error, AOTC_ERROR_DRIVER, .file = driver->path, .field = symbol,
                      .expected = "a driver that has it", .got = version_text(version).chars,
                      .remedy = "install a newer NVIDIA driver");
}

/* Tables replace separate code for each function, most of which would run only in a first launch;
 * and a launch reads only the rows that it needs. */
#define AOTCI_DRIVER_GROUPS(member, groups, symbol, min_version, required, parameters) groups,
static const uint16_t entry_groups[] = {AOTCI_DRIVER_FUNCTIONS(AOTCI_DRIVER_GROUPS)};
#undef AOTCI_DRIVER_GROUPS

static const struct {
    const char *symbol;
    uint16_t version;
    uint16_t member; /* offset in aotci_driver */
    bool is_required;
} entry_points[] = {
#define AOTCI_DRIVER_ENTRY(member, groups, symbol, min_version, required, parameters)              \
    {#symbol, min_version, offsetof(struct aotci_driver, member), required},
    AOTCI_DRIVER_FUNCTIONS(AOTCI_DRIVER_ENTRY)
#undef AOTCI_DRIVER_ENTRY
};

_Static_assert(DRIVER_ALL <= UINT16_MAX, "a bit for each group");

aotc_status aotci_driver_use(struct aotci_driver *driver, unsigned groups, aotc_error *error) {
    const unsigned missing = groups & ~driver->groups;
    if (missing == 0 || driver->find == NULL) {
        return AOTC_OK;
    }
    for (size_t i = 0; i < sizeof entry_groups / sizeof *entry_groups; ++i) {
        void *found = NULL;
        int query = 0;
        if ((missing & entry_groups[i]) == 0) {
            continue;
        }
        if (driver->find(entry_points[i].symbol, &found, entry_points[i].version, 0, &query) !=
            CUDA_SUCCESS) {
            found = NULL;
        }
        if (found == NULL && entry_points[i].is_required) {
            return lacks(driver, entry_points[i].symbol, error);
        }
        const generic_fn function = to_function(found); /* all function pointers have the same
                                                         * representation */
        memcpy((unsigned char *)driver + entry_points[i].member, &function, sizeof function);
    }
    driver->groups |= missing;
    return AOTC_OK;
}

aotci_stream_context_function aotci_driver_find_streams(const struct aotci_driver *driver) {
    enum { SINCE = 9020 };
    void *found = NULL;
    int query = 0;
    return driver->find("cuStreamGetCtx", &found, SINCE, 0, &query) == CUDA_SUCCESS
               ? (aotci_stream_context_function)to_function(found)
               : NULL;
}

/* Load the driver's library, and find cuGetProcAddress. */
static aotc_status open_library(const char *file, aotci_find_function *found, aotc_error *error) {
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        const char *reason = dlerror();
        return AOTCI_FAIL(
            error, AOTC_ERROR_DRIVER, .file = file, .field = "CUDA driver",
            .expected = "a library that can be loaded", .got = reason == NULL ? "none" : reason,
            .remedy = "install the NVIDIA driver; in a container, start it with GPU access");
    }
    const aotc_status status = find_loader(library, file, found, error);
    /* RTLD_NODELETE keeps it loaded; this gives back the handle only. */
    (void)dlclose(library);
    return status;
}

/* Initialize the driver. A process with a context has done so, and has a GPU. */
static aotc_status start(struct aotci_driver *driver, CUcontext *current, aotc_error *error) {
    *current = NULL;
    if (!aotci_may_be_forked() && driver->context_get_current(current) == CUDA_SUCCESS &&
        *current != NULL) {
        return AOTC_OK;
    }
    const aotc_status status = aotci_driver_use(driver, DRIVER_START, error);
    if (status != AOTC_OK) {
        return status;
    }
    int device_count = 0;
    CUresult result = driver->init(0);
    if (result == CUDA_SUCCESS) {
        result = driver->device_get_count(&device_count);
    }
    if (result == CUDA_SUCCESS && device_count == 0) {
        result = CUDA_ERROR_NO_DEVICE;
    }
    return result == CUDA_SUCCESS
               ? AOTC_OK
               : aotci_driver_fail(driver, result, error,
                                   (struct aotci_detail){.file = driver->path,
                                                         .field = "cuInit",
                                                         .expected = "a GPU"});
}

aotc_status aotci_driver_open(struct aotci_driver *driver, const char *path, CUcontext *current,
                              aotc_error *error) {
    aotc_status status = AOTC_OK;
    driver->path = path == NULL ? DEFAULT_PATH : path;
    driver->groups = 0;
    driver->find = NULL;
    if (strcmp(driver->path, DEFAULT_PATH) == 0) {
        /* A program with a context is mostly linked with the driver; finding it there is faster. */
        driver->find = (aotci_find_function)to_function(dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2"));
    }
    if (driver->find == NULL) {
        status = open_library(driver->path, &driver->find, error);
    }
    if (status == AOTC_OK) {
        status = aotci_driver_use(driver, DRIVER_CORE, error);
    }
    status = status == AOTC_OK ? start(driver, current, error) : status;
    if (status != AOTC_OK) {
        *driver = (struct aotci_driver){.groups = 0};
    }
    return status;
}

/* The meaning of a CUresult for the caller; any other is CUDA without a remedy. */
static const struct meaning {
    CUresult first, last;
    aotc_status status;
    const char *remedy;
} meanings[] = {
    {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY, AOTC_ERROR_CUDA, "free GPU memory"},
    {CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED, AOTC_ERROR_CUDA,
     "was this process forked after CUDA was used? start workers with exec (spawn)"},
    {CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NO_DEVICE, AOTC_ERROR_DRIVER,
     "check nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE, AOTC_ERROR_CUDA,
     "the driver may be older than the compiler of the archive"},
    {CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT, AOTC_ERROR_STATE,
     "make a context current"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED, AOTC_ERROR_STATE,
     "make a context current"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU, AOTC_ERROR_ARCH,
     "build the archive for this GPU"},
    {222, 222, AOTC_ERROR_DRIVER, "install a newer NVIDIA driver"},
    {CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE, AOTC_ERROR_ARG,
     "check the stream; where a context was reset, load again"},
    {CUDA_ERROR_NOT_FOUND, CUDA_ERROR_NOT_FOUND, AOTC_ERROR_NOT_FOUND, NULL},
    /* Illegal address, launch time-out, assert, hardware stack error to launch failure: the context
     * is lost, and with it all of the process's work on the GPU. */
    {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS, AOTC_ERROR_CUDA,
     "the GPU context is lost: restart the process"},
    {702, 702, AOTC_ERROR_CUDA, "the GPU context is lost: restart the process"},
    {710, 710, AOTC_ERROR_CUDA, "the GPU context is lost: restart the process"},
    {714, CUDA_ERROR_LAUNCH_FAILED, AOTC_ERROR_CUDA,
     "the GPU context is lost: restart the process"},
    {720, 720, AOTC_ERROR_CUDA, "the grid does not fit on the GPU at once: make it smaller"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
     AOTC_ERROR_CAPTURE, "do this outside of the stream capture"},
    {CUDA_ERROR_INVALID_CLUSTER_SIZE, CUDA_ERROR_INVALID_CLUSTER_SIZE, AOTC_ERROR_CUDA,
     "this GPU has no room for a cluster of so many CTAs: choose a config with fewer num_ctas"},
};

typedef CUresult (*error_text_fn)(CUresult result, const char **text);

/* The driver's text for an error. The function is looked up each time: launches fail without a
 * lock. */
static const char *error_text(const struct aotci_driver *driver, const char *symbol, error_text_fn known,
                              CUresult result) {
    enum { SINCE = 6000 };
    const char *text = NULL;
    void *found = NULL;
    int query = 0;
    error_text_fn ask = known;
    if (driver->find != NULL) {
        ask = driver->find(symbol, &found, SINCE, 0, &query) == CUDA_SUCCESS
                  ? (error_text_fn)to_function(found)
                  : NULL;
    }
    return ask != NULL && ask(result, &text) == CUDA_SUCCESS ? text : NULL;
}

aotc_status aotci_driver_fail(const struct aotci_driver *driver, CUresult result, aotc_error *error,
                              struct aotci_detail detail) {
    const char *name = error_text(driver, "cuGetErrorName", driver->get_error_name, result);
    const char *text = error_text(driver, "cuGetErrorString", driver->get_error_string, result);
    name = name == NULL ? "unknown CUDA error" : name;
    text = text == NULL ? "no description" : text;
    aotc_status status = AOTC_ERROR_CUDA;
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; ++i) {
        if (result >= meanings[i].first && result <= meanings[i].last) {
            status = meanings[i].status;
            detail.remedy = detail.remedy == NULL ? meanings[i].remedy : detail.remedy;
            break;
        }
    }
    const struct aotci_text got = aotci_text("%s (%d, %s)", name, result, text);
    detail.got = got.chars;
    detail.cuda = result;
    return aotci_fail(error, status, &detail);
}
