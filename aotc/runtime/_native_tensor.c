/* _native_tensor.c: what Python passes as a pointer or a tensor: address, dtype, device, shape.
 *
 * A type is looked at once; what was found is kept in a small table that is asked by identity. The
 * fastest protocol that a type has is used: DLPack's C exchange table (torch since 2.10), methods
 * of torch.Tensor, __cuda_array_interface__, __dlpack__. torch is never imported here: if a tensor
 * of it comes, it is in sys.modules.
 */
#include "_native.h"

#include <string.h>

/* ---- types -------------------------------------------------------------------------------------
 */

static bool type_has(PyTypeObject *type, PyObject *name) {
    PyObject *attribute = PyObject_GetAttr((PyObject *)type, name);
    PyErr_Clear();
    Py_XDECREF(attribute);
    return attribute != NULL;
}

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

static PyObject *find_torch(void) {
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *torch = modules == NULL ? NULL : PyDict_GetItemString(modules, "torch");
    return torch == NULL ? NULL : PyObject_GetAttrString(torch, "Tensor");
}

/* Take what is needed of torch.Tensor; false if it is not all there. */
static bool open_torch(struct torch_access *access, PyObject *tensor) {
    PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
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
    return access->data_ptr != NULL && access->get_device != NULL && access->stride != NULL;
}

static bool is_torch(struct native_state *state, PyTypeObject *type) {
    PyObject *tensor = find_torch();
    PyErr_Clear();
    const bool matches =
        tensor != NULL && PyType_Check(tensor) && PyType_IsSubtype(type, (PyTypeObject *)tensor);
    const bool result =
        matches && (state->torch.tensor == tensor ||
                    (state->torch.tensor == NULL && open_torch(&state->torch, tensor)));
    PyErr_Clear();
    Py_XDECREF(tensor);
    return result;
}

static void classify(struct native_state *state, PyTypeObject *type, struct tensor_type *place) {
    const struct native_names *names = &state->names;
    place->exchange = native_find_exchange(state, type);
    place->has_dlpack = type_has(type, names->dlpack) && type_has(type, names->dlpack_device);
    place->protocol = place->exchange != NULL                       ? PROTOCOL_EXCHANGE
                      : is_torch(state, type)                       ? PROTOCOL_TORCH
                      : type_has(type, names->cuda_array_interface) ? PROTOCOL_CUDA_ARRAY
                      : place->has_dlpack                           ? PROTOCOL_DLPACK
                                                                    : PROTOCOL_NONE;
}

const struct tensor_type *native_tensor_type(struct native_state *state, PyTypeObject *type) {
    /* Two places for each type, so that two types of one launch seldom drive each other out. */
    const size_t home =
        (size_t)(((uint64_t)(uintptr_t)type * UINT64_C(0x9E3779B97F4A7C15)) >> 32) % TYPE_PLACES;
    struct tensor_type *place = &state->types[home];
    if (place->type == type) {
        return place;
    }
    struct tensor_type *other = &state->types[home ^ 1];
    if (other->type == type) {
        return other;
    }
    struct tensor_type found = {.type = type};
    classify(state, type, &found);
    PyTypeObject *before = other->type;
    Py_INCREF(type);
    *other = *place;
    *place = found;
    Py_XDECREF(before);
    return place;
}

/* ---- into the argument -------------------------------------------------------------------------
 */

static struct aotci_text expected_tensor(const struct launch *launch, uint32_t index) {
    const struct kernel_param *param = &launch->kernel->params[index];
    struct aotci_text text =
        aotci_text("%s ", param->kind == AOTC_TENSOR ? "a tensor of" : "a pointer to");
    if (param->type_variable < 0) {
        aotci_text_add(&text, "%s", aotc_dtype_name((aotc_dtype)param->dtype));
        return text;
    }
    const struct kernel_variable *variable = &launch->kernel->variables[param->type_variable];
    for (uint32_t i = 0; i < variable->dtype_count; ++i) {
        aotci_text_add(&text, "%s%s", i == 0 ? "" : " or ",
                       aotc_dtype_name((aotc_dtype)variable->dtypes[i]));
    }
    return text;
}

int native_take_view(struct launch *launch, uint32_t index, const struct tensor_view *view) {
    const struct kernel_param *param = &launch->kernel->params[index];
    aotc_arg *arg = &launch->args[index];
    if (view->dtype == AOTC_DTYPE_NONE) {
        return native_bad_argument(
            launch, index, expected_tensor(launch, index).chars, view->dtype_text.chars,
            "pass (address, dtype) if the kernel reads these bytes as something else");
    }
    if (view->is_read_only && (param->access & 2) != 0) {
        return native_bad_argument(launch, index, "an array that may be written", "a read-only one",
                                   NULL);
    }
    arg->kind = param->kind;
    arg->dtype = view->dtype;
    arg->as.bits = view->address;
    if (param->type_variable >= 0 && launch->bound[param->type_variable] == AOTC_DTYPE_NONE) {
        launch->bound[param->type_variable] = (uint8_t)view->dtype;
    }
    return view->device < 0 ? 0 : native_note_device(launch, index, view->device);
}

struct tensor_storage *native_take_shape(struct launch *launch, uint32_t index, uint32_t rank) {
    const struct kernel_param *param = &launch->kernel->params[index];
    if (rank != param->rank) {
        (void)native_bad_argument(launch, index,
                                  aotci_text("a tensor of rank %u", (unsigned)param->rank).chars,
                                  aotci_text("rank %u", (unsigned)rank).chars, NULL);
        return NULL;
    }
    struct tensor_storage *storage = &launch->tensors[launch->tensor_count++];
    storage->tensor = (aotc_tensor){
        .address = launch->args[index].as.pointer,
        .rank = rank,
        .shape = storage->shape,
        .strides = storage->strides,
    };
    launch->args[index].as.tensor = &storage->tensor;
    return storage;
}

void native_contiguous_strides(struct tensor_storage *storage) {
    int64_t stride = 1;
    for (uint32_t i = storage->tensor.rank; i-- > 0;) {
        storage->strides[i] = stride;
        /* A shape whose product overflows belongs to no memory; wrapping is as good as any answer.
         */
        stride = (int64_t)((uint64_t)stride * (uint64_t)storage->shape[i]);
    }
}

/* Read a tuple of `count` integers. */
static int read_integers(PyObject *tuple, uint32_t count, int64_t *values) {
    if (tuple == NULL || !PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != (Py_ssize_t)count) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "expected a tuple with an integer for each dimension");
        }
        return -1;
    }
    for (uint32_t i = 0; i < count; ++i) {
        values[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (values[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

/* ---- raw pointers ------------------------------------------------------------------------------
 */

static int read_address(struct launch *launch, uint32_t index, PyObject *object, uint32_t dtype) {
    aotc_arg *arg = &launch->args[index];
    const struct kernel_param *param = &launch->kernel->params[index];
    if (param->kind == AOTC_TENSOR) {
        return native_bad_argument(launch, index, "a tensor with shape and strides", "an address",
                                   "pass the tensor itself");
    }
    const unsigned long long address = PyLong_AsUnsignedLongLong(object);
    if (address == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        return native_bad_argument(launch, index, "an address, 0 to 2^64 - 1",
                                   "an integer beyond that", NULL);
    }
    *arg = aotc_pointer((const void *)(uintptr_t)address, (aotc_dtype)dtype);
    if (dtype != AOTC_DTYPE_NONE && param->type_variable >= 0 &&
        launch->bound[param->type_variable] == AOTC_DTYPE_NONE) {
        launch->bound[param->type_variable] = (uint8_t)dtype;
    }
    return 0;
}

static int not_a_tensor(const struct launch *launch, uint32_t index, PyObject *object) {
    PyErr_Clear();
    return native_bad_argument(launch, index, expected_tensor(launch, index).chars,
                               native_type_text(object).chars,
                               "pass a GPU tensor, an address, or (address, dtype)");
}

/* ---- torch without the exchange table -----------------------------------------------------------
 */

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
                  (read_integers(shape, storage->tensor.rank, storage->shape) == 0 &&
                   read_integers(strides, storage->tensor.rank, storage->strides) == 0);
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple as shape");
    }
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    if (!is_read) {
        return native_bad_protocol(launch, index, expected_tensor(launch, index).chars);
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

static int read_torch(struct launch *launch, uint32_t index, PyObject *object) {
    struct tensor_view view = {.device = -1};
    if (read_torch_view(launch, object, &view) < 0) {
        return native_bad_protocol(launch, index, expected_tensor(launch, index).chars);
    }
    if (view.device < 0) {
        return native_bad_argument(launch, index, "a tensor on the GPU", "one in host memory",
                                   "move it, with x.cuda() or x.to(\"cuda\")");
    }
    if (native_take_view(launch, index, &view) < 0 ||
        ask_torch_stream(launch, index, view.device) < 0) {
        return -1;
    }
    return launch->kernel->params[index].kind == AOTC_TENSOR
               ? read_torch_shape(launch, index, object)
               : 0;
}

/* ---- __cuda_array_interface__
 * -------------------------------------------------------------------- */

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

static int read_interface_view(const struct native_names *names, PyObject *interface,
                               struct tensor_view *view) {
    PyObject *data =
        PyDict_Check(interface) ? PyDict_GetItemWithError(interface, names->data) : NULL;
    PyObject *typestr = data == NULL ? NULL : PyDict_GetItemWithError(interface, names->typestr);
    const char *text =
        typestr == NULL || !PyUnicode_Check(typestr) ? NULL : PyUnicode_AsUTF8(typestr);
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

static int read_interface_shape(struct launch *launch, uint32_t index, PyObject *interface) {
    const struct native_names *names = &launch->state->names;
    PyObject *shape = PyDict_GetItemWithError(interface, names->shape);
    PyObject *strides = PyDict_GetItemWithError(interface, names->strides);
    if (shape == NULL || !PyTuple_Check(shape)) {
        PyErr_SetString(PyExc_TypeError, "__cuda_array_interface__ without a shape");
        return native_bad_protocol(launch, index, expected_tensor(launch, index).chars);
    }
    struct tensor_storage *storage =
        native_take_shape(launch, index, (uint32_t)PyTuple_GET_SIZE(shape));
    if (storage == NULL) {
        return -1;
    }
    const int64_t element_bytes = (int64_t)aotc_dtype_bytes((aotc_dtype)launch->args[index].dtype);
    const bool has_strides = strides != NULL && strides != Py_None;
    int result = read_integers(shape, storage->tensor.rank, storage->shape);
    if (result == 0 && has_strides) {
        result = read_integers(strides, storage->tensor.rank, storage->strides);
    }
    if (result < 0) {
        return native_bad_protocol(launch, index, expected_tensor(launch, index).chars);
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

/* The stream on which the array's contents become ready: None says nothing. */
static int read_interface_stream(struct launch *launch, uint32_t index, PyObject *interface) {
    PyObject *stream = PyDict_GetItemWithError(interface, launch->state->names.stream);
    if (stream == NULL || stream == Py_None) {
        return PyErr_Occurred() ? -1 : 0;
    }
    const unsigned long long handle = PyLong_AsUnsignedLongLong(stream);
    if (PyErr_Occurred()) {
        return native_bad_protocol(launch, index, "an array whose stream is a number");
    }
    return native_vote_stream(launch, index, (uintptr_t)handle);
}

static int read_cuda_array(struct launch *launch, uint32_t index, PyObject *object,
                           bool has_dlpack) {
    struct tensor_view view = {.device = -1};
    PyObject *interface = PyObject_GetAttr(object, launch->state->names.cuda_array_interface);
    int result =
        interface == NULL ? -1 : read_interface_view(&launch->state->names, interface, &view);
    if (has_dlpack && (result < 0 || view.dtype == AOTC_DTYPE_NONE)) {
        /* What NumPy has no name for, such as bfloat16, DLPack does. */
        Py_XDECREF(interface);
        PyErr_Clear();
        launch->args[index].kind = 0;
        launch->is_deferred = true;
        return 0;
    }
    if (result < 0) {
        result = native_bad_protocol(launch, index, expected_tensor(launch, index).chars);
    } else {
        result = native_take_view(launch, index, &view);
    }
    if (result == 0 && launch->kernel->params[index].kind == AOTC_TENSOR) {
        result = read_interface_shape(launch, index, interface);
    }
    if (result == 0) {
        result = read_interface_stream(launch, index, interface);
    }
    Py_XDECREF(interface);
    return result;
}

/* ---- all of them -------------------------------------------------------------------------------
 */

/* Read an address, or (address, dtype); the address may be a number of NumPy's. */
static int read_number(struct launch *launch, uint32_t index, PyObject *object) {
    PyObject *address = object;
    uint32_t dtype = AOTC_DTYPE_NONE;
    if (native_split_pair(launch, index, object, &address, &dtype) < 0) {
        return -1;
    }
    if (PyBool_Check(address)) {
        return not_a_tensor(launch, index, object);
    }
    if (PyLong_Check(address)) {
        return read_address(launch, index, address, dtype);
    }
    PyObject *number = PyNumber_Index(address);
    if (number == NULL) {
        return not_a_tensor(launch, index, object);
    }
    const int result = read_address(launch, index, number, dtype);
    Py_DECREF(number);
    return result;
}

int native_read_tensor(struct launch *launch, uint32_t index, PyObject *object) {
    if (PyLong_Check(object) || PyTuple_Check(object)) {
        return read_number(launch, index, object);
    }
    const struct tensor_type *type = native_tensor_type(launch->state, Py_TYPE(object));
    switch (type->protocol) {
    case PROTOCOL_EXCHANGE:
        return native_read_exchange(launch, index, object, type->exchange);
    case PROTOCOL_TORCH:
        return read_torch(launch, index, object);
    case PROTOCOL_CUDA_ARRAY:
        return read_cuda_array(launch, index, object, type->has_dlpack);
    case PROTOCOL_DLPACK:
        launch->args[index].kind = 0;
        launch->is_deferred = true;
        return 0;
    case PROTOCOL_NONE:
        break;
    }
    return read_number(launch, index, object);
}
