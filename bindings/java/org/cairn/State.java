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
    this(model, Raw.stateCreate(model.handle(), kvCapacityTokens, rewindWindowTokens));
  }

  private State(Model model, long handle) {
    super(handle, Raw::stateRelease);
    this.model = model;
  }

  public State fork() {
    return new State(model, Raw.stateFork(handle()));
  }

  public void reset() {
    Raw.stateReset(handle());
  }

  public void rewind(long position) {
    Raw.stateRewind(handle(), position);
  }

  public boolean canRewind(long position) {
    return Raw.stateCanRewind(handle(), position);
  }

  public long position() {
    return Raw.statePosition(handle());
  }

  public long oldestRewindPosition() {
    return Raw.stateOldestRewindPosition(handle());
  }

  public long bytesHeld() {
    return Raw.stateBytesHeld(handle());
  }

  public long bytesShared() {
    return Raw.stateBytesShared(handle());
  }

  /** Writes a snapshot: the old file or the new one, never a mixture. */
  public void save(String path) {
    Raw.stateSave(handle(), path, null);
  }

  /** All or nothing. */
  public void restore(String path) {
    Raw.stateRestore(handle(), path, null);
  }

  /** The snapshot in a direct buffer, written once, in place. */
  public ByteBuffer toBytes() {
    ByteBuffer room = ByteBuffer.allocateDirect(Math.toIntExact(Raw.stateSnapshotBytes(handle())));
    room.limit(Math.toIntExact(Raw.stateSaveTo(handle(), room)));
    return room;
  }

  /** From the bytes between position and limit of a direct buffer, read in place. */
  public void restore(ByteBuffer snapshot) {
    if (!snapshot.isDirect()) throw new IllegalArgumentException("a direct ByteBuffer is needed");
    Raw.stateRestoreFrom(handle(), snapshot);
  }

  /** The logits after the last token read, also after a restore. */
  public float[] lastLogits() {
    float[] logits = new float[model.vocabSize()];
    Raw.stateLastLogits(handle(), logits);
    return logits;
  }
}
