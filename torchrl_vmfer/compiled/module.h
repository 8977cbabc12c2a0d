/* The Python module. A source file per instruction set includes this one, with MODULE defined.
 *
 * Arrays are NumPy arrays, or anything else with C-contiguous buffers. Their types and sizes are
 * checked here, once, so that the functions of the other files need not check anything.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "samplers.h"

_Static_assert(sizeof(long) == 8, "a long must have 64 bits");

/* The arguments of a call, read one after the other. After an error, nothing more is read. */
typedef struct { PyObject *const *args; Py_ssize_t count, at; } In;

static PyObject *next_of(In *in) {
    if (PyErr_Occurred()) return 0;
    if (in->at < in->count) return in->args[in->at++];
    return PyErr_SetString(PyExc_TypeError, "too few arguments."), NULL;
}

static int is_read(const In *in) { /* as the last step */
    if (!PyErr_Occurred() && in->at < in->count)
        PyErr_SetString(PyExc_TypeError, "too many arguments.");
    return !PyErr_Occurred();
}

static double number(In *in) {
    PyObject *found = next_of(in);
    return found ? PyFloat_AsDouble(found) : 0;
}

static long whole(In *in) {
    PyObject *found = next_of(in);
    return found ? PyLong_AsLong(found) : 0;
}

enum { READ, WRITTEN, OPTIONAL, UNUSED }; /* UNUSED arguments are ignored */

/* The data of an array of a kind ('f', 'd', 'l', 'i', '?' or '*' for any) with `count` elements, or
 * any number if it is negative. Returns NULL and sets an error if it does not fit. The pointer is
 * valid while the caller holds a reference. `size` receives the number of elements or, for '*', of
 * bytes; it may be NULL. */
static void *data_of(PyObject *array, const char *name, char kind, Py_ssize_t count, int is_written,
                     Py_ssize_t *size) {
    Py_buffer view;
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (is_written ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(array, &view, flags)) return 0;
    const char *format = view.format ? view.format : "B";
    char found = *format == 'q' ? 'l' : *format == 'B' ? '?' : *format;
    Py_ssize_t elements = kind == '*' ? view.len : view.len / view.itemsize;
    void *data = view.buf;
    PyBuffer_Release(&view);
    if ((kind != '*' && (found != kind || format[1])) || (count >= 0 && elements != count)) {
        PyErr_Format(PyExc_ValueError, "%s must have the type '%c' and %zd elements, got '%s' and %zd.",
                     name, kind, count, format, elements);
        return 0;
    }
    if (size) *size = elements;
    return data;
}

/* The data of the next argument. */
static void *array(In *in, const char *name, char kind, Py_ssize_t count, int use) {
    PyObject *found = next_of(in);
    if (!found || use == UNUSED || (use == OPTIONAL && found == Py_None)) return 0;
    return data_of(found, name, kind, count, use == WRITTEN, 0);
}

/* The same for any number of elements, which `size` receives. */
static void *array_of_any(In *in, const char *name, char kind, int use, Py_ssize_t *size) {
    PyObject *found = next_of(in);
    *size = 0;
    if (!found || (use == OPTIONAL && found == Py_None)) return 0;
    return data_of(found, name, kind, -1, use == WRITTEN, size);
}

/* Checks the slots of an index. */
static int are_within(const int64_t *index, long count, long size, const char *name) {
    for (long i = 0; i < count; i++)
        if (index[i] < 0 || index[i] >= size) {
            PyErr_Format(PyExc_IndexError, "%s %lld is not within 0 and %ld.", name,
                         (long long)index[i], size - 1);
            return 0;
        }
    return 1;
}

typedef struct {
    PyObject_HEAD
    PyObject *arrays; /* a list of all arrays to which `agents` points */
    Agents agents;
} Updates;

/* An array that stays referenced, of settings or of a parameter; NULL for None. */
static float *kept_floats(Updates *self, PyObject *array, const char *name, long count) {
    if (!array || array == Py_None || PyErr_Occurred()) return 0;
    float *data = data_of(array, name, 'f', count, 1, 0);
    return data && !PyList_Append(self->arrays, array) ? data : 0;
}

/* Reads (value, target, mean, square, step), of which all but the first may be None. */
static void read_param(Updates *self, PyObject *arrays, long size, long count, Param *param) {
    PyObject *value, *target, *mean, *square, *step;
    if (PyErr_Occurred() || !PyArg_ParseTuple(arrays, "OOOOO", &value, &target, &mean, &square, &step))
        return;
    long members = self->agents.members, all = size * count * members;
    *param = (Param){kept_floats(self, value, "parameter", all),
                     kept_floats(self, target, "target", all),
                     kept_floats(self, mean, "exp_avg", all),
                     kept_floats(self, square, "exp_avg_sq", all),
                     kept_floats(self, step, "step", members), size};
}

/* Reads (sizes of layers, parameters, count, eps of the normalization or -1, Adam's numbers). */
static void read_network(Updates *self, PyObject *given, Network *net, Adam *adam) {
    PyObject *sizes, *params;
    if (PyErr_Occurred() ||
        !PyArg_ParseTuple(given, "O!O!ld(ddd)", &PyTuple_Type, &sizes, &PyList_Type, &params,
                          &net->count, &net->norm_eps, &adam->beta1, &adam->beta2, &adam->eps))
        return;
    Py_ssize_t depth = PyTuple_GET_SIZE(sizes) - 1;
    net->members = self->agents.members, net->has_norm = net->norm_eps >= 0;
    if (!net->count) return;
    if (depth < 1 || PyList_GET_SIZE(params) != (net->has_norm ? 4 * depth - 2 : 2 * depth)) {
        PyErr_SetString(PyExc_ValueError, "the parameters of a network do not match its sizes.");
        return;
    }
    if (!(net->layers = calloc(depth, sizeof(Layer)))) return (void)PyErr_NoMemory();
    net->depth = depth;
    for (long l = 0, at = 0; l < depth; l++) {
        Layer *layer = net->layers + l;
        layer->in = PyLong_AsLong(PyTuple_GET_ITEM(sizes, l));
        layer->out = PyLong_AsLong(PyTuple_GET_ITEM(sizes, l + 1));
        if (!PyErr_Occurred() && (layer->in < 1 || layer->out < 1))
            PyErr_SetString(PyExc_ValueError, "a layer has no units.");
        Param *all[] = {&layer->weight, &layer->bias, &layer->scale, &layer->shift};
        for (int i = 0; i < (net->has_norm && l + 1 < depth ? 4 : 2); i++)
            read_param(self, PyList_GET_ITEM(params, at++),
                       i ? layer->out : layer->in * layer->out, net->count, all[i]);
    }
}

static double setting(PyObject *settings, const char *name) {
    PyObject *found = PyErr_Occurred() ? 0 : PyDict_GetItemString(settings, name);
    if (found) return PyFloat_AsDouble(found);
    if (!PyErr_Occurred()) PyErr_Format(PyExc_KeyError, "%s", name);
    return 0;
}

static int updates_init(Updates *self, PyObject *args, PyObject *kwargs) {
    PyObject *settings, *actor, *critics, *alpha;
    Agents *a = &self->agents;
    Adam *adam = &a->adam_of_alpha;
    if (self->arrays) return PyErr_SetString(PyExc_RuntimeError, "initialized twice"), -1;
    if (!PyArg_ParseTuple(args, "O!OOO(ddd)", &PyDict_Type, &settings, &actor, &critics, &alpha,
                          &adam->beta1, &adam->beta2, &adam->eps) ||
        !(self->arrays = PyList_New(0)))
        return -1;
#define READ_WHOLE(name) a->name = (long)setting(settings, #name);
#define READ_REAL(name) a->name = setting(settings, #name);
#define READ_ARRAY(name)                                                                          \
    a->name = kept_floats(self, PyDict_GetItemString(settings, #name), #name, a->action);
    WHOLE_SETTINGS(READ_WHOLE) REAL_SETTINGS(READ_REAL) ARRAY_SETTINGS(READ_ARRAY)
    read_network(self, actor, &a->actor, &a->adam_of_actor);
    read_network(self, critics, &a->critics, &a->adam_of_critics);
    if (alpha != Py_None) read_param(self, alpha, 1, 1, &a->log_alpha);
    if (PyErr_Occurred()) return -1;
    long outputs = a->critics.depth ? a->critics.layers[a->critics.depth - 1].out : 1;
    int fits = a->low && a->high && a->middle && a->half && a->seen_middle && a->seen_half &&
               a->members > 0 && a->actor.depth && a->actor.layers[0].in == a->observation &&
               a->actor.layers[a->actor.depth - 1].out ==
                   a->action * (a->policy == GAUSSIAN ? 2 : 1);
    if (a->critics.depth)
        fits = fits && a->critics.layers[0].in == a->observation + a->action &&
               a->num_targets > 0 && a->num_targets <= a->critics.count &&
               (a->is_quantile ? a->dropped >= 0 && a->dropped < outputs : outputs == 1) &&
               (a->policy == DETERMINISTIC || a->log_alpha.value);
    if (!fits) return PyErr_SetString(PyExc_ValueError, "the networks do not fit together."), -1;
    return 0;
}

static void updates_dealloc(Updates *self) {
    free_all(&self->agents.arena);
    free(self->agents.actor.layers), free(self->agents.critics.layers);
    Py_CLEAR(self->arrays);
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* What updates of critics and actors have in common. */
typedef struct { Batch batch; const double *lr; double clip, *loss; const uint8_t *active; } Call;

static Call read_call(In *in, const Agents *a, const Network *net, int reads_action,
                      int reads_noise, long num_losses) {
    Call call = {{0}};
    Batch *b = &call.batch;
    b->rows = whole(in), b->size = whole(in);
    long m = a->members, all = m * b->rows, stored = m * b->size;
    PyObject *is_indexed = in->at < in->count ? in->args[in->at] : Py_None;
    b->index = array(in, "index", 'l', all, OPTIONAL);
    b->observation = array(in, "observation", 'f', stored * a->observation, READ);
    b->action = array(in, "action", 'f', stored * a->action, reads_action ? READ : UNUSED);
    b->weights = array(in, "weights", 'f', all, OPTIONAL);
    b->noise = array(in, "noise", 'f', all * a->action, reads_noise ? READ : UNUSED);
    call.lr = array(in, "lr", 'd', m, READ);
    call.clip = number(in);
    call.active = array(in, "active", '?', m, OPTIONAL);
    call.loss = array(in, "loss", 'd', num_losses * m, WRITTEN);
    if (PyErr_Occurred()) return call;
    if (b->rows < 1 || (is_indexed == Py_None && b->size != b->rows) || !a->critics.depth ||
        !net->layers[0].weight.step)
        PyErr_SetString(PyExc_ValueError, "no rows, no index or no optimizer.");
    else if (b->index) are_within(b->index, all, b->size, "slot");
    return call;
}

#define ARGUMENTS Updates *self, PyObject *const *args, Py_ssize_t nargs

static PyObject *update_critics_of(ARGUMENTS) {
    In in = {args, nargs};
    Agents *a = &self->agents;
    Call call = read_call(&in, a, &a->critics, 1, 1, 1);
    Batch *b = &call.batch;
    Adam adam = a->adam_of_critics;
    long m = a->members, stored = m * b->size;
    Py_ssize_t chosen;
    b->reward = array(&in, "reward", 'f', stored, READ);
    b->terminated = array(&in, "terminated", '?', stored, READ);
    b->next_observation = array(&in, "next_observation", 'f', stored * a->observation, READ);
    b->subset = array_of_any(&in, "subset", 'l', OPTIONAL, &chosen);
    const double *gamma = array(&in, "gamma", 'd', m, READ);
    float *error = array(&in, "error", 'f', m * b->rows, WRITTEN);
    if (!is_read(&in)) return 0;
    b->num_subset = chosen / m, adam.clip = call.clip;
    if (b->subset && (chosen % m || !chosen))
        return PyErr_SetString(PyExc_ValueError, "every agent needs a subset."), NULL;
    if (!are_within(b->subset, chosen, a->critics.count, "critic")) return 0;
    for (long i = 0; i < m; i++) {
        if (call.active && !call.active[i]) continue;
        adam.lr = call.lr[i];
        call.loss[i] = update_critics(a, b, i, gamma[i], &adam, error + b->rows * i);
    }
    Py_RETURN_NONE;
}

static PyObject *update_actor_of(ARGUMENTS) {
    In in = {args, nargs};
    Agents *a = &self->agents;
    int is_gaussian = a->policy == GAUSSIAN;
    Call call = read_call(&in, a, &a->actor, a->is_cloning, is_gaussian || a->actor_noise, 3);
    Adam adam = a->adam_of_actor, adam_of_alpha = a->adam_of_alpha;
    long m = a->members, rows = call.batch.rows;
    const double *alpha_lr = array(&in, "alpha_lr", 'd', m, OPTIONAL);
    float *factor = array(&in, "factor", 'f', m * rows, a->measures ? WRITTEN : UNUSED);
    float *length = array(&in, "length", 'f', m * rows, a->measures ? WRITTEN : UNUSED);
    float *norm = array(&in, "norm", 'f', m * rows, a->has_norms ? WRITTEN : UNUSED);
    float *density = array(&in, "density", 'f', m * rows, is_gaussian ? WRITTEN : UNUSED);
    if (!is_read(&in)) return 0;
    if (alpha_lr && !a->log_alpha.step)
        return PyErr_SetString(PyExc_ValueError, "the temperature has no optimizer."), NULL;
    adam.clip = call.clip;
    for (long i = 0; i < m; i++) {
        if (call.active && !call.active[i]) continue;
        long at = rows * i;
        Report report = {factor ? factor + at : 0, length ? length + at : 0, norm ? norm + at : 0,
                         density ? density + at : 0, 0, 0, 0};
        adam.lr = call.lr[i], adam_of_alpha.lr = alpha_lr ? alpha_lr[i] : 0;
        update_actor(a, &call.batch, i, &adam, alpha_lr ? &adam_of_alpha : 0, &report);
        memcpy(call.loss + 3 * i, (double[]){report.loss, report.cloning, report.scale},
               3 * sizeof(double));
    }
    Py_RETURN_NONE;
}

static PyObject *update_targets_of(ARGUMENTS) {
    In in = {args, nargs};
    Agents *a = &self->agents;
    const double *tau = array(&in, "tau", 'd', a->members, READ);
    const uint8_t *active = array(&in, "active", '?', a->members, OPTIONAL);
    if (!is_read(&in)) return 0;
    for (long i = 0; i < a->members; i++) {
        if (active && !active[i]) continue;
        move_targets(&a->critics, i, tau[i]), move_targets(&a->actor, i, tau[i]);
    }
    Py_RETURN_NONE;
}

static PyObject *act_of(ARGUMENTS) {
    In in = {args, nargs};
    Agents *a = &self->agents;
    long m = a->members, width = a->action;
    const float *observation = array(&in, "observation", 'f', m * a->observation, READ);
    const float *noise = array(&in, "noise", 'f', m * width, OPTIONAL);
    const double *deviation = array(&in, "deviation", 'd', m, READ);
    const uint8_t *active = array(&in, "active", '?', m, OPTIONAL);
    float *action = array(&in, "action", 'f', m * width, WRITTEN);
    if (!is_read(&in)) return 0;
    for (long i = 0; i < m; i++)
        if (!active || active[i])
            act(a, i, observation + a->observation * i, noise ? noise + width * i : 0, deviation[i],
                action + width * i);
    Py_RETURN_NONE;
}

#undef ARGUMENTS
#define ARGUMENTS PyObject *module, PyObject *const *args, Py_ssize_t nargs

/* Reads (codes, block, count, lowest, before, blocks), of which the last has one element. */
static int64_t *read_ranks(In *in, Ranks *ranks) {
    PyObject *arrays = next_of(in);
    Py_ssize_t size = 0;
    if (!arrays || !PyTuple_Check(arrays)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a tuple of arrays is required.");
        return 0;
    }
    In of = {((PyTupleObject *)arrays)->ob_item, PyTuple_GET_SIZE(arrays)};
    PyObject *codes = next_of(&of);
    ranks->block = array_of_any(&of, "block", 'l', WRITTEN, &size);
    ranks->capacity = size;
    ranks->count = array(&of, "count", 'l', size, WRITTEN);
    ranks->lowest = array(&of, "lowest", 'l', size, WRITTEN);
    ranks->before = array(&of, "before", 'l', size + 1, WRITTEN);
    int64_t *used = array(&of, "blocks", 'l', 1, WRITTEN);
    if (!is_read(&of) || !(ranks->codes = data_of(codes, "codes", 'l', size * WIDTH, 1, 0))) return 0;
    ranks->blocks = *used;
    return used;
}

static PyObject *py_ranks_fill(ARGUMENTS) {
    In in = {args, nargs};
    Ranks ranks = {0};
    Py_ssize_t size;
    int64_t *blocks = read_ranks(&in, &ranks);
    int64_t *codes = array_of_any(&in, "sorted", 'l', READ, &size);
    if (!is_read(&in)) return 0;
    if (size > ranks.capacity * (WIDTH / 2) || !ranks.capacity)
        return PyErr_SetString(PyExc_ValueError, "too few blocks."), NULL;
    ranks_fill(&ranks, size, codes);
    *blocks = ranks.blocks;
    Py_RETURN_NONE;
}

static PyObject *py_ranks_update(ARGUMENTS) {
    In in = {args, nargs};
    Ranks ranks = {0};
    Py_ssize_t size, known;
    int64_t *blocks = read_ranks(&in, &ranks);
    ranks.bits = array_of_any(&in, "bits", 'i', WRITTEN, &known);
    int64_t *slots = array_of_any(&in, "slots", 'l', READ, &size);
    int32_t *values = array(&in, "values", 'i', size, READ);
    if (!is_read(&in) || !are_within(slots, size, known, "slot")) return 0;
    long is_done = ranks_update(&ranks, size, slots, values);
    *blocks = ranks.blocks;
    return PyBool_FromLong(is_done);
}

static PyObject *py_ranks_draw(ARGUMENTS) {
    In in = {args, nargs};
    Ranks ranks = {0};
    Py_ssize_t size;
    read_ranks(&in, &ranks);
    int64_t *at = array_of_any(&in, "ranks", 'l', READ, &size);
    double *random = array(&in, "random", 'd', size, READ);
    int64_t *found = array(&in, "found", 'l', 3 * size, WRITTEN);
    if (!is_read(&in) || !are_within(at, size, ranks.before[ranks.blocks], "rank")) return 0;
    ranks_draw(&ranks, size, at, random, found, found + size, found + 2 * size);
    Py_RETURN_NONE;
}

static PyObject *py_ranks_at(ARGUMENTS) {
    In in = {args, nargs};
    Py_ssize_t size, terms;
    double *points = array_of_any(&in, "points", 'd', READ, &size);
    double *mass = array_of_any(&in, "mass", 'd', READ, &terms);
    long length = whole(&in);
    double power = number(&in);
    int64_t *found = array(&in, "found", 'l', size, WRITTEN);
    if (!is_read(&in)) return 0;
    if (length < 1 || length >= terms)
        return PyErr_Format(PyExc_ValueError, "length %ld for %zd terms.", length, terms), NULL;
    return PyLong_FromLong(ranks_at(size, points, mass, terms, length, power, found));
}

/* Copies rows between columns [size][...] and rows [count][...], both tuples of arrays. */
static PyObject *copy_rows(PyObject *const *args, Py_ssize_t nargs, int is_write) {
    In in = {args, nargs};
    PyObject *columns = next_of(&in), *result = 0;
    Py_ssize_t count;
    int64_t *slots = array_of_any(&in, "index", 'l', READ, &count);
    long size = whole(&in);
    PyObject *rows = next_of(&in);
    if (!is_read(&in)) return 0;
    Py_ssize_t number = PyTuple_Check(columns) ? PyTuple_GET_SIZE(columns) : -1;
    if (!PyTuple_Check(rows) || PyTuple_GET_SIZE(rows) != number)
        return PyErr_SetString(PyExc_ValueError, "as many rows as columns are required."), NULL;
    if (!are_within(slots, count, size, "row")) return 0;
    char **stored = malloc(sizeof(char *) * 3 * (number + 1)), **given = stored + number;
    int64_t *widths = (int64_t *)(given + number);
    if (!stored) return PyErr_NoMemory();
    for (Py_ssize_t c = 0; c < number; c++) {
        Py_ssize_t bytes;
        stored[c] = data_of(PyTuple_GET_ITEM(columns, c), "a column", '*', -1, is_write, &bytes);
        if (!stored[c]) goto done;
        widths[c] = size ? bytes / size : 0;
        given[c] = data_of(PyTuple_GET_ITEM(rows, c), "rows", '*', widths[c] * count, !is_write, 0);
        if (!given[c]) goto done;
    }
    for (Py_ssize_t c = 0; c < number; c++)
        for (Py_ssize_t i = 0; i < count; i++) {
            char *row = stored[c] + widths[c] * slots[i], *copy = given[c] + widths[c] * i;
            if (!is_write && i + AHEAD < count) {
                const char *next = stored[c] + widths[c] * slots[i + AHEAD];
                __builtin_prefetch(next), __builtin_prefetch(next + widths[c] - 1);
            }
            memcpy(is_write ? row : copy, is_write ? copy : row, widths[c]);
        }
    result = Py_NewRef(Py_None);
done:
    free(stored);
    return result;
}

static PyObject *py_read_rows(ARGUMENTS) { return copy_rows(args, nargs, 0); }
static PyObject *py_write_rows(ARGUMENTS) { return copy_rows(args, nargs, 1); }

/* The instruction sets of this processor for which there may be a module, best first. */
static PyObject *py_processor(PyObject *module, PyObject *args) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int is_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi2");
    int is_avx512 = is_avx2 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
    return is_avx512 ? Py_BuildValue("[sss]", "avx512", "avx2", "portable")
           : is_avx2 ? Py_BuildValue("[ss]", "avx2", "portable") : Py_BuildValue("[s]", "portable");
#else
    return Py_BuildValue("[s]", "portable");
#endif
}

#define FUNCTION(name, function) {name, (PyCFunction)(void (*)(void))function, METH_FASTCALL, 0}
static PyMethodDef methods_of_updates[] = {
    FUNCTION("update_critics", update_critics_of),
    FUNCTION("update_actor", update_actor_of),
    FUNCTION("update_targets", update_targets_of),
    FUNCTION("act", act_of),
    {0},
};
static PyType_Slot slots_of_updates[] = {
    {Py_tp_init, updates_init}, {Py_tp_dealloc, updates_dealloc},
    {Py_tp_methods, methods_of_updates}, {Py_tp_new, PyType_GenericNew}, {0, 0},
};
#define STRING(x) #x
#define NAME(x) STRING(x)
#define JOINED(a, b) a##b
#define INIT(x) JOINED(PyInit_, x)
static PyType_Spec updates_spec = {
    "torchrl_vmfer.compiled." NAME(MODULE) ".Updates", sizeof(Updates), 0, Py_TPFLAGS_DEFAULT,
    slots_of_updates,
};
static PyMethodDef functions[] = {
    {"processor", py_processor, METH_NOARGS, 0},
    FUNCTION("ranks_fill", py_ranks_fill),
    FUNCTION("ranks_update", py_ranks_update),
    FUNCTION("ranks_draw", py_ranks_draw),
    FUNCTION("ranks_at", py_ranks_at),
    FUNCTION("read_rows", py_read_rows),
    FUNCTION("write_rows", py_write_rows),
    {0},
};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, NAME(MODULE), 0, -1, functions, 0, 0, 0, 0,
};

PyMODINIT_FUNC INIT(MODULE)(void) {
    PyObject *module = PyModule_Create(&definition), *type = PyType_FromSpec(&updates_spec);
    if (!module || !type || PyModule_AddObject(module, "Updates", type)) {
        Py_XDECREF(module), Py_XDECREF(type);
        return 0;
    }
    return module;
}
