/* _native_program.c: run programs of constants: see aotc/triton/heuristic.py.
 *
 * A program is checked when it is made: opcodes, arguments, forward jumps, and the depth of the
 * stack on each path. Its inputs are inspected by exact type only, so no Python code runs.
 */
#include "_native_program.h"

enum opcode {
    ARGUMENT, INTEGER, BOOL, NONE, ADD, SUB, MUL, FLOORDIV, MOD, NEG, AND, OR, XOR, LEFT, RIGHT, EQ, NE, LT, LE, GT,
    GE, IS, IS_NOT, NOT, MIN, MAX, CDIV, NEXT_POWER_OF_2, TO_BOOL, TO_INT, JUMP, JUMP_IF_FALSE,
    JUMP_IF_FALSE_OR_POP, JUMP_IF_TRUE_OR_POP, OPCODES,
};

enum { MAX_INSTRUCTIONS = 256, MAX_STACK = 16, MAX_INPUTS = 64 };

/* The number of values an opcode pops; any but a jump pushes one. */
static const unsigned char takes[OPCODES] = {
    [ADD] = 2, [SUB] = 2, [MUL] = 2, [FLOORDIV] = 2, [MOD] = 2, [NEG] = 1, [AND] = 2, [OR] = 2,
    [XOR] = 2, [LEFT] = 2, [RIGHT] = 2, [EQ] = 2, [NE] = 2, [LT] = 2, [LE] = 2, [GT] = 2, [GE] = 2,
    [IS] = 2, [IS_NOT] = 2, [NOT] = 1, [MIN] = 2, [MAX] = 2, [CDIV] = 2, [NEXT_POWER_OF_2] = 1,
    [TO_BOOL] = 1, [TO_INT] = 1,
};

struct instruction {
    int32_t opcode;
    int32_t operand;
};

enum kind { A_NONE, A_BOOL, AN_INTEGER, AN_OBJECT, NOT_PASSED };

struct value {
    enum kind kind;
    int64_t number; /* 0 for None and objects */
};

/* A program reads its arguments first. Its last answer is cached by these, its inputs. */
struct program {
    uint32_t count, input_count;
    PyObject *answer; /* to `inputs`; or NULL */
    struct input {
        uint32_t argument;
        struct value value;
        PyObject *object; /* the object itself, owned: a number or None; or NULL */
    } inputs[MAX_INPUTS];
    struct instruction instructions[];
};

/* ---- making ---------------------------------------------------------------------------------- */

static bool is_jump(int32_t opcode) { return opcode >= JUMP; }

/* Check one instruction, and the depth of the stack after it and at its target. */
static bool check_one(const struct program *program, uint32_t at, uint32_t argument_count,
                      int *depths) {
    const struct instruction one = program->instructions[at];
    int depth = depths[at];
    if (depth < 0 || one.opcode < 0 || one.opcode >= OPCODES || depth < (int)takes[one.opcode] ||
        (one.opcode == ARGUMENT && (one.operand < 0 || (uint32_t)one.operand >= argument_count))) {
        return false; /* a negative depth: unreachable */
    }
    if (!is_jump(one.opcode)) {
        depth += 1 - (int)takes[one.opcode];
        depths[at + 1] = depth;
        return depth <= MAX_STACK;
    }
    const bool keeps = one.opcode == JUMP_IF_FALSE_OR_POP || one.opcode == JUMP_IF_TRUE_OR_POP;
    const int there = depth - (one.opcode == JUMP_IF_FALSE);
    const int here = one.opcode == JUMP ? -1 : depth - 1;
    if (one.operand <= (int32_t)at || (uint32_t)one.operand > program->count ||
        (one.opcode != JUMP && depth < 1) || (keeps && depth < 1)) {
        return false;
    }
    if (depths[one.operand] >= 0 && depths[one.operand] != there) {
        return false;
    }
    depths[one.operand] = there;
    if (here >= 0) {
        depths[at + 1] = here;
    }
    return true;
}

static bool check(const struct program *program, uint32_t argument_count) {
    int depths[MAX_INSTRUCTIONS + 1];
    for (uint32_t i = 0; i <= program->count; ++i) {
        depths[i] = -1;
    }
    depths[0] = 0;
    for (uint32_t i = 0; i < program->count; ++i) {
        const int expected = depths[i + 1];
        if (!check_one(program, i, argument_count, depths) ||
            (expected >= 0 && depths[i + 1] != expected)) {
            return false;
        }
    }
    return depths[program->count] == 1;
}

/* Let instructions name inputs in place of arguments. False if there are too many. */
static bool number_inputs(struct program *program) {
    for (uint32_t i = 0; i < program->count; ++i) {
        struct instruction *one = &program->instructions[i];
        uint32_t at = 0;
        if (one->opcode != ARGUMENT) {
            continue;
        }
        while (at < program->input_count && program->inputs[at].argument != (uint32_t)one->operand) {
            ++at;
        }
        if (at == MAX_INPUTS) {
            return false;
        }
        if (at == program->input_count) {
            program->inputs[program->input_count++].argument = (uint32_t)one->operand;
        }
        one->operand = (int32_t)at;
    }
    return true;
}

struct program *native_program_new(PyObject *instructions, uint32_t argument_count) {
    const Py_ssize_t count = PyTuple_Check(instructions) ? PyTuple_GET_SIZE(instructions) : 0;
    struct program *program = NULL;
    if (count > 0 && count <= MAX_INSTRUCTIONS) {
        program = PyMem_Calloc(1, sizeof *program + (size_t)count * sizeof *program->instructions);
        if (program == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        program->count = (uint32_t)count;
    }
    for (Py_ssize_t i = 0; program != NULL && i < count; ++i) {
        struct instruction *one = &program->instructions[i];
        PyObject *pair = PyTuple_GET_ITEM(instructions, i);
        if (!PyTuple_Check(pair)) {
            one->opcode = -1; /* an invalid opcode */
        } else if (!PyArg_ParseTuple(pair, "ii", &one->opcode, &one->operand)) {
            native_program_free(program);
            return NULL;
        }
    }
    if (program == NULL || !check(program, argument_count) || !number_inputs(program)) {
        native_program_free(program);
        PyErr_SetString(PyExc_ValueError, "expected a program of constants");
        return NULL;
    }
    return program;
}

void native_program_free(struct program *program) {
    if (program != NULL) {
        Py_XDECREF(program->answer);
        for (uint32_t i = 0; i < program->input_count; ++i) {
            Py_XDECREF(program->inputs[i].object);
        }
        PyMem_Free(program);
    }
}

/* ---- running --------------------------------------------------------------------------------- */

static struct value value_of(PyObject *object) {
    int overflow; /* set only by the call: see _native_kernel.c */
    if (object == Py_None) {
        return (struct value){A_NONE, 0};
    }
    if (PyBool_Check(object)) {
        return (struct value){A_BOOL, object == Py_True};
    }
    if (!PyLong_CheckExact(object)) {
        return (struct value){AN_OBJECT, 0};
    }
    const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow != 0 ? (struct value){AN_OBJECT, 0} : (struct value){AN_INTEGER, number};
}

static struct value boolean(bool is_true) { return (struct value){A_BOOL, is_true}; }

static bool floor_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *rest) {
    if (b == 0 || (a == INT64_MIN && b == -1)) {
        return false;
    }
    const int64_t is_below = a % b != 0 && (a < 0) != (b < 0);
    *quotient = a / b - is_below;
    *rest = a % b + (is_below ? b : 0);
    return true;
}

static bool next_power_of_2(int64_t number, int64_t *power) {
    *power = 1;
    while (*power < number && *power < INT64_C(1) << 62) {
        *power *= 2;
    }
    return number > 0 && *power >= number;
}

/* Apply an opcode to numbers. False if there is no answer. */
static bool apply(int32_t opcode, struct value a, struct value b, struct value *result) {
    const bool are_bools = a.kind == A_BOOL && b.kind == A_BOOL;
    int64_t rest = 0;
    int64_t sum = 0;
    *result = (struct value){AN_INTEGER, 0};
    int64_t *number = &result->number;
    switch (opcode) {
    case ADD:
        return !__builtin_add_overflow(a.number, b.number, number);
    case SUB:
        return !__builtin_sub_overflow(a.number, b.number, number);
    case MUL:
        return !__builtin_mul_overflow(a.number, b.number, number);
    case FLOORDIV:
        return floor_divide(a.number, b.number, number, &rest);
    case MOD:
        return floor_divide(a.number, b.number, &rest, number);
    case CDIV:
        return !__builtin_add_overflow(a.number, b.number, &sum) &&
               !__builtin_sub_overflow(sum, 1, &sum) && floor_divide(sum, b.number, number, &rest);
    case NEXT_POWER_OF_2:
        return next_power_of_2(a.number, number);
    case NEG:
        return !__builtin_sub_overflow(0, a.number, number);
    case AND:
    case OR:
    case XOR:
        *number = opcode == AND  ? a.number & b.number
                  : opcode == OR ? a.number | b.number
                                 : a.number ^ b.number;
        result->kind = are_bools ? A_BOOL : AN_INTEGER;
        return true;
    case LEFT:
        *number = b.number >= 0 && b.number < 62 ? (int64_t)((uint64_t)a.number << b.number) : 0;
        return b.number >= 0 && b.number < 62 && *number >> b.number == a.number;
    case RIGHT:
        *number = b.number >= 0 && b.number < 64 ? a.number >> b.number : 0;
        return b.number >= 0 && b.number < 64;
    case EQ:
        *result = boolean(a.number == b.number);
        return true;
    case NE:
        *result = boolean(a.number != b.number);
        return true;
    case LT:
        *result = boolean(a.number < b.number);
        return true;
    case LE:
        *result = boolean(a.number <= b.number);
        return true;
    case GT:
        *result = boolean(a.number > b.number);
        return true;
    case GE:
        *result = boolean(a.number >= b.number);
        return true;
    case MIN:
        *result = b.number < a.number ? b : a;
        return true;
    case MAX:
        *result = b.number > a.number ? b : a;
        return true;
    default: /* TO_INT */
        *number = a.number;
        return true;
    }
}

static bool is_number(struct value value) { return value.kind == A_BOOL || value.kind == AN_INTEGER; }

/* Apply an opcode that does not need numbers. False if there is no answer. */
static bool evaluate(int32_t opcode, struct value a, struct value b, struct value *result) {
    switch (opcode) {
    case IS:
    case IS_NOT: /* the right one is None */
        *result = boolean((a.kind == A_NONE) == (opcode == IS));
        return true;
    case NOT:
        *result = boolean(a.number == 0);
        return a.kind != AN_OBJECT;
    case TO_BOOL:
        *result = boolean(a.number != 0);
        return a.kind != AN_OBJECT;
    default:
        return is_number(a) && (takes[opcode] == 1 || is_number(b)) && apply(opcode, a, b, result);
    }
}

/* Read the inputs, and return whether they equal the last ones. */
static bool read_inputs(struct program *program, PyObject *const *objects, PyObject *defaults) {
    bool are_same = true;
    for (uint32_t i = 0; i < program->input_count; ++i) {
        struct input *input = &program->inputs[i];
        PyObject *object = objects[input->argument];
        if (object == input->object) {
            continue;
        }
        const struct value value = object == PyTuple_GET_ITEM(defaults, input->argument)
                                       ? (struct value){NOT_PASSED, 0}
                                       : value_of(object);
        are_same = are_same && value.kind == input->value.kind && value.number == input->value.number;
        input->value = value;
        /* Dropping a number runs no code. */
        const bool is_kept = value.kind != AN_OBJECT && value.kind != NOT_PASSED;
        Py_XSETREF(input->object, is_kept ? Py_NewRef(object) : NULL);
    }
    return are_same;
}

/* Run a program on its inputs. False if there is no answer. */
static bool run(const struct program *program, struct value *answer) {
    struct value stack[MAX_STACK + 1];
    struct value *top = stack; /* one past the last */
    for (uint32_t i = 0; i < program->count; ++i) {
        const struct instruction one = program->instructions[i];
        switch (one.opcode) {
        case ARGUMENT:
            *top++ = program->inputs[one.operand].value;
            if (top[-1].kind == NOT_PASSED) {
                return false;
            }
            break;
        case INTEGER:
            *top++ = (struct value){AN_INTEGER, one.operand};
            break;
        case BOOL:
            *top++ = boolean(one.operand != 0);
            break;
        case NONE:
            *top++ = (struct value){A_NONE, 0};
            break;
        case JUMP:
            i = (uint32_t)one.operand - 1;
            break;
        case JUMP_IF_FALSE:
        case JUMP_IF_FALSE_OR_POP:
        case JUMP_IF_TRUE_OR_POP: {
            const struct value test = *--top;
            if (test.kind == AN_OBJECT) {
                return false;
            }
            if ((test.number != 0) == (one.opcode == JUMP_IF_TRUE_OR_POP)) {
                top += one.opcode != JUMP_IF_FALSE;
                i = (uint32_t)one.operand - 1;
            }
            break;
        }
        default: {
            const unsigned count = takes[one.opcode];
            struct value result;
            if (!evaluate(one.opcode, top[-(int)count], top[-1], &result)) {
                return false;
            }
            top -= count;
            *top++ = result;
            break;
        }
        }
    }
    *answer = stack[0];
    return answer->kind != AN_OBJECT;
}

PyObject *native_program_run(struct program *program, PyObject *const *objects,
                             PyObject *defaults) {
    struct value answer;
    if (read_inputs(program, objects, defaults) && program->answer != NULL) {
        return Py_NewRef(program->answer);
    }
    Py_CLEAR(program->answer); /* an integer, a bool or None: no foreign code runs */
    if (!run(program, &answer)) {
        return NULL;
    }
    if (answer.kind == AN_INTEGER) {
        program->answer = PyLong_FromLongLong(answer.number);
        PyErr_Clear();
    } else {
        PyObject *boolean_answer = answer.number != 0 ? Py_True : Py_False;
        program->answer = Py_NewRef(answer.kind == A_NONE ? Py_None : boolean_answer);
    }
    return Py_XNewRef(program->answer);
}
