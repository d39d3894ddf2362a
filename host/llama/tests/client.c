// Runs a GGUF file in stock llama.cpp libraries. The tests use it, and the figures of README.md come from it.
//
// client LIBRARIES MODEL TEXT COMMAND [ARGUMENTS]
//   text N               prints the N most likely tokens after TEXT
//   states N             like text; saves, prints N more tokens, clears, restores, prints N tokens again
//   shift N TIMES        prints N tokens; TIMES times shifts by 8 positions and prints N tokens
//   logits FILE          writes logits of TEXT from position FROM on, as f32 [positions, vocabulary]; prints
//                        the end and the size of the vocabulary; a longer TEXT is cut at CTX
//   shifted TIMES FILE   decodes TEXT up to FROM; TIMES times removes 64 tokens after the first 4, shifts the rest and
//                        decodes STEP (1) more; then writes logits of the rest of TEXT as `logits` does
//   restored TIMES FILE  decodes TEXT up to FROM; TIMES times saves the state, clears and restores; then writes
//                        logits of the rest of TEXT as `logits` does
//   speed CONTEXT N      prints tokens per second of a prefill of CONTEXT tokens, and of N tokens after it
//   parallel N           prints N tokens for each of 4 sequences that share TEXT, in turns
//   save N FILE          prints N tokens, writes the state to FILE, prints N more tokens
//   load N FILE          reads the state of another process from FILE and prints N tokens
//   memory CONTEXT       prints the resident MiB that a clear frees after CONTEXT tokens
//   soak SECONDS SEED    for so much processor time, sends random requests to 4 sequences: begin, go on, cancel,
//                        shift, copy, save, restore; compares logits of samples with those of a fresh context
// Environment with defaults: CTX (1024), THREADS (1), LAYERS (999), BATCH (512), UNIFIED (1), FA (1),
// FROM (0), CLEAR (0), TYPE (f16; the type of keys and values, or K,V), KQV (1: the cache lies with the layers, as without -nkvo),
// MEASURE (0; 1 first makes a context without memory, as -fit does), TASKS (0; 1 prints the threads of the process at the end)
// CHOICES names a file for the logits of each choice of a token, as f32 [choices, vocabulary]. GIVEN is a list of
// tokens with spaces between, which `text` and `parallel` then take in place of the likeliest ones.
#include "ggml-backend.h"
#include "llama.h"
#include <dirent.h>
#include <malloc.h>
#include <math.h>
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
// Processor time of all threads, which other load on the machine changes least.
static double processor_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}
static int tasks(void) {
    int count = 0;
    DIR * folder = opendir("/proc/self/task");
    for (struct dirent * entry; folder && (entry = readdir(folder));) count += entry->d_name[0] != '.';
    if (folder) closedir(folder);
    return count;
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
// Decodes tokens of one sequence, and keeps the logits of the last token or of all.
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
static int position(int sequence) {
    return llama_memory_seq_pos_max(llama_get_memory(context), sequence) + 1;
}
// Decodes tokens after those of sequence 0, and writes logits from token `from` on to a file.
static void write_logits(const llama_token * tokens, int count, int from, const char * path) {
    FILE * file = fopen(path, "wb");
    if (!file) fail("no file");
    int most = number("BATCH", 512);
    for (int done = 0; done < count; done += most) {
        int now = count - done < most ? count - done : most;
        decode(tokens + done, now, position(0), 0, done + now > from);
        for (int i = 0; i < now; i++)
            if (done + i >= from) fwrite(llama_get_logits_ith(context, i), sizeof(float), words, file);
    }
    fclose(file);
    printf("%d %d\n", count, words);
}
static FILE * choices;
static char * given;
// The next of GIVEN, otherwise the likeliest token.
static llama_token best(void) {
    const float * logits = llama_get_logits_ith(context, -1);
    if (choices && fwrite(logits, sizeof *logits, words, choices) != (size_t) words) fail("no choices");
    if (given) {
        char * end;
        llama_token token = strtol(given, &end, 10);
        if (end == given) fail("GIVEN is too short");
        given = end;
        return token;
    }
    int top = 0;
    for (int i = 1; i < words; i++)
        if (logits[i] > logits[top]) top = i;
    return top;
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
// MiB of VmRSS, after malloc has returned its free memory.
static double resident(void) {
    malloc_trim(0);
    char line[256];
    double kib = 0;
    FILE * file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "VmRSS: %lf", &kib);
    if (file) fclose(file);
    return kib / 1024;
}
// Sequences of `soak`: the tokens and the length of each. A shifted sequence is no sample: its keys depend on
// the tokens that were removed.
static llama_token * held[4];
static int lengths[4], shifted[4];
enum { LONGEST = 400 };

// KL divergence of the found logits of sequence `s` from those of a fresh context.
static double against_fresh(struct llama_context_params params, int s, const float * found) {
    struct llama_context * own = context;
    params.n_seq_max = 1;
    context = llama_init_from_model(model, params);
    if (!context) fail("no fresh context");
    decode(held[s], lengths[s], 0, 0, 0);
    const float * wanted = llama_get_logits_ith(context, -1);
    double most[2] = {-1e30, -1e30}, sum[2] = {0, 0}, result = 0;
    for (int i = 0; i < words; i++) most[0] = fmax(most[0], wanted[i]), most[1] = fmax(most[1], found[i]);
    for (int i = 0; i < words; i++) sum[0] += exp(wanted[i] - most[0]), sum[1] += exp(found[i] - most[1]);
    for (int i = 0; i < words; i++) {
        double p = wanted[i] - most[0] - log(sum[0]), q = found[i] - most[1] - log(sum[1]);
        result += exp(p) * (p - q);
    }
    llama_free(context);
    context = own;
    return result;
}
static void feed(int s, const llama_token * tokens, int count) {
    decode(tokens, count, position(s), s, 0);
    memcpy(held[s] + lengths[s], tokens, count * sizeof *tokens);
    lengths[s] += count;
}
static void soak(struct llama_context_params params, const llama_token * text, int length, int limit, int seed) {
    llama_memory_t memory = llama_get_memory(context);
    for (int s = 0; s < 4; s++) held[s] = malloc(sizeof(llama_token) * (LONGEST + 256));
    int samples = 0, requests = 0;
    double worst = 0, total = 0, early = 0, late = 0, start = processor_seconds();
    srand(seed);
    while (processor_seconds() - start < limit) {
        int s = rand() % 4, other = (s + 1 + rand() % 3) % 4, kind = rand() % 8;
        requests++;
        if (lengths[s] > LONGEST || (kind == 0 && lengths[s])) {
            llama_memory_seq_rm(memory, s, -1, -1);
            lengths[s] = shifted[s] = 0;
        } else if (lengths[s] == 0) {
            int now = 8 + rand() % 200, at = rand() % (length - now);
            feed(s, text + at, now);
        } else if (kind == 1 && lengths[s] > 40) {
            if (!llama_memory_seq_rm(memory, s, 4, 12)) fail("remove");
            llama_memory_seq_add(memory, s, 12, -1, -8);
            memmove(held[s] + 4, held[s] + 12, (lengths[s] - 12) * sizeof **held);
            lengths[s] -= 8, shifted[s] = 1;
        } else if (kind == 2 || kind == 3) {
            llama_memory_seq_rm(memory, other, -1, -1);
            if (kind == 2) {
                llama_memory_seq_cp(memory, s, other, -1, -1);
            } else {
                size_t size = llama_state_seq_get_size(context, s);
                uint8_t * state = malloc(size);
                size = llama_state_seq_get_data(context, state, size, s);
                if (llama_state_seq_set_data(context, state, size, other) != size) fail("restore");
                free(state);
            }
            memcpy(held[other], held[s], lengths[s] * sizeof **held);
            lengths[other] = lengths[s], shifted[other] = shifted[s];
            // The host copies a stream only at the next step, so a step follows at once.
            if (kind == 2) feed(other, text, 1);
        } else {
            for (int i = rand() % 12; i >= 0; i--) feed(s, text + rand() % length, 1);
            if (!shifted[s] && rand() % 2) {
                double now = against_fresh(params, s, llama_get_logits_ith(context, -1));
                worst = fmax(worst, now), total += now, samples++;
            }
        }
        double share = (processor_seconds() - start) / limit;
        if (requests % 4 == 0 && share > 0.1 && share < 0.5) early = fmax(early, resident());
        if (requests % 4 == 0 && share >= 0.5) late = fmax(late, resident());
    }
    printf("%d requests, %d samples, KL mean %.5f worst %.5f, resident MiB %.1f then %.1f\n", requests, samples, total / (samples + 1e-9),
           worst, early, late);
}
static enum ggml_type type_named(const char * name, size_t length) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char * now = ggml_type_name(i);
        if (now && strlen(now) == length && !strncmp(now, name, length)) return i;
    }
    fail("TYPE is unknown");
    return GGML_TYPE_COUNT;
}
int main(int count, char ** arguments) {
    if (count < 5) fail("LIBRARIES MODEL TEXT COMMAND ..");
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(arguments[1]);
    llama_backend_init();
    struct llama_model_params of_model = llama_model_default_params();
    of_model.n_gpu_layers = number("LAYERS", 999);
    struct llama_context_params of_context = llama_context_default_params();
    const char * type = getenv("TYPE");
    const char * command = arguments[4];
    of_context.n_ctx = number("CTX", 1024);
    of_context.n_batch = of_context.n_ubatch = number("BATCH", 512);
    of_context.n_threads = of_context.n_threads_batch = number("THREADS", 1);
    of_context.flash_attn_type = number("FA", 1) ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    of_context.kv_unified = number("UNIFIED", 1);
    if (!strcmp(command, "parallel") || !strcmp(command, "soak")) of_context.n_seq_max = 4;
    if (type) {
        const char * comma = strchr(type, ',');
        of_context.type_k = type_named(type, comma ? (size_t) (comma - type) : strlen(type));
        of_context.type_v = comma ? type_named(comma + 1, strlen(comma + 1)) : of_context.type_k;
    }
    of_context.offload_kqv = number("KQV", 1);
    for (int measure = number("MEASURE", 0); measure >= 0; measure--) {
        of_model.no_alloc = measure;
        if (measure) of_model.load_mode = LLAMA_LOAD_MODE_NONE;
        model = llama_model_load_from_file(arguments[2], of_model);
        if (!model) fail("no model");
        context = llama_init_from_model(model, of_context);
        if (measure) llama_free(context), llama_model_free(model);
    }
    if (!context) fail("no context");
    vocabulary = llama_model_get_vocab(model);
    words = llama_vocab_n_tokens(vocabulary);
    char * text = slurp(arguments[3]);
    llama_token * tokens = malloc(sizeof(llama_token) * (1 << 20));
    int length = 0;
    // A model without words takes bytes as tokens.
    if (llama_vocab_type(vocabulary) == LLAMA_VOCAB_TYPE_NONE)
        for (; text[length]; length++) tokens[length] = (unsigned char) text[length] % words;
    else
        length = llama_tokenize(vocabulary, text, strlen(text), tokens, 1 << 20, true, false);
    llama_memory_t memory = llama_get_memory(context);
    int first = count > 5 ? atoi(arguments[5]) : 0, second = count > 6 ? atoi(arguments[6]) : 0;
    if (length < 1) fail("no tokens");
    given = getenv("GIVEN");
    if (getenv("CHOICES") && !(choices = fopen(getenv("CHOICES"), "wb"))) fail("no file of choices");

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
        // CLEAR=1 also clears the buffers; otherwise only the cells are freed.
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
        int end = length < (int) of_context.n_ctx ? length : (int) of_context.n_ctx;
        write_logits(tokens, end, number("FROM", 0), arguments[5]);
    } else if (!strcmp(command, "shifted")) {
        int from = number("FROM", 0), step = number("STEP", 1), end = (int) of_context.n_ctx + (step - 1) * first;
        if (end > length) end = length;
        if (from + step * first > end || from < 4 + 64 + (64 - step) * (first - 1)) fail("FROM is outside of TEXT");
        decode(tokens, from, 0, 0, 0);
        for (int i = 0; i < first; i++) {
            if (!llama_memory_seq_rm(memory, 0, 4, 4 + 64)) fail("remove");
            llama_memory_seq_add(memory, 0, 4 + 64, -1, -64);
            // The host shifts at the next step, so a step follows at once.
            decode(tokens + from, step, position(0), 0, 0);
            from += step;
        }
        write_logits(tokens + from, end - from, 0, arguments[6]);
    } else if (!strcmp(command, "restored")) {
        int from = number("FROM", 0), end = length < (int) of_context.n_ctx ? length : (int) of_context.n_ctx;
        if (from >= end) fail("FROM is outside of TEXT");
        decode(tokens, from, 0, 0, 0);
        for (int i = 0; i < first; i++) {
            size_t size = llama_state_seq_get_size(context, 0);
            uint8_t * state = malloc(size);
            size = llama_state_seq_get_data(context, state, size, 0);
            llama_memory_clear(memory, number("CLEAR", 0));
            if (llama_state_seq_set_data(context, state, size, 0) != size) fail("restore");
            free(state);
        }
        write_logits(tokens + from, end - from, 0, arguments[6]);
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
    } else if (!strcmp(command, "save")) {
        decode(tokens, length, 0, 0, 0);
        generate(best(), first, 0);
        llama_token next = best();
        size_t size = llama_state_seq_get_size(context, 0);
        uint8_t * state = malloc(size);
        size = llama_state_seq_get_data(context, state, size, 0);
        FILE * file = fopen(arguments[6], "wb");
        if (!file || fwrite(&next, sizeof next, 1, file) != 1 || fwrite(state, 1, size, file) != size || fclose(file)) fail("no file");
        generate(next, first, 0);
    } else if (!strcmp(command, "load")) {
        FILE * file = fopen(arguments[6], "rb");
        llama_token next;
        if (!file || fread(&next, sizeof next, 1, file) != 1) fail("no file");
        uint8_t * state = malloc(1 << 30);
        size_t size = fread(state, 1, 1 << 30, file);
        if (llama_state_seq_set_data(context, state, size, 0) != size) fail("restore");
        generate(next, first, 0);
    } else if (!strcmp(command, "memory")) {
        for (int i = length; i < first; i++) tokens[i] = tokens[i % length];
        decode(tokens, first, 0, 0, 0);
        double full = resident();
        llama_memory_clear(memory, 1);
        printf("resident %.2f MiB\n", full - resident());
        // Fill the cache again, because the library prints the held bytes at the end.
        decode(tokens, first, 0, 0, 0);
    } else if (!strcmp(command, "soak")) {
        soak(of_context, tokens, length, first, second);
    } else if (!strcmp(command, "parallel")) {
        decode(tokens, length, 0, 0, 0);
        llama_token next[4];
        for (int s = 0; s < 4; s++) {
            if (s) llama_memory_seq_cp(memory, 0, s, -1, -1);
            next[s] = best();
        }
        for (int round = 0; round < first; round++)
            for (int s = 0; s < 4; s++) {
                // A first token of its own makes each sequence different.
                if (round == 0) next[s] = tokens[s % length];
                printf("%d:%d ", s, next[s]);
                decode(&next[s], 1, position(s), s, 0);
                next[s] = best();
            }
        putchar('\n');
    } else {
        fail("unknown command");
    }
    if (choices && fclose(choices)) fail("no choices");
    if (number("TASKS", 0)) fprintf(stderr, "\ntasks %d\n", tasks());
    llama_free(context);
    llama_model_free(model);
    return 0;
}
