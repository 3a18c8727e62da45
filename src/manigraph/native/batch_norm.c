/* Batch norm by the batch's own statistics and the leaky ReLU after it, as one operation:
 *     t = w (x - mean) / √(var + eps) + b,  y = t where t > 0, else slope t.
 *
 * Values are [row][channel], where a row is one place in one image; the number of channels is a multiple of
 * LANES. Large maps do not fit the caches, so what counts is how often they are read: twice here in each
 * direction. The gradient finds the sign of t from x again, so y need not be kept.
 *
 * Each thread has rows of its own, in chunks; its second pass goes backwards, since the last chunks of the
 * first are still in its caches. Sums over a chunk are float32, those over chunks and threads are double and
 * in a fixed order: the same bits for the same number of threads. */
#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>

#include "vectors.h"

/* Vectors of a row at a time. With fewer, rows of 128 channels are read in two pieces, each with gaps that the
 * processor does not read ahead over: half as fast again, while numbers that no register is left for are in the
 * nearest cache. */
#define GROUP 8

enum { MOST_ROWS = 256, FEWEST_ROWS = 32, CHUNK = 1 << 15, GUESS_ROWS = 16, FEW = 1 << 14, MANY = 1 << 22 };

typedef struct {
    ptrdiff_t rows, channels;
    double eps;
    float slope;
} shape;

/* One row each, and what they are for: mean + rest is the mean in more than float32 can say, so that values
 * far from zero with a small spread lose nothing. */
typedef struct {
    const float *mean, *rest, *inverse; /* 1 / √(var + eps) */
    const float *weight, *bias;
} affine;

typedef struct {
    vec mean, scale, shift;
} line;

static inline __attribute__((always_inline)) line line_of(const affine *a, ptrdiff_t c)
{
    const vec scale = load(a->weight + c) * load(a->inverse + c);
    return (line){load(a->mean + c), scale, load(a->bias + c) - load(a->rest + c) * scale};
}

/* 1 where the line is above zero, else the slope; the same bits forward and backward, hence the same sign. */
static inline __attribute__((always_inline)) vec steepness(vec t, float slope)
{
    typedef int bits __attribute__((vector_size(4 * LANES)));
    const vec zero = {0}, one = zero + 1.f, small = zero + slope;
    const bits above = t > zero;
    return (vec)((above & (bits)one) | (~above & (bits)small));
}

static inline __attribute__((always_inline)) vec on_line(const line *l, vec apart)
{
    return apart * l->scale + l->shift;
}

/* Numbers that leave the caches anyway before somebody reads them are written past them: otherwise the processor
 * reads each line before it writes it. */
static inline __attribute__((always_inline)) void put(float *to, vec value, int past_caches)
{
    if (!past_caches)
        store(to, value);
    else
#if LANES == 16
        _mm512_stream_ps(to, (__m512)value);
#else
        _mm256_stream_ps(to, (__m256)value);
#endif
}

static int goes_past_caches(const shape *s, const float *to)
{
    return s->rows * s->channels >= MANY && (uintptr_t)to % sizeof(vec) == 0;
}

static ptrdiff_t smaller(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }
static ptrdiff_t larger(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }

static ptrdiff_t chunk_rows(ptrdiff_t channels) { return larger(FEWEST_ROWS, smaller(MOST_ROWS, CHUNK / channels)); }

/* The memory to work in has 1 + 4 threads doubles for each channel: what all threads share, then each one's own. */
static double *own_memory(double *scratch, ptrdiff_t channels, int thread)
{
    return scratch + channels * (1 + 4 * (ptrdiff_t)thread);
}

/* The same code for any number of vectors, with as many of them in registers as there is room for. */
#define FOR_GROUPS(CHANNELS, BLOCK, ...)                                                                              \
    do {                                                                                                               \
        ptrdiff_t c = 0;                                                                                               \
        for (; c + GROUP * LANES <= (CHANNELS); c += GROUP * LANES)                                                    \
            BLOCK(GROUP, c, __VA_ARGS__);                                                                              \
        for (; c + 4 * LANES <= (CHANNELS); c += 4 * LANES)                                                            \
            BLOCK(4, c, __VA_ARGS__);                                                                                  \
        for (; c + 2 * LANES <= (CHANNELS); c += 2 * LANES)                                                            \
            BLOCK(2, c, __VA_ARGS__);                                                                                  \
        for (; c < (CHANNELS); c += LANES)                                                                             \
            BLOCK(1, c, __VA_ARGS__);                                                                                  \
    } while (0)

/* Σ (x - shift) and Σ (x - shift)² over some rows. Where few vectors make a row, several rows at a time. */
static inline __attribute__((always_inline)) void moments(const int vectors, ptrdiff_t c, const float *x,
                                                          ptrdiff_t rows, ptrdiff_t C, const float *shift,
                                                          float *sums, float *squares)
{
    enum { MOST = GROUP };
    const int at_once = MOST / vectors;
    vec first[MOST], second[MOST], origin[MOST];
#pragma GCC unroll 8
    for (int n = 0; n < MOST; n++) {
        first[n] = second[n] = (vec){0};
        origin[n] = load(shift + c + n % vectors * LANES);
    }
    ptrdiff_t row = 0;
    for (; row + at_once <= rows; row += at_once)
#pragma GCC unroll 8
        for (int n = 0; n < MOST; n++) {
            const vec apart = load(x + (row + n / vectors) * C + c + n % vectors * LANES) - origin[n];
            first[n] += apart;
            second[n] += apart * apart;
        }
    for (; row < rows; row++)
#pragma GCC unroll 8
        for (int n = 0; n < vectors; n++) {
            const vec apart = load(x + row * C + c + n * LANES) - origin[n];
            first[n] += apart;
            second[n] += apart * apart;
        }
#pragma GCC unroll 8
    for (int n = vectors; n < MOST; n++) {
        first[n % vectors] += first[n];
        second[n % vectors] += second[n];
    }
#pragma GCC unroll 8
    for (int n = 0; n < vectors; n++) {
        store(sums + c + n * LANES, first[n]);
        store(squares + c + n * LANES, second[n]);
    }
}

/* Mean and Σ (x - mean)² over a thread's rows.
 *
 * Of each chunk they are computed around the mean of the chunk before, and put together by the formula of Chan,
 * Golub and LeVeque. How far the means of two chunks are apart is part of the spread itself, so what is
 * lost by the subtraction is never more than a few roundings of the result, however far from zero the values are. */
static void spread_of(const float *x, ptrdiff_t rows, ptrdiff_t C, double *memory)
{
    double *const mean = memory, *const spread = mean + C;
    float *const shift = (float *)(spread + C), *const sums = shift + C, *const squares = sums + C;
    const ptrdiff_t at_once = chunk_rows(C), guess = smaller(GUESS_ROWS, rows);
    for (ptrdiff_t c = 0; c < C; c++)
        mean[c] = spread[c] = 0;
    if (rows == 0)
        return;
    for (ptrdiff_t c = 0; c < C; c += LANES) {
        vec sum = {0};
        for (ptrdiff_t row = 0; row < guess; row++)
            sum += load(x + row * C + c);
        store(shift + c, sum / (float)guess);
    }
    for (ptrdiff_t first = 0; first < rows; first += at_once) {
        const ptrdiff_t here = smaller(at_once, rows - first);
        FOR_GROUPS(C, moments, x + first * C, here, C, shift, sums, squares);
        const double own = 1. / (double)here, share = (double)here / (double)(first + here);
        const double both = (double)first * share;
        for (ptrdiff_t c = 0; c < C; c++) {
            const double sum = sums[c], of_chunk = shift[c] + sum * own, apart = of_chunk - mean[c];
            mean[c] += apart * share;
            spread[c] += squares[c] - sum * sum * own + apart * apart * both;
            shift[c] = (float)of_chunk;
        }
    }
}

static inline __attribute__((always_inline)) void activate(const int vectors, ptrdiff_t c, const float *x, float *y,
                                                           ptrdiff_t rows, ptrdiff_t C, const affine *a, float slope,
                                                           int past_caches)
{
    line lines[GROUP];
#pragma GCC unroll 8
    for (int n = 0; n < vectors; n++)
        lines[n] = line_of(a, c + n * LANES);
    for (ptrdiff_t row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int n = 0; n < vectors; n++) {
            const ptrdiff_t place = row * C + c + n * LANES;
            const vec t = on_line(lines + n, load(x + place) - lines[n].mean);
            put(y + place, t * steepness(t, slope), past_caches);
        }
}

/* From which row on a thread's rows are, in whole chunks. */
static ptrdiff_t first_row(const shape *s, int thread, int threads)
{
    const ptrdiff_t at_once = chunk_rows(s->channels), chunks = (s->rows + at_once - 1) / at_once;
    return smaller(s->rows, chunks * thread / threads * at_once);
}

/* y, and for the gradient the statistics [mean, rest, inverse][channel]. The running ones move if there are any. */
void batch_norm_forward(const float *x, const float *weight, const float *bias, float *y, float *statistics,
                        float *running_mean, float *running_var, double momentum, const shape *s, int threads,
                        double *scratch)
{
    const ptrdiff_t C = s->channels, at_once = chunk_rows(C);
    float *const mean = statistics, *const rest = mean + C, *const inverse = rest + C;
    const affine a = {mean, rest, inverse, weight, bias};
    const int past_caches = goes_past_caches(s, y);
#pragma omp parallel num_threads(threads) if (s->rows * C > FEW)
    {
        const int team = omp_get_num_threads(), thread = omp_get_thread_num();
        const ptrdiff_t begin = first_row(s, thread, team), end = first_row(s, thread + 1, team);
        spread_of(x + begin * C, end - begin, C, own_memory(scratch, C, thread));
#pragma omp barrier
#pragma omp for schedule(static)
        for (ptrdiff_t c = 0; c < C; c++) {
            double centre = 0, spread = 0;
            for (int k = 0; k < team; k++) {
                const ptrdiff_t from = first_row(s, k, team), to = first_row(s, k + 1, team);
                if (from == to)
                    continue;
                const double *own = own_memory(scratch, C, k), apart = own[c] - centre;
                const double share = (double)(to - from) / (double)to;
                centre += apart * share;
                spread += own[C + c] + apart * apart * (double)from * share;
            }
            spread = spread < 0 ? 0 : spread; /* by rounding, if at all; NaN stays */
            mean[c] = (float)centre;
            rest[c] = (float)(centre - mean[c]);
            inverse[c] = (float)(1 / sqrt(spread / (double)s->rows + s->eps));
            if (running_mean)
                running_mean[c] = (float)(momentum * centre + (1 - momentum) * running_mean[c]);
            if (running_var)
                running_var[c] = (float)(momentum * spread / (double)(s->rows - 1) + (1 - momentum) * running_var[c]);
        }
        for (ptrdiff_t last = end; last > begin;) {
            const ptrdiff_t first = begin + (last - begin - 1) / at_once * at_once;
            FOR_GROUPS(C, activate, x + first * C, y + first * C, last - first, C, &a, s->slope, past_caches);
            last = first;
        }
        _mm_sfence();
    }
}

/* Σ g and Σ g (x - mean) over some rows, where g is the gradient of t. */
static inline __attribute__((always_inline)) void products(const int vectors, ptrdiff_t c, const float *x,
                                                           const float *gradient, ptrdiff_t rows, ptrdiff_t C,
                                                           const affine *a, float slope, double *sums,
                                                           double *weighted)
{
    vec first[GROUP], second[GROUP];
    line lines[GROUP];
#pragma GCC unroll 8
    for (int n = 0; n < vectors; n++) {
        first[n] = second[n] = (vec){0};
        lines[n] = line_of(a, c + n * LANES);
    }
    for (ptrdiff_t row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int n = 0; n < vectors; n++) {
            const ptrdiff_t place = row * C + c + n * LANES;
            const vec apart = load(x + place) - lines[n].mean;
            const vec g = load(gradient + place) * steepness(on_line(lines + n, apart), slope);
            first[n] += g;
            second[n] += g * apart;
        }
#pragma GCC unroll 8
    for (int n = 0; n < vectors; n++)
        for (int lane = 0; lane < LANES; lane++) {
            sums[c + n * LANES + lane] += first[n][lane];
            weighted[c + n * LANES + lane] += second[n][lane];
        }
}

/* scale (g - level - (x - mean) tilt) */
static inline __attribute__((always_inline)) void differences(const int vectors, ptrdiff_t c, const float *x,
                                                              const float *gradient, float *to, ptrdiff_t rows,
                                                              ptrdiff_t C, const affine *a, float slope,
                                                              const float *level, const float *tilt,
                                                              int past_caches)
{
    vec levels[GROUP], tilts[GROUP];
    line lines[GROUP];
#pragma GCC unroll 8
    for (int n = 0; n < vectors; n++) {
        levels[n] = load(level + c + n * LANES);
        tilts[n] = load(tilt + c + n * LANES);
        lines[n] = line_of(a, c + n * LANES);
    }
    for (ptrdiff_t row = 0; row < rows; row++)
#pragma GCC unroll 8
        for (int n = 0; n < vectors; n++) {
            const ptrdiff_t place = row * C + c + n * LANES;
            const vec apart = load(x + place) - lines[n].mean;
            const vec g = load(gradient + place) * steepness(on_line(lines + n, apart), slope);
            put(to + place, lines[n].scale * (g - levels[n] - apart * tilts[n]), past_caches);
        }
}

/* With x̂ = (x - mean) / √(var + eps) and g the gradient of t, that of x is w / √(var + eps) (g - mean g - x̂ mean(g x̂)),
 * that of w is Σ g x̂ and that of b is Σ g. The gradient of x is left out if there is no place for it. */
void batch_norm_backward(const float *x, const float *weight, const float *bias, const float *statistics,
                         const float *gradient, float *to, float *weight_gradient, float *bias_gradient,
                         const shape *s, int threads, double *scratch)
{
    const ptrdiff_t C = s->channels, at_once = chunk_rows(C);
    const float *const mean = statistics, *const rest = mean + C, *const inverse = rest + C;
    const affine a = {mean, rest, inverse, weight, bias};
    float *const level = (float *)scratch, *const tilt = level + C;
    const int past_caches = goes_past_caches(s, to);
#pragma omp parallel num_threads(threads) if (s->rows * C > FEW)
    {
        const int team = omp_get_num_threads(), thread = omp_get_thread_num();
        const ptrdiff_t begin = first_row(s, thread, team), end = first_row(s, thread + 1, team);
        double *const sums = own_memory(scratch, C, thread), *const weighted = sums + C;
        for (ptrdiff_t c = 0; c < C; c++)
            sums[c] = weighted[c] = 0;
        for (ptrdiff_t first = begin; first < end; first += at_once)
            FOR_GROUPS(C, products, x + first * C, gradient + first * C, smaller(at_once, end - first), C, &a, s->slope,
                       sums, weighted);
#pragma omp barrier
#pragma omp for schedule(static)
        for (ptrdiff_t c = 0; c < C; c++) {
            double sum = 0, product = 0;
            for (int k = 0; k < team; k++) {
                sum += own_memory(scratch, C, k)[c];
                product += own_memory(scratch, C, k)[C + c];
            }
            product = (product - sum * rest[c]) * inverse[c];
            weight_gradient[c] = (float)product;
            bias_gradient[c] = (float)sum;
            const double slant = product * inverse[c] / (double)s->rows;
            tilt[c] = (float)slant;
            level[c] = (float)(sum / (double)s->rows - rest[c] * slant);
        }
        for (ptrdiff_t last = to ? end : begin; last > begin;) {
            const ptrdiff_t first = begin + (last - begin - 1) / at_once * at_once;
            FOR_GROUPS(C, differences, x + first * C, gradient + first * C, to + first * C, last - first, C, &a,
                       s->slope, level, tilt, past_caches);
            last = first;
        }
        _mm_sfence();
    }
}
