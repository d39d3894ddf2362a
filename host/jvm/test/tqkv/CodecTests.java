package tqkv;

import static tqkv.Check.equal;
import static tqkv.Check.near;
import static tqkv.Check.refused;
import static tqkv.Check.test;
import static tqkv.Check.that;
import static tqkv.Check.thrown;
import static tqkv.Tests.numbers;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

final class CodecTests {
    private CodecTests() {}

    static void run(List<String> golden) {
        test("codes are the golden blocks", () -> blocks(golden));
        test("a codec decodes and scores what it encodes", CodecTests::roundTrip);
        test("native memory is used where it lies", CodecTests::segments);
        test("what a codec does not accept is named", CodecTests::errors);
    }

    private static void blocks(List<String> golden) {
        Map<String, float[]> vectors = new HashMap<>();
        int equal = 0;
        for (String line : golden) {
            String[] words = line.split(" ");
            if (words[0].equals("#")) {
                // "# vector DIM VALUES": f32 in little endian.
                if (words[1].equals("vector")) {
                    float[] x = new float[Integer.parseInt(words[2])];
                    ByteBuffer.wrap(HexFormat.of().parseHex(words[3])).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(x);
                    vectors.put(words[2], x);
                }
                continue;
            }
            String text = words[0] + " seed=" + words[2] + " scale-mode=" + words[3] + " effort=" + words[4];
            try (Codec codec = new Codec(text, Integer.parseInt(words[1]))) {
                float[] x = vectors.get(words[1]);
                if (words[5].equals("refused")) thrown(TqkvException.class, () -> codec.encode(x));
                else equal(line.replace(words[5], HexFormat.of().formatHex(codec.encode(x))), line);
            }
            equal++;
        }
        that(equal > 200, equal + " lines");
    }

    private static void roundTrip() {
        try (Codec codec = new Codec("s4", 128)) {
            float[] x = numbers(5 * 128, 1), q = numbers(128, 2);
            byte[] blocks = codec.encode(x);
            equal(List.of(blocks.length, codec.blockBytes(), codec.dim()), List.of(5 * 66, 66, 128));
            float[] y = codec.decode(blocks);
            double error = 0, energy = 0;
            for (int i = 0; i < x.length; i++) {
                error += Math.pow(x[i] - y[i], 2);
                energy += Math.pow(x[i], 2);
            }
            that(error / energy > 0.001 && error / energy < 0.02, error / energy);
            float[] scores = codec.scores(q, blocks);
            equal(scores.length, 5);
            for (int row = 0; row < 5; row++) {
                double want = 0;
                for (int i = 0; i < 128; i++) want += q[i] * y[128 * row + i];
                near(scores[row], want, 1e-3, "row " + row);
            }
            equal(codec.encode(new float[0]).length, 0);
        }
        that(Tqkv.codecs().containsAll(List.of("s4", "t2", "i8")), Tqkv.codecs());
    }

    private static void segments() {
        float[] x = numbers(3 * 64, 1);
        try (Codec codec = new Codec("t4", 64); Arena arena = Arena.ofConfined()) {
            MemorySegment from = arena.allocateFrom(ValueLayout.JAVA_FLOAT, x), blocks = arena.allocate(3L * codec.blockBytes());
            codec.encode(from, blocks);
            byte[] bytes = codec.encode(x);
            equal(blocks.toArray(ValueLayout.JAVA_BYTE), bytes);
            // A direct buffer, of which a part is written.
            ByteBuffer buffer = ByteBuffer.allocateDirect(4 * 65 + 64 * 4).order(ByteOrder.nativeOrder());
            codec.decode(blocks.asSlice(codec.blockBytes(), codec.blockBytes()), MemorySegment.ofBuffer(buffer).asSlice(4 * 65));
            float[] all = codec.decode(bytes);
            for (int i = 0; i < 64; i++) {
                equal(buffer.getFloat(4 * (65 + i)), all[64 + i]);
                equal(buffer.getFloat(4 * i), 0f);
            }
            MemorySegment heap = MemorySegment.ofArray(new float[3]);
            codec.scores(from.asSlice(0, 256), MemorySegment.ofArray(bytes), heap);
            equal(heap.toArray(ValueLayout.JAVA_FLOAT), codec.scores(java.util.Arrays.copyOf(x, 64), bytes));

            refused(() -> codec.encode(from.asSlice(0, 255), blocks), "x has 255 bytes, expected a multiple of 4");
            refused(() -> codec.encode(from, blocks.asReadOnly()), "blocks is read-only, expected memory that can be written");
            refused(() -> codec.encode(from, blocks.asSlice(1)), "x has 192 values and blocks 101 bytes: a vector has 64 values, its block 34 bytes");
        }
    }

    private static void errors() {
        refused(() -> new Codec("s4", 63),
            "head dim not supported: accepted are multiples of 16 from 16 to 1024 of the form n * 2^k with n = 1, 12, 20, 28 or 36");
        refused(() -> new Codec("s4", -1), "dim is -1, expected 0 or more");
        refused(() -> new Codec(null, 128), "codec is null, expected one that is not", "TQKV_NULL_POINTER");
        refused(() -> new Codec("s4\0", 128), "codec has a zero character, expected none");
        refused(() -> new Codec("t4,t2", 128), "codec \"t4,t2\" is not valid: expected one codec, and seed=, scale-mode= or effort=");
        Codec codec = new Codec("s4", 128);
        refused(() -> codec.encode(numbers(130, 1)), "x has 130 values, expected a multiple of 128");
        float[] bad = numbers(256, 1);
        bad[200] = Float.NaN;
        refused(() -> codec.encode(bad), "vector 1: the vector holds NaN or an infinity; only finite values can be encoded", "TQKV_BAD_VECTOR");
        refused(() -> codec.decode(new byte[67]), "blocks has 67 bytes, expected a multiple of 66");
        refused(() -> codec.decode((byte[]) null), "blocks is null, expected one that is not", "TQKV_NULL_POINTER");
        refused(() -> codec.scores(numbers(64, 1), new byte[66]), "q has 64 values, expected 128");
        // The vectors of these blocks do not fit into an array.
        try (Codec one = new Codec("t1", 1024)) {
            int blocks = Integer.MAX_VALUE / 1024 + 1;
            refused(() -> one.decode(new byte[blocks * one.blockBytes()]),
                "out would have 2147483648 elements, expected at most 2147483639 in an array: pass a MemorySegment");
        }
        codec.close();
        codec.close();
        refused(() -> codec.encode(numbers(128, 1)), "the codec is closed, expected one that is not");
    }
}
