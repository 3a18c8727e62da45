/* Convolution with 3x3 kernels by Winograd's minimal filtering F(4x4, 3x3) (Lavin & Gray 2016).
 *
 * A tile of 4x4 outputs depends on a window of 6x6 inputs. With
 *     V = B^T d B (window),  U = G k G^T (kernel),  y = A^T [Σ_i U V] A,
 * it takes 36 multiplications for each pair of channels instead of 144: 36 products of matrices of
 * tiles x channels. The gradient of the input is a convolution of the output's gradient with the turned
 * kernels; that of the kernels is G^T [Σ_tiles V Z] G with Z = A dy A^T.
 *
 * Images are [image][row][column][channel], kernels [output][row][column][input]; the number of channels is a
 * multiple of LANES. Each thread works on a few tiles at a time, so that V and the products stay in its caches. */
#include <omp.h>
#include <string.h>

#include "product.h"

enum { TILE = 4, WINDOW = 6, ELEMENTS = 36 };
enum { BLOCKS_IN_A_SUM = 8 }; /* of long sums of float32, so that rounding does not grow with the number of tiles */

typedef struct {
    int images, height, width, inputs, outputs, padding;
} shape;

static const float G[WINDOW][3] = {
    {1.f / 4, 0, 0},
    {-1.f / 6, -1.f / 6, -1.f / 6},
    {-1.f / 6, 1.f / 6, -1.f / 6},
    {1.f / 24, 1.f / 12, 1.f / 6},
    {1.f / 24, -1.f / 12, 1.f / 6},
    {0, 0, 1},
};

/* B^T x */
static inline __attribute__((always_inline)) void transform_window(const vec x[WINDOW], vec y[WINDOW])
{
    const vec even = x[4] - 4 * x[2], odd = x[3] - 4 * x[1];
    const vec far_even = x[4] - x[2], far_odd = 2 * (x[3] - x[1]);
    y[0] = 4 * x[0] - 5 * x[2] + x[4];
    y[1] = even + odd;
    y[2] = even - odd;
    y[3] = far_even + far_odd;
    y[4] = far_even - far_odd;
    y[5] = 4 * x[1] - 5 * x[3] + x[5];
}

/* A^T x */
static inline __attribute__((always_inline)) void transform_output(const vec x[WINDOW], vec y[TILE])
{
    const vec near_sum = x[1] + x[2], near_gap = x[1] - x[2];
    const vec far_sum = x[3] + x[4], far_gap = x[3] - x[4];
    y[0] = x[0] + near_sum + far_sum;
    y[1] = near_gap + 2 * far_gap;
    y[2] = near_sum + 4 * far_sum;
    y[3] = near_gap + 8 * far_gap + x[5];
}

/* A x */
static inline __attribute__((always_inline)) void transform_gradient(const vec x[TILE], vec y[WINDOW])
{
    const vec even = x[0] + x[2], odd = x[1] + x[3];
    const vec far_even = x[0] + 4 * x[2], far_odd = 2 * x[1] + 8 * x[3];
    y[0] = x[0];
    y[1] = even + odd;
    y[2] = even - odd;
    y[3] = far_even + far_odd;
    y[4] = far_even - far_odd;
    y[5] = x[3];
}

/* V of the window whose corner is at (row, column), zero outside of the image; `step` between elements. */
static void window_of(const float *image, int height, int width, int channels, int row, int column, float *to,
                      ptrdiff_t step)
{
    const int inside = row >= 0 && column >= 0 && row + WINDOW <= height && column + WINDOW <= width;
    for (int c = 0; c < channels; c += LANES) {
        vec half[WINDOW][WINDOW]; /* [column][row] */
        for (int j = 0; j < WINDOW; j++) {
            vec pixels[WINDOW];
            for (int i = 0; i < WINDOW; i++) {
                const int r = row + i, s = column + j;
                const int there = inside || (r >= 0 && r < height && s >= 0 && s < width);
                pixels[i] = there ? load(image + ((ptrdiff_t)r * width + s) * channels + c) : (vec){0};
            }
            transform_window(pixels, half[j]);
        }
        for (int i = 0; i < WINDOW; i++) {
            vec row_of[WINDOW], done[WINDOW];
            for (int j = 0; j < WINDOW; j++)
                row_of[j] = half[j][i];
            transform_window(row_of, done);
            for (int j = 0; j < WINDOW; j++)
                store(to + (WINDOW * i + j) * step + c, done[j]);
        }
    }
}

/* A^T M A into the tile whose corner is at (row, column), as far as it lies in the image. */
static void output_of(const float *from, ptrdiff_t step, float *image, int height, int width, int channels, int row,
                      int column)
{
    for (int c = 0; c < channels; c += LANES) {
        vec half[WINDOW][TILE]; /* [column][row] */
        for (int j = 0; j < WINDOW; j++) {
            vec elements[WINDOW];
            for (int i = 0; i < WINDOW; i++)
                elements[i] = load(from + (WINDOW * i + j) * step + c);
            transform_output(elements, half[j]);
        }
        for (int i = 0; i < TILE && row + i < height; i++) {
            vec row_of[WINDOW], done[TILE];
            for (int j = 0; j < WINDOW; j++)
                row_of[j] = half[j][i];
            transform_output(row_of, done);
            float *to = image + ((ptrdiff_t)(row + i) * width + column) * channels + c;
            for (int j = 0; j < TILE; j++)
                if (column + j < width)
                    store(to + (ptrdiff_t)j * channels, done[j]);
        }
    }
}

/* Z of the tile whose corner is at (row, column), zero outside of the image. */
static void gradient_of(const float *image, int height, int width, int channels, int row, int column, float *to,
                        ptrdiff_t step)
{
    for (int c = 0; c < channels; c += LANES) {
        vec half[TILE][WINDOW]; /* [column][row] */
        for (int j = 0; j < TILE; j++) {
            vec pixels[TILE];
            for (int i = 0; i < TILE; i++) {
                const int there = row + i < height && column + j < width;
                pixels[i] = there ? load(image + ((ptrdiff_t)(row + i) * width + column + j) * channels + c) : (vec){0};
            }
            transform_gradient(pixels, half[j]);
        }
        for (int i = 0; i < WINDOW; i++) {
            vec row_of[TILE], done[WINDOW];
            for (int j = 0; j < TILE; j++)
                row_of[j] = half[j][i];
            transform_gradient(row_of, done);
            for (int j = 0; j < WINDOW; j++)
                store(to + (WINDOW * i + j) * step + c, done[j]);
        }
    }
}

/* G k G^T of the kernels of LANES input channels. */
static inline __attribute__((always_inline)) void kernel_of(const vec k[9], vec u[ELEMENTS])
{
    vec half[WINDOW][3];
    for (int e = 0; e < WINDOW; e++)
        for (int b = 0; b < 3; b++)
            half[e][b] = G[e][0] * k[b] + G[e][1] * k[3 + b] + G[e][2] * k[6 + b];
    for (int e = 0; e < WINDOW; e++)
        for (int f = 0; f < WINDOW; f++)
            u[WINDOW * e + f] = G[f][0] * half[e][0] + G[f][1] * half[e][1] + G[f][2] * half[e][2];
}

/* U[element][input][output] of all kernels, or, turned, U[element][output][input] for the gradient. */
static void kernels_of(const float *kernels, int inputs, int outputs, int turned, float *to)
{
    const ptrdiff_t pairs = (ptrdiff_t)inputs * outputs;
#pragma omp for schedule(static) collapse(2)
    for (int first = 0; first < outputs; first += LANES)
        for (int i = 0; i < inputs; i += LANES) {
            float block[ELEMENTS][LANES][LANES]; /* [element][output][input], to be written input by input */
            for (int o = 0; o < LANES; o++) {
                vec k[9], u[ELEMENTS];
                for (int p = 0; p < 9; p++)
                    k[p] = load(kernels + ((ptrdiff_t)(first + o) * 9 + (turned ? 8 - p : p)) * inputs + i);
                kernel_of(k, u);
                for (int e = 0; e < ELEMENTS; e++)
                    store(turned ? to + e * pairs + (ptrdiff_t)(first + o) * inputs + i : block[e][o], u[e]);
            }
            for (int e = 0; e < ELEMENTS && !turned; e++)
                for (int own = 0; own < LANES; own++) {
                    float *const row = to + e * pairs + (ptrdiff_t)(i + own) * outputs + first;
                    for (int o = 0; o < LANES; o++)
                        row[o] = block[e][o][own];
                }
        }
}

static ptrdiff_t tiles_along(int size) { return (size + TILE - 1) / TILE; }

static ptrdiff_t smaller(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

/* How many numbers of scratch memory a convolution needs: the kernels, and a block of tiles for each thread. */
ptrdiff_t winograd_scratch(int inputs, int outputs, int tiles_at_once, int threads)
{
    return ELEMENTS * ((ptrdiff_t)inputs * outputs + (ptrdiff_t)threads * tiles_at_once * (inputs + outputs));
}

/* The same of the kernels' gradient, for which each thread has sums of its own. */
ptrdiff_t winograd_gradient_scratch(int inputs, int outputs, int tiles_at_once, int threads)
{
    return (ptrdiff_t)threads * ELEMENTS * (2 * (ptrdiff_t)inputs * outputs + (ptrdiff_t)tiles_at_once * (inputs + outputs));
}

/* outputs = images * kernels; `turned` gives the gradient of the input instead, from that of the output. */
void winograd_convolution(const float *images, const float *kernels, float *to, const shape *s, int turned,
                          int tiles_at_once, int threads, float *scratch)
{
    const int I = s->inputs, O = s->outputs, H = s->height, W = s->width, T = tiles_at_once;
    const int height = H + 2 * s->padding - 2, width = W + 2 * s->padding - 2;
    const ptrdiff_t down = tiles_along(height), across = tiles_along(width), tiles = s->images * down * across;
    float *const U = scratch;
#pragma omp parallel num_threads(threads)
    {
        kernels_of(kernels, turned ? O : I, turned ? I : O, turned, U);
        float *const V = scratch + (ptrdiff_t)ELEMENTS * (I * (ptrdiff_t)O + (ptrdiff_t)omp_get_thread_num() * T * (I + O));
        float *const M = V + (ptrdiff_t)ELEMENTS * T * I;
#pragma omp for schedule(static)
        for (ptrdiff_t first = 0; first < tiles; first += T) {
            const int here = (int)smaller(T, tiles - first);
            for (int t = 0; t < here; t++) {
                const ptrdiff_t tile = first + t, n = tile / (down * across);
                const int row = TILE * (int)(tile / across % down), column = TILE * (int)(tile % across);
                window_of(images + n * H * W * I, H, W, I, row - s->padding, column - s->padding, V + (ptrdiff_t)t * I,
                          (ptrdiff_t)T * I);
            }
            for (ptrdiff_t e = 0; e < ELEMENTS; e++)
                product(here, O, I, V + e * T * I, I, 1, U + e * I * O, O, M + e * T * O, O, 0);
            for (int t = 0; t < here; t++) {
                const ptrdiff_t tile = first + t, n = tile / (down * across);
                const int row = TILE * (int)(tile / across % down), column = TILE * (int)(tile % across);
                output_of(M + (ptrdiff_t)t * O, (ptrdiff_t)T * O, to + n * height * width * O, height, width, O, row,
                          column);
            }
        }
    }
}

static void add_to(float *sums, const float *more, ptrdiff_t count)
{
    for (ptrdiff_t i = 0; i < count; i += LANES)
        store(sums + i, load(sums + i) + load(more + i));
}

/* The gradient of the kernels, from the images and the gradient of the output. */
void winograd_kernel_gradient(const float *images, const float *gradients, float *to, const shape *s,
                              int tiles_at_once, int threads, float *scratch)
{
    const int I = s->inputs, O = s->outputs, H = s->height, W = s->width, T = tiles_at_once;
    const int height = H + 2 * s->padding - 2, width = W + 2 * s->padding - 2;
    const ptrdiff_t down = tiles_along(height), across = tiles_along(width), tiles = s->images * down * across;
    const ptrdiff_t pairs = (ptrdiff_t)I * O, of_a_thread = ELEMENTS * (2 * pairs + (ptrdiff_t)T * (I + O));
#pragma omp parallel num_threads(threads)
    {
        const int team = omp_get_num_threads(); /* perhaps fewer than asked for */
        float *const sums = scratch + of_a_thread * omp_get_thread_num(); /* [element][output][input] */
        float *const recent = sums + ELEMENTS * pairs;                     /* of the last few blocks */
        float *const V = recent + ELEMENTS * pairs, *const Z = V + (ptrdiff_t)ELEMENTS * T * I;
        int blocks = 0;
        memset(sums, 0, sizeof(float) * ELEMENTS * pairs);
#pragma omp for schedule(static) nowait
        for (ptrdiff_t first = 0; first < tiles; first += T) {
            const int here = (int)smaller(T, tiles - first);
            for (int t = 0; t < here; t++) {
                const ptrdiff_t tile = first + t, n = tile / (down * across);
                const int row = TILE * (int)(tile / across % down), column = TILE * (int)(tile % across);
                window_of(images + n * H * W * I, H, W, I, row - s->padding, column - s->padding, V + (ptrdiff_t)t * I,
                          (ptrdiff_t)T * I);
                gradient_of(gradients + n * height * width * O, height, width, O, row, column, Z + (ptrdiff_t)t * O,
                            (ptrdiff_t)T * O);
            }
            for (ptrdiff_t e = 0; e < ELEMENTS; e++)
                product(O, I, here, Z + e * T * O, 1, O, V + e * T * I, I, recent + e * pairs, I, blocks > 0);
            if (++blocks == BLOCKS_IN_A_SUM) {
                add_to(sums, recent, ELEMENTS * pairs);
                blocks = 0;
            }
        }
        if (blocks > 0)
            add_to(sums, recent, ELEMENTS * pairs);
#pragma omp barrier
#pragma omp for schedule(static)
        for (int o = 0; o < O; o++)
            for (int i = 0; i < I; i += LANES) {
                vec half[3][WINDOW];
                for (int f = 0; f < WINDOW; f++) {
                    half[0][f] = half[1][f] = half[2][f] = (vec){0};
                    for (int e = 0; e < WINDOW; e++) {
                        vec sum = {0};
                        for (int k = 0; k < team; k++)
                            sum += load(scratch + of_a_thread * k + (WINDOW * e + f) * pairs + (ptrdiff_t)o * I + i);
                        for (int a = 0; a < 3; a++)
                            half[a][f] += G[e][a] * sum;
                    }
                }
                for (int a = 0; a < 3; a++)
                    for (int b = 0; b < 3; b++) {
                        vec sum = {0};
                        for (int f = 0; f < WINDOW; f++)
                            sum += G[f][b] * half[a][f];
                        store(to + ((ptrdiff_t)o * 9 + 3 * a + b) * I + i, sum);
                    }
            }
    }
}
