/* _native_cuda_array.c: arrays with __cuda_array_interface__, version 2 or 3: CuPy, Numba and
 * others.
 *
 * The interface names the stream that makes the contents ready; nothing is synchronized here,
 * the launch goes to that stream. It names no device, and has NumPy's types, without bfloat16 and
 * float8.
 *
 * Source: Numba's documentation, CUDA Array Interface (Version 3).
 */
#include "_native.h"

#include <string.h>

/* A type string such as "<f4", as a dtype. */
static uint32_t typestr_dtype(const char *text) {
    static const struct {
        char kind;
        char bytes;
        uint32_t dtype;
    } table[] = {
        {'f', '2', AOTC_FP16}, {'f', '4', AOTC_FP32}, {'f', '8', AOTC_FP64}, {'i', '1', AOTC_I8},
        {'i', '2', AOTC_I16},  {'i', '4', AOTC_I32},  {'i', '8', AOTC_I64},  {'u', '1', AOTC_U8},
        {'u', '2', AOTC_U16},  {'u', '4', AOTC_U32},  {'u', '8', AOTC_U64},  {'b', '1', AOTC_I1},
    };
    const bool is_native = text[0] == '<' || text[0] == '|' || text[0] == '=';
    for (size_t i = 0; is_native && i < sizeof table / sizeof *table; ++i) {
        if (text[1] == table[i].kind && text[2] == table[i].bytes && text[3] == '\0') {
            return table[i].dtype;
        }
    }
    return AOTC_DTYPE_NONE;
}

/* Look an entry up and hold it, because its use may change the dictionary. NULL without an
 * exception if there is none. */
static PyObject *entry_of(PyObject *interface, PyObject *name) {
    return Py_XNewRef(PyDict_GetItemWithError(interface, name));
}

static int read_view_entries(PyObject *data, PyObject *typestr, struct tensor_view *view) {
    const char *text =
        typestr == NULL || !PyUnicode_Check(typestr) ? NULL : native_chars(typestr);
    if (text == NULL || !PyTuple_Check(data) || PyTuple_GET_SIZE(data) != 2) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "__cuda_array_interface__ without data or typestr");
        }
        return -1;
    }
    /* None stands for the address of an empty array in old versions. */
    PyObject *address = PyTuple_GET_ITEM(data, 0);
    view->address = address == Py_None ? 0 : PyLong_AsUnsignedLongLong(address);
    view->is_read_only = PyObject_IsTrue(PyTuple_GET_ITEM(data, 1)) == 1;
    view->dtype = strlen(text) >= 3 ? typestr_dtype(text) : AOTC_DTYPE_NONE;
    view->dtype_text = aotci_text("type string %.50s", text);
    return PyErr_Occurred() ? -1 : 0;
}

static int read_interface_view(const struct native_names *names, PyObject *interface,
                               struct tensor_view *view) {
    PyObject *data = PyDict_Check(interface) ? entry_of(interface, names->data) : NULL;
    PyObject *typestr = data == NULL ? NULL : entry_of(interface, names->typestr);
    const int result = read_view_entries(data, typestr, view);
    Py_XDECREF(data);
    Py_XDECREF(typestr);
    return result;
}

static int read_shape_entries(struct launch *launch, uint32_t index, PyObject *shape,
                              PyObject *strides) {
    if (shape == NULL || !PyTuple_Check(shape)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "__cuda_array_interface__ without a shape");
        }
        return native_bad_protocol(launch, index, native_expected_tensor(launch, index).chars);
    }
    struct tensor_storage *storage =
        native_take_shape(launch, index, (uint32_t)PyTuple_GET_SIZE(shape));
    if (storage == NULL) {
        return -1;
    }
    const int64_t element_bytes = (int64_t)aotc_dtype_bytes((aotc_dtype)launch->args[index].dtype);
    const bool has_strides = strides != NULL && strides != Py_None;
    int result = native_read_integers(shape, storage->tensor.rank, storage->shape);
    if (result == 0 && has_strides) {
        result = native_read_integers(strides, storage->tensor.rank, storage->strides);
    }
    if (result < 0) {
        return native_bad_protocol(launch, index, native_expected_tensor(launch, index).chars);
    }
    if (!has_strides) {
        native_contiguous_strides(storage);
        return 0;
    }
    for (uint32_t i = 0; i < storage->tensor.rank; ++i) {
        if (storage->strides[i] % element_bytes != 0) {
            return native_bad_argument(launch, index, "strides of whole elements", "others", NULL);
        }
        storage->strides[i] /= element_bytes;
    }
    return 0;
}

static int read_interface_shape(struct launch *launch, uint32_t index, PyObject *interface) {
    const struct native_names *names = &launch->state->names;
    PyObject *shape = entry_of(interface, names->shape);
    PyObject *strides = PyErr_Occurred() ? NULL : entry_of(interface, names->strides);
    const int result = PyErr_Occurred()
                           ? native_bad_protocol(launch, index, "an array with a shape")
                           : read_shape_entries(launch, index, shape, strides);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    return result;
}

/* The stream that makes the array's contents ready; None if unknown. */
static int read_interface_stream(struct launch *launch, uint32_t index, PyObject *interface) {
    PyObject *stream = entry_of(interface, launch->state->names.stream);
    const bool is_named = stream != NULL && stream != Py_None;
    const unsigned long long handle = is_named ? PyLong_AsUnsignedLongLong(stream) : 0;
    Py_XDECREF(stream);
    if (!is_named && !PyErr_Occurred()) {
        return 0;
    }
    if (PyErr_Occurred()) {
        return native_bad_protocol(launch, index, "an array whose stream is a number");
    }
    return native_vote_stream(launch, index, (uintptr_t)handle);
}

int native_read_cuda_array(struct launch *launch, uint32_t index, PyObject *object,
                           bool has_dlpack) {
    struct tensor_view view = {.device = -1};
    PyObject *interface = PyObject_GetAttr(object, launch->state->names.cuda_array_interface);
    int result =
        interface == NULL ? -1 : read_interface_view(&launch->state->names, interface, &view);
    if (has_dlpack && (result < 0 || view.dtype == AOTC_DTYPE_NONE)) {
        /* DLPack covers dtypes without a NumPy name, such as bfloat16. */
        Py_XDECREF(interface);
        PyErr_Clear();
        launch->args[index].kind = 0;
        launch->is_deferred = true;
        return 0;
    }
    if (result < 0) {
        result = native_bad_protocol(launch, index, native_expected_tensor(launch, index).chars);
    } else {
        result = native_take_view(launch, index, &view);
    }
    if (result == 0 && native_has_shape(launch, index)) {
        result = read_interface_shape(launch, index, interface);
    }
    if (result == 0) {
        result = read_interface_stream(launch, index, interface);
    }
    Py_XDECREF(interface);
    return result;
}
