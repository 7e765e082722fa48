/* _native.c: the module: its state, its types, and the conversion of errors to exceptions.
 *
 * All lasting data is in the module's state; there are no globals, so the module can be imported,
 * dropped and imported again.
 */
#include "_native_launcher.h"

#include <string.h>

/* ---- errors --------------------------------------------------------------------------------- */

PyObject *native_take_exception(void) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type = NULL;
    PyObject *value = NULL;
    PyObject *traceback = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    if (type == NULL) {
        return NULL;
    }
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        (void)PyException_SetTraceback(value, traceback);
    }
    Py_DECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

/* Texts of the library may be truncated within a character. */
static PyObject *decode(const char *text) {
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

int native_raise(struct native_state *state, const aotc_error *error) {
    PyObject *cause = native_take_exception();
    if (cause != NULL && !PyErr_GivenExceptionMatches(cause, PyExc_Exception)) {
        PyErr_SetObject((PyObject *)Py_TYPE(cause),
                        cause); /* KeyboardInterrupt and the like propagate */
        Py_DECREF(cause);
        return -1;
    }
    PyObject *exception = PyObject_CallFunction(
        state->make_error, "iiiNNNNNNN", error->status, error->cuda, error->os_error,
        decode(error->message), decode(error->file), decode(error->kernel), decode(error->field),
        decode(error->expected), decode(error->got), decode(error->remedy));
    if (exception == NULL) {
        Py_XDECREF(cause);
        return -1;
    }
    if (cause != NULL) {
        PyException_SetCause(exception, cause);
    }
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_DECREF(exception);
    return -1;
}

int native_fail(struct native_state *state, aotc_status status, const struct aotci_detail *detail) {
    aotc_error error;
    error.struct_size = (uint32_t)sizeof error;
    (void)aotci_fail(&error, status, detail);
    return native_raise(state, &error);
}

/* ---- state ---------------------------------------------------------------------------------- */

struct native_state *native_state_of(const PyTypeObject *type) {
    for (; type != NULL; type = type->tp_base) {
        PyObject *module = (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0
                               ? ((const PyHeapTypeObject *)type)->ht_module
                               : NULL;
        if (module != NULL && PyModule_GetDef(module) == &native_module) {
            return PyModule_GetState(module);
        }
    }
    PyErr_SetString(PyExc_SystemError, "aotc.runtime._native is gone");
    return NULL;
}

static int intern_names(struct native_names *names) {
    const struct {
        PyObject **slot;
        const char *text;
    } table[] = {
        {&names->cuda_array_interface, "__cuda_array_interface__"},
        {&names->data_ptr, "data_ptr"},
        {&names->dtype, "dtype"},
        {&names->dlpack, "__dlpack__"},
        {&names->dlpack_device, "__dlpack_device__"},
        {&names->exchange, "__dlpack_c_exchange_api__"},
        {&names->data, "data"},
        {&names->typestr, "typestr"},
        {&names->shape, "shape"},
        {&names->strides, "strides"},
        {&names->stream, "stream"},
        {&names->max_version, "max_version"},
        {&names->cuda_stream, "cuda_stream"},
        {&names->ptr, "ptr"},
        {&names->cuda_stream_protocol, "__cuda_stream__"},
        {&names->grid, "grid"},
        {&names->config, "config"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; ++i) {
        *table[i].slot = PyUnicode_InternFromString(table[i].text);
        if (*table[i].slot == NULL) {
            return -1;
        }
    }
    return 0;
}

static int add_types(PyObject *module, struct native_state *state) {
    const struct {
        PyTypeObject **slot;
        PyType_Spec *spec;
    } table[] = {
        {&state->archive_type, &native_archive_spec},
        {&state->kernel_type, &native_kernel_spec},
        {&state->launcher_type, &native_launcher_spec},
        {&state->grid_launch_type, &native_grid_launch_spec},
        {&state->subscript_type, &native_subscript_spec},
        {&state->jitted_type, &native_jitted_spec},
        {&state->chained_type, &native_chained_spec},
        {&state->chain_type, &native_chain_spec},
        {&state->chain_launch_type, &native_chain_launch_spec},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; ++i) {
        *table[i].slot = (PyTypeObject *)PyType_FromModuleAndSpec(module, table[i].spec, NULL);
        if (*table[i].slot == NULL || PyModule_AddType(module, *table[i].slot) < 0) {
            return -1;
        }
    }
    return 0;
}

static int execute(PyObject *module) {
    struct native_state *state = PyModule_GetState(module);
    PyObject *errors = PyImport_ImportModule("aotc.runtime.errors");
    if (errors == NULL) {
        return -1;
    }
    state->make_error = PyObject_GetAttrString(errors, "make");
    Py_DECREF(errors);
    if (state->make_error == NULL || intern_names(&state->names) < 0 ||
        add_types(module, state) < 0) {
        return -1;
    }
    state->dlpack_keywords = PyTuple_Pack(1, state->names.stream);
    state->dlpack_versioned_keywords =
        PyTuple_Pack(2, state->names.stream, state->names.max_version);
    state->dlpack_version = Py_BuildValue("(ii)", DL_MAJOR, DL_MINOR);
    if (state->dlpack_keywords == NULL || state->dlpack_versioned_keywords == NULL ||
        state->dlpack_version == NULL) {
        return -1;
    }
    return PyModule_AddIntConstant(module, "VERSION_NUMBER", (long)aotc_version());
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
    struct native_state *state = PyModule_GetState(module);
    Py_VISIT(state->archive_type);
    Py_VISIT(state->kernel_type);
    Py_VISIT(state->launcher_type);
    Py_VISIT(state->grid_launch_type);
    Py_VISIT(state->subscript_type);
    Py_VISIT(state->jitted_type);
    Py_VISIT(state->chained_type);
    Py_VISIT(state->chain_type);
    Py_VISIT(state->chain_launch_type);
    Py_VISIT(state->make_error);
    Py_VISIT(state->describe);
    Py_VISIT(state->torch.tensor);
    Py_VISIT(state->torch.current_raw_stream);
    for (size_t i = 0; i < TYPE_PLACES; ++i) {
        Py_VISIT(state->types[i].type);
    }
    return 0;
}

static int clear(PyObject *module) {
    struct native_state *state = PyModule_GetState(module);
    PyObject **const names = (PyObject **)&state->names;
    PyObject **const torch[] = {
        &state->torch.tensor,
        &state->torch.data_ptr,
        &state->torch.get_device,
        &state->torch.dtype,
        &state->torch.shape,
        &state->torch.stride,
        &state->torch.current_raw_stream,
    };
    native_free_spare(&state->spare_grid_launch);
    native_free_spare(&state->spare_chain_launch);
    Py_CLEAR(state->archive_type);
    Py_CLEAR(state->kernel_type);
    Py_CLEAR(state->launcher_type);
    Py_CLEAR(state->grid_launch_type);
    Py_CLEAR(state->subscript_type);
    Py_CLEAR(state->jitted_type);
    Py_CLEAR(state->chained_type);
    Py_CLEAR(state->chain_type);
    Py_CLEAR(state->chain_launch_type);
    Py_CLEAR(state->make_error);
    Py_CLEAR(state->describe);
    Py_CLEAR(state->dlpack_keywords);
    Py_CLEAR(state->dlpack_versioned_keywords);
    Py_CLEAR(state->dlpack_version);
    for (size_t i = 0; i < sizeof state->names / sizeof *names; ++i) {
        Py_CLEAR(names[i]);
    }
    for (size_t i = 0; i < sizeof torch / sizeof *torch; ++i) {
        Py_CLEAR(*torch[i]);
    }
    for (uint32_t i = 0; i < state->torch.dtype_count; ++i) {
        Py_CLEAR(state->torch.dtypes[i].object);
    }
    state->torch.dtype_count = 0;
    for (size_t i = 0; i < TYPE_PLACES; ++i) {
        Py_CLEAR(state->types[i].type);
    }
    return 0;
}

static void release(void *module) { (void)clear(module); }

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030C0000
    /* The decompression hook finds its interpreter by the thread alone. */
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

struct PyModuleDef native_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "aotc.runtime._native",
    .m_doc = "The C library as a Python extension; use it through aotc.runtime.",
    .m_size = sizeof(struct native_state),
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&native_module); }
