package tqkv;

import static tqkv.Frame.segment;
import static tqkv.Frame.whole;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.file.Path;

/**
 * The cache of one sequence. Any number of threads may use it: calls that read it run side by side, the others one at a time. A call that is refused
 * leaves it as it was. Arrays are copied. Methods that take a {@link MemorySegment} read and write native memory where it lies, as 32-bit floats.
 */
public final class KvCache implements AutoCloseable {
    private final Handle handle;

    /** An empty cache. `kv` has the words of docs/options.md, such as "t4,t2 hot=32". */
    public KvCache(int layers, int heads, int kvHeads, int headDim, String kv) {
        this(created("layers=" + whole("layers", layers) + " heads=" + whole("heads", heads) + " kv-heads=" + whole("kvHeads", kvHeads) + " head-dim="
            + whole("headDim", headDim) + " " + Frame.present("kv", kv)));
    }

    private KvCache(MemorySegment at) {
        handle = new Handle(this, "cache", Native.FREE, at);
    }

    private static MemorySegment created(String spec) {
        try (Frame frame = new Frame()) {
            MemorySegment text = frame.text("kv", spec), place = frame.place();
            Native.ask(() -> (int) Native.CREATE.invokeExact(text, place));
            return place.get(ValueLayout.ADDRESS, 0);
        }
    }

    /** The cache that {@link #save} wrote, with its options but `select=` and `max-tokens=`. */
    public static KvCache load(Path path) {
        try (Frame frame = new Frame()) {
            MemorySegment text = frame.path(path), place = frame.place();
            Native.ask(() -> (int) Native.LOAD.invokeExact(text, place));
            return new KvCache(place.get(ValueLayout.ADDRESS, 0));
        }
    }

    /** Another cache with the same tokens, which shares pages until one of the two writes to them. */
    public KvCache fork() {
        try (Frame frame = new Frame()) {
            MemorySegment place = frame.place();
            handle.ask(at -> (int) Native.FORK.invokeExact(at, place));
            return new KvCache(place.get(ValueLayout.ADDRESS, 0));
        }
    }

    /** Appends tokens to one layer: `k` is [tokens, kvHeads, headDim], after RoPE, and `v` is [tokens, kvHeads, valueDim]. */
    public void append(int layer, float[] k, float[] v) {
        append(layer, segment("k", k), segment("v", v));
    }

    public void append(int layer, MemorySegment k, MemorySegment v) {
        long of = whole("layer", layer);
        try (Frame frame = new Frame()) {
            var keys = frame.floats("k", k);
            var values = frame.floats("v", v);
            handle.ask(at -> (int) Native.APPEND.invokeExact(at, of, Native.F32, keys.at(), keys.count(), values.at(), values.count()));
        }
    }

    /**
     * Attends from the newest position of a layer: `q` is [heads, headDim]. The result is as long, so where values have another length
     * (`value-dim=`), pass an array for it.
     */
    public float[] attend(int layer, float[] q) {
        float[] out = new float[Frame.present("q", q).length];
        attend(layer, q, out);
        return out;
    }

    /** Writes to `out`, which is [heads, valueDim]. */
    public void attend(int layer, float[] q, float[] out) {
        attend(layer, segment("q", q), segment("out", out));
    }

    public void attend(int layer, MemorySegment q, MemorySegment out) {
        long of = whole("layer", layer);
        try (Frame frame = new Frame()) {
            var query = frame.floats("q", q);
            var to = frame.floatResults("out", out);
            handle.ask(at -> (int) Native.ATTEND.invokeExact(at, of, Native.F32, query.at(), query.count(), Native.F32, to.at(), to.count()));
            frame.finish();
        }
    }

    /**
     * Attends from the newest position of a layer to some tokens only, as {@link #attend} does to all. `tokens` has a list for each KV head: positions
     * that the newest one sees, ascending.
     */
    public float[] attendSelected(int layer, float[] q, int[][] tokens) {
        float[] out = new float[Frame.present("q", q).length];
        attendSelected(layer, q, tokens, out);
        return out;
    }

    /** Writes to `out`, which is [heads, valueDim]. */
    public void attendSelected(int layer, float[] q, int[][] tokens, float[] out) {
        attendSelected(layer, segment("q", q), tokens, segment("out", out));
    }

    public void attendSelected(int layer, MemorySegment q, int[][] tokens, MemorySegment out) {
        long of = whole("layer", layer);
        try (Frame frame = new Frame()) {
            var query = frame.floats("q", q);
            var chosen = frame.wholes("tokens", tokens);
            var lists = frame.lengths(tokens);
            var to = frame.floatResults("out", out);
            handle.ask(at -> (int) Native.ATTEND_SELECTED.invokeExact(at, of, Native.F32, query.at(), query.count(), chosen.at(), chosen.count(),
                lists.at(), lists.count(), Native.F32, to.at(), to.count()));
            frame.finish();
        }
    }

    /** Appends a prompt and attends causally with its queries, which are [tokens, heads, headDim]. The result is as long, as in {@link #attend}. */
    public float[] attendPrefill(int layer, float[] q, float[] k, float[] v) {
        float[] out = new float[Frame.present("q", q).length];
        attendPrefill(layer, q, k, v, out);
        return out;
    }

    /** Writes to `out`, which is [tokens, heads, valueDim]. */
    public void attendPrefill(int layer, float[] q, float[] k, float[] v, float[] out) {
        attendPrefill(layer, segment("q", q), segment("k", k), segment("v", v), segment("out", out));
    }

    public void attendPrefill(int layer, MemorySegment q, MemorySegment k, MemorySegment v, MemorySegment out) {
        long of = whole("layer", layer);
        try (Frame frame = new Frame()) {
            var queries = frame.floats("q", q);
            var keys = frame.floats("k", k);
            var values = frame.floats("v", v);
            var to = frame.floatResults("out", out);
            handle.ask(at -> (int) Native.PREFILL.invokeExact(at, of, Native.F32, queries.at(), queries.count(), Native.F32, keys.at(), keys.count(),
                values.at(), values.count(), Native.F32, to.at(), to.count()));
            frame.finish();
        }
    }

    /** Keys of the tokens from `start` to `end` (not included) as they are kept, to `out`: [end - start, headDim]. */
    public void keys(int layer, int kvHead, long start, long end, float[] out) {
        rows(Native.KEYS, layer, kvHead, start, end, out);
    }

    /** Values: [end - start, valueDim]. */
    public void values(int layer, int kvHead, long start, long end, float[] out) {
        rows(Native.VALUES, layer, kvHead, start, end, out);
    }

    /** Drops the tokens from index `length` on. */
    public void truncate(long length) {
        long to = whole("length", length);
        handle.ask(at -> (int) Native.TRUNCATE.invokeExact(at, to));
    }

    /** Empties the cache. */
    public void reset() {
        handle.ask(at -> (int) Native.RESET.invokeExact(at));
    }

    /** All tokens, in the format of every interface of tqkv. */
    public byte[] snapshot() {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try {
            snapshot(bytes);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
        return bytes.toByteArray();
    }

    /** Writes a snapshot to a stream, which must not use this cache. */
    public void snapshot(OutputStream to) throws IOException {
        Stream.write(handle, to);
    }

    /** Replaces the tokens by those of a snapshot of a cache with the same options. */
    public void restore(byte[] snapshot) {
        try {
            restore(new ByteArrayInputStream(Frame.present("snapshot", snapshot)));
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    /** Reads a snapshot from a stream, which must not use this cache, and no byte after it. */
    public void restore(InputStream from) throws IOException {
        Stream.read(handle, from);
    }

    /** Writes a snapshot to a file, which appears complete or not at all. */
    public void save(Path path) {
        try (Frame frame = new Frame()) {
            MemorySegment text = frame.path(path);
            handle.ask(at -> (int) Native.SAVE.invokeExact(at, text));
        }
    }

    /** Replaces the tokens by those of a file that {@link #save} wrote for a cache with the same options. */
    public void restoreFrom(Path path) {
        try (Frame frame = new Frame()) {
            MemorySegment text = frame.path(path);
            handle.ask(at -> (int) Native.RESTORE_FROM.invokeExact(at, text));
        }
    }

    public CacheStats stats() {
        try (Frame frame = new Frame()) {
            MemorySegment x = frame.arena.allocate(ValueLayout.JAVA_LONG, 12);
            handle.ask(at -> (int) Native.STATS.invokeExact(at, x));
            long[] n = x.toArray(ValueLayout.JAVA_LONG);
            return new CacheStats(n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11]);
        }
    }

    /** Tokens in the first layer that keeps any. */
    public long length() {
        try (Frame frame = new Frame()) {
            MemorySegment place = frame.place();
            handle.ask(at -> (int) Native.LEN.invokeExact(at, place));
            return place.get(ValueLayout.JAVA_LONG, 0);
        }
    }

    /** Bytes of keys and values, spare capacity included. */
    public long bytes() {
        return stats().allocatedBytes();
    }

    /** Frees its memory, after the calls that other threads run. Later calls are refused. */
    @Override
    public void close() {
        handle.close();
    }

    private void rows(MethodHandle call, int layer, int kvHead, long start, long end, float[] out) {
        long of = whole("layer", layer), head = whole("kvHead", kvHead), first = whole("start", start), last = whole("end", end);
        try (Frame frame = new Frame()) {
            var to = frame.floatResults("out", segment("out", out));
            handle.ask(at -> (int) call.invokeExact(at, of, head, first, last, Native.F32, to.at(), to.count()));
            frame.finish();
        }
    }
}
