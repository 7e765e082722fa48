/* _native_map.c: Archive.tensor_map, for kernels that take tensor maps from memory.
 *
 * The tensor is read as the only argument of a fictitious launch, of a kernel that takes any dtype
 * and the tile's rank.
 */
#include "_native.h"

#include <string.h>

/* Read the extents of a tile; `rank` is their number. 0 or -1. */
static int read_block(const struct launch *launch, PyObject *object, uint32_t *block,
                      uint8_t *rank) {
    PyObject *items = PySequence_Tuple(object); /* a list may change while its items are read */
    if (items == NULL) {
        PyErr_Clear();
        return native_bad_argument(launch, 1, "a sequence of extents",
                                   native_type_text(object).chars, NULL);
    }
    const Py_ssize_t count = PyTuple_GET_SIZE(items);
    int result = 0;
    if (count < 1 || count > LIMIT_RANK) {
        result = native_bad_argument(launch, 1, "1 to 5 extents",
                                     aotci_text("%zd", count).chars, NULL);
    }
    for (Py_ssize_t i = 0; result == 0 && i < count; ++i) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        const long long extent = PyLong_AsLongLong(item);
        if (extent < 0 || extent > UINT32_MAX) {
            const struct aotci_text got =
                PyErr_Occurred() ? native_type_text(item) : aotci_text("%lld", extent);
            PyErr_Clear();
            result = native_bad_argument(launch, 1, "extents that are powers of two", got.chars,
                                         NULL);
        } else {
            block[i] = (uint32_t)extent;
        }
    }
    Py_DECREF(items);
    *rank = (uint8_t)count;
    return result;
}

static int encode(struct launch *launch, PyObject *block, aotc_tensor_map *map) {
    uint32_t extents[LIMIT_RANK];
    if (read_block(launch, block, extents, &launch->kernel->params[0].rank) < 0 ||
        native_read_tensor(launch, 0, launch->objects[0]) < 0 ||
        (launch->is_deferred && native_read_dlpack(launch, 0, launch->objects[0]) < 0)) {
        return -1;
    }
    const struct native_handle *handle = launch->kernel->handle;
    if (handle->archive == NULL) {
        return NATIVE_FAIL(launch->state, AOTC_ERROR_STATE, .file = handle->path,
                           .field = "library", .expected = "an open one",
                           .got = "one that was closed", .remedy = "load it again");
    }
    aotc_error error;
    error.struct_size = (uint32_t)sizeof error;
    const aotc_arg *arg = &launch->args[0];
    const aotc_status status =
        aotc_tensor_map_encode(handle->archive, arg->as.tensor, (aotc_dtype)arg->dtype, extents,
                               map, &error);
    return status == AOTC_OK ? 0 : native_raise(launch->state, &error);
}

PyObject *native_tensor_map(struct native_state *state, struct native_handle *handle,
                            PyObject *tensor, PyObject *block) {
    struct kernel_param params[2] = {
        {.name = PyUnicode_InternFromString("tensor"), .kind = AOTC_TENSOR},
        {.name = PyUnicode_InternFromString("block"), .type_variable = -1},
    };
    struct native_kernel reader = {
        .state = state,
        .handle = handle,
        .name = PyUnicode_InternFromString("tensor_map"),
        .param_count = 1,
        .type_variable_count = 1,
        .params = params,
    };
    for (uint8_t dtype = AOTC_I1; dtype <= AOTC_FP8E5; ++dtype) {
        reader.variables[0].dtypes[reader.variables[0].dtype_count++] = dtype;
    }
    PyObject *made = NULL;
    if (params[0].name != NULL && params[1].name != NULL && reader.name != NULL) {
        struct launch launch;
        aotc_tensor_map map;
        native_begin(&launch, &reader);
        launch.objects[0] = tensor;
        const int result = encode(&launch, block, &map);
        native_end(&launch);
        made = result < 0 ? NULL : PyBytes_FromStringAndSize((const char *)&map, sizeof map);
    }
    Py_XDECREF(params[0].name);
    Py_XDECREF(params[1].name);
    Py_XDECREF(reader.name);
    return made;
}
