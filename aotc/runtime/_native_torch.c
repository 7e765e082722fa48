/* _native_torch.c: tensors of a torch without a DLPack exchange table (before 2.10).
 *
 * Methods of torch.Tensor are called unbound, and dtypes, which are unique objects, are compared by
 * identity. torch is never imported here: if one of its tensors comes, it is in sys.modules.
 */
#include "_native.h"

#include <string.h>

/* ---- attributes of torch -------------------------------------------------------------------- */

/* dtypes by their names in torch. */
static const struct {
    const char *name;
    uint32_t dtype;
} torch_dtypes[TORCH_DTYPES] = {
    {"float32", AOTC_FP32},      {"float16", AOTC_FP16},
    {"bfloat16", AOTC_BF16},     {"int32", AOTC_I32},
    {"int64", AOTC_I64},         {"bool", AOTC_I1},
    {"int8", AOTC_I8},           {"uint8", AOTC_U8},
    {"float64", AOTC_FP64},      {"float8_e4m3fn", AOTC_FP8E4NV},
    {"float8_e5m2", AOTC_FP8E5}, {"int16", AOTC_I16},
    {"uint16", AOTC_U16},        {"uint32", AOTC_U32},
    {"uint64", AOTC_U64},
};

/* The imported module, or NULL; held, because reading an attribute may run its code. */
static PyObject *find_torch(void) {
    PyObject *modules = PyImport_GetModuleDict();
    return modules == NULL ? NULL : Py_XNewRef(PyDict_GetItemString(modules, "torch"));
}

static void drop_torch(struct torch_access *access) {
    PyObject *const owned[] = {access->tensor, access->data_ptr, access->get_device,
                               access->dtype,  access->shape,    access->stride,
                               access->current_raw_stream};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; ++i) {
        Py_XDECREF(owned[i]);
    }
    for (uint32_t i = 0; i < access->dtype_count; ++i) {
        Py_DECREF(access->dtypes[i].object);
    }
}

/* Take the required attributes of torch.Tensor; false unless all exist. */
static bool read_torch(struct torch_access *access, PyObject *torch, PyObject *tensor) {
    PyObject *native = PyObject_GetAttrString(torch, "_C");
    access->current_raw_stream =
        native == NULL ? NULL : PyObject_GetAttrString(native, "_cuda_getCurrentRawStream");
    Py_XDECREF(native);
    PyErr_Clear(); /* a build without CUDA has no streams */
    access->data_ptr = PyObject_GetAttrString(tensor, "data_ptr");
    access->get_device = PyObject_GetAttrString(tensor, "get_device");
    access->dtype = PyUnicode_InternFromString("dtype");
    access->shape = PyUnicode_InternFromString("shape");
    access->stride = PyObject_GetAttrString(tensor, "stride");
    for (uint32_t i = 0; i < TORCH_DTYPES && torch_dtypes[i].name != NULL; ++i) {
        PyObject *object = PyObject_GetAttrString(torch, torch_dtypes[i].name);
        if (object != NULL) {
            access->dtypes[access->dtype_count].object = object;
            access->dtypes[access->dtype_count++].dtype = torch_dtypes[i].dtype;
        }
        PyErr_Clear(); /* an older torch has fewer */
    }
    access->tensor = Py_NewRef(tensor);
    return access->data_ptr != NULL && access->get_device != NULL && access->stride != NULL &&
           access->dtype != NULL && access->shape != NULL;
}

/* Record torch if it is complete: all or nothing, since the code of the module that runs meanwhile
 * may launch with tensors of its own. */
static void open_torch(struct native_state *state, PyObject *torch, PyObject *tensor) {
    struct torch_access access = {NULL};
    if (read_torch(&access, torch, tensor) && state->torch.tensor == NULL) {
        state->torch = access;
    } else {
        drop_torch(&access);
    }
}

bool native_is_torch(struct native_state *state, PyTypeObject *type) {
    PyObject *torch = find_torch();
    PyObject *tensor = torch == NULL ? NULL : PyObject_GetAttrString(torch, "Tensor");
    PyErr_Clear();
    const bool matches =
        tensor != NULL && PyType_Check(tensor) && PyType_IsSubtype(type, (PyTypeObject *)tensor);
    if (matches && state->torch.tensor == NULL) {
        open_torch(state, torch, tensor);
    }
    const bool result = matches && state->torch.tensor == tensor;
    PyErr_Clear();
    Py_XDECREF(tensor);
    Py_XDECREF(torch);
    return result;
}

/* ---- a tensor ------------------------------------------------------------------------------- */

static int read_torch_view(struct launch *launch, PyObject *object, struct tensor_view *view) {
    const struct torch_access *access = &launch->state->torch;
    PyObject *device = PyObject_CallOneArg(access->get_device, object);
    view->device = device == NULL ? -1 : (int32_t)PyLong_AsLong(device);
    Py_XDECREF(device);
    PyObject *address = PyErr_Occurred() ? NULL : PyObject_CallOneArg(access->data_ptr, object);
    view->address = address == NULL ? 0 : PyLong_AsUnsignedLongLong(address);
    Py_XDECREF(address);
    PyObject *dtype = PyErr_Occurred() ? NULL : PyObject_GetAttr(object, access->dtype);
    if (dtype == NULL || PyErr_Occurred()) {
        Py_XDECREF(dtype);
        return -1;
    }
    for (uint32_t i = 0; i < access->dtype_count; ++i) {
        if (access->dtypes[i].object == dtype) {
            view->dtype = access->dtypes[i].dtype;
            break;
        }
    }
    if (view->dtype == AOTC_DTYPE_NONE) {
        PyObject *text = PyObject_Str(dtype);
        const char *chars = text == NULL ? NULL : PyUnicode_AsUTF8(text);
        view->dtype_text = aotci_text("%.100s", chars == NULL ? "another dtype" : chars);
        Py_XDECREF(text);
        PyErr_Clear();
    }
    Py_DECREF(dtype);
    return 0;
}

static int read_torch_shape(struct launch *launch, uint32_t index, PyObject *object) {
    const struct torch_access *access = &launch->state->torch;
    PyObject *shape = PyObject_GetAttr(object, access->shape);
    PyObject *strides = shape == NULL ? NULL : PyObject_CallOneArg(access->stride, object);
    struct tensor_storage *storage = NULL;
    bool is_read = false;
    if (strides != NULL && PyTuple_Check(shape)) {
        storage = native_take_shape(launch, index, (uint32_t)PyTuple_GET_SIZE(shape));
        is_read = storage == NULL ||
                  (native_read_integers(shape, storage->tensor.rank, storage->shape) == 0 &&
                   native_read_integers(strides, storage->tensor.rank, storage->strides) == 0);
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple as shape");
    }
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    if (!is_read) {
        return native_bad_protocol(launch, index, native_expected_tensor(launch, index).chars);
    }
    return storage == NULL ? -1 : 0;
}

static int ask_torch_stream(struct launch *launch, uint32_t index, int32_t device) {
    PyObject *function = launch->state->torch.current_raw_stream;
    if (launch->has_stream || function == NULL || launch->asked == function) {
        return 0;
    }
    PyObject *ordinal = PyLong_FromLong(device);
    PyObject *handle = ordinal == NULL ? NULL : PyObject_CallOneArg(function, ordinal);
    const unsigned long long stream = handle == NULL ? 0 : PyLong_AsUnsignedLongLong(handle);
    Py_XDECREF(ordinal);
    Py_XDECREF(handle);
    if (handle == NULL || PyErr_Occurred()) {
        return native_bad_protocol(launch, index, "a tensor whose current stream torch can tell");
    }
    launch->asked = function;
    return native_vote_stream(launch, index, (uintptr_t)stream);
}

bool native_is_pinned(PyObject *object) {
    PyObject *answer = PyObject_CallMethod(object, "is_pinned", NULL);
    const bool is_pinned = answer == Py_True;
    Py_XDECREF(answer);
    PyErr_Clear(); /* other frameworks have no such method */
    return is_pinned;
}

int native_read_torch(struct launch *launch, uint32_t index, PyObject *object) {
    struct tensor_view view = {.device = -1};
    if (read_torch_view(launch, object, &view) < 0) {
        return native_bad_protocol(launch, index, native_expected_tensor(launch, index).chars);
    }
    if (view.device < 0 && !native_is_pinned(object)) {
        return native_bad_argument(launch, index, "a tensor on the GPU", "one in host memory",
                                   "move it, with x.cuda() or x.to(\"cuda\")");
    }
    if (native_take_view(launch, index, &view) < 0 ||
        (view.device >= 0 && ask_torch_stream(launch, index, view.device) < 0)) {
        return -1;
    }
    return native_has_shape(launch, index)
               ? read_torch_shape(launch, index, object)
               : 0;
}

/* ---- any object with an address and a dtype ------------------------------------------------- */

/* The dtype of a name such as torch.float32, float32 or fp32. */
static uint32_t named_dtype(const char *chars) {
    const char *dot = strrchr(chars, '.');
    const char *name = dot == NULL ? chars : dot + 1;
    for (uint32_t i = 0; i < TORCH_DTYPES && torch_dtypes[i].name != NULL; ++i) {
        if (strcmp(torch_dtypes[i].name, name) == 0) {
            return torch_dtypes[i].dtype;
        }
    }
    for (uint32_t i = AOTC_I1; i <= AOTC_FP8E5; ++i) {
        if (strcmp(aotc_dtype_name((aotc_dtype)i), name) == 0) {
            return i;
        }
    }
    return AOTC_DTYPE_NONE;
}

static bool read_pointer_view(struct launch *launch, PyObject *object, struct tensor_view *view) {
    const struct native_names *names = &launch->state->names;
    PyObject *address = PyObject_CallMethodNoArgs(object, names->data_ptr);
    view->address = address == NULL ? 0 : PyLong_AsUnsignedLongLong(address);
    Py_XDECREF(address);
    PyObject *dtype = PyErr_Occurred() ? NULL : PyObject_GetAttr(object, names->dtype);
    PyObject *text = dtype == NULL ? NULL : PyObject_Str(dtype);
    const char *chars = text == NULL ? NULL : PyUnicode_AsUTF8(text);
    if (chars != NULL) {
        view->dtype = named_dtype(chars);
        view->dtype_text = aotci_text("%.100s", chars);
    }
    Py_XDECREF(dtype);
    Py_XDECREF(text);
    return chars != NULL;
}

int native_prefer_pointer(struct launch *launch, uint32_t index, PyObject *object) {
    struct tensor_view view = {.device = -1};
    if (!read_pointer_view(launch, object, &view)) {
        PyErr_Clear();
        return 0;
    }
    if (view.dtype == AOTC_DTYPE_NONE) {
        return 0;
    }
    return native_take_view(launch, index, &view) < 0 ? -1 : 1;
}

int native_read_pointer(struct launch *launch, uint32_t index, PyObject *object) {
    struct tensor_view view = {.device = -1};
    if (!read_pointer_view(launch, object, &view)) {
        return native_bad_protocol(launch, index, native_expected_tensor(launch, index).chars);
    }
    if (native_has_shape(launch, index)) {
        return native_bad_argument(launch, index, native_expected_tensor(launch, index).chars,
                                   "one that says an address and no shape",
                                   "pass (address, dtype, shape, strides)");
    }
    return native_take_view(launch, index, &view);
}
