/* Stacks of linear layers with ReLU between them: outputs and gradients, on one thread.
 *
 * Matrices of other functions are row-major, [transition][unit]. Here, batches are divided into
 * panels of 16 or 32 transitions, [panel][unit][transition]; the last panel is padded with zeros. A
 * layer reads its panels in order, multiplies each value by one weight, and writes the panels that
 * the next layer reads, so that no copies are needed between layers.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Python passes all sizes as `long`; ranks.c receives them as int64_t. */
_Static_assert(sizeof(long) == 8, "a long must have 64 bits");

/* VECTOR: floats in a vector. TILE: rows computed together; the sums of a row take two vectors, and
 * all sums must fit in the 32 vector registers of AVX-512, or the 16 of AVX2. */
#define EIGHT(x) x, x, x, x, x, x, x, x
#if defined(__AVX512F__)
#define VECTOR 16
#define TILE 8
#define VECTOR_OF(x) EIGHT(x), EIGHT(x)
#elif defined(__AVX2__) || defined(__ARM_NEON)
#define VECTOR 8
#define TILE 6
#define VECTOR_OF(x) EIGHT(x)
#else
#error the processor has no vectors of eight floats
#endif
#define LANES (2 * VECTOR) /* transitions in a panel */
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));
typedef int mask __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));
typedef float eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef int order __attribute__((vector_size(32)));

INLINE vec splat(float x) { return (vec){VECTOR_OF(x)}; }
/* x, or 0 where y is not positive. Like PyTorch's ReLU, keeps x where y is NaN. */
INLINE vec positive(vec x, vec y) { return (vec)((mask)x & ~(y <= 0)); }
INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE long panels_of(long rows) { return (rows + LANES - 1) / LANES; }

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (order){__VA_ARGS__})
#endif

/* Transposes a block of 8×8 floats. */
INLINE void transpose_block(const float *from, long stride, float *to, long to_stride) {
    eight a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) a[i] = *(const eight *)(from + stride * i);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        b[i] = SHUFFLE(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[i + 1] = SHUFFLE(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = SHUFFLE(b[i + j], b[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            a[i + 2 * j + 1] = SHUFFLE(b[i + j], b[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        *(eight *)(to + to_stride * i) = SHUFFLE(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        *(eight *)(to + to_stride * (i + 4)) = SHUFFLE(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* to[column][row] = from[row][column] */
static void transpose(long rows, long columns, const float *from, long stride, float *to,
                      long to_stride) {
    for (long r = 0; r < rows; r += 8)
        for (long c = 0; c < columns; c += 8) {
            const float *block = from + stride * r + c;
            float *result = to + to_stride * c + r;
            if (rows - r >= 8 && columns - c >= 8) {
                transpose_block(block, stride, result, to_stride);
                continue;
            }
            for (long i = 0; i < least(8, rows - r); i++)
                for (long j = 0; j < least(8, columns - c); j++)
                    result[to_stride * j + i] = block[stride * i + j];
        }
}

/* Calls a function with a constant number of rows, for which the compiler unrolls its loops. */
#define CASE(rows, call) case rows: { enum { N = rows }; call; } break;
#if TILE > 6
#define CASES_FROM_6(call) CASE(6, call) CASE(7, call)
#else
#define CASES_FROM_6(call)
#endif
#define FOR_TILE(rows, call)                                                            \
    switch (rows) {                                                                     \
        CASE(1, call) CASE(2, call) CASE(3, call) CASE(4, call) CASE(5, call)           \
        CASES_FROM_6(call)                                                              \
        default: { enum { N = TILE }; call; }                                           \
    }

/* Adds factors[i * row + k * step] * values[k][lane] over k to sums[i][lane]. */
INLINE void add_products(int rows, long count, const float *factors, long row, long step,
                         const float *values, vec sums[TILE][2]) {
    for (long k = 0; k < count; k++, factors += step, values += LANES) {
        vec left = *(const vec *)values, right = *(const vec *)(values + VECTOR);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            vec factor = splat(factors[i * row]);
            sums[i][0] += factor * left;
            sums[i][1] += factor * right;
        }
    }
}

/* Some outputs of a layer, for one panel. */
INLINE void outputs_tile(int rows, long in, const float *weight, const float *bias, int is_last,
                         const float *inputs, float *outputs) {
    vec sums[TILE][2];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) sums[i][0] = sums[i][1] = splat(bias[i]);
    add_products(rows, in, weight, in, 1, inputs, sums);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        for (int half = 0; half < 2; half++) {
            vec sum = sums[i][half];
            *(vec *)(outputs + LANES * i + VECTOR * half) = is_last ? sum : positive(sum, sum);
        }
}

static void layer_outputs(long in, long out, const float *weight, const float *bias, int is_last,
                          const float *inputs, float *outputs) {
    for (long o = 0; o < out; o += TILE)
        FOR_TILE(least(TILE, out - o),
                 outputs_tile(N, in, weight + in * o, bias + o, is_last, inputs,
                              outputs + LANES * o))
}

/* Some gradients of the inputs of a layer, for one panel. `units`: the inputs, if a ReLU made them. */
INLINE void slopes_tile(int rows, long out, const float *columns, const float *slopes,
                        const float *units, float *results) {
    vec sums[TILE][2] = {0};
    add_products(rows, out, columns, 1, TILE, slopes, sums);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        for (int half = 0; half < 2; half++) {
            long at = LANES * i + VECTOR * half;
            vec sum = sums[i][half];
            *(vec *)(results + at) = units ? positive(sum, *(const vec *)(units + at)) : sum;
        }
}

/* Copies columns of a weight into blocks [column / TILE][output][column % TILE], two at a time: for
 * TILE = 8, their columns are one line of the cache. */
static void pack_columns(long in, long out, const float *weight, long count, float *columns) {
    for (long c = 0; c < count; c += 2 * TILE) {
        float *left = columns + out * c, *right = left + out * TILE;
        long of_left = least(TILE, count - c), of_right = least(TILE, count - c - TILE);
        for (long o = 0; o < out; o++, left += TILE, right += TILE) {
            const float *row = weight + in * o + c;
            if (of_right == TILE) {
                memcpy(left, row, sizeof(float) * TILE);
                memcpy(right, row + TILE, sizeof(float) * TILE);
                continue;
            }
            for (long i = 0; i < of_left; i++) left[i] = row[i];
            for (long i = 0; i < of_right; i++) right[i] = row[TILE + i];
        }
    }
}

/* The gradients of `count` inputs of a layer. */
static void layer_slopes(long panels, long out, long count, const float *columns,
                         const float *slopes, const float *units, float *results) {
    for (long p = 0; p < panels; p++, slopes += LANES * out)
        for (long c = 0; c < count; c += TILE) {
            long at = LANES * (count * p + c);
            FOR_TILE(least(TILE, count - c),
                     slopes_tile(N, out, columns + out * c, slopes, units ? units + at : 0,
                                 results + at))
        }
}

/* Some rows of a weight's gradient, for LANES inputs, of which `width` exist. */
INLINE void gradient_tile(int rows, long panels, long in, long out, const float *slopes,
                          const float *inputs, long width, float *gradient) {
    vec sums[TILE][2] = {0};
    for (long p = 0; p < panels; p++)
        add_products(rows, LANES, slopes + LANES * out * p, LANES, 1,
                     inputs + LANES * LANES * p, sums);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        if (width == LANES) {
            *(vec *)(gradient + in * i) = sums[i][0];
            *(vec *)(gradient + in * i + VECTOR) = sums[i][1];
        } else
            memcpy(gradient + in * i, sums[i], sizeof(float) * width);
    }
}

/* The gradients of a layer's weight and bias. `block` has room for LANES inputs of the batch. */
static void layer_gradients(long panels, long in, long out, const float *slopes,
                            const float *inputs, float *block, float *weight, float *bias) {
    for (long c = 0; c < in; c += LANES) {
        long width = least(LANES, in - c);
        if (width < LANES) memset(block, 0, sizeof(float) * LANES * LANES * panels);
        for (long p = 0; p < panels; p++)
            transpose(width, LANES, inputs + LANES * (in * p + c), LANES,
                      block + LANES * LANES * p, LANES);
        for (long o = 0; o < out; o += TILE)
            FOR_TILE(least(TILE, out - o),
                     gradient_tile(N, panels, in, out, slopes + LANES * o, block, width,
                                   weight + in * o + c))
    }
    for (long o = 0; o < out; o++) {
        vec sum = {0};
        for (long p = 0; p < panels; p++) {
            const float *row = slopes + LANES * (out * p + o);
            sum += *(const vec *)row + *(const vec *)(row + VECTOR);
        }
        float total = 0;
        for (int i = 0; i < VECTOR; i++) total += sum[i];
        bias[o] = total;
    }
}

/* Divides a matrix [rows][width] into panels. */
static void pack(long rows, long width, const float *matrix, float *panels) {
    for (; rows > 0; rows -= LANES, matrix += LANES * width, panels += LANES * width) {
        if (rows < LANES) memset(panels, 0, sizeof(float) * LANES * width);
        transpose(least(rows, LANES), width, matrix, width, panels, LANES);
    }
}

static void unpack(long rows, long width, const float *panels, float *matrix) {
    for (; rows > 0; rows -= LANES, matrix += LANES * width, panels += LANES * width)
        transpose(width, least(rows, LANES), panels, LANES, matrix, width);
}

/* Allocates floats at the start of a cache line, because vectors that cross lines take longer to
 * load. The caller frees `whole`. aligned_alloc is not used: glibc before 2.38 often does not reuse
 * its freed blocks, and page faults on new memory are slow. */
static float *allocated(long floats, void **whole) {
    long line = 64;
    *whole = malloc(sizeof(float) * floats + line);
    return *whole ? (float *)(((uintptr_t)*whole + line) / line * line) : 0;
}

static long widest(long depth, const long *sizes) {
    long found = 0;
    for (long l = 0; l <= depth; l++) found = sizes[l] > found ? sizes[l] : found;
    return found;
}

/* The number of floats in `units` for each network. */
long units_size(long depth, const long *sizes, long rows) {
    long total = 0;
    for (long l = 0; l < depth; l++) total += sizes[l];
    return LANES * panels_of(rows) * total;
}

/* Computes the outputs of an ensemble. Returns 0 if there is no memory, else 1.
 *
 * sizes: the number of inputs, of units of each hidden layer, and of outputs.
 * inputs: [networks][rows][sizes[0]], with `stride` floats between networks.
 * weights, biases: of each layer, [networks][out][in] and [networks][out].
 * outputs: [networks][rows][sizes[depth]].
 * units: receives the inputs and hidden units as panels, for `gradients`, unless it is NULL.
 */
long outputs(long depth, const long *sizes, long networks, long rows, const float *inputs,
            long stride, float *const *weights, float *const *biases, float *outputs,
            float *units) {
    long panels = panels_of(rows), out = sizes[depth], width = LANES * widest(depth, sizes);
    void *whole;
    float *memory = allocated(2 * width + LANES * panels * (sizes[0] + out), &whole);
    if (!memory) return 0;
    float *packed = memory + 2 * width, *results = packed + LANES * panels * sizes[0];
    for (long n = 0; n < networks; n++) {
        if (n == 0 || stride) pack(rows, sizes[0], inputs + stride * n, packed);
        for (long p = 0; p < panels; p++) {
            const float *current = packed + LANES * sizes[0] * p;
            float *layer = units;
            if (units) {
                layer += LANES * sizes[0] * p;
                for (long i = 0; i < LANES * sizes[0]; i++) layer[i] = current[i];
            }
            float *block = units;
            for (long l = 0; l < depth; l++) {
                long in = sizes[l], size = sizes[l + 1];
                float *following;
                if (l == depth - 1) following = results + LANES * out * p;
                else if (units) {
                    block += LANES * panels * in;
                    following = block + LANES * size * p;
                } else following = memory + (l % 2 ? width : 0);
                layer_outputs(in, size, weights[l] + in * size * n, biases[l] + size * n,
                              l == depth - 1, current, following);
                current = following;
            }
        }
        unpack(rows, out, results, outputs + rows * out * n);
        if (units) units += units_size(depth, sizes, rows);
    }
    free(whole);
    return 1;
}

/* Computes gradients from those of the outputs. Returns 0 if there is no memory, else 1.
 *
 * units: as written by `outputs`.
 * slopes: the gradients of the outputs, [networks][rows][sizes[depth]].
 * weight_gradients, bias_gradients: as the weights and biases, or NULL.
 * input_gradients: [networks][rows][count], of `count` inputs from `first` on, or NULL.
 */
long gradients(long depth, const long *sizes, long networks, long rows, float *const *weights,
              const float *units, const float *slopes, float *const *weight_gradients,
              float *const *bias_gradients, float *input_gradients, long first, long count) {
    long panels = panels_of(rows), width = widest(depth, sizes), area = LANES * panels * width;
    void *whole;
    long floats = 2 * area + LANES * LANES * panels + width * (width + TILE);
    float *memory = allocated(floats, &whole);
    if (!memory) return 0;
    float *block = memory + 2 * area, *columns = block + LANES * LANES * panels;
    for (long n = 0; n < networks; n++) {
        float *current = memory, *following = memory + area;
        const float *inputs = units + units_size(depth, sizes, rows);
        pack(rows, sizes[depth], slopes + rows * sizes[depth] * n, current);
        for (long l = depth - 1; l >= 0; l--) {
            long in = sizes[l], out = sizes[l + 1];
            const float *weight = weights[l] + in * out * n;
            inputs -= LANES * panels * in;
            if (weight_gradients)
                layer_gradients(panels, in, out, current, inputs, block,
                                weight_gradients[l] + in * out * n, bias_gradients[l] + out * n);
            if (l > 0) {
                pack_columns(in, out, weight, in, columns);
                layer_slopes(panels, out, in, columns, current, inputs, following);
            } else if (input_gradients) {
                pack_columns(in, out, weight + first, count, columns);
                layer_slopes(panels, out, count, columns, current, 0, following);
                unpack(rows, count, following, input_gradients + rows * count * n);
            }
            float *swapped = current;
            current = following, following = swapped;
        }
        units += units_size(depth, sizes, rows);
    }
    free(whole);
    return 1;
}
