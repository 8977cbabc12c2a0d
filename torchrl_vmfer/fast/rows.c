/* Rows of several columns, copied in one call. */
#include <stdint.h>
#include <string.h>

#define AHEAD 12 /* rows to request from memory before they are needed */

/* Copies rows of columns. Returns 0 if a row does not exist, else 1.
 *
 * from: the columns, each with `size` rows of `widths[column]` bytes
 * index: [count], the rows to copy
 * to: receives the rows of each column
 */
long copy_rows(long columns, const char *const *from, const int64_t *widths, long size, long count,
               const int64_t *index, char *const *to) {
    for (long i = 0; i < count; i++)
        if (index[i] < 0 || index[i] >= size) return 0;
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
