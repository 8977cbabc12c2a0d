/* Gaussian policies squashed by tanh: actions, log-densities and gradients of a batch.
 *
 * A network returns the mean m and the logarithm of the standard deviation s for each component of
 * an action. With noise ε, the pre-tanh action is u = m + s ε.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define CHUNK 256 /* components at a time, which stay in the cache */

/* The functions of <math.h> are not vectorized. These are, with an error of a few units in the last
 * place. The exponential is 2^n times a polynomial. */
INLINE float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float exponential(float x) {
    x = x > 88 ? 88 : x < -87 ? -87 : x;
    /* Rounded, because 1.5 · 2^23 has no fraction. The last bits are n, the others are shifted out:
     * unlike a conversion to an integer, this is also defined for NaN. */
    float shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    x = x - n * 0.693359375f + n * 2.12194440e-4f; /* minus n log 2 */
    float p = 1.9875691500e-4f;
    p = p * x + 1.3981999507e-3f;
    p = p * x + 8.3334519073e-3f;
    p = p * x + 4.1665795894e-2f;
    p = p * x + 1.6666665459e-1f;
    p = p * x + 5.0000001201e-1f;
    return (p * x * x + x + 1) * as_float((as_bits(shifted) + 127) << 23);
}

/* log(1 + t) for 0 <= t <= 1. */
INLINE float log_of_1_plus(float t) {
    /* log((1 + z) / (1 - z)) = 2 (z + z³/3 + z⁵/5 + ...), with z <= 1/3 */
    float z = t / (2 + t), s = z * z;
    float p = 2.0f / 13;
    p = p * s + 2.0f / 11;
    p = p * s + 2.0f / 9;
    p = p * s + 2.0f / 7;
    p = p * s + 2.0f / 5;
    p = p * s + 2.0f / 3;
    return z * (2 + s * p);
}

INLINE float within(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

/* Separates means and logarithms of deviations. Returns how many components were read. */
INLINE long split(long rows, long width, const float *outputs, float *mean, float *log_deviation) {
    for (long row = 0; row < rows; row++, outputs += 2 * width)
        for (long i = 0; i < width; i++) {
            mean[width * row + i] = outputs[i];
            log_deviation[width * row + i] = outputs[width + i];
        }
    return rows * width;
}

/* Draws actions. Returns 0 if an action has more than CHUNK components, else 1.
 *
 * outputs: [rows][2 width], the means and the logarithms of the deviations
 * low, high: the bounds of these logarithms
 * noise: [rows][width]
 * squashed: [rows][width], receives tanh(u)
 * log_prob: [rows], receives the log-densities of tanh(u)
 */
long squashed_draw(long rows, long width, const float *outputs, float low, float high,
                   const float *noise, float *squashed, float *log_prob) {
    const float log_4 = 1.38629436f, half_log_2_pi = 0.918938533f;
    if (width > CHUNK) return 0;
    for (long done = 0, step = width ? CHUNK / width : rows; done < rows; done += step) {
        float mean[CHUNK], log_deviation[CHUNK], density[CHUNK];
        long count = rows - done < step ? rows - done : step;
        long size = split(count, width, outputs, mean, log_deviation);
        for (long i = 0; i < size; i++) {
            float s = within(log_deviation[i], low, high), e = noise[i];
            float u = mean[i] + exponential(s) * e, t = exponential(-2 * fabsf(u));
            squashed[i] = copysignf((1 - t) / (1 + t), u);
            /* log(1 - tanh²(u)) = log 4 - 2 |u| - 2 log(1 + t) */
            density[i] = 2 * (fabsf(u) + log_of_1_plus(t)) - log_4 - half_log_2_pi - s - 0.5f * e * e;
        }
        for (long row = 0; row < count; row++) {
            float sum = 0;
            for (long i = 0; i < width; i++) sum += density[width * row + i];
            *log_prob++ = sum;
        }
        outputs += 2 * size, noise += size, squashed += size;
    }
    return 1;
}

/* The loss Σ w (α log π - Q) and its gradients with respect to the outputs of the network.
 *
 * The first arguments are those of `squashed_draw`, with its results. Both gradients of the
 * log-density are those at a fixed noise: ∂log π/∂u = 2 tanh(u), and ∂log π/∂log s = -1.
 *
 * value: [rows], the values Q of the actions; gradient: [rows][width], with respect to actions
 * half: [width], half of the distance between the bounds of each component, or NULL if it is 1
 * alpha: the temperature
 * weights: the weight w of each row, or with stride = 0 that of all rows
 * slopes: [rows][2 width], receives the gradients
 * loss: receives the loss
 */
long squashed_slopes(long rows, long width, const float *outputs, float low, float high,
                     const float *noise, const float *squashed, const float *log_prob,
                     const float *value, const float *gradient, const float *half, float alpha,
                     const float *weights, long stride, float *slopes, float *loss) {
    if (width > CHUNK) return 0;
    double total = 0;
    for (long done = 0, step = width ? CHUNK / width : rows; done < rows; done += step) {
        float mean[CHUNK], log_deviation[CHUNK], climb[CHUNK], weight[CHUNK];
        long count = rows - done < step ? rows - done : step;
        long size = split(count, width, outputs, mean, log_deviation);
        for (long row = 0; row < count; row++, weights += stride) {
            total += (double)*weights * (alpha * *log_prob++ - *value++);
            for (long i = 0; i < width; i++) {
                weight[width * row + i] = *weights;
                climb[width * row + i] = half ? half[i] * gradient[width * row + i]
                                              : gradient[width * row + i];
            }
        }
        for (long i = 0; i < size; i++) {
            float s = within(log_deviation[i], low, high), w = weight[i], tanh_u = squashed[i];
            float of_mean = w * (2 * alpha * tanh_u - climb[i] * (1 - tanh_u * tanh_u));
            float of_log = of_mean * noise[i] * exponential(s) - alpha * w;
            mean[i] = of_mean;
            log_deviation[i] = log_deviation[i] > low && log_deviation[i] < high ? of_log : 0;
        }
        for (long row = 0; row < count; row++, slopes += 2 * width)
            for (long i = 0; i < width; i++) {
                slopes[i] = mean[width * row + i];
                slopes[width + i] = log_deviation[width * row + i];
            }
        outputs += 2 * size, noise += size, squashed += size, gradient += size;
    }
    *loss = (float)total;
    return 1;
}
