/* The computations of samplers and storages: slots in the order of their priorities, and rows of
 * several columns.
 *
 * `Ranks` holds codes in ascending order, in blocks of at most WIDTH, and finds the code of any rank.
 * A code holds a priority in its upper 32 bits, higher priorities first, and a slot in the lower 32.
 */
#ifndef SAMPLERS_H
#define SAMPLERS_H

#include "updates.h"

enum { WIDTH = 128, GROUP = 16 }; /* codes of a block, blocks of a group */
enum { BLOCKS_AHEAD = 8 }; /* slots whose blocks are requested before they are needed */
#define SLOT_BITS 32
#define SLOT_MASK 0xffffffffLL
#define TOP 0x7fffffffLL

typedef struct {
    int64_t capacity, blocks; /* the number of blocks in use */
    int64_t *codes;  /* [capacity][WIDTH], the codes of each block */
    int64_t *block;  /* [capacity], the row of `codes` of the i-th block in order */
    int64_t *count;  /* [capacity], the number of its codes */
    int64_t *lowest; /* [capacity], larger than all earlier codes, not larger than its own codes */
    int64_t *inside; /* [capacity], the number of codes in each group of blocks */
    int64_t *before; /* [capacity + 1], the number of codes in all earlier groups */
} Ranks;

static int64_t groups_of(const Ranks *ranks) { return (ranks->blocks + GROUP - 1) / GROUP; }
static int64_t ranks_size(const Ranks *ranks) { return ranks->before[groups_of(ranks)]; }

/* Makes room for `capacity` blocks, or frees everything if it is 0. */
static void ranks_reserve(Ranks *ranks, int64_t capacity) {
    int64_t **arrays[] = {&ranks->codes, &ranks->block, &ranks->count,
                          &ranks->lowest, &ranks->inside, &ranks->before};
    for (int i = 0; i < 6; i++) {
        int64_t size = i ? capacity + 1 : capacity * WIDTH;
        if (!capacity) free(*arrays[i]), *arrays[i] = 0;
        else if (!(*arrays[i] = realloc(*arrays[i], sizeof(int64_t) * size))) abort();
    }
    ranks->capacity = capacity;
}

static int64_t code_of(int32_t bits, int64_t slot) { return (TOP - bits) << SLOT_BITS | slot; }

/* The bits of a priority, which sort like non-negative numbers. Adding 0 turns -0 into 0. */
INLINE int32_t bits_of(float priority) { return (int32_t)as_bits(priority + 0.0f); }

/* The number of values that are at most `key`, for ascending values. */
static int64_t at_most(const int64_t *values, int64_t size, int64_t key) {
    const int64_t *base = values;
    while (size > 1) {
        int64_t half = size / 2;
        base = base[half - 1] <= key ? base + half : base;
        size -= half;
    }
    return base - values + (size == 1 && *base <= key);
}

static int64_t block_of(const Ranks *ranks, int64_t code) {
    int64_t found = at_most(ranks->lowest, ranks->blocks, code);
    return found ? found - 1 : 0;
}

/* The same, but tries `guess` first, which is any block in use and usually the right one. */
static int64_t block_near(const Ranks *ranks, int64_t code, int64_t guess) {
    int is_right = ranks->lowest[guess] <= code &&
                   (guess + 1 == ranks->blocks || code < ranks->lowest[guess + 1]);
    return is_right ? guess : block_of(ranks, code);
}

static int64_t *codes_of(const Ranks *ranks, int64_t position) {
    return ranks->codes + WIDTH * ranks->block[position];
}

static void withdraw(Ranks *ranks, int64_t code, int64_t guess) {
    int64_t position = block_near(ranks, code, guess), *codes = codes_of(ranks, position);
    int64_t at = at_most(codes, ranks->count[position], code) - 1;
    int64_t behind = --ranks->count[position] - at;
    ranks->inside[position / GROUP]--;
    memmove(codes + at, codes + at + 1, sizeof(*codes) * behind);
}

static void count_inside(Ranks *ranks) {
    memset(ranks->inside, 0, sizeof(int64_t) * groups_of(ranks));
    for (int64_t i = 0; i < ranks->blocks; i++) ranks->inside[i / GROUP] += ranks->count[i];
}

static void count_before(Ranks *ranks) {
    ranks->before[0] = 0;
    for (int64_t i = 0; i < groups_of(ranks); i++)
        ranks->before[i + 1] = ranks->before[i] + ranks->inside[i];
}

/* Moves the upper half of a full block to a new block after it. */
static void split(Ranks *ranks, int64_t position) {
    if (ranks->blocks == ranks->capacity) ranks_reserve(ranks, 2 * ranks->capacity);
    int64_t behind = ranks->blocks - position - 1, half = WIDTH / 2;
    int64_t *arrays[] = {ranks->block, ranks->count, ranks->lowest};
    for (int i = 0; i < 3; i++)
        memmove(arrays[i] + position + 2, arrays[i] + position + 1, sizeof(int64_t) * behind);
    ranks->block[position + 1] = ranks->blocks++;
    int64_t *codes = codes_of(ranks, position);
    memcpy(codes_of(ranks, position + 1), codes + half, sizeof(int64_t) * half);
    ranks->count[position] = ranks->count[position + 1] = half;
    ranks->lowest[position + 1] = codes[half];
    count_inside(ranks);
}

static void insert(Ranks *ranks, int64_t code, int64_t guess) {
    int64_t position = block_near(ranks, code, guess);
    if (ranks->count[position] == WIDTH) {
        split(ranks, position);
        position += code >= ranks->lowest[position + 1];
    }
    int64_t *codes = codes_of(ranks, position), size = ranks->count[position]++;
    int64_t at = at_most(codes, size, code);
    ranks->inside[position / GROUP]++;
    memmove(codes + at + 1, codes + at, sizeof(*codes) * (size - at));
    codes[at] = code;
}

/* Divides sorted codes into half-full blocks. */
static void ranks_fill(Ranks *ranks, int64_t size, const int64_t *codes) {
    int64_t half = WIDTH / 2;
    ranks->blocks = size ? (size + half - 1) / half : 1;
    ranks_reserve(ranks, ranks->blocks + ranks->blocks / 2 + 1);
    ranks->count[0] = ranks->block[0] = 0;
    for (int64_t i = 0; i * half < size; i++) {
        int64_t count = size - i * half < half ? size - i * half : half;
        memcpy(ranks->codes + WIDTH * i, codes + i * half, sizeof(*codes) * count);
        ranks->block[i] = i, ranks->count[i] = count, ranks->lowest[i] = codes[i * half];
    }
    ranks->lowest[0] = 0; /* smaller codes may be inserted before the first */
    count_inside(ranks), count_before(ranks);
}

/* Divides the codes into half-full blocks again, which frees the blocks that became almost empty. */
static void repack(Ranks *ranks) {
    int64_t *codes = malloc(sizeof(int64_t) * ranks_size(ranks)), size = 0;
    if (!codes) abort();
    for (int64_t i = 0; i < ranks->blocks; size += ranks->count[i++])
        memcpy(codes + size, codes_of(ranks, i), sizeof(int64_t) * ranks->count[i]);
    ranks_fill(ranks, size, codes);
    free(codes);
}

/* Prefetches the block that holds or will hold a code, and returns its position. */
static int64_t prefetch(const Ranks *ranks, int64_t code) {
    int64_t position = block_of(ranks, code);
    const int64_t *codes = codes_of(ranks, position);
    for (int64_t i = 0; i < ranks->count[position]; i += 8) __builtin_prefetch(codes + i, 1);
    return position;
}

/* Reads the priorities of some slots again. `known` holds the bits of those in use, -1 for none. */
static void ranks_update(Ranks *ranks, int32_t *known, int64_t size, const int64_t *slots,
                         const float *priorities) {
    int64_t from[BLOCKS_AHEAD] = {0}, to[BLOCKS_AHEAD] = {0}; /* the blocks of prefetched codes */
    for (int64_t next = 0; next < size + BLOCKS_AHEAD; next++) {
        int64_t i = next - BLOCKS_AHEAD, place = next % BLOCKS_AHEAD;
        int64_t source = from[place], target = to[place];
        if (next + BLOCKS_AHEAD < size) {
            __builtin_prefetch(known + slots[next + BLOCKS_AHEAD], 1);
            __builtin_prefetch(priorities + slots[next + BLOCKS_AHEAD]);
        }
        if (next < size) {
            int64_t slot = slots[next];
            if (known[slot] >= 0) from[place] = prefetch(ranks, code_of(known[slot], slot));
            to[place] = prefetch(ranks, code_of(bits_of(priorities[slot]), slot));
        }
        if (i < 0) continue;
        int32_t old = known[slots[i]], bits = bits_of(priorities[slots[i]]);
        if (old == bits) continue;
        if (old >= 0) withdraw(ranks, code_of(old, slots[i]), source);
        known[slots[i]] = bits;
        insert(ranks, code_of(bits, slots[i]), target);
    }
    count_before(ranks);
    /* If all priorities keep growing, codes leave every block, and each new one takes room. */
    if (ranks->blocks > ranks_size(ranks) / (WIDTH / 4) + GROUP) repack(ranks);
}

/* The block of a rank, and the place of its code in the block. */
typedef struct { const int64_t *codes; int64_t at, count; } Place;

static Place place_of(const Ranks *ranks, int64_t rank) {
    int64_t group = at_most(ranks->before, groups_of(ranks), rank) - 1, position = group * GROUP;
    for (rank -= ranks->before[group]; rank >= ranks->count[position]; position++)
        rank -= ranks->count[position];
    return (Place){codes_of(ranks, position), rank, ranks->count[position]};
}

static int64_t code_at(const Ranks *ranks, int64_t rank) {
    Place place = place_of(ranks, rank);
    return place.codes[place.at];
}

/* The number of codes that are smaller than one. */
static int64_t rank_of(const Ranks *ranks, int64_t code) {
    int64_t position = block_of(ranks, code - 1), group = position / GROUP;
    int64_t rank = ranks->before[group];
    for (int64_t i = group * GROUP; i < position; i++) rank += ranks->count[i];
    return rank + at_most(codes_of(ranks, position), ranks->count[position], code - 1);
}

/* The ranks with the same priority as one of them, from *first to before *end. Returns its code. */
static int64_t ties_of(const Ranks *ranks, int64_t rank, int64_t *first, int64_t *end) {
    Place place = place_of(ranks, rank);
    const int64_t *codes = place.codes + place.at, code = *codes;
    int is_first = !rank, is_last = rank + 1 == ranks_size(ranks);
    int64_t above = is_first ? -1 : place.at ? codes[-1] : code_at(ranks, rank - 1);
    int64_t below = is_last ? -1 : place.at + 1 < place.count ? codes[1] : code_at(ranks, rank + 1);
    *first = rank, *end = rank + 1;
    if (above >> SLOT_BITS == code >> SLOT_BITS || below >> SLOT_BITS == code >> SLOT_BITS) {
        *first = rank_of(ranks, code & ~SLOT_MASK);
        *end = rank_of(ranks, code | SLOT_MASK);
    }
    return code;
}

/* Finds the rank, counted from 0, at each of some points of the cumulative mass of `length` ranks.
 *
 * points: [size], from mass[0] to mass[length]
 * mass:   [terms], ascending; mass[r + 1] - mass[r] is the mass of rank r, (r + 1)^(power - 1)
 * ranks:  [size], receives the ranks
 *
 * Returns the number of points for which the first guess was wrong.
 */
static long ranks_at(int64_t size, const double *points, const double *mass, int64_t terms,
                     int64_t length, double power, int64_t *ranks) {
    /* The sum of k^-a over k > r is close to the integral from r + 1/2, which can be solved for r.
     * This guess usually avoids a search, which would be limited by memory latency. */
    double last = terms - 0.5, end = power == 0 ? 0 : pow(last, power);
    for (int64_t i = 0; i < size; i++) {
        double guess = power == 0 ? last * exp(points[i]) : pow(power * points[i] + end, 1 / power);
        guess -= 0.5;
        ranks[i] = guess > 0 ? guess < length - 1 ? (int64_t)guess : length - 1 : 0; /* 0 if NaN */
        __builtin_prefetch(mass + ranks[i]);
    }
    long wrong = 0;
    for (int64_t i = 0; i < size; i++) {
        if (mass[ranks[i]] <= points[i] && points[i] < mass[ranks[i] + 1]) continue;
        wrong++;
        const double *base = mass + 1; /* counts the masses that are at most the point */
        for (int64_t left = length - 1; left > 0;) {
            int64_t half = left / 2;
            if (base[half] <= points[i]) base += half + 1, left -= half + 1;
            else left = half;
        }
        ranks[i] = base - mass - 1;
    }
    return wrong;
}

/* Draws slots: a rank by the mass of the ranks, and one of the slots that share its priority.
 *
 * random: [2][size], from 0 to 1; the first become points
 * slots, first, end: [size], receive the slots, and the ranks that share their priorities
 *
 * Returns the result of ranks_at.
 */
static long ranks_draw(const Ranks *ranks, int64_t size, double *random, const double *mass,
                       int64_t terms, int64_t length, double power, int64_t *slots, int64_t *first,
                       int64_t *end) {
    for (int64_t i = 0; i < size; i++)
        random[i] = random[i] * (mass[length] - mass[0]) + mass[0];
    long wrong = ranks_at(size, random, mass, terms, length, power, slots);
    for (int64_t i = 0; i < size; i++) {
        if (i + BLOCKS_AHEAD < size) {
            Place place = place_of(ranks, slots[i + BLOCKS_AHEAD]);
            __builtin_prefetch(place.codes + place.at);
        }
        int64_t code = ties_of(ranks, slots[i], first + i, end + i);
        int64_t chosen = first[i] + (int64_t)(random[size + i] * (end[i] - first[i]));
        slots[i] = (chosen == slots[i] ? code : code_at(ranks, chosen)) & SLOT_MASK;
    }
    return wrong;
}

#endif
