/* How well the gradients of an ensemble of critics agree, for each transition of a batch. */
#include <math.h>
#include <stdint.h>

/* The norm of a gradient; 0 if it has no direction because it is zero or not finite. */
static double norm_of(const float *gradient, long width) {
    double square = 0; /* squares of floats neither overflow nor vanish in double precision */
    for (long i = 0; i < width; i++) square += (double)gradient[i] * gradient[i];
    return square > 0 && square < INFINITY ? sqrt(square) : 0;
}

/* Returns 0 if a critic does not exist, else 1.
 *
 * gradients: [critics][rows][width]
 * used: [rows], the critic e of each transition; NULL for the first critic
 * moving: [rows][width], the gradient g_e; NULL if it is that of a critic
 * factor, length: [rows], receive exp(x̄ᵀx_e) and ‖x̄‖
 */
long agreement(long critics, long rows, long width, const float *gradients, const int64_t *used,
               const float *moving, float *factor, float *length) {
    for (long row = 0; row < rows; row++) {
        if (used && (used[row] < 0 || used[row] >= critics)) return 0;
        const float *chosen = moving ? moving + width * row
                                     : gradients + width * (rows * (used ? used[row] : 0) + row);
        double norm = norm_of(chosen, width), product = 0, square = 0;
        double inverse[critics];
        for (long n = 0; n < critics; n++) {
            double found = norm_of(gradients + width * (rows * n + row), width);
            inverse[n] = found > 0 ? 1 / (found * critics) : 0;
        }
        for (long i = 0; i < width; i++) {
            double mean = 0;
            for (long n = 0; n < critics; n++)
                if (inverse[n] > 0) mean += gradients[width * (rows * n + row) + i] * inverse[n];
            square += mean * mean;
            if (norm > 0) product += mean * chosen[i] / norm;
        }
        factor[row] = (float)exp(product < 1 ? product : 1);
        length[row] = (float)(square < 1 ? sqrt(square) : 1);
    }
    return 1;
}

/* Finds the critic with the lowest value, which the actor follows.
 *
 * values: [critics][rows]
 * gradients: [critics][rows][width], of the values with respect to the action
 * used: [rows], receives the critic of each transition
 * value, gradient: [rows] and [rows][width], receive its value and gradient
 */
void follow_lowest(long critics, long rows, long width, const float *values, const float *gradients,
                   int64_t *used, float *value, float *gradient) {
    for (long row = 0; row < rows; row++, gradient += width) {
        long lowest = 0;
        for (long n = 1; n < critics; n++) {
            float other = values[rows * n + row];
            if (other < values[rows * lowest + row] || isnan(other)) lowest = n;
        }
        used[row] = lowest, value[row] = values[rows * lowest + row];
        const float *found = gradients + width * (rows * lowest + row);
        for (long i = 0; i < width; i++) gradient[i] = found[i];
    }
}
