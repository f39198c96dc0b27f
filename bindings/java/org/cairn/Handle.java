package org.cairn;

import java.lang.ref.Cleaner;
import java.lang.ref.Reference;
import java.util.List;
import java.util.Objects;
import java.util.function.LongConsumer;

/**
 * Owns a handle of the library: given back by close(), or by the garbage collector. Closing twice, in any order and from any
 * thread is harmless: what a call uses at that moment is given back when the call is over. Using a closed object is a
 * CairnException with INVALID_HANDLE.
 */
abstract class Handle implements AutoCloseable {
  private static final Cleaner CLEANER = Cleaner.create();

  /** What is left to give back; must not refer to the object itself. */
  private static final class Owned implements Runnable {
    private final long handle;
    private final LongConsumer release;
    private int uses;
    private boolean isClosed, isReleased;

    Owned(long handle, LongConsumer release) {
      this.handle = handle;
      this.release = release;
    }

    synchronized long enter() {
      if (isClosed) return 0;
      ++uses;
      return handle;
    }

    void leave() {
      giveBack(1, false);
    }

    @Override
    public void run() {
      giveBack(0, true);
    }

    private void giveBack(int ended, boolean closes) {
      synchronized (this) {
        uses -= ended;
        isClosed |= closes;
        if (!isClosed || uses > 0 || isReleased) return;
        isReleased = true;
      }
      release.accept(handle);
    }
  }

  /** The handle for the length of a call: neither close() nor the collector takes it away meanwhile. */
  static final class Use implements AutoCloseable {
    /** 0 after close(): the library refuses it. */
    final long handle;
    private final Handle owner;

    private Use(Handle owner) {
      this.owner = owner;
      handle = owner.owned.enter();
    }

    @Override
    public void close() {
      if (handle != 0) owner.owned.leave();
      Reference.reachabilityFence(owner);
    }
  }

  /** The same for many. */
  static final class Uses implements AutoCloseable {
    final long[] handles;
    private final Use[] uses;

    Uses(List<? extends Handle> owners) {
      Handle[] all = owners.toArray(new Handle[0]);
      for (Handle owner : all) Objects.requireNonNull(owner);
      uses = new Use[all.length];
      handles = new long[all.length];
      for (int i = 0; i < all.length; ++i) {
        uses[i] = all[i].use();
        handles[i] = uses[i].handle;
      }
    }

    @Override
    public void close() {
      for (Use use : uses) use.close();
    }
  }

  private final Owned owned;
  private final Cleaner.Cleanable cleanable;

  Handle(long handle, LongConsumer giveBack) {
    owned = new Owned(handle, giveBack);
    cleanable = CLEANER.register(this, owned);
  }

  final Use use() {
    return new Use(this);
  }

  @Override
  public void close() {
    cleanable.clean();
    Reference.reachabilityFence(this);
  }
}
