/* _native_program.h: expressions of launch arguments that give a constant, without running Python. */
#ifndef AOTC_NATIVE_PROGRAM_H
#define AOTC_NATIVE_PROGRAM_H

#include "_native.h"

struct program;

/* Read a program, a tuple of (opcode, operand), whose arguments are below `argument_count`; NULL with an
 * exception. Instructions and numbers are those of aotc/triton/heuristic.py. */
struct program *native_program_new(PyObject *instructions, uint32_t argument_count);
void native_program_free(struct program *program);

/* Run a program: a new reference, or NULL without an exception where it has no answer, because of a value that
 * it does not know, an error, or an argument that is its parameter's default, which was perhaps not passed. */
PyObject *native_program_run(struct program *program, PyObject *const *objects,
                             PyObject *defaults);

#endif
