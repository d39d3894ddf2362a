// Runs a GGUF in stock llama.cpp libraries: text, logits, shift of positions, saved states, time. What the tests and the figures of
// README.md are made with.
//
// client LIBRARIES MODEL TEXT COMMAND [ARGUMENTS]
//   text N               the N most likely tokens behind TEXT
//   states N             the same, then a save, a clear, a restore and N more; and N more without: both lines are printed
//   shift N TIMES        N tokens, TIMES shifts by 8 positions with N tokens behind each
//   logits FILE          logits of every position of TEXT (at most the context, and from FROM on), f32 [positions, vocabulary]; both are printed
//   speed CONTEXT N      seconds per token of N tokens behind a context of CONTEXT, and of the prefill
//   parallel N           4 sequences with TEXT in common, N tokens each, in turns
// Environment: CTX (1024), THREADS (1), LAYERS (999), BATCH (512), TYPE (f16, q8_0, q4_0), UNIFIED (1), FA (1)
#include "ggml-backend.h"
#include "llama.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct llama_model * model;
static struct llama_context * context;
static const struct llama_vocab * vocabulary;
static int words;

static int number(const char * name, int otherwise) {
    const char * text = getenv(name);
    return text ? atoi(text) : otherwise;
}
static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}
// Of all threads: what a loaded machine changes least.
static double processor_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}
static void fail(const char * what) {
    fprintf(stderr, "client: %s\n", what);
    exit(1);
}
static void quiet(enum ggml_log_level level, const char * text, void * data) {
    (void) data;
    if (level == GGML_LOG_LEVEL_ERROR || getenv("VERBOSE")) fputs(text, stderr);
}
static char * slurp(const char * path) {
    FILE * file = fopen(path, "rb");
    if (!file) return strdup(path);
    char * text = calloc(1, 1 << 20);
    if (fread(text, 1, (1 << 20) - 1, file) == 0) fail("empty text");
    fclose(file);
    return text;
}
// Decodes tokens of one sequence, the last one's logits asked for, or all.
static void decode(const llama_token * tokens, int count, int from, int sequence, int all) {
    int most = number("BATCH", 512);
    for (int done = 0; done < count; done += most) {
        int now = count - done < most ? count - done : most;
        struct llama_batch batch = llama_batch_init(now, 0, 1);
        batch.n_tokens = now;
        for (int i = 0; i < now; i++) {
            batch.token[i] = tokens[done + i];
            batch.pos[i] = from + done + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = sequence;
            batch.logits[i] = all || done + i == count - 1;
        }
        if (llama_decode(context, batch)) fail("decode");
        llama_batch_free(batch);
    }
}
static llama_token best(void) {
    const float * logits = llama_get_logits_ith(context, -1);
    int top = 0;
    for (int i = 1; i < words; i++)
        if (logits[i] > logits[top]) top = i;
    return top;
}
static int position(int sequence) {
    return llama_memory_seq_pos_max(llama_get_memory(context), sequence) + 1;
}
static void generate(llama_token next, int count, int sequence) {
    for (int i = 0; i < count; i++) {
        char piece[256];
        int length = llama_token_to_piece(vocabulary, next, piece, sizeof piece, 0, true);
        for (int j = 0; j < length; j++) putchar(piece[j] == '\n' ? ' ' : piece[j]);
        decode(&next, 1, position(sequence), sequence, 0);
        next = best();
    }
    putchar('\n');
}
int main(int count, char ** arguments) {
    if (count < 5) fail("LIBRARIES MODEL TEXT COMMAND ..");
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(arguments[1]);
    llama_backend_init();
    struct llama_model_params of_model = llama_model_default_params();
    of_model.n_gpu_layers = number("LAYERS", 999);
    model = llama_model_load_from_file(arguments[2], of_model);
    if (!model) fail("no model");
    struct llama_context_params of_context = llama_context_default_params();
    const char * type = getenv("TYPE");
    const char * command = arguments[4];
    of_context.n_ctx = number("CTX", 1024);
    of_context.n_batch = of_context.n_ubatch = number("BATCH", 512);
    of_context.n_threads = of_context.n_threads_batch = number("THREADS", 1);
    of_context.flash_attn_type = number("FA", 1) ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    of_context.kv_unified = number("UNIFIED", 1);
    if (!strcmp(command, "parallel")) of_context.n_seq_max = 4;
    if (type && !strcmp(type, "q8_0")) of_context.type_k = of_context.type_v = GGML_TYPE_Q8_0;
    if (type && !strcmp(type, "q4_0")) of_context.type_k = of_context.type_v = GGML_TYPE_Q4_0;
    context = llama_init_from_model(model, of_context);
    if (!context) fail("no context");
    vocabulary = llama_model_get_vocab(model);
    words = llama_vocab_n_tokens(vocabulary);
    char * text = slurp(arguments[3]);
    llama_token * tokens = malloc(sizeof(llama_token) * (1 << 20));
    int length = llama_tokenize(vocabulary, text, strlen(text), tokens, 1 << 20, true, false);
    llama_memory_t memory = llama_get_memory(context);
    int first = count > 5 ? atoi(arguments[5]) : 0, second = count > 6 ? atoi(arguments[6]) : 0;
    if (length < 1) fail("no tokens");

    if (!strcmp(command, "text")) {
        decode(tokens, length, 0, 0, 0);
        generate(best(), first, 0);
    } else if (!strcmp(command, "states")) {
        decode(tokens, length, 0, 0, 0);
        generate(best(), first, 0);
        llama_token next = best();
        size_t size = llama_state_seq_get_size(context, 0);
        uint8_t * state = malloc(size);
        size = llama_state_seq_get_data(context, state, size, 0);
        generate(next, first, 0);
        // With CLEAR the cells are emptied too; else they are still as they were.
        llama_memory_clear(memory, number("CLEAR", 0));
        if (llama_state_seq_set_data(context, state, size, 0) != size) fail("restore");
        generate(next, first, 0);
    } else if (!strcmp(command, "shift")) {
        decode(tokens, length, 0, 0, 0);
        generate(best(), first, 0);
        for (int i = 0; i < second; i++) {
            llama_token next = best();
            if (!llama_memory_seq_rm(memory, 0, 4, 12)) fail("remove");
            llama_memory_seq_add(memory, 0, 12, -1, -8);
            generate(next, first, 0);
        }
    } else if (!strcmp(command, "logits")) {
        FILE * file = fopen(arguments[5], "wb");
        if (!file) fail("no file");
        int most = number("BATCH", 512), end = length < (int) of_context.n_ctx ? length : (int) of_context.n_ctx;
        for (int done = 0; done < end; done += most) {
            int now = end - done < most ? end - done : most;
            decode(tokens + done, now, done, 0, 1);
            for (int i = 0; i < now; i++)
                if (done + i >= number("FROM", 0)) fwrite(llama_get_logits_ith(context, i), sizeof(float), words, file);
        }
        fclose(file);
        printf("%d %d\n", end, words);
    } else if (!strcmp(command, "speed")) {
        for (int i = length; i < first; i++) tokens[i] = tokens[i % length];
        double start = seconds(), processor = processor_seconds();
        decode(tokens, first, 0, 0, 0);
        double prefill = seconds() - start, of_prefill = processor_seconds() - processor;
        llama_token next = best();
        start = seconds(), processor = processor_seconds();
        for (int i = 0; i < second; i++) {
            decode(&next, 1, first + i, 0, 0);
            next = best();
        }
        printf("prefill %.1f tokens/s, generation %.2f tokens/s; per processor second %.1f and %.2f\n", first / prefill,
               second / (seconds() - start), first / of_prefill, second / (processor_seconds() - processor));
    } else if (!strcmp(command, "parallel")) {
        decode(tokens, length, 0, 0, 0);
        llama_token next[4];
        for (int s = 0; s < 4; s++) {
            if (s) llama_memory_seq_cp(memory, 0, s, -1, -1);
            next[s] = best();
        }
        for (int round = 0; round < first; round++)
            for (int s = 0; s < 4; s++) {
                // Each sequence goes its own way from its first token on.
                if (round == 0) next[s] = tokens[s % length];
                printf("%d:%d ", s, next[s]);
                decode(&next[s], 1, position(s), s, 0);
                next[s] = best();
            }
        putchar('\n');
    } else {
        fail("unknown command");
    }
    llama_free(context);
    llama_model_free(model);
    return 0;
}
