/* The Python module. A source file per instruction set includes this one, with MODULE defined.
 *
 * Arrays are NumPy arrays, or anything else with C-contiguous buffers. Their types and sizes are
 * checked here, once, so that the functions of the other files need not check anything.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "samplers.h"

_Static_assert(sizeof(long) == 8, "a long must have 64 bits");

/* The data of an array of a kind ('f', 'd', 'l', 'i', '?' or '*' for any) with `count` elements, or
 * any number if it is negative. Returns NULL and sets an error if it does not fit. The pointer is
 * valid while the caller holds a reference. `size` receives the number of elements or, for '*', of
 * bytes; it may be NULL. */
static void *data_of(PyObject *array, const char *name, char kind, Py_ssize_t count,
                     int is_written, Py_ssize_t *size) {
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

#define NEED(target, array, kind, count, written)                                                 \
    if (!(target = data_of(array, #array, kind, count, written, 0))) return 0
#define MAY(target, array, kind, count, written)                                                  \
    if (array != Py_None) { NEED(target, array, kind, count, written); } else target = 0

typedef struct {
    PyObject_HEAD
    PyObject *arrays; /* a list of all arrays to which `agents` points */
    Agents agents;
} Updates;

static int number_of(PyObject *settings, const char *name, double *value) {
    PyObject *found = PyDict_GetItemString(settings, name);
    if (!found) return PyErr_Format(PyExc_KeyError, "%s", name), -1;
    *value = PyFloat_AsDouble(found);
    return PyErr_Occurred() ? -1 : 0;
}

/* An array that stays referenced, of settings or of a parameter. */
static float *kept_floats(Updates *self, PyObject *array, const char *name, long count) {
    float *data = data_of(array, name, 'f', count, 1, 0);
    return data && !PyList_Append(self->arrays, array) ? data : 0;
}

/* Reads (value, target, mean, square, step). The target may be None. */
static int read_param(Updates *self, PyObject *arrays, long size, long count, long members,
                      Param *param) {
    PyObject *value, *target, *mean, *square, *step;
    if (!PyArg_ParseTuple(arrays, "OOOOO", &value, &target, &mean, &square, &step)) return -1;
    long all = size * count * members;
    param->size = size;
    if (!(param->value = kept_floats(self, value, "parameter", all))) return -1;
    if (target != Py_None && !(param->target = kept_floats(self, target, "target", all))) return -1;
    if (mean == Py_None) return 0;
    if (!(param->mean = kept_floats(self, mean, "exp_avg", all))) return -1;
    if (!(param->square = kept_floats(self, square, "exp_avg_sq", all))) return -1;
    return (param->step = kept_floats(self, step, "step", members)) ? 0 : -1;
}

/* Reads the sizes of layers and a list of the parameters of each, as tuples of arrays. */
static int read_network(Updates *self, PyObject *sizes, PyObject *params, long count,
                        Network *net) {
    Py_ssize_t depth = PyTuple_Check(sizes) ? PyTuple_GET_SIZE(sizes) - 1 : 0;
    net->members = self->agents.members, net->count = count;
    long expected = net->has_norm ? 4 * depth - 2 : 2 * depth;
    if (depth < 1 || !PyList_Check(params) || PyList_GET_SIZE(params) != expected) {
        PyErr_SetString(PyExc_ValueError, "the parameters of a network do not match its sizes.");
        return -1;
    }
    if (!(net->layers = calloc(depth, sizeof(Layer)))) return PyErr_NoMemory(), -1;
    net->depth = depth;
    for (long l = 0, at = 0; l < depth; l++) {
        Layer *layer = net->layers + l;
        layer->in = PyLong_AsLong(PyTuple_GET_ITEM(sizes, l));
        layer->out = PyLong_AsLong(PyTuple_GET_ITEM(sizes, l + 1));
        if (PyErr_Occurred()) return -1;
        if (layer->in < 1 || layer->out < 1)
            return PyErr_SetString(PyExc_ValueError, "a layer has no units."), -1;
        Param *all[] = {&layer->weight, &layer->bias, &layer->scale, &layer->shift};
        long lengths[] = {layer->in * layer->out, layer->out, layer->out, layer->out};
        for (int i = 0; i < (net->has_norm && l + 1 < depth ? 4 : 2); i++)
            if (read_param(self, PyList_GET_ITEM(params, at++), lengths[i], count, net->members,
                           all[i]))
                return -1;
    }
    return 0;
}

/* Reads all numbers and arrays of `settings`; Python defines what they mean. */
static int read_settings(Updates *self, PyObject *settings) {
    Agents *a = &self->agents;
    struct { const char *name; long *whole; int *flag; double *real; } entries[] = {
        {"members", &a->members}, {"observation", &a->observation}, {"action", &a->action},
        {"num_targets", &a->num_targets}, {"dropped", &a->dropped},
        {"policy", 0, &a->policy}, {"is_quantile", 0, &a->is_quantile},
        {"is_action_first", 0, &a->is_action_first}, {"is_squashed", 0, &a->is_squashed},
        {"followed", 0, &a->followed}, {"used", 0, &a->used}, {"measures", 0, &a->measures},
        {"has_norms", 0, &a->has_norms}, {"is_pre_tanh", 0, &a->is_pre_tanh},
        {"distance", 0, &a->distance}, {"is_mean", 0, &a->is_mean},
        {"is_cloning", 0, &a->is_cloning}, {"has_alpha_bounds", 0, &a->has_alpha_bounds},
        {"is_alpha_loss_exp", 0, &a->is_alpha_loss_exp},
        {"actor_norm", 0, &a->actor.has_norm}, {"critic_norm", 0, &a->critics.has_norm},
        {"actor_norm_eps", 0, 0, &a->actor.norm_eps},
        {"critic_norm_eps", 0, 0, &a->critics.norm_eps},
        {"critic_scale", 0, 0, &a->critic_scale}, {"actor_scale", 0, 0, &a->actor_scale},
        {"policy_noise", 0, 0, &a->policy_noise}, {"noise_clip", 0, 0, &a->noise_clip},
        {"actor_noise", 0, 0, &a->actor_noise}, {"actor_noise_clip", 0, 0, &a->actor_noise_clip},
        {"cloning", 0, 0, &a->cloning}, {"log_low", 0, 0, &a->log_low},
        {"log_high", 0, 0, &a->log_high}, {"alpha_low", 0, 0, &a->alpha_low},
        {"alpha_high", 0, 0, &a->alpha_high}, {"target_entropy", 0, 0, &a->target_entropy},
    };
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        double value;
        if (number_of(settings, entries[i].name, &value)) return -1;
        if (entries[i].whole) *entries[i].whole = (long)value;
        else if (entries[i].flag) *entries[i].flag = (int)value;
        else *entries[i].real = value;
    }
    struct { const char *name; float **array; } arrays[] = {
        {"low", &a->low}, {"high", &a->high}, {"middle", &a->middle}, {"half", &a->half},
        {"seen_middle", &a->seen_middle}, {"seen_half", &a->seen_half},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        PyObject *array = PyDict_GetItemString(settings, arrays[i].name);
        if (!array) return PyErr_Format(PyExc_KeyError, "%s", arrays[i].name), -1;
        if (!(*arrays[i].array = kept_floats(self, array, arrays[i].name, a->action))) return -1;
    }
    return 0;
}

static int read_adam(PyObject *values, Adam *adam) {
    return PyArg_ParseTuple(values, "ddd", &adam->beta1, &adam->beta2, &adam->eps) ? 0 : -1;
}

static int updates_init(Updates *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"settings", "actor_sizes", "actor", "critic_sizes", "critics",
                            "num_critics", "log_alpha", "adams", 0};
    PyObject *settings, *actor_sizes, *actor, *critic_sizes, *critics, *alpha, *adams[3];
    Agents *a = &self->agents;
    long count;
    if (self->arrays) return PyErr_SetString(PyExc_RuntimeError, "initialized twice"), -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOOOlO(OOO)", names, &PyDict_Type, &settings,
                                     &actor_sizes, &actor, &critic_sizes, &critics, &count, &alpha,
                                     adams, adams + 1, adams + 2))
        return -1;
    if (!(self->arrays = PyList_New(0))) return -1;
    if (read_settings(self, settings) || read_adam(adams[0], &a->adam_of_critics) ||
        read_adam(adams[1], &a->adam_of_actor) || read_adam(adams[2], &a->adam_of_alpha) ||
        read_network(self, actor_sizes, actor, 1, &a->actor) ||
        (count && read_network(self, critic_sizes, critics, count, &a->critics)) ||
        (alpha != Py_None && read_param(self, alpha, 1, 1, a->members, &a->log_alpha)))
        return -1;
    long outputs = count ? a->critics.layers[a->critics.depth - 1].out : 1;
    int fits = a->actor.layers[0].in == a->observation && a->members > 0 &&
               a->actor.layers[a->actor.depth - 1].out ==
                   a->action * (a->policy == GAUSSIAN ? 2 : 1);
    if (count)
        fits = fits && a->critics.layers[0].in == a->observation + a->action &&
               a->num_targets > 0 && a->num_targets <= count &&
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

static PyObject *update_critics_of(Updates *self, PyObject *args) {
    PyObject *index, *observation, *action, *reward, *terminated, *next_observation, *weights;
    PyObject *noise, *subset, *gamma, *lr, *active, *loss, *error;
    Agents *a = &self->agents;
    Batch b = {0};
    Adam adam = a->adam_of_critics;
    if (!PyArg_ParseTuple(args, "llOOOOOOOOOOOdOOO", &b.rows, &b.size, &index, &observation, &action,
                          &reward, &terminated, &next_observation, &weights, &noise, &subset, &gamma,
                          &lr, &adam.clip, &active, &loss, &error))
        return 0;
    long m = a->members, all = m * b.rows, stored = m * b.size;
    if (b.rows < 1 || (index == Py_None && b.size != b.rows) || !a->critics.depth ||
        !a->critics.layers[0].weight.step)
        return PyErr_SetString(PyExc_ValueError, "no rows, no index or no optimizer."), NULL;
    const double *gammas, *lrs;
    const uint8_t *is_active;
    float *errors;
    double *losses;
    MAY(b.index, index, 'l', all, 0);
    NEED(b.observation, observation, 'f', stored * a->observation, 0);
    NEED(b.action, action, 'f', stored * a->action, 0);
    NEED(b.reward, reward, 'f', stored, 0);
    NEED(b.terminated, terminated, '?', stored, 0);
    NEED(b.next_observation, next_observation, 'f', stored * a->observation, 0);
    MAY(b.weights, weights, 'f', all, 0);
    NEED(b.noise, noise, 'f', all * a->action, 0);
    if (subset != Py_None) {
        Py_ssize_t size;
        if (!(b.subset = data_of(subset, "subset", 'l', -1, 0, &size))) return 0;
        b.num_subset = size / m;
        if (size % m || !size || !are_within(b.subset, size, a->critics.count, "critic"))
            return PyErr_Occurred() ? 0 : (PyErr_SetString(PyExc_ValueError, "subset"), NULL);
    }
    NEED(gammas, gamma, 'd', m, 0);
    NEED(lrs, lr, 'd', m, 0);
    MAY(is_active, active, '?', m, 0);
    NEED(losses, loss, 'd', m, 1);
    NEED(errors, error, 'f', all, 1);
    if (b.index && !are_within(b.index, all, b.size, "slot")) return 0;
    for (long i = 0; i < m; i++) {
        if (is_active && !is_active[i]) continue;
        adam.lr = lrs[i];
        losses[i] = update_critics(a, &b, i, gammas[i], &adam, errors + b.rows * i);
    }
    Py_RETURN_NONE;
}

static PyObject *update_actor_of(Updates *self, PyObject *args) {
    PyObject *index, *observation, *action, *weights, *noise, *lr, *alpha_lr, *active, *loss;
    PyObject *factor, *length, *norm, *density;
    Agents *a = &self->agents;
    Batch b = {0};
    Adam adam = a->adam_of_actor, adam_of_alpha = a->adam_of_alpha;
    if (!PyArg_ParseTuple(args, "llOOOOOOOdOOOOOO", &b.rows, &b.size, &index, &observation, &action,
                          &weights, &noise, &lr, &alpha_lr, &adam.clip, &active, &loss, &factor,
                          &length, &norm, &density))
        return 0;
    long m = a->members, all = m * b.rows, stored = m * b.size;
    int is_gaussian = a->policy == GAUSSIAN;
    if (b.rows < 1 || (index == Py_None && b.size != b.rows) || !a->critics.depth ||
        !a->actor.layers[0].weight.step)
        return PyErr_SetString(PyExc_ValueError, "no rows, no index or no optimizer."), NULL;
    const double *lrs, *alpha_lrs;
    const uint8_t *is_active;
    double *losses;
    Report all_of = {0};
    MAY(b.index, index, 'l', all, 0);
    NEED(b.observation, observation, 'f', stored * a->observation, 0);
    MAY(b.weights, weights, 'f', all, 0);
    if (a->is_cloning) { NEED(b.action, action, 'f', stored * a->action, 0); }
    if (is_gaussian || a->actor_noise) { NEED(b.noise, noise, 'f', all * a->action, 0); }
    NEED(lrs, lr, 'd', m, 0);
    MAY(alpha_lrs, alpha_lr, 'd', m, 0);
    MAY(is_active, active, '?', m, 0);
    NEED(losses, loss, 'd', 3 * m, 1);
    if (a->measures) {
        NEED(all_of.factor, factor, 'f', all, 1);
        NEED(all_of.length, length, 'f', all, 1);
    }
    if (a->has_norms) { NEED(all_of.norm, norm, 'f', all, 1); }
    if (is_gaussian) { NEED(all_of.density, density, 'f', all, 1); }
    if (b.index && !are_within(b.index, all, b.size, "slot")) return 0;
    if (alpha_lrs && !a->log_alpha.step)
        return PyErr_SetString(PyExc_ValueError, "the temperature has no optimizer."), NULL;
    for (long i = 0; i < m; i++) {
        if (is_active && !is_active[i]) continue;
        long at = b.rows * i;
        Report report = {all_of.factor ? all_of.factor + at : 0, all_of.length ? all_of.length + at : 0,
                         all_of.norm ? all_of.norm + at : 0, all_of.density ? all_of.density + at : 0,
                         0, 0, 0};
        adam.lr = lrs[i], adam_of_alpha.lr = alpha_lrs ? alpha_lrs[i] : 0;
        update_actor(a, &b, i, &adam, alpha_lrs ? &adam_of_alpha : 0, &report);
        losses[3 * i] = report.loss, losses[3 * i + 1] = report.cloning;
        losses[3 * i + 2] = report.scale;
    }
    Py_RETURN_NONE;
}

static PyObject *update_targets_of(Updates *self, PyObject *args) {
    PyObject *tau, *active;
    Agents *a = &self->agents;
    const double *taus;
    const uint8_t *is_active;
    if (!PyArg_ParseTuple(args, "OO", &tau, &active)) return 0;
    NEED(taus, tau, 'd', a->members, 0);
    MAY(is_active, active, '?', a->members, 0);
    for (long i = 0; i < a->members; i++) {
        if (is_active && !is_active[i]) continue;
        if (a->critics.depth && a->critics.layers[0].weight.target) move_targets(&a->critics, i, taus[i]);
        if (a->actor.layers[0].weight.target) move_targets(&a->actor, i, taus[i]);
    }
    Py_RETURN_NONE;
}

static PyObject *act_of(Updates *self, PyObject *args) {
    PyObject *observation, *noise, *deviation, *action, *active;
    Agents *a = &self->agents;
    const float *observations, *noises;
    const double *deviations;
    const uint8_t *is_active;
    float *actions;
    if (!PyArg_ParseTuple(args, "OOOOO", &observation, &noise, &deviation, &active, &action)) return 0;
    NEED(observations, observation, 'f', a->members * a->observation, 0);
    MAY(noises, noise, 'f', a->members * a->action, 0);
    NEED(deviations, deviation, 'd', a->members, 0);
    MAY(is_active, active, '?', a->members, 0);
    NEED(actions, action, 'f', a->members * a->action, 1);
    for (long i = 0; i < a->members; i++) {
        if (is_active && !is_active[i]) continue;
        act(a, i, observations + a->observation * i, noises ? noises + a->action * i : 0,
            deviations[i], actions + a->action * i);
    }
    Py_RETURN_NONE;
}

/* Reads (codes, block, count, lowest, before, blocks), of which the last has one element. */
static int64_t *read_ranks(PyObject *arrays, Ranks *ranks) {
    PyObject *codes, *block, *count, *lowest, *before, *blocks;
    Py_ssize_t size;
    int64_t *used;
    if (!PyArg_ParseTuple(arrays, "OOOOOO", &codes, &block, &count, &lowest, &before, &blocks)) return 0;
    if (!(ranks->block = data_of(block, "block", 'l', -1, 1, &size))) return 0;
    ranks->capacity = size;
    NEED(ranks->codes, codes, 'l', size * WIDTH, 1);
    NEED(ranks->count, count, 'l', size, 1);
    NEED(ranks->lowest, lowest, 'l', size, 1);
    NEED(ranks->before, before, 'l', size + 1, 1);
    NEED(used, blocks, 'l', 1, 1);
    ranks->blocks = *used;
    return used;
}

static PyObject *py_ranks_fill(PyObject *module, PyObject *args) {
    PyObject *arrays, *sorted;
    Ranks ranks;
    Py_ssize_t size;
    int64_t *codes, *blocks;
    if (!PyArg_ParseTuple(args, "OO", &arrays, &sorted)) return 0;
    if (!(blocks = read_ranks(arrays, &ranks))) return 0;
    if (!(codes = data_of(sorted, "sorted", 'l', -1, 0, &size))) return 0;
    if (size > ranks.capacity * (WIDTH / 2) || !ranks.capacity)
        return PyErr_SetString(PyExc_ValueError, "too few blocks."), NULL;
    ranks_fill(&ranks, size, codes);
    *blocks = ranks.blocks;
    Py_RETURN_NONE;
}

static PyObject *py_ranks_update(PyObject *module, PyObject *args) {
    PyObject *arrays, *bits, *slots, *values;
    Ranks ranks;
    Py_ssize_t size, known;
    int64_t *blocks, *index;
    int32_t *given;
    if (!PyArg_ParseTuple(args, "OOOO", &arrays, &bits, &slots, &values)) return 0;
    if (!(blocks = read_ranks(arrays, &ranks))) return 0;
    if (!(ranks.bits = data_of(bits, "bits", 'i', -1, 1, &known))) return 0;
    if (!(index = data_of(slots, "slots", 'l', -1, 0, &size))) return 0;
    NEED(given, values, 'i', size, 0);
    if (!are_within(index, size, known, "slot")) return 0;
    long is_done = ranks_update(&ranks, size, index, given);
    *blocks = ranks.blocks;
    return PyBool_FromLong(is_done);
}

static PyObject *py_ranks_draw(PyObject *module, PyObject *args) {
    PyObject *arrays, *at, *random, *found;
    Ranks ranks;
    Py_ssize_t size;
    int64_t *index, *results;
    double *numbers;
    if (!PyArg_ParseTuple(args, "OOOO", &arrays, &at, &random, &found)) return 0;
    if (!read_ranks(arrays, &ranks)) return 0;
    if (!(index = data_of(at, "ranks", 'l', -1, 0, &size))) return 0;
    NEED(numbers, random, 'd', size, 0);
    NEED(results, found, 'l', 3 * size, 1);
    if (!are_within(index, size, ranks.before[ranks.blocks], "rank")) return 0;
    ranks_draw(&ranks, size, index, numbers, results, results + size, results + 2 * size);
    Py_RETURN_NONE;
}

static PyObject *py_ranks_at(PyObject *module, PyObject *args) {
    PyObject *points, *mass, *found;
    Py_ssize_t size, terms;
    double *at, *masses, power;
    int64_t *ranks;
    long length;
    if (!PyArg_ParseTuple(args, "OOldO", &points, &mass, &length, &power, &found)) return 0;
    if (!(at = data_of(points, "points", 'd', -1, 0, &size))) return 0;
    if (!(masses = data_of(mass, "mass", 'd', -1, 0, &terms))) return 0;
    NEED(ranks, found, 'l', size, 1);
    if (length < 1 || length >= terms)
        return PyErr_Format(PyExc_ValueError, "length %ld for %zd terms.", length, terms), NULL;
    return PyLong_FromLong(ranks_at(size, at, masses, terms, length, power, ranks));
}

static PyObject *py_accept_slots(PyObject *module, PyObject *args) {
    PyObject *random, *factors, *found;
    Py_ssize_t proposals, size;
    double *numbers, bound;
    float *values;
    int64_t *slots;
    long wanted;
    if (!PyArg_ParseTuple(args, "OOdlO", &random, &factors, &bound, &wanted, &found)) return 0;
    if (!(numbers = data_of(random, "random", 'd', -1, 0, &proposals))) return 0;
    if (!(values = data_of(factors, "factors", 'f', -1, 0, &size))) return 0;
    NEED(slots, found, 'l', proposals / 2, 1);
    for (Py_ssize_t i = 0; i < proposals / 2; i++)
        if (!(numbers[i] >= 0 && numbers[i] < 1) || !size)
            return PyErr_SetString(PyExc_ValueError, "random numbers must be in [0, 1)."), NULL;
    return PyLong_FromLong(accept_slots(proposals / 2, numbers, size, values, bound, wanted, slots));
}

static PyObject *py_store_factors(PyObject *module, PyObject *args) {
    PyObject *index, *values, *factors, *last_update;
    Py_ssize_t count, size;
    double low, high;
    long update;
    int64_t *slots;
    float *given, *all;
    int32_t *updates;
    if (!PyArg_ParseTuple(args, "OOddOOl", &index, &values, &low, &high, &factors, &last_update,
                          &update))
        return 0;
    if (!(slots = data_of(index, "index", 'l', -1, 0, &count))) return 0;
    NEED(given, values, 'f', count, 0);
    if (!(all = data_of(factors, "factors", 'f', -1, 1, &size))) return 0;
    NEED(updates, last_update, 'i', size, 1);
    return PyBool_FromLong(store_factors(count, slots, given, low, high, size, all, updates, update));
}

/* Copies rows between columns [size][...] and rows [count][...], both tuples of arrays. */
static PyObject *copy_rows(PyObject *args, int is_write) {
    PyObject *columns, *index, *rows, *result = 0;
    Py_ssize_t count;
    long size;
    int64_t *slots;
    if (!PyArg_ParseTuple(args, "O!OlO!", &PyTuple_Type, &columns, &index, &size, &PyTuple_Type,
                          &rows))
        return 0;
    if (!(slots = data_of(index, "index", 'l', -1, 0, &count))) return 0;
    Py_ssize_t number = PyTuple_GET_SIZE(columns);
    if (PyTuple_GET_SIZE(rows) != number)
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

static PyObject *py_read_rows(PyObject *module, PyObject *args) { return copy_rows(args, 0); }
static PyObject *py_write_rows(PyObject *module, PyObject *args) { return copy_rows(args, 1); }

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

static PyMethodDef methods_of_updates[] = {
    {"update_critics", (PyCFunction)update_critics_of, METH_VARARGS, 0},
    {"update_actor", (PyCFunction)update_actor_of, METH_VARARGS, 0},
    {"update_targets", (PyCFunction)update_targets_of, METH_VARARGS, 0},
    {"act", (PyCFunction)act_of, METH_VARARGS, 0},
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
    {"ranks_fill", py_ranks_fill, METH_VARARGS, 0},
    {"ranks_update", py_ranks_update, METH_VARARGS, 0},
    {"ranks_draw", py_ranks_draw, METH_VARARGS, 0},
    {"ranks_at", py_ranks_at, METH_VARARGS, 0},
    {"accept_slots", py_accept_slots, METH_VARARGS, 0},
    {"store_factors", py_store_factors, METH_VARARGS, 0},
    {"read_rows", py_read_rows, METH_VARARGS, 0},
    {"write_rows", py_write_rows, METH_VARARGS, 0},
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
