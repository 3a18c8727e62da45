/* C (+)= A B for small matrices that are in the caches.
 *
 * A block of ROWS x 2 vectors of C stays in registers while a row of B and a number of each row of A are
 * multiplied at a time. The number of columns must be a multiple of LANES. */
#pragma once
#include "vectors.h"

#if LANES == 16
#define BLOCK_ROWS 12 /* 24 of 32 registers */
#else
#define BLOCK_ROWS 6 /* 12 of 16 registers */
#endif

/* Strides are in numbers: A[m][k] is at a[m * a_row + k * a_column], so A may be transposed. */
static inline __attribute__((always_inline)) void product_block(
    const int rows, const int vectors, int inner, const float *a, ptrdiff_t a_row, ptrdiff_t a_column,
    const float *b, ptrdiff_t b_row, float *c, ptrdiff_t c_row, int add)
{
    vec sums[BLOCK_ROWS][2];
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
        for (int n = 0; n < vectors; n++)
            sums[m][n] = add ? load(c + m * c_row + n * LANES) : (vec){0};
    for (int k = 0; k < inner; k++) {
        vec row[2];
#pragma GCC unroll 2
        for (int n = 0; n < vectors; n++)
            row[n] = load(b + k * b_row + n * LANES);
#pragma GCC unroll 16
        for (int m = 0; m < rows; m++) {
            const float factor = a[m * a_row + k * a_column];
#pragma GCC unroll 2
            for (int n = 0; n < vectors; n++)
                sums[m][n] += factor * row[n];
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
        for (int n = 0; n < vectors; n++)
            store(c + m * c_row + n * LANES, sums[m][n]);
}

static inline __attribute__((always_inline)) void product_columns(
    const int vectors, int rows, int inner, const float *a, ptrdiff_t a_row, ptrdiff_t a_column,
    const float *b, ptrdiff_t b_row, float *c, ptrdiff_t c_row, int add)
{
    int m = 0;
    for (; m + BLOCK_ROWS <= rows; m += BLOCK_ROWS)
        product_block(BLOCK_ROWS, vectors, inner, a + m * a_row, a_row, a_column, b, b_row, c + m * c_row, c_row, add);
    for (; m + 4 <= rows; m += 4)
        product_block(4, vectors, inner, a + m * a_row, a_row, a_column, b, b_row, c + m * c_row, c_row, add);
    for (; m < rows; m++)
        product_block(1, vectors, inner, a + m * a_row, a_row, a_column, b, b_row, c + m * c_row, c_row, add);
}

/* C[rows][columns] = A[rows][inner] B[inner][columns], added to what is there if `add`. */
static inline void product(int rows, int columns, int inner, const float *a, ptrdiff_t a_row, ptrdiff_t a_column,
                           const float *b, ptrdiff_t b_row, float *c, ptrdiff_t c_row, int add)
{
    int n = 0;
    for (; n + 2 * LANES <= columns; n += 2 * LANES)
        product_columns(2, rows, inner, a, a_row, a_column, b + n, b_row, c + n, c_row, add);
    if (n < columns)
        product_columns(1, rows, inner, a, a_row, a_column, b + n, b_row, c + n, c_row, add);
}
