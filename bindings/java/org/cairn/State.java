package org.cairn;

import java.nio.ByteBuffer;
import org.cairn.raw.Raw;

/** The memory of one agent. One thread at a time. */
public final class State extends Handle {
  private final Model model;

  public State(Model model) {
    this(model, 0, 0);
  }

  public State(Model model, long kvCapacityTokens, long rewindWindowTokens) {
    this(model, create(model, kvCapacityTokens, rewindWindowTokens));
  }

  private State(Model model, long handle) {
    super(handle, Raw::stateRelease);
    this.model = model;
  }

  private static long create(Model model, long kvCapacityTokens, long rewindWindowTokens) {
    try (Use use = model.use()) {
      return Raw.stateCreate(use.handle, kvCapacityTokens, rewindWindowTokens);
    }
  }

  public State fork() {
    try (Use use = use()) {
      return new State(model, Raw.stateFork(use.handle));
    }
  }

  public void reset() {
    try (Use use = use()) {
      Raw.stateReset(use.handle);
    }
  }

  public void rewind(long position) {
    try (Use use = use()) {
      Raw.stateRewind(use.handle, position);
    }
  }

  public boolean canRewind(long position) {
    try (Use use = use()) {
      return Raw.stateCanRewind(use.handle, position);
    }
  }

  public long position() {
    try (Use use = use()) {
      return Raw.statePosition(use.handle);
    }
  }

  public long oldestRewindPosition() {
    try (Use use = use()) {
      return Raw.stateOldestRewindPosition(use.handle);
    }
  }

  public long bytesHeld() {
    try (Use use = use()) {
      return Raw.stateBytesHeld(use.handle);
    }
  }

  public long bytesShared() {
    try (Use use = use()) {
      return Raw.stateBytesShared(use.handle);
    }
  }

  /** Writes a snapshot: the old file or the new one, never a mixture. */
  public void save(String path) {
    save(path, null);
  }

  /** Progress counts bytes. */
  public void save(String path, ProgressListener progress) {
    try (Use use = use()) {
      Raw.stateSave(use.handle, path, ProgressListener.raw(progress));
    }
  }

  /** All or nothing. */
  public void restore(String path) {
    restore(path, 0, null);
  }

  /** A snapshot of more than maxBytes is refused with LIMIT_EXCEEDED; 0: no limit. Progress counts bytes. */
  public void restore(String path, long maxBytes, ProgressListener progress) {
    try (Use use = use()) {
      Raw.stateRestore(use.handle, path, maxBytes, ProgressListener.raw(progress));
    }
  }

  /** The snapshot in a direct buffer, written once, in place. */
  public ByteBuffer toBytes() {
    try (Use use = use()) {
      ByteBuffer room = ByteBuffer.allocateDirect(Math.toIntExact(Raw.stateSnapshotBytes(use.handle)));
      room.limit(Math.toIntExact(Raw.stateSaveTo(use.handle, room)));
      return room;
    }
  }

  /** From the bytes between position and limit of a direct buffer, read in place. */
  public void restore(ByteBuffer snapshot) {
    restore(snapshot, 0);
  }

  /** A snapshot of more than maxBytes is refused with LIMIT_EXCEEDED; 0: no limit. */
  public void restore(ByteBuffer snapshot, long maxBytes) {
    if (!snapshot.isDirect()) throw new IllegalArgumentException("a direct ByteBuffer is needed");
    try (Use use = use()) {
      Raw.stateRestoreFrom(use.handle, snapshot, maxBytes);
    }
  }

  /** The logits after the last token read, also after a restore. */
  public float[] lastLogits() {
    float[] logits = new float[model.vocabSize()];
    try (Use use = use()) {
      Raw.stateLastLogits(use.handle, logits);
    }
    return logits;
  }

  /** Chooses a token from them. */
  int sample(Sampler sampler, long draw, int[] recent) {
    try (Use use = use()) {
      return Raw.stateSample(use.handle, sampler.temperature, sampler.topK, sampler.topP, sampler.minP,
          sampler.repetitionPenalty, sampler.seed, draw, recent);
    }
  }
}
