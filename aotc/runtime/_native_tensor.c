/* _native_tensor.c: Python's pointers and tensors: address, dtype, device, shape.
 *
 * A type is classified once; the result is cached in a small table searched by identity. A type's
 * fastest protocol is used: DLPack's C exchange table (torch since 2.10), methods of torch.Tensor,
 * __cuda_array_interface__, __dlpack__, data_ptr() of any other. torch is never imported here: if one
 * of its tensors comes, it is in sys.modules.
 */
#include "_native_launcher.h"

#include <string.h>

/* ---- types ---------------------------------------------------------------------------------- */

static bool type_has(PyTypeObject *type, PyObject *name) {
    PyObject *attribute = PyObject_GetAttr((PyObject *)type, name);
    PyErr_Clear();
    Py_XDECREF(attribute);
    return attribute != NULL;
}

static void classify(struct native_state *state, PyTypeObject *type, struct tensor_type *info) {
    const struct native_names *names = &state->names;
    info->exchange = native_find_exchange(state, type);
    info->has_dlpack = type_has(type, names->dlpack) && type_has(type, names->dlpack_device);
    info->has_data_ptr = type_has(type, names->data_ptr);
    info->protocol = info->exchange != NULL                       ? PROTOCOL_EXCHANGE
                      : native_is_torch(state, type)                ? PROTOCOL_TORCH
                      : type_has(type, names->cuda_array_interface) ? PROTOCOL_CUDA_ARRAY
                      : info->has_dlpack                           ? PROTOCOL_DLPACK
                      : info->has_data_ptr                         ? PROTOCOL_POINTER
                                                                    : PROTOCOL_NONE;
}

const struct tensor_type *native_tensor_type(struct native_state *state, PyTypeObject *type) {
    /* Two slots for each type, so that two types of one launch seldom evict each other. */
    const size_t first =
        (size_t)(((uint64_t)(uintptr_t)type * UINT64_C(0x9E3779B97F4A7C15)) >> 32) % TYPE_PLACES;
    struct tensor_type *slot = &state->types[first];
    if (slot->type == type) {
        return slot;
    }
    struct tensor_type *other = &state->types[first ^ 1];
    if (other->type == type) {
        return other;
    }
    struct tensor_type info = {.type = type};
    Py_INCREF(type); /* code of the type may drop its last reference */
    classify(state, type, &info);
    /* Evicting a type may run code, too, which may look types up and so fill the slot again. So
     * eviction is complete before anything is written, and from then on no code runs. */
    while (other->type != NULL) {
        PyTypeObject *leaving = other->type;
        *other = (struct tensor_type){.type = NULL};
        Py_DECREF(leaving);
    }
    *other = *slot;
    *slot = info;
    return slot;
}

/* Return whether an object has an interface that its type lacks. */
static bool has_own_interface(const struct native_state *state, PyObject *object) {
    if (native_is_plain(object) || PyLong_Check(object) || PyTuple_Check(object) ||
        PyType_Check(object)) {
        return false;
    }
    PyObject *interface = PyObject_GetAttr(object, state->names.cuda_array_interface);
    PyErr_Clear();
    Py_XDECREF(interface);
    return interface != NULL;
}

bool native_is_memory(struct native_state *state, PyObject *object) {
    return native_tensor_type(state, Py_TYPE(object))->protocol != PROTOCOL_NONE ||
           has_own_interface(state, object);
}

/* ---- into the argument ---------------------------------------------------------------------- */

struct aotci_text native_expected_tensor(const struct launch *launch, uint32_t index) {
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
            launch, index, native_expected_tensor(launch, index).chars, view->dtype_text.chars,
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
        /* No memory has a shape with an overflowing product; wrapping does no harm.
         */
        stride = (int64_t)((uint64_t)stride * (uint64_t)storage->shape[i]);
    }
}

int native_read_integers(PyObject *tuple, uint32_t count, int64_t *values) {
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

/* ---- raw pointers --------------------------------------------------------------------------- */

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
    return native_bad_argument(launch, index, native_expected_tensor(launch, index).chars,
                               native_type_text(object).chars,
                               "pass a GPU tensor, an address, or (address, dtype)");
}

/* Read (address, dtype, shape, strides): a tensor in raw memory. The strides are in elements; None
 * is a tensor without gaps. */
static int read_raw_tensor(struct launch *launch, uint32_t index, PyObject *object) {
    PyObject *address = NULL;
    struct tensor_view view = {.device = -1};
    PyObject *pair = PyTuple_GetSlice(object, 0, 2);
    const int is_pair =
        pair == NULL ? -1 : native_split_pair(launch, index, pair, &address, &view.dtype);
    Py_XDECREF(pair); /* its items live on in `object` */
    if (is_pair < 0) {
        return -1;
    }
    if (is_pair == 0 || !PyLong_Check(address) || !PyTuple_Check(PyTuple_GET_ITEM(object, 2))) {
        return not_a_tensor(launch, index, object);
    }
    view.address = PyLong_AsUnsignedLongLong(address);
    if (PyErr_Occurred()) {
        return not_a_tensor(launch, index, object);
    }
    PyObject *shape = PyTuple_GET_ITEM(object, 2);
    PyObject *strides = PyTuple_GET_ITEM(object, 3);
    if (native_take_view(launch, index, &view) < 0) {
        return -1;
    }
    struct tensor_storage *storage =
        native_take_shape(launch, index, (uint32_t)PyTuple_GET_SIZE(shape));
    if (storage == NULL) {
        return -1;
    }
    int result = native_read_integers(shape, storage->tensor.rank, storage->shape);
    if (result == 0 && strides != Py_None) {
        result = native_read_integers(strides, storage->tensor.rank, storage->strides);
    }
    if (result < 0) {
        return not_a_tensor(launch, index, object);
    }
    if (strides == Py_None) {
        native_contiguous_strides(storage);
    }
    return 0;
}

/* Read (tensor, shape, strides): memory of a tensor, as one of another shape. Strides are in elements. */
static int read_described(struct launch *launch, uint32_t index, PyObject *object) {
    PyObject *base = PyTuple_GET_ITEM(object, 0);
    PyObject *shape = PyTuple_GET_ITEM(object, 1);
    launch->known = NULL; /* any tensor may run code */
    if (!native_is_memory(launch->state, base) || !PyTuple_Check(shape)) {
        return not_a_tensor(launch, index, object);
    }
    launch->reads_base = true;
    const int result = native_read_tensor(launch, index, base);
    launch->reads_base = false;
    if (result < 0) {
        return -1;
    }
    if (launch->args[index].kind == 0) { /* deferred: it is read alone, without the separate shape */
        return native_bad_argument(launch, index, "a tensor that says its memory without a stream",
                                   native_type_text(base).chars, NULL);
    }
    struct tensor_storage *storage =
        native_take_shape(launch, index, (uint32_t)PyTuple_GET_SIZE(shape));
    if (storage == NULL) {
        return -1;
    }
    return native_read_integers(shape, storage->tensor.rank, storage->shape) < 0 ||
                   native_read_integers(PyTuple_GET_ITEM(object, 2), storage->tensor.rank,
                                        storage->strides) < 0
               ? not_a_tensor(launch, index, object)
               : 0;
}

/* ---- all of them ---------------------------------------------------------------------------- */

/* Read an address, or (address, dtype); the address may be a NumPy number. */
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
    launch->known = NULL;
    PyObject *number = PyNumber_Index(address);
    if (number == NULL) {
        return not_a_tensor(launch, index, object);
    }
    const int result = read_address(launch, index, number, dtype);
    Py_DECREF(number);
    return result;
}

int native_read_tensor(struct launch *launch, uint32_t index, PyObject *object) {
    const bool has_shape = native_has_shape(launch, index);
    const struct known_tensor *known =
        launch->known == NULL ? NULL : &launch->known[launch->places[index]];
    /* For host memory, ask its framework whether it is pinned. */
    if (known != NULL && known->tensor.lanes != 0 && known->tensor.device_type != DL_CPU) {
        return native_take_known(launch, index, known);
    }
    if (object == Py_None && launch->kernel->params[index].is_nullable) {
        launch->args[index] = aotc_pointer(NULL, AOTC_DTYPE_NONE);
        return 0;
    }
    if (has_shape && PyTuple_Check(object) && PyTuple_GET_SIZE(object) == 3) {
        return read_described(launch, index, object);
    }
    if (has_shape && PyTuple_Check(object) && PyTuple_GET_SIZE(object) == 4) {
        return read_raw_tensor(launch, index, object);
    }
    if (PyLong_Check(object) || PyTuple_Check(object)) {
        return read_number(launch, index, object);
    }
    launch->known = NULL; /* any object may run code */
    const struct tensor_type *type = native_tensor_type(launch->state, Py_TYPE(object));
    switch (type->protocol) {
    case PROTOCOL_EXCHANGE:
        return native_read_exchange(launch, index, object, type->exchange);
    case PROTOCOL_TORCH:
        return native_read_torch(launch, index, object);
    case PROTOCOL_CUDA_ARRAY:
        return native_read_cuda_array(launch, index, object, type->has_dlpack);
    case PROTOCOL_DLPACK: {
        /* A Triton program passes addresses: its wrapper of a tensor is read as Triton does, and
         * takes no capsule. `places` are those of such a launch. */
        const bool is_address = launch->places != NULL && type->has_data_ptr && !has_shape;
        const int result = is_address ? native_prefer_pointer(launch, index, object) : 0;
        if (result != 0) {
            return result < 0 ? -1 : 0;
        }
        launch->args[index].kind = 0;
        launch->is_deferred = true;
        return 0;
    }
    case PROTOCOL_POINTER:
        return native_read_pointer(launch, index, object);
    case PROTOCOL_NONE:
        break;
    }
    if (has_own_interface(launch->state, object)) {
        return native_read_cuda_array(launch, index, object, false);
    }
    return read_number(launch, index, object);
}
