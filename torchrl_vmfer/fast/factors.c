/* Sampling factors of slots: drawn by rejection, and updated. */
#include <stdint.h>

#define AHEAD 12 /* slots to request from memory before they are needed */

/* Accepts proposed slots with probability factor / bound. Returns the number of accepted slots.
 *
 * random: [2][proposals], numbers in [0, 1): the place of each proposal, and its height
 * factors: [size]
 * slots: receives the first `wanted` accepted slots; has room for `proposals`
 */
long accept_slots(long proposals, const double *random, long size, const float *factors,
                  double bound, long wanted, int64_t *slots) {
    const double *height = random + proposals;
    long found = 0;
    for (long i = 0; i < proposals && found < wanted; i++) {
        if (i + AHEAD < proposals)
            __builtin_prefetch(factors + (int64_t)(random[i + AHEAD] * (double)size));
        int64_t slot = random[i] * (double)size;
        slots[found] = slot;
        found += height[i] * bound < (double)factors[slot];
    }
    return found;
}

/* Stores new factors and the number of their update. Returns 1.
 *
 * Returns 0, and stores nothing, if a slot does not exist or if a factor is not in [low, high].
 *
 * slots, values: [count]
 * factors, last_update: [size]
 */
long store_factors(long count, const int64_t *slots, const float *values, double low, double high,
                   long size, float *factors, int32_t *last_update, long update) {
    const float least = low, largest = high;
    for (long i = 0; i < count; i++) {
        if (slots[i] < 0 || slots[i] >= size) return 0;
        if (!(least <= values[i] && values[i] <= largest)) return 0; /* also if it is NaN */
    }
    for (long i = 0; i < count; i++) {
        if (i + AHEAD < count) {
            __builtin_prefetch(factors + slots[i + AHEAD], 1);
            __builtin_prefetch(last_update + slots[i + AHEAD], 1);
        }
        factors[slots[i]] = values[i];
        last_update[slots[i]] = update;
    }
    return 1;
}
