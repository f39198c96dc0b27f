package org.cairn;

/** Is told how far a long call is; may throw. */
@FunctionalInterface
public interface ProgressListener {
  /** Returns false to cancel at the next chunk border. */
  boolean report(long done, long total);

  /** As the raw layer wants it; null stays null. */
  static org.cairn.raw.Progress raw(ProgressListener listener) {
    if (listener == null) return null;
    return new org.cairn.raw.Progress() {
      @Override
      public boolean report(long done, long total) {
        return listener.report(done, total);
      }
    };
  }
}
