// Saves and restores the state of a sequence with stock llama.cpp libraries.
//
// session LIBRARIES MODEL TEXT save STATE LOGITS      decodes the first TOKENS of the text, saves them, and goes on as restore does
// session LIBRARIES MODEL TEXT restore STATE LOGITS   restores them, decodes the NEXT tokens and writes their logits, f32
// Both print "MILLISECONDS WORDS": of saving or restoring, and of the vocabulary.
// Environment: TOKENS (512), NEXT (64), TYPE (f16, q8_0, q4_0), FA (1), THREADS (1), DATA (1: a buffer instead of a file)
#include "ggml-backend.h"
#include "llama.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct llama_context * context;

static int number(const char * name, int otherwise) {
    const char * text = getenv(name);
    return text ? atoi(text) : otherwise;
}
static void fail(const char * what) {
    fprintf(stderr, "session: %s\n", what);
    exit(1);
}
static void quiet(enum ggml_log_level level, const char * text, void * data) {
    (void) data;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}
static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * now.tv_sec + 1e-6 * now.tv_nsec;
}
static char * slurp(const char * path, size_t * size) {
    FILE * file = fopen(path, "rb");
    if (!file) fail("no file");
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    char * bytes = malloc(*size + 1);
    if (fread(bytes, 1, *size, file) != *size) fail("read");
    bytes[*size] = 0;
    fclose(file);
    return bytes;
}
// Decodes tokens; with `out`, writes the logits of each.
static void decode(const llama_token * tokens, int count, int from, FILE * out, int words) {
    for (int done = 0; done < count; done += 256) {
        int now = count - done < 256 ? count - done : 256;
        struct llama_batch batch = llama_batch_init(now, 0, 1);
        batch.n_tokens = now;
        for (int i = 0; i < now; i++) {
            batch.token[i] = tokens[done + i];
            batch.pos[i] = from + done + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = out != NULL || done + i == count - 1;
        }
        if (llama_decode(context, batch)) fail("decode");
        for (int i = 0; out && i < now; i++) fwrite(llama_get_logits_ith(context, i), sizeof(float), words, out);
        llama_batch_free(batch);
    }
}
static void save(const char * path, const llama_token * tokens, int count) {
    if (!number("DATA", 0)) {
        if (!llama_state_seq_save_file(context, path, 0, tokens, count)) fail("save");
        return;
    }
    size_t size = llama_state_seq_get_size(context, 0);
    uint8_t * state = malloc(size);
    size = llama_state_seq_get_data(context, state, size, 0);
    FILE * file = fopen(path, "wb");
    if (!file || fwrite(state, 1, size, file) != size) fail("save");
    fclose(file);
}
static void restore(const char * path, int count) {
    size_t size, found = 0;
    if (!number("DATA", 0)) {
        llama_token * tokens = malloc(sizeof(llama_token) * count);
        if (!llama_state_seq_load_file(context, path, 0, tokens, count, &found)) fail("restore");
        if (found != (size_t) count) fail("another number of tokens");
        return;
    }
    uint8_t * state = (uint8_t *) slurp(path, &size);
    if (llama_state_seq_set_data(context, state, size, 0) != size) fail("restore");
}
int main(int count, char ** arguments) {
    if (count != 7) fail("LIBRARIES MODEL TEXT save|restore STATE LOGITS");
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(arguments[1]);
    llama_backend_init();
    struct llama_model * model = llama_model_load_from_file(arguments[2], llama_model_default_params());
    if (!model) fail("no model");
    int tokens = number("TOKENS", 512), next = number("NEXT", 64);
    const char * type = getenv("TYPE");
    struct llama_context_params parameters = llama_context_default_params();
    parameters.n_ctx = tokens + next + 8;
    parameters.n_batch = parameters.n_ubatch = 256;
    parameters.n_threads = parameters.n_threads_batch = number("THREADS", 1);
    parameters.flash_attn_type = number("FA", 1) ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    if (type && !strcmp(type, "q8_0")) parameters.type_k = parameters.type_v = GGML_TYPE_Q8_0;
    if (type && !strcmp(type, "q4_0")) parameters.type_k = parameters.type_v = GGML_TYPE_Q4_0;
    context = llama_init_from_model(model, parameters);
    if (!context) fail("no context");
    const struct llama_vocab * vocabulary = llama_model_get_vocab(model);
    int words = llama_vocab_n_tokens(vocabulary);
    size_t size;
    char * text = slurp(arguments[3], &size);
    llama_token * all = malloc(sizeof(llama_token) * (size + 8));
    int length = llama_tokenize(vocabulary, text, (int) size, all, (int) size + 8, true, false);
    if (length < tokens + next) fail("the text is too short");
    double start;
    if (!strcmp(arguments[4], "save")) {
        decode(all, tokens, 0, NULL, words);
        start = milliseconds();
        save(arguments[5], all, tokens);
    } else {
        start = milliseconds();
        restore(arguments[5], tokens);
    }
    double took = milliseconds() - start;
    FILE * out = fopen(arguments[6], "wb");
    if (!out) fail("no file for logits");
    decode(all + tokens, next, tokens, out, words);
    fclose(out);
    printf("%.1f %d\n", took, words);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
