/* What a local rule changes in a step of one device, in one pass over its weights. differences.py has the formulas and
 * does the same with torch, and both give the same bits: each operation rounds on its own, so that this file is built
 * without contraction of products and sums. */
#include <stddef.h>

#define LANES 16
#define PART 4096 /* numbers whose squares are summed in single precision */

typedef struct {
    long count;            /* numbers in the memory of a tensor */
    float *weights;        /* they hold w + d, and then the new weights */
    float *before;         /* w, and then the new weights too, for the next step */
    const float *correction; /* β·c(w), or null */
    float *velocity;       /* v, or null */
} Memory;

typedef struct {
    float fall;     /* what the learning rate has fallen to, as a part of β */
    float decay;    /* β·decay */
    float momentum; /* ρ */
    int decays;     /* whether there is decay */
} Step;

/* Return the sum of d², with a relative error below 1e-4. */
double differences_squares(const Memory *memory, int tensors) {
    double total = 0;
    for (const Memory *m = memory; m < memory + tensors; m++)
        for (long start = 0; start < m->count; start += PART) {
            const long end = start + PART < m->count ? start + PART : m->count, whole = end - (end - start) % LANES;
            float sum[LANES] = {0};
            for (long i = start; i < whole; i += LANES)
                for (int lane = 0; lane < LANES; lane++) {
                    const float d = m->weights[i + lane] - m->before[i + lane];
                    sum[lane] += d * d;
                }
            for (long i = whole; i < end; i++) {
                const float d = m->weights[i] - m->before[i];
                sum[0] += d * d;
            }
            for (int lane = 0; lane < LANES; lane++) total += sum[lane];
        }
    return total;
}

/* Let the weights make the step. Each case is a loop of its own, without branches inside. */
static inline __attribute__((always_inline)) void move(const Memory *m, const Step *s, const int falls, const int decays,
                                                       const int corrects, const int moves_on) {
    float *restrict weights = m->weights, *restrict before = m->before, *restrict velocity = m->velocity;
    const float *restrict correction = m->correction;
    for (long i = 0; i < m->count; i++) {
        float d = weights[i] - before[i];
        if (falls) d *= s->fall;
        if (decays) d -= s->decay * before[i];
        if (corrects) d -= correction[i];
        if (moves_on) {
            d += velocity[i] * s->momentum;
            velocity[i] = d;
        }
        weights[i] = before[i] = d + before[i];
    }
}

void differences_move(const Memory *memory, int tensors, const Step *s) {
    const int falls = s->fall != 1, decays = s->decays != 0;
    for (const Memory *m = memory; m < memory + tensors; m++) {
        const int corrects = m->correction != NULL, moves_on = m->velocity != NULL;
        switch (falls + 2 * decays + 4 * corrects + 8 * moves_on) {
#define CASE(n) case n: move(m, s, n & 1, n >> 1 & 1, n >> 2 & 1, n >> 3); break;
            CASE(0) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)
            CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14) CASE(15)
        }
    }
}
