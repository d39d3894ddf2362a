// Makes a small model of a family that llama.cpp knows, with random weights, and writes what it predicts. llama.cpp itself
// says which tensors a family has.
//
// family LIBRARIES FILE ARCHITECTURE [KEY=VALUE ..]
//   writes logits of positions from FROM on, as f32 [positions, words], or embeddings of a model without a cache, and
//   prints the width of a row. A VALUE is an integer, a number with a point, true, false, a list such as [2,0], or a text.
// Environment with defaults: TOKENS (160), FROM (96), BATCH (16), LAYERS (999), FA (1), RESTORE (0; 1 saves, clears and restores the
// state at FROM), SHIFT (0; 1 removes tokens 4 to 12 at FROM and moves the rest), IMAGE (0; 1 gives embeddings of an image for the third
// batch, whose rows all see each other), VERBOSE
#include "ggml-backend.h"
#include "gguf.h"
#include "llama.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 128 };
// What most families read. Each ignores the keys that it does not know.
static const char * usual[] = {
    "vocab_size=128", "context_length=512", "embedding_length=128", "features_length=128", "block_count=2",
    "feed_forward_length=96", "leading_dense_block_count=1", "use_parallel_residual=false", "logit_scale=1.0",
    "attention.head_count=2", "attention.head_count_kv=1", "attention.layer_norm_epsilon=0.00001",
    "attention.layer_norm_rms_epsilon=0.00001", "attention.group_norm_epsilon=0.00001", "attention.group_norm_groups=8",
    "attention.max_alibi_bias=8.0", "attention.clamp_kqv=4.0", "attention.relative_buckets_count=8", "attention.sliding_window=64",
    "attention.sliding_window_pattern=2", "attention.q_lora_rank=64", "attention.kv_lora_rank=64", "rope.dimension_sections=[16,8,8,0]",
    "rope.freq_base=10000.0", "full_attention_interval=2", "residual_scale=1.0", "embedding_scale=1.0", "time_mix_extra_dim=16",
    "time_decay_extra_dim=16", "wkv.head_size=64", "token_shift_count=2", "ssm.conv_kernel=4", "ssm.inner_size=256", "ssm.state_size=64",
    "ssm.time_step_rank=4", "ssm.group_count=2", "kda.head_dim=64", "kda.gate_lower_bound=-5.0", "shortconv.l_cache=3",
    "expert_count=2", "expert_used_count=2", "expert_feed_forward_length=96", "expert_shared_feed_forward_length=96",
    "expert_shared_count=1", "expert_gating_func=2", "expert_group_scale=1.0", "experts_per_group=1", "expert_weights_scale=1.0",
    "interleave_moe_layer_step=2", "tokenizer.ggml.model=no_vocab", "tokenizer.ggml.token_type_count=2",
};

static void fail(const char * what) {
    fprintf(stderr, "family: %s\n", what);
    exit(1);
}
static int number(const char * name, int otherwise) {
    const char * text = getenv(name);
    return text ? atoi(text) : otherwise;
}
static void quiet(enum ggml_log_level level, const char * text, void * data) {
    (void) data;
    if (level == GGML_LOG_LEVEL_ERROR || getenv("VERBOSE")) fputs(text, stderr);
}
// Sets a key of the family, or of the tokenizer, by its text KEY=VALUE.
static void set(struct gguf_context * keys, const char * family, const char * text) {
    const char * value = strchr(text, '=');
    if (!value) fail("KEY=VALUE expected");
    char key[256];
    int length = value - text;
    if (!strncmp(text, "tokenizer.", 10) || !strncmp(text, "xielu.", 6)) snprintf(key, sizeof key, "%.*s", length, text);
    else snprintf(key, sizeof key, "%s.%.*s", family, length, text);
    char * end;
    long whole = strtol(++value, &end, 10);
    if (*value == '[') {
        uint32_t list[64];
        int count = 0;
        for (const char * at = value + 1; count < 64 && *at && *at != ']'; at = *end == ',' ? end + 1 : end) list[count++] = strtol(at, &end, 10);
        gguf_set_arr_data(keys, key, GGUF_TYPE_UINT32, list, count);
    } else if (!strcmp(value, "true") || !strcmp(value, "false")) {
        gguf_set_val_bool(keys, key, *value == 't');
    } else if (*value && !*end) {
        gguf_set_val_u32(keys, key, whole);
    } else if (*end == '.') {
        gguf_set_val_f32(keys, key, atof(value));
    } else {
        gguf_set_val_str(keys, key, value);
    }
}
// Evenly between -1 and 1, the same numbers for the same name.
static float draw(uint64_t * state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int32_t) (*state >> 32) / 2147483648.0f;
}
static void fill(struct ggml_tensor * tensor, void * data) {
    (void) data;
    uint64_t state = 14695981039346656037u;
    for (const char * at = tensor->name; *at; at++) state = (state ^ (unsigned char) *at) * 1099511628211u;
    int64_t count = ggml_nelements(tensor);
    // Norms and scales are factors near one. States decay.
    int is_factor = (strstr(tensor->name, "norm") || strstr(tensor->name, "scale")) && !strstr(tensor->name, "bias");
    int is_decay = strstr(tensor->name, "ssm_a") != NULL;
    // Each sum over a row has a variance near one.
    float width = tensor->ne[1] > 1 ? sqrtf(3.0f / tensor->ne[0]) : 0.2f;
    // Attention then prefers some tokens, as that of trained models does.
    if (strstr(tensor->name, "attn_q") || strstr(tensor->name, "attn_k")) width *= 2;
    float * values = malloc(count * sizeof *values);
    for (int64_t i = 0; i < count; i++) {
        float x = draw(&state);
        values[i] = is_decay ? -1.0f - 0.5f * x : is_factor ? 1.0f + 0.2f * x : width * x;
    }
    if (tensor->type == GGML_TYPE_F16) {
        ggml_fp16_t * halves = malloc(count * sizeof *halves);
        ggml_fp32_to_fp16_row(values, halves, count);
        ggml_backend_tensor_set(tensor, halves, 0, ggml_nbytes(tensor));
        free(halves);
    } else {
        ggml_backend_tensor_set(tensor, values, 0, ggml_nbytes(tensor));
    }
    free(values);
}
// Makes a batch one of embeddings, as those of an image: with two more coordinates where the model has positions of several.
static void embed(struct llama_model * model, struct llama_batch * batch, uint64_t * state) {
    int width = llama_model_n_embd_inp(model), count = batch->n_tokens, first = batch->pos[0];
    enum llama_rope_type rope = llama_model_rope_type(model);
    free(batch->token);
    batch->token = NULL;
    batch->embd = malloc(sizeof(float) * width * count);
    for (int i = 0; i < width * count; i++) batch->embd[i] = draw(state);
    if (rope != LLAMA_ROPE_TYPE_MROPE && rope != LLAMA_ROPE_TYPE_IMROPE) return;
    batch->pos = realloc(batch->pos, sizeof(llama_pos) * 4 * count);
    for (int i = 0; i < count; i++) {
        batch->pos[i] = first;
        batch->pos[count + i] = first + i / 4;
        batch->pos[2 * count + i] = first + i % 4;
        batch->pos[3 * count + i] = 0;
    }
}
static void restore(struct llama_context * context) {
    size_t size = llama_state_seq_get_size(context, 0);
    uint8_t * state = malloc(size);
    size = llama_state_seq_get_data(context, state, size, 0);
    llama_memory_clear(llama_get_memory(context), 1);
    if (llama_state_seq_set_data(context, state, size, 0) != size) fail("no restore");
    free(state);
}
int main(int count, char ** arguments) {
    if (count < 4) fail("LIBRARIES FILE ARCHITECTURE [KEY=VALUE ..]");
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(arguments[1]);
    llama_backend_init();
    struct gguf_context * keys = gguf_init_empty();
    gguf_set_val_str(keys, "general.architecture", arguments[3]);
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) set(keys, arguments[3], usual[i]);
    for (int i = 4; i < count; i++) set(keys, arguments[3], arguments[i]);
    struct llama_model_params of_model = llama_model_default_params();
    of_model.n_gpu_layers = number("LAYERS", 999);
    struct llama_model * model = llama_model_init_from_user(keys, fill, NULL, of_model);
    if (!model) fail("no model");
    int tokens = number("TOKENS", 160), from = number("FROM", 96), most = number("BATCH", 16), shift = 0;
    struct llama_context_params of_context = llama_context_default_params();
    of_context.n_ctx = tokens + 96;
    of_context.n_batch = of_context.n_ubatch = most;
    of_context.n_threads = of_context.n_threads_batch = 1;
    of_context.flash_attn_type = number("FA", 1) ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context * context = llama_init_from_model(model, of_context);
    if (!context) fail("no context");
    llama_memory_t memory = llama_get_memory(context);
    int has_logits = memory || llama_model_is_diffusion(model);
    int words = has_logits ? llama_vocab_n_tokens(llama_model_get_vocab(model)) : llama_model_n_embd(model);
    if (!has_logits) llama_set_embeddings(context, 1);
    FILE * file = fopen(arguments[2], "wb");
    if (!file) fail("no file");
    uint64_t state = 7;
    for (int done = 0, now; done < tokens; done += now) {
        now = tokens - done < most ? tokens - done : most;
        if (done == from && number("RESTORE", 0)) restore(context);
        if (done == from && number("SHIFT", 0)) {
            if (!llama_memory_can_shift(memory) || !llama_memory_seq_rm(memory, 0, 4, 12)) fail("no shift");
            llama_memory_seq_add(memory, 0, 12, -1, -8);
            shift = 8;
        }
        struct llama_batch batch = llama_batch_init(now, 0, 1);
        batch.n_tokens = now;
        for (int i = 0; i < now; i++) {
            batch.token[i] = (int) ((draw(&state) + 1) / 2 * (WORDS - 1));
            batch.pos[i] = done + i - shift;
            batch.n_seq_id[i] = 1, batch.seq_id[i][0] = 0, batch.logits[i] = 1;
        }
        int is_image = number("IMAGE", 0) && done == 2 * most;
        if (is_image) embed(model, &batch, &state);
        llama_set_causal_attn(context, !is_image);
        // An encoder sees the first batch, and the decoder after it attends to that.
        int is_encoded = !memory || (done == 0 && llama_model_has_encoder(model));
        if (is_encoded && llama_encode(context, batch)) fail("cannot encode");
        if (memory && llama_decode(context, batch)) fail("cannot decode");
        for (int i = 0; i < now && done >= from; i++) {
            const float * row = has_logits ? llama_get_logits_ith(context, i) : llama_get_embeddings_ith(context, i);
            if (!row || fwrite(row, sizeof *row, words, file) != (size_t) words) fail("no rows");
        }
        llama_batch_free(batch);
    }
    fclose(file);
    printf("%d\n", words);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
