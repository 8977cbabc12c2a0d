/* The loss of an ensemble of critics for TD targets, and its gradient. */
#include <math.h>
#include <stdint.h>

/* The distance between value and target, and its derivative. */
static inline float distance_of(long kind, float error, float *slope) {
    float size = fabsf(error);
    if (kind == 0) { /* l2 */
        *slope = 2 * error;
        return error * error;
    }
    float sign = error > 0 ? 1 : error < 0 ? -1 : error; /* 0 and NaN as they are */
    if (kind == 1) { /* l1 */
        *slope = sign;
        return size;
    }
    *slope = size > 1 ? sign : error; /* smooth_l1 */
    return size > 1 ? size - 0.5f : 0.5f * error * error;
}

/* values: [critics][rows]
 * next_values: [next_critics][rows], whose minimum is the value of the next state
 * cost: [rows], subtracted from it, such as α log π; or NULL
 * reward, terminated: [rows]
 * kind: of the distance: 0 for l2, 1 for l1, 2 for smooth_l1
 * weights: the weight of each row, or with stride = 0 that of all rows
 * next_value, target: [rows], receive the value of the next state and the target
 * error, slope: [critics][rows], receive values minus targets, and the gradients of the loss
 * loss: receives the loss
 */
void td_loss(long critics, long rows, const float *values, long next_critics,
             const float *next_values, const float *cost, const float *reward,
             const uint8_t *terminated, float gamma, long kind, const float *weights, long stride,
             float *next_value, float *target, float *error, float *slope, float *loss) {
    for (long row = 0; row < rows; row++) {
        float least = next_values[row];
        for (long n = 1; n < next_critics; n++) {
            float next = next_values[rows * n + row];
            least = next < least || isnan(next) ? next : least;
        }
        next_value[row] = cost ? least - cost[row] : least;
        target[row] = reward[row] + (terminated[row] ? 0 : gamma * next_value[row]);
    }
    double total = 0;
    for (long n = 0; n < critics; n++, values += rows, error += rows, slope += rows)
        for (long row = 0; row < rows; row++) {
            float weight = weights[stride * row], change;
            error[row] = values[row] - target[row];
            total += (double)weight * distance_of(kind, error[row], &change);
            slope[row] = weight * change;
        }
    *loss = (float)total;
}
