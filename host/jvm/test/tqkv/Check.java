package tqkv;

import java.util.Arrays;
import java.util.Objects;

/** A runner of tests without dependencies: it counts them, and a failure has its line. */
final class Check {
    interface Work {
        void run() throws Throwable;
    }

    private static int passed, failed;

    private Check() {}

    static void test(String what, Work work) {
        try {
            work.run();
            passed++;
        } catch (Throwable failure) {
            failed++;
            System.out.println("FAILED: " + what);
            failure.printStackTrace(System.out);
        }
    }

    /** Prints the numbers, and ends the program with them as its status. */
    static void finish() {
        System.out.println(passed + " passed, " + failed + " failed");
        System.exit(failed == 0 && passed > 0 ? 0 : 1);
    }

    static void that(boolean holds, Object what) {
        if (!holds) throw new AssertionError(what);
    }

    static void equal(Object got, Object expected) {
        that(Objects.deepEquals(got, expected), show(got) + ", expected " + show(expected));
    }

    static void near(double got, double expected, double tolerance, String what) {
        that(Math.abs(got - expected) < tolerance, what + ": " + got + ", expected " + expected);
    }

    static <T extends Throwable> T thrown(Class<T> type, Work work) {
        try {
            work.run();
        } catch (Throwable failure) {
            if (type.isInstance(failure)) return type.cast(failure);
            throw new AssertionError("expected " + type.getSimpleName(), failure);
        }
        throw new AssertionError("nothing was refused, expected " + type.getSimpleName());
    }

    static void refused(Work work, String message, String code) {
        TqkvException failure = thrown(TqkvException.class, work);
        equal(failure.getMessage() + " (" + failure.code() + ")", message + " (" + code + ")");
    }

    static void refused(Work work, String message) {
        refused(work, message, "TQKV_BAD_ARGUMENT");
    }

    private static String show(Object x) {
        String text = Arrays.deepToString(new Object[] {x});
        return text.length() > 300 ? text.substring(0, 300) + " .." : text;
    }
}
