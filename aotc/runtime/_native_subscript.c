/* _native_subscript.c: function[grid] of classes that are not the extension's.
 *
 *     GridSubscript  `__getitem__` of a class whose objects have a launcher
 */
#include "_native_launcher.h"

#include <structmember.h>

/* `__getitem__` of classes: the object's launcher, an attribute of it, is asked for the grid. */
struct native_subscript {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *attribute; /* interned */
};

/* An attribute that is in the object's own dictionary after it was asked for once: looking there first takes less
 * time. A new reference. */
static PyObject *attribute_of(PyObject *object, PyObject *name) {
    PyObject *dictionary = PyObject_GenericGetDict(object, NULL);
    PyObject *found = dictionary != NULL && PyDict_CheckExact(dictionary)
                          ? Py_XNewRef(PyDict_GetItemWithError(dictionary, name))
                          : NULL;
    Py_XDECREF(dictionary);
    if (found == NULL) {
        PyErr_Clear();
        found = PyObject_GetAttr(object, name);
    }
    return found;
}

static PyObject *call_subscript(PyObject *object, PyObject *const *args, size_t flagged_count,
                                PyObject *keywords) {
    if (PyVectorcall_NARGS(flagged_count) != 2 || keywords != NULL) {
        PyErr_SetString(PyExc_TypeError, "__getitem__ takes an object and a grid");
        return NULL;
    }
    PyObject *launcher = attribute_of(args[0], ((struct native_subscript *)object)->attribute);
    PyObject *launch = launcher == NULL ? NULL : PyObject_GetItem(launcher, args[1]);
    Py_XDECREF(launcher);
    return launch;
}

static PyObject *subscript_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords)) {
    PyObject *attribute = NULL;
    if (!PyArg_ParseTuple(args, "U", &attribute)) {
        return NULL;
    }
    struct native_subscript *self = (struct native_subscript *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = call_subscript;
        self->attribute = Py_NewRef(attribute);
        PyUnicode_InternInPlace(&self->attribute);
    }
    return (PyObject *)self;
}

static PyObject *subscript_bind(PyObject *object, PyObject *instance, PyObject *Py_UNUSED(owner)) {
    return instance == NULL || instance == Py_None ? Py_NewRef(object)
                                                   : PyMethod_New(object, instance);
}

static void subscript_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(((struct native_subscript *)object)->attribute);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMemberDef subscript_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(struct native_subscript, vectorcall), READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot subscript_slots[] = {
    {Py_tp_doc, "`__getitem__` of a class whose objects have a launcher as this attribute."},
    {Py_tp_new, subscript_new},
    {Py_tp_dealloc, subscript_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, subscript_bind},
    {Py_tp_members, subscript_members},
    {0, NULL},
};

PyType_Spec native_subscript_spec = {
    .name = "aotc.runtime._native.GridSubscript",
    .basicsize = sizeof(struct native_subscript),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = subscript_slots,
};
