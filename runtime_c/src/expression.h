/* expression.h: integer expressions over the launch arguments, as bytecode.
 *
 * One checked evaluator serves guards, grids, scratch sizes, tensor maps and computed parameters.
 * Programs have no jumps and are checked once, at opening, so evaluation checks arithmetic alone.
 */
#ifndef AOTCI_EXPRESSION_H
#define AOTCI_EXPRESSION_H

#include "archive.h"

/* Check a program: opcodes, operands that are there, shortest constants, the exact stack depth.
 * NULL if so, otherwise what is wrong. */
const char *aotci_expression_check(const unsigned char *code, uint32_t code_bytes,
                                   uint32_t stack_depth);

/* Check that a checked program names only what a launch of `kernel` has. */
const char *aotci_expression_check_params(const struct aotc_archive *archive,
                                          const struct kernel_record *kernel,
                                          const struct expression_record *expression);

/* Recognise `param % 2^n == 0` in a checked program, as a guard. */
void aotci_guard_compile(const struct aotc_archive *archive,
                         const struct expression_record *expression, struct aotci_guard *guard);

/* Evaluate with checked arguments. NULL on success, otherwise why there is no value. */
const char *aotci_evaluate(const struct aotc_archive *archive,
                           const struct expression_record *expression, const aotc_arg *args,
                           int64_t *value);

/* Say whether a guard holds; one that cannot be evaluated does not. */
bool aotci_guard_holds(const struct aotc_archive *archive, const struct aotci_guard *guard,
                       const aotc_arg *args);

#endif
