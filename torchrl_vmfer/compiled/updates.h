/* Whole updates of actors and critics: targets, losses, gradients and Adam's steps. */
#ifndef UPDATES_H
#define UPDATES_H

#include "networks.h"
#include "policies.h"

enum { FIRST, LOWEST, MEAN };       /* which critic */
enum { L2, L1, SMOOTH_L1 };         /* distances of values to targets */

/* The settings of stacked.py, which says what they mean. */
#define WHOLE_SETTINGS(each)                                                                      \
    each(members) each(observation) each(action) each(num_targets) each(dropped)                  \
    each(is_gaussian) each(is_quantile) each(followed) each(used) each(measures) each(has_norms)  \
    each(is_pre_tanh) each(distance) each(is_alpha_loss_exp)
#define REAL_SETTINGS(each)                                                                       \
    each(critic_scale) each(policy_noise) each(noise_clip) each(actor_noise)                      \
    each(actor_noise_clip) each(weighting) each(cloning) each(log_low) each(log_high) each(alpha_low)             \
    each(alpha_high) each(target_entropy)
#define ARRAY_SETTINGS(each)                                                                      \
    each(low) each(high) each(middle) each(half) each(seen_middle) each(seen_half) /* [action] */

typedef struct {
#define WHOLE(name) long name;
#define REAL(name) double name;
#define ARRAY(name) float *name;
    WHOLE_SETTINGS(WHOLE) REAL_SETTINGS(REAL) ARRAY_SETTINGS(ARRAY)
    Network actor, critics;
    Param log_alpha; /* value NULL if there is no temperature */
    Adam adam_of_actor, adam_of_critics, adam_of_alpha;
    Arena arena;
} Agents;

/* Rows of columns, [members][size][...]. Row i of a batch is index[i], or i without an index. */
typedef struct {
    long rows, size;
    const int64_t *index; /* [members][rows], or NULL */
    const float *observation, *action, *reward, *next_observation;
    const uint8_t *terminated;
    const float *weights;   /* [members][rows], or NULL */
    const float *discounts; /* [members][rows], instead of gamma, or NULL */
    const float *noise;   /* [members][rows][action], standard normal */
    const int64_t *subset; /* [members][num_subset], target critics of each member, or NULL */
    long num_subset;
} Batch;

enum { AHEAD = 12 }; /* rows to request from memory before they are needed */

INLINE long row_of(const Batch *batch, long member, long row) {
    return batch->size * member +
           (batch->index ? batch->index[batch->rows * member + row] : row);
}

/* Writes rows of a column to units [first, first + width) of inputs in panels. */
static void fill(const Batch *batch, long member, const float *column, long width, long first,
                 float *inputs) {
    for (long r = 0; r < batch->rows; r++) {
        if (r + AHEAD < batch->rows) {
            const float *next = column + width * row_of(batch, member, r + AHEAD);
            __builtin_prefetch(next), __builtin_prefetch(next + width - 1);
        }
        const float *from = column + width * row_of(batch, member, r);
        for (long i = 0, u = first; i < width; ) {
            long count = least(width - i, LANES - u % LANES);
            float *to = inputs + place_in(batch->rows, r, u);
            for (long j = 0; j < count; j++) to[j] = from[i + j];
            i += count, u += count;
        }
    }
}

/* Copies units of panels to dense rows. */
static void unpanel(long rows, long width, const float *panels, float *to) {
    for (long u = 0; u < width; u += LANES, panels += LANES * rows)
        for (long r = 0; r < rows; r++)
            memcpy(to + width * r + u, panels + LANES * r,
                   sizeof(float) * least(LANES, width - u));
}

static float *new_inputs(Arena *arena, long rows, long width) {
    float *inputs = take(arena, rows * padded(width));
    memset(inputs + rows * (padded(width) - LANES), 0, sizeof(float) * LANES * rows);
    return inputs;
}

/* The weight of each row in the loss of a batch. */
static float *row_weights(Agents *agents, const Batch *batch, long member, double scale) {
    float *weights = take(&agents->arena, batch->rows);
    const float *given = batch->weights ? batch->weights + batch->rows * member : 0;
    double sum = 0;
    for (long r = 0; r < batch->rows; r++) sum += given ? given[r] : 1;
    for (long r = 0; r < batch->rows; r++)
        weights[r] = (float)((given ? given[r] : 1) * scale / sum);
    return weights;
}

/* Multiplies the weights of rows by factor^power. Their sum is then 1. */
static void weigh(long rows, const float *factor, double power, float *weights) {
    double sum = 0;
    for (long r = 0; r < rows; r++) sum += weights[r] * pow(factor[r], power);
    for (long r = 0; r < rows; r++)
        weights[r] = (float)(weights[r] * pow(factor[r], power) / sum);
}

static float alpha_of(Agents *agents, long member) {
    float *log_alpha = agents->log_alpha.value + member;
    float value = within(*log_alpha, (float)agents->alpha_low, (float)agents->alpha_high);
    if (!agents->is_alpha_loss_exp) *log_alpha = value; /* as TorchRL's SACLoss does */
    return expf(value);
}

/* What a policy did in a batch. */
typedef struct {
    Pass pass;
    float *outputs;  /* [rows][width] of the network */
    float *squashed; /* [rows][action], tanh(u) */
    float *action;   /* [rows][action] */
    float *density;  /* [rows], log π */
    Mark mark;       /* after all of these but the pass and the outputs */
} Acts;

/* The actions of the (target) policy. `noise` is used by a Gaussian policy only. */
static Acts acts_of(Agents *agents, const Batch *batch, long member, int is_target,
                    const float *column, const float *noise) {
    Arena *arena = &agents->arena;
    long rows = batch->rows, width = agents->action, size = rows * width;
    long outputs = width * (agents->is_gaussian ? 2 : 1);
    Acts acts = {.squashed = take(arena, size), .action = take(arena, size)};
    acts.density = take(arena, rows), acts.mark = mark_of(arena);
    float *inputs = new_inputs(arena, rows, agents->observation);
    fill(batch, member, column, agents->observation, 0, inputs);
    acts.pass = new_pass(arena, &agents->actor, rows, inputs);
    float *panels = forward(arena, &agents->actor, member, is_target, rows, acts.pass);
    acts.outputs = take(arena, rows * outputs);
    unpanel(rows, outputs, panels, acts.outputs);
    if (agents->is_gaussian) {
        draw_actions(rows, width, acts.outputs, (float)agents->log_low, (float)agents->log_high,
                     noise, acts.squashed, acts.density, acts.action);
        double stretch = 0;
        for (long i = 0; i < width; i++) stretch += log(agents->half[i]);
        if (stretch != 0)
            for (long r = 0; r < rows; r++) acts.density[r] -= (float)stretch;
    } else
        for (long i = 0; i < size; i++) acts.squashed[i] = squash(acts.outputs[i]);
    for (long r = 0; r < rows; r++)
        for (long i = 0; i < width; i++)
            acts.action[width * r + i] =
                agents->middle[i] + agents->half[i] * acts.squashed[width * r + i];
    return acts;
}

/* Adds clipped noise to actions and clips the results. */
static void perturb(const Agents *agents, long rows, const float *noise, double deviation,
                    double clip, float *action) {
    for (long r = 0; r < rows; r++)
        for (long i = 0; i < agents->action; i++) {
            long at = agents->action * r + i;
            float e = within(noise[at] * (float)deviation, (float)-clip, (float)clip);
            action[at] = within(action[at] + e, agents->low[i], agents->high[i]);
        }
}

/* The inputs of the critics: rows of a column, and actions, either stored ones or dense rows. */
static float *critic_inputs(Agents *agents, const Batch *batch, long member, const float *column,
                            const float *action) {
    long size = agents->observation, width = agents->action;
    Batch dense = {.rows = batch->rows, .size = batch->rows};
    float *inputs = new_inputs(&agents->arena, batch->rows, size + width);
    fill(batch, member, column, size, 0, inputs);
    if (action) fill(&dense, 0, action, width, size, inputs);
    else fill(batch, member, batch->action, width, size, inputs);
    return inputs;
}

/* The distance between value and target, and its derivative. */
INLINE float distance_of(int kind, float error, float *slope) {
    float size = fabsf(error);
    if (kind == L2) {
        *slope = 2 * error;
        return error * error;
    }
    float sign = error > 0 ? 1 : error < 0 ? -1 : error; /* 0 and NaN as they are */
    if (kind == L1) {
        *slope = sign;
        return size;
    }
    *slope = size > 1 ? sign : error;
    return size > 1 ? size - 0.5f : 0.5f * error * error;
}

INLINE int is_below(float a, float b) { return a < b || (b != b && a == a); } /* NaN is largest */

/* Moves the `kept` smallest values to the front. */
static void select_smallest(float *values, long size, long kept) {
    long low = 0, high = size - 1;
    while (low < high) {
        float pivot = values[(low + high) / 2];
        long i = low, j = high;
        while (i <= j) {
            while (is_below(values[i], pivot)) i++;
            while (is_below(pivot, values[j])) j--;
            if (i <= j) {
                float swapped = values[i];
                values[i++] = values[j], values[j--] = swapped;
            }
        }
        if (kept - 1 <= j) high = j;
        else if (kept >= i) low = i;
        else return;
    }
}

/* The quantile Huber loss of TQC for one critic and transition, averaged over all pairs.
 *
 * For a difference d and c = d clipped to [-1, 1], the Huber loss is c (d - c/2), and the weight of
 * a quantile fraction τ is 1/2 + (τ - 1/2) sign(d), so that τ is needed only after the sums over the
 * targets. The inner loop is over quantiles, whose sums are independent.
 *
 * slope: [count], receives the gradient; error: receives the mean absolute difference
 * sums: room for [5][count]
 */
static double quantile_huber(long count, const float *quantiles, long num_targets,
                             const float *targets, float *slope, float *error, float *sums) {
    float *clipped = sums, *sizes = sums + count, *distances = sums + 2 * count;
    float *even = sums + 3 * count, *odd = sums + 4 * count; /* Σ c (d - c/2), Σ |c| (d - c/2) */
    memset(sums, 0, sizeof(float) * 5 * count);
    for (long t = 0; t < num_targets; t++)
        for (long k = 0; k < count; k++) {
            float d = targets[t] - quantiles[k], c = within(d, -1, 1);
            float rest = d - 0.5f * c, size = fabsf(c);
            clipped[k] += c + 0 * d; /* NaN if d is infinite, as in PyTorch */
            sizes[k] += size, distances[k] += fabsf(d);
            even[k] += c * rest, odd[k] += size * rest;
        }
    double total = 0, distance = 0, pairs = (double)count * num_targets;
    for (long k = 0; k < count; k++) {
        double tilt = (k + 0.5) / count - 0.5;
        total += 0.5 * even[k] + tilt * odd[k];
        distance += distances[k];
        slope[k] = (float)((0.5 * clipped[k] + tilt * sizes[k]) / -pairs);
    }
    *error = (float)(distance / pairs);
    return total / pairs;
}

/* Updates the critics of one member.
 *
 * error: [rows], receives the largest absolute TD error of all critics
 * Returns the loss.
 */
static double update_critics(Agents *agents, const Batch *batch, long member, double gamma,
                             const Adam *adam, float *error) {
    Arena *arena = &agents->arena;
    Network *net = &agents->critics;
    long rows = batch->rows, outputs = net->layers[net->depth - 1].out;
    const float *noise = batch->noise + rows * agents->action * member;
    reset(arena);
    float *targets = take(arena, rows * outputs * (batch->subset ? batch->num_subset
                                                                 : agents->num_targets));
    float *gradient_room = take(arena, 5 * outputs);

    /* Targets: the value of the next state is the minimum, or the lowest quantiles. */
    Acts acts = acts_of(agents, batch, member, 1, batch->next_observation, noise);
    float alpha = agents->is_gaussian ? alpha_of(agents, member) : 0;
    if (!agents->is_gaussian)
        perturb(agents, rows, noise, agents->policy_noise, agents->noise_clip, acts.action);
    release(arena, acts.mark);
    Pass pass = new_pass(
        arena, net, rows, critic_inputs(agents, batch, member, batch->next_observation, acts.action));
    long num_nets = batch->subset ? batch->num_subset : agents->num_targets, kept = 1;
    long width = num_nets * outputs; /* targets in a row */
    for (long i = 0; i < num_nets; i++) {
        long n = batch->subset ? batch->subset[num_nets * member + i] : i;
        float *values = forward(arena, net, net->count * member + n, 1, rows, pass);
        for (long u = 0; u < outputs; u++)
            for (long r = 0; r < rows; r++)
                targets[width * r + outputs * i + u] =
                    values[place_in(rows, r, u)];
    }
    if (agents->is_quantile) kept = num_nets * (outputs - agents->dropped);
    for (long r = 0; r < rows; r++) {
        float *found = targets + width * r;
        long at = row_of(batch, member, r);
        float discount = batch->discounts ? batch->discounts[rows * member + r] : (float)gamma;
        if (agents->is_quantile) select_smallest(found, width, kept);
        else
            for (long i = 1; i < width; i++)
                if (found[i] < *found || found[i] != found[i]) *found = found[i];
        for (long i = 0; i < kept; i++) {
            float next = agents->is_gaussian ? found[i] - alpha * acts.density[r] : found[i];
            found[i] = batch->reward[at] + (batch->terminated[at] ? 0 : discount * next);
        }
    }

    pass.units[0] = critic_inputs(agents, batch, member, batch->observation, 0);
    float *weights = row_weights(agents, batch, member, agents->critic_scale);
    float *slopes = take(arena, rows * padded(outputs));
    float *dense = take(arena, outputs), *changes = take(arena, outputs);
    Gradient *gradients = adam->clip ? (Gradient *)take(arena, net->count * net->depth *
                                                        (long)(sizeof(Gradient) / sizeof(float))) : 0;
    memset(error, 0, sizeof(float) * rows);
    double loss = 0;
    for (long n = 0; n < net->count; n++) {
        long which = net->count * member + n;
        Mark mark = mark_of(arena);
        float *values = forward(arena, net, which, 0, rows, pass);
        for (long r = 0; r < rows; r++) {
            float size, change;
            if (agents->is_quantile) {
                for (long u = 0; u < outputs; u++)
                    dense[u] = values[place_in(rows, r, u)];
                loss += weights[r] * quantile_huber(outputs, dense, kept, targets + width * r,
                                                    changes, &size, gradient_room);
                for (long u = 0; u < outputs; u++)
                    slopes[place_in(rows, r, u)] =
                        weights[r] * changes[u];
            } else {
                float difference = values[LANES * r] - targets[width * r];
                loss += weights[r] * (double)distance_of(agents->distance, difference, &change);
                slopes[LANES * r] = weights[r] * change;
                size = fabsf(difference);
            }
            if (size > error[r] || size != size) error[r] = size;
        }
        backward(arena, net, member, which, rows, pass, slopes, adam,
                 gradients ? gradients + net->depth * n : 0, 0, 0);
        if (!gradients) release(arena, mark);
    }
    if (gradients) clipped_step(net, member, adam, gradients);
    count_step(net, member);
    return loss;
}

/* The norm of a gradient; 0 if it has no direction because it is zero or not finite. */
static double norm_of(const float *gradient, long width) {
    double square = 0; /* squares of floats neither overflow nor vanish in double precision */
    for (long i = 0; i < width; i++) square += (double)gradient[i] * gradient[i];
    return square > 0 && square < INFINITY ? sqrt(square) : 0;
}

/* The gradient of one row with respect to its action: that of a critic, or the mean of `count` of
 * them, in which non-finite ones count as zero. */
static const float *gradient_of(int which, long count, long lowest, long stride, long width,
                                const float *gradients, float *mean) {
    if (which != MEAN) return gradients + (which == LOWEST ? stride * lowest : 0);
    memset(mean, 0, sizeof(float) * width);
    for (long n = 0; n < count; n++, gradients += stride) {
        int is_finite = 1;
        for (long i = 0; i < width; i++) is_finite &= isfinite(gradients[i]) != 0;
        for (long i = 0; i < width && is_finite; i++) mean[i] += gradients[i] / count;
    }
    return mean;
}

/* How well the gradients of the critics agree at one row: exp(x̄ᵀx_e) and ‖x̄‖. */
static void agreement(long critics, long stride, long width, const float *gradients,
                      const float *used, double *inverse, float *factor, float *length) {
    double norm = norm_of(used, width), product = 0, square = 0;
    for (long n = 0; n < critics; n++) {
        double found = norm_of(gradients + stride * n, width);
        inverse[n] = found > 0 ? 1 / (found * critics) : 0;
    }
    for (long i = 0; i < width; i++) {
        double mean = 0;
        for (long n = 0; n < critics; n++)
            if (inverse[n] > 0) mean += gradients[stride * n + i] * inverse[n];
        square += mean * mean;
        if (norm > 0) product += mean * used[i] / norm;
    }
    *factor = (float)exp(product < 1 ? product : 1);
    *length = (float)(square < 1 ? sqrt(square) : 1);
}

/* What an actor update reports, [rows] each, of one member. */
enum { FACTOR, LENGTH, NORM, DENSITY, NUM_REPORTS };

/* Values [N][rows] and gradients [N][rows][action] of the critics at actions [rows][action]. */
static void evaluate(Agents *agents, const Batch *batch, long member, long count,
                     const float *action, float *values, float *gradients) {
    Arena *arena = &agents->arena;
    Network *net = &agents->critics;
    long rows = batch->rows, width = agents->action, outputs = net->layers[net->depth - 1].out;
    Pass pass = new_pass(arena, net, rows,
                         critic_inputs(agents, batch, member, batch->observation, action));
    float *slopes = take(arena, rows * padded(outputs));
    for (long u = 0; u < padded(outputs) * rows; u++) slopes[u] = 1.0f / outputs;
    for (long n = 0; n < count; n++, values += rows, gradients += rows * width) {
        long which = net->count * member + n;
        Mark mark = mark_of(arena);
        const float *found = forward(arena, net, which, 0, rows, pass);
        for (long r = 0; r < rows; r++) {
            float sum = 0;
            for (long u = 0; u < outputs; u++)
                sum += found[place_in(rows, r, u)];
            values[r] = outputs == 1 ? sum : sum / outputs;
        }
        unpanel(rows, width, backward(arena, net, member, which, rows, pass, slopes, 0, 0,
                                      agents->observation, width), gradients);
        release(arena, mark);
    }
}

/* The agreement of the critics and the norm of the gradient that moves the actor. */
static void report_agreement(Agents *agents, long rows, long count, const float *action,
                             float *gradients, const long *lowest, float *const *reports) {
    Arena *arena = &agents->arena;
    long width = agents->action, stride = rows * width, targets = agents->num_targets;
    float *mean = take(arena, width);
    double *inverse = (double *)take(arena, 2 * count);
    for (long r = 0; r < rows; r++) {
        float *row = gradients + width * r;
        if (agents->is_pre_tanh)
            for (long i = 0; i < width; i++) {
                float y = (action[width * r + i] - agents->seen_middle[i]) / agents->seen_half[i];
                float slope = 1 - y * y;
                /* Closer to a bound, the derivative is a rounding error. */
                slope = slope > 32 * 1.1920929e-7f ? agents->seen_half[i] * slope
                                                   : slope != slope ? slope : 0;
                for (long n = 0; n < count; n++) row[stride * n + i] *= slope;
            }
        if (agents->measures) {
            const float *used = gradient_of(agents->used, agents->followed == MEAN ? targets : count,
                                            lowest[r], stride, width, row, mean);
            agreement(count, stride, width, row, used, inverse, reports[FACTOR] + r,
                      reports[LENGTH] + r);
        }
        if (agents->has_norms) {
            const float *moving =
                gradient_of(agents->followed, targets, lowest[r], stride, width, row, mean);
            double square = 0;
            for (long i = 0; i < width; i++) square += (double)moving[i] * moving[i];
            reports[NORM][r] = (float)sqrt(square);
        }
    }
}

static void update_alpha(Agents *agents, long member, long rows, const float *weights,
                         const float *density, const Adam *adam) {
    Param *param = &agents->log_alpha;
    double total = 0, sum = 0;
    for (long r = 0; r < rows; r++) {
        sum += weights[r];
        total += (double)weights[r] * (density[r] + agents->target_entropy);
    }
    float gradient = (float)(-total / sum);
    if (agents->is_alpha_loss_exp) gradient *= alpha_of(agents, member); /* also beyond bounds */
    adam_param(adam, 1, param->step[member] + 1, &gradient, param->value + member,
               param->mean + member, param->square + member, 1);
    param->step[member]++;
}

/* Updates the actor and the temperature of one member.
 *
 * loss: [3], receives the loss and, for cloning, the squared distance and λ
 */
static void update_actor(Agents *agents, const Batch *batch, long member, const Adam *adam,
                         const Adam *adam_of_alpha, float *const *reports, double *loss) {
    Arena *arena = &agents->arena;
    Network *net = &agents->actor;
    long rows = batch->rows, width = agents->action, size = rows * width;
    const float *noise = batch->noise ? batch->noise + size * member : 0;
    int is_gaussian = agents->is_gaussian, is_cloning = agents->cloning >= 0;
    reset(arena);
    Acts acts = acts_of(agents, batch, member, 0, batch->observation, noise);
    float alpha = is_gaussian ? alpha_of(agents, member) : 0;
    float *at = acts.action;
    if (!is_gaussian && agents->actor_noise) {
        at = take(arena, size);
        memcpy(at, acts.action, sizeof(float) * size);
        perturb(agents, rows, noise, agents->actor_noise, agents->actor_noise_clip, at);
    }
    /* Without measurements, only the critics that the actor follows are evaluated. */
    long followed = agents->followed == FIRST ? 1 : agents->num_targets;
    long count = agents->measures ? agents->critics.count : followed;
    float *values = take(arena, rows * count), *gradients = take(arena, size * count);
    evaluate(agents, batch, member, count, at, values, gradients);

    /* What the actor maximizes, and its gradient with respect to tanh(u). */
    float *value = take(arena, rows), *climb = take(arena, size);
    long *lowest = (long *)take(arena, 2 * rows);
    for (long r = 0; r < rows; r++) {
        long best = 0;
        for (long n = 1; n < least(agents->num_targets, count); n++) {
            float other = values[rows * n + r];
            if (values[rows * best + r] == values[rows * best + r] &&
                (other < values[rows * best + r] || other != other))
                best = n;
        }
        lowest[r] = best;
        long first = agents->followed == LOWEST ? best : 0;
        long end = agents->followed == MEAN ? followed : first + 1;
        value[r] = 0;
        for (long i = 0; i < width; i++) climb[width * r + i] = 0;
        for (long n = first; n < end; n++) {
            value[r] += values[rows * n + r];
            for (long i = 0; i < width; i++)
                climb[width * r + i] += gradients[size * n + width * r + i];
        }
        value[r] /= end - first;
        for (long i = 0; i < width; i++)
            climb[width * r + i] *= agents->half[i] / (end - first);
    }
    if (agents->measures || agents->has_norms)
        report_agreement(agents, rows, count, acts.action, gradients, lowest, reports);

    float *weights = row_weights(agents, batch, member, 1);
    int is_weighted = agents->weighting != 0;
    if (is_weighted) weigh(rows, reports[FACTOR], agents->weighting, weights);
    float *slopes = take(arena, rows * 2 * width);
    loss[0] = loss[1] = loss[2] = 0;
    if (is_gaussian) {
        for (long r = 0; r < rows; r++)
            loss[0] += weights[r] * ((double)alpha * acts.density[r] - value[r]);
        draw_slopes(rows, width, acts.outputs, (float)agents->log_low, (float)agents->log_high,
                    noise, acts.squashed, climb, alpha, weights, slopes);
        memcpy(reports[DENSITY], acts.density, sizeof(float) * rows);
    } else {
        double scale = 1, sum = 0, cloning = 0;
        for (long r = 0; r < rows; r++) loss[0] -= weights[r] * (double)value[r];
        if (is_cloning) {
            double total = 0;
            for (long r = 0; r < rows; r++)
                total += fabsf(value[r]) * (is_weighted ? (double)rows * weights[r] : 1),
                    sum += weights[r];
            scale = agents->cloning / (total / rows);
        }
        for (long r = 0; r < rows; r++)
            for (long i = 0; i < width; i++) {
                long place = width * r + i;
                float slope = (float)(-scale * weights[r]) * climb[place];
                if (is_cloning) {
                    float d = acts.action[place] - batch->action[width * row_of(batch, member, r) + i];
                    double part = is_weighted ? (double)rows * weights[r] : sum;
                    cloning += (double)d * d * (is_weighted ? part : 1);
                    slope += (float)(2 * part / size) * d * agents->half[i];
                }
                float y = acts.squashed[place];
                slopes[place] = slope * (1 - y * y);
            }
        if (is_cloning) {
            loss[1] = cloning / size, loss[2] = scale;
            loss[0] = scale * loss[0] + sum * loss[1];
        }
    }
    long outputs = net->layers[net->depth - 1].out;
    float *panels = new_inputs(arena, rows, outputs);
    Batch dense = {.rows = rows, .size = rows};
    fill(&dense, 0, slopes, outputs, 0, panels);
    Gradient *gradients_of = adam->clip ? (Gradient *)take(arena, net->depth *
                                           (long)(sizeof(Gradient) / sizeof(float))) : 0;
    backward(arena, net, member, member, rows, acts.pass, panels, adam, gradients_of, 0, 0);
    if (gradients_of) clipped_step(net, member, adam, gradients_of);
    count_step(net, member);
    if (adam_of_alpha) update_alpha(agents, member, rows, weights, acts.density, adam_of_alpha);
}

/* The action of one member for one observation. Without noise, that of a deterministic policy or
 * the center of a Gaussian one; else with noise of a deviation, clipped to the bounds, or drawn. */
static void act(Agents *agents, long member, const float *observation, const float *noise,
                double deviation, float *action) {
    Batch batch = {.rows = 1, .size = 0, .observation = observation};
    reset(&agents->arena);
    float *zeros = take(&agents->arena, agents->action);
    memset(zeros, 0, sizeof(float) * agents->action);
    Acts acts = acts_of(agents, &batch, member, 0, observation, noise ? noise : zeros);
    if (!agents->is_gaussian && noise)
        perturb(agents, 1, noise, deviation, INFINITY, acts.action);
    memcpy(action, acts.action, sizeof(float) * agents->action);
}

#endif
