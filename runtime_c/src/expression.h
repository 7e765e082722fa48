/* expression.h: integer expressions over the launch arguments, as bytecode.
 *
 * One checked evaluator serves guards, grids, scratch sizes, tensor maps and computed parameters.
 * Programs have no jumps and are checked once, at opening, so evaluation checks only arithmetic.
 */
#ifndef AOTCI_EXPRESSION_H
#define AOTCI_EXPRESSION_H

#include "archive.h"

enum opcode {
    OP_CONST8 = 0x01,
    OP_CONST32 = 0x02,
    OP_CONST64 = 0x03,
    OP_ARG = 0x04,
    OP_SHAPE = 0x05,
    OP_STRIDE = 0x06,
    OP_ADD = 0x10,
    OP_SUB = 0x11,
    OP_MUL = 0x12,
    OP_FLOORDIV = 0x13,
    OP_MOD = 0x14,
    OP_MIN = 0x15,
    OP_MAX = 0x16,
    OP_CDIV = 0x17,
    OP_NEG = 0x18,
    OP_EQ = 0x20,
    OP_NE = 0x21,
    OP_LT = 0x22,
    OP_LE = 0x23,
    OP_GT = 0x24,
    OP_GE = 0x25,
    OP_AND = 0x28,
    OP_OR = 0x29,
    OP_NOT = 0x2A,
    OPCODE_COUNT
};

/* The constant, or the number of the param, after an opcode. */
int64_t aotci_load_constant(const unsigned char *operand, unsigned operand_bytes);
static inline unsigned aotci_load_param(const unsigned char *operand) {
    return operand[0] | ((unsigned)operand[1] << 8);
}

/* The argument as an integer; false if it is above 2^63 - 1. */
static inline bool aotci_argument_value(const aotc_arg *arg, int64_t *value) {
    const uint64_t bits =
        arg->kind == AOTC_TENSOR ? (uint64_t)(uintptr_t)arg->as.tensor->address : arg->as.bits;
    *value = (int64_t)bits;
    if (arg->kind != AOTC_SCALAR) {
        return bits <= INT64_MAX;
    }
    switch (arg->dtype) {
    case AOTC_I8:
        *value = (int8_t)bits;
        return true;
    case AOTC_I16:
        *value = (int16_t)bits;
        return true;
    case AOTC_I32:
        *value = (int32_t)bits;
        return true;
    case AOTC_I1:
    case AOTC_U8:
        *value = (uint8_t)bits;
        return true;
    case AOTC_U16:
        *value = (uint16_t)bits;
        return true;
    case AOTC_U32:
        *value = (uint32_t)bits;
        return true;
    case AOTC_U64:
        return bits <= INT64_MAX;
    default:
        return true;
    }
}

/* Check a program: opcodes, complete operands, shortest constants, the exact stack depth. Returns
 * NULL, or a description of the error. */
const char *aotci_expression_check(const unsigned char *code, uint32_t code_bytes,
                                   uint32_t stack_depth);

/* Check that a checked program uses only the params of a launch of `kernel`. */
const char *aotci_expression_check_params(const struct aotci_tables *tables,
                                          const struct kernel_record *kernel,
                                          const struct expression_record *expression);

/* Evaluate with checked arguments. Returns NULL, or the reason for a missing value. */
const char *aotci_evaluate(const struct aotc_kernel *kernel,
                           const struct expression_record *expression, const aotc_arg *args,
                           int64_t *value);

#endif
