/* The action of a policy for one observation. */
#include <math.h>
#include <stdlib.h>

#define LANES 16 /* products added at once; compilers split the vectors for smaller registers */
#define ROWS 4   /* outputs computed together */

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Unlike fmin and fmax, keeps NaN. */
static float bounded(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

/* Some outputs of a linear layer. `rows` is a constant, so that the compiler unrolls the loops. */
static inline __attribute__((always_inline)) void some_outputs(
    int rows, long in, const float *weight, const float *bias, const float *inputs,
    float *outputs) {
    lanes sums[ROWS] = {0};
    long k = 0;
    for (; k + LANES <= in; k += LANES) {
        lanes values = *(const lanes *)(inputs + k);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) sums[i] += *(const lanes *)(weight + in * i + k) * values;
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) {
        float sum = bias[i];
        for (int j = 0; j < LANES; j++) sum += sums[i][j];
        for (long j = k; j < in; j++) sum += weight[in * i + j] * inputs[j];
        outputs[i] = sum;
    }
}

static void layer(long in, long out, const float *weight, const float *bias, const float *inputs,
                  float *outputs) {
    long o = 0;
    for (; o + ROWS <= out; o += ROWS)
        some_outputs(ROWS, in, weight + in * o, bias + o, inputs, outputs + o);
    for (; o < out; o++) some_outputs(1, in, weight + in * o, bias + o, inputs, outputs + o);
}

/* Computes an action. Returns 0 if there is no memory, else 1.
 *
 * The network has linear layers with ReLU between them. A deterministic policy returns
 * tanh(output) + deviation * noise. A Gaussian policy, whose deviation is negative, returns
 * tanh(mean + exp(logarithm) * noise), where the outputs are the means and the logarithms of the
 * standard deviations.
 *
 * sizes: the number of inputs, of units of each hidden layer, and of outputs
 * weights, biases: of each layer, [out][in] and [out]
 * noise: standard normal numbers, or NULL for none
 * limit: the largest absolute value of an action
 * low, high: the bounds of the logarithms of a Gaussian policy
 */
long act(long depth, const long *sizes, const float *inputs, float *const *weights,
         float *const *biases, const float *noise, double deviation, double limit, double low,
         double high, float *action) {
    long widest = 0;
    for (long l = 1; l <= depth; l++) widest = sizes[l] > widest ? sizes[l] : widest;
    float *memory = malloc(2 * sizeof(float) * widest);
    if (!memory) return 0;
    float *units = memory, *following = memory + widest;
    for (long l = 0; l < depth; l++) {
        if (l > 0) {
            for (long i = 0; i < sizes[l]; i++) units[i] = units[i] < 0 ? 0 : units[i];
            inputs = units;
        }
        layer(sizes[l], sizes[l + 1], weights[l], biases[l], inputs, following);
        float *swapped = units;
        units = following, following = swapped;
    }
    int is_gaussian = deviation < 0;
    long count = is_gaussian ? sizes[depth] / 2 : sizes[depth];
    for (long i = 0; i < count; i++) {
        float value = units[i], random = noise ? noise[i] : 0;
        if (is_gaussian)
            value = tanhf(value + random * expf(bounded(units[count + i], low, high)));
        else
            value = tanhf(value) + random * (float)deviation;
        action[i] = bounded(value, -limit, limit);
    }
    free(memory);
    return 1;
}
