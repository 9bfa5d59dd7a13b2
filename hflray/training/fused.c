/* One SGD step of a small network: no or two 5×5 convolutions, each with 2×2 max pooling and ReLU, then linear layers
 * with ReLU between them, and cross-entropy. Dropout may follow the convolutions and each ReLU of the linear layers. The
 * paper's network is one of them. fused.py builds it with the machine's C compiler. It uses vector extensions of GCC and
 * Clang; intrinsics only where the CPU has an instruction that no C expression yields.
 *
 * The gradient of a pooled convolution is not zero at one of the four positions of a window at most. A general library
 * multiplies the zeros too. Here a backward pass visits the live position of each window and channel only, which is a
 * quarter of the work, and keeps the 25 sums of a 5×5 patch in registers.
 *
 * Layout: images are (n, cin, h, w); features are channels-last, (h, w, c). The first layer's channels are padded by
 * zeros to blocks of 16, and its features are (blocks, h, w, 16), so that each loop reads one block. The second layer's
 * channels are computed in blocks of 32, and only its weights and positions are padded. `where` holds the position of
 * the largest value in a window, 0..3 row by row, or DEAD if no value is positive. Rows of the linear layers are padded
 * by zeros to whole vectors. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE__
#include <immintrin.h>
#endif

#define K 5              /* side of a kernel */
#define TAPS (K * K)
#define LANES 16         /* channels of a block of the first convolution */
#define PADDED 32        /* channels of a block of the second convolution */
#define LAYERS 8         /* linear layers at most */
#define DEAD 4
#define BLOCK 4          /* images whose features stay in the fastest cache */
#ifdef __AVX512F__
#define W 16             /* floats in a vector */
#define WIDE 3           /* windows of the first convolution that are computed at once */
#define SECOND_WIDE 3    /* and of the second one */
#define ROWS 5           /* rows of taps whose sums are in registers at once */
#define HIGH 8           /* rows of a tile of a matrix product */
#else
#define W 8
#define WIDE 2
#define SECOND_WIDE 1
#define ROWS 2
#define HIGH 4
#endif

typedef float vec __attribute__((vector_size(4 * W)));
typedef int32_t ivec __attribute__((vector_size(4 * W)));
typedef uint32_t uvec __attribute__((vector_size(4 * W)));
typedef int8_t bvec __attribute__((vector_size(W)));
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")
/* Hide how a pointer was computed. Otherwise the compiler keeps the offset of each of 25 taps in a register of its own,
 * instead of five row pointers. */
#define HIDE(pointer) __asm__("" : "+r"(pointer))

/* The sizes and the resident weights; fused.py has the same structure. */
typedef struct {
    int32_t cin, h, w;              /* of an image */
    int32_t first_channels;         /* 0: there are no convolutions */
    int32_t second_channels;
    int32_t bf16;                   /* 1: the convolutions' forward passes compute in bfloat16; 2: all products do. A
                                     * CPU without AVX512-BF16 has no 1. */
    int32_t layers;                 /* linear layers */
    int32_t widths[LAYERS + 1];     /* numbers that enter the first of them, and that leave each */
    float rate;
    float *first, *first_bias;      /* (cin, 5, 5, c), (c): the first channels, padded */
    float *second, *second_bias;    /* (second_channels, 5, 5, c), (second channels, padded) */
    float *weight[LAYERS], *bias[LAYERS]; /* (outputs, padded inputs), (padded outputs) */
    /* The factors of dropout in a step, or null: of the second convolution's channels, (n, second_channels), and of what
     * enters each later linear layer, (n, inputs). */
    float *mask[LAYERS];
} Network;

INLINE vec load(const float *p) { vec v; memcpy(&v, p, sizeof v); return v; }
INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }
INLINE ivec wide_load(const int8_t *p) { bvec v; memcpy(&v, p, sizeof v); return __builtin_convertvector(v, ivec); }
INLINE vec keep(ivec mask, vec v) { return (vec)(mask & (ivec)v); } /* v where the mask is set, else 0 */
/* In bfloat16 throughout, numbers have two bytes where the CPU multiplies such numbers. Elsewhere they are floats that
 * were rounded before a product, which is then exact in both, so that only the order of the sums differs. */
#ifdef __AVX512BF16__
#define HALVES(net) ((net)->bf16 == 2)
#define ROUNDS(net) 0
#else
#define HALVES(net) 0
#define ROUNDS(net) ((net)->bf16 == 2)
#endif
INLINE vec rounded(vec v) { /* to nearest even; what is not a number stays */
    const uvec u = (uvec)v, up = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u, odd = (uvec)(v != v);
    return (vec)((odd & u) | (~odd & up));
}
/* Round `count` numbers, and those behind them up to a whole vector. */
static void round_all(float *p, size_t count) {
    for (size_t i = 0; i < count; i += W) store(p + i, rounded(load(p + i)));
}
INLINE int padded(int n) { return (n + LANES - 1) / LANES * LANES; }

/* relu(max) of the four values of a pooling window, and the position of the largest. */
INLINE void pool(vec a, vec b, vec c, vec d, float *out, int8_t *where) {
    vec top = {0};
    ivec won = (ivec){0} + DEAD;
#ifdef __AVX512F__
#define BEATS(x, position)                                                                                             \
    won = (ivec)_mm512_mask_mov_epi32((__m512i)won, _mm512_cmp_ps_mask((__m512)x, (__m512)top, _CMP_GT_OQ),             \
                                      _mm512_set1_epi32(position));                                                    \
    top = (vec)_mm512_max_ps((__m512)x, (__m512)top); /* top if x is not a number */
#else
#define BEATS(x, position)                                                                                             \
    {                                                                                                                  \
        const ivec m = x > top;                                                                                        \
        top = keep(m, x) + keep(~m, top);                                                                              \
        won = (m & position) | (~m & won);                                                                             \
    }
#endif
    BEATS(a, 0)
    BEATS(b, 1)
    BEATS(c, 2)
    BEATS(d, 3)
    store(out, top);
    const bvec small = __builtin_convertvector(won, bvec);
    memcpy(where, &small, sizeof small);
}

/* The first layer: `wide` neighbouring windows of a row, for the W channels of `weight`. Each pixel is read once and
 * multiplied into all sums that it belongs to. */
INLINE void first_windows(const float *image, const float *weight, vec start, float *out, int8_t *where, int cin, long h,
                          long w, const int wide) {
    vec sum[2][2 * WIDE];
    UNROLL for (int o = 0; o < 2; o++)
        UNROLL for (int v = 0; v < 2 * wide; v++) sum[o][v] = start;
    for (int ci = 0; ci < cin; ci++) {
        const float *p = image + ci * h * w, *f = weight + ci * TAPS * LANES;
        UNROLL for (int y = 0; y < K + 1; y++, p += w) {
            HIDE(p);
            UNROLL for (int z = 0; z < K - 1 + 2 * wide; z++) {
                const float q = p[z];
                UNROLL for (int o = 0; o < 2; o++)
                    UNROLL for (int v = 0; v < 2 * wide; v++)
                        if (y >= o && y - o < K && z >= v && z - v < K)
                            sum[o][v] += load(f + ((y - o) * K + z - v) * LANES) * q;
            }
        }
    }
    UNROLL for (int v = 0; v < wide; v++)
        pool(sum[0][2 * v], sum[0][2 * v + 1], sum[1][2 * v], sum[1][2 * v + 1], out + v * LANES, where + v * LANES);
}

/* The second layer: `wide` neighbouring windows of a row, for the 2·W channels of `weight`, (blocks, 25, 16, 32). The
 * blocks of features are `block` numbers apart, and the positions of windows `outs`. */
INLINE void second_windows(const float *x, long block, long pw, const float *weight, const float *bias, float *out,
                           int8_t *where, int c1, int c2, int outs, const int wide) {
    vec sum[8 * SECOND_WIDE];
    UNROLL for (int v = 0; v < 4 * wide; v++) { sum[2 * v] = load(bias); sum[2 * v + 1] = load(bias + W); }
    for (; c1 > 0; c1 -= LANES, x += block, weight += TAPS * LANES * PADDED)
        for (int tap = 0; tap < TAPS; tap++) {
            const float *p = x + (tap / K * pw + tap % K) * LANES, *f = weight + tap * LANES * PADDED;
            for (int ci = 0; ci < c1 && ci < LANES; ci++) {
                const vec s = load(f + ci * PADDED), t = load(f + ci * PADDED + W);
                UNROLL for (int v = 0; v < 4 * wide; v++) {
                    const float q = p[((v / 2 % 2) * pw + v / 4 * 2 + v % 2) * LANES + ci];
                    sum[2 * v] += s * q;
                    sum[2 * v + 1] += t * q;
                }
            }
        }
    UNROLL for (int v = 0; v < wide; v++)
        UNROLL for (int j = 0; j < 2; j++)
            pool(sum[8 * v + j], sum[8 * v + 2 + j], sum[8 * v + 4 + j], sum[8 * v + 6 + j], out + v * c2 + j * W,
                 where + v * outs + j * W);
}

#ifdef __AVX512BF16__
typedef uint16_t half;
INLINE void narrow(half *out, const float *p) { /* 16 floats, rounded to nearest even */
    const __m256bh v = _mm512_cvtneps_pbh(_mm512_loadu_ps(p));
    memcpy(out, &v, sizeof v);
}
INLINE vec dot(vec sum, const half *pair, __m512bh weight) {
    int32_t both;
    memcpy(&both, pair, sizeof both);
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(both), weight);
}
INLINE __m512bh load_pairs(const half *p) { __m512bh v; memcpy(&v, p, sizeof v); return v; }
/* The numbers of two vectors in turn: 0 of the first, 0 of the second, 1 of the first, … */
INLINE __m512i in_turn(void) {
    return _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19,
                            3, 18, 2, 17, 1, 16, 0);
}
INLINE __m512i in_turn_of_two(void) { /* of the lower halves of two registers */
    return _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35,
                            3, 34, 2, 33, 1, 32, 0);
}
INLINE __m512i pairs_of(vec first, vec second) { /* rounded to nearest even */
    const __m512bh both = _mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    __m512i v;
    memcpy(&v, &both, sizeof v);
    return _mm512_permutexvar_epi16(in_turn(), v);
}
/* A product of pairs: those of 16 halves at each of two addresses, and the same pair of numbers for all. */
INLINE vec dot_pairs(vec sum, const half *first, const half *second, __m512i numbers) {
    __m256i a, b;
    memcpy(&a, first, sizeof a);
    memcpy(&b, second, sizeof b);
    const __m512i pairs = _mm512_permutex2var_epi16(_mm512_castsi256_si512(a), in_turn_of_two(), _mm512_castsi256_si512(b));
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)pairs, (__m512bh)numbers);
}

/* The same two functions in bfloat16. A weight is a pair of neighbouring taps (first layer, 3 pairs a row) or channels
 * (second layer, 8 pairs a tap) for each of 16 output channels. */
INLINE void first_windows_bf16(const half *image, const half *weight, vec start, float *out, int8_t *where, int cin,
                               long h, long w, const int wide) {
    vec sum[2][2 * WIDE];
    UNROLL for (int o = 0; o < 2; o++)
        UNROLL for (int v = 0; v < 2 * wide; v++) sum[o][v] = start;
    for (int ci = 0; ci < cin; ci++) {
        const half *p = image + ci * h * w, *f = weight + ci * K * 3 * 2 * LANES;
        UNROLL for (int y = 0; y < K + 1; y++, p += w) {
            HIDE(p);
            UNROLL for (int z = 0; z < K - 1 + 2 * wide; z++)
                UNROLL for (int o = 0; o < 2; o++)
                    UNROLL for (int v = 0; v < 2 * wide; v++)
                        if (y >= o && y - o < K && z >= v && z - v < K && (z - v) % 2 == 0)
                            sum[o][v] = dot(sum[o][v], p + z, load_pairs(f + ((y - o) * 3 + (z - v) / 2) * 2 * LANES));
        }
    }
    UNROLL for (int v = 0; v < wide; v++)
        pool(sum[0][2 * v], sum[0][2 * v + 1], sum[1][2 * v], sum[1][2 * v + 1], out + v * LANES, where + v * LANES);
}

INLINE void second_windows_bf16(const half *x, long block, long pw, const half *weight, const float *bias, float *out,
                                int8_t *where, int c1, int c2, int outs, const int wide) {
    vec sum[8 * SECOND_WIDE];
    UNROLL for (int v = 0; v < 4 * wide; v++) { sum[2 * v] = load(bias); sum[2 * v + 1] = load(bias + W); }
    for (; c1 > 0; c1 -= LANES, x += block, weight += TAPS * LANES * PADDED)
        for (int tap = 0; tap < TAPS; tap++) {
            const half *p = x + (tap / K * pw + tap % K) * LANES, *f = weight + tap * LANES * PADDED;
            for (int ci = 0; ci < c1 && ci < LANES; ci += 2) {
                const __m512bh s = load_pairs(f + ci * PADDED), t = load_pairs(f + ci * PADDED + 2 * W);
                UNROLL for (int v = 0; v < 4 * wide; v++) {
                    const half *q = p + ((v / 2 % 2) * pw + v / 4 * 2 + v % 2) * LANES + ci;
                    sum[2 * v] = dot(sum[2 * v], q, s);
                    sum[2 * v + 1] = dot(sum[2 * v + 1], q, t);
                }
            }
        }
    UNROLL for (int v = 0; v < wide; v++)
        UNROLL for (int j = 0; j < 2; j++)
            pool(sum[8 * v + j], sum[8 * v + 2 + j], sum[8 * v + 4 + j], sum[8 * v + 6 + j], out + v * c2 + j * W,
                 where + v * outs + j * W);
}
#endif

/* Call `call`(first window, windows) for all windows of a row, at most `most` (1 to 3) at once. */
#define EACH_WINDOW(count, most, call)                                                                                 \
    for (int s = 0, next; s < count; s += next) {                                                                      \
        next = most == 3 && count - s >= 3 && count - s != 4 ? 3 : most >= 2 && count - s >= 2 ? 2 : 1;                \
        if (most == 3 && next == 3) call(s, (most == 3 ? 3 : 1));                                                      \
        else if (most >= 2 && next == 2) call(s, (most >= 2 ? 2 : 1));                                                 \
        else call(s, 1);                                                                                               \
    }

/* A product's tile: c (+)= scale · Σ_i a[r·ar + i·ak] · b[i], for `high` rows of a and `wide` vectors of b. */
INLINE void tile(const float *a, long ar, long ak, const float *b, long br, int inner, float *c, long cr,
                 const float *bias, float scale, int add, const int high, const int wide) {
    vec sum[HIGH * 3];
    UNROLL for (int r = 0; r < high; r++)
        UNROLL for (int v = 0; v < wide; v++) sum[r * wide + v] = bias ? load(bias + v * W) : (vec){0};
    const float *a0 = a, *a3 = a + 3 * ar, *a6 = a + 6 * ar; /* few registers hold the addresses of all rows */
    for (int i = 0; i < inner; i++, a0 += ak, a3 += ak, a6 += ak, b += br) {
        vec right[3];
        UNROLL for (int v = 0; v < wide; v++) right[v] = load(b + v * W);
        UNROLL for (int r = 0; r < high; r++) {
            const float left = (r < 3 ? a0 : r < 6 ? a3 : a6)[r % 3 * ar];
            UNROLL for (int v = 0; v < wide; v++) sum[r * wide + v] += right[v] * left;
        }
    }
    UNROLL for (int r = 0; r < high; r++)
        UNROLL for (int v = 0; v < wide; v++) {
            float *p = c + r * cr + v * W;
            store(p, add ? load(p) + scale * sum[r * wide + v] : sum[r * wide + v]);
        }
}

/* Call `call`(row, column, high, wide) for the tiles of a matrix: rows by HIGH and their rest by 4, 2 and 1; vectors of the
 * columns by 3 and 1. */
#define EACH_TILE(rows, columns, call)                                                                                 \
    for (int v = 0, left; (left = ((columns) - v) / W) > 0;) {                                                         \
        if (left >= 3) { EACH_HIGH(rows, call, 3) v += 3 * W; }                                                   \
        else { EACH_HIGH(rows, call, 1) v += W; }                                                                      \
    }
#define EACH_HIGH(rows, call, wide)                                                                                    \
    {                                                                                                                  \
        int r = 0;                                                                                                     \
        for (; r + HIGH <= rows; r += HIGH) call(r, v, HIGH, wide);                                                    \
        if (HIGH > 4 && rows - r >= 4) { call(r, v, 4, wide); r += 4; }                                                \
        if (rows - r >= 2) { call(r, v, 2, wide); r += 2; }                                                            \
        if (rows - r >= 1) call(r, v, 1, wide);                                                                        \
    }

/* c (rows, columns) = a · b + bias, or c += scale · a · b. The number of columns is a multiple of W. */
static void product(const float *a, long ar, long ak, const float *b, long br, int rows, int columns, int inner,
                    float *c, long cr, const float *bias, float scale, int add) {
#define TILE(r, v, high, wide)                                                                                         \
    tile(a + (r) * ar, ar, ak, b + (v), br, inner, c + (r) * cr + (v), cr, bias ? bias + (v) : bias, scale, add, high, wide)
    EACH_TILE(rows, columns, TILE)
}

#ifdef __AVX512BF16__
/* The same in bfloat16. What is summed over comes in pairs: (rows, inner, 2) · (inner, columns, 2); strides count pairs. */
INLINE void half_tile(const half *a, long ar, long ak, const half *b, long br, int inner, float *c, long cr,
                      const float *bias, float scale, int add, const int high, const int wide) {
    vec sum[HIGH * 3];
    UNROLL for (int r = 0; r < high; r++)
        UNROLL for (int v = 0; v < wide; v++) sum[r * wide + v] = bias ? load(bias + v * W) : (vec){0};
    const half *a0 = a, *a3 = a + 6 * ar, *a6 = a + 12 * ar;
    for (int i = 0; i < inner; i++, a0 += 2 * ak, a3 += 2 * ak, a6 += 2 * ak, b += 2 * br) {
        __m512bh right[3];
        UNROLL for (int v = 0; v < wide; v++) right[v] = load_pairs(b + 2 * v * W);
        UNROLL for (int r = 0; r < high; r++)
            UNROLL for (int v = 0; v < wide; v++)
                sum[r * wide + v] = dot(sum[r * wide + v], (r < 3 ? a0 : r < 6 ? a3 : a6) + 2 * (r % 3 * ar), right[v]);
    }
    UNROLL for (int r = 0; r < high; r++)
        UNROLL for (int v = 0; v < wide; v++) {
            float *p = c + r * cr + v * W;
            store(p, add ? load(p) + scale * sum[r * wide + v] : sum[r * wide + v]);
        }
}

static void half_product(const half *a, long ar, long ak, const half *b, long br, int rows, int columns, int inner,
                         float *c, long cr, const float *bias, float scale, int add) {
#define HALF_TILE(r, v, high, wide)                                                                                    \
    half_tile(a + 2 * (r) * ar, ar, ak, b + 2 * (v), br, inner, c + (r) * cr + (v), cr, bias ? bias + (v) : bias, scale, \
              add, high, wide)
    EACH_TILE(rows, columns, HALF_TILE)
}

/* Round `count` numbers, a multiple of 16. */
INLINE void narrow_all(half *out, const float *in, size_t count) {
    for (size_t i = 0; i < count; i += W) narrow(out + i, in + i);
}

/* Pair the numbers of neighbouring rows: (rows, columns) into (rows / 2, columns, 2). Behind an odd last row come zeros. */
static void pair(half *out, const float *in, int rows, int columns) {
    for (int r = 0; r < rows; r += 2)
        for (int c = 0; c < columns; c += W) {
            const float *p = in + (size_t)r * columns + c;
            const __m512i v = pairs_of(load(p), r + 1 < rows ? load(p + columns) : (vec){0});
            memcpy(out + (size_t)r * columns + 2 * c, &v, sizeof v);
        }
}
#endif

/* Transpose (rows, columns) floats into (columns, out_stride). The loops write whole lines of the caches. */
static void transpose(const float *in, long stride, int rows, int columns, float *out, long out_stride) {
    int whole = 0;
#ifdef __SSE__
    whole = rows / 4 * 4;
    for (int top = 0; top < whole; top += 16)
        for (int c = 0; c < columns; c += 4) /* the number of columns is a multiple of W */
            for (int r = top; r < whole && r < top + 16; r += 4) {
                const float *p = in + r * stride + c;
                float *q = out + c * out_stride + r;
                __m128 a = _mm_loadu_ps(p), b = _mm_loadu_ps(p + stride);
                __m128 d = _mm_loadu_ps(p + 2 * stride), e = _mm_loadu_ps(p + 3 * stride);
                _MM_TRANSPOSE4_PS(a, b, d, e);
                _mm_storeu_ps(q, a);
                _mm_storeu_ps(q + out_stride, b);
                _mm_storeu_ps(q + 2 * out_stride, d);
                _mm_storeu_ps(q + 3 * out_stride, e);
            }
#endif
    for (int r = whole; r < rows; r++)
        for (int c = 0; c < columns; c++) out[c * out_stride + r] = in[r * stride + c];
}

/* The buffers of a step of n images, in a workspace that fused.py allocates. */
typedef struct {
    int ph, pw, qh, qw;               /* pooled sizes */
    int stride[LAYERS + 1];           /* widths, padded */
    int blocks, outs;                 /* blocks of the first convolution's channels; the second's channels, padded */
    float *first, *second;            /* weights in blocks: (blocks, cin, 25, 16), (blocks, second_channels, 25, 16) */
    float *turned, *weight[LAYERS];   /* weights as the forward passes read them */
    float *one, *active[LAYERS + 1];  /* the first convolution's features; what enters and leaves each linear layer */
    float *below, *gradient;
    float *rounded[LAYERS], *image;   /* the linear layers' weights and an image, if products take rounded numbers */
    int8_t *one_where, *two_where;
    void *half_first, *half_second, *half_image, *half_one;
    /* In bfloat16 throughout: the weights and values of the linear layers; the second convolution's weights and the
     * gradients, as the backward pass reads them. */
    void *half_weight[LAYERS], *weight_pairs[LAYERS], *half_values, *value_pairs, *gradient_pairs;
    void *half_back, *half_below, *half_live;
    int32_t *offset, *corner;
    float *live, *pairs;
    size_t bytes;
} Buffers;

static Buffers buffers(const Network *net, size_t n, char *base) {
    Buffers b = {0};
    size_t at = 0, widest = 0;
#define TAKE(pointer, size) { b.pointer = (void *)(base + at); at += ((size_t)(size) + 127) / 64 * 64; }
    for (int l = 0; l <= net->layers; l++) {
        b.stride[l] = padded(net->widths[l]);
        if ((size_t)b.stride[l] > widest) widest = b.stride[l];
        TAKE(active[l], 4 * (n * b.stride[l] + PADDED))
        if (l) TAKE(weight[l - 1], 4 * (size_t)b.stride[l - 1] * b.stride[l])
        if (l && ROUNDS(net)) TAKE(rounded[l - 1], 4 * (size_t)b.stride[l - 1] * net->widths[l])
        if (l && HALVES(net)) {
            TAKE(half_weight[l - 1], 2 * (size_t)b.stride[l - 1] * b.stride[l])
            TAKE(weight_pairs[l - 1], 2 * (size_t)b.stride[l - 1] * b.stride[l])
        }
    }
    TAKE(below, 4 * (n * widest + PADDED))
    if (HALVES(net)) {
        TAKE(half_values, 2 * n * widest)
        TAKE(value_pairs, 2 * (n + 1) * widest)
        TAKE(gradient_pairs, 2 * (n + 1) * widest)
    }
    if (net->first_channels) {
        b.ph = (net->h - K + 1) / 2; b.pw = (net->w - K + 1) / 2;
        b.qh = (b.ph - K + 1) / 2; b.qw = (b.pw - K + 1) / 2;
        b.blocks = padded(net->first_channels) / LANES;
        b.outs = (net->second_channels + PADDED - 1) / PADDED * PADDED;
        const size_t lanes = b.blocks * LANES, pixels = b.ph * b.pw * lanes, taps = TAPS * lanes, windows = b.qh * b.qw;
        TAKE(first, 4 * net->cin * taps)
        TAKE(second, 4 * net->second_channels * taps)
        TAKE(turned, 4 * taps * b.outs)
        TAKE(one, 4 * (HALVES(net) ? 1 : n) * pixels)
        TAKE(gradient, 4 * (pixels + net->second_channels * taps + b.outs + net->cin * taps + lanes))
        TAKE(one_where, n * pixels)
        TAKE(two_where, n * windows * b.outs)
        TAKE(half_first, 2 * net->cin * K * 3 * 2 * lanes)
        TAKE(half_second, 2 * taps * b.outs)
        TAKE(half_image, 2 * (net->cin * net->h * net->w + 3 * W))
        TAKE(half_one, 2 * (HALVES(net) ? n : 1) * pixels)
        if (HALVES(net)) {
            TAKE(half_back, 2 * net->second_channels * taps)
            TAKE(half_below, 2 * padded(windows * net->second_channels))
            TAKE(half_live, 2 * BLOCK * padded(windows + 1))
        }
        if (ROUNDS(net)) TAKE(image, 4 * (net->cin * net->h * net->w + W))
        TAKE(pairs, 4 * (size_t)net->h * b.pw * W)
        TAKE(offset, 4 * BLOCK * (windows + 1))
        TAKE(corner, 4 * windows)
        TAKE(live, 4 * BLOCK * padded(windows + 1))
    }
    b.bytes = at;
    return b;
}

size_t fused_bytes(const Network *net, int n) { return buffers(net, n, 0).bytes; }

int fused_has_bf16(void) {
#ifdef __AVX512BF16__
    return 1;
#else
    return 0;
#endif
}

/* Copy (rows, blocks, 16) numbers into (blocks, rows, 16). */
static void divide(const float *in, int rows, int blocks, float *out) {
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < blocks; k++) memcpy(out + (k * rows + r) * LANES, in + (r * blocks + k) * LANES, 4 * LANES);
}

#ifdef __AVX512BF16__
/* Arrange the weights of a linear layer in pairs: of inputs, and of outputs as a backward pass reads them. */
static void arrange_halves(const Network *net, Buffers b, int l, int training) {
    const int outputs = net->widths[l + 1], in = b.stride[l], out = b.stride[l + 1];
    half *rows = (half *)b.weight[l]; /* free in this precision */
    uint32_t *pairs = b.half_weight[l];
    narrow_all(rows, net->weight[l], (size_t)outputs * in);
    transpose((float *)rows, in / 2, outputs, in / 2, (float *)pairs, out); /* only moves bits */
    for (int r = 0; r < in / 2; r++)
        for (int c = outputs; c < out; c++) pairs[r * out + c] = 0;
    if (training && (l || net->first_channels)) pair(b.weight_pairs[l], net->weight[l], outputs, in);
}

/* Copy an image in bfloat16, with zeros behind it. */
static void narrow_image(const Network *net, Buffers b, const float *image) {
    half *copy = b.half_image;
    const int pixels = net->cin * net->h * net->w;
    for (int p = 0; p + W <= pixels; p += W) narrow(copy + p, image + p);
    float rest[W] = {0};
    memcpy(rest, image + pixels / W * W, 4 * (pixels % W));
    narrow(copy + pixels / W * W, rest);
    memset(copy + (pixels / W + 1) * W, 0, 2 * W);
}
#endif

/* Arrange the weights as the passes read them. */
static void arrange(const Network *net, Buffers b, int training) {
    for (int l = 0; l < net->layers; l++) {
        const int outputs = net->widths[l + 1], stride = b.stride[l + 1];
#ifdef __AVX512BF16__
        if (net->bf16 == 2) {
            arrange_halves(net, b, l, training);
            continue;
        }
#endif
        const float *weight = net->weight[l];
        if (ROUNDS(net)) {
            const size_t count = (size_t)outputs * b.stride[l];
            memcpy(b.rounded[l], weight, 4 * count);
            round_all(b.rounded[l], count);
            weight = b.rounded[l];
        }
        transpose(weight, b.stride[l], outputs, b.stride[l], b.weight[l], stride);
        for (int r = 0; r < b.stride[l]; r++)
            for (int c = outputs; c < stride; c++) b.weight[l][r * stride + c] = 0;
    }
    if (!net->first_channels) return;
    const int c2 = net->second_channels, rows = b.blocks * TAPS * LANES;
    divide(net->first, net->cin * TAPS, b.blocks, b.first);
    divide(net->second, c2 * TAPS, b.blocks, b.second);
    if (ROUNDS(net)) {
        round_all(b.first, (size_t)net->cin * TAPS * b.blocks * LANES);
        round_all(b.second, (size_t)c2 * TAPS * b.blocks * LANES);
    }
    for (int o = 0; o < b.outs; o += PADDED)
        for (int r = 0; r < rows; r++) {
            const float *from = b.second + (r / LANES / TAPS * c2 * TAPS + r / LANES % TAPS) * LANES + r % LANES;
            float *to = b.turned + (o / PADDED * rows + r) * PADDED;
            for (int c = 0; c < PADDED; c++) to[c] = o + c < c2 ? from[(o + c) * TAPS * LANES] : 0;
        }
#ifdef __AVX512BF16__
    if (!net->bf16) return;
    half line[PADDED], *first = b.half_first, *second = b.half_second;
    for (int row = 0; row < b.blocks * net->cin * K; row++)
        for (int z = 0; z < K + 1; z++) {
            const float zero[LANES] = {0};
            narrow(line, z < K ? b.first + (row * K + z) * LANES : zero);
            for (int c = 0; c < LANES; c++) first[(row * 3 + z / 2) * 2 * LANES + 2 * c + z % 2] = line[c];
        }
    for (int r = 0; r < b.outs / PADDED * rows; r++) {
        narrow(line, b.turned + r * PADDED);
        narrow(line + W, b.turned + r * PADDED + W);
        for (int c = 0; c < PADDED; c++) second[r / 2 * 2 * PADDED + 2 * c + r % 2] = line[c];
    }
    if (net->bf16 == 2 && training) narrow_all(b.half_back, b.second, (size_t)rows * c2);
#endif
}

/* Return an image whose numbers may enter a product. */
static const float *for_products(const Network *net, Buffers b, const float *image) {
    if (!ROUNDS(net)) return image;
    const size_t pixels = (size_t)net->cin * net->h * net->w;
    memcpy(b.image, image, 4 * pixels);
    round_all(b.image, pixels);
    return b.image;
}

/* Compute the features of image i of the batch, and where each comes from. */
static void convolve(const Network *net, Buffers b, const float *image, int i) {
    const int h = net->h, w = net->w, cin = net->cin, ph = b.ph, pw = b.pw;
    const int c1 = net->first_channels, c2 = net->second_channels;
    const size_t block = (size_t)ph * pw * LANES; /* numbers */
    /* In bfloat16 throughout, the backward pass reads these features in bfloat16 only. */
    float *one = b.one + (HALVES(net) ? 0 : i * b.blocks * block), *two = b.active[0] + (size_t)i * b.stride[0];
    int8_t *where = b.one_where + i * b.blocks * block, *there = b.two_where + (size_t)i * b.qh * b.qw * b.outs;
    /* A window's last channels are followed by zeros, which the next window overwrites: the last block comes first. */
#define EACH_BLOCK for (int o = b.outs - PADDED; o >= 0; o -= PADDED)
#ifdef __AVX512BF16__
    if (net->bf16) {
        half *copy = b.half_image, *small = (half *)b.half_one + (net->bf16 == 2 ? i * b.blocks * block : 0);
        narrow_image(net, b, image);
        for (int k = 0; k < b.blocks; k++)
            for (int r = 0; r < ph; r++) {
#define FIRST_BF16(s, wide)                                                                                            \
    first_windows_bf16(copy + 2 * r * w + 2 * (s), (half *)b.half_first + k * cin * K * 3 * 2 * LANES,                 \
                       load(net->first_bias + k * LANES), one + k * block + (r * pw + (s)) * LANES,                    \
                       where + k * block + (r * pw + (s)) * LANES, cin, h, w, wide)
                EACH_WINDOW(pw, WIDE, FIRST_BF16)
            }
        for (size_t p = 0; p < b.blocks * block; p += W) narrow(small + p, one + p);
        for (int r = 0; r < b.qh; r++) {
#define SECOND_BF16(s, wide)                                                                                           \
    EACH_BLOCK                                                                                                         \
        second_windows_bf16(small + (2 * r * pw + 2 * (s)) * LANES, block, pw,                                         \
                            (half *)b.half_second + o * b.blocks * TAPS * LANES, net->second_bias + o,                 \
                            two + (r * b.qw + (s)) * c2 + o, there + (r * b.qw + (s)) * b.outs + o, c1, c2, b.outs, wide)
            EACH_WINDOW(b.qw, SECOND_WIDE, SECOND_BF16)
        }
    } else
#endif
    {
        image = for_products(net, b, image);
        for (int k = 0; k < b.blocks; k++)
            for (int r = 0; r < ph; r++) {
#define FIRST_FLOAT(s, wide)                                                                                           \
    for (int v = 0; v < LANES; v += W)                                                                                 \
        first_windows(image + 2 * r * w + 2 * (s), b.first + k * cin * TAPS * LANES + v,                               \
                      load(net->first_bias + k * LANES + v), one + k * block + (r * pw + (s)) * LANES + v,             \
                      where + k * block + (r * pw + (s)) * LANES + v, cin, h, w, wide)
                EACH_WINDOW(pw, WIDE, FIRST_FLOAT)
            }
        if (ROUNDS(net)) round_all(one, b.blocks * block);
        for (int r = 0; r < b.qh; r++) {
#define SECOND_FLOAT(s, wide)                                                                                          \
    EACH_BLOCK                                                                                                         \
        for (int v = 0; v < PADDED; v += 2 * W)                                                                        \
            second_windows(one + (2 * r * pw + 2 * (s)) * LANES, block, pw, b.turned + o * b.blocks * TAPS * LANES + v, \
                           net->second_bias + o + v, two + (r * b.qw + (s)) * c2 + o + v,                              \
                           there + (r * b.qw + (s)) * b.outs + o + v, c1, c2, b.outs, wide)
            EACH_WINDOW(b.qw, SECOND_WIDE, SECOND_FLOAT)
        }
    }
    for (int f = net->widths[0]; f < b.stride[0]; f++) two[f] = 0;
}

/* Multiply what enters linear layer l, or its gradient, by the factors of dropout. */
static void drop(const Network *net, Buffers b, float *values, int l, int n) {
    if (!net->mask[l]) return;
    const int width = l ? net->widths[l] : net->second_channels;
    for (int i = 0; i < n; i++) {
        const float *mask = net->mask[l] + (size_t)i * width;
        for (int r = 0; r < net->widths[l]; r += width)
            for (int c = 0; c < width; c++) values[(size_t)i * b.stride[l] + r + c] *= mask[c];
    }
}

/* Compute the logits of n images into the workspace. */
static void forward(const Network *net, Buffers b, const float *images, const int64_t *batch, int n, int training) {
    const size_t size = (size_t)net->cin * net->h * net->w;
    arrange(net, b, training);
    for (int i = 0; i < n; i++) {
        if (net->first_channels) {
            convolve(net, b, images + size * batch[i], i);
            continue;
        }
        float *row = b.active[0] + (size_t)i * b.stride[0];
        memcpy(row, images + size * batch[i], 4 * size);
        for (int f = net->widths[0]; f < b.stride[0]; f++) row[f] = 0;
    }
    for (int l = 0; l < net->layers; l++) {
        const int in = b.stride[l], out = b.stride[l + 1];
        float *next = b.active[l + 1];
        if (training) drop(net, b, b.active[l], l, n); /* dropping whole channels before or after pooling is the same */
#ifdef __AVX512BF16__
        if (net->bf16 == 2) {
            narrow_all(b.half_values, b.active[l], (size_t)n * in);
            half_product(b.half_values, in / 2, 1, b.half_weight[l], out, n, out, in / 2, next, out, net->bias[l], 1, 0);
        } else
#endif
        {
            if (ROUNDS(net)) round_all(b.active[l], (size_t)n * in);
            product(b.active[l], in, 1, b.weight[l], out, n, out, in, next, out, net->bias[l], 1, 0);
        }
        if (l < net->layers - 1)
            for (size_t i = 0; i < (size_t)n * out; i++) next[i] = next[i] > 0 ? next[i] : 0;
    }
}

/* Replace the logits by the gradient of the mean cross-entropy. */
static void cross_entropy(float *logits, long stride, const int64_t *labels, const int64_t *batch, int n, int classes) {
    const float scale = 1.0f / n;
    for (int i = 0; i < n; i++) {
        float *row = logits + i * stride, top = row[0], total = 0;
        for (int j = 1; j < classes; j++) top = row[j] > top ? row[j] : top;
        for (int j = 0; j < classes; j++) total += row[j] = expf(row[j] - top);
        for (int j = 0; j < classes; j++) row[j] *= scale / total;
        for (int j = classes; j < stride; j++) row[j] = 0;
        row[labels[batch[i]]] -= scale;
    }
}

/* The channels of a block, as bits, whose largest value of a window is at `position`. */
INLINE uint32_t channels_at(const int8_t *where, int position) {
#ifdef __AVX2__
    const __m256i v = _mm256_loadu_si256((const __m256i *)where);
    return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, _mm256_set1_epi8((char)position)));
#else
    uint32_t bits = 0;
    for (int c = 0; c < PADDED; c++) bits |= (uint32_t)(where[c] == position) << c;
    return bits;
#endif
}

/* Add to dx, (ph, pw, 16), the gradient that the channels in `bits` send to the patch at dx. */
INLINE void send_back(uint64_t bits, const float *gradient, const float *weight, float *dx, long pw, const int rows) {
    vec sum[ROWS * K];
    UNROLL for (int t = 0; t < rows * K; t++) sum[t] = (vec){0};
    for (; bits; bits &= bits - 1) {
        const int c = __builtin_ctzll(bits);
        const float g = gradient[c], *f = weight + c * TAPS * LANES;
        HIDE(f);
        UNROLL for (int t = 0; t < rows * K; t++) sum[t] += load(f + t * LANES) * g;
    }
    UNROLL for (int y = 0; y < rows; y++, dx += pw * LANES) {
        HIDE(dx);
        UNROLL for (int z = 0; z < K; z++) store(dx + z * LANES, load(dx + z * LANES) + sum[y * K + z]);
    }
}

/* List one channel's live windows in an image: where the patch starts in the features below, and the gradient. */
INLINE int live_windows(const int8_t *restrict where, const float *restrict gradient, const int32_t *restrict corner,
                        int windows, int c2, int outs, const int32_t *restrict shift, int32_t base,
                        int32_t *restrict offset, float *restrict live) {
    int count = 0;
    for (int k = 0; k < windows; k++) {
        const int position = where[k * outs];
        live[count] = gradient[k * c2];
        offset[count] = base + corner[k] + shift[position];
        count += position < DEAD;
    }
    return count;
}

/* Add to dw, (25, 16), the gradient of one channel's weights from its `count` live windows. */
INLINE void weigh(const float *x, const int32_t *offset, const float *live, int count, float *dw, long pw,
                  const int rows) {
    vec sum[ROWS * K];
    UNROLL for (int t = 0; t < rows * K; t++) sum[t] = load(dw + t * LANES);
    for (int e = 0; e < count; e++) {
        const float g = live[e], *p = x + offset[e];
        UNROLL for (int y = 0; y < rows; y++, p += pw * LANES) {
            HIDE(p);
            UNROLL for (int z = 0; z < K; z++) sum[y * K + z] += load(p + z * LANES) * g;
        }
    }
    UNROLL for (int t = 0; t < rows * K; t++) store(dw + t * LANES, sum[t]);
}

#ifdef __AVX512BF16__
/* `send_back` and `weigh` in bfloat16, two channels or two windows at once. `live` has a zero behind an odd `count`. */
INLINE void half_send_back(uint64_t bits, const half *gradient, const half *weight, float *dx, long pw) {
    vec sum[TAPS];
    UNROLL for (int t = 0; t < TAPS; t++) sum[t] = (vec){0};
    for (; bits; bits &= bits - 1) {
        const int one = __builtin_ctzll(bits);
        bits &= bits - 1;
        const int other = bits ? __builtin_ctzll(bits) : one;
        const uint32_t numbers = gradient[one] | (bits ? (uint32_t)gradient[other] << 16 : 0);
        const half *f = weight + one * TAPS * LANES, *s = weight + other * TAPS * LANES;
        HIDE(f);
        HIDE(s);
        UNROLL for (int t = 0; t < TAPS; t++)
            sum[t] = dot_pairs(sum[t], f + t * LANES, s + t * LANES, _mm512_set1_epi32((int)numbers));
    }
    UNROLL for (int y = 0; y < K; y++, dx += pw * LANES) {
        HIDE(dx);
        UNROLL for (int z = 0; z < K; z++) store(dx + z * LANES, load(dx + z * LANES) + sum[y * K + z]);
    }
}

INLINE void half_weigh(const half *x, const int32_t *offset, const half *live, int count, float *dw, long pw) {
    vec sum[TAPS];
    UNROLL for (int t = 0; t < TAPS; t++) sum[t] = load(dw + t * LANES);
    for (int e = 0; e < count; e += 2) {
        int32_t numbers;
        memcpy(&numbers, live + e, sizeof numbers);
        const half *p = x + offset[e], *q = x + offset[e + 1];
        UNROLL for (int y = 0; y < K; y++, p += pw * LANES, q += pw * LANES) {
            HIDE(p);
            HIDE(q);
            UNROLL for (int z = 0; z < K; z++)
                sum[y * K + z] = dot_pairs(sum[y * K + z], p + z * LANES, q + z * LANES, _mm512_set1_epi32(numbers));
        }
    }
    UNROLL for (int t = 0; t < TAPS; t++) store(dw + t * LANES, sum[t]);
}

/* For each row and pair of neighbouring windows, the pixels that their patches may read: of each window 8 of the row and
 * 8 of the next one. Behind an odd last window come zeros. */
static void half_pair_rows(const half *image, half *pairs, int h, int w, int pw) {
    for (int y = 0; y + 1 < h; y++)
        for (int s = 0; s < pw; s++, pairs += W) {
            memcpy(pairs, image + y * w + 2 * s, W);
            memcpy(pairs + W / 2, image + (y + 1) * w + 2 * s, W);
            if (s % 2 == 0 && s + 1 == pw) memset(pairs += W, 0, 2 * W);
        }
}

/* `first_weights_pairs` in bfloat16, two windows at once. */
INLINE void half_first_weights(const half *pairs, const float *one, const int8_t *where, float *dw, float *db, int ph,
                               int pw, const int bias) {
    const long row = (pw + 1) / 2 * 2 * W;
    vec sum[TAPS], total = load(db);
    UNROLL for (int t = 0; t < TAPS; t++) sum[t] = load(dw + t * LANES);
    for (int r = 0; r < ph; r++)
        for (int s = 0; s < pw; s += 2) {
            const int8_t *position = where + (r * pw + s) * LANES;
            const float *gradient = one + (r * pw + s) * LANES;
            const ivec left = wide_load(position), right = s + 1 < pw ? wide_load(position + LANES) : (ivec){0} + DEAD;
            const vec g = keep(left < DEAD, load(gradient));
            const vec k = s + 1 < pw ? keep(right < DEAD, load(gradient + LANES)) : (vec){0};
            const __m512i numbers = pairs_of(g, k);
            const ivec at = (left & 2) * 4 + (left & 1) + (((right & 2) * 4 + (right & 1) + W) << 16);
            if (bias) total += g + k;
            const half *p = pairs + 2 * r * row + s * W;
            UNROLL for (int y = 0; y < K; y++, p += row) {
                HIDE(p);
                __m512i pixels;
                memcpy(&pixels, p, sizeof pixels);
                UNROLL for (int z = 0; z < K; z++) {
                    const __m512i taken = _mm512_permutexvar_epi16((__m512i)(at + z * 0x10001), pixels);
                    sum[y * K + z] = (vec)_mm512_dpbf16_ps((__m512)sum[y * K + z], (__m512bh)taken, (__m512bh)numbers);
                }
            }
        }
    UNROLL for (int t = 0; t < TAPS; t++) store(dw + t * LANES, sum[t]);
    if (bias) store(db, total);
}
#endif

/* Call `call`(first row, rows) for all rows of taps. */
#if ROWS == 5
#define EACH_ROW(call) call(0, 5)
#else
#define EACH_ROW(call) call(0, 2) call(2, 2) call(4, 1)
#endif

#ifdef __AVX512F__
/* Write, for each row and window, the pixels that its patches may read: 8 of the row, and 8 of the next one. */
static void pair_rows(const float *image, float *pairs, int h, int w, int pw) {
    for (int y = 0; y + 1 < h; y++)
        for (int s = 0; s < pw; s++) {
            const float *p = image + y * w + 2 * s;
            float *q = pairs + ((size_t)y * pw + s) * W;
            memcpy(q, p, 4 * W / 2); /* of these 8, 6 are used */
            if (y + 2 < h) memcpy(q + W / 2, p + w, 4 * W / 2);
            else memcpy(q + W / 2, p + w, 4 * (K + 1)); /* nothing behind the last row is read */
        }
}

/* As below, with a permutation that brings each channel the pixel of its own position. */
INLINE void first_weights_pairs(const float *pairs, const float *one, const int8_t *where, float *dw, float *db,
                                int ph, long pw, const int bias) {
    vec sum[TAPS], total = load(db);
    UNROLL for (int t = 0; t < TAPS; t++) sum[t] = load(dw + t * LANES);
    for (int r = 0; r < ph; r++)
        for (int s = 0; s < pw; s++) {
            const ivec won = wide_load(where + (r * pw + s) * LANES);
            const vec g = keep(won < DEAD, load(one + (r * pw + s) * LANES));
            const ivec at = (won & 2) * 4 + (won & 1);
            if (bias) total += g;
            const float *p = pairs + ((size_t)2 * r * pw + s) * W;
            UNROLL for (int y = 0; y < K; y++, p += pw * W) {
                HIDE(p);
                UNROLL for (int z = 0; z < K; z++)
                    sum[y * K + z] += g * (vec)_mm512_permutexvar_ps((__m512i)(at + z), (__m512)load(p));
            }
        }
    UNROLL for (int t = 0; t < TAPS; t++) store(dw + t * LANES, sum[t]);
    if (bias) store(db, total);
}
#endif

/* Add one image's gradient of the first layer's weights for W channels; `one` is the gradient of its pooled output. */
INLINE void first_weights(const float *image, const float *one, const int8_t *where, float *dw, float *db, long w,
                          int ph, int pw, const int bias, const int rows) {
    vec sum[ROWS * K], total = load(db);
    UNROLL for (int t = 0; t < rows * K; t++) sum[t] = load(dw + t * LANES);
    for (int r = 0; r < ph; r++)
        for (int s = 0; s < pw; s++) {
            const vec g = load(one + (r * pw + s) * LANES);
            const ivec won = wide_load(where + (r * pw + s) * LANES);
            const vec a = keep(won == 0, g), b = keep(won == 1, g), c = keep(won == 2, g), d = keep(won == 3, g);
            if (bias) total += keep(won < DEAD, g);
            const float *p = image + 2 * r * w + 2 * s;
            UNROLL for (int y = 0; y < rows; y++, p += w) {
                HIDE(p);
                UNROLL for (int z = 0; z < K; z++)
                    sum[y * K + z] += a * p[z] + b * p[z + 1] + c * p[z + w] + d * p[z + 1 + w];
            }
        }
    UNROLL for (int t = 0; t < rows * K; t++) store(dw + t * LANES, sum[t]);
    if (bias) store(db, total);
}

/* Add one image's gradient of the first layer's biases, of a block of channels. */
static void first_biases(const float *one, const int8_t *where, float *db, int windows) {
    for (int v = 0; v < LANES; v += W) {
        vec total = load(db + v);
        for (int k = v; k < windows * LANES; k += LANES) total += keep(wide_load(where + k) < DEAD, load(one + k));
        store(db + v, total);
    }
}

/* Make the step of the weights (rows, blocks, 16); the gradient is (blocks, rows, 16). */
static void descend(float *weight, const float *gradient, int rows, int blocks, float rate) {
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < blocks; k++)
            for (int c = 0; c < LANES; c++)
                weight[(r * blocks + k) * LANES + c] -= rate * gradient[(k * rows + r) * LANES + c];
}

/* Compute the convolutions' gradients from that of the features, and make their step. */
static void convolve_back(const Network *net, Buffers b, const float *images, const int64_t *batch, int n) {
    const int h = net->h, w = net->w, cin = net->cin, ph = b.ph, pw = b.pw, windows = b.qh * b.qw;
    const int c2 = net->second_channels, fs = b.stride[0];
    const int lanes = b.blocks * LANES, outs = b.outs;
    const size_t block = (size_t)ph * pw * LANES, pixels = b.blocks * block;
    const size_t seconds = (size_t)c2 * TAPS * LANES, firsts = (size_t)cin * TAPS * LANES; /* weights of a block */
    float *dx = b.gradient, *dsecond = dx + pixels, *dsecond_bias = dsecond + b.blocks * seconds;
    float *dfirst = dsecond_bias + outs, *dfirst_bias = dfirst + b.blocks * firsts;
    memset(dsecond, 0, 4 * (b.blocks * (seconds + firsts) + outs + lanes));
    const int32_t shift[DEAD + 1] = {0, LANES, pw * LANES, pw * LANES + LANES, 0};
    int32_t *offset = b.offset;
    float *live = b.live;
    for (int k = 0; k < windows; k++) b.corner[k] = (2 * (k / b.qw) * pw + 2 * (k % b.qw)) * LANES;
    for (int start = 0; start < n; start += BLOCK) {
        const int end = start + BLOCK < n ? start + BLOCK : n;
        for (int c = 0; c < c2; c++) {
            int count = 0;
            for (int i = start; i < end; i++)
                count += live_windows(b.two_where + (size_t)i * windows * outs + c, b.below + (size_t)i * fs + c,
                                      b.corner, windows, c2, outs, shift, (i - start) * pixels, offset + count,
                                      live + count);
#ifdef __AVX512BF16__
            if (net->bf16 == 2) {
                live[count] = 0;
                offset[count] = 0;
                for (int e = 0; e < count; e += W) narrow((half *)b.half_live + e, live + e);
                for (int m = 0; m < b.blocks; m++)
                    half_weigh((half *)b.half_one + start * pixels + m * block, offset, b.half_live, count,
                               dsecond + m * seconds + c * TAPS * LANES, pw);
                continue;
            }
#endif
            if (ROUNDS(net)) round_all(live, count);
            for (int m = 0; m < b.blocks; m++)
                for (int v = 0; v < LANES; v += W) {
#define WEIGH(row, rows)                                                                                               \
    weigh(b.one + start * pixels + m * block + row * pw * LANES + v, offset, live, count,                              \
          dsecond + m * seconds + (c * TAPS + row * K) * LANES + v, pw, rows);
                    EACH_ROW(WEIGH)
                }
        }
        for (int i = start; i < end; i++) {
            const int8_t *there = b.two_where + (size_t)i * windows * outs;
            float *below = b.below + (size_t)i * fs;
            memset(dx, 0, 4 * pixels);
            for (int v = 0; v < outs; v += W) {
                vec total = load(dsecond_bias + v);
                for (int k = 0; k < windows; k++)
                    total += keep(wide_load(there + k * outs + v) < DEAD, load(below + k * c2 + v));
                store(dsecond_bias + v, total);
            }
#ifdef __AVX512BF16__
            if (net->bf16 == 2) narrow_all(b.half_below, below, fs);
#endif
            if (ROUNDS(net)) round_all(below, fs);
            for (int m = 0; m < b.blocks; m++)
                for (int k = 0; k < windows; k++)
                    for (int position = 0; position < 4; position++) {
                        uint64_t bits = channels_at(there + k * outs, position);
                        if (outs > PADDED) bits |= (uint64_t)channels_at(there + k * outs + PADDED, position) << PADDED;
                        if (!bits) continue;
                        float *patch = dx + m * block + b.corner[k] + shift[position];
#ifdef __AVX512BF16__
                        if (net->bf16 == 2) {
                            half_send_back(bits, (half *)b.half_below + k * c2, (half *)b.half_back + m * seconds, patch, pw);
                            continue;
                        }
#endif
                        for (int v = 0; v < LANES; v += W) {
#define SEND_BACK(row, rows)                                                                                           \
    send_back(bits, below + k * c2, b.second + m * seconds + row * K * LANES + v, patch + row * pw * LANES + v, pw, rows);
                            EACH_ROW(SEND_BACK)
                        }
                    }
            const float *image = images + (size_t)batch[i] * cin * h * w;
            const int8_t *where = b.one_where + i * pixels;
#ifdef __AVX512BF16__
            if (net->bf16 == 2) {
                narrow_image(net, b, image);
                for (int ci = 0; ci < cin; ci++) {
                    half_pair_rows((half *)b.half_image + ci * h * w, (half *)b.pairs, h, w, pw);
                    for (int m = 0; m < b.blocks; m++)
                        half_first_weights((half *)b.pairs, dx + m * block, where + m * block,
                                           dfirst + m * firsts + ci * TAPS * LANES, dfirst_bias + m * LANES, ph, pw, ci == 0);
                }
                continue;
            }
#endif
            image = for_products(net, b, image);
            if (ROUNDS(net)) {
                for (int m = 0; m < b.blocks; m++)
                    first_biases(dx + m * block, where + m * block, dfirst_bias + m * LANES, ph * pw);
                round_all(dx, pixels);
            }
            for (int ci = 0; ci < cin; ci++) {
                const int bias = ci == 0 && !ROUNDS(net);
#ifdef __AVX512F__
                pair_rows(image + ci * h * w, b.pairs, h, w, pw);
                for (int m = 0; m < b.blocks; m++)
                    first_weights_pairs(b.pairs, dx + m * block, where + m * block,
                                        dfirst + m * firsts + ci * TAPS * LANES, dfirst_bias + m * LANES, ph, pw, bias);
#else
                for (int m = 0; m < b.blocks; m++)
                    for (int v = 0; v < LANES; v += W) {
#define FIRST_WEIGHTS(row, rows)                                                                                       \
    first_weights(image + (ci * h + row) * w, dx + m * block + v, where + m * block + v,                               \
                  dfirst + m * firsts + (ci * TAPS + row * K) * LANES + v, dfirst_bias + m * LANES + v, w, ph, pw,     \
                  bias && row == 0, rows);
                        EACH_ROW(FIRST_WEIGHTS)
                    }
#endif
            }
        }
    }
    descend(net->second, dsecond, c2 * TAPS, b.blocks, net->rate);
    descend(net->first, dfirst, cin * TAPS, b.blocks, net->rate);
    for (int c = 0; c < c2; c++) net->second_bias[c] -= net->rate * dsecond_bias[c];
    for (int c = 0; c < lanes; c++) net->first_bias[c] -= net->rate * dfirst_bias[c];
}

/* Make one SGD step on the mean loss of the n images at the positions `batch`. */
void fused_step(const Network *net, const float *images, const int64_t *labels, const int64_t *batch, int n,
                char *workspace) {
    const Buffers b = buffers(net, n, workspace);
    forward(net, b, images, batch, n, 1);
    cross_entropy(b.active[net->layers], b.stride[net->layers], labels, batch, n, net->widths[net->layers]);
    for (int l = net->layers - 1; l >= 0; l--) {
        const int in = b.stride[l], out = b.stride[l + 1], outputs = net->widths[l + 1];
        float *x = b.active[l], *gradient = b.active[l + 1];
        const int sends_back = l || net->first_channels;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < outputs; j++) net->bias[l][j] -= net->rate * gradient[i * out + j];
#ifdef __AVX512BF16__
        if (net->bf16 == 2) {
            const int pairs = (n + 1) / 2;
            if (sends_back) {
                narrow_all(b.half_values, gradient, (size_t)n * out);
                half_product(b.half_values, out / 2, 1, b.weight_pairs[l], in, n, in, (outputs + 1) / 2, b.below, in, 0, 1, 0);
            }
            pair(b.gradient_pairs, gradient, n, out);
            pair(b.value_pairs, x, n, in);
            half_product(b.gradient_pairs, 1, out, b.value_pairs, in, outputs, in, pairs, net->weight[l], in, 0, -net->rate, 1);
        } else
#endif
        {
            const float *weight = ROUNDS(net) ? b.rounded[l] : net->weight[l];
            if (ROUNDS(net)) round_all(gradient, (size_t)n * out);
            if (sends_back) product(gradient, out, 1, weight, in, n, in, outputs, b.below, in, 0, 1, 0);
            product(gradient, 1, out, x, in, outputs, in, n, net->weight[l], in, 0, -net->rate, 1);
        }
        drop(net, b, b.below, l, n);
        if (l)
            for (size_t i = 0; i < (size_t)n * in; i++) x[i] = x[i] > 0 ? b.below[i] : 0;
    }
    if (!net->first_channels) return;
    if (net->mask[0]) /* a channel that was dropped has no live window */
        for (int i = 0; i < n; i++)
            for (int k = 0; k < b.qh * b.qw; k++)
                for (int c = 0; c < net->second_channels; c++)
                    if (net->mask[0][(size_t)i * net->second_channels + c] == 0)
                        b.two_where[((size_t)i * b.qh * b.qw + k) * b.outs + c] = DEAD;
    convolve_back(net, b, images, batch, n);
}

/* Write the logits, (n, outputs), of the images at the positions `batch`. */
void fused_logits(const Network *net, const float *images, const int64_t *batch, int n, char *workspace, float *logits) {
    const Buffers b = buffers(net, n, workspace);
    const int outputs = net->widths[net->layers], stride = b.stride[net->layers];
    forward(net, b, images, batch, n, 0);
    for (int i = 0; i < n; i++)
        memcpy(logits + (size_t)i * outputs, b.active[net->layers] + (size_t)i * stride, 4 * outputs);
}
