/* The cross entropy of all prototypes in the graphs of all images, and its gradient, in one pass.
 *
 * For image b and prototype p, with one head:
 *     f = LeakyReLU(without_image_p + share_bp (of_image_b - of_prototypes_p)),  logits = W f + bias,
 *     loss = log Σ_c exp logits_c - logits_own,  e = softmax(logits) - onehot(own),
 *     dW += e^T f,  df = e W, and through the LeakyReLU into the four parts of the message.
 *
 * A block of a few prototypes with a few images is taken through all of it while it is in the caches; nothing
 * has B P numbers times features or classes. A thread has prototypes of its own, so what belongs to a prototype is
 * written by one thread alone; what belongs to an image or to the classifier is summed by each thread for
 * itself, and over the threads at the end in their order, so that the same number of threads gives the same bits.
 *
 * The number of features is a multiple of LANES. */
#include <math.h> /* INFINITY; a function of it would have to be linked */
#include <omp.h>
#include <stdint.h>
#include <string.h>

#include "product.h"

/* Rows of a block: multiples of BLOCK_ROWS, enough to make reading W and adding to dW cheap. */
enum { PROTOTYPES = 12, IMAGES = 4, ROWS = PROTOTYPES * IMAGES };

/* Blocks whose gradients of the classifier are summed before the sum is added to that of all: one after the other,
 * millions of rows would be rounded against their own sum. */
enum { A_FEW = 16 };

static const float SLOPE = 0.1f;

typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct {
    int images, prototypes, features, classes;
} shape;

/* Of everything that a gradient is sent into; the same order as in Python. */
typedef struct {
    float *without_image, *of_prototypes, *of_image, *share, *weight, *bias;
} parts;

/* The memory of one thread. */
typedef struct {
    float *features, *back; /* [row][feature] */
    float *logits;          /* [row][class], and then what the loss sends into them */
    float *to_image;        /* [image][feature] */
    float *to_classifier;   /* [class][feature] of the weight and [class] of the bias */
    float *of_a_few;        /* the same of a few blocks */
} space;

/* Some prototypes with some images; rows are the images, and within each the prototypes. */
typedef struct {
    int prototype, prototypes, image, images;
} block;

static int rounded_up(int number, int multiple) { return (number + multiple - 1) / multiple * multiple; }

static int smaller(int a, int b) { return a < b ? a : b; }

static inline vec all(float number) { return (vec){0} + number; }

static inline vec where(ivec is, vec yes, vec no) { return (vec)((is & (ivec)yes) | (~is & (ivec)no)); }

/* The lanes, each with the one `step` away. */
static inline vec swapped(vec x, int step)
{
#if LANES == 16
    const ivec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
    const ivec lane = {0, 1, 2, 3, 4, 5, 6, 7};
#endif
    return __builtin_shuffle(x, lane ^ step);
}

static inline float sum_of(vec x)
{
#pragma GCC unroll 4
    for (int step = LANES / 2; step; step /= 2)
        x += swapped(x, step);
    return x[0];
}

/* In all lanes. A lane that is not a number may be lost; its exponential is none either. */
static inline vec largest_of(vec x)
{
#pragma GCC unroll 4
    for (int step = LANES / 2; step; step /= 2) {
        const vec other = swapped(x, step);
        x = where(other > x, other, x);
    }
    return x;
}

/* exp x for x <= 0 with a relative error of 1e-7, 0 where it would be below the normal numbers, and not a number
 * where x is none: x = n log 2 + r with |r| <= log 2 / 2, and a polynomial (Cephes) for r. */
static inline vec exponential(vec x)
{
    const float shift = 12582912; /* 1.5 2^23: numbers of this size have no fraction, so adding it rounds */
    const vec shifted = x * 1.44269504088896341f + shift, n = shifted - shift;
    vec r = x - n * 0.693359375f; /* log 2 in two parts, of which the first times n is exact */
    r += n * 2.12194440e-4f;
    vec sum = all(1.9875691500e-4f);
    sum = sum * r + 1.3981999507e-3f;
    sum = sum * r + 8.3334519073e-3f;
    sum = sum * r + 4.1665795894e-2f;
    sum = sum * r + 1.6666665459e-1f;
    sum = sum * r + 5.0000001201e-1f;
    sum = sum * r * r + r + 1;
    const ivec power = ((ivec)shifted + (127 - 0x4B400000)) << 23; /* the bits of 2^n */
    return where(x < -87.3f, (vec){0}, sum * (vec)power);
}

/* f of one prototype in the graphs of some images; the number of these is known to the compiler. */
static inline __attribute__((always_inline)) void refine_one(const int images, const parts *from, const shape *s, int p,
                                                            int b, float *features, ptrdiff_t step)
{
    const ptrdiff_t D = s->features, P = s->prototypes;
    const float *const alone = from->without_image + p * D, *const others = from->of_prototypes + p * D;
    const float *const image = from->of_image + b * D, *const shares = from->share + b * P + p;
    vec share[IMAGES];
#pragma GCC unroll 4
    for (int i = 0; i < images; i++)
        share[i] = all(shares[i * P]);
    for (ptrdiff_t d = 0; d < D; d += LANES) {
        const vec own = load(alone + d), mean = load(others + d);
#pragma GCC unroll 4
        for (int i = 0; i < images; i++) {
            const vec total = own + share[i] * (load(image + i * D + d) - mean);
            store(features + i * step + d, where(total > 0, total, SLOPE * total));
        }
    }
}

/* f of a block. */
static void refine(const parts *from, const shape *s, block at, float *features)
{
    const ptrdiff_t D = s->features, step = at.prototypes * D;
    for (int j = 0; j < at.prototypes; j++)
        if (at.images == IMAGES)
            refine_one(IMAGES, from, s, at.prototype + j, at.image, features + j * D, step);
        else
            for (int i = 0; i < at.images; i++)
                refine_one(1, from, s, at.prototype + j, at.image + i, features + i * step + j * D, step);
}

/* Losses of many rows, Σ log sum + gap where sum = Σ_c exp(logit_c - largest) and gap = largest - logit_own, as
 * one logarithm: that of the product of all sums, which is `product` 2^`exponent`. It is left to Python. */
typedef struct {
    double gaps, product, exponent;
} losses;

static void add_losses(losses *to, losses more)
{
    to->gaps += more.gaps;
    to->product *= more.product;
    to->exponent += more.exponent;
    if (to->product > 0x1p400) { /* far enough from the largest double for the next factor */
        to->product *= 0x1p-400;
        to->exponent += 400;
    }
}

/* Adds the losses of a block's rows; the logits become what the mean over all 1 / `scale` rows sends into them. */
static void classify(const int64_t *classes, const shape *s, block at, float *logits, int width, float scale,
                     losses *total)
{
    for (int i = 0; i < at.images; i++)
        for (int j = 0; j < at.prototypes; j++, logits += width) {
            const int own = (int)classes[at.prototype + j];
            vec largest = load(logits);
            for (int c = LANES; c < width; c += LANES) {
                const vec here = load(logits + c);
                largest = where(here > largest, here, largest);
            }
            largest = largest_of(largest);
            const double gap = (double)largest[0] - logits[own];
            vec sums = {0};
            for (int c = 0; c < width; c += LANES) {
                const vec here = exponential(load(logits + c) - largest);
                sums += here;
                store(logits + c, here);
            }
            const float sum = sum_of(sums);
            add_losses(total, (losses){gap, sum, 0});
            const float factor = scale / sum;
            for (int c = 0; c < width; c += LANES)
                store(logits + c, load(logits + c) * factor);
            logits[own] -= scale;
        }
}

/* What one prototype in the graphs of some images adds to the gradient of the message's parts, given f and what the
 * loss sends into it. */
static inline __attribute__((always_inline)) void send_back_one(const int images, const parts *from, const parts *to,
                                                                const shape *s, int p, int b, const float *features,
                                                                const float *back, ptrdiff_t step, float *to_images)
{
    const ptrdiff_t D = s->features, P = s->prototypes;
    const float *const others = from->of_prototypes + p * D, *const image = from->of_image + b * D;
    const float *const shares = from->share + b * P + p;
    float *const to_alone = to->without_image + p * D, *const to_others = to->of_prototypes + p * D;
    float *const to_image = to_images + b * D, *const to_shares = to->share + b * P + p;
    vec share[IMAGES], to_share[IMAGES];
#pragma GCC unroll 4
    for (int i = 0; i < images; i++) {
        share[i] = all(shares[i * P]);
        to_share[i] = (vec){0};
    }
    for (ptrdiff_t d = 0; d < D; d += LANES) {
        const vec mean = load(others + d);
        vec own = {0}, heard = {0};
#pragma GCC unroll 4
        for (int i = 0; i < images; i++) {
            const vec sent = load(back + i * step + d);
            const vec error = where(load(features + i * step + d) > 0, sent, SLOPE * sent);
            const vec shared = share[i] * error;
            own += error;
            heard += shared;
            to_share[i] += error * (load(image + i * D + d) - mean);
            store(to_image + i * D + d, load(to_image + i * D + d) + shared);
        }
        store(to_alone + d, load(to_alone + d) + own);
        store(to_others + d, load(to_others + d) - heard);
    }
#pragma GCC unroll 4
    for (int i = 0; i < images; i++)
        to_shares[i * P] = sum_of(to_share[i]);
}

/* The same of a block. */
static void send_back(const parts *from, const parts *to, const shape *s, block at, const space *own)
{
    const ptrdiff_t D = s->features, step = at.prototypes * D;
    for (int j = 0; j < at.prototypes; j++)
        if (at.images == IMAGES)
            send_back_one(IMAGES, from, to, s, at.prototype + j, at.image, own->features + j * D, own->back + j * D,
                          step, own->to_image);
        else
            for (int i = 0; i < at.images; i++)
                send_back_one(1, from, to, s, at.prototype + j, at.image + i, own->features + i * step + j * D,
                              own->back + i * step + j * D, step, own->to_image);
}

/* Classes in a row of logits, and classes whose gradient is summed: a few more than there are is cheaper. */
static int logits_width(const shape *s) { return rounded_up(s->classes, LANES); }
static int summed_classes(const shape *s) { return rounded_up(s->classes, 4); }

static ptrdiff_t of_all_threads(const shape *s) { return (ptrdiff_t)(s->features + 1) * logits_width(s); }

static ptrdiff_t of_classifier(const shape *s) { return (ptrdiff_t)summed_classes(s) * s->features + logits_width(s); }

static ptrdiff_t of_a_thread(const shape *s)
{
    const ptrdiff_t rows = ROWS * (2 * (ptrdiff_t)s->features + logits_width(s));
    return rows + (ptrdiff_t)s->images * s->features + 2 * of_classifier(s);
}

static space space_of(const shape *s, float *scratch, int thread)
{
    space own;
    own.features = scratch + of_all_threads(s) + of_a_thread(s) * thread;
    own.back = own.features + (ptrdiff_t)ROWS * s->features;
    own.logits = own.back + (ptrdiff_t)ROWS * s->features;
    own.to_image = own.logits + (ptrdiff_t)ROWS * logits_width(s);
    own.to_classifier = own.to_image + (ptrdiff_t)s->images * s->features;
    own.of_a_few = own.to_classifier + of_classifier(s);
    return own;
}

/* What a block adds to the gradient of the classifier. */
static void add_to_classifier(const shape *s, int rows, const space *own)
{
    const int D = s->features, width = logits_width(s), classes = summed_classes(s);
    product(classes, D, rows, own->logits, 1, width, own->features, D, own->of_a_few, D, 1);
    float *const to_bias = own->of_a_few + (ptrdiff_t)classes * D;
    for (int c = 0; c < width; c += LANES) {
        vec sum = load(to_bias + c);
        for (int r = 0; r < rows; r++)
            sum += load(own->logits + (ptrdiff_t)r * width + c);
        store(to_bias + c, sum);
    }
}

/* Adds what a few blocks have added. */
static void sum_up(const shape *s, const space *own)
{
    for (ptrdiff_t n = 0; n < of_classifier(s); n++) {
        own->to_classifier[n] += own->of_a_few[n];
        own->of_a_few[n] = 0;
    }
}

/* to[0], to[1], ... = the sums over the threads of what lies at `from` in the memory of the first. */
static void sum_over_threads(const float *from, ptrdiff_t step, int threads, float *to, ptrdiff_t number)
{
#pragma omp for schedule(static) nowait
    for (ptrdiff_t n = 0; n < number; n++) {
        float sum = from[n];
        for (int k = 1; k < threads; k++)
            sum += from[k * step + n];
        to[n] = sum;
    }
}

/* How many numbers of scratch memory a call needs. */
ptrdiff_t prototype_scratch(const shape *s) { return of_all_threads(s) + omp_get_max_threads() * of_a_thread(s); }

int prototype_threads(void) { return omp_get_max_threads(); }

/* The losses of all images and prototypes, and if `to` is given the gradient of their mean. `all_losses` has room for
 * those of each thread; the sum is the first. Where a class is none of the classes, 1 and nothing is computed,
 * otherwise 0. */
int prototype_cross_entropy(const parts *from, const int64_t *classes, const shape *s, const parts *to,
                            losses *all_losses, float *scratch)
{
    const int B = s->images, P = s->prototypes, D = s->features, C = s->classes, width = logits_width(s);
    for (int p = 0; p < P; p++)
        if (classes[p] < 0 || classes[p] >= C)
            return 1;
    /* Classes that fill up the last vector have the logit -inf, so the probability 0. */
    float *const turned = scratch, *const bias = scratch + (ptrdiff_t)D * width; /* [feature][class] */
    for (int c = 0; c < width; c++) {
        for (int d = 0; d < D; d++)
            turned[(ptrdiff_t)d * width + c] = c < C ? from->weight[(ptrdiff_t)c * D + d] : 0;
        bias[c] = c < C ? from->bias[c] : -INFINITY;
    }
    const float scale = (float)(1 / ((double)B * P));
    int threads = 1;
#pragma omp parallel
    {
        const int thread = omp_get_thread_num(), all_threads = omp_get_num_threads();
        const space own = space_of(s, scratch, thread);
        const int first = (int)((ptrdiff_t)P * thread / all_threads);
        const int end = (int)((ptrdiff_t)P * (thread + 1) / all_threads);
        if (thread == 0)
            threads = all_threads;
        if (to) {
            memset(own.to_image, 0, sizeof(float) * B * D);
            memset(own.to_classifier, 0, sizeof(float) * 2 * of_classifier(s)); /* and of a few blocks, behind it */
            memset(to->without_image + (ptrdiff_t)first * D, 0, sizeof(float) * (end - first) * D);
            memset(to->of_prototypes + (ptrdiff_t)first * D, 0, sizeof(float) * (end - first) * D);
        }
        losses total = {0, 1, 0};
        int blocks = 0;
        for (int p = first; p < end; p += PROTOTYPES)
            for (int b = 0; b < B; b += IMAGES) {
                const block at = {p, smaller(PROTOTYPES, end - p), b, smaller(IMAGES, B - b)};
                const int rows = at.prototypes * at.images;
                refine(from, s, at, own.features);
                for (int r = 0; r < rows; r++)
                    memcpy(own.logits + (ptrdiff_t)r * width, bias, sizeof(float) * width);
                product(rows, width, D, own.features, D, 1, turned, width, own.logits, width, 1);
                classify(classes, s, at, own.logits, width, scale, &total);
                if (to) {
                    product(rows, D, C, own.logits, width, 1, from->weight, D, own.back, D, 0);
                    add_to_classifier(s, rows, &own);
                    send_back(from, to, s, at, &own);
                    if (++blocks % A_FEW == 0)
                        sum_up(s, &own);
                }
            }
        all_losses[thread] = total;
        if (to) {
            sum_up(s, &own);
#pragma omp barrier
            const space of_first = space_of(s, scratch, 0);
            const ptrdiff_t step = of_a_thread(s);
            sum_over_threads(of_first.to_image, step, all_threads, to->of_image, (ptrdiff_t)B * D);
            sum_over_threads(of_first.to_classifier, step, all_threads, to->weight, (ptrdiff_t)C * D);
            sum_over_threads(of_first.to_classifier + (ptrdiff_t)summed_classes(s) * D, step, all_threads, to->bias, C);
        }
    }
    for (int k = 1; k < threads; k++)
        add_losses(all_losses, all_losses[k]);
    return 0;
}
