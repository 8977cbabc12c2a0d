/* Rows of several columns, read or written in one call. */
#include <stdint.h>
#include <string.h>

#define AHEAD 12 /* rows to request from memory before they are needed */

static int exist(long size, long count, const int64_t *index) {
    for (long i = 0; i < count; i++)
        if (index[i] < 0 || index[i] >= size) return 0;
    return 1;
}

/* Reads rows of columns. Returns 0 if a row does not exist, else 1.
 *
 * from: the columns, each with `size` rows of `widths[column]` bytes
 * index: [count], the rows to read
 * to: receives the rows of each column
 */
long read_rows(long columns, const char *const *from, const int64_t *widths, long size, long count,
               const int64_t *index, char *const *to) {
    if (!exist(size, count, index)) return 0;
    for (long c = 0; c < columns; c++) {
        const long width = widths[c];
        for (long i = 0; i < count; i++) {
            if (i + AHEAD < count) {
                const char *row = from[c] + width * index[i + AHEAD];
                __builtin_prefetch(row);
                __builtin_prefetch(row + width - 1);
            }
            memcpy(to[c] + width * i, from[c] + width * index[i], width);
        }
    }
    return 1;
}

/* Writes rows of columns. Returns 0, and writes nothing, if a row does not exist, else 1.
 *
 * to: the columns, each with `size` rows of `widths[column]` bytes
 * index: [count], the rows to write; the last of several values for a row remains
 * from: the new rows of each column
 */
long write_rows(long columns, char *const *to, const int64_t *widths, long size, long count,
                const int64_t *index, const char *const *from) {
    if (!exist(size, count, index)) return 0;
    for (long c = 0; c < columns; c++)
        for (long i = 0; i < count; i++)
            memcpy(to[c] + widths[c] * index[i], from[c] + widths[c] * i, widths[c]);
    return 1;
}
