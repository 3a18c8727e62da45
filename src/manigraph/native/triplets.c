/* All triplets of centre, member and non-member, one after the other, and nothing of them in memory.
 *
 *     Σ max(n_k - t_j, 0)²  with  t_j = S(c_i, f_j) - margin,  n_k = S(c_i, f_k),
 *
 * over every centre i, member j of class i and non-member k, with the number of terms above zero and the gradient
 * of the sum. Sorting (`functional/prototypes.py`) needs fewer operations, but each of them costs more than a
 * whole vector of these. Sums are double, as thresholds are: whether a term counts must not depend on rounding. */
#include <omp.h>
#include <stdint.h>

#include "vectors.h"

enum { WIDE = LANES / 2, CENTRES = 16 }; /* numbers in a vector of doubles; centres whose columns are read together */

typedef double wide __attribute__((vector_size(8 * WIDE), aligned(8), may_alias));
typedef int64_t wide_mask __attribute__((vector_size(8 * WIDE)));

static inline wide load_wide(const double *from) { return *(const wide *)from; }

static ptrdiff_t padded(ptrdiff_t members) { return (members + WIDE - 1) / WIDE * WIDE; }

/* How many doubles of scratch memory a call needs: two columns for each of a few centres, for every thread. */
ptrdiff_t triplet_scratch(ptrdiff_t members) { return (ptrdiff_t)omp_get_max_threads() * 2 * CENTRES * padded(members); }

typedef struct {
    double total;
    int64_t number;
} triplets;

/* Of one centre. `others` has -inf in the place of members, so that none of them is above a threshold. */
static triplets of_centre(const float *similarity, const int64_t *classes, ptrdiff_t members, ptrdiff_t centres,
                          ptrdiff_t centre, double margin, const double *others, double *gradient)
{
    const ptrdiff_t length = padded(members);
    triplets found = {0, 0};
    for (ptrdiff_t j = 0; j < members; j++) {
        if (classes[j] != centre)
            continue;
        const double threshold = similarity[j * centres + centre] - margin;
        wide sum = {0}, squares = {0};
        wide_mask number = {0};
        for (ptrdiff_t k = 0; k < length; k += WIDE) {
            const wide gap = load_wide(others + k) - threshold;
            const wide_mask none = gap <= 0; /* false for NaN, which must be seen */
            const wide above = (wide)(~none & (wide_mask)gap);
            number += gap > 0;
            sum += above;
            squares += above * above;
            *(wide *)(gradient + k) += 2 * above;
        }
        double all = 0;
        for (int n = 0; n < WIDE; n++) {
            all += sum[n];
            found.total += squares[n];
            found.number -= number[n]; /* true is -1 */
        }
        gradient[j] -= 2 * all;
    }
    return found;
}

/* Sum and number of each centre's terms, and the gradient of the sum of all, [member][centre]. */
void triplet_sums(const float *similarity, const int64_t *classes, ptrdiff_t members, ptrdiff_t centres, double margin,
                  double *totals, int64_t *numbers, float *gradient, double *scratch)
{
    const ptrdiff_t length = padded(members);
#pragma omp parallel for schedule(static)
    for (ptrdiff_t first = 0; first < centres; first += CENTRES) {
        double *const others = scratch + (ptrdiff_t)omp_get_thread_num() * 2 * CENTRES * length;
        double *const slopes = others + CENTRES * length;
        const ptrdiff_t here = centres - first < CENTRES ? centres - first : CENTRES;
        for (ptrdiff_t n = 0; n < length; n++)
            for (ptrdiff_t c = 0; c < here; c++) {
                const int is_other = n < members && classes[n] != first + c;
                others[c * length + n] = is_other ? similarity[n * centres + first + c] : -__builtin_inf();
                slopes[c * length + n] = 0;
            }
        for (ptrdiff_t c = 0; c < here; c++) {
            const triplets found = of_centre(similarity, classes, members, centres, first + c, margin,
                                             others + c * length, slopes + c * length);
            totals[first + c] = found.total;
            numbers[first + c] = found.number;
        }
        for (ptrdiff_t n = 0; n < members; n++)
            for (ptrdiff_t c = 0; c < here; c++)
                gradient[n * centres + first + c] = (float)slopes[c * length + n];
    }
}
