/* The Python module. A source file per instruction set includes this one, with MODULE defined.
 *
 * Arrays are NumPy arrays, or anything else with C-contiguous buffers. Their types and sizes are
 * checked here, once, so that the functions of the other files need not check anything.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "samplers.h"

_Static_assert(sizeof(long) == 8, "a long must have 64 bits");

/* The arguments of a call, read one after the other. After an error, nothing more is read. `size`
 * is the number of elements of the last array. */
typedef struct { PyObject *const *args; Py_ssize_t count, at, size; } In;

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

enum { ANY = -1 };                        /* number of elements */
enum { READ, WRITTEN, OPTIONAL, UNUSED }; /* UNUSED arguments are ignored */

/* Returns the data of an array of `count` elements of a kind: 'f', 'd', 'l', 'i', '?', or '*' for
 * the bytes of any kind. Returns NULL and sets an error if the array does not match. The pointer is
 * valid while the caller holds a reference. */
static void *data_of(PyObject *array, const char *name, char kind, Py_ssize_t count, int is_written,
                     Py_ssize_t *size) {
    Py_buffer view;
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (is_written ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(array, &view, flags)) return 0;
    const char *format = view.format ? view.format : "B";
    char found = *format == 'q' ? 'l' : *format == 'B' ? '?' : *format;
    *size = kind == '*' ? view.len : view.len / view.itemsize;
    void *data = view.buf;
    PyBuffer_Release(&view);
    if ((kind == '*' || (found == kind && !format[1])) && (count == ANY || *size == count)) return data;
    PyErr_Format(PyExc_ValueError, "%s must have the type '%c' and %zd elements, got '%s' and %zd.",
                 name, kind, count, format, *size);
    return 0;
}

/* The data of the next argument. */
static void *array(In *in, const char *name, char kind, Py_ssize_t count, int use) {
    PyObject *found = next_of(in);
    in->size = 0;
    if (!found || use == UNUSED || (use == OPTIONAL && found == Py_None)) return 0;
    return data_of(found, name, kind, count, use == WRITTEN, &in->size);
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
static float *kept(Updates *self, PyObject *array, const char *name, long count) {
    Py_ssize_t size;
    if (!array || array == Py_None || PyErr_Occurred()) return 0;
    float *data = data_of(array, name, 'f', count, 1, &size);
    return data && !PyList_Append(self->arrays, array) ? data : 0;
}

/* Reads (value, target, mean, square, step), of which all but the first may be None. */
static void read_param(Updates *self, PyObject *arrays, long size, long count, Param *param) {
    PyObject *of[5];
    if (PyErr_Occurred() || !PyArg_ParseTuple(arrays, "OOOOO", of, of + 1, of + 2, of + 3, of + 4))
        return;
    long members = self->agents.members, all = size * count * members;
    *param = (Param){kept(self, of[0], "parameter", all), kept(self, of[1], "target", all),
                     kept(self, of[2], "exp_avg", all), kept(self, of[3], "exp_avg_sq", all),
                     kept(self, of[4], "step", members), size};
}

/* Reads a StackedNetwork. */
static void read_network(Updates *self, PyObject *given, Network *net, Adam *adam) {
    PyObject *sizes, *params;
    if (PyErr_Occurred() ||
        !PyArg_ParseTuple(given, "O!O!ld(dddd)", &PyTuple_Type, &sizes, &PyList_Type, &params,
                          &net->count, &net->norm_eps, &adam->beta1, &adam->beta2, &adam->eps,
                          &adam->decay))
        return;
    long depth = PyTuple_GET_SIZE(sizes) - 1;
    net->members = self->agents.members, net->has_norm = net->norm_eps >= 0;
    if (!net->count) return;
    if (depth < 1 || PyList_GET_SIZE(params) != (net->has_norm ? 4 * depth - 2 : 2 * depth))
        return PyErr_SetString(PyExc_ValueError, "the parameters of a network do not match its sizes.");
    if (!(net->layers = calloc(depth, sizeof(Layer)))) return (void)PyErr_NoMemory();
    net->depth = depth;
    for (long l = 0, at = 0; l < depth; l++) {
        Layer *layer = net->layers + l;
        layer->in = PyLong_AsLong(PyTuple_GET_ITEM(sizes, l));
        layer->out = PyLong_AsLong(PyTuple_GET_ITEM(sizes, l + 1));
        if (!PyErr_Occurred() && (layer->in < 1 || layer->out < 1))
            PyErr_SetString(PyExc_ValueError, "a layer has no units.");
        for (int i = 0; i < num_params(net, l); i++)
            read_param(self, PyList_GET_ITEM(params, at++),
                       i ? layer->out : layer->in * layer->out, net->count, layer->params + i);
    }
}

static double setting(PyObject *settings, const char *name) {
    PyObject *found = PyErr_Occurred() ? 0 : PyDict_GetItemString(settings, name);
    if (found) return PyFloat_AsDouble(found);
    if (!PyErr_Occurred()) PyErr_Format(PyExc_KeyError, "%s", name);
    return 0;
}

/* Updates(settings, actor, critics, temperature): as in stacked.py. */
static int updates_init(Updates *self, PyObject *args, PyObject *kwargs) {
    PyObject *settings, *actor, *critics, *given, *state;
    Agents *a = &self->agents;
    Adam *adam = &a->adam_of_alpha;
    if (self->arrays) return PyErr_SetString(PyExc_RuntimeError, "initialized twice"), -1;
    if (!PyArg_ParseTuple(args, "O!OOO", &PyDict_Type, &settings, &actor, &critics, &given) ||
        !(self->arrays = PyList_New(0)))
        return -1;
#define READ_WHOLE(name) a->name = (long)setting(settings, #name);
#define READ_REAL(name) a->name = setting(settings, #name);
#define READ_ARRAY(name)                                                                          \
    a->name = kept(self, PyDict_GetItemString(settings, #name), #name, a->action);
    WHOLE_SETTINGS(READ_WHOLE) REAL_SETTINGS(READ_REAL) ARRAY_SETTINGS(READ_ARRAY)
    read_network(self, actor, &a->actor, &a->adam_of_actor);
    read_network(self, critics, &a->critics, &a->adam_of_critics);
    if (given != Py_None && !PyErr_Occurred() &&
        PyArg_ParseTuple(given, "O(dddd)", &state, &adam->beta1, &adam->beta2, &adam->eps,
                         &adam->decay))
        read_param(self, state, 1, 1, &a->log_alpha);
    if (PyErr_Occurred()) return -1;
    long depth = a->critics.depth, outputs = depth ? a->critics.layers[depth - 1].out : 1;
    int fits = a->low && a->high && a->middle && a->half && a->seen_middle && a->seen_half &&
               a->members > 0 && a->actor.depth && a->actor.layers[0].in == a->observation &&
               a->actor.layers[a->actor.depth - 1].out == a->action * (a->is_gaussian ? 2 : 1);
    if (depth)
        fits = fits && a->critics.layers[0].in == a->observation + a->action &&
               a->num_targets > 0 && a->num_targets <= a->critics.count &&
               (a->is_quantile ? a->dropped >= 0 && a->dropped < outputs : outputs == 1) &&
               (!a->is_gaussian || a->log_alpha.value);
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

/* The arguments of an update: numbers, the batch, one number for each agent, and the results. */
typedef struct {
    Batch batch;
    double clip, *loss;
    const double *lr, *rate; /* rate: the discount, or the learning rate of the temperature */
    const uint8_t *active;
    float *found[NUM_REPORTS]; /* the TD errors; or factors, resultant lengths, norms and log-densities */
} Call;

static Call read_call(In *in, const Agents *a, int is_actor) {
    Call call = {{0}};
    Batch *b = &call.batch;
    b->rows = whole(in), b->size = whole(in), call.clip = number(in);
    long m = a->members, all = m * b->rows, stored = m * b->size;
    int of_critics = is_actor ? UNUSED : READ, is_cloning = is_actor && a->cloning >= 0;
    int is_noisy = !is_actor || a->is_gaussian || a->actor_noise;
    b->index = array(in, "index", 'l', all, OPTIONAL);
    b->observation = array(in, "observation", 'f', stored * a->observation, READ);
    b->action = array(in, "action", 'f', stored * a->action, is_cloning ? READ : of_critics);
    b->reward = array(in, "reward", 'f', stored, of_critics);
    b->terminated = array(in, "terminated", '?', stored, of_critics);
    b->next_observation = array(in, "next_observation", 'f', stored * a->observation, of_critics);
    b->weights = array(in, "weights", 'f', all, OPTIONAL);
    b->discounts = array(in, "discounts", 'f', all, is_actor ? UNUSED : OPTIONAL);
    b->noise = array(in, "noise", 'f', all * a->action, is_noisy ? READ : UNUSED);
    b->subset = array(in, "subset", 'l', ANY, OPTIONAL);
    long chosen = in->size;
    b->num_subset = chosen / m;
    call.lr = array(in, "lr", 'd', m, READ);
    call.rate = array(in, is_actor ? "alpha_lr" : "gamma", 'd', m, is_actor ? OPTIONAL : READ);
    call.active = array(in, "active", '?', m, OPTIONAL);
    call.loss = array(in, "loss", 'd', 3 * m, WRITTEN);
    int is_found[] = {!is_actor || a->measures, is_actor && a->measures, is_actor && a->has_norms,
                      is_actor && a->is_gaussian};
    for (int i = 0; i < NUM_REPORTS; i++)
        call.found[i] = array(in, "a result", 'f', all, is_found[i] ? WRITTEN : UNUSED);
    if (!is_read(in)) return call;
    const Layer *first = is_actor ? a->actor.layers : a->critics.layers;
    if (b->rows < 1 || (!b->index && b->size != b->rows) || !a->critics.depth ||
        !first->params[WEIGHT].step || (is_actor && call.rate && !a->log_alpha.step))
        PyErr_SetString(PyExc_ValueError, "no rows, no index or no optimizer.");
    else if (b->subset && (chosen % m || !chosen))
        PyErr_SetString(PyExc_ValueError, "every agent needs a subset.");
    else if (!b->index || are_within(b->index, all, b->size, "slot"))
        are_within(b->subset, chosen, a->critics.count, "critic");
    return call;
}

#define ARGUMENTS Updates *self, PyObject *const *args, Py_ssize_t nargs

static PyObject *update_of(ARGUMENTS, int is_actor) {
    In in = {args, nargs};
    Agents *a = &self->agents;
    Call call = read_call(&in, a, is_actor);
    if (PyErr_Occurred()) return 0;
    Adam adam = is_actor ? a->adam_of_actor : a->adam_of_critics, of_alpha = a->adam_of_alpha;
    adam.clip = call.clip;
    for (long i = 0; i < a->members; i++) {
        if (call.active && !call.active[i]) continue;
        float *found[NUM_REPORTS];
        for (int k = 0; k < NUM_REPORTS; k++)
            found[k] = call.found[k] ? call.found[k] + call.batch.rows * i : 0;
        double *loss = call.loss + 3 * i, rate = call.rate ? call.rate[i] : 0;
        adam.lr = call.lr[i], of_alpha.lr = rate;
        if (is_actor)
            update_actor(a, &call.batch, i, &adam, call.rate ? &of_alpha : 0, found, loss);
        else *loss = update_critics(a, &call.batch, i, rate, &adam, found[0]);
    }
    Py_RETURN_NONE;
}

static PyObject *update_critics_of(ARGUMENTS) { return update_of(self, args, nargs, 0); }
static PyObject *update_actor_of(ARGUMENTS) { return update_of(self, args, nargs, 1); }

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
#define ARGUMENTS RanksObject *self, PyObject *const *args, Py_ssize_t nargs
typedef struct { PyObject_HEAD Ranks ranks; } RanksObject;

static int ranks_init(RanksObject *self, PyObject *args, PyObject *kwargs) {
    return ranks_fill(&self->ranks, 0, 0), 0;
}

static void ranks_dealloc(RanksObject *self) {
    ranks_reserve(&self->ranks, 0);
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *ranks_fill_of(ARGUMENTS) {
    In in = {args, nargs};
    int64_t *codes = array(&in, "sorted", 'l', ANY, READ);
    if (!is_read(&in)) return 0;
    ranks_fill(&self->ranks, in.size, codes);
    Py_RETURN_NONE;
}

static PyObject *ranks_update_of(ARGUMENTS) {
    In in = {args, nargs};
    int32_t *known = array(&in, "bits", 'i', ANY, WRITTEN);
    long size = in.size;
    int64_t *slots = array(&in, "slots", 'l', ANY, READ);
    long count = in.size;
    float *priorities = array(&in, "priorities", 'f', ANY, READ);
    if (!is_read(&in) || !are_within(slots, count, least(size, in.size), "slot")) return 0;
    ranks_update(&self->ranks, known, count, slots, priorities);
    Py_RETURN_NONE;
}

static PyObject *ranks_draw_of(ARGUMENTS) {
    In in = {args, nargs};
    double *random = array(&in, "random", 'd', ANY, WRITTEN);
    long count = in.size / 2;
    double *mass = array(&in, "mass", 'd', ANY, READ);
    long terms = in.size, length = whole(&in);
    double power = number(&in);
    int64_t *found = array(&in, "found", 'l', 3 * count, WRITTEN);
    if (!is_read(&in)) return 0;
    if (length < 1 || length >= terms || length > ranks_size(&self->ranks))
        return PyErr_Format(PyExc_ValueError, "length %ld for %ld terms.", length, terms), NULL;
    return PyLong_FromLong(ranks_draw(&self->ranks, count, random, mass, terms, length, power,
                                      found, found + count, found + 2 * count));
}

static PyObject *ranks_ties_of(ARGUMENTS) {
    In in = {args, nargs};
    int64_t rank = whole(&in), first, end;
    if (!is_read(&in) || !are_within(&rank, 1, ranks_size(&self->ranks), "rank")) return 0;
    ties_of(&self->ranks, rank, &first, &end);
    return Py_BuildValue("(ll)", first, end);
}

#undef ARGUMENTS
#define ARGUMENTS PyObject *module, PyObject *const *args, Py_ssize_t nargs

/* store(slots, values, low, high, floor, priorities, updates, number): stores values in a range,
 * raised to a floor, as the priorities of slots, and the number of the update. Returns the largest
 * value; or None, and stores nothing, if some slot or value is not valid. */
static PyObject *py_store(ARGUMENTS) {
    In in = {args, nargs};
    int64_t *slots = array(&in, "slots", 'l', ANY, READ);
    long count = in.size;
    float *values = array(&in, "values", 'f', count, READ), largest = 0;
    double low = number(&in), high = number(&in), floor = number(&in);
    float *priorities = array(&in, "priorities", 'f', ANY, WRITTEN);
    long size = in.size;
    int32_t *updates = array(&in, "updates", 'i', size, OPTIONAL);
    int32_t update = (int32_t)whole(&in);
    if (!is_read(&in)) return 0;
    for (long i = 0; i < count; i++)
        if (!(slots[i] >= 0 && slots[i] < size && values[i] >= low && values[i] <= high))
            Py_RETURN_NONE;
    for (long i = 0; i < count; i++) {
        largest = values[i] > largest ? values[i] : largest;
        priorities[slots[i]] = values[i] > (float)floor ? values[i] : (float)floor;
        if (updates) updates[slots[i]] = update;
    }
    return PyFloat_FromDouble(largest);
}

/* accept(random, priorities, bound, found): proposes slots by the first row of random numbers
 * [2][count], and accepts those whose priority exceeds the bound times the second. Returns how many
 * were found, at most the length of `found`. */
static PyObject *py_accept(ARGUMENTS) {
    In in = {args, nargs};
    double *random = array(&in, "random", 'd', ANY, READ);
    long count = in.size / 2;
    float *priorities = array(&in, "priorities", 'f', ANY, READ);
    long size = in.size, done = 0;
    double bound = number(&in);
    int64_t *found = array(&in, "found", 'l', ANY, WRITTEN);
    long wanted = in.size;
    if (!is_read(&in)) return 0;
    for (long i = 0; i < count; i++)
        if (!(random[i] >= 0 && random[i] < 1))
            return PyErr_SetString(PyExc_ValueError, "random numbers are from 0 to 1."), NULL;
    for (long i = 0; i < count; i++) __builtin_prefetch(priorities + (int64_t)(random[i] * size));
    for (long i = 0; i < count && done < wanted; i++) {
        int64_t slot = (int64_t)(random[i] * size);
        if (random[count + i] * bound < priorities[slot]) found[done++] = slot;
    }
    return PyLong_FromLong(done);
}

/* Copies rows between columns [size][...] and rows [count][...], both tuples of arrays. */
static PyObject *copy_rows(PyObject *const *args, Py_ssize_t nargs, int is_write) {
    In in = {args, nargs};
    PyObject *columns = next_of(&in);
    int64_t *slots = array(&in, "index", 'l', ANY, READ);
    Py_ssize_t count = in.size, bytes;
    long size = whole(&in);
    PyObject *rows = next_of(&in);
    if (!is_read(&in) || !are_within(slots, count, size, "row")) return 0;
    if (!PyTuple_Check(columns) || !PyTuple_Check(rows) ||
        PyTuple_GET_SIZE(columns) != PyTuple_GET_SIZE(rows))
        return PyErr_SetString(PyExc_ValueError, "as many rows as columns are required."), NULL;
    for (Py_ssize_t c = 0; c < PyTuple_GET_SIZE(columns); c++) {
        char *stored = data_of(PyTuple_GET_ITEM(columns, c), "a column", '*', ANY, is_write, &bytes);
        long width = size ? bytes / size : 0;
        char *given = !stored ? 0 : data_of(PyTuple_GET_ITEM(rows, c), "rows", '*', width * count,
                                            !is_write, &bytes);
        if (!given) return 0;
        for (Py_ssize_t i = 0; i < count; i++, given += width) {
            char *row = stored + width * slots[i];
            if (!is_write && i + AHEAD < count) {
                const char *next = stored + width * slots[i + AHEAD];
                __builtin_prefetch(next), __builtin_prefetch(next + width - 1);
            }
            memcpy(is_write ? row : given, is_write ? given : row, width);
        }
    }
    Py_RETURN_NONE;
}

static PyObject *py_read_rows(ARGUMENTS) { return copy_rows(args, nargs, 0); }
static PyObject *py_write_rows(ARGUMENTS) { return copy_rows(args, nargs, 1); }

/* holds(dicts, values): whether the values of dictionaries are exactly these objects, in order. */
static PyObject *py_holds(ARGUMENTS) {
    if (nargs != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1]))
        return PyErr_SetString(PyExc_TypeError, "two tuples are required."), NULL;
    Py_ssize_t seen = 0, count = PyTuple_GET_SIZE(args[1]);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[0]); i++) {
        PyObject *dict = PyTuple_GET_ITEM(args[0], i), *key, *value;
        if (!PyDict_Check(dict)) return PyErr_SetString(PyExc_TypeError, "not a dictionary."), NULL;
        for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value); seen++)
            if (seen == count || value != PyTuple_GET_ITEM(args[1], seen)) Py_RETURN_FALSE;
    }
    return PyBool_FromLong(seen == count);
}

#define FUNCTION(name, function) {name, (PyCFunction)(void (*)(void))function, METH_FASTCALL, 0}
#define STRING(x) #x
#define NAME(x) STRING(x)
#define JOINED(a, b) a##b
#define INIT(x) JOINED(PyInit_, x)

static PyMethodDef updates_methods[] = {
    FUNCTION("update_critics", update_critics_of), FUNCTION("update_actor", update_actor_of),
    FUNCTION("update_targets", update_targets_of), FUNCTION("act", act_of), {0},
};
static PyMethodDef ranks_methods[] = {
    FUNCTION("fill", ranks_fill_of), FUNCTION("update", ranks_update_of),
    FUNCTION("draw", ranks_draw_of), FUNCTION("ties", ranks_ties_of), {0},
};
static PyMethodDef functions[] = {
    FUNCTION("store", py_store), FUNCTION("accept", py_accept),
    FUNCTION("read_rows", py_read_rows), FUNCTION("write_rows", py_write_rows),
    FUNCTION("holds", py_holds), {0},
};
static PyType_Slot updates_slots[] = {
    {Py_tp_init, updates_init}, {Py_tp_dealloc, updates_dealloc}, {Py_tp_methods, updates_methods},
    {Py_tp_new, PyType_GenericNew}, {0, 0},
};
static PyType_Slot ranks_slots[] = {
    {Py_tp_init, ranks_init}, {Py_tp_dealloc, ranks_dealloc}, {Py_tp_methods, ranks_methods},
    {Py_tp_new, PyType_GenericNew}, {0, 0},
};
static PyType_Spec types[] = {
    {"torchrl_vmfer.compiled." NAME(MODULE) ".Updates", sizeof(Updates), 0, Py_TPFLAGS_DEFAULT,
     updates_slots},
    {"torchrl_vmfer.compiled." NAME(MODULE) ".Ranks", sizeof(RanksObject), 0, Py_TPFLAGS_DEFAULT,
     ranks_slots},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, NAME(MODULE), 0, -1, functions};

PyMODINIT_FUNC INIT(MODULE)(void) {
    PyObject *module = PyModule_Create(&definition);
    for (int i = 0; module && i < 2; i++) {
        PyObject *type = PyType_FromSpec(types + i);
        if (!type || PyModule_AddType(module, (PyTypeObject *)type)) Py_CLEAR(module);
        Py_XDECREF(type);
    }
    return module;
}
