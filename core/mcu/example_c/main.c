/* A language model on a microcontroller: 520 KiB of RAM, 1,024 tokens of context, no heap, no floats. */
#include "tqkv_lm.h"
#include <stdio.h>

/* Change these. TQKV_LM_128 has the model's head dim; S4_S3 are the codecs of keys and values. */
#define CACHE TQKV_LM_128_S4_S3
#define CONTEXT 1024
#define SINKS 4
#ifndef NEW_TOKENS
#define NEW_TOKENS 200
#endif
#ifndef TEMPERATURE
#define TEMPERATURE 205 /* 256ths; 0 takes the likeliest token */
#endif
#define SEED 1

/* The flat file in flash (model.S). */
extern const uint8_t model[], model_end[];
/* At least the result of tqkv_lm_memory for the constants above. */
static uint64_t memory[484 * 1024 / 8];

/* The start of the text. The tokens of the shipped model are bytes. */
static const char prompt[] = "The borrow checker ";

/* CRC-32 of all logits, to compare with another machine. */
static uint32_t crc = 0xffffffffu;

static void take(const void *data, size_t length) {
    const uint8_t *bytes = data;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) ? 0xedb88320u : 0);
    }
}

static tqkv_lm_status next(tqkv_lm *lm, tqkv_lm_sampler *sampler, uint32_t *token) {
    tqkv_lm_logits logits;
    tqkv_lm_status status = tqkv_lm_next_logits(lm, &logits);
    if (status != TQKV_LM_OK)
        return status;
    take(logits.values, logits.count * sizeof *logits.values);
    take(&logits.exponent, sizeof logits.exponent);
    return TEMPERATURE ? tqkv_lm_sample(sampler, &logits, token) : tqkv_lm_greedy(&logits, token);
}

static tqkv_lm_status write_text(void) {
    tqkv_lm *lm;
    tqkv_lm_sampler sampler;
    uint32_t token;
    tqkv_lm_status status = tqkv_lm_open(&CACHE, model, (size_t)(model_end - model), CONTEXT, SINKS, memory,
                                       sizeof memory, &lm);
    if (status == TQKV_LM_OK)
        status = tqkv_lm_sampler_init(TEMPERATURE, SEED, &sampler);
    for (const char *at = prompt; status == TQKV_LM_OK && *at; at++) {
        putchar(*at);
        status = tqkv_lm_push(lm, (uint8_t)*at);
    }
    for (int i = 0; status == TQKV_LM_OK && i < NEW_TOKENS; i++) {
        status = next(lm, &sampler, &token);
        if (status == TQKV_LM_OK) {
            putchar((int)token);
            status = tqkv_lm_push(lm, token);
        }
    }
    return status;
}

int main(void) {
    tqkv_lm_status status = write_text();
    if (status == TQKV_LM_OK)
        printf("\ncrc %08lx\n", (unsigned long)~crc);
    else
        printf("\n%s\n", tqkv_lm_status_text(status));
    return status == TQKV_LM_OK ? 0 : 1;
}
