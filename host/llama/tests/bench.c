// Time of one FLASH_ATTN_EXT of one token over a long context: 32 query heads, 8 KV heads, head dim 128.
// It runs on the CPU's back end or on ours.
//
// bench LIBRARIES f16|q8_0|q4_0|ours SLOTS THREADS TIMES
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DIM = 128, HEADS = 8, GROUP = 4, WIDTH = DIM * HEADS, BATCH = 512 };

// Seconds of a clock. CLOCK_PROCESS_CPUTIME_ID counts all threads, and other load changes it least.
static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}
static float normal(void) {
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float) rand() / RAND_MAX - 0.5f;
    return sum * 1.732f;
}
static struct ggml_context * metadata(void) {
    struct ggml_init_params params = {1 << 20, NULL, true};
    return ggml_init(params);
}
static struct ggml_tensor * heads(struct ggml_context * c, struct ggml_tensor * t, int slots) {
    size_t head = ggml_row_size(t->type, DIM);
    return ggml_permute(c, ggml_view_4d(c, t, DIM, HEADS, slots, 1, head, t->nb[1], t->nb[2], 0), 0, 2, 1, 3);
}
static struct ggml_tensor * attention(struct ggml_context * c, struct ggml_tensor ** q, struct ggml_tensor * k, struct ggml_tensor * v, int slots) {
    *q = ggml_new_tensor_4d(c, GGML_TYPE_F32, DIM, 1, HEADS * GROUP, 1);
    return ggml_flash_attn_ext(c, *q, heads(c, k, slots), heads(c, v, slots), NULL, 0.0884f, 0, 0);
}
int main(int count, char ** arguments) {
    if (count < 6) return 2;
    ggml_backend_load_all_from_path(arguments[1]);
    int slots = atoi(arguments[3]), threads = atoi(arguments[4]), times = atoi(arguments[5]);
    int is_ours = !strcmp(arguments[2], "ours");
    enum ggml_type type = !strcmp(arguments[2], "q8_0") ? GGML_TYPE_Q8_0 : !strcmp(arguments[2], "q4_0") ? GGML_TYPE_Q4_0 : GGML_TYPE_F16;
    ggml_backend_dev_t device = is_ours ? ggml_backend_dev_by_name("TQKV") : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!device) { printf("failed: no device\n"); return 1; }
    ggml_backend_t backend = ggml_backend_dev_init(device, NULL);
    ggml_backend_set_n_threads_t set = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads");
    set(backend, threads);
    struct ggml_context * c = metadata();
    struct ggml_tensor *k = ggml_new_tensor_3d(c, type, WIDTH, slots, 1), *v = ggml_new_tensor_3d(c, type, WIDTH, slots, 1);
    ggml_set_name(k, "cache_k_l0");
    ggml_set_name(v, "cache_v_l0");
    if (!ggml_backend_alloc_ctx_tensors(c, backend)) { printf("failed: no buffer\n"); return 1; }
    // Rows are written in batches. A step of attention after each batch encodes older rows.
    float * rows = malloc(sizeof(float) * WIDTH * BATCH);
    int64_t places[BATCH];
    for (int from = 0; from < slots; from += BATCH) {
        for (int side = 0; side < 2; side++) {
            struct ggml_context * w = metadata();
            struct ggml_tensor * given = ggml_new_tensor_2d(w, GGML_TYPE_F32, WIDTH, BATCH);
            struct ggml_tensor * index = ggml_new_tensor_1d(w, GGML_TYPE_I64, BATCH);
            struct ggml_cgraph * graph = ggml_new_graph(w);
            ggml_build_forward_expand(graph, ggml_set_rows(w, ggml_reshape_2d(w, side ? v : k, WIDTH, slots), given, index));
            struct ggml_tensor * q = NULL;
            // The CPU encodes nothing, so it needs no step.
            if (side && is_ours) ggml_build_forward_expand(graph, attention(w, &q, k, v, slots));
            ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(w, backend);
            for (int i = 0; i < ggml_graph_n_nodes(graph); i++)
                if (!ggml_backend_supports_op(backend, ggml_graph_node(graph, i))) { printf("failed: not served\n"); return 1; }
            for (int i = 0; i < WIDTH * BATCH; i++) rows[i] = normal();
            for (int i = 0; i < BATCH; i++) places[i] = from + i;
            ggml_backend_tensor_set(given, rows, 0, ggml_nbytes(given));
            ggml_backend_tensor_set(index, places, 0, ggml_nbytes(index));
            if (q) ggml_backend_tensor_set(q, rows, 0, ggml_nbytes(q));
            if (ggml_backend_graph_compute(backend, graph)) { printf("failed: rows\n"); return 1; }
            ggml_backend_buffer_free(buffer);
            ggml_free(w);
        }
    }
    struct ggml_context * w = metadata();
    struct ggml_tensor * q;
    struct ggml_cgraph * graph = ggml_new_graph(w);
    ggml_build_forward_expand(graph, attention(w, &q, k, v, slots));
    ggml_backend_alloc_ctx_tensors(w, backend);
    ggml_backend_tensor_set(q, rows, 0, ggml_nbytes(q));
    double least = 1e9, processor = 1e9;
    for (int i = 0; i < times + 2; i++) {
        double start = seconds(CLOCK_MONOTONIC), own = seconds(CLOCK_PROCESS_CPUTIME_ID);
        if (ggml_backend_graph_compute(backend, graph)) return 1;
        double now = seconds(CLOCK_MONOTONIC) - start;
        own = seconds(CLOCK_PROCESS_CPUTIME_ID) - own;
        if (i >= 2 && now < least) least = now;
        if (i >= 2 && own < processor) processor = own;
    }
    printf("%s %d slots, %d threads: %.3f ms, of processors %.3f ms\n", arguments[2], slots, threads, 1e3 * least, 1e3 * processor);
    return 0;
}
