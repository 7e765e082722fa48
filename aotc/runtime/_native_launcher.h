/* _native_launcher.h: a Launcher, as launches of decorated functions use it. */
#ifndef AOTC_NATIVE_LAUNCHER_H
#define AOTC_NATIVE_LAUNCHER_H

#include "_native.h"

enum { MAX_NAMES = 2 * LIMIT_PARAMS };

struct native_launcher {
    PyObject_HEAD struct native_state *state;
    PyObject *names;    /* of parameters, then of options; interned */
    PyObject *defaults; /* of parameters */
    PyObject *hooks;    /* a list: called before each launch */
    PyObject *refusals; /* exceptions for which the next candidate is tried */
    PyObject *unbound;  /* parameters, each None */
    PyObject *known;    /* capsules by keys */
    PyObject *last_key, *last;
    uint32_t param_count, name_count;
    uint8_t *kinds;  /* key_kind of each name */
    PyObject **unpassed; /* of each name what it is if nothing is passed, borrowed */
    PyObject *last_keywords;  /* of the last call that had some, or NULL: a call's names are its code's */
    uint16_t *keyword_places; /* of the names in it */
    PyObject *fixed; /* of parameters: values that kernels were built for, or None */
};

/* Say whether an object is a number, a string or None, which run no code of anybody's. */
bool native_is_plain(PyObject *object);

/* Say whether two values of a constant are surely the same; runs no code of anybody's. */
bool native_is_same(PyObject *a, PyObject *b);

/* The place of a parameter or an option, -1 if there is none of that name. */
int64_t native_launcher_find(const struct native_launcher *self, PyObject *name);

/* Bind what a call passes to MAX_NAMES objects, borrowed; what is not passed has its default, options
 * have None. 0 or -1. */
int native_launcher_bind(struct native_launcher *self, PyObject *const *args,
                         Py_ssize_t count, PyObject *keywords, PyObject **objects);

/* Launch what was bound; a grid that can be called is called. Tensors that were read, and since when no code of
 * anybody's ran, are `known`, one for each name, or NULL. 0 or -1. */
int native_launcher_launch(struct native_launcher *self, PyObject *const *objects,
                           const struct known_tensor *known, PyObject *grid);

/* Make an object of a type whose objects live for a launch, in the memory of the one before: the allocator
 * takes longer than all that a launch looks up. Its fields are zero. NULL with an exception. */
PyObject *native_make_spare(PyObject **spare, PyTypeObject *type);

/* Let go of the memory of one, which the collector does not know any more and whose fields are zero; keep it
 * for the next one while there is a module. */
void native_let_spare(PyObject **spare, PyObject *object, bool is_kept);
void native_free_spare(PyObject **spare);

#endif
