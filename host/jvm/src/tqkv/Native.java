package tqkv;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.Map;
import java.util.TreeMap;

/** The functions of tqkv.h that this package calls. A test compares each declaration with the header. */
final class Native {
    /** The library must be of this version, because its interface may change with each. */
    static final String VERSION = "0.1.0";
    /** TQKV_F32 */
    static final int F32 = 0;
    private static final int OK = 0;

    // Types of the header. size_t has 64 bits wherever Java has foreign functions.
    private static final ValueLayout P = ADDRESS, SIZE = JAVA_LONG, U32 = JAVA_INT;
    /** Of the functions below. */
    static final Map<String, FunctionDescriptor> DECLARED = new TreeMap<>();
    /** tqkv_write_fn and tqkv_read_fn. */
    static final FunctionDescriptor WRITE = FunctionDescriptor.of(JAVA_INT, P, P, SIZE), READ = FunctionDescriptor.of(SIZE, P, P, SIZE);

    private static final Linker LINKER = Linker.nativeLinker();
    private static final SymbolLookup LIBRARY = Loader.find();

    private static final MethodHandle LAST_ERROR = function("tqkv_last_error", P), STATUS_NAME = function("tqkv_status_name", P, U32);
    static final MethodHandle RELEASED = function("tqkv_version", P);
    static final MethodHandle THREADS = status("tqkv_threads", P), SET_THREADS = status("tqkv_set_threads", SIZE);

    static final MethodHandle CODEC_COUNT = function("tqkv_codec_count", SIZE), CODEC_NAME = function("tqkv_codec_name", P, SIZE);
    static final MethodHandle CODEC_CREATE = status("tqkv_codec_create", P, SIZE, P), CODEC_FREE = function("tqkv_codec_free", null, P);
    static final MethodHandle CODEC_BLOCK_BYTES = status("tqkv_codec_block_bytes", P, P);
    static final MethodHandle CODEC_ENCODE = status("tqkv_codec_encode", P, P, SIZE, P, SIZE);
    static final MethodHandle CODEC_DECODE = status("tqkv_codec_decode", P, P, SIZE, P, SIZE);
    static final MethodHandle CODEC_SCORES = status("tqkv_codec_scores", P, P, SIZE, P, SIZE, P, SIZE);

    static final MethodHandle CREATE = status("tqkv_create", P, P), FREE = function("tqkv_free", null, P), FORK = status("tqkv_fork", P, P);
    static final MethodHandle APPEND = status("tqkv_append", P, SIZE, U32, P, SIZE, P, SIZE);
    static final MethodHandle ATTEND = status("tqkv_attend", P, SIZE, U32, P, SIZE, U32, P, SIZE);
    static final MethodHandle ATTEND_SELECTED = status("tqkv_attend_selected", P, SIZE, U32, P, SIZE, P, SIZE, P, SIZE, U32, P, SIZE);
    static final MethodHandle PREFILL = status("tqkv_prefill", P, SIZE, U32, P, SIZE, U32, P, SIZE, P, SIZE, U32, P, SIZE);
    static final MethodHandle KEYS = status("tqkv_keys", P, SIZE, SIZE, SIZE, SIZE, U32, P, SIZE);
    static final MethodHandle VALUES = status("tqkv_values", P, SIZE, SIZE, SIZE, SIZE, U32, P, SIZE);
    static final MethodHandle TRUNCATE = status("tqkv_truncate", P, SIZE), RESET = status("tqkv_reset", P);
    static final MethodHandle LEN = status("tqkv_len", P, P), STATS = status("tqkv_stats", P, P);
    static final MethodHandle SNAPSHOT = status("tqkv_snapshot", P, P, P), RESTORE = status("tqkv_restore", P, P, P);
    static final MethodHandle SAVE = status("tqkv_save", P, P), RESTORE_FROM = status("tqkv_restore_from", P, P), LOAD = status("tqkv_load", P, P);

    static {
        check(text(RELEASED));
    }

    private Native() {}

    private static MethodHandle status(String name, MemoryLayout... parameters) {
        return function(name, U32, parameters);
    }

    private static MethodHandle function(String name, MemoryLayout result, MemoryLayout... parameters) {
        FunctionDescriptor type = result == null ? FunctionDescriptor.ofVoid(parameters) : FunctionDescriptor.of(result, parameters);
        DECLARED.put(name, type);
        String lacking = "the library of tqkv lacks " + name + ": expected version " + VERSION;
        return LINKER.downcallHandle(LIBRARY.find(name).orElseThrow(() -> new UnsatisfiedLinkError(lacking)), type);
    }

    static void check(String version) {
        if (!version.equals(VERSION)) throw new UnsatisfiedLinkError("the library of tqkv has version " + version + ", expected " + VERSION);
    }

    /** The address of a method of Java for the library to call, until the arena is closed. */
    static MemorySegment callback(MethodHandle method, FunctionDescriptor type, Arena arena) {
        return LINKER.upcallStub(method, type, arena);
    }

    interface Call<T> {
        T run() throws Throwable;
    }

    /** Handles declare `Throwable`; what they call throws nothing that is checked. */
    static <T> T run(Call<T> call) {
        try {
            return call.run();
        } catch (RuntimeException | Error failure) {
            throw failure;
        } catch (Throwable failure) {
            throw new AssertionError(failure);
        }
    }

    /** A call that returns a status. Nothing between it and `tqkv_last_error` blocks, so a virtual thread stays where its text is. */
    static void ask(Call<Integer> call) {
        int status = run(call);
        if (status != OK) throw new TqkvException(text(LAST_ERROR), textAt(run(() -> (MemorySegment) STATUS_NAME.invokeExact(status))));
    }

    static String text(MethodHandle function) {
        return textAt(run(() -> (MemorySegment) function.invokeExact()));
    }

    static String textAt(MemorySegment at) {
        return at.reinterpret(Long.MAX_VALUE).getString(0);
    }

    /** Memory that the library lent for the time of a callback. */
    static MemorySegment lent(MemorySegment at, long bytes) {
        return at.reinterpret(bytes);
    }
}
