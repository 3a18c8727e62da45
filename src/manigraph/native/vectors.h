/* Vectors of float32, as wide as the processor's registers; the build says how many numbers that are. */
#pragma once
#include <stddef.h>

#ifndef LANES
#error "compile with -DLANES=16 (AVX-512) or -DLANES=8 (AVX2)"
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float *from) { return *(const vec *)from; }
static inline void store(float *to, vec value) { *(vec *)to = value; }
