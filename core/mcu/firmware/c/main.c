/* The integer codec from C: the same vectors and the same CRC as the Rust workload. */
#include "tqkv_fixed.h"
#include <stdio.h>

static uint32_t crc = 0xffffffffu;

static void take(const void *data, unsigned length) {
    const uint8_t *bytes = data;
    for (unsigned i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) ? 0xedb88320u : 0);
    }
}

static uint32_t state;

static int16_t next(void) {
    state = state * 1664525u + 1013904223u;
    return (int16_t)((state >> 19) - 4096);
}

static void vector(uint32_t seed, int16_t *x) {
    state = seed * 747796405u + 2891336453u;
    for (int i = 0; i < TQKV_FIXED_DIM; i++) {
        int16_t sum = 0;
        for (int k = 0; k < 4; k++)
            sum += next();
        x[i] = sum;
    }
}

int main(void) {
    static int16_t x[TQKV_FIXED_DIM], back[TQKV_FIXED_DIM];
    static uint8_t block[TQKV_FIXED_BLOCK_BYTES];
    static tqkv_fixed_query query;
    vector(9, x);
    if (tqkv_fixed_query_init(x, -12, &query) != TQKV_FIXED_OK)
        return 1;
    if (tqkv_fixed_encode(0, -15, block) != TQKV_FIXED_NULL_POINTER)
        return 1;
    for (uint32_t seed = 0; seed < 4; seed++) {
        int32_t score = INT32_MIN;
        vector(seed, x);
        uint8_t good[2];
        good[0] = tqkv_fixed_encode(x, -15, block) == TQKV_FIXED_OK;
        good[1] = tqkv_fixed_decode(block, -15, back) == TQKV_FIXED_OK;
        if (tqkv_fixed_score(&query, block, &score) != TQKV_FIXED_OK)
            return 1;
        take(good, sizeof good);
        take(block, sizeof block);
        take(back, sizeof back);
        take(&score, sizeof score);
    }
    printf("crc %08lx\n", (unsigned long)~crc);
    return 0;
}
