/* _native_subscript.c: function[grid] for classes outside of the extension.
 *
 *   GridSubscript    `__getitem__` of a class whose objects have a launcher
 *   Jitted, Chained  bases of classes whose objects have a launcher, or a chain: subscription is in the type, and only the object's launcher is looked up by name
 */
#include "_native_launcher.h"

#include <structmember.h>

/* `__getitem__` of classes: subscripts the launcher, an attribute of the object. */
struct native_subscript {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *attribute; /* interned */
};

/* An attribute that is in the object's own dictionary after its first lookup: looking there first
 * is faster. A new reference. */
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

/* ---- bases of classes ------------------------------------------------------------------------ */

struct native_subscripted {
    PyObject_HEAD PyObject *launcher; /* the attribute after its first lookup, or NULL */
};

static PyObject *subscript_kept(PyObject *object, const char *attribute, PyObject *grid) {
    struct native_subscripted *self = (struct native_subscripted *)object;
    if (self->launcher == NULL) {
        PyObject *launcher = PyObject_GetAttrString(object, attribute);
        if (launcher == NULL) {
            return NULL;
        }
        Py_XSETREF(self->launcher, launcher);
    }
    PyObject *launcher = Py_NewRef(self->launcher);
    PyObject *launch = PyObject_GetItem(launcher, grid);
    Py_DECREF(launcher);
    return launch;
}

static PyObject *jitted_subscript(PyObject *object, PyObject *grid) {
    return subscript_kept(object, "aotc_launcher", grid);
}

static PyObject *chained_subscript(PyObject *object, PyObject *grid) {
    return subscript_kept(object, "aotc_chain", grid);
}

/* The state of copies: attributes, including the launcher. */
static PyObject *subscripted_state(PyObject *object, PyObject *Py_UNUSED(arguments)) {
    PyObject *attributes = PyObject_GetAttrString(object, "__dict__");
    PyObject *copy = attributes == NULL ? NULL : PyDict_Copy(attributes);
    Py_XDECREF(attributes);
    return copy;
}

static int subscripted_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((struct native_subscripted *)object)->launcher);
    return 0;
}

static int subscripted_clear(PyObject *object) {
    Py_CLEAR(((struct native_subscripted *)object)->launcher);
    return 0;
}

static void subscripted_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    (void)subscripted_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef subscripted_methods[] = {
    {"__getstate__", subscripted_state, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

#define SUBSCRIPTED_SLOTS(doc, subscript)                                                          \
    {Py_tp_doc, (doc)}, {Py_tp_dealloc, subscripted_dealloc},                                      \
        {Py_tp_traverse, subscripted_traverse}, {Py_tp_clear, subscripted_clear},                  \
        {Py_tp_methods, subscripted_methods}, {Py_mp_subscript, (subscript)}, {                    \
        0, NULL                                                                                    \
    }

static PyType_Slot jitted_slots[] = {
    SUBSCRIPTED_SLOTS("Base of classes whose objects have a launcher as `aotc_launcher`.",
                      jitted_subscript),
};

static PyType_Slot chained_slots[] = {
    SUBSCRIPTED_SLOTS("Base of classes whose objects have a chain as `aotc_chain`.",
                      chained_subscript),
};

PyType_Spec native_jitted_spec = {
    .name = "aotc.runtime._native.Jitted",
    .basicsize = sizeof(struct native_subscripted),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = jitted_slots,
};

PyType_Spec native_chained_spec = {
    .name = "aotc.runtime._native.Chained",
    .basicsize = sizeof(struct native_subscripted),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = chained_slots,
};
