/* The quantile Huber loss of TQC, for each critic and transition of a batch. */
#include <math.h>

/* Returns 0 if there are more than MOST quantiles, else 1.
 *
 * quantiles: [critics][rows][count]
 * targets: [rows][num_targets]
 * loss, error: [critics][rows], receive the loss and the absolute difference, over all pairs
 * slope: [critics][rows][count], receives the gradient of the loss
 *
 * For a difference d and c = d clipped to [-1, 1], the Huber loss is c (d - c/2), and the weight of
 * a quantile fraction τ is 1/2 + (τ - 1/2) sign(d), so that τ is needed only after the sums over the
 * targets. The inner loop is over quantiles, whose sums are independent: it can be vectorized.
 */
#define MOST 256

long quantile_huber(long critics, long rows, long count, long num_targets, const float *quantiles,
                    const float *targets, float *loss, float *slope, float *error) {
    if (count > MOST) return 0;
    for (long n = 0; n < critics; n++)
        for (long row = 0; row < rows; row++, quantiles += count, slope += count) {
            const float *target = targets + num_targets * row;
            float clipped[MOST], sizes[MOST], distances[MOST];
            float even[MOST], odd[MOST]; /* Σ c (d - c/2) and Σ |c| (d - c/2) */
            for (long k = 0; k < count; k++)
                clipped[k] = sizes[k] = distances[k] = even[k] = odd[k] = 0;
            for (long t = 0; t < num_targets; t++)
                for (long k = 0; k < count; k++) {
                    float d = target[t] - quantiles[k];
                    float c = d > 1 ? 1 : d < -1 ? -1 : d;
                    float rest = d - 0.5f * c, size = fabsf(c);
                    clipped[k] += c, sizes[k] += size, distances[k] += fabsf(d);
                    even[k] += c * rest, odd[k] += size * rest;
                }
            double total = 0, distance = 0, pairs = (double)count * num_targets;
            for (long k = 0; k < count; k++) {
                double tilt = (k + 0.5) / count - 0.5;
                total += 0.5 * even[k] + tilt * odd[k];
                distance += distances[k];
                slope[k] = (float)((0.5 * clipped[k] + tilt * sizes[k]) / -pairs);
            }
            *loss++ = (float)(total / pairs);
            *error++ = (float)(distance / pairs);
        }
    return 1;
}
