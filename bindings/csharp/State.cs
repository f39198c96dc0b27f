using System;
using System.Runtime.InteropServices;
using Cairn.Native;

namespace Cairn {

/// <summary>The memory of one agent. One thread at a time.</summary>
public sealed class State : CairnObject {
  readonly Model model;

  public State(Model model, long kvCapacityTokens = 0, long rewindWindowTokens = 0)
      : this(model, Raw.stateCreate(model.Handle, kvCapacityTokens, rewindWindowTokens), true) {}

  State(Model model, long handle, bool owned) : base(handle, Raw.stateRelease) { this.model = model; }

  public State Fork() { return new State(model, Raw.stateFork(Handle), true); }
  public void Reset() { Raw.stateReset(Handle); }
  public void Rewind(long position) { Raw.stateRewind(Handle, position); }
  public bool CanRewind(long position) { return Raw.stateCanRewind(Handle, position); }

  public long Position { get { return Raw.statePosition(Handle); } }
  public long OldestRewindPosition { get { return Raw.stateOldestRewindPosition(Handle); } }
  public long BytesHeld { get { return Raw.stateBytesHeld(Handle); } }
  public long BytesShared { get { return Raw.stateBytesShared(Handle); } }

  /// <summary>Writes a snapshot: the old file or the new one, never a mixture.</summary>
  public void Save(string path) { Raw.stateSave(Handle, WithoutNul(path), null); }

  /// <summary>All or nothing.</summary>
  public void Restore(string path) { Raw.stateRestore(Handle, WithoutNul(path), null); }

  /// <summary>The snapshot, written once, in place.</summary>
  public unsafe byte[] ToBytes() {
    var room = new byte[Raw.stateSnapshotBytes(Handle)];
    fixed (byte* data = room) {
      long written = Raw.stateSaveTo(Handle, (IntPtr)data, (ulong)room.Length);
      if (written != room.Length) Array.Resize(ref room, checked((int)written));
    }
    return room;
  }

  /// <summary>From the bytes of a snapshot, read in place.</summary>
  public unsafe void Restore(ReadOnlySpan<byte> snapshot) {
    fixed (byte* data = &MemoryMarshal.GetReference(snapshot)) {
      Raw.stateRestoreFrom(Handle, (IntPtr)data, (ulong)snapshot.Length);
    }
  }

  /// <summary>The logits after the last token read, also after a restore.</summary>
  public unsafe float[] LastLogits() {
    var logits = new float[model.VocabSize];
    fixed (float* room = logits) Raw.stateLastLogits(Handle, (IntPtr)room, (ulong)logits.Length);
    return logits;
  }
}

}
