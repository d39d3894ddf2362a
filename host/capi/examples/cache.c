/* A tour of the library, which checks what it prints: the exit code is 0 only if everything holds. */
#include "tqkv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, HEADS = 8, KV_HEADS = 2, DIM = 128, TOKENS = 300 };
enum { TOKEN_VALUES = KV_HEADS * DIM, QUERY_VALUES = HEADS * DIM };

static int failures;

static void check(int holds, const char *what) {
    if (!holds) {
        printf("FAILED: %s (%s)\n", what, tqkv_last_error());
        failures++;
    }
}

/* A call that must succeed. */
static void must(tqkv_status status, const char *what) {
    if (status != TQKV_OK)
        printf("%s: %s: %s\n", what, tqkv_status_name(status), tqkv_last_error());
    check(status == TQKV_OK, what);
}

/* A call that must fail: its status and its text are printed. */
static void refused(tqkv_status status, tqkv_status expected, const char *what) {
    printf("  %-21s %-18s %s\n", what, tqkv_status_name(status), tqkv_last_error());
    check(status == expected, what);
}

/* Between -1 and 1, the same on every machine. */
static float next(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)(*state >> 8) / 8388608.0f - 1.0f;
}

static void fill(float *x, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++)
        x[i] = next(&seed);
}

static double dot(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

/* The largest difference of two vectors over the largest value of the first. */
static double distance(const float *want, const float *got, size_t n) {
    double most = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)want[i] - got[i]));
        largest = fmax(largest, fabs((double)want[i]));
    }
    return most / largest;
}

/* The bits of a float between -1 and 1 as an IEEE half, cut off. */
static uint16_t half_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 23 & 0xff) - 112;
    if (exponent <= 0)
        return 0;
    return (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)exponent << 10 | (bits >> 13 & 0x3ff));
}

static void codecs(void) {
    static float x[DIM], back[DIM];
    static uint8_t block[4 * DIM];
    fill(x, DIM, 1);
    printf("codecs at head dim %d, one vector encoded and decoded\n", DIM);
    printf("  name   bytes  bits/value  error  norm    <x,x>/<x,x>\n");
    for (size_t i = 0; i < tqkv_codec_count(); i++) {
        const char *name = tqkv_codec_name(i);
        char text[64];
        tqkv_codec *codec = NULL;
        size_t bytes = 0;
        float score = 0;
        /* With this scale a decoded vector has the norm of the original. */
        snprintf(text, sizeof text, "%s scale-mode=preserving", name);
        must(tqkv_codec_create(text, DIM, &codec), text);
        must(tqkv_codec_block_bytes(codec, &bytes), "tqkv_codec_block_bytes");
        must(tqkv_codec_encode(codec, x, DIM, block, bytes), "tqkv_codec_encode");
        must(tqkv_codec_decode(codec, block, bytes, back, DIM), "tqkv_codec_decode");
        must(tqkv_codec_scores(codec, x, DIM, block, bytes, &score, 1), "tqkv_codec_scores");
        double energy = dot(x, x, DIM), cross = dot(x, back, DIM), norm = sqrt(dot(back, back, DIM) / energy);
        double error = 1 + norm * norm - 2 * cross / energy;
        printf("  %-5s  %5zu  %10.3f  %5.3f  %.4f  %.4f\n", name, bytes, 8.0 * (double)bytes / DIM, error, norm,
               score / energy);
        check(fabs(score - cross) < 1e-4 * energy, "a score is the dot product with the decoded vector");
        int uniform = name[0] == 'q' || name[0] == 'u' || name[0] == 'f';
        check(fabs(norm - 1) < (uniform ? 0.06 : 0.002), "the norm is preserved");
        tqkv_codec_free(codec);
    }
}

static void append_all(tqkv_cache *cache, const float *k, const float *v, size_t tokens) {
    for (size_t layer = 0; layer < LAYERS; layer++)
        must(tqkv_append(cache, layer, TQKV_F32, k, tokens * TOKEN_VALUES, v, tokens * TOKEN_VALUES), "tqkv_append");
}

static void print_stats(const tqkv_cache *cache, const char *when) {
    tqkv_cache_stats stats;
    must(tqkv_stats(cache, &stats), "tqkv_stats");
    printf("  %-16s %3zu tokens: %zu sinks, %zu hot, %zu warm; %zu bytes, f16 would take %zu\n", when, stats.tokens,
           stats.sinks, stats.hot, stats.warm, stats.allocated_bytes,
           stats.tokens * LAYERS * TOKEN_VALUES * 2 * sizeof(uint16_t));
    check(stats.sinks + stats.hot + stats.warm == stats.tokens, "every token is in one place");
}

static tqkv_status attend(const tqkv_cache *cache, size_t layer, const float *q, float *out) {
    return tqkv_attend(cache, layer, TQKV_F32, q, QUERY_VALUES, TQKV_F32, out, QUERY_VALUES);
}

static size_t length(const tqkv_cache *cache) {
    size_t len = SIZE_MAX;
    must(tqkv_len(cache, &len), "tqkv_len");
    return len;
}

/* Before the first cache: how many threads divide the work of a call. */
static void threads(void) {
    size_t running = 0;
    must(tqkv_set_threads(2), "tqkv_set_threads");
    must(tqkv_threads(&running), "tqkv_threads");
    printf("%zu threads\n", running);
    check(running == 2, "as many as were asked for");
    must(tqkv_set_threads(2), "the same again");
    refused(tqkv_set_threads(3), TQKV_UNSUPPORTED, "another number");
}

/* The text of a cache: the shape in numbers, then how tokens are kept. */
static const char *spec(const char *policy) {
    static char text[128];
    snprintf(text, sizeof text, "layers=%d heads=%d kv-heads=%d head-dim=%d %s", LAYERS, HEADS, KV_HEADS, DIM, policy);
    return text;
}

static tqkv_cache *create(const char *policy) {
    tqkv_cache *cache = NULL;
    must(tqkv_create(spec(policy), &cache), policy);
    return cache;
}

static void life_of_a_cache(const float *k, const float *v, const float *q) {
    static float exact[QUERY_VALUES], out[QUERY_VALUES], again[QUERY_VALUES], scores[TOKENS];
    size_t count = 0;
    printf("a cache of %d layers, %d heads over %d KV heads\n", LAYERS, HEADS, KV_HEADS);
    tqkv_cache *plain = create("f16 hot=32"), *cache = create("s4,s3 hot=32");
    print_stats(cache, "empty");
    check(attend(cache, 0, q, out) == TQKV_EMPTY, "nothing to attend to");

    append_all(plain, k, v, TOKENS);
    append_all(cache, k, v, TOKENS);
    print_stats(cache, "appended");
    check(length(cache) == TOKENS, "all tokens are there");
    must(attend(plain, 1, q, exact), "tqkv_attend");
    must(attend(cache, 1, q, out), "tqkv_attend");
    printf("  attended: the largest difference of s4,s3 from f16 is %.1f %% of the largest result\n",
           100 * distance(exact, out, QUERY_VALUES));
    check(distance(exact, out, QUERY_VALUES) < 0.25, "attention is near that of f16");

    must(tqkv_scores(cache, 0, 3, TQKV_F32, q, DIM, scores, TOKENS, &count), "tqkv_scores");
    check(count == TOKENS, "a score for every token");
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(scores[i] - dot(q, k + i * TOKEN_VALUES, DIM) / sqrt(DIM)));
    printf("  %zu scores of head 3, the worst is %.3f off\n", count, largest);
    check(largest < 0.5, "scores are near the exact ones");

    must(tqkv_truncate(cache, 200), "tqkv_truncate");
    print_stats(cache, "truncated");
    check(length(cache) == 200, "200 tokens remain");
    must(tqkv_reset(cache), "tqkv_reset");
    print_stats(cache, "reset");
    append_all(cache, k, v, TOKENS);
    must(attend(cache, 1, q, again), "tqkv_attend");
    check(memcmp(out, again, sizeof out) == 0, "the same tokens give the same bits after a reset");
    tqkv_free(plain);
    tqkv_free(cache);
}

static void halves_and_prefill(const float *k, const float *v) {
    enum { CHUNK = 40 };
    static uint16_t hk[CHUNK * TOKEN_VALUES], hv[CHUNK * TOKEN_VALUES];
    static float q[CHUNK * QUERY_VALUES], out[CHUNK * QUERY_VALUES], one[QUERY_VALUES];
    fill(q, CHUNK * QUERY_VALUES, 9);
    for (size_t i = 0; i < CHUNK * TOKEN_VALUES; i++) {
        hk[i] = half_bits(k[i]);
        hv[i] = half_bits(v[i]);
    }
    tqkv_cache *cache = create("t3 hot=32");
    must(tqkv_prefill(cache, 0, TQKV_F32, q, CHUNK * QUERY_VALUES, TQKV_F16, hk, CHUNK * TOKEN_VALUES, hv,
                      CHUNK * TOKEN_VALUES, TQKV_F32, out, CHUNK * QUERY_VALUES),
         "tqkv_prefill");
    must(attend(cache, 0, q + (CHUNK - 1) * QUERY_VALUES, one), "tqkv_attend");
    double apart = distance(one, out + (CHUNK - 1) * QUERY_VALUES, QUERY_VALUES);
    printf("a chunk of %zu tokens of f16: its last row is %.5f from attending alone\n", length(cache), apart);
    check(apart < 1e-3, "a chunk attends as its tokens do");
    tqkv_free(cache);
}

/* A step of several sequences in one call, with queries and results of f16. */
static void several_sequences(const float *k, const float *v) {
    enum { MANY = 3, LONGEST = 300 };
    static const size_t tokens[MANY] = {20, LONGEST, 100};
    static float wide[MANY * QUERY_VALUES], want[QUERY_VALUES];
    static uint16_t q[MANY * QUERY_VALUES], out[MANY * QUERY_VALUES], one[QUERY_VALUES];
    tqkv_cache *caches[MANY];
    const tqkv_cache *handles[MANY];
    fill(wide, MANY * QUERY_VALUES, 11);
    for (size_t i = 0; i < MANY * QUERY_VALUES; i++)
        q[i] = half_bits(wide[i]);
    for (size_t i = 0; i < MANY; i++) {
        handles[i] = caches[i] = create("s4 hot=32");
        append_all(caches[i], k, v, tokens[i]);
    }
    must(tqkv_attend_many(handles, MANY, 1, TQKV_F16, q, MANY * QUERY_VALUES, TQKV_F16, out, MANY * QUERY_VALUES),
         "tqkv_attend_many");
    for (size_t i = 0; i < MANY; i++) {
        const uint16_t *query = q + i * QUERY_VALUES;
        must(tqkv_attend(caches[i], 1, TQKV_F16, query, QUERY_VALUES, TQKV_F16, one, QUERY_VALUES), "tqkv_attend");
        check(memcmp(one, out + i * QUERY_VALUES, sizeof one) == 0, "one call answers as many");
        must(tqkv_attend(caches[i], 1, TQKV_F16, query, QUERY_VALUES, TQKV_F32, want, QUERY_VALUES), "tqkv_attend");
    }
    printf("%d sequences of %zu, %zu and %zu tokens attended in one call\n", MANY, tokens[0], tokens[1], tokens[2]);
    for (size_t i = 0; i < MANY; i++)
        tqkv_free(caches[i]);
}

/* Bytes in memory, for the functions below. */
struct stream {
    uint8_t *bytes;
    size_t len, at;
};

static int write_bytes(void *user, const uint8_t *bytes, size_t len) {
    struct stream *stream = user;
    uint8_t *grown = realloc(stream->bytes, stream->len + len + 1);
    if (!grown)
        return 1;
    stream->bytes = grown;
    memcpy(grown + stream->len, bytes, len);
    stream->len += len;
    return 0;
}

static ptrdiff_t read_bytes(void *user, uint8_t *bytes, size_t len) {
    struct stream *stream = user;
    size_t left = stream->len - stream->at, count = len < left ? len : left;
    memcpy(bytes, stream->bytes + stream->at, count);
    stream->at += count;
    return (ptrdiff_t)count;
}

static void forks_and_snapshots(const float *k, const float *v, const float *q) {
    static float want[QUERY_VALUES], out[QUERY_VALUES], key[DIM], one[DIM];
    tqkv_cache *cache = create("s4,s3 hot=32"), *fork = NULL, *restored = create("s4,s3 hot=32");
    tqkv_cache_stats stats;
    struct stream stream = {NULL, 0, 0};
    append_all(cache, k, v, TOKENS);
    must(attend(cache, 1, q, want), "tqkv_attend");

    must(tqkv_fork(cache, &fork), "tqkv_fork");
    must(tqkv_stats(fork, &stats), "tqkv_stats");
    printf("a fork of %zu tokens: %zu of %zu bytes are shared\n", length(fork), stats.shared_bytes, stats.allocated_bytes);
    check(2 * stats.shared_bytes > stats.allocated_bytes, "a fork shares pages");
    append_all(fork, k, v, 10);
    must(attend(cache, 1, q, out), "tqkv_attend");
    check(memcmp(want, out, sizeof out) == 0, "what is appended to a fork changes nothing else");
    must(tqkv_truncate(fork, TOKENS), "tqkv_truncate");
    must(attend(fork, 1, q, out), "tqkv_attend");
    check(distance(want, out, QUERY_VALUES) < 0.05, "a fork that is cut back answers as before");

    must(tqkv_snapshot(cache, write_bytes, &stream), "tqkv_snapshot");
    must(tqkv_restore(restored, read_bytes, &stream), "tqkv_restore");
    must(attend(restored, 1, q, out), "tqkv_attend");
    printf("a snapshot of %zu bytes\n", stream.len);
    check(memcmp(want, out, sizeof out) == 0, "a restored cache gives the same bits");
    append_all(cache, k, v, 50);
    append_all(restored, k, v, 50);
    must(attend(cache, 1, q, want), "tqkv_attend");
    must(attend(restored, 1, q, out), "tqkv_attend");
    check(memcmp(want, out, sizeof out) == 0, "and goes on with the same bits");
    stream.at = 0;
    stream.bytes[stream.len / 2] ^= 1;
    refused(tqkv_restore(restored, read_bytes, &stream), TQKV_BAD_SNAPSHOT, "a damaged snapshot");
    check(length(restored) == TOKENS + 50, "what is refused changes nothing");

    must(tqkv_keys(cache, 0, 0, 0, 1, TQKV_F32, key, DIM), "tqkv_keys");
    must(tqkv_values(cache, 0, 0, TOKENS - 1, TOKENS, TQKV_F32, one, DIM), "tqkv_values");
    check(distance(k, key, DIM) < 0.001, "a sink is f16");
    check(dot(one, one, DIM) > 0, "a value is there");
    free(stream.bytes);
    tqkv_free(cache);
    tqkv_free(fork);
    tqkv_free(restored);
}

static void budgets(const float *k, const float *v) {
    enum { LIMIT = 300 * 1024 };
    tqkv_budget *budget = NULL;
    tqkv_cache *first = NULL, *second = NULL;
    size_t used = 0, limit = 0;
    must(tqkv_budget_create(LIMIT, &budget), "tqkv_budget_create");
    must(tqkv_create_within(spec("compact"), budget, &first), "tqkv_create_within");
    must(tqkv_create_within(spec("compact"), budget, &second), "tqkv_create_within");
    size_t steps = 0;
    tqkv_status status = TQKV_OK;
    while (steps < 1000 && (status = tqkv_append(first, 0, TQKV_F32, k, TOKEN_VALUES, v, TOKEN_VALUES)) == TQKV_OK)
        steps++;
    printf("a budget of %d bytes holds %zu tokens of a layer\n", LIMIT, steps);
    refused(status, TQKV_NO_BUDGET, "a budget used up");
    check(length(first) == steps, "what is refused changes nothing");
    must(tqkv_budget_used(budget, &used), "tqkv_budget_used");
    must(tqkv_budget_limit(budget, &limit), "tqkv_budget_limit");
    check(limit == LIMIT && used > 0 && used <= limit, "the budget holds");
    tqkv_free(first);
    must(tqkv_append(second, 0, TQKV_F32, k, TOKEN_VALUES, v, TOKEN_VALUES), "another cache, once there is room");
    tqkv_budget_free(budget);
    tqkv_free(second);
}

static void errors(const float *k, const float *v, const float *q) {
    static float out[QUERY_VALUES], bad[TOKEN_VALUES];
    size_t count = 0;
    tqkv_codec *codec = NULL;
    tqkv_cache *none = NULL, *cache = create("s4");
    append_all(cache, k, v, 10);
    fill(bad, TOKEN_VALUES, 4);
    bad[DIM + 3] = NAN;
    printf("what is refused\n");
    refused(tqkv_create("layers=2 heads=8 kv-heads=3 head-dim=128", &none), TQKV_BAD_ARGUMENT, "heads do not divide");
    refused(tqkv_create(spec("hot=soon"), &none), TQKV_BAD_ARGUMENT, "no number");
    check(none == NULL, "no cache was made");
    refused(tqkv_codec_create("s9", DIM, &codec), TQKV_BAD_ARGUMENT, "an unknown codec");
    refused(tqkv_append(NULL, 0, TQKV_F32, k, TOKEN_VALUES, v, TOKEN_VALUES), TQKV_NULL_POINTER, "no cache");
    refused(tqkv_append(cache, 0, 7, k, TOKEN_VALUES, v, TOKEN_VALUES), TQKV_BAD_ARGUMENT, "an unknown type");
    refused(tqkv_append(cache, LAYERS, TQKV_F32, k, TOKEN_VALUES, v, TOKEN_VALUES), TQKV_BAD_ARGUMENT, "a layer too many");
    refused(tqkv_append(cache, 0, TQKV_F32, k, 100, v, 100), TQKV_BAD_ARGUMENT, "part of a token");
    refused(tqkv_append(cache, 0, TQKV_F32, bad, TOKEN_VALUES, v, TOKEN_VALUES), TQKV_BAD_VECTOR, "a key with NaN");
    refused(tqkv_attend(cache, 0, TQKV_F32, q, 5, TQKV_F32, out, QUERY_VALUES), TQKV_BAD_ARGUMENT, "a short query");
    refused(tqkv_scores(cache, 0, 0, TQKV_F32, q, DIM, out, 4, &count), TQKV_FULL, "little room");
    check(count == 10, "the number of scores is told");
    check(length(cache) == 10, "what is refused changes nothing");
    tqkv_free(cache);
    tqkv_free(NULL);
}

int main(void) {
    printf("tqkv %s\n", tqkv_version());
    float *k = malloc(TOKENS * TOKEN_VALUES * sizeof *k), *v = malloc(TOKENS * TOKEN_VALUES * sizeof *v);
    float *q = malloc(QUERY_VALUES * sizeof *q);
    if (!k || !v || !q)
        return 2;
    fill(k, TOKENS * TOKEN_VALUES, 1);
    fill(v, TOKENS * TOKEN_VALUES, 2);
    fill(q, QUERY_VALUES, 3);
    threads();
    codecs();
    life_of_a_cache(k, v, q);
    halves_and_prefill(k, v);
    several_sequences(k, v);
    forks_and_snapshots(k, v, q);
    budgets(k, v);
    errors(k, v, q);
    free(k);
    free(v);
    free(q);
    if (failures)
        printf("%d checks failed\n", failures);
    else
        printf("every check holds\n");
    return failures != 0;
}
