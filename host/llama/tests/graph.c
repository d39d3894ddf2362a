// Runs graphs of SET_ROWS, FLASH_ATTN_EXT and ROPE through stock libggml on our device, and compares with the
// CPU's back end on the values that our cache reads back as. The tests run it once per setting of TQKV_KV.
//
// graph LIBRARIES TOLERANCE CASES SEED [TOLERANCE OF ROTATION]
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ggml_backend_dev_t device;
static ggml_backend_t ours, cpu;
static uint64_t state;
static int failures;

static uint32_t random_bits(void) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t) (state >> 33);
}
static int below(int n) { return (int) (random_bits() % (uint32_t) n); }
static float normal(void) {
    float sum = 0;
    for (int i = 0; i < 6; i++) sum += (float) below(1 << 20) / (1 << 20) - 0.5f;
    return sum * 1.4142f;
}
static void check(int fine, const char * what) {
    if (!fine) {
        printf("failed: %s\n", what);
        failures++;
    }
}

// A cache of one layer, on one of the two devices.
struct cache {
    struct ggml_context * context;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *k, *v;
};
struct shape {
    int dim, value_dim, heads, group, slots, streams, tokens, visible;
    float scale, bias, cap;
    int mask, sinks;
};

static struct cache new_cache(ggml_backend_t backend, const struct shape * s) {
    struct cache c;
    struct ggml_init_params params = {1 << 16, NULL, true};
    c.context = ggml_init(params);
    c.k = ggml_new_tensor_3d(c.context, GGML_TYPE_F16, s->dim * s->heads, s->slots, s->streams);
    c.v = ggml_new_tensor_3d(c.context, GGML_TYPE_F16, s->value_dim * s->heads, s->slots, s->streams);
    ggml_set_name(c.k, "cache_k_l0");
    ggml_set_name(c.v, "cache_v_l0");
    c.buffer = ggml_backend_alloc_ctx_tensors(c.context, backend);
    if (!c.buffer) { printf("failed: no buffer\n"); exit(1); }
    ggml_backend_buffer_clear(c.buffer, 0);
    return c;
}
static void free_cache(struct cache * c) {
    ggml_backend_buffer_free(c->buffer);
    ggml_free(c->context);
}

// A graph whose tensors lie in memory of one back end.
struct work {
    struct ggml_context * context;
    ggml_backend_buffer_t buffer;
    struct ggml_cgraph * graph;
};
static struct work begin(void) {
    struct work w = {0};
    struct ggml_init_params params = {1 << 20, NULL, true};
    w.context = ggml_init(params);
    w.graph = ggml_new_graph(w.context);
    return w;
}
static void allocate(struct work * w, ggml_backend_t backend) {
    w->buffer = ggml_backend_alloc_ctx_tensors(w->context, backend);
    for (int i = 0; i < ggml_graph_n_nodes(w->graph); i++)
        check(ggml_backend_supports_op(backend, ggml_graph_node(w->graph, i)), "an operation is supported");
}
static void run(struct work * w, ggml_backend_t backend) {
    check(ggml_backend_graph_compute(backend, w->graph) == GGML_STATUS_SUCCESS, "a graph is computed");
}
static void end(struct work * w) {
    ggml_backend_buffer_free(w->buffer);
    ggml_free(w->context);
}

static struct ggml_tensor * heads_of(struct work * w, struct ggml_tensor * t, int dim, const struct shape * s) {
    struct ggml_tensor * view = ggml_view_4d(w->context, t, dim, s->heads, s->visible, s->streams, dim * 2, t->nb[1], t->nb[2], 0);
    return ggml_permute(w->context, view, 0, 2, 1, 3);
}

static void write_rows(ggml_backend_t backend, struct ggml_tensor * t, int count, const float * rows, const int64_t * places) {
    struct work w = begin();
    struct ggml_tensor * flat = ggml_reshape_2d(w.context, t, t->ne[0], t->ne[1] * t->ne[2]);
    struct ggml_tensor * given = ggml_new_tensor_2d(w.context, GGML_TYPE_F32, t->ne[0], count);
    struct ggml_tensor * index = ggml_new_tensor_1d(w.context, GGML_TYPE_I64, count);
    ggml_build_forward_expand(w.graph, ggml_set_rows(w.context, flat, given, index));
    allocate(&w, backend);
    ggml_backend_tensor_set(given, rows, 0, ggml_nbytes(given));
    ggml_backend_tensor_set(index, places, 0, ggml_nbytes(index));
    run(&w, backend);
    end(&w);
}
static void attend(ggml_backend_t backend, struct cache * c, const struct shape * s, const float * q, const ggml_fp16_t * mask,
                   const float * sinks, float * out) {
    struct work w = begin();
    int heads = s->heads * s->group;
    // A model makes it this way too: heads of a token one after the other, then permuted.
    struct ggml_tensor * given = ggml_new_tensor_4d(w.context, GGML_TYPE_F32, s->dim, heads, s->tokens, s->streams);
    struct ggml_tensor * masks = s->mask ? ggml_new_tensor_4d(w.context, GGML_TYPE_F16, s->visible, s->tokens, 1, s->streams) : NULL;
    struct ggml_tensor * result = ggml_flash_attn_ext(w.context, ggml_permute(w.context, given, 0, 2, 1, 3), heads_of(&w, c->k, s->dim, s),
                                                      heads_of(&w, c->v, s->value_dim, s), masks, s->scale, s->bias, s->cap);
    struct ggml_tensor * sink = NULL;
    if (s->sinks) {
        sink = ggml_new_tensor_1d(w.context, GGML_TYPE_F32, heads);
        ggml_flash_attn_ext_add_sinks(result, sink);
    }
    ggml_build_forward_expand(w.graph, result);
    allocate(&w, backend);
    ggml_backend_tensor_set(given, q, 0, ggml_nbytes(given));
    if (masks) ggml_backend_tensor_set(masks, mask, 0, ggml_nbytes(masks));
    if (sink) ggml_backend_tensor_set(sink, sinks, 0, ggml_nbytes(sink));
    run(&w, backend);
    ggml_backend_tensor_get(result, out, 0, ggml_nbytes(result));
    end(&w);
}
static double difference(const float * a, const float * b, size_t n, const char * what) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) check(0, what);
        error += ((double) a[i] - b[i]) * ((double) a[i] - b[i]);
        size += (double) b[i] * b[i];
    }
    return sqrt(error / (size + 1e-30));
}
static void fill_mask(ggml_fp16_t * mask, const struct shape * s) {
    ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY), zero = ggml_fp32_to_fp16(0);
    for (int stream = 0; stream < s->streams; stream++)
        for (int token = 0; token < s->tokens; token++)
            for (int slot = 0; slot < s->visible; slot++) {
                int at = (stream * s->tokens + token) * s->visible + slot, shown = 1;
                int last = s->visible - s->tokens + token;
                if (s->mask == 1) shown = slot <= last;
                if (s->mask == 2) shown = below(3) == 0;
                if (s->mask == 3) shown = slot <= last && slot + 40 > last;
                if (s->mask == 4) shown = (slot / 64 + token) % 3 == 0;
                if (s->mask == 5) shown = token % 2 && slot <= last;
                mask[at] = !shown ? hidden : s->bias > 0 ? ggml_fp32_to_fp16((float) (slot - last)) : zero;
            }
}
static void one_case(double tolerance) {
    static const int dims[] = {64, 64, 128, 256, 96, 80, 512};
    struct shape s = {0};
    s.dim = dims[below(7)];
    s.value_dim = below(4) ? s.dim : dims[below(4)];
    s.heads = 1 + below(3);
    s.group = 1 + below(9);
    s.streams = 1 + below(2);
    s.slots = 512;
    s.visible = 256 * (1 + below(2));
    s.tokens = below(2) ? 1 : 1 + below(40);
    s.mask = below(6);
    s.scale = 1 / sqrtf((float) s.dim);
    s.bias = s.mask && below(4) == 0 ? 8 : 0;
    s.cap = below(3) == 0 ? 20 : 0;
    s.sinks = below(3) == 0;
    const char * policy = getenv("TQKV_KV");
    const int has_map = policy && strstr(policy, "map=");
    struct cache mine = new_cache(ours, &s), other = new_cache(cpu, &s);
    int widths[2] = {s.dim * s.heads, s.value_dim * s.heads};
    struct ggml_tensor * sides[2] = {mine.k, mine.v};
    // Rows are written in runs and at random, some twice. Each round ends with attention, which encodes older
    // rows.
    size_t results = (size_t) s.value_dim * s.heads * s.group * s.tokens * s.streams;
    size_t asked = (size_t) s.dim * s.heads * s.group * s.tokens * s.streams;
    float *q = malloc(4 * asked), *out = malloc(4 * results), *again = malloc(4 * results), *wanted = malloc(4 * results);
    float * sinks = malloc(4 * s.heads * s.group);
    ggml_fp16_t * mask = malloc(2 * s.visible * s.tokens * s.streams);
    for (int round = 0; round < 4; round++) {
        int count = 1 + below(200);
        int64_t * places = malloc(8 * count);
        for (int i = 0; i < count; i++) places[i] = below(2) ? below(s.slots * s.streams) : (round * 131 + i) % (s.slots * s.streams);
        for (int side = 0; side < 2; side++) {
            float * rows = malloc(4 * widths[side] * count);
            // Keys get a mean that is not 0.
            for (int i = 0; i < widths[side] * count; i++) rows[i] = normal() + (side ? 0 : (float) (i % 7 - 3) * 0.5f);
            write_rows(ours, sides[side], count, rows, places);
            free(rows);
        }
        free(places);
        for (size_t i = 0; i < asked; i++) q[i] = normal();
        for (int i = 0; i < s.heads * s.group; i++) sinks[i] = normal();
        if (s.mask) fill_mask(mask, &s);
        // The CPU gets the values that the cache reads back as.
        for (int side = 0; side < 2; side++) {
            size_t bytes = ggml_nbytes(sides[side]);
            char * copy = malloc(bytes);
            ggml_backend_tensor_get(sides[side], copy, 0, bytes);
            ggml_backend_tensor_set(side ? other.v : other.k, copy, 0, bytes);
            free(copy);
        }
        attend(ours, &mine, &s, q, mask, sinks, out);
        attend(cpu, &other, &s, q, mask, sinks, wanted);
        double error = difference(out, wanted, results, "outputs are finite");
        if (!(error <= tolerance))
            printf("dim %d,%d heads %d x %d streams %d tokens %d slots %d mask %d bias %g cap %g sinks %d: %.5f\n", s.dim, s.value_dim, s.heads,
                   s.group, s.streams, s.tokens, s.visible, s.mask, s.bias, s.cap, s.sinks, error);
        check(error <= tolerance, "attention is the CPU's");
        // Older rows are encoded now, with a map after 16 queries. Writing back the bytes that were read must change nothing.
        for (int i = 0; i < (has_map ? 17 : 1); i++) attend(ours, &mine, &s, q, mask, sinks, out);
        for (int side = 0; side < 2; side++) {
            size_t bytes = ggml_nbytes(sides[side]), row = sides[side]->nb[1];
            char * copy = malloc(bytes);
            ggml_backend_tensor_get(sides[side], copy, 0, bytes);
            // The pieces do not end at rows.
            for (size_t at = 0; at < bytes; at += 3 * row + 10) {
                size_t now = bytes - at < 3 * row + 10 ? bytes - at : 3 * row + 10;
                ggml_backend_tensor_set(sides[side], copy + at, at, now);
            }
            free(copy);
        }
        attend(ours, &mine, &s, q, mask, sinks, again);
        check(!memcmp(out, again, 4 * results), "writing back what is read changes nothing");
    }
    if (s.streams == 2) {
        struct ggml_context * views = ggml_init((struct ggml_init_params) {1 << 16, NULL, true});
        for (int side = 0; side < 2; side++) {
            struct ggml_tensor * t = sides[side];
            struct ggml_tensor * from = ggml_view_2d(views, t, t->ne[0], t->ne[1], t->nb[1], 0);
            struct ggml_tensor * to = ggml_view_2d(views, t, t->ne[0], t->ne[1], t->nb[1], t->nb[2]);
            ggml_backend_view_init(from);
            ggml_backend_view_init(to);
            ggml_backend_tensor_copy(from, to);
            char *a = malloc(t->nb[2]), *b = malloc(t->nb[2]);
            ggml_backend_tensor_get(t, a, 0, t->nb[2]);
            ggml_backend_tensor_get(t, b, t->nb[2], t->nb[2]);
            check(!memcmp(a, b, t->nb[2]), "a stream is copied");
            free(a);
            free(b);
        }
        ggml_free(views);
    }
    ggml_backend_buffer_clear(mine.buffer, 0);
    ggml_fp16_t * zeros = malloc(ggml_nbytes(mine.k));
    ggml_backend_tensor_get(mine.k, zeros, 0, ggml_nbytes(mine.k));
    for (size_t i = 0; i < ggml_nbytes(mine.k) / 2; i++)
        if (zeros[i]) { check(0, "clear leaves zeros"); break; }
    free(zeros);
    free(q), free(out), free(again), free(wanted), free(sinks), free(mask);
    free_cache(&mine);
    free_cache(&other);
}
static void rotate(ggml_backend_t backend, struct cache * c, const struct shape * s, int mode, float extrapolated, const int32_t * shifts,
                   const float * factors) {
    struct work w = begin();
    int rows = s->slots * s->streams;
    struct ggml_tensor * view = ggml_view_3d(w.context, c->k, s->dim, s->heads, rows, s->dim * 2, c->k->nb[1], 0);
    struct ggml_tensor * shift = ggml_new_tensor_1d(w.context, GGML_TYPE_I32, rows);
    struct ggml_tensor * factor = factors ? ggml_new_tensor_1d(w.context, GGML_TYPE_F32, s->dim / 2) : NULL;
    ggml_build_forward_expand(w.graph, ggml_rope_ext_inplace(w.context, view, shift, factor, s->dim / 2, mode, 4096, 10000, 0.5f, extrapolated, 1, 32, 1));
    allocate(&w, backend);
    ggml_backend_tensor_set(shift, shifts, 0, ggml_nbytes(shift));
    if (factor) ggml_backend_tensor_set(factor, factors, 0, ggml_nbytes(factor));
    run(&w, backend);
    end(&w);
}
// Rotated keys, some of them codes, match the CPU's rotation of the values that they read back as. The
// tolerance covers the error of encoding them again.
static void rope_case(double tolerance) {
    struct shape s = {0};
    s.dim = below(2) ? 64 : 128, s.value_dim = s.dim, s.heads = 2, s.group = 1, s.slots = 256, s.streams = 1 + below(2);
    s.tokens = 1, s.visible = 256, s.scale = 0.1f;
    struct cache mine = new_cache(ours, &s), other = new_cache(cpu, &s);
    int rows = s.slots * s.streams, width = s.dim * s.heads;
    float *keys = malloc(4 * rows * width), *q = calloc(rows * width, 4), *out = malloc(4 * rows * width), *factors = malloc(4 * s.dim);
    int64_t * places = malloc(8 * rows);
    int32_t * shifts = malloc(4 * rows);
    for (int i = 0; i < rows * width; i++) keys[i] = normal() + 0.3f;
    for (int i = 0; i < rows; i++) places[i] = (i * 37) % rows, shifts[i] = below(3) ? -8 : below(2) ? 0 : 100 - below(200);
    for (int i = 0; i < s.dim; i++) factors[i] = 1 + 0.1f * below(10);
    write_rows(ours, mine.k, rows, keys, places);
    write_rows(ours, mine.v, rows, keys, places);
    attend(ours, &mine, &s, q, NULL, NULL, out);
    size_t bytes = ggml_nbytes(mine.k);
    ggml_fp16_t *a = malloc(bytes), *b = malloc(bytes);
    ggml_backend_tensor_get(mine.k, a, 0, bytes);
    ggml_backend_tensor_set(other.k, a, 0, bytes);
    int mode = below(2) ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
    float extrapolated = below(2) ? 0.5f : 0;
    const float * given = below(2) ? factors : NULL;
    rotate(ours, &mine, &s, mode, extrapolated, shifts, given);
    rotate(cpu, &other, &s, mode, extrapolated, shifts, given);
    ggml_backend_tensor_get(mine.k, a, 0, bytes);
    ggml_backend_tensor_get(other.k, b, 0, bytes);
    float *first = malloc(2 * bytes), *second = malloc(2 * bytes);
    ggml_fp16_to_fp32_row(a, first, bytes / 2);
    ggml_fp16_to_fp32_row(b, second, bytes / 2);
    double error = difference(first, second, bytes / 2, "keys are finite");
    if (!(error <= tolerance)) printf("rotation mode %d extrapolated %g: %.5f\n", mode, extrapolated, error);
    check(error <= tolerance, "rotation is the CPU's");
    free(keys), free(q), free(out), free(factors), free(places), free(shifts), free(a), free(b), free(first), free(second);
    free_cache(&mine);
    free_cache(&other);
}
// Keys whose first values are also the values (latent attention), as the host's scheduler divides a graph.
static void latent_case(void) {
    struct shape s = {64, 64, 1, 4, 256, 1, 3, 256, 0.1f, 0, 0, 0, 0};
    struct cache c = new_cache(ours, &s);
    float *rows = malloc(4 * 64 * 256), q[64 * 12], out[32 * 12], *wanted = malloc(4 * 32 * 12);
    int64_t places[256];
    for (int i = 0; i < 256; i++) places[i] = (i * 37) % 256;
    for (int i = 0; i < 64 * 256; i++) rows[i] = normal();
    for (int i = 0; i < 64 * 12; i++) q[i] = normal();
    write_rows(ours, c.k, 256, rows, places);
    ggml_backend_t both[2] = {ours, cpu};
    ggml_backend_sched_t scheduler = ggml_backend_sched_new(both, NULL, 2, 64, false, true);
    struct work w = begin();
    struct ggml_tensor * given = ggml_new_tensor_4d(w.context, GGML_TYPE_F32, 64, 3, 4, 1);
    ggml_set_input(given);
    struct ggml_tensor * k = heads_of(&w, c.k, 64, &s);
    struct ggml_tensor * v = ggml_view_4d(w.context, k, 32, 256, 1, 1, k->nb[1], k->nb[2], k->nb[3], 0);
    struct ggml_tensor * result = ggml_flash_attn_ext(w.context, given, k, v, NULL, s.scale, 0, 0);
    ggml_set_output(result);
    ggml_build_forward_expand(w.graph, result);
    check(ggml_backend_sched_alloc_graph(scheduler, w.graph), "a graph is divided");
    ggml_backend_tensor_set(given, q, 0, sizeof q);
    check(ggml_backend_sched_graph_compute(scheduler, w.graph) == GGML_STATUS_SUCCESS, "a divided graph is computed");
    check(ggml_backend_sched_get_tensor_backend(scheduler, result) == ours, "latent attention is served");
    ggml_backend_tensor_get(result, out, 0, sizeof out);
    // The reference is in f64, with keys rounded to f16.
    for (int h = 0; h < 4; h++)
        for (int t = 0; t < 3; t++) {
            double sum = 0, acc[32] = {0};
            for (int i = 0; i < 256; i++) {
                double dot = 0;
                for (int d = 0; d < 64; d++) dot += (double) q[(h * 3 + t) * 64 + d] * ggml_fp16_to_fp32(ggml_fp32_to_fp16(rows[i * 64 + d]));
                double weight = exp(dot * s.scale);
                sum += weight;
                for (int d = 0; d < 32; d++) acc[d] += weight * rows[i * 64 + d];
            }
            for (int d = 0; d < 32; d++) wanted[(t * 4 + h) * 32 + d] = (float) (acc[d] / sum);
        }
    check(difference(out, wanted, 32 * 12, "outputs are finite") < 0.005, "latent attention is right");
    ggml_backend_sched_free(scheduler);
    ggml_free(w.context);
    free_cache(&c);
    free(rows), free(wanted);
}
// A host that measures a context without memory (-fit) ends the process if an operation that writes to a cache
// is refused, also if that cache is one that no buffer will be made for.
static void measured(struct ggml_context * bad, enum ggml_type type, const char * name) {
    struct ggml_tensor * t = ggml_new_tensor_2d(bad, type, 128, 256);
    ggml_set_name(t, name);
    t->buffer = ggml_backend_buft_alloc_buffer(ggml_backend_get_default_buffer_type(ours), 0);
    struct ggml_tensor * rows = ggml_new_tensor_2d(bad, GGML_TYPE_F32, 128, 1), * index = ggml_new_tensor_1d(bad, GGML_TYPE_I64, 1);
    struct ggml_tensor * part = ggml_view_2d(bad, t, 128, 1, t->nb[1], 0);
    check(ggml_backend_supports_op(ours, ggml_set_rows(bad, t, rows, index)), "a refused cache can be measured");
    check(ggml_backend_supports_op(ours, ggml_cpy(bad, rows, part)), "a refused state can be measured");
    ggml_backend_buffer_free(t->buffer);
    t->buffer = NULL;
}
// The device refuses operations and caches that it does not serve, before any data is lost.
static void refusals(void) {
    struct shape s = {64, 64, 2, 2, 256, 1, 1, 256, 0.1f, 0, 0, 0, 0};
    struct cache c = new_cache(ours, &s);
    struct work w = begin();
    struct ggml_tensor * q = ggml_new_tensor_4d(w.context, GGML_TYPE_F32, s.dim, s.tokens, 4, 1);
    struct ggml_tensor *k = heads_of(&w, c.k, 64, &s), *v = heads_of(&w, c.v, 64, &s);
    check(ggml_backend_supports_op(ours, ggml_flash_attn_ext(w.context, q, k, v, NULL, 1, 0, 0)), "attention is served");
    check(!ggml_backend_supports_op(ours, ggml_flash_attn_ext(w.context, q, k, k, NULL, 1, 0, 0)), "keys of several heads as values are the CPU's");
    check(!ggml_backend_supports_op(ours, ggml_mul_mat(w.context, k, q)), "products of matrices are the CPU's");
    check(!ggml_backend_supports_op(ours, ggml_add(w.context, q, q)), "sums are the CPU's");
    // No codec has head dim 40.
    struct shape odd = {40, 40, 2, 2, 256, 1, 1, 256, 0.1f, 0, 0, 0, 0};
    struct cache d = new_cache(ours, &odd);
    struct ggml_tensor * p = ggml_new_tensor_4d(w.context, GGML_TYPE_F32, 40, 1, 4, 1);
    k = heads_of(&w, d.k, 40, &odd), v = heads_of(&w, d.v, 40, &odd);
    check(!ggml_backend_supports_op(ours, ggml_flash_attn_ext(w.context, p, k, v, NULL, 1, 0, 0)), "other head dims are the CPU's");
    // Shifts with several positions per token are not served, those of a part of each key are.
    struct ggml_tensor * shift = ggml_new_tensor_1d(w.context, GGML_TYPE_I32, 4 * 256);
    struct ggml_tensor * keys = ggml_view_3d(w.context, c.k, 64, 2, 256, 128, c.k->nb[1], 0);
    struct ggml_tensor * last = ggml_view_3d(w.context, c.k, 32, 2, 256, 128, c.k->nb[1], 64);
    int sections[4] = {8, 8, 8, 8};
    check(!ggml_backend_supports_op(ours, ggml_rope_multi_inplace(w.context, keys, shift, NULL, 64, sections, GGML_ROPE_TYPE_MROPE, 4096, 10000, 1, 0, 1, 32, 1)),
          "shifts of several positions are refused");
    shift = ggml_new_tensor_1d(w.context, GGML_TYPE_I32, 256);
    check(ggml_backend_supports_op(ours, ggml_rope_ext_inplace(w.context, last, shift, NULL, 32, 0, 4096, 10000, 1, 0, 1, 32, 1)),
          "shifts of the last part of each key are served");
    static const char * const refused[] = {"cache_k_l0", "cache_v_l3"};
    for (int i = 0; i < 2; i++) {
        struct ggml_context * bad = ggml_init((struct ggml_init_params) {1 << 16, NULL, true});
        measured(bad, GGML_TYPE_I16, refused[i]);
        ggml_free(bad);
        bad = ggml_init((struct ggml_init_params) {1 << 16, NULL, true});
        ggml_set_name(ggml_new_tensor_2d(bad, GGML_TYPE_I16, 128, 256), refused[i]);
        check(!ggml_backend_alloc_ctx_tensors(bad, ours), "a cache of a type without values is refused");
        ggml_free(bad);
    }
    static const char * const plain[] = {"cache_r_l0", "cache_s_l1", "cache_ple_r_l1", "cache_idx_k_l0"};
    for (int i = 0; i < 4; i++) {
        struct ggml_context * state = ggml_init((struct ggml_init_params) {1 << 16, NULL, true});
        measured(state, GGML_TYPE_F32, plain[i]);
        ggml_free(state);
        state = ggml_init((struct ggml_init_params) {1 << 16, NULL, true});
        struct ggml_tensor * t = ggml_new_tensor_2d(state, GGML_TYPE_F32, 128, 256);
        ggml_set_name(t, plain[i]);
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(state, ours);
        check(buffer && ggml_backend_buffer_is_host(buffer), "a recurrent state is plain memory");
        struct ggml_tensor * sum = ggml_add(state, t, t);
        check(ggml_backend_supports_op(cpu, sum) && !ggml_backend_supports_op(ours, sum), "the CPU computes with it");
        float now[2] = {1, 2}, then[2] = {0};
        ggml_backend_tensor_set(t, now, 4 * 129, sizeof now);
        check(((float *) t->data)[130] == 2, "it lies where the CPU reads it");
        ggml_backend_tensor_get(t, then, 4 * 129, sizeof then);
        check(then[0] == 1 && then[1] == 2, "it reads back");
        ggml_backend_buffer_clear(buffer, 0);
        check(((float *) t->data)[130] == 0, "it is cleared");
        ggml_backend_buffer_free(buffer);
        ggml_free(state);
    }
    ggml_free(w.context);
    free_cache(&c);
    free_cache(&d);
}
int main(int count, char ** arguments) {
    if (count < 5) return 2;
    ggml_backend_load_all_from_path(arguments[1]);
    device = ggml_backend_dev_by_name("TQKV");
    if (!device) { printf("failed: the library does not load\n"); return 1; }
    check(!ggml_backend_dev_init(device, "s4 hot=few"), "wrong parameters of the device are refused");
    // Parameters of the device take precedence over the environment, for caches that are made afterwards.
    ours = ggml_backend_dev_init(device, getenv("PARAMETERS"));
    if (!ours) { printf("failed: no back end\n"); return 1; }
    cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    ggml_backend_set_n_threads_t threads = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads");
    threads(ours, 2);
    double tolerance = atof(arguments[2]);
    state = (uint64_t) atoll(arguments[4]);
    for (int i = 0; i < atoi(arguments[3]); i++) one_case(tolerance);
    double rotation = count > 5 ? atof(arguments[5]) : tolerance;
    for (int i = 0; i < 8; i++) rope_case(rotation);
    latent_case();
    refusals();
    ggml_backend_free(ours);
    ggml_backend_free(cpu);
    printf("%d failed\n", failures);
    return failures > 0;
}
