package tqkv;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileSystems;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Memory of one call. Native memory is passed as it is, arrays of Java as copies, because the garbage collector may move them. */
final class Frame implements AutoCloseable {
    private static final long FLOAT = Float.BYTES, ALIGNED = 16;

    private record Copy(MemorySegment from, MemorySegment to) {}

    /** Numbers or bytes, and how many of them there are. */
    record Numbers(MemorySegment at, long count) {}

    final Arena arena = Arena.ofConfined();
    private final List<Copy> results = new ArrayList<>(1);

    Numbers floats(String what, MemorySegment x) {
        return new Numbers(in(what, x), values(what, x));
    }

    /** Lists one after the other. */
    Numbers wholes(String what, int[][] lists) {
        long count = 0;
        for (int[] list : present(what, lists)) count += present(what, list).length;
        MemorySegment all = arena.allocate(ValueLayout.JAVA_INT, count);
        long at = 0;
        for (int[] list : lists) {
            MemorySegment.copy(list, 0, all, ValueLayout.JAVA_INT, at, list.length);
            at += (long) list.length * Integer.BYTES;
        }
        return new Numbers(all, count);
    }

    /** How long each of the lists is. */
    Numbers lengths(int[][] lists) {
        MemorySegment all = arena.allocate(ValueLayout.JAVA_LONG, lists.length);
        for (int i = 0; i < lists.length; i++) all.setAtIndex(ValueLayout.JAVA_LONG, i, lists[i].length);
        return new Numbers(all, lists.length);
    }

    Numbers bytes(String what, MemorySegment x) {
        return new Numbers(in(what, x), x.byteSize());
    }

    Numbers floatResults(String what, MemorySegment out) {
        return new Numbers(out(what, out), values(what, out));
    }

    Numbers byteResults(String what, MemorySegment out) {
        return new Numbers(out(what, out), out.byteSize());
    }

    /** Copies results to the arrays that asked for them. */
    void finish() {
        for (Copy copy : results) copy.to.copyFrom(copy.from);
    }

    MemorySegment text(String what, String text) {
        if (present(what, text).indexOf('\0') >= 0) throw TqkvException.argument(what + " has a zero character, expected none");
        return arena.allocateFrom(text, StandardCharsets.UTF_8);
    }

    MemorySegment path(Path path) {
        if (present("path", path).getFileSystem() != FileSystems.getDefault())
            throw TqkvException.argument("path " + path + " is of " + path.getFileSystem() + ", expected a path of the default file system");
        return text("path", path.toAbsolutePath().toString());
    }

    /** Room for a number or an address that a call writes. */
    MemorySegment place() {
        return arena.allocate(ValueLayout.JAVA_LONG);
    }

    @Override
    public void close() {
        arena.close();
    }

    static <T> T present(String what, T x) {
        if (x == null) throw new TqkvException(what + " is null, expected one that is not", "TQKV_NULL_POINTER");
        return x;
    }

    static MemorySegment segment(String what, float[] x) {
        return MemorySegment.ofArray(present(what, x));
    }

    static MemorySegment segment(String what, byte[] x) {
        return MemorySegment.ofArray(present(what, x));
    }

    static long whole(String what, long x) {
        if (x < 0) throw TqkvException.argument(what + " is " + x + ", expected 0 or more");
        return x;
    }

    /** The length of an array of Java. */
    static int length(String what, long x) {
        int most = Integer.MAX_VALUE - 8;
        if (x > most) throw TqkvException.argument(what + " would have " + x + " elements, expected at most " + most + " in an array: pass a MemorySegment");
        return (int) x;
    }

    private MemorySegment in(String what, MemorySegment x) {
        if (present(what, x).isNative()) return x;
        MemorySegment copy = arena.allocate(x.byteSize(), ALIGNED);
        copy.copyFrom(x);
        return copy;
    }

    private MemorySegment out(String what, MemorySegment out) {
        if (present(what, out).isReadOnly()) throw TqkvException.argument(what + " is read-only, expected memory that can be written");
        if (out.isNative()) return out;
        MemorySegment copy = arena.allocate(out.byteSize(), ALIGNED);
        results.add(new Copy(copy, out));
        return copy;
    }

    private static long values(String what, MemorySegment x) {
        if (x.byteSize() % FLOAT != 0) throw TqkvException.argument(what + " has " + x.byteSize() + " bytes, expected a multiple of " + FLOAT);
        return x.byteSize() / FLOAT;
    }
}
