package tqkv;

import static tqkv.Frame.length;
import static tqkv.Frame.segment;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * One codec at one head dim. Vectors and blocks lie back to back. Any number of threads may use it. Methods that take a {@link MemorySegment} read
 * and write native memory where it lies; results have the length that the array forms return.
 */
public final class Codec implements AutoCloseable {
    private final Handle handle;
    private final int dim, blockBytes;

    /** A codec for vectors of `dim` values: "s4", or "t4 seed=7 effort=best". */
    public Codec(String codec, int dim) {
        Frame.whole("dim", dim);
        try (Frame frame = new Frame()) {
            MemorySegment text = frame.text("codec", codec), place = frame.place();
            Native.ask(() -> (int) Native.CODEC_CREATE.invokeExact(text, (long) dim, place));
            handle = new Handle(this, "codec", Native.CODEC_FREE, place.get(ValueLayout.ADDRESS, 0));
            handle.ask(at -> (int) Native.CODEC_BLOCK_BYTES.invokeExact(at, place));
            blockBytes = (int) place.get(ValueLayout.JAVA_LONG, 0);
        }
        this.dim = dim;
    }

    public int dim() {
        return dim;
    }

    public int blockBytes() {
        return blockBytes;
    }

    /** Encodes vectors to as many blocks. */
    public byte[] encode(float[] x) {
        long vectors = count("x", Frame.present("x", x).length, dim, "values");
        byte[] blocks = new byte[length("blocks", vectors * blockBytes)];
        encode(segment("x", x), segment("blocks", blocks));
        return blocks;
    }

    public void encode(MemorySegment x, MemorySegment blocks) {
        try (Frame frame = new Frame()) {
            var from = frame.floats("x", x);
            var to = frame.byteResults("blocks", blocks);
            handle.ask(at -> (int) Native.CODEC_ENCODE.invokeExact(at, from.at(), from.count(), to.at(), to.count()));
            frame.finish();
        }
    }

    public float[] decode(byte[] blocks) {
        float[] out = new float[length("out", dim * blocks(blocks))];
        decode(segment("blocks", blocks), segment("out", out));
        return out;
    }

    public void decode(MemorySegment blocks, MemorySegment out) {
        try (Frame frame = new Frame()) {
            var from = frame.bytes("blocks", blocks);
            var to = frame.floatResults("out", out);
            handle.ask(at -> (int) Native.CODEC_DECODE.invokeExact(at, from.at(), from.count(), to.at(), to.count()));
            frame.finish();
        }
    }

    /** Dot products of one query with blocks, which are not decoded. */
    public float[] scores(float[] q, byte[] blocks) {
        float[] out = new float[(int) blocks(blocks)];
        scores(segment("q", q), segment("blocks", blocks), segment("out", out));
        return out;
    }

    public void scores(MemorySegment q, MemorySegment blocks, MemorySegment out) {
        try (Frame frame = new Frame()) {
            var query = frame.floats("q", q);
            var from = frame.bytes("blocks", blocks);
            var to = frame.floatResults("out", out);
            handle.ask(at -> (int) Native.CODEC_SCORES.invokeExact(at, query.at(), query.count(), from.at(), from.count(), to.at(), to.count()));
            frame.finish();
        }
    }

    /** Frees its memory, after the calls that other threads run. Later calls are refused. */
    @Override
    public void close() {
        handle.close();
    }

    private long blocks(byte[] blocks) {
        return count("blocks", Frame.present("blocks", blocks).length, blockBytes, "bytes");
    }

    private static long count(String what, int length, int each, String unit) {
        if (length % each != 0) throw TqkvException.argument(what + " has " + length + " " + unit + ", expected a multiple of " + each);
        return length / each;
    }
}
