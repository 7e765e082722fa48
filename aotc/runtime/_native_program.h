/* _native_program.h: evaluate constants from launch arguments, without running Python. */
#ifndef AOTC_NATIVE_PROGRAM_H
#define AOTC_NATIVE_PROGRAM_H

#include "_native.h"

struct program;

/* Read a program, a tuple of (opcode, operand), whose arguments are below `argument_count`; NULL
 * with an exception. Instructions and numbers are defined in aotc/triton/heuristic.py. */
struct program *native_program_new(PyObject *instructions, uint32_t argument_count);
void native_program_free(struct program *program);

/* Run a program: a new reference, or NULL without an exception where it has no answer, because of
 * an unsupported value, an error, or an argument equal to its parameter's default, which may not
 * have been passed. */
PyObject *native_program_run(struct program *program, PyObject *const *objects,
                             PyObject *defaults);

#endif
