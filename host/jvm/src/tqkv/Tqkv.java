package tqkv;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.stream.LongStream;

/** The library itself. */
public final class Tqkv {
    private Tqkv() {}

    /** Such as "0.1.0". */
    public static String version() {
        return Native.text(Native.RELEASED);
    }

    /** The names of all codecs. */
    public static List<String> codecs() {
        long count = Native.run(() -> (long) Native.CODEC_COUNT.invokeExact());
        return LongStream.range(0, count).mapToObj(i -> Native.textAt(Native.run(() -> (MemorySegment) Native.CODEC_NAME.invokeExact(i)))).toList();
    }

    /** The number of threads that share the work of calls; it starts them if no call has. */
    public static int threads() {
        try (Frame frame = new Frame()) {
            MemorySegment place = frame.place();
            Native.ask(() -> (int) Native.THREADS.invokeExact(place));
            return (int) place.get(ValueLayout.JAVA_LONG, 0);
        }
    }

    /** Sets that number, 1 to 1024, before the first cache is made. With 1 the calling thread does all of its work. */
    public static void setThreads(int threads) {
        Frame.whole("threads", threads);
        Native.ask(() -> (int) Native.SET_THREADS.invokeExact((long) threads));
    }
}
