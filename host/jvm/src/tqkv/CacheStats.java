package tqkv;

/**
 * Tokens by tier, and bytes. Token counts are of the first KV head that keeps any, and bytes of all layers. The numbers are those of
 * `tqkv_cache_stats` in tqkv.h, in its order.
 */
public record CacheStats(
    long tokens, long sinks, long hot, long waitingKeys, long warm, long cold, long evicted, long centredHeads, long mappedHeads, long allocatedBytes,
    long spilledBytes, long sharedBytes) {}
