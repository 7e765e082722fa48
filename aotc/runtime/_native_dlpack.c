/* _native_dlpack.c: tensors through DLPack: the C exchange table, and capsules.
 *
 * The table gives address, dtype, device, shape and the framework's current stream by C calls
 * alone, so a launch with torch tensors is cheap. A capsule costs a call into Python and
 * makes the producer order its work before the launch's stream. It is returned, unconsumed, when
 * the launch is over, and its destructor then frees it.
 */
#include "_native.h"

#include <string.h>

/* ---- the fields of a DLTensor --------------------------------------------------------------- */

static uint32_t dl_dtype(const struct dl_tensor *tensor) {
    static const struct {
        uint8_t code;
        uint8_t bits;
        uint8_t dtype;
    } table[] = {
        {DL_BFLOAT, 16, AOTC_BF16},
        {DL_FLOAT, 16, AOTC_FP16},
        {DL_FLOAT, 32, AOTC_FP32},
        {DL_INT, 32, AOTC_I32},
        {DL_INT, 64, AOTC_I64},
        {DL_BOOL, 8, AOTC_I1},
        {DL_INT, 8, AOTC_I8},
        {DL_UINT, 8, AOTC_U8},
        {DL_FLOAT, 64, AOTC_FP64},
        {DL_INT, 16, AOTC_I16},
        {DL_UINT, 16, AOTC_U16},
        {DL_UINT, 32, AOTC_U32},
        {DL_UINT, 64, AOTC_U64},
        {DL_FLOAT8_E4M3FN, 8, AOTC_FP8E4NV},
        {DL_FLOAT8_E5M2, 8, AOTC_FP8E5},
    };
    for (size_t i = 0; tensor->lanes == 1 && i < sizeof table / sizeof *table; ++i) {
        if (tensor->code == table[i].code && tensor->bits == table[i].bits) {
            return table[i].dtype;
        }
    }
    return AOTC_DTYPE_NONE;
}

static int take_tensor(struct launch *launch, uint32_t index, const struct dl_tensor *tensor,
                       bool is_read_only) {
    const bool is_cuda = tensor->device_type == DL_CUDA;
    struct tensor_view view;
    if (!is_cuda && tensor->device_type != DL_CUDA_HOST && tensor->device_type != DL_CUDA_MANAGED) {
        return native_bad_argument(
            launch, index, "a tensor on the GPU",
            tensor->device_type == DL_CPU
                ? "one in host memory"
                : aotci_text("one on DLPack device type %d", (int)tensor->device_type).chars,
            "move it to the GPU");
    }
    view.address = (uint64_t)(uintptr_t)tensor->data + tensor->byte_offset;
    view.dtype = dl_dtype(tensor);
    view.device = is_cuda ? tensor->device_id : -1;
    view.is_read_only = is_read_only;
    if (view.dtype == AOTC_DTYPE_NONE) {
        view.dtype_text =
            aotci_text("DLPack dtype code %u, %u bits, %u lanes", (unsigned)tensor->code,
                       (unsigned)tensor->bits, (unsigned)tensor->lanes);
    }
    if (native_take_view(launch, index, &view) < 0) {
        return -1;
    }
    if (!native_has_shape(launch, index)) {
        return 0;
    }
    if (tensor->rank < 0 || (tensor->rank > 0 && tensor->shape == NULL)) {
        return native_bad_argument(launch, index, "a tensor with a shape", "one without", NULL);
    }
    struct tensor_storage *storage = native_take_shape(launch, index, (uint32_t)tensor->rank);
    if (storage == NULL) {
        return -1;
    }
    const size_t bytes = (size_t)tensor->rank * sizeof *tensor->shape;
    memcpy(storage->shape, tensor->shape, bytes);
    if (tensor->strides == NULL) {
        native_contiguous_strides(storage);
    } else {
        memcpy(storage->strides, tensor->strides, bytes);
    }
    return 0;
}

/* ---- the exchange table
 * -------------------------------------------------------------------------- */

const struct dl_exchange *native_find_exchange(struct native_state *state, PyTypeObject *type) {
    PyObject *capsule = PyObject_GetAttr((PyObject *)type, state->names.exchange);
    const struct dl_exchange *table = NULL;
    if (capsule != NULL && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
        /* It lives as long as the process. */
        table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    }
    Py_XDECREF(capsule);
    PyErr_Clear();
    while (table != NULL && table->version.major != DL_MAJOR) {
        table = table->previous;
    }
    return table != NULL && table->tensor_from_object != NULL && table->current_stream != NULL
               ? table
               : NULL;
}

static int take_exchange(struct launch *launch, uint32_t index, const struct dl_tensor *tensor,
                         const struct dl_exchange *exchange) {
    if (take_tensor(launch, index, tensor, false) < 0) {
        return -1;
    }
    if (launch->has_stream || launch->asked == exchange || tensor->device_type != DL_CUDA) {
        return 0;
    }
    void *stream; /* set only by the call: see _native_kernel.c */
    if (exchange->current_stream(DL_CUDA, tensor->device_id, &stream) != 0) {
        return native_bad_protocol(launch, index,
                                   "a tensor whose current stream its framework can tell");
    }
    launch->asked = exchange;
    return native_vote_stream(launch, index, (uintptr_t)stream);
}

/* Read a tensor; torch's table reports pinned memory as host memory. */
static int describe(PyObject *object, const struct dl_exchange *exchange,
                    struct dl_tensor *tensor) {
    if (exchange->tensor_from_object(object, tensor) != 0) {
        return -1;
    }
    if (tensor->device_type == DL_CPU && native_is_pinned(object)) {
        /* The query ran code of the framework: only later reads count. */
        if (exchange->tensor_from_object(object, tensor) != 0) {
            return -1;
        }
        if (tensor->device_type == DL_CPU) {
            tensor->device_type = DL_CUDA_HOST;
        }
    }
    return 0;
}

int native_read_exchange(struct launch *launch, uint32_t index, PyObject *object,
                         const struct dl_exchange *exchange) {
    struct dl_tensor tensor;
    if (describe(object, exchange, &tensor) != 0) {
        return native_bad_protocol(launch, index, "a tensor that DLPack can describe");
    }
    return take_exchange(launch, index, &tensor, exchange);
}

int native_take_known(struct launch *launch, uint32_t index, const struct known_tensor *known) {
    return take_exchange(launch, index, &known->tensor, known->exchange);
}

/* ---- capsules
 * ------------------------------------------------------------------------------------ */

/* Request a capsule from an object, ordered before the launch's stream. */
static PyObject *export(struct launch *launch, PyObject *object) {
    struct native_state *state = launch->state;
    /* In DLPack 1 is the legacy default stream, 2 the per-thread one; 0 would be ambiguous. */
    PyObject *stream = PyLong_FromUnsignedLongLong(launch->stream == 0 ? 1 : launch->stream);
    if (stream == NULL) {
        return NULL;
    }
    PyObject *const args[] = {object, stream, state->dlpack_version};
    PyObject *method = state->names.dlpack;
    PyObject *capsule =
        PyObject_VectorcallMethod(method, args, 1, state->dlpack_versioned_keywords);
    if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear(); /* a producer from before DLPack 1.0 */
        capsule = PyObject_VectorcallMethod(method, args, 1, state->dlpack_keywords);
    }
    Py_DECREF(stream);
    return capsule;
}

static int check_device(struct launch *launch, uint32_t index, PyObject *object) {
    PyObject *device = PyObject_CallMethodNoArgs(object, launch->state->names.dlpack_device);
    int type = 0;
    int ordinal = 0;
    const bool valid =
        device != NULL && PyTuple_Check(device) && PyArg_ParseTuple(device, "ii", &type, &ordinal);
    Py_XDECREF(device);
    if (!valid) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "__dlpack_device__ gives no pair of numbers");
        }
        return native_bad_protocol(launch, index, "a tensor with a DLPack device");
    }
    if (type != DL_CUDA && type != DL_CUDA_HOST && type != DL_CUDA_MANAGED) {
        return native_bad_argument(launch, index, "a tensor on the GPU",
                                   type == DL_CPU
                                       ? "one in host memory"
                                       : aotci_text("one on DLPack device type %d", type).chars,
                                   "move it to the GPU");
    }
    return 0;
}

int native_read_dlpack(struct launch *launch, uint32_t index, PyObject *object) {
    if (check_device(launch, index, object) < 0) {
        return -1;
    }
    PyObject *capsule = export(launch, object);
    if (capsule == NULL) {
        return native_bad_protocol(launch, index, "a tensor that DLPack can describe");
    }
    launch->held[launch->held_count++] = capsule;
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        const struct dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
        return take_tensor(launch, index, &managed->tensor, false);
    }
    if (!PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        return native_bad_argument(launch, index, "a DLPack capsule",
                                   native_type_text(capsule).chars, NULL);
    }
    const struct dl_managed_versioned *managed =
        PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (managed->version.major != DL_MAJOR) {
        return native_bad_argument(
            launch, index, aotci_text("DLPack %d.x", DL_MAJOR).chars,
            aotci_text("%u.%u", managed->version.major, managed->version.minor).chars, NULL);
    }
    if ((managed->flags & DL_FLAG_IS_COPIED) != 0) {
        return native_bad_argument(launch, index, "the tensor's own memory",
                                   "a copy that DLPack made",
                                   "pass a tensor that can be exported without a copy");
    }
    return take_tensor(launch, index, &managed->tensor, (managed->flags & DL_FLAG_READ_ONLY) != 0);
}
