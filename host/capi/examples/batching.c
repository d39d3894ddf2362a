/* Continuous batching: the tokens of several sequences lie in any free slots of one cache. Every result is
 * compared with dense attention over the same keys and values in f32; the exit code is 0 only if all are near. */
#include "tqkv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 8, KV_HEADS = 2, DIM = 64, SLOTS = 1024, PROMPT = 200, SEQUENCES = 3, STEPS = 140 };
enum { TOKEN = KV_HEADS * DIM, QUERY = HEADS * DIM };

/* The slots of a sequence in the order of its tokens. The first `shared` are those of the prompt. */
struct sequence {
    size_t slots[SLOTS], len, shared;
};

static tqkv_slots *cache;
static tqkv_mask *mask;
static size_t free_slots[SLOTS], num_free;
static float keys[SLOTS * TOKEN], values[SLOTS * TOKEN]; /* what each slot was given, for the comparison */
static double error, energy;

static void must(tqkv_status status) {
    if (status != TQKV_OK) {
        printf("%s: %s\n", tqkv_status_name(status), tqkv_last_error());
        exit(1);
    }
}

/* Numbers with the variance 1, the same on every machine. */
static void fill(float *x, size_t n) {
    static uint32_t state = 42;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = ((float)(int32_t)(state >> 8) / 8388608.0f - 1.0f) * 1.7320508f;
    }
}

/* Attention of one token over some slots. */
static void dense(const size_t *slots, size_t len, const float *q, float *out) {
    memset(out, 0, QUERY * sizeof *out);
    for (size_t head = 0; head < HEADS; head++, q += DIM, out += DIM) {
        size_t of_head = head / (HEADS / KV_HEADS) * DIM;
        float sum = 0;
        for (size_t i = 0; i < len; i++) {
            const float *k = keys + slots[i] * TOKEN + of_head, *v = values + slots[i] * TOKEN + of_head;
            float logit = 0;
            for (size_t d = 0; d < DIM; d++)
                logit += q[d] * k[d];
            float weight = expf(logit / sqrtf(DIM));
            sum += weight;
            for (size_t d = 0; d < DIM; d++)
                out[d] += weight * v[d];
        }
        for (size_t d = 0; d < DIM; d++)
            out[d] /= sum;
    }
}

/* `tokens` new tokens of each sequence, in one call per layer; this example has one layer. */
static void step(struct sequence *sequences, size_t n, size_t tokens) {
    static float q[PROMPT * QUERY], k[PROMPT * TOKEN], v[PROMPT * TOKEN], out[PROMPT * QUERY], want[QUERY];
    static size_t slots[PROMPT], positions[PROMPT];
    size_t count = n * tokens;
    must(tqkv_mask_clear(mask));
    for (size_t i = 0; i < count; i++) {
        struct sequence *sequence = &sequences[i / tokens];
        positions[i] = sequence->len;
        slots[i] = sequence->slots[sequence->len++] = free_slots[--num_free];
        if (i % tokens == tokens - 1)
            must(tqkv_mask_causal(mask, sequence->slots, sequence->len, tokens));
    }
    fill(q, count * QUERY);
    fill(k, count * TOKEN);
    fill(v, count * TOKEN);
    must(tqkv_slots_write(cache, 0, slots, positions, count, TQKV_F32, k, count * TOKEN, v, count * TOKEN));
    must(tqkv_slots_attend(cache, 0, TQKV_F32, q, count * QUERY, mask, TQKV_F32, out, count * QUERY));
    for (size_t i = 0; i < count; i++) {
        memcpy(keys + slots[i] * TOKEN, k + i * TOKEN, TOKEN * sizeof *k);
        memcpy(values + slots[i] * TOKEN, v + i * TOKEN, TOKEN * sizeof *v);
    }
    for (size_t i = 0; i < count; i++) {
        dense(sequences[i / tokens].slots, positions[i] + 1, q + i * QUERY, want);
        for (size_t j = 0; j < QUERY; j++) {
            error += pow(out[i * QUERY + j] - want[j], 2);
            energy += pow(want[j], 2);
        }
    }
}

int main(void) {
    static struct sequence prompt, running[SEQUENCES];
    size_t bytes;
    must(tqkv_slots_create("layers=1 heads=8 kv-heads=2 head-dim=64 t4 hot=16", SLOTS, 1, &cache));
    must(tqkv_mask_create(cache, 0, &mask));
    while (num_free < SLOTS) {
        free_slots[num_free] = num_free;
        num_free++;
    }
    /* The prompt is written once. All sequences see its slots. */
    step(&prompt, 1, PROMPT);
    prompt.shared = PROMPT;
    for (size_t i = 0; i < SEQUENCES; i++)
        running[i] = prompt;
    for (size_t i = 1; i <= STEPS; i++) {
        step(running, SEQUENCES, 1);
        if (i % 60 == 0) {
            /* One ends. Its slots are free for another, which begins without the prompt: its first tokens are sinks. */
            struct sequence *ended = &running[i / 60 % SEQUENCES];
            size_t own = ended->len - ended->shared;
            must(tqkv_slots_forget(cache, ended->slots + ended->shared, own));
            memcpy(free_slots + num_free, ended->slots + ended->shared, own * sizeof *free_slots);
            num_free += own;
            ended->len = ended->shared = 0;
        }
    }
    must(tqkv_slots_bytes(cache, &bytes));
    printf("%zu tokens in %zu bytes; f16 takes %zu\n", SLOTS - num_free, bytes, (SLOTS - num_free) * 4 * TOKEN);
    printf("relative squared error of the results %.4f\n", error / energy);
    tqkv_mask_free(mask);
    tqkv_slots_free(cache);
    if (error < 0.02 * energy)
        printf("every result is near\n");
    return !(error < 0.02 * energy);
}
