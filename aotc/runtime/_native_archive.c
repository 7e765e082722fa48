/* _native_archive.c: Archive, an open archive as a Python object.
 *
 * The object owns a handle, shared by its kernels. Closing takes the archive out of the handle, so
 * a kernel in use afterwards reports that it is closed. Loading runs without Python's lock, on a
 * reference of its own, and takes the lock back for each decompressed blob.
 */
#include "_native.h"

#include <string.h>

struct native_archive {
    PyObject_HEAD struct native_state *state;
    struct native_handle *handle;
    PyObject *kernels; /* name -> Kernel, as far as requested */
};

/* ---- handles -------------------------------------------------------------------------------- */

/* Decode a blob with the Python function. An exception stays set: it becomes the cause of the
 * error. */
static int decompress(void *user, const void *source, size_t source_bytes, void *target,
                      size_t target_bytes) {
    const struct native_handle *handle = user;
    const PyGILState_STATE lock = PyGILState_Ensure();
    PyObject *raw = NULL;
    /* A copy: the function may keep it longer than the archive exists. */
    PyObject *frame = PyBytes_FromStringAndSize(source, (Py_ssize_t)source_bytes);
    if (frame != NULL) {
        raw = PyObject_CallFunction(handle->decompress, "On", frame, (Py_ssize_t)target_bytes);
        Py_DECREF(frame);
    }
    const bool decoded =
        raw != NULL && PyBytes_Check(raw) && (size_t)PyBytes_GET_SIZE(raw) == target_bytes;
    if (decoded) {
        memcpy(target, PyBytes_AS_STRING(raw), target_bytes);
    }
    Py_XDECREF(raw);
    PyGILState_Release(lock);
    return decoded ? 0 : 1;
}

aotc_archive *native_hold(const struct native_handle *handle) {
    aotc_retain(handle->archive);
    return handle->archive;
}

/* The last reference unloads, without Python's lock: it may wait for the GPU. */
void native_let_go(aotc_archive *archive) {
    Py_BEGIN_ALLOW_THREADS aotc_release(archive);
    Py_END_ALLOW_THREADS
}

static void close_handle(struct native_handle *handle) {
    aotc_archive *archive = handle->archive;
    handle->archive = NULL;
    if (archive != NULL) {
        native_let_go(archive);
    }
}

void native_handle_release(struct native_handle *handle) {
    if (handle != NULL && --handle->references == 0) {
        close_handle(handle);
        Py_XDECREF(handle->decompress);
        PyMem_Free(handle->path);
        PyMem_Free(handle);
    }
}

static struct native_handle *handle_new(PyObject *decompress_function, const char *path) {
    struct native_handle *handle = PyMem_Calloc(1, sizeof *handle);
    char *copy = PyMem_Malloc(strlen(path) + 1);
    if (handle == NULL || copy == NULL) {
        PyMem_Free(handle);
        PyMem_Free(copy);
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(copy, path, strlen(path) + 1);
    handle->references = 1;
    handle->path = copy;
    handle->decompress = Py_NewRef(decompress_function);
    return handle;
}

/* ---- opening -------------------------------------------------------------------------------- */

static int open_file(struct native_archive *self, const char *path,
                     const aotc_open_options *options) {
    aotc_archive *archive = NULL;
    aotc_status status;
    aotc_error error;
    error.struct_size = (uint32_t)sizeof error;
    Py_BEGIN_ALLOW_THREADS status = aotc_open_file(path, options, &archive, &error);
    Py_END_ALLOW_THREADS self->handle->archive = archive;
    return status == AOTC_OK ? 0 : native_raise(self->state, &error);
}

static int open_memory(struct native_archive *self, PyObject *source, aotc_open_options *options) {
    Py_buffer buffer;
    aotc_error error;
    error.struct_size = (uint32_t)sizeof error;
    if (PyObject_GetBuffer(source, &buffer, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    options->flags |= AOTC_OPEN_COPY;
    const aotc_status status =
        aotc_open_memory(buffer.buf == NULL ? "" : buffer.buf, (size_t)buffer.len, options,
                         &self->handle->archive, &error);
    PyBuffer_Release(&buffer);
    return status == AOTC_OK ? 0 : native_raise(self->state, &error);
}

/* Archive(source, decompress, verify, driver): `source` is bytes-like, or the path as bytes in a
 * 1-tuple. */
static PyObject *archive_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *source = NULL;
    PyObject *decompress_function = NULL;
    int verify = 0;
    const char *driver = NULL;
    PyObject *path = NULL;
    if (keywords != NULL && PyDict_GET_SIZE(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "Archive() takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OOpz", &source, &decompress_function, &verify, &driver)) {
        return NULL;
    }
    const bool is_file = PyTuple_Check(source);
    if (is_file && !PyArg_ParseTuple(source, "O&", PyUnicode_FSConverter, &path)) {
        return NULL;
    }
    struct native_state *state = native_state_of(type);
    struct native_archive *self =
        state == NULL ? NULL : (struct native_archive *)type->tp_alloc(type, 0);
    if (self == NULL) {
        Py_XDECREF(path);
        return NULL;
    }
    self->state = state;
    self->kernels = PyDict_New();
    self->handle = handle_new(decompress_function, is_file ? PyBytes_AS_STRING(path) : "memory");
    int result = -1;
    if (self->kernels != NULL && self->handle != NULL) {
        aotc_open_options options = AOTC_OPEN_OPTIONS_INIT;
        options.flags = verify ? AOTC_OPEN_VERIFY_BLOBS : 0;
        options.decompress = decompress;
        options.decompress_user = self->handle;
        options.driver_path = driver;
        result = is_file ? open_file(self, PyBytes_AS_STRING(path), &options)
                         : open_memory(self, source, &options);
    }
    /* A library needs the names of all kernels, so complete the root now. */
    aotc_error error;
    error.struct_size = (uint32_t)sizeof error;
    if (result == 0 && aotci_root_complete(self->handle->archive, &error) != AOTC_OK) {
        result = native_raise(state, &error);
    }
    Py_XDECREF(path);
    if (result < 0) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

static void archive_dealloc(PyObject *object) {
    struct native_archive *self = (struct native_archive *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->kernels);
    native_handle_release(self->handle);
    type->tp_free(object);
    Py_DECREF(type);
}

static int archive_traverse(PyObject *object, visitproc visit, void *arg) {
    struct native_archive *self = (struct native_archive *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->kernels);
    return 0;
}

static int archive_clear(PyObject *object) {
    struct native_archive *self = (struct native_archive *)object;
    Py_CLEAR(self->kernels);
    return 0;
}

/* ---- use ------------------------------------------------------------------------------------ */

static int check_open(const struct native_archive *self) {
    if (self->handle->archive != NULL && self->kernels != NULL) {
        return 0;
    }
    return NATIVE_FAIL(self->state, AOTC_ERROR_STATE, .file = self->handle->path,
                       .field = "library", .expected = "an open one", .got = "one that was closed",
                       .remedy = "load it again");
}

static PyObject *archive_subscript(PyObject *object, PyObject *name) {
    struct native_archive *self = (struct native_archive *)object;
    if (check_open(self) < 0) {
        return NULL;
    }
    PyObject *found = Py_XNewRef(PyDict_GetItemWithError(self->kernels, name));
    if (PyErr_Occurred() || check_open(self) < 0) { /* a name may have code of its own */
        Py_XDECREF(found);
        return NULL;
    }
    if (found != NULL) {
        return found;
    }
    const char *text = PyUnicode_Check(name) ? native_chars(name) : NULL;
    if (text == NULL) {
        return PyErr_Occurred()
                   ? NULL
                   : PyErr_Format(PyExc_TypeError, "expected a kernel's name, got %.200s",
                                  Py_TYPE(name)->tp_name);
    }
    const aotc_kernel *kernel = NULL;
    aotc_error error;
    error.struct_size = (uint32_t)sizeof error;
    /* Without Python's lock: another thread that opens a kernel waits for it in decompression. */
    aotc_archive *archive = native_hold(self->handle);
    aotc_status status;
    Py_BEGIN_ALLOW_THREADS status = aotc_kernel_get(archive, text, &kernel, &error);
    Py_END_ALLOW_THREADS if (status != AOTC_OK) {
        native_let_go(archive);
        (void)native_raise(self->state, &error);
        return NULL;
    }
    PyObject *made = native_kernel_new(self->state, self->handle, kernel);
    /* Another thread may have made one meanwhile. */
    found = made == NULL ? NULL : PyDict_SetDefault(self->kernels, name, made);
    Py_XINCREF(found);
    Py_XDECREF(made);
    native_let_go(archive);
    return found;
}

int native_load(struct native_state *state, struct native_handle *handle,
                aotc_load_options *options) {
    aotc_archive *archive = native_hold(handle);
    handle->references += 1; /* the decompression hook uses it */
    aotc_status status;
    aotc_error error;
    error.struct_size = (uint32_t)sizeof error;
    Py_BEGIN_ALLOW_THREADS status = aotc_load(archive, options, &error);
    if (status == AOTC_ERROR_STATE && options->device == AOTC_CURRENT_CONTEXT) {
        options->device = 0;
        status = aotc_load(archive, options, &error);
    }
    aotc_release(archive);
    Py_END_ALLOW_THREADS native_handle_release(handle);
    return status == AOTC_OK ? 0 : native_raise(state, &error);
}

/* Read the ordinal of a device. 0 or -1. */
static int read_device(const struct native_archive *self, PyObject *device, int32_t *result) {
    const long ordinal = PyLong_AsLong(device);
    if (ordinal >= 0 && ordinal <= INT32_MAX) {
        *result = (int32_t)ordinal;
        return 0;
    }
    const struct aotci_text got =
        PyErr_Occurred() ? native_type_text(device) : aotci_text("%ld", ordinal);
    PyErr_Clear();
    return NATIVE_FAIL(self->state, AOTC_ERROR_ARG, .file = self->handle->path, .field = "device",
                       .expected = "an ordinal, from 0 on", .got = got.chars);
}

/* _load(device, kernel, lazy): `device` None is the current one, or 0 if no context is current. */
static PyObject *archive_load(PyObject *object, PyObject *args) {
    struct native_archive *self = (struct native_archive *)object;
    PyObject *device = NULL;
    const char *kernel = NULL;
    int lazy = 0;
    aotc_load_options options = AOTC_LOAD_OPTIONS_INIT;
    if (!PyArg_ParseTuple(args, "Oz|p", &device, &kernel, &lazy) ||
        (device != Py_None && read_device(self, device, &options.device) < 0)) {
        return NULL;
    }
    options.kernel = kernel;
    options.flags = lazy ? AOTC_LOAD_LAZY : 0;
    if (check_open(self) < 0) {
        return NULL;
    }
    if (native_load(self->state, self->handle, &options) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *archive_unload(PyObject *object, PyObject *device) {
    struct native_archive *self = (struct native_archive *)object;
    int32_t ordinal = 0;
    if (read_device(self, device, &ordinal) < 0 || check_open(self) < 0) {
        return NULL;
    }
    aotc_archive *archive = native_hold(self->handle);
    aotc_status status;
    aotc_error error;
    error.struct_size = (uint32_t)sizeof error;
    Py_BEGIN_ALLOW_THREADS status = aotc_unload(archive, ordinal, &error);
    aotc_release(archive);
    Py_END_ALLOW_THREADS if (status != AOTC_OK) {
        (void)native_raise(self->state, &error);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *archive_tensor_map(PyObject *object, PyObject *args, PyObject *keywords) {
    static char *words[] = {"tensor", "block", NULL};
    struct native_archive *self = (struct native_archive *)object;
    PyObject *tensor = NULL;
    PyObject *block = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO:tensor_map", words, &tensor, &block) ||
        check_open(self) < 0) {
        return NULL;
    }
    return native_tensor_map(self->state, self->handle, tensor, block);
}

static PyObject *archive_close(PyObject *object, PyObject *Py_UNUSED(unused)) {
    struct native_archive *self = (struct native_archive *)object;
    close_handle(self->handle);
    Py_RETURN_NONE;
}

static PyObject *archive_names(PyObject *object, PyObject *Py_UNUSED(unused)) {
    struct native_archive *self = (struct native_archive *)object;
    aotc_archive_info info = {.struct_size = (uint32_t)sizeof info};
    if (check_open(self) < 0) {
        return NULL;
    }
    aotc_archive *archive = native_hold(self->handle);
    (void)aotc_archive_get_info(archive, &info);
    PyObject *names = PyTuple_New(info.kernel_count);
    for (uint32_t i = 0; names != NULL && i < info.kernel_count; ++i) {
        const char *text = NULL;
        (void)aotc_archive_get_kernel_name(archive, i, &text);
        PyObject *name = PyUnicode_FromString(text);
        if (name == NULL) {
            Py_CLEAR(names);
        } else {
            PyTuple_SET_ITEM(names, i, name);
        }
    }
    native_let_go(archive);
    return names;
}

static PyObject *archive_identity(PyObject *object, PyObject *Py_UNUSED(unused)) {
    struct native_archive *self = (struct native_archive *)object;
    aotc_archive_info info = {.struct_size = (uint32_t)sizeof info};
    if (check_open(self) < 0) {
        return NULL;
    }
    aotc_archive *archive = native_hold(self->handle);
    (void)aotc_archive_get_info(archive, &info);
    PyObject *identity = Py_BuildValue("(sss)", info.name, info.version, info.toolchain);
    native_let_go(archive);
    return identity;
}

static PyObject *archive_path(PyObject *object, void *Py_UNUSED(closure)) {
    return PyUnicode_DecodeFSDefault(((struct native_archive *)object)->handle->path);
}

static PyObject *archive_closed(PyObject *object, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((struct native_archive *)object)->handle->archive == NULL);
}

static PyMethodDef archive_methods[] = {
    {"_load", archive_load, METH_VARARGS, "Load a kernel, or all for None, on a device."},
    {"_names", archive_names, METH_NOARGS, "Return the names of the kernels, sorted."},
    {"_identity", archive_identity, METH_NOARGS, "Return name, version and toolchain."},
    {"_unload", archive_unload, METH_O, "Unload everything from a device."},
    {"tensor_map", (PyCFunction)(void (*)(void))archive_tensor_map, METH_VARARGS | METH_KEYWORDS,
     "tensor_map($self, tensor, block)\n--\n\n"
     "Encode the map of a tensor for kernels that take maps from memory: 128 bytes, which belong at "
     "a multiple of 64 there. `block` has the extents of the blocks that the kernel's source "
     "names."},
    {"close", archive_close, METH_NOARGS,
     "Unload everything. The launches must have finished; kernels taken from here can no longer be "
     "used."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef archive_getters[] = {
    {"path", archive_path, NULL, "Path of the file, or \"memory\".", NULL},
    {"closed", archive_closed, NULL, "Whether `close` was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot archive_slots[] = {
    {Py_tp_doc, "An open archive; use it through aotc.runtime.Library."},
    {Py_tp_new, archive_new},
    {Py_tp_dealloc, archive_dealloc},
    {Py_tp_traverse, archive_traverse},
    {Py_tp_clear, archive_clear},
    {Py_mp_subscript, archive_subscript},
    {Py_tp_methods, archive_methods},
    {Py_tp_getset, archive_getters},
    {0, NULL},
};

PyType_Spec native_archive_spec = {
    .name = "aotc.runtime._native.Archive",
    .basicsize = sizeof(struct native_archive),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = archive_slots,
};
