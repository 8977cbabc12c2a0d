/* Products of small matrices in single precision, on one thread.
 *
 * Matrices of a batch are stored in panels of LANES units: [unit / LANES][row][unit % LANES]. A
 * product broadcasts one factor and streams panels of the other, so that the outputs of a layer are
 * already in the order in which the next layer, and both products of the backward pass, read them.
 * Only weights are copied: transposed for the forward pass, in panels for the backward pass.
 *
 * A result is the sum over k in ascending order, whatever the number of rows, the alignment and the
 * other rows: it is the same to the bit wherever a row is.
 */
#ifndef GEMM_H
#define GEMM_H

#include <stdint.h>
#include <string.h>

/* VECTOR: floats in a register. A tile of ROWS × NUM_VECTORS sums, one row of the streamed factor
 * and one broadcast fit in the 32 registers of AVX-512 and NEON, or the 16 of AVX2 and SSE. */
#if defined(__AVX512F__)
enum { VECTOR = 16, NUM_VECTORS = 2, ROWS = 8 };
#elif defined(__AVX2__)
enum { VECTOR = 8, NUM_VECTORS = 2, ROWS = 6 };
#elif defined(__ARM_NEON)
enum { VECTOR = 4, NUM_VECTORS = 4, ROWS = 6 };
#else
enum { VECTOR = 4, NUM_VECTORS = 2, ROWS = 6 };
#endif
enum { LANES = VECTOR * NUM_VECTORS };
#define UNROLL _Pragma("GCC unroll 16")
#define INLINE static inline __attribute__((always_inline))

/* Alignment to 4 bytes: the tensors of PyTorch may start anywhere. */
typedef float vec __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));
typedef int32_t mask __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t order __attribute__((vector_size(16)));
typedef vec sums_of_tile[ROWS][NUM_VECTORS];

INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE long most(long a, long b) { return a > b ? a : b; }
INLINE long panels_of(long units) { return (units + LANES - 1) / LANES; }
INLINE long padded(long units) { return LANES * panels_of(units); }
INLINE long place_in(long rows, long row, long unit) { /* in panels */
    return unit / LANES * LANES * rows + LANES * row + unit % LANES;
}
INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec x) { *(vec *)to = x; }
INLINE vec splat(float x) { return x - (vec){0}; }
/* x, or 0 where y is not positive. Keeps x where y is NaN, like PyTorch's ReLU. */
INLINE vec where_positive(vec x, vec y) { return (vec)((mask)x & ~(mask)(y <= 0)); }

INLINE float total(vec x) {
    union { vec whole; float each[VECTOR]; } sum = {x};
    four quarter = *(four *)sum.each;
    UNROLL for (int i = 4; i < VECTOR; i += 4) quarter += *(four *)(sum.each + i);
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

/* Calls a function with a constant number of rows and vectors, for which its loops are unrolled. */
#define CASE(rows, call) case rows: { enum { N = rows }; call; } break;
#if defined(__AVX512F__)
#define LARGEST(call) CASE(6, call) CASE(7, call) default: { enum { N = 8 }; call; }
#else
#define LARGEST(call) default: { enum { N = 6 }; call; }
#endif
#define FOR_ROWS(rows, call)                                                                  \
    switch (rows) {                                                                           \
        CASE(1, call) CASE(2, call) CASE(3, call) CASE(4, call) CASE(5, call) LARGEST(call)   \
    }
#define FOR_TILE(rows, width, call)                                                           \
    if ((width) <= VECTOR) { enum { V = 1 }; FOR_ROWS(rows, call) }                           \
    else { enum { V = NUM_VECTORS }; FOR_ROWS(rows, call) }

/* Adds factors[i * row + k * step] * panel[k][lane] over k to sums[i][lane]. */
INLINE void add_products(int rows, int vectors, long count, const float *factors, long row,
                         long step, const float *panel, sums_of_tile sums) {
    for (long k = 0; k < count; k++, factors += step, panel += LANES) {
        vec values[NUM_VECTORS];
        UNROLL for (int v = 0; v < vectors; v++) values[v] = load(panel + VECTOR * v);
        UNROLL for (int i = 0; i < rows; i++) {
            vec factor = splat(factors[i * row]);
            UNROLL for (int v = 0; v < vectors; v++) sums[i][v] += factor * values[v];
        }
    }
}

/* One tile of a product with factors in panels, [unit / LANES][row][unit % LANES]. Starts from
 * `first`, LANES values, or from 0. `gate` makes results 0 where it is not positive. */
INLINE void product_tile(int rows, int vectors, long count, const float *factors, long stride,
                         const float *panel, const float *first, int is_relu, const float *gate,
                         float *results) {
    sums_of_tile sums;
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int v = 0; v < vectors; v++)
            sums[i][v] = first ? load(first + VECTOR * v) : splat(0);
    for (long k = 0; k < count; k += LANES, factors += stride, panel += LANES * LANES)
        add_products(rows, vectors, least(LANES, count - k), factors, LANES, 1, panel, sums);
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int v = 0; v < vectors; v++) {
            long at = LANES * i + VECTOR * v;
            vec sum = sums[i][v];
            if (is_relu) sum = where_positive(sum, sum);
            if (gate) sum = where_positive(sum, load(gate + at));
            store(results + at, sum);
        }
}

/* results[row][unit] = Σ_k factors[row][k] packed[k][unit] + first[unit] from unit `start` on, all in
 * panels. */
static void dense_product(long rows, long count, long start, long units, const float *factors,
                          const float *packed, const float *first, int is_relu, const float *gate,
                          float *results) {
    packed += count * start;
    for (long u = start; u < units; u += LANES, packed += LANES * count)
        for (long r = 0; r < rows; r += ROWS) {
            long at = u * rows + LANES * r;
            FOR_TILE(least(ROWS, rows - r), units - u,
                     product_tile(N, V, count, factors + LANES * r, LANES * rows, packed,
                                  first ? first + u : 0, is_relu, gate ? gate + at : 0,
                                  results + at))
        }
}

INLINE void store_part(float *to, long width, int vectors, const vec *sums) {
    if (width >= VECTOR * vectors)
        UNROLL for (int v = 0; v < vectors; v++) store(to + VECTOR * v, sums[v]);
    else memcpy(to, sums, sizeof(float) * width);
}

INLINE void gradient_tile(int rows, int vectors, long count, const float *slopes,
                          const float *inputs, long width, long in, float *gradient) {
    sums_of_tile sums = {0};
    add_products(rows, vectors, count, slopes, 1, LANES, inputs, sums);
    UNROLL for (int i = 0; i < rows; i++) store_part(gradient + in * i, width, vectors, sums[i]);
}

/* weight[o][i] = Σ_row slopes[row][o] inputs[row][i] from input `start` on, row-major. */
static void dense_gradient(long rows, long start, long in, long out, const float *slopes,
                           const float *inputs, float *weight) {
    for (long i = start; i < in; i += LANES) {
        const float *panel = inputs + i * rows;
        for (long o = 0, next; o < out; o = next) {
            next = least(out, least(o + ROWS, o - o % LANES + LANES)); /* within a panel */
            const float *factors = slopes + (o - o % LANES) * rows + o % LANES;
            FOR_TILE(next - o, in - i,
                     gradient_tile(N, V, rows, factors, panel, in - i, in, weight + in * o + i))
        }
    }
}

/* sums[unit] = Σ_row of values in panels. */
static void column_sums(long rows, long units, const float *values, float *sums) {
    for (long u = 0; u < units; u += LANES, values += LANES * rows)
        for (long v = 0; v < least(LANES, units - u); v += VECTOR) {
            vec sum[4] = {0};
            for (long r = 0; r < rows; r += 4)
                UNROLL for (int i = 0; i < 4; i++)
                    if (r + i < rows) sum[i] += load(values + LANES * (r + i) + v);
            sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
            memcpy(sums + u + v, sum, sizeof(float) * least(VECTOR, units - u - v));
        }
}

/* The outputs of a layer with one unit, such as the last of a critic: a panel would be mostly
 * padding. */
static void single_output(long rows, long in, const float *inputs, const float *weight, float bias,
                          float *outputs) {
    for (long r = 0; r < rows; r++) {
        vec sum = {0};
        float rest = bias;
        for (long i = 0; i < in; i += VECTOR) {
            const float *units = inputs + place_in(rows, r, i);
            if (i + VECTOR <= in) sum += load(units) * load(weight + i);
            else
                for (long j = 0; i + j < in; j++) rest += units[j] * weight[i + j];
        }
        outputs[LANES * r] = total(sum) + rest;
    }
}

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (order){__VA_ARGS__})
#endif

INLINE void transpose_four(const float *from, long stride, float *to, long to_stride) {
    four a = *(const four *)from, b = *(const four *)(from + stride);
    four c = *(const four *)(from + 2 * stride), d = *(const four *)(from + 3 * stride);
    four ab = SHUFFLE(a, b, 0, 4, 1, 5), cd = SHUFFLE(c, d, 0, 4, 1, 5);
    four ab_end = SHUFFLE(a, b, 2, 6, 3, 7), cd_end = SHUFFLE(c, d, 2, 6, 3, 7);
    *(four *)to = SHUFFLE(ab, cd, 0, 1, 4, 5);
    *(four *)(to + to_stride) = SHUFFLE(ab, cd, 2, 3, 6, 7);
    *(four *)(to + 2 * to_stride) = SHUFFLE(ab_end, cd_end, 0, 1, 4, 5);
    *(four *)(to + 3 * to_stride) = SHUFFLE(ab_end, cd_end, 2, 3, 6, 7);
}

/* Packs a weight [out][in] for outputs: [out / LANES][in][out % LANES]. A panel has `size` floats. */
static void pack_transposed(long in, long out, const float *weight, float *packed, long size) {
    for (long o = 0; o < out; o += LANES, packed += size) {
        long count = least(LANES, out - o), whole = count / 4 * 4;
        if (count < LANES) memset(packed, 0, sizeof(float) * LANES * in);
        for (long i = 0; i < in; i += 4)
            for (long u = 0; u < count; u += 4) {
                const float *block = weight + in * (o + u) + i;
                if (i + 4 <= in && u < whole) {
                    transpose_four(block, in, packed + LANES * i + u, LANES);
                    continue;
                }
                for (long j = 0; j < least(4, in - i); j++)
                    for (long k = 0; k < least(4, count - u); k++)
                        packed[LANES * (i + j) + u + k] = block[in * k + j];
            }
    }
}

/* Packs `count` columns of a weight [out][in] for input gradients: [column / LANES][out][LANES]. */
static void pack_columns(long in, long out, const float *weight, long count, float *packed) {
    for (long c = 0; c < count; c += LANES)
        for (long o = 0; o < out; o++, packed += LANES) {
            const float *from = weight + in * o + c;
            long width = least(LANES, count - c);
            if (width == LANES) {
                UNROLL for (int v = 0; v < NUM_VECTORS; v++)
                    store(packed + VECTOR * v, load(from + VECTOR * v));
                continue;
            }
            for (long i = 0; i < LANES; i++) packed[i] = i < width ? from[i] : 0;
        }
}

#endif
