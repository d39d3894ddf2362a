package tqkv;

import static tqkv.Check.equal;
import static tqkv.Check.near;
import static tqkv.Check.refused;
import static tqkv.Check.test;
import static tqkv.Check.that;
import static tqkv.Check.thrown;
import static tqkv.Tests.numbers;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;

final class CacheTests {
    static final int LAYERS = 2, HEADS = 4, KV_HEADS = 2, DIM = 64, TOKEN = KV_HEADS * DIM, QUERY = HEADS * DIM;

    private CacheTests() {}

    static void run() {
        // Numbers of 8 bits in the product of a query and codes, unless the text says otherwise.
        attention("t4,t2 hot=32 arithmetic=f32", 1e-4);
        attention("s4 hot=32 arithmetic=f32", 1e-4);
        attention("s4 hot=32", 1e-2);
        attention("f16", 1e-4);
        test("a prompt attends causally", CacheTests::prompt);
        test("chosen tokens alone are attended to", CacheTests::chosen);
        test("native memory gives the same bits", CacheTests::segments);
        test("values may have another length than keys, and layers another shape", CacheTests::shapes);
        test("a cache counts, forks and rolls back", CacheTests::forks);
        test("a snapshot goes on bit for bit", CacheTests::snapshots);
        test("a stream of the program may fail", CacheTests::streams);
        test("a file makes the same cache", CacheTests::files);
        test("what a cache does not accept is named", CacheTests::errors);
        test("what is closed is not used again", CacheTests::closed);
    }

    static KvCache empty(String kv) {
        return new KvCache(LAYERS, HEADS, KV_HEADS, DIM, kv);
    }

    /** A cache with as many tokens in each layer. */
    static KvCache filled(int tokens, String kv, int seed) {
        KvCache cache = empty(kv);
        int values = tokens * TOKEN;
        for (int layer = 0; layer < LAYERS; layer++) cache.append(layer, numbers(values, seed + layer), numbers(values, seed + 10 + layer));
        return cache;
    }

    static KvCache filled(int tokens) {
        return filled(tokens, "t4,t2 hot=32", 1);
    }

    private static void attention(String kv, double tolerance) {
        test("attention over " + kv + " is that of f64 over the decoded rows", () -> {
            try (KvCache cache = filled(700, kv, 1)) {
                float[] q = numbers(QUERY, 7);
                for (int i = 0; i < QUERY; i++) q[i] *= 4;
                for (int layer = 0; layer < LAYERS; layer++) {
                    float[] out = cache.attend(layer, q);
                    for (int head = 0; head < HEADS; head++) {
                        double[] want = dense(cache, layer, q, head);
                        for (int i = 0; i < DIM; i++) near(out[head * DIM + i], want[i], tolerance, "layer " + layer + ", head " + head);
                    }
                }
            }
        });
    }

    /** Attention in f64 over the rows that a cache says it holds. */
    private static double[] dense(KvCache cache, int layer, float[] q, int head) {
        int tokens = (int) cache.length(), kvHead = head / (HEADS / KV_HEADS);
        float[] keys = new float[tokens * DIM], values = new float[tokens * DIM];
        cache.keys(layer, kvHead, 0, tokens, keys);
        cache.values(layer, kvHead, 0, tokens, values);
        double[] logits = new double[tokens], out = new double[DIM];
        for (int token = 0; token < tokens; token++)
            for (int i = 0; i < DIM; i++) logits[token] += q[head * DIM + i] * keys[token * DIM + i] / Math.sqrt(DIM);
        double most = Arrays.stream(logits).max().orElseThrow(), total = 0;
        for (int token = 0; token < tokens; token++) {
            double weight = Math.exp(logits[token] - most);
            total += weight;
            for (int i = 0; i < DIM; i++) out[i] += weight * values[token * DIM + i];
        }
        for (int i = 0; i < DIM; i++) out[i] /= total;
        return out;
    }

    private static float[] part(float[] x, int at, int each) {
        return Arrays.copyOfRange(x, at * each, (at + 1) * each);
    }

    private static void prompt() {
        float[] q = numbers(9 * QUERY, 1), k = numbers(9 * TOKEN, 2), v = numbers(9 * TOKEN, 3), out = new float[9 * QUERY];
        try (KvCache cache = empty("f16"); KvCache other = empty("f16")) {
            cache.attendPrefill(0, q, k, v, out);
            for (int token = 0; token < 9; token++) {
                other.append(0, part(k, token, TOKEN), part(v, token, TOKEN));
                float[] row = other.attend(0, part(q, token, QUERY));
                for (int i = 0; i < QUERY; i++) near(out[token * QUERY + i], row[i], 1e-5, "token " + token);
            }
            cache.reset();
            equal(cache.length(), 0L);
            equal(cache.attendPrefill(0, q, k, v), out);
        }
    }

    private static void chosen() {
        float[] q = numbers(QUERY, 9);
        int[] all = new int[300];
        for (int token = 0; token < all.length; token++) all[token] = token;
        try (KvCache cache = filled(300, "f16", 1); KvCache coded = filled(300)) {
            equal(coded.attendSelected(1, q, new int[][] {all, all}), coded.attend(1, q));
            that(!Arrays.equals(coded.attendSelected(1, q, new int[][] {all, {3, 200}}), coded.attend(1, q)), "a list was not read");
            // The result is the value of the only token.
            int[][] lists = {{17}, {250}};
            float[] out = cache.attendSelected(0, q, lists), value = new float[DIM];
            for (int head = 0; head < HEADS; head++) {
                int kvHead = head / (HEADS / KV_HEADS), token = lists[kvHead][0];
                cache.values(0, kvHead, token, token + 1, value);
                for (int i = 0; i < DIM; i++) near(out[head * DIM + i], value[i], 1e-6, "head " + head);
            }
            equal(cache.attendSelected(0, q, new int[KV_HEADS][0]), new float[QUERY]);
            refused(() -> cache.attendSelected(0, q, new int[][] {all}), "selected tokens: 1 lists for layer 0 are not valid: expected 2, one per KV head");
            thrown(TqkvException.class, () -> cache.attendSelected(0, q, new int[][] {{5, 4}, {}}));
            thrown(TqkvException.class, () -> cache.attendSelected(0, q, new int[][] {{-1}, {}}));
            thrown(TqkvException.class, () -> cache.attendSelected(0, q, new int[][] {{1}, null}));
            thrown(TqkvException.class, () -> cache.attendSelected(0, q, null));
        }
    }

    private static void segments() {
        float[] q = numbers(QUERY, 9), k = numbers(300 * TOKEN, 2), v = numbers(300 * TOKEN, 3);
        try (KvCache cache = empty("s4 hot=32"); KvCache other = empty("s4 hot=32"); Arena arena = Arena.ofShared()) {
            cache.append(0, k, v);
            other.append(0, arena.allocateFrom(ValueLayout.JAVA_FLOAT, k), arena.allocateFrom(ValueLayout.JAVA_FLOAT, v));
            MemorySegment out = arena.allocate(4L * QUERY, 64), query = arena.allocateFrom(ValueLayout.JAVA_FLOAT, q);
            other.attend(0, query, out);
            equal(out.toArray(ValueLayout.JAVA_FLOAT), cache.attend(0, q));
            // The library refuses what overlaps, so this memory went to it as it is.
            that(thrown(TqkvException.class, () -> other.attend(0, query, query)).getMessage().contains("overlap"), "not refused as overlapping");
            thrown(TqkvException.class, () -> other.attend(0, arena.allocate(4L * QUERY + 4).asSlice(1, 4L * QUERY), out));
        }
    }

    private static void shapes() {
        try (KvCache cache = new KvCache(1, 2, 2, 64, "value-dim=32 s4"); KvCache layers = new KvCache(2, 2, 2, 64, "layer-shapes=2x64/1x128")) {
            cache.append(0, numbers(128, 1), numbers(64, 1));
            refused(() -> cache.attend(0, numbers(128, 1)), "out has 128 values, expected 64");
            float[] out = new float[64];
            cache.attend(0, numbers(128, 1), out);
            that(out[63] != 0, "nothing was written");
            layers.append(1, numbers(128, 1), numbers(128, 1));
            equal(layers.attend(1, numbers(256, 1)).length, 256);
        }
    }

    private static void forks() {
        KvCache cache = filled(300);
        float[] q = numbers(QUERY, 9), before = cache.attend(0, q);
        CacheStats stats = cache.stats();
        equal(List.of(stats.tokens(), stats.sinks(), stats.hot(), stats.warm()), List.of(300L, 4L, 32L, 264L));
        equal(List.of(cache.length(), cache.bytes()), List.of(300L, stats.allocatedBytes()));
        try (KvCache f16 = filled(300, "f16", 1)) {
            that(cache.bytes() < 0.5 * f16.bytes(), cache.bytes() + " of " + f16.bytes());
        }
        try (KvCache fork = cache.fork()) {
            that(fork.stats().sharedBytes() > 0, fork.stats());
            for (int layer = 0; layer < LAYERS; layer++) fork.append(layer, numbers(TOKEN, 1), numbers(TOKEN, 1));
            equal(List.of(cache.length(), fork.length()), List.of(300L, 301L));
            that(!Arrays.equals(fork.attend(0, q), before), "the fork did not see its token");
            equal(cache.attend(0, q), before);
            fork.truncate(300);
            equal(fork.length(), 300L);
            equal(fork.attend(0, q), before);
            cache.close();
            equal(fork.attend(0, q), before);
        }
    }

    private static void snapshots() throws IOException {
        try (KvCache cache = filled(500); KvCache other = filled(3, "t4,t2 hot=32", 77); KvCache another = empty("s4")) {
            byte[] bytes = cache.snapshot();
            other.restore(bytes);
            equal(other.length(), 500L);
            equal(other.snapshot(), bytes);
            for (KvCache one : List.of(cache, other)) one.append(0, numbers(TOKEN, 5), numbers(TOKEN, 6));
            equal(other.attend(0, numbers(QUERY, 1)), cache.attend(0, numbers(QUERY, 1)));

            byte[] damaged = bytes.clone(), before = other.snapshot();
            damaged[damaged.length >> 1] ^= 1;
            refused(() -> other.restore(damaged), "snapshot: damaged (CRC-32 does not match)", "TQKV_BAD_SNAPSHOT");
            refused(() -> other.restore(Arrays.copyOf(bytes, 400)), "snapshot: cut short", "TQKV_BAD_SNAPSHOT");
            refused(() -> other.restore((byte[]) null), "snapshot is null, expected one that is not", "TQKV_NULL_POINTER");
            TqkvException failure = thrown(TqkvException.class, () -> another.restore(bytes));
            that(failure.getMessage().startsWith("snapshot: of a cache with another"), failure.getMessage());
            equal(other.snapshot(), before);

            // No byte after a snapshot is read.
            byte[] twice = Arrays.copyOf(bytes, 2 * bytes.length);
            System.arraycopy(bytes, 0, twice, bytes.length, bytes.length);
            InputStream stream = new ByteArrayInputStream(twice);
            other.restore(stream);
            equal(stream.available(), bytes.length);
        }
    }

    private static void streams() {
        try (KvCache cache = filled(50)) {
            byte[] before = cache.snapshot();
            IOException full = new IOException("the disk is full");
            OutputStream broken = new OutputStream() {
                @Override
                public void write(int one) throws IOException {
                    throw full;
                }
            };
            that(thrown(IOException.class, () -> cache.snapshot(broken)) == full, "another exception");
            InputStream faulty = new InputStream() {
                @Override
                public int read() {
                    throw new IllegalStateException("not open");
                }
            };
            equal(thrown(IllegalStateException.class, () -> cache.restore(faulty)).getMessage(), "not open");
            equal(cache.snapshot(), before);
        }
    }

    private static void files() throws IOException {
        Path folder = Files.createTempDirectory("tqkv"), file = folder.resolve("a cache, é.tqs");
        try (KvCache cache = filled(200); KvCache other = filled(5)) {
            cache.save(file);
            equal(Files.readAllBytes(file), cache.snapshot());
            other.restoreFrom(file);
            try (KvCache loaded = KvCache.load(file)) {
                for (KvCache one : List.of(other, loaded)) equal(one.attend(1, numbers(QUERY, 2)), cache.attend(1, numbers(QUERY, 2)));
            }
            TqkvException failure = thrown(TqkvException.class, () -> KvCache.load(folder.resolve("absent")));
            equal(failure.code(), "TQKV_IO");
            that(failure.getMessage().contains("absent"), failure.getMessage());
            equal(thrown(TqkvException.class, () -> cache.save(folder.resolve("no/folder"))).code(), "TQKV_IO");
            refused(() -> KvCache.load(null), "path is null, expected one that is not", "TQKV_NULL_POINTER");
        } finally {
            Files.deleteIfExists(file);
            Files.delete(folder);
        }
    }

    private static void errors() {
        float[] x = numbers(TOKEN, 1), q = numbers(QUERY, 1);
        refused(() -> new KvCache(2, 4, -1, 64, ""), "kvHeads is -1, expected 0 or more");
        refused(() -> empty(null), "kv is null, expected one that is not", "TQKV_NULL_POINTER");
        refused(() -> empty("s4\0"), "kv has a zero character, expected none");
        that(thrown(TqkvException.class, () -> empty("q4")).getMessage().contains("kv=q4 is not valid: expected kv=PRESET|K,V"), "q4");
        that(thrown(TqkvException.class, () -> empty("warm=3")).getMessage().contains("warm"), "warm");
        try (KvCache cache = filled(10); KvCache empty = empty("")) {
            refused(() -> cache.append(0, x, numbers(127, 1)), "v has 127 values, expected 128");
            refused(() -> cache.append(0, x, (float[]) null), "v is null, expected one that is not", "TQKV_NULL_POINTER");
            refused(() -> cache.append(-1, x, x), "layer is -1, expected 0 or more");
            refused(() -> cache.append(2, x, x), "layer 2 is out of range: the cache has 2 layers");
            float[] large = new float[TOKEN];
            Arrays.fill(large, Float.POSITIVE_INFINITY);
            refused(() -> cache.append(0, x, large), "layer 0, value of token 10, KV head 0: values must be finite and the norm at most 6830.2437",
                "TQKV_BAD_VECTOR");
            refused(() -> cache.attend(0, numbers(100, 1)), "q has 100 values, expected 256");
            refused(() -> cache.attend(0, q, new float[255]), "out has 255 values, expected 256");
            refused(() -> cache.attendPrefill(0, numbers(300, 1), x, x), "q has 300 values, expected 256");
            refused(() -> cache.truncate(-1), "length is -1, expected 0 or more");
            refused(() -> cache.keys(0, 0, 5, 3, new float[0]), "tokens 5 to 3: the end is before the start");
            refused(() -> cache.values(0, 9, 0, 3, new float[3 * DIM]), "KV head 9 is out of range: layer 0 has 2");
            refused(() -> cache.keys(0, 0, 0, 3, new float[DIM]), "out has 64 values, expected 3 tokens of 64 values");
            refused(() -> empty.attend(0, q), "layer 0 holds no token yet: append before attending", "TQKV_EMPTY");
            equal(cache.length(), 10L);
        }
    }

    private static void closed() {
        KvCache cache = filled(10);
        cache.close();
        cache.close();
        for (Check.Work use : List.<Check.Work>of(cache::length, cache::fork, cache::snapshot, cache::stats, cache::reset, cache::bytes))
            refused(use, "the cache is closed, expected one that is not");
        refused(() -> cache.attend(0, numbers(QUERY, 1)), "the cache is closed, expected one that is not");
    }
}
