package tqkv;

import static tqkv.CacheTests.QUERY;
import static tqkv.CacheTests.TOKEN;
import static tqkv.CacheTests.filled;
import static tqkv.Check.equal;
import static tqkv.Check.refused;
import static tqkv.Check.test;
import static tqkv.Check.that;
import static tqkv.Check.thrown;
import static tqkv.Tests.numbers;

import java.io.IOException;
import java.io.OutputStream;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;

/** Threads, and the end of objects. */
final class ThreadTests {
    private static final AtomicInteger freed = new AtomicInteger();

    private ThreadTests() {}

    static void run() {
        test("the number of threads is said", () -> {
            Tqkv.setThreads(2);
            equal(Tqkv.threads(), 2);
            equal(thrown(TqkvException.class, () -> Tqkv.setThreads(3)).code(), "TQKV_UNSUPPORTED");
            refused(() -> Tqkv.setThreads(-1), "threads is -1, expected 0 or more");
        });
        test("two threads read one cache, and write one each", ThreadTests::two);
        test("each thread has its own message", ThreadTests::messages);
        test("a cache that is closed within a call is freed after it", ThreadTests::closedWithin);
        test("what is garbage is freed", ThreadTests::garbage);
    }

    private static <T> List<T> both(ExecutorService threads, List<Callable<T>> work) throws Exception {
        List<T> results = new ArrayList<>();
        for (Future<T> one : threads.invokeAll(work)) results.add(one.get());
        return results;
    }

    private static void two() throws Exception {
        float[] q = numbers(QUERY, 3);
        try (ExecutorService threads = Executors.newFixedThreadPool(2); KvCache shared = filled(400)) {
            float[] want = shared.attend(0, q);
            Callable<byte[]> work = () -> {
                try (KvCache own = filled(40)) {
                    for (int token = 0; token < 200; token++) {
                        equal(shared.attend(0, q), want);
                        own.append(token % 2, numbers(TOKEN, token), numbers(TOKEN, token + 1));
                        own.attend(token % 2, q);
                    }
                    return own.snapshot();
                }
            };
            List<byte[]> both = both(threads, List.of(work, work));
            equal(both.get(0), both.get(1));
        }
    }

    /** Each names its own layer; the text of a failure is of the thread that the call was on. */
    private static void messages() throws Exception {
        try (KvCache cache = filled(3); ExecutorService threads = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Callable<Void>> work = new ArrayList<>();
            for (int i = 0; i < 200; i++) {
                int layer = 2 + i;
                work.add(() -> {
                    for (int turn = 0; turn < 20; turn++) {
                        refused(() -> cache.attend(layer, numbers(QUERY, 1)), "layer " + layer + " is out of range: the cache has 2 layers");
                        Thread.yield();
                    }
                    return null;
                });
            }
            both(threads, work);
        }
    }

    private static void closedWithin() throws IOException {
        KvCache cache = filled(300);
        byte[] want = cache.snapshot();
        List<byte[]> parts = new ArrayList<>();
        cache.snapshot(new OutputStream() {
            @Override
            public void write(int one) {
                throw new AssertionError("bytes come in parts");
            }

            @Override
            public void write(byte[] bytes, int at, int length) {
                cache.close();
                refused(cache::length, "the cache is closed, expected one that is not");
                parts.add(java.util.Arrays.copyOfRange(bytes, at, at + length));
            }
        });
        equal(parts.stream().mapToInt(part -> part.length).sum(), want.length);
        refused(cache::length, "the cache is closed, expected one that is not");
    }

    static void free(MemorySegment at) {
        freed.incrementAndGet();
    }

    private static void garbage() throws Exception {
        MethodHandle free = MethodHandles.lookup().findStatic(ThreadTests.class, "free", MethodType.methodType(void.class, MemorySegment.class));
        Object kept = new Object();
        Handle alive = new Handle(kept, "thing", free, MemorySegment.NULL);
        for (int i = 0; i < 10; i++) new Handle(new Object(), "thing", free, MemorySegment.NULL);
        for (int i = 0; i < 200 && freed.get() < 10; i++) {
            System.gc();
            Thread.sleep(10);
        }
        equal(freed.get(), 10);
        alive.ask(at -> {
            alive.close();
            equal(freed.get(), 10);
            return 0;
        });
        equal(freed.get(), 11);
        alive.close();
        equal(freed.get(), 11);
        that(kept != null, "kept");
    }
}
