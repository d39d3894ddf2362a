import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Random;
import tqkv.CacheStats;
import tqkv.KvCache;
import tqkv.TqkvException;

/** Two conversations begin with one prompt: a fork shares its pages, and one of the two is kept in a file. */
public final class Conversations {
    private static final int LAYERS = 2, HEADS = 8, KV_HEADS = 2, DIM = 128, PROMPT = 1000, STEPS = 40;
    private static final Random random = new Random(1);

    /** What a model computes for a token, after RoPE. */
    private static void fill(MemorySegment x) {
        for (long i = 0; i < x.byteSize() / 4; i++) x.setAtIndex(ValueLayout.JAVA_FLOAT, i, (float) random.nextGaussian());
    }

    private static float[] prompt(int heads) {
        float[] x = new float[PROMPT * heads * DIM];
        for (int i = 0; i < x.length; i++) x[i] = (float) random.nextGaussian();
        return x;
    }

    public static void main(String[] arguments) throws Exception {
        Path file = Files.createTempFile("conversation", ".tqs");
        try (KvCache first = new KvCache(LAYERS, HEADS, KV_HEADS, DIM, "t4,t2 hot=32"); Arena arena = Arena.ofConfined()) {
            for (int layer = 0; layer < LAYERS; layer++) first.attendPrefill(layer, prompt(HEADS), prompt(KV_HEADS), prompt(KV_HEADS));
            try (KvCache second = first.fork()) {
                // Native memory, as the tensors of an engine are, is read and written where it lies.
                MemorySegment q = arena.allocate(ValueLayout.JAVA_FLOAT, HEADS * DIM), out = arena.allocate(ValueLayout.JAVA_FLOAT, HEADS * DIM);
                MemorySegment k = arena.allocate(ValueLayout.JAVA_FLOAT, KV_HEADS * DIM), v = arena.allocate(ValueLayout.JAVA_FLOAT, KV_HEADS * DIM);
                for (int step = 0; step < STEPS; step++)
                    for (KvCache one : new KvCache[] {first, second})
                        for (int layer = 0; layer < LAYERS; layer++) {
                            for (MemorySegment x : new MemorySegment[] {q, k, v}) fill(x);
                            one.append(layer, k, v);
                            one.attend(layer, q, out);
                        }
                CacheStats stats = second.stats();
                long f16 = 2L * 2 * LAYERS * KV_HEADS * DIM * stats.tokens();
                System.out.printf("%d tokens in %d bytes, of which a fork shares %d; f16 takes %d%n", stats.tokens(), stats.allocatedBytes(),
                    stats.sharedBytes(), f16);
                if (stats.sharedBytes() == 0 || stats.allocatedBytes() > f16 / 2) throw new AssertionError(stats);

                second.save(file);
                try (KvCache again = KvCache.load(file)) {
                    again.attend(0, q, out);
                    MemorySegment want = arena.allocate(ValueLayout.JAVA_FLOAT, HEADS * DIM);
                    second.attend(0, q, want);
                    if (want.mismatch(out) != -1) throw new AssertionError("the file gives other results");
                }
                System.out.println("the file gives the same bits");
            }
            try {
                first.attend(0, new float[5]);
                throw new AssertionError("not refused");
            } catch (TqkvException refused) {
                System.out.println(refused.code() + ": " + refused.getMessage());
            }
        } finally {
            Files.delete(file);
        }
    }
}
