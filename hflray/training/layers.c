/* Layers of a user's network that a general library computes slowly on one thread: GRUs and group normalisation, each
 * forward and backward. layers.py builds this with the machine's C compiler.
 *
 * A GRU of a library issues some twenty small operations for each token. Here a token's product and its gates are one
 * pass, whose sums never leave the registers, and the weights' gradient is added up while its factors are in the cache.
 *
 * All arrays are contiguous. Sequences are (time, batch, numbers), images are channels-last, (n, h·w, channels). */
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#ifdef __AVX512F__
#define W 16    /* floats in a vector */
#define HIGH 8  /* rows of a tile; a tile is three vectors wide */
#else
#define W 8
#define HIGH 4
#endif
#define MOST 2048 /* channels of a group normalisation */

typedef float vec __attribute__((vector_size(4 * W)));
typedef int32_t ivec __attribute__((vector_size(4 * W)));
typedef uint16_t uvec __attribute__((vector_size(2 * W)));
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

INLINE vec load(const float *p) { vec v; memcpy(&v, p, sizeof v); return v; }
INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }
INLINE vec least(vec a, vec b) { const ivec m = b < a; return (vec)((m & (ivec)b) | (~m & (ivec)a)); } /* NaN if a is */

/* 1 / (1 + e^−x), to about 1e-7. */
INLINE vec sigmoid(vec x) {
    const vec limit = (vec){0} + 87.0f, magic = (vec){0} + 12582912.0f; /* 1.5 · 2^23 rounds to an integer */
    vec y = least(-x, limit);
    y = -least(-y, limit);
    const vec n = y * 1.44269504f + magic;
    const vec r = y - (n - magic) * 0.693359375f + (n - magic) * 2.12194440e-4f;
    vec e = (vec){0} + 1.9875691500e-4f;
    e = e * r + 1.3981999507e-3f;
    e = e * r + 8.3334519073e-3f;
    e = e * r + 4.1665795894e-2f;
    e = e * r + 1.6666665459e-1f;
    e = e * r + 5.0000001201e-1f;
    e = e * r * r + r + 1.0f;
    const ivec power = ((ivec)n << 23) + (127 << 23); /* the low bits of n are the integer */
    return 1.0f / (1.0f + e * (vec)power);
}

long lanes(void) { return W; }
long has_bf16(void) {
#ifdef __AVX512BF16__
    return 1;
#else
    return 0;
#endif
}

/* A token of a GRU for `high` rows of the batch and W hidden numbers; `weight` is (hidden, 3, W). */
INLINE void gru_cell(const float *xi, const float *weight, const float *bias, const float *h, float *gates, long hidden,
                     const int high) {
    vec sum[HIGH][3];
    UNROLL for (int r = 0; r < high; r++) {
        sum[r][0] = load(xi + r * 3 * hidden) + load(bias);
        sum[r][1] = load(xi + r * 3 * hidden + hidden) + load(bias + hidden);
        sum[r][2] = load(bias + 2 * hidden);
    }
    for (long k = 0; k < hidden; k++, weight += 3 * W) {
        const vec a = load(weight), b = load(weight + W), c = load(weight + 2 * W);
        UNROLL for (int r = 0; r < high; r++) {
            const float q = h[r * hidden + k];
            sum[r][0] += a * q;
            sum[r][1] += b * q;
            sum[r][2] += c * q;
        }
    }
    UNROLL for (int r = 0; r < high; r++) {
        const vec reset = sigmoid(sum[r][0]), keep = sigmoid(sum[r][1]);
        const vec fresh = 2.0f * sigmoid(2.0f * (load(xi + r * 3 * hidden + 2 * hidden) + reset * sum[r][2])) - 1.0f;
        float *g = gates + r * 4 * hidden;
        store(g, reset);
        store(g + hidden, keep);
        store(g + 2 * hidden, fresh);
        store(g + 3 * hidden, sum[r][2]);
    }
}

/* c += Σ_k a[r·ar + k·ak] · b[k·br], for `high` rows and `wide` vectors. */
INLINE void tile(const float *a, long ar, long ak, const float *b, long br, long inner, float *c, long cr,
                 const int high, const int wide) {
    vec sum[HIGH][3];
    UNROLL for (int r = 0; r < high; r++)
        UNROLL for (int v = 0; v < wide; v++) sum[r][v] = load(c + r * cr + v * W);
    for (long k = 0; k < inner; k++, a += ak, b += br)
        UNROLL for (int r = 0; r < high; r++) {
            const float q = a[r * ar];
            UNROLL for (int v = 0; v < wide; v++) sum[r][v] += load(b + v * W) * q;
        }
    UNROLL for (int r = 0; r < high; r++)
        UNROLL for (int v = 0; v < wide; v++) store(c + r * cr + v * W, sum[r][v]);
}

/* Call `call`(first row, rows) for all rows, with a constant number of rows. */
#define EACH_ROWS(count, call)                                                                                         \
    for (long s = 0, left; (left = (count) - s) > 0;) {                                                                \
        if (left >= HIGH) { call(s, HIGH); s += HIGH; }                                                                \
        else if (left >= 4) { call(s, 4); s += 4; }                                                                    \
        else if (left >= 2) { call(s, 2); s += 2; }                                                                    \
        else { call(s, 1); s += 1; }                                                                                   \
    }

/* C (rows, columns) += A · B, as in `tile`. The columns are whole vectors. */
static void product(const float *a, long ar, long ak, const float *b, long br, long inner, float *c, long cr, long rows,
                    long columns) {
    for (long j = 0; j < columns;) {
        const long wide = (columns - j) / W;
#define TILE(r, high)                                                                                                  \
    if (wide >= 3) tile(a + (r) * ar, ar, ak, b + j, br, inner, c + (r) * cr + j, cr, high, 3);                        \
    else if (wide == 2) tile(a + (r) * ar, ar, ak, b + j, br, inner, c + (r) * cr + j, cr, high, 2);                   \
    else tile(a + (r) * ar, ar, ak, b + j, br, inner, c + (r) * cr + j, cr, high, 1)
        EACH_ROWS(rows, TILE)
#undef TILE
        j += (wide >= 3 ? 3 : wide) * W;
    }
}

/* The states hs (time + 1, batch, hidden), of which the first is given, and the gates (time, batch, 4, hidden): reset,
 * keep, fresh, and the fresh gate's product. `x` is (time, batch, inputs), `of_input` (inputs, 3, hidden), `of_state`
 * (hidden / W, hidden, 3, W), and `scratch` (batch, 3, hidden). */
void gru_forward(const float *x, const float *of_input, const float *of_state, const float *input_bias,
                 const float *state_bias, float *hs, float *gates, float *scratch, long time, long batch, long inputs,
                 long hidden) {
    for (long t = 0; t < time; t++, x += batch * inputs) {
        const float *h = hs + t * batch * hidden;
        float *g = gates + t * batch * 4 * hidden, *next = hs + (t + 1) * batch * hidden;
        for (long r = 0; r < batch; r++) memcpy(scratch + r * 3 * hidden, input_bias, 12 * hidden);
        product(x, inputs, 1, of_input, 3 * hidden, inputs, scratch, 3 * hidden, batch, 3 * hidden);
        for (long j = 0; j < hidden; j += W) {
#define CELL(r, high)                                                                                                  \
    gru_cell(scratch + (r) * 3 * hidden + j, of_state + j * 3 * hidden, state_bias + j, h + (r) * hidden,               \
             g + (r) * 4 * hidden + j, hidden, high)
            EACH_ROWS(batch, CELL)
#undef CELL
        }
        for (long r = 0; r < batch; r++)
            for (long j = 0; j < hidden; j += W) {
                const float *p = g + r * 4 * hidden + j;
                const vec fresh = load(p + 2 * hidden);
                store(next + r * hidden + j, (load(h + r * hidden + j) - fresh) * load(p + hidden) + fresh);
            }
    }
}

/* The gradients. `gates` become, for each token, those of fresh's input, of the reset and keep gates, and of fresh's
 * product. The others are zero before and are added to: `carry` (batch, hidden) becomes the first state's, `of_biases`
 * (4, hidden) and `of_input` (3, hidden, inputs) are in the order of the gates' gradients, `of_state` (3, hidden,
 * hidden) in the order of its weights, `state` (3, hidden, hidden). `of_x` may be null. The weights of the inputs,
 * `input` (3, hidden, inputs), are in the order of the gates' gradients too. `inputs` is a multiple of W. */
void gru_backward(const float *x, const float *input, const float *state, const float *hs, float *gates,
                  const float *of_states, float *carry, float *of_x, float *of_input, float *of_state, float *of_biases,
                  long time, long batch, long inputs, long hidden) {
    for (long t = time - 1; t >= 0; t--) {
        const float *h = hs + t * batch * hidden, *d = of_states + t * batch * hidden;
        float *g = gates + t * batch * 4 * hidden;
        for (long r = 0; r < batch; r++)
            for (long j = 0; j < hidden; j += W) {
                float *p = g + r * 4 * hidden + j, *c = carry + r * hidden + j, *b = of_biases + j;
                const vec reset = load(p), keep = load(p + hidden), fresh = load(p + 2 * hidden);
                const vec all = load(c) + load(d + r * hidden + j);
                const vec of_fresh = all * (1.0f - keep) * (1.0f - fresh * fresh);
                const vec of_reset = of_fresh * load(p + 3 * hidden) * reset * (1.0f - reset);
                const vec of_keep = all * (load(h + r * hidden + j) - fresh) * keep * (1.0f - keep);
                store(c, all * keep);
                store(p, of_fresh), store(b, load(b) + of_fresh);
                store(p + hidden, of_reset), store(b + hidden, load(b + hidden) + of_reset);
                store(p + 2 * hidden, of_keep), store(b + 2 * hidden, load(b + 2 * hidden) + of_keep);
                store(p + 3 * hidden, of_fresh * reset), store(b + 3 * hidden, load(b + 3 * hidden) + of_fresh * reset);
            }
        product(g + hidden, 4 * hidden, 1, state, hidden, 3 * hidden, carry, hidden, batch, hidden);
        product(g + hidden, 1, 4 * hidden, h, hidden, batch, of_state, hidden, 3 * hidden, hidden);
        product(g, 1, 4 * hidden, x + t * batch * inputs, inputs, batch, of_input, inputs, 3 * hidden, inputs);
        if (of_x) product(g, 4 * hidden, 1, input, inputs, 3 * hidden, of_x + t * batch * inputs, inputs, batch, inputs);
    }
}

/* Numbers are float32, or bfloat16 if `half` is set. */
INLINE vec get(const void *p, long i, const int half) {
    if (!half) return load((const float *)p + i);
    uvec v;
    memcpy(&v, (const uint16_t *)p + i, sizeof v);
    return (vec)(__builtin_convertvector(v, ivec) << 16);
}
INLINE void put(void *p, long i, vec v, const int half) {
    if (!half) store((float *)p + i, v);
#ifdef __AVX512BF16__
    else {
        const __m256bh narrow = _mm512_cvtneps_pbh((__m512)v);
        memcpy((uint16_t *)p + i, &narrow, sizeof narrow);
    }
#endif
}

/* Sums over an image's pixels, for `wide` vectors of channels that begin at number `at`: of x − pivot and its square, or
 * with d of d and d·(x − pivot). A pivot near the mean keeps the sums exact. */
INLINE void channel_sums(const void *d, const void *x, const float *pivot, long at, long pixels, long channels,
                         float *one, float *two, const int wide, const int half) {
    vec s[4] = {0}, q[4] = {0}, zero[4];
    UNROLL for (int v = 0; v < wide; v++) zero[v] = load(pivot + v * W);
    const int at_once = 4 / wide;
    for (long p = 0, count; p < pixels; p += count) {
        count = pixels - p >= at_once ? at_once : 1;
        UNROLL for (int u = 0; u < at_once; u++)
            if (u < count)
                UNROLL for (int v = 0; v < wide; v++) {
                    const long i = at + (p + u) * channels + v * W;
                    const vec shifted = get(x, i, half) - zero[v], factor = d ? get(d, i, half) : shifted;
                    s[u * wide + v] += factor;
                    q[u * wide + v] += factor * shifted;
                }
    }
    UNROLL for (int u = 1; u < at_once; u++)
        UNROLL for (int v = 0; v < wide; v++) { s[v] += s[u * wide + v]; q[v] += q[u * wide + v]; }
    UNROLL for (int v = 0; v < wide; v++) { store(one + v * W, s[v]); store(two + v * W, q[v]); }
}

INLINE void all_sums(const void *d, const void *x, const float *pivot, long at, long pixels, long channels, float *one,
                     float *two, const int half) {
    for (long c = 0; c < channels;) {
#define SUMS(wide) channel_sums(d, x, pivot + c, at + c, pixels, channels, one + c, two + c, wide, half), c += wide * W
        if (channels - c >= 4 * W) SUMS(4);
        else if (channels - c >= 2 * W) SUMS(2);
        else SUMS(1);
#undef SUMS
    }
}

/* y = (x − mean) / deviation · weight + bias; `stats` gets the mean and 1 / deviation of each group, (n, 2, groups). */
INLINE void norm_one_way(const void *x, const float *weight, const float *bias, void *y, float *stats, float epsilon,
                         long n, long pixels, long channels, long groups, const int half) {
    float one[MOST], two[MOST], first[MOST];
    const long each = channels / groups;
    for (long i = 0; i < n; i++, stats += 2 * groups) {
        const long at = i * pixels * channels;
        for (long c = 0; c < channels; c += W) store(first + c, get(x, at + c, half));
        all_sums(0, x, first, at, pixels, channels, one, two, half);
        for (long g = 0; g < groups; g++) {
            double mean = 0, spread = 0;
            for (long c = g * each; c < (g + 1) * each; c++) mean += (first[c] + (double)one[c] / pixels) / each;
            for (long c = g * each; c < (g + 1) * each; c++) {
                const double own = (double)one[c] / pixels, apart = first[c] + own - mean;
                spread += ((double)two[c] / pixels - own * own + apart * apart) / each;
            }
            stats[g] = mean;
            stats[groups + g] = 1.0 / sqrt((spread < 0 ? 0 : spread) + epsilon);
            for (long c = g * each; c < (g + 1) * each; c++) {
                one[c] = weight[c] * stats[groups + g];
                two[c] = stats[g];
            }
        }
        for (long c = 0; c < channels; c += W) {
            const vec scale = load(one + c), mean = load(two + c), shift = load(bias + c);
            for (long k = at + c; k < at + pixels * channels; k += channels)
                put(y, k, (get(x, k, half) - mean) * scale + shift, half);
        }
    }
}

/* The gradients of x, and of weight and bias, which are zero before. */
INLINE void norm_other_way(const void *x, const void *of_y, const float *weight, const float *stats, void *of_x,
                           float *of_weight, float *of_bias, long n, long pixels, long channels, long groups,
                           const int half) {
    float one[MOST], two[MOST], means[MOST], shifts[MOST];
    const long each = channels / groups;
    for (long i = 0; i < n; i++, stats += 2 * groups) {
        const long at = i * pixels * channels;
        for (long c = 0; c < channels; c++) means[c] = stats[c / each];
        all_sums(of_y, x, means, at, pixels, channels, one, two, half);
        for (long g = 0; g < groups; g++) {
            const double inverse = stats[groups + g];
            double sum = 0, product = 0;
            for (long c = g * each; c < (g + 1) * each; c++) {
                sum += weight[c] * one[c];
                product += weight[c] * two[c];
                of_weight[c] += two[c] * inverse;
                of_bias[c] += one[c];
            }
            for (long c = g * each; c < (g + 1) * each; c++) {
                one[c] = weight[c] * inverse;
                two[c] = -product * inverse * inverse * inverse / (each * pixels);
                shifts[c] = -sum * inverse / (each * pixels);
            }
        }
        for (long c = 0; c < channels; c += W) {
            const vec scale = load(one + c), slope = load(two + c), mean = load(means + c), shift = load(shifts + c);
            for (long k = at + c; k < at + pixels * channels; k += channels)
                put(of_x, k, get(of_y, k, half) * scale + (get(x, k, half) - mean) * slope + shift, half);
        }
    }
}

void norm_forward(const void *x, const float *weight, const float *bias, void *y, float *stats, float epsilon, long n,
                  long pixels, long channels, long groups, long half) {
    if (half) norm_one_way(x, weight, bias, y, stats, epsilon, n, pixels, channels, groups, 1);
    else norm_one_way(x, weight, bias, y, stats, epsilon, n, pixels, channels, groups, 0);
}

void norm_backward(const void *x, const void *of_y, const float *weight, const float *stats, void *of_x, float *of_weight,
                   float *of_bias, long n, long pixels, long channels, long groups, long half) {
    if (half) norm_other_way(x, of_y, weight, stats, of_x, of_weight, of_bias, n, pixels, channels, groups, 1);
    else norm_other_way(x, of_y, weight, stats, of_x, of_weight, of_bias, n, pixels, channels, groups, 0);
}
