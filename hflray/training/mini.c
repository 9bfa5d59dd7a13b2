/* The passes of the mini model that are slow in a general library: half the time of a local SGD step.
 * mini.py builds them with the machine's C compiler. They use vector extensions of GCC and Clang, and no intrinsics.
 *
 * Layout: images are (n, cin, h, w); features are channels-last, (n, h, w, c); the convolution has LANES output
 * channels, which are the model's channels padded with zeros. `where` holds the index of the largest value in a 2×2
 * window, 0..3 row by row, or 4 if no value is positive. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *p) { vec v; memcpy(&v, p, sizeof v); return v; }
INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }
INLINE ivec iload(const int32_t *p) { ivec v; memcpy(&v, p, sizeof v); return v; }
INLINE vec keep(ivec mask, vec v) { return (vec)(mask & (ivec)v); } /* v where the mask is set, else 0 */
INLINE void istore(int32_t *p, ivec v) { memcpy(p, &v, sizeof v); }

/* relu(max) of the four values of a pooling window, and the index of the largest. */
INLINE void pool_vectors(vec a, vec b, vec c, vec d, float *out, int32_t *where) {
    const vec zero = {0};
    vec top = zero;
    ivec won = (ivec){0} + 4, m;
    m = a > top; top = keep(m, a) + keep(~m, top); won = (m & 0) | (~m & won);
    m = b > top; top = keep(m, b) + keep(~m, top); won = (m & 1) | (~m & won);
    m = c > top; top = keep(m, c) + keep(~m, top); won = (m & 2) | (~m & won);
    m = d > top; top = keep(m, d) + keep(~m, top); won = (m & 3) | (~m & won);
    store(out, top);
    istore(where, won);
}

/* Compute `wide` (1 or 2) neighbouring windows of a row. 8 concurrent sums hide the latency of a multiply-add. */
INLINE void windows(const float *image, const float *weight, vec start, float *out, int32_t *where, int cin, int h,
                    int w, const int k, const int wide) {
    vec sum[4 * 2];
    for (int v = 0; v < 4 * wide; v++) sum[v] = start;
    for (int ci = 0; ci < cin; ci++) {
        const float *p = image + ci * h * w, *f = weight + ci * k * k * LANES;
#pragma GCC unroll 5
        for (int y = 0; y < k; y++)
#pragma GCC unroll 5
            for (int z = 0; z < k; z++) {
                const vec t = load(f + (y * k + z) * LANES);
#pragma GCC unroll 2
                for (int v = 0; v < wide; v++) {
                    const float *q = p + y * w + z + 2 * v;
                    sum[4 * v] += t * q[0];
                    sum[4 * v + 1] += t * q[1];
                    sum[4 * v + 2] += t * q[w];
                    sum[4 * v + 3] += t * q[w + 1];
                }
            }
    }
#pragma GCC unroll 2
    for (int v = 0; v < wide; v++)
        pool_vectors(sum[4 * v], sum[4 * v + 1], sum[4 * v + 2], sum[4 * v + 3], out + v * LANES, where + v * LANES);
}

/* Compute relu(max_pool2(conv(x) + bias)) in one pass, without writing the full-size convolution. */
INLINE void first_forward(const float *x, const int64_t *batch, const float *weight, const float *bias, float *out,
                          int32_t *where, int n, int cin, int h, int w, const int k) {
    const int ph = (h - k + 1) / 2, pw = (w - k + 1) / 2;
    const vec start = load(bias);
    for (int i = 0; i < n; i++) {
        const float *image = x + (size_t)batch[i] * cin * h * w;
        for (int r = 0; r < ph; r++) {
            const float *p = image + 2 * r * w;
            const size_t o = ((size_t)i * ph + r) * pw * LANES;
            int s = 0;
            for (; s + 1 < pw; s += 2)
                windows(p + 2 * s, weight, start, out + o + s * LANES, where + o + s * LANES, cin, h, w, k, 2);
            if (s < pw) windows(p + 2 * s, weight, start, out + o + s * LANES, where + o + s * LANES, cin, h, w, k, 1);
        }
    }
}

/* Compute the gradient of the first layer's weights from that of the pooled output. The images need no gradient. */
INLINE void first_backward(const float *x, const int64_t *batch, const float *grad, const int32_t *where,
                           float *gweight, float *gbias, int n, int cin, int h, int w, const int k) {
    const int ph = (h - k + 1) / 2, pw = (w - k + 1) / 2;
    const vec zero = {0};
    vec gb = zero;
    for (int ci = 0; ci < cin; ci++) {
        vec acc[k * k];
#pragma GCC unroll 25
        for (int t = 0; t < k * k; t++) acc[t] = zero;
        for (int i = 0; i < n; i++) {
            const float *image = x + ((size_t)batch[i] * cin + ci) * h * w;
            for (int r = 0; r < ph; r++)
                for (int s = 0; s < pw; s++) {
                    const size_t o = (((size_t)i * ph + r) * pw + s) * LANES;
                    const vec g = load(grad + o);
                    const ivec won = iload(where + o);
                    const vec a = keep(won == 0, g), b = keep(won == 1, g);
                    const vec c = keep(won == 2, g), d = keep(won == 3, g);
                    if (ci == 0) gb += keep(won < 4, g);
                    const float *p = image + 2 * r * w + 2 * s;
#pragma GCC unroll 5
                    for (int y = 0; y < k; y++)
#pragma GCC unroll 5
                        for (int z = 0; z < k; z++)
                            acc[y * k + z] += a * p[y * w + z] + b * p[y * w + z + 1] + c * p[(y + 1) * w + z] +
                                              d * p[(y + 1) * w + z + 1];
                }
        }
#pragma GCC unroll 25
        for (int t = 0; t < k * k; t++) store(gweight + (ci * k * k + t) * LANES, acc[t]);
    }
    store(gbias, gb);
}

void first_forward_2(const float *x, const int64_t *batch, const float *weight, const float *bias, float *out,
                     int32_t *where, int n, int cin, int h, int w) {
    first_forward(x, batch, weight, bias, out, where, n, cin, h, w, 2);
}

void first_backward_2(const float *x, const int64_t *batch, const float *grad, const int32_t *where, float *gweight,
                      float *gbias, int n, int cin, int h, int w) {
    first_backward(x, batch, grad, where, gweight, gbias, n, cin, h, w, 2);
}

/* Replace the logits (n, classes) by the gradient of the mean cross-entropy. */
void cross_entropy_backward(float *restrict logits, const int64_t *labels, const int64_t *batch, int n, int classes) {
    const float scale = 1.0f / n;
    for (int i = 0; i < n; i++) {
        float *row = logits + (size_t)i * classes, top = row[0], total = 0;
        for (int j = 1; j < classes; j++) top = row[j] > top ? row[j] : top;
        for (int j = 0; j < classes; j++) total += row[j] = expf(row[j] - top);
        for (int j = 0; j < classes; j++) row[j] *= scale / total;
        row[labels[batch[i]]] -= scale;
    }
}
