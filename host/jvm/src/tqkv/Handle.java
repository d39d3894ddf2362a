package tqkv;

import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.lang.ref.Cleaner;
import java.util.concurrent.atomic.AtomicLong;

/** An object of the library. It is freed once: after `close`, or after its owner is garbage, and after the last call that uses it. */
final class Handle {
    private static final Cleaner CLEANER = Cleaner.create();

    interface Call {
        int run(MemorySegment at) throws Throwable;
    }

    private final State state;
    private final Cleaner.Cleanable owner;

    Handle(Object owner, String what, MethodHandle free, MemorySegment at) {
        state = new State(what, free, at);
        this.owner = CLEANER.register(owner, state);
    }

    /** A call that returns a status. */
    void ask(Call call) {
        MemorySegment at = state.enter();
        try {
            Native.ask(() -> call.run(at));
        } finally {
            state.leave();
        }
    }

    void close() {
        owner.clean();
    }

    /** Apart from the handle, because the cleaner must not hold the owner. */
    private static final class State implements Runnable {
        private final String what;
        private final MethodHandle free;
        private final MemorySegment at;
        /** Running calls, and the owner. */
        private final AtomicLong users = new AtomicLong(1);
        private volatile boolean closed;

        State(String what, MethodHandle free, MemorySegment at) {
            this.what = what;
            this.free = free;
            this.at = at;
        }

        MemorySegment enter() {
            long now;
            do {
                now = users.get();
                if (closed || now == 0) throw TqkvException.argument("the " + what + " is closed, expected one that is not");
            } while (!users.compareAndSet(now, now + 1));
            return at;
        }

        void leave() {
            if (users.decrementAndGet() == 0)
                Native.run(() -> {
                    free.invokeExact(at);
                    return null;
                });
        }

        @Override
        public void run() {
            closed = true;
            leave();
        }
    }
}
