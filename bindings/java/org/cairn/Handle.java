package org.cairn;

import java.lang.ref.Cleaner;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongConsumer;

/**
 * Owns a handle of the library: given back by close(), or by the garbage collector. Closing twice and in any order is
 * harmless; using a closed object is a CairnException with INVALID_HANDLE.
 */
abstract class Handle implements AutoCloseable {
  private static final Cleaner CLEANER = Cleaner.create();

  /** What is left to give back; must not refer to the object itself. */
  private static final class Release implements Runnable {
    final AtomicLong handle;
    final LongConsumer release;

    Release(long handle, LongConsumer release) {
      this.handle = new AtomicLong(handle);
      this.release = release;
    }

    @Override
    public void run() {
      long last = handle.getAndSet(0);
      if (last != 0) release.accept(last);
    }
  }

  private final Release release;
  private final Cleaner.Cleanable cleanable;

  Handle(long handle, LongConsumer giveBack) {
    release = new Release(handle, giveBack);
    cleanable = CLEANER.register(this, release);
  }

  /** 0 after close(): the library refuses it. */
  final long handle() {
    return release.handle.get();
  }

  @Override
  public void close() {
    cleanable.clean();
  }
}
