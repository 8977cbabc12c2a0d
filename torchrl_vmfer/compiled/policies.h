/* The outputs of policies: squashed actions, their log-densities, and gradients. */
#ifndef POLICIES_H
#define POLICIES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

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

/* tanh(u), given t = exp(-2 |u|). For small |u|, a polynomial avoids the cancellation in 1 - t. */
INLINE float tanh_from(float u, float t) {
    float s = u * u;
    float small = u + u * s * (-0.333333333f + s * (0.133333333f + s * (-0.0539682540f +
                               s * (0.0218694885f - s * 0.0088632355f))));
    return s < 0.0625f ? small : copysignf((1 - t) / (1 + t), u);
}

INLINE float squash(float u) { return tanh_from(u, exponential(-2 * fabsf(u))); }

/* Unlike fmin and fmax, keeps NaN. */
INLINE float within(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

static const float SAFE = 1.0f - 1e-6f; /* TorchRL keeps |tanh(u)| of a TanhNormal below this */

/* Draws actions from squashed Gaussians: a = m + h tanh(u), u = mean + deviation · noise.
 *
 * outputs: [rows][2 width], means and logarithms of deviations, which lie between low and high
 * noise: [rows][width]
 * squashed: [rows][width], receives tanh(u)
 * density: [rows], receives the log-density of tanh(u)
 * terms: room for [rows][width]
 */
static void draw_actions(long rows, long width, const float *outputs, float low, float high,
                         const float *noise, float *squashed, float *density, float *terms) {
    const float log_4 = 1.38629436f, half_log_2_pi = 0.918938533f;
    for (long r = 0; r < rows; r++) {
        const float *mean = outputs + 2 * width * r, *logs = mean + width;
        for (long i = 0; i < width; i++) {
            float s = within(logs[i], low, high), e = noise[width * r + i];
            float u = mean[i] + exponential(s) * e, t = exponential(-2 * fabsf(u));
            squashed[width * r + i] = within(tanh_from(u, t), -SAFE, SAFE);
            /* log(1 - tanh²(u)) = log 4 - 2 |u| - 2 log(1 + t) */
            terms[width * r + i] =
                2 * (fabsf(u) + log_of_1_plus(t)) - log_4 - half_log_2_pi - s - 0.5f * e * e;
        }
    }
    for (long r = 0; r < rows; r++) {
        float sum = 0;
        for (long i = 0; i < width; i++) sum += terms[width * r + i];
        density[r] = sum;
    }
}

/* The gradients of Σ w (α log π - Q) with respect to the outputs of the network, [rows][2 width].
 *
 * At a fixed noise, ∂log π/∂u = 2 tanh(u), and ∂log π/∂log s = -1.
 *
 * gradient: [rows][width], of Q with respect to tanh(u)
 * weights: [rows]
 */
static void draw_slopes(long rows, long width, const float *outputs, float low, float high,
                        const float *noise, const float *squashed, const float *gradient,
                        float alpha, const float *weights, float *slopes) {
    for (long r = 0; r < rows; r++) {
        const float *logs = outputs + 2 * width * r + width;
        float w = weights[r], *of_mean = slopes + 2 * width * r, *of_log = of_mean + width;
        for (long i = 0; i < width; i++) {
            long at = width * r + i;
            float y = squashed[at], s = within(logs[i], low, high);
            float slope = w * (2 * alpha * y - gradient[at] * (1 - y * y));
            of_mean[i] = slope;
            /* Like PyTorch's clamp, with a gradient at its bounds. */
            of_log[i] = logs[i] >= low && logs[i] <= high
                            ? slope * noise[at] * exponential(s) - alpha * w
                            : logs[i] != logs[i] ? logs[i] : 0;
        }
    }
}

#endif
