/* Stacks of linear layers with ReLU and optional layer normalization, and Adam.
 *
 * A network has `members` agents with `count` networks each. A parameter is [members][count][size].
 * Units of a batch are in the panels of gemm.h.
 */
#ifndef NETWORKS_H
#define NETWORKS_H

#include "sparse.h"
#include <math.h>
#include <stdlib.h>

typedef struct {
    float *value, *target;       /* target: NULL if there is no target network */
    float *mean, *square, *step; /* Adam's averages, and its step count [members] */
    long size;
} Param;

typedef struct {
    long in, out;
    Param params[4]; /* weight, bias; scale and shift of the normalization after the layer */
} Layer;

typedef struct {
    long members, count, depth;
    int has_norm;
    double norm_eps;
    Layer *layers;
} Network;

INLINE int is_normalized(const Network *net, long l) { return net->has_norm && l + 1 < net->depth; }
INLINE int num_params(const Network *net, long l) { return is_normalized(net, l) ? 4 : 2; }

/* Memory for one update, kept for the next: chunks are merged when all are free. */
typedef struct Chunk { struct Chunk *next; long size, used; float *memory; } Chunk;
typedef struct { Chunk *chunks; } Arena;

enum { LINE = 16 }; /* floats in a line of the cache */

static float *take(Arena *arena, long size) {
    size = (size + LINE - 1) / LINE * LINE + LINE;
    Chunk *chunk = arena->chunks;
    if (!chunk || chunk->used + size > chunk->size) {
        chunk = malloc(sizeof *chunk);
        if (!chunk) abort();
        *chunk = (Chunk){arena->chunks, most(size, 1 << 16), 0, 0};
        if (!(chunk->memory = aligned_alloc(64, sizeof(float) * (chunk->size + LINE) / 64 * 64)))
            abort();
        arena->chunks = chunk;
    }
    float *found = chunk->memory + chunk->used;
    chunk->used += size;
    return found;
}

/* Frees what was taken after a mark, for the next to take; unless a chunk was added since then. */
typedef struct { Chunk *chunk; long used; } Mark;

static Mark mark_of(const Arena *arena) { return (Mark){arena->chunks, arena->chunks->used}; }

static void release(Arena *arena, Mark mark) {
    if (arena->chunks == mark.chunk) mark.chunk->used = mark.used;
}

static void free_all(Arena *arena) {
    while (arena->chunks) {
        Chunk *next = arena->chunks->next;
        free(arena->chunks->memory), free(arena->chunks);
        arena->chunks = next;
    }
}

static void reset(Arena *arena) {
    if (!arena->chunks) return;
    if (arena->chunks->next) {
        long size = 0;
        for (Chunk *chunk = arena->chunks; chunk; chunk = chunk->next) size += chunk->size;
        free_all(arena);
        take(arena, size);
    }
    arena->chunks->used = 0;
}

/* What a forward pass leaves for the backward pass. */
typedef struct {
    float **units;   /* the inputs, and the outputs of each layer */
    float **normal;  /* the normalized outputs before scale and shift */
    float **inverse; /* 1 / standard deviation of each row */
} Pass;

static Pass new_pass(Arena *arena, const Network *net, long rows, float *inputs) {
    long pointers = 2 * (3 * net->depth + 1); /* in floats */
    Pass pass = {(float **)take(arena, pointers)};
    pass.normal = pass.units + net->depth + 1, pass.inverse = pass.normal + net->depth;
    pass.units[0] = inputs;
    for (long l = 0; l < net->depth; l++) {
        long size = rows * padded(net->layers[l].out);
        pass.units[l + 1] = take(arena, size);
        pass.normal[l] = is_normalized(net, l) ? take(arena, size) : 0;
        pass.inverse[l] = is_normalized(net, l) ? take(arena, rows) : 0;
    }
    return pass;
}

/* Normalizes each row of `units`, then applies scale, shift and ReLU. */
static void normalize(long rows, long width, double eps, const float *scale, const float *shift,
                      float *units, float *normal, float *inverse) {
    for (long r = 0; r < rows; r++) {
        double sum = 0, square = 0;
        for (long u = 0; u < width; u++) sum += units[place_in(rows, r, u)];
        double mean = sum / width;
        for (long u = 0; u < width; u++) {
            double d = units[place_in(rows, r, u)] - mean;
            square += d * d;
        }
        inverse[r] = (float)(1 / sqrt(square / width + eps));
        for (long u = 0; u < width; u++) {
            long at = place_in(rows, r, u);
            normal[at] = (float)(units[at] - mean) * inverse[r];
            float y = normal[at] * scale[u] + shift[u];
            units[at] = y <= 0 ? 0 : y;
        }
    }
}

/* The gradients of scale and shift; turns the slopes of the outputs into those of the inputs. */
static void normalize_back(long rows, long width, const float *scale, const float *normal,
                           const float *inverse, float *slopes, float *of_scale, float *of_shift) {
    for (long u = 0; u < width && of_scale; u++) {
        double sum = 0, product = 0;
        for (long r = 0; r < rows; r++) {
            long at = place_in(rows, r, u);
            sum += slopes[at], product += (double)slopes[at] * normal[at];
        }
        of_shift[u] = (float)sum, of_scale[u] = (float)product;
    }
    for (long r = 0; r < rows; r++) {
        double sum = 0, product = 0;
        for (long u = 0; u < width; u++) {
            long at = place_in(rows, r, u);
            double g = slopes[at] * scale[u];
            sum += g, product += g * normal[at];
        }
        for (long u = 0; u < width; u++) {
            long at = place_in(rows, r, u);
            double g = slopes[at] * scale[u];
            slopes[at] = (float)((g - (sum + normal[at] * product) / width) * inverse[r]);
        }
    }
}

enum { WEIGHT, BIAS, SCALE, SHIFT };

INLINE const float *value_of(const Layer *layer, int i, long which, int is_target) {
    const Param *param = layer->params + i;
    return (is_target && param->target ? param->target : param->value) + param->size * which;
}

/* The outputs of one network, [rows][out] in panels. */
static float *forward(Arena *arena, const Network *net, long which, int is_target, long rows,
                      Pass pass) {
    for (long l = 0; l < net->depth; l++) {
        const Layer *layer = net->layers + l;
        const float *weight = value_of(layer, WEIGHT, which, is_target);
        const float *bias = value_of(layer, BIAS, which, is_target);
        int is_last = l + 1 == net->depth;
        if (layer->out == 1 && is_last) {
            single_output(rows, layer->in, pass.units[l], weight, *bias, pass.units[l + 1]);
            continue;
        }
        Mark mark = mark_of(arena);
        float *packed = take(arena, padded(layer->out) * layer->in);
        float *first = take(arena, padded(layer->out));
        memcpy(first, bias, sizeof(float) * layer->out);
        memset(first + layer->out, 0, sizeof(float) * (padded(layer->out) - layer->out));
        pack_transposed(layer->in, layer->out, weight, packed, LANES * layer->in);
        product(rows, layer->in, layer->out, pass.units[l], packed, first,
                !is_last && !net->has_norm, 0, pass.units[l + 1]);
        if (is_normalized(net, l))
            normalize(rows, layer->out, net->norm_eps, value_of(layer, SCALE, which, is_target),
                      value_of(layer, SHIFT, which, is_target), pass.units[l + 1], pass.normal[l],
                      pass.inverse[l]);
        release(arena, mark);
    }
    return pass.units[net->depth];
}

typedef struct {
    double lr, beta1, beta2, eps, decay; /* decay: the decoupled weight decay */
    double clip; /* the largest norm of the gradient; 0 for no limit */
} Adam;

static void adam_param(const Adam *adam, double factor, double step, const float *gradient,
                       float *restrict value, float *restrict mean, float *restrict square,
                       long size) {
    const float g_scale = (float)factor, b1 = (float)(1 - adam->beta1), b2 = (float)adam->beta2;
    const float rest = (float)(1 - adam->beta2), eps = (float)adam->eps;
    const float rate = (float)(adam->lr / (1 - pow(adam->beta1, step)));
    const float kept = (float)(1 - adam->lr * adam->decay);
    const float root = (float)(1 / sqrt(1 - pow(adam->beta2, step)));
    for (long i = 0; i < size; i++) {
        float g = gradient[i] * g_scale;
        float m = mean[i] + b1 * (g - mean[i]);
        float v = b2 * square[i] + rest * g * g;
        mean[i] = m, square[i] = v;
        value[i] = kept * value[i] - rate * m / (sqrtf(v) * root + eps);
    }
}

/* The gradients of a layer, in the order of its parameters. */
typedef struct { float *parts[4]; } Gradient;

static void adam_layer(const Adam *adam, double factor, const Network *net, long l, long member,
                       long which, Gradient gradient) {
    for (int i = 0; i < num_params(net, l); i++) {
        const Param *p = net->layers[l].params + i;
        long at = p->size * which;
        adam_param(adam, factor, p->step[member] + 1, gradient.parts[i], p->value + at,
                   p->mean + at, p->square + at, p->size);
    }
}

static void count_step(const Network *net, long member) {
    for (long l = 0; l < net->depth; l++)
        for (int i = 0; i < num_params(net, l); i++) net->layers[l].params[i].step[member]++;
}

/* The backward pass of one network.
 *
 * slopes: the gradient of the outputs, in panels
 * adam: takes a step with each gradient as soon as it is known, if it has no limit; or NULL
 * gradients: [depth], receive the gradients of the parameters if adam has a limit
 * columns, count: the inputs whose gradient is returned, in panels; count = 0 for none
 */
static float *backward(Arena *arena, const Network *net, long member, long which, long rows,
                       Pass pass, float *slopes, const Adam *adam, Gradient *gradients,
                       long columns, long count) {
    for (long l = net->depth - 1; l >= 0; l--) {
        const Layer *layer = net->layers + l;
        Gradient gradient = {{0}};
        for (int i = 0; adam && i < num_params(net, l); i++)
            gradient.parts[i] = take(arena, layer->params[i].size);
        if (gradients) gradients[l] = gradient;
        long wanted = l ? layer->in : count;
        float *below = wanted ? take(arena, padded(wanted) * rows) : 0;
        Mark mark = mark_of(arena);
        float *room = take(arena, most(padded(rows), padded(wanted)) * layer->out);
        if (is_normalized(net, l))
            normalize_back(rows, layer->out, value_of(layer, SCALE, which, 0), pass.normal[l],
                           pass.inverse[l], slopes, gradient.parts[SCALE], gradient.parts[SHIFT]);
        if (adam) {
            weight_gradient(rows, layer->in, layer->out, slopes, pass.units[l], room,
                            gradient.parts[WEIGHT]);
            column_sums(rows, layer->out, slopes, gradient.parts[BIAS]);
        }
        if (wanted) {
            const float *weight = value_of(layer, WEIGHT, which, 0) + (l ? 0 : columns);
            pack_columns(layer->in, layer->out, weight, wanted, room);
            product(rows, layer->out, wanted, slopes, room, 0, 0, l ? pass.units[l] : 0, below);
            slopes = below;
        }
        release(arena, mark);
        if (adam && !gradients) adam_layer(adam, 1, net, l, member, which, gradient);
    }
    return slopes;
}

/* Takes Adam's step with gradients [count][depth] of a member, clipped to a norm. */
static void clipped_step(const Network *net, long member, const Adam *adam, Gradient *gradients) {
    double square = 0;
    for (long i = 0; i < net->count * net->depth; i++)
        for (int part = 0; part < num_params(net, i % net->depth); part++) {
            const float *gradient = gradients[i].parts[part];
            for (long j = 0; j < net->layers[i % net->depth].params[part].size; j++)
                square += (double)gradient[j] * gradient[j];
        }
    double factor = adam->clip / (sqrt(square) + 1e-6);
    factor = factor > 1 ? 1 : factor; /* NaN stays */
    for (long i = 0; i < net->count * net->depth; i++)
        adam_layer(adam, factor, net, i % net->depth, member, net->count * member + i / net->depth,
                   gradients[i]);
}

static void move_targets(const Network *net, long member, double tau) {
    const float t = (float)tau;
    for (long l = 0; l < net->depth; l++)
        for (int i = 0; i < num_params(net, l); i++) {
            const Param *param = net->layers[l].params + i;
            if (!param->target) continue;
            long size = param->size * net->count;
            float *restrict target = param->target + size * member;
            const float *restrict value = param->value + size * member;
            for (long j = 0; j < size; j++) target[j] += t * (value[j] - target[j]);
        }
}

#endif
