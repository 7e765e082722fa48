/* _native_stream.c: the stream of a launch, and its context.
 *
 * The stream is the caller's; otherwise the current stream of the tensors' framework; otherwise the
 * legacy default stream. The context is the stream's; for a default stream it belongs to the
 * tensors' device, which need not be the current one. So a launch goes where an operation of the
 * framework would go.
 */
#include "_native.h"

/* CU_STREAM_LEGACY and CU_STREAM_PER_THREAD; like NULL they belong to the current context. */
enum { STREAM_LEGACY = 1, LAST_SPECIAL_STREAM = 2 };

static struct aotci_text stream_text(uintptr_t stream) {
    return aotci_text("stream %#zx", (size_t)stream);
}

/* Read an attribute that may be missing. 1, 0 if there is none, -1 on any other failure. */
static int read_attribute(PyObject *object, PyObject *name, PyObject **value) {
    *value = PyObject_GetAttr(object, name);
    if (*value != NULL) {
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

/* The handle of an object as a stream; NULL without an exception if it is not a stream. */
static PyObject *stream_handle(struct native_state *state, PyObject *object) {
    PyObject *value = NULL;
    int found = read_attribute(object, state->names.cuda_stream, &value); /* torch */
    if (found == 0) {
        found = read_attribute(object, state->names.ptr, &value); /* CuPy */
    }
    if (found != 0) {
        return value;
    }
    /* cuda.core and others. */
    found = read_attribute(object, state->names.cuda_stream_protocol, &value);
    if (found <= 0) {
        return NULL;
    }
    /* A method; early versions had an attribute. */
    PyObject *pair = PyCallable_Check(value) ? PyObject_CallNoArgs(value) : Py_NewRef(value);
    PyObject *handle = NULL;
    Py_DECREF(value);
    if (pair != NULL && PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2) {
        handle = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
    }
    Py_XDECREF(pair);
    return handle;
}

int native_read_stream(struct launch *launch, PyObject *object) {
    if (object == Py_None) {
        return 0;
    }
    PyObject *handle =
        PyIndex_Check(object) ? Py_NewRef(object) : stream_handle(launch->state, object);
    PyObject *number = handle == NULL ? NULL : PyNumber_Index(handle);
    const unsigned long long value = number == NULL ? 0 : PyLong_AsUnsignedLongLong(number);
    Py_XDECREF(handle);
    Py_XDECREF(number);
    if (number == NULL || PyErr_Occurred()) {
        return NATIVE_FAIL(launch->state, AOTC_ERROR_ARG, .file = launch->kernel->handle->path,
                           .kernel = PyUnicode_AsUTF8(launch->kernel->name), .field = "stream",
                           .expected =
                               "a handle, or an object with cuda_stream, ptr or __cuda_stream__",
                           .got = native_type_text(object).chars);
    }
    launch->has_stream = true;
    launch->stream = (uintptr_t)value;
    return 0;
}

int native_vote_stream(struct launch *launch, uint32_t index, uintptr_t stream) {
    if (stream == STREAM_LEGACY) {
        stream = 0; /* two names of one stream */
    }
    if (launch->has_stream) {
        return 0;
    }
    if (!launch->has_vote) {
        launch->has_vote = true;
        launch->voter = index;
        launch->stream = stream;
        return 0;
    }
    if (launch->stream == stream) {
        return 0;
    }
    const char *first = PyUnicode_AsUTF8(launch->kernel->params[launch->voter].name);
    return native_bad_argument(
        launch, index,
        aotci_text("an array of %s, as '%s'", stream_text(launch->stream).chars, first).chars,
        stream_text(stream).chars, "order the streams, and say with stream= where to launch");
}

int native_note_device(struct launch *launch, uint32_t index, int32_t device) {
    if (launch->device < 0) {
        launch->device = device;
        launch->device_param = index;
        return 0;
    }
    if (launch->device == device) {
        return 0;
    }
    const char *first = PyUnicode_AsUTF8(launch->kernel->params[launch->device_param].name);
    return native_bad_argument(
        launch, index,
        aotci_text("a tensor on device %d, as '%s'", (int)launch->device, first).chars,
        aotci_text("device %d", (int)device).chars, "move one of them");
}

/* ---- contexts ------------------------------------------------------------------------------- */

static int wrong_device(const struct launch *launch, const char *expected, const char *remedy) {
    return native_bad_argument(launch, launch->device_param, expected,
                               aotci_text("one on device %d", (int)launch->device).chars, remedy);
}

/* Enter the library's context on the tensors' device, or any if unknown. */
static int enter_loaded(const struct launch *launch, const struct aotci_context *first,
                        bool *entered) {
    const struct aotc_archive *archive = launch->kernel->handle->archive;
    const bool can_push = aotci_use_entries(archive, DRIVER_STACK, NULL) == AOTC_OK;
    for (const struct aotci_context *context = first; context != NULL; context = context->next) {
        const CUcontext handle = aotci_context_handle(context);
        if (handle != NULL && (launch->device < 0 || context->device == launch->device)) {
            /* A failure is reported by the C library: it finds the same context missing. */
            *entered = can_push && archive->driver.context_push(handle) == CUDA_SUCCESS;
            return 0;
        }
    }
    return wrong_device(launch, "a tensor on a device with the library loaded",
                        aotci_text("call load(device=%d)", (int)launch->device).chars);
}

int native_enter(const struct launch *launch, bool *entered) {
    const struct aotc_archive *archive = launch->kernel->handle->archive;
    const struct aotci_context *first =
        atomic_load_explicit(&archive->contexts, memory_order_acquire);
    const bool is_special = launch->stream <= LAST_SPECIAL_STREAM;
    CUcontext current; /* set only by the call: see _native_kernel.c */
    if (first == NULL || aotci_is_forked(archive)) {
        return 0; /* the C library reports it */
    }
    if (!is_special && launch->device < 0) {
        return 0;
    }
    const CUresult result =
        is_special ? archive->driver.context_get_current(&current)
                   : aotci_stream_context(archive, (CUstream)launch->stream, &current);
    if (result != CUDA_SUCCESS) {
        return 0; /* as above */
    }
    const struct aotci_context *own = first;
    while (own != NULL && (current == NULL || aotci_context_handle(own) != current)) {
        own = own->next;
    }
    /* In CUDA a device is its ordinal. */
    const bool fits = launch->device < 0 || (own != NULL && own->device == launch->device);
    if (is_special && (current == NULL || !fits)) {
        return enter_loaded(launch, first, entered);
    }
    if (own != NULL && !fits) {
        return wrong_device(launch,
                            aotci_text("a tensor on device %d, as the stream", own->device).chars,
                            "use a stream of the tensor's device");
    }
    return 0;
}

void native_leave(const struct launch *launch) {
    CUcontext context = NULL;
    (void)launch->kernel->handle->archive->driver.context_pop(&context);
}
