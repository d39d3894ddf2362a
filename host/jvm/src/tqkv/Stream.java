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
    /** Bytes that one call reads at most. */
    private static final int PART = 1 << 16;
    private static final MethodHandle WRITE = method("write", Native.WRITE), READ = method("read", Native.READ);

    private final InputStream from;
    private final OutputStream to;
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
            to.write(Native.lent(bytes, length).toArray(JAVA_BYTE));
            return 0;
        } catch (Throwable thrown) {
            failure = thrown;
            return -1;
        }
    }

    long read(MemorySegment user, MemorySegment bytes, long length) {
        try {
            byte[] part = from.readNBytes((int) Math.min(PART, length));
            MemorySegment.copy(part, 0, Native.lent(bytes, length), JAVA_BYTE, 0, part.length);
            return part.length;
        } catch (Throwable thrown) {
            failure = thrown;
            return -1;
        }
    }
}
