package tqkv;

import static tqkv.Check.equal;
import static tqkv.Check.test;
import static tqkv.Check.thrown;

import java.nio.file.Files;
import java.nio.file.Path;

/** The package as a program sees it, and its declarations. The argument is the root of the repository. */
final class Tests {
    private Tests() {}

    public static void main(String[] arguments) throws Exception {
        Path root = Path.of(arguments[0]);
        test("the library has the version of this package", () -> {
            equal(Tqkv.version(), Native.VERSION);
            equal(thrown(UnsatisfiedLinkError.class, () -> Native.check("0.0.9")).getMessage(),
                "the library of tqkv has version 0.0.9, expected " + Native.VERSION);
        });
        // Before any cache starts them.
        ThreadTests.run();
        HeaderTests.run(Files.readString(root.resolve("host/capi/include/tqkv.h")));
        CodecTests.run(Files.readAllLines(root.resolve("tests/vectors/blocks.txt")));
        CacheTests.run();
        Check.finish();
    }

    /** Numbers around 0 that are the same in each run. */
    static float[] numbers(int length, int seed) {
        float[] x = new float[length];
        int state = seed;
        for (int i = 0; i < length; i++) {
            double sum = -2;
            for (int part = 0; part < 4; part++) {
                state = state * 1664525 + 1013904223;
                sum += Integer.toUnsignedLong(state) / 4294967296.0;
            }
            x[i] = (float) sum;
        }
        return x;
    }
}
