/* The forward pass of the learned assigner's network for any number of edges (SharedBiLstm in network.py), for one fleet.
 * shared_network.py builds it with the machine's C compiler, packs the weights, and says how exact it is. It uses vector
 * extensions of GCC and Clang.
 *
 * A pass through torch spends its time on some hundred small operations, each of which costs microseconds, and on an
 * LSTM whose two directions follow one another. Here a step of both directions is one loop over the weights, which the
 * second-level cache delivers at its full speed, and a layer of all links is one product of small tiles.
 *
 * H devices, M edges. Every matrix of weights is packed in panels of 4·W columns, (panels, inputs, 4·W), so that a product
 * reads it in order. The 8·hidden gates of the LSTM are (direction, W units, gates i f g o). */
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#define W 16     /* floats in a vector */
#define HIGH 6   /* rows of a tile of a matrix product */
#else
#define W 8
#define HIGH 2
#endif
#define PANEL (4 * W)

typedef float vec __attribute__((vector_size(4 * W)));
typedef float half __attribute__((vector_size(2 * W)));
typedef float quarter __attribute__((vector_size(W)));
typedef int32_t ivec __attribute__((vector_size(4 * W)));
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

INLINE vec load(const float *p) { vec v; memcpy(&v, p, sizeof v); return v; }
INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }
INLINE vec where(ivec mask, vec a, vec b) { return (vec)((mask & (ivec)a) | (~mask & (ivec)b)); }
INLINE vec larger(vec a, vec b) { return where(a < b, b, a); } /* a, if it is NaN */
INLINE size_t padded(size_t n) { return (n + W - 1) / W * W; }

INLINE float sum(vec v) {
    half a, b;
    quarter c, d;
    memcpy(&a, &v, sizeof a);
    memcpy(&b, (char *)&v + sizeof a, sizeof b);
    a += b;
    memcpy(&c, &a, sizeof c);
    memcpy(&d, (char *)&a + sizeof c, sizeof d);
    c += d;
    float total = 0;
    UNROLL for (int i = 0; i < W / 4; i++) total += c[i];
    return total;
}

INLINE float dot(const float *a, const float *b, int n) {
    vec total = {0};
    for (int i = 0; i < n; i += W) total += load(a + i) * load(b + i);
    return sum(total);
}

/* e^x to 2 units in the last place (Cephes, expf); NaN stays NaN. */
INLINE vec exponential(vec x) {
    const vec least = (vec){0} - 87.0f, most = (vec){0} + 88.0f, magic = (vec){0} + 12582912.0f, given = x;
    x = where(x < least, least, where(x > most, most, x));
    vec n = x * 1.44269504088896341f + magic; /* the nearest whole number is in its lowest bits */
    const ivec power = (ivec)n << 23;
    n -= magic;
    x = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec y = x * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * x + 8.3334519073e-3f;
    y = y * x + 4.1665795894e-2f;
    y = y * x + 1.6666665459e-1f;
    y = y * x + 5.0000001201e-1f;
    y = y * (x * x) + x + 1.0f;
    return where(given == given, (vec)((ivec)y + power), given);
}
INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }
INLINE vec hyperbolic_tangent(vec x) { return 1.0f - 2.0f / (1.0f + exponential(x + x)); }

/* Rows of c, 4·W columns: c += a · b, and max(c, 0) if `relu`. */
INLINE void tile(const float *a, size_t a_row, const float *b, int inner, float *c, size_t c_row, int relu, const int high) {
    vec total[HIGH][4];
    UNROLL for (int r = 0; r < high; r++)
        UNROLL for (int v = 0; v < 4; v++) total[r][v] = load(c + r * c_row + v * W);
    for (int i = 0; i < inner; i++, b += PANEL) {
        vec right[4];
        UNROLL for (int v = 0; v < 4; v++) right[v] = load(b + v * W);
        UNROLL for (int r = 0; r < high; r++) {
            const float left = a[r * a_row + i];
            UNROLL for (int v = 0; v < 4; v++) total[r][v] += right[v] * left;
        }
    }
    UNROLL for (int r = 0; r < high; r++)
        UNROLL for (int v = 0; v < 4; v++)
            store(c + r * c_row + v * W, relu ? larger(total[r][v], (vec){0}) : total[r][v]);
}

/* c (rows, columns) += a (rows, inner) · b, and max(c, 0) if `relu`. The number of columns is a multiple of 4·W. */
static void multiply(const float *a, size_t a_row, const float *b, size_t rows, int columns, int inner, float *c, int relu) {
    for (int column = 0; column < columns; column += PANEL, b += (size_t)inner * PANEL) {
        const float *left = a;
        float *out = c + column;
        size_t rest = rows;
#define TILE(high) tile(left, a_row, b, inner, out, columns, relu, high)
        for (; rest >= HIGH; rest -= HIGH, left += HIGH * a_row, out += HIGH * (size_t)columns) TILE(HIGH);
#if HIGH == 6
        switch (rest) {
            case 5: TILE(5); break;
            case 4: TILE(4); break;
            case 3: TILE(3); break;
            case 2: TILE(2); break;
            case 1: TILE(1); break;
        }
#else
        if (rest) TILE(1);
#endif
    }
}

/* Each row of c (rows, columns) is `start`. */
INLINE void fill(float *c, size_t rows, int columns, const float *start) {
    for (size_t r = 0; r < rows; r++) memcpy(c + r * columns, start, sizeof(float) * columns);
}

/* A step of both directions of the LSTM for W units: `gates` has what the inputs add, `before` the hidden units of the
 * step before; the new cells and hidden units go to `cell` and `after`. */
INLINE void lstm(const float *const gates[2], const float *const weight[2], const float *const before[2],
                 float *const cell[2], float *const after[2], int hidden) {
    vec g[2][4];
    UNROLL for (int d = 0; d < 2; d++)
        UNROLL for (int v = 0; v < 4; v++) g[d][v] = load(gates[d] + v * W);
    for (int k = 0; k < hidden; k++)
        UNROLL for (int d = 0; d < 2; d++)
            UNROLL for (int v = 0; v < 4; v++) g[d][v] += load(weight[d] + (size_t)k * PANEL + v * W) * before[d][k];
    UNROLL for (int d = 0; d < 2; d++) {
        const vec c = sigmoid(g[d][1]) * load(cell[d]) + sigmoid(g[d][0]) * hyperbolic_tangent(g[d][2]);
        store(cell[d], c);
        store(after[d], sigmoid(g[d][3]) * hyperbolic_tangent(c));
    }
}

/* The buffers of a pass; `floats` is their size. */
typedef struct {
    float *code, *inside, *logit, *input, *gate, *reading, *by_device, *by_edge, *load, *cell, *still;
    size_t floats;
} Buffers;

static Buffers buffers(int width, int hidden, int device, size_t devices, size_t edges, float *base) {
    Buffers b = {0};
#define TAKE(pointer, size) { b.pointer = base + b.floats; b.floats += padded(size); }
    const size_t links = devices * edges;
    TAKE(code, links * width)
    TAKE(inside, links * width)
    TAKE(logit, links)
    TAKE(input, devices * (width + device) + W)
    TAKE(gate, devices * 8 * hidden)
    TAKE(reading, devices * 2 * hidden)
    TAKE(by_device, devices * width)
    TAKE(by_edge, edges * width)
    TAKE(load, edges * width)
    TAKE(cell, 2 * hidden)
    TAKE(still, 2 * hidden)
#undef TAKE
    return b;
}

/* Return the number of floats that a pass needs besides the weights. */
size_t shared_floats(int width, int hidden, int device, size_t devices, size_t edges) {
    return buffers(width, hidden, device, devices, edges, 0).floats;
}

/* Return the number of floats of a vector, which the panels of the weights must have. */
int shared_lanes(void) { return W; }

/* The softmax over the edges of each device, its mean code (`input`, of `stride`), and each edge's sum of codes, `load`,
 * and of shares, `shares`. */
static void spread(const float *weight, int width, size_t devices, size_t edges, size_t stride, const Buffers *b,
                   float *shares) {
    const size_t links = devices * edges;
    for (size_t t = 0; t < devices; t++) {
        float most = -INFINITY, *logit = b->logit + t * edges;
        for (size_t m = 0; m < edges; m++) {
            logit[m] = dot(b->code + (t * edges + m) * width, weight, width);
            if (!(logit[m] <= most)) most = logit[m];
        }
        for (size_t m = 0; m < edges; m++) logit[m] -= most;
    }
    for (size_t i = 0; i < links; i += W) store(b->logit + i, exponential(load(b->logit + i)));
    memset(b->load, 0, sizeof(float) * edges * width);
    memset(shares, 0, sizeof(float) * edges);
    for (size_t t = 0; t < devices; t++) {
        float total = 0, *share = b->logit + t * edges;
        for (size_t m = 0; m < edges; m++) total += share[m];
        for (size_t m = 0; m < edges; m++) shares[m] += share[m] /= total;
        for (int v = 0; v < width; v += W) {
            vec choice = {0};
            for (size_t m = 0; m < edges; m++) {
                const vec part = load(b->code + (t * edges + m) * width + v) * share[m];
                choice += part;
                store(b->load + m * width + v, load(b->load + m * width + v) + part);
            }
            store(b->input + t * stride + v, choice);
        }
    }
}

/* What a device and an edge bring to the layer of each link. */
static void before_code(int width, size_t devices, size_t edges, const Buffers *b) {
    float *out = b->inside;
    for (size_t t = 0; t < devices; t++)
        for (size_t m = 0; m < edges; m++, out += width)
            for (int v = 0; v < width; v += W)
                store(out + v, load(b->by_device + t * width + v) + load(b->by_edge + m * width + v));
}

/* Write Q, (H, M), and the best edge of each device, (H,).
 *
 * Returns: by how much the best edge leads the second one at the device where it leads least, in units of the largest
 * magnitudes that were added up to a Q; NaN if a Q is not finite. */
float shared_pass(const float *weight, int width, int hidden, int refinements, int link, int device, const float *rows,
                  int64_t num_devices, int64_t num_edges, float *scratch, float *q, int64_t *best) {
    const size_t devices = num_devices, edges = num_edges, links = devices * edges;
    const size_t row = edges * link + device, stride = width + device;
    const Buffers b = buffers(width, hidden, device, devices, edges, scratch);
    const float *at = weight;
#define NEXT(size) (at += padded(size), at - padded(size)) /* the order is that of shared_network.py */

    /* The code of each link. */
    const float *of_link = NEXT(link * width), *of_device = NEXT(device * width), *bias = NEXT(width);
    fill(b.by_device, devices, width, bias);
    multiply(rows + edges * link, row, of_device, devices, width, device, b.by_device, 0);
    for (size_t t = 0; t < devices; t++) {
        fill(b.inside + t * edges * width, edges, width, b.by_device + t * width);
        multiply(rows + t * row, link, of_link, edges, width, link, b.inside + t * edges * width, 1);
    }
    const float *second = NEXT(width * width);
    fill(b.code, links, width, NEXT(width));
    multiply(b.inside, width, second, links, width, width, b.code, 1);

    /* Balancing; the last turn ends before the recurrent layers, whose output it reads. */
    const float *of_code = 0, *of_choice = 0;
    for (int step = 0; step <= refinements; step++) {
        const int last = step == refinements;
        float *shares = q; /* M of its H · M numbers; it is written at the end */
        spread(NEXT(width), width, devices, edges, stride, &b, shares);
        of_code = NEXT(width * width);
        const float *of_load = NEXT(width * width);
        const float *of_share = NEXT(width);
        of_choice = NEXT((last ? 2 * hidden : width) * width);
        bias = NEXT(width);
        for (size_t m = 0; m < edges; m++)
            for (int v = 0; v < width; v += W)
                store(b.by_edge + m * width + v, load(bias + v) + load(of_share + v) * shares[m]);
        multiply(b.load, width, of_load, edges, width, width, b.by_edge, 0);
        if (last) break;
        memset(b.by_device, 0, sizeof(float) * devices * width);
        multiply(b.input, stride, of_choice, devices, width, width, b.by_device, 0);
        before_code(width, devices, edges, &b);
        multiply(b.code, width, of_code, links, width, width, b.inside, 1);
        second = NEXT(width * width);
        bias = NEXT(width);
        for (size_t i = 0; i < links; i++)
            for (int v = 0; v < width; v += W) store(b.code + i * width + v, load(b.code + i * width + v) + load(bias + v));
        multiply(b.inside, width, second, links, width, width, b.code, 0);
    }
    const float *advantage = NEXT(width), advantage_bias = *NEXT(1);

    /* Both directions of the LSTM over the devices. */
    for (size_t t = 0; t < devices; t++)
        memcpy(b.input + t * stride + width, rows + t * row + edges * link, sizeof(float) * device);
    const float *inputs = NEXT(stride * 8 * hidden);
    fill(b.gate, devices, 8 * hidden, NEXT(8 * hidden));
    multiply(b.input, stride, inputs, devices, 8 * hidden, stride, b.gate, 0);
    const float *recurrent = NEXT(8 * hidden * hidden);
    memset(b.cell, 0, sizeof(float) * 2 * hidden);
    memset(b.still, 0, sizeof(float) * 2 * hidden);
    for (size_t s = 0; s < devices; s++) {
        const size_t step[2] = {s, devices - 1 - s};
        const float *before[2] = {b.still, b.still};
        if (s) {
            before[0] = b.reading + (s - 1) * 2 * hidden;
            before[1] = b.reading + (devices - s) * 2 * hidden + hidden;
        }
        for (int unit = 0; unit < hidden; unit += W) {
            const float *gates[2], *weights[2];
            float *cell[2], *after[2];
            for (int d = 0; d < 2; d++) {
                const size_t panel = (size_t)d * hidden / W + unit / W;
                gates[d] = b.gate + step[d] * 8 * hidden + panel * PANEL;
                weights[d] = recurrent + panel * hidden * PANEL;
                cell[d] = b.cell + d * hidden + unit;
                after[d] = b.reading + step[d] * 2 * hidden + d * hidden + unit;
            }
            lstm(gates, weights, before, cell, after, hidden);
        }
    }

    /* The two heads. */
    memset(b.by_device, 0, sizeof(float) * devices * width);
    multiply(b.reading, 2 * hidden, of_choice, devices, width, 2 * hidden, b.by_device, 0);
    before_code(width, devices, edges, &b);
    multiply(b.code, width, of_code, links, width, width, b.inside, 1);
    const float *of_value = NEXT(2 * hidden), value_bias = *NEXT(1);
    float least = INFINITY, scale = 0, check = 0;
    for (size_t t = 0; t < devices; t++) {
        const float value = dot(b.reading + t * 2 * hidden, of_value, 2 * hidden) + value_bias;
        float first = -INFINITY, next = -INFINITY, mean = 0, *mine = q + t * edges, added = 0;
        best[t] = 0;
        for (size_t m = 0; m < edges; m++) {
            vec total = {0}, size = {0};
            for (int v = 0; v < width; v += W) {
                const vec part = load(b.inside + (t * edges + m) * width + v) * load(advantage + v);
                total += part;
                size += larger(part, -part);
            }
            const float a = sum(total) + advantage_bias;
            added = fmaxf(added, sum(size));
            mine[m] = a;
            mean += a / edges;
            if (a > first) { next = first; first = a; best[t] = m; } else if (a > next) next = a;
        }
        for (size_t m = 0; m < edges; m++) check += 0 * (mine[m] += value - mean);
        least = fminf(least, first - next);
        scale = fmaxf(scale, added + fabsf(value) + fabsf(advantage_bias));
    }
    return least / scale + check;
}
