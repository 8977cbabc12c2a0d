/* Products that skip zeros: about half of the units after a ReLU, and more of their slopes, are 0.
 *
 * The factors of a row that are not zero are listed, and each adds its multiple of a row of a block
 * of the other matrix, which fits in the first cache. The sums are those of gemm.h, in the same
 * order, so that results do not depend on which of the two computes them.
 */
#ifndef SPARSE_H
#define SPARSE_H

#include "gemm.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* A block has DEPTH rows of SPAN floats, 32 KB. */
enum { SUMS = 8, SPAN = SUMS * VECTOR, DEPTH = 8192 / SPAN, LISTED = 128 };
#if defined(__AVX512F__)
static const double FULL = 0.52; /* the fraction of nonzero factors at which skipping saves no time */
#elif defined(__AVX2__)
static const double FULL = 0.68;
#else
static const double FULL = 0.95;
#endif

typedef struct {
    uint32_t place[DEPTH + VECTOR]; /* in the row of a block, in bytes */
    float value[DEPTH + VECTOR];
    long count;
} List;

/* Appends the nonzero ones of VECTOR factors of rows k, k + 1, ... of a block. Returns the count. */
INLINE long append(const float *factors, long k, List *list, long count) {
#if defined(__AVX512F__)
    const __m512i each = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 x = _mm512_loadu_ps(factors);
    __mmask16 found = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    __m512i rows = _mm512_maskz_compress_epi32(found, _mm512_add_epi32(each, _mm512_set1_epi32(k)));
    _mm512_storeu_si512(list->place + count, _mm512_slli_epi32(rows, 9)); /* SPAN floats each */
    _mm512_storeu_ps(list->value + count, _mm512_maskz_compress_ps(found, x));
    return count + __builtin_popcount(found);
#elif defined(__AVX2__)
    static uint64_t orders[256]; /* for each set of factors, their places one after the other */
    if (!orders[255])
        for (int set = 0; set < 256; set++)
            for (int i = 0, n = 0; i < 8; i++)
                if (set >> i & 1) orders[set] |= (uint64_t)i << 8 * n++;
    __m256 x = _mm256_loadu_ps(factors);
    int found = _mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_UQ));
    __m256i chosen = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)orders[found]));
    __m256i rows = _mm256_add_epi32(chosen, _mm256_set1_epi32((int)k));
    _mm256_storeu_si256((__m256i *)(list->place + count), _mm256_slli_epi32(rows, 8));
    _mm256_storeu_ps(list->value + count, _mm256_permutevar8x32_ps(x, chosen));
    return count + __builtin_popcount(found);
#else
    for (int i = 0; i < VECTOR; i++) {
        list->place[count] = (uint32_t)(sizeof(float) * SPAN * (k + i));
        list->value[count] = factors[i];
        count += factors[i] != 0;
    }
    return count;
#endif
}

_Static_assert(sizeof(float) * SPAN == (VECTOR == 16 ? 1 << 9 : VECTOR == 8 ? 1 << 8 : 1 << 7),
               "the shifts above");

/* Whether so many factors, in panels, are zero that it pays to skip them; judged by a few rows. */
static int is_sparse(long rows, long count, const float *factors) {
    mask nonzero = {0};
    long step = most(1, rows / 16), seen = 0, found = 0;
    for (long r = 0; r < rows; r += step)
        for (long k = 0; k < count; k += VECTOR, seen += VECTOR)
            nonzero -= (mask)(load(factors + place_in(rows, r, k)) != 0);
    UNROLL for (int i = 0; i < VECTOR; i++) found += nonzero[i];
    return (double)found < FULL * (double)seen;
}

/* Copies a block of panels [unit / LANES][count][LANES]. Returns whether all of it is finite:
 * the product of zero and infinity must not be skipped. */
INLINE int copy_block(long depth, long count, const float *panels, float *block) {
    vec zero = {0};
    for (long k = 0; k < depth; k++)
        UNROLL for (int v = 0; v < SUMS; v++) {
            vec x = load(panels + v / NUM_VECTORS * LANES * count + LANES * k +
                         v % NUM_VECTORS * VECTOR);
            store(block + SPAN * k + VECTOR * v, x);
            zero += 0 * x;
        }
    return total(zero) == 0;
}

/* results[row][unit] = Σ_k factors[row][k] panels[k][unit] + first[unit] for as many units as are
 * worth it. Returns their number, which may be 0.
 *
 * The arguments are those of `product`. Result (row, unit) is at row_step · row + panel_step ·
 * (unit / LANES) + unit % LANES, as is its gate.
 */
static long sparse_product(long rows, long count, long units, const float *factors,
                           const float *panels, const float *first, int is_relu, const float *gate,
                           float *results, long row_step, long panel_step) {
    static float block[DEPTH * SPAN] __attribute__((aligned(64)));
    static List lists[LISTED];
    units = units / SPAN * SPAN;
    if (!units || count < 64 || count % VECTOR || rows < 32 || !is_sparse(rows, count, factors))
        return 0;
    for (long top = 0; top < rows; top += LISTED)
        for (long start = 0; start < count; start += DEPTH) {
            long depth = least(DEPTH, count - start), end = least(rows, top + LISTED);
            for (long r = top; r < end; r++) {
                long found = 0;
                for (long k = 0; k < depth; k += VECTOR)
                    found = append(factors + place_in(rows, r, start + k), k, lists + r - top, found);
                lists[r - top].count = found;
            }
            for (long u = 0; u < units; u += SPAN) {
                if (!copy_block(depth, count, panels + u * count + LANES * start, block)) return 0;
                for (long r = top; r < end; r++) {
                    const List *list = lists + r - top;
                    long at = row_step * r + u / LANES * panel_step;
                    vec sums[SUMS];
                    UNROLL for (int v = 0; v < SUMS; v++)
                        sums[v] = start ? load(results + at + v / NUM_VECTORS * panel_step +
                                               v % NUM_VECTORS * VECTOR)
                                  : first ? load(first + u + VECTOR * v) : splat(0);
                    for (long i = 0; i < list->count; i++) {
                        const float *row = (const float *)((const char *)block + list->place[i]);
                        vec factor = splat(list->value[i]);
                        UNROLL for (int v = 0; v < SUMS; v++)
                            sums[v] += factor * load(row + VECTOR * v);
                    }
                    UNROLL for (int v = 0; v < SUMS; v++) {
                        long to = at + v / NUM_VECTORS * panel_step + v % NUM_VECTORS * VECTOR;
                        vec sum = sums[v];
                        if (start + depth == count && is_relu) sum = where_positive(sum, sum);
                        if (start + depth == count && gate) sum = where_positive(sum, load(gate + to));
                        store(results + to, sum);
                    }
                }
            }
        }
    return units;
}

/* results[row][unit] = Σ_k factors[row][k] packed[k][unit] + first[unit], all in panels. */
static void product(long rows, long count, long units, const float *factors, const float *packed,
                    const float *first, int is_relu, const float *gate, float *results) {
    long done = sparse_product(rows, count, units, factors, packed, first, is_relu, gate, results,
                               LANES, LANES * rows);
    dense_product(rows, count, done, units, factors, packed, first, is_relu, gate, results);
}

/* weight[o][i] = Σ_row slopes[row][o] inputs[row][i], row-major as PyTorch stores it.
 *
 * room: for [padded(rows)][out], if out is a multiple of LANES
 */
static void weight_gradient(long rows, long in, long out, const float *slopes, const float *inputs,
                            float *room, float *weight) {
    long done = 0;
    if (in >= SPAN && out % LANES == 0 && is_sparse(rows, out, slopes)) {
        for (long o = 0; o < out; o += LANES) /* the rows of a product are the outputs */
            pack_transposed(LANES, rows, slopes + rows * o, room + LANES * o, LANES * out);
        done = sparse_product(out, rows, in, room, inputs, 0, 0, 0, weight, in, LANES);
    }
    dense_gradient(rows, done, in, out, slopes, inputs, weight);
}

#endif
