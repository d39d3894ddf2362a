package tqkv;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;

/** Bytes of a snapshot on their way between a stream of Java and the library. */
final class Stream {
    private static final int PART = 1 << 16;
    private static final MethodHandle WRITE = method("write", Native.WRITE), READ = method("read", Native.READ);

    private final InputStream from;
    private final OutputStream to;
    private final byte[] part = new byte[PART];
    private Throwable failure;

    private Stream(InputStream from, OutputStream to) {
        this.from = from;
        this.to = to;
    }

    static void write(Handle cache, OutputStream to) throws IOException {
        new Stream(null, Frame.present("to", to)).move(cache, Native.SNAPSHOT, WRITE, Native.WRITE);
    }

    static void read(Handle cache, InputStream from) throws IOException {
        new Stream(Frame.present("from", from), null).move(cache, Native.RESTORE, READ, Native.READ);
    }

    private static MethodHandle method(String name, FunctionDescriptor type) {
        MethodType java = type.toMethodType();
        return Native.run(() -> MethodHandles.lookup().findVirtual(Stream.class, name, java));
    }

    private void move(Handle cache, MethodHandle call, MethodHandle method, FunctionDescriptor type) throws IOException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment callback = Native.callback(method.bindTo(this), type, arena);
            cache.ask(at -> (int) call.invokeExact(at, callback, MemorySegment.NULL));
        } catch (TqkvException refused) {
            // The library only knows that a function failed.
            if (failure instanceof IOException thrown) throw thrown;
            if (failure instanceof RuntimeException thrown) throw thrown;
            if (failure instanceof Error thrown) throw thrown;
            throw refused;
        }
    }

    // The library calls these two. An exception that left them would end the program.

    int write(MemorySegment user, MemorySegment bytes, long length) {
        try {
            MemorySegment lent = Native.lent(bytes, length);
            for (long at = 0; at < length; at += PART) {
                int count = (int) Math.min(PART, length - at);
                MemorySegment.copy(lent, JAVA_BYTE, at, part, 0, count);
                to.write(part, 0, count);
            }
            return 0;
        } catch (Throwable thrown) {
            failure = thrown;
            return -1;
        }
    }

    long read(MemorySegment user, MemorySegment bytes, long length) {
        try {
            int count = from.read(part, 0, (int) Math.min(PART, length));
            if (count <= 0) return 0;
            MemorySegment.copy(part, 0, Native.lent(bytes, length), JAVA_BYTE, 0, count);
            return count;
        } catch (Throwable thrown) {
            failure = thrown;
            return -1;
        }
    }
}
