using System;
using System.Runtime.InteropServices;
using Cairn.Native;

namespace Cairn {

/// <summary>The memory of one agent. One thread at a time.</summary>
public sealed class State : CairnObject {
  readonly Model model;

  public State(Model model, long kvCapacityTokens = 0, long rewindWindowTokens = 0)
      : this(model, Create(model, kvCapacityTokens, rewindWindowTokens), true) {}

  static long Create(Model model, long kvCapacityTokens, long rewindWindowTokens) {
    using (Use use = model.InUse()) return Raw.stateCreate(use.Handle, kvCapacityTokens, rewindWindowTokens);
  }

  State(Model model, long handle, bool owned) : base(handle, Raw.stateRelease) { this.model = model; }

  public State Fork() { using (Use use = InUse()) return new State(model, Raw.stateFork(use.Handle), true); }
  public void Reset() { using (Use use = InUse()) Raw.stateReset(use.Handle); }
  public void Rewind(long position) { using (Use use = InUse()) Raw.stateRewind(use.Handle, position); }
  public bool CanRewind(long position) { using (Use use = InUse()) return Raw.stateCanRewind(use.Handle, position); }

  public long Position { get { using (Use use = InUse()) return Raw.statePosition(use.Handle); } }
  public long OldestRewindPosition { get { using (Use use = InUse()) return Raw.stateOldestRewindPosition(use.Handle); } }
  public long BytesHeld { get { using (Use use = InUse()) return Raw.stateBytesHeld(use.Handle); } }
  public long BytesShared { get { using (Use use = InUse()) return Raw.stateBytesShared(use.Handle); } }

  /// <summary>Writes a snapshot: the old file or the new one, never a mixture.</summary>
  public void Save(string path, Func<long, long, bool> progress = null) {
    using (Use use = InUse()) {
      long state = use.Handle;
      ProgressCall.Run(progress, listener => Raw.stateSave(state, WithoutNul(path), listener));
    }
  }

  /// <summary>All or nothing. A snapshot of more than maxBytes is refused with LimitExceeded; 0: no limit.</summary>
  public void Restore(string path, long maxBytes = 0, Func<long, long, bool> progress = null) {
    using (Use use = InUse()) {
      long state = use.Handle;
      ProgressCall.Run(progress, listener => Raw.stateRestore(state, WithoutNul(path), maxBytes, listener));
    }
  }

  /// <summary>The snapshot, written once, in place.</summary>
  public unsafe byte[] ToBytes() {
    using (Use use = InUse()) {
      var room = new byte[Raw.stateSnapshotBytes(use.Handle)];
      long written = 0;
      fixed (byte* data = room) written = Raw.stateSaveTo(use.Handle, (IntPtr)data, (ulong)room.Length);
      if (written != room.Length) Array.Resize(ref room, checked((int)written));
      return room;
    }
  }

  /// <summary>From the bytes of a snapshot, read in place.</summary>
  public unsafe void Restore(ReadOnlySpan<byte> snapshot, long maxBytes = 0) {
    using (Use use = InUse()) fixed (byte* data = &MemoryMarshal.GetReference(snapshot)) {
      Raw.stateRestoreFrom(use.Handle, (IntPtr)data, (ulong)snapshot.Length, maxBytes);
    }
  }

  /// <summary>The logits after the last token read, also after a restore.</summary>
  public unsafe float[] LastLogits() {
    var logits = new float[model.VocabSize];
    using (Use use = InUse()) fixed (float* room = logits) {
      Raw.stateLastLogits(use.Handle, (IntPtr)room, (ulong)logits.Length);
    }
    return logits;
  }

  /// <summary>Chooses a token from them.</summary>
  internal unsafe int Sample(Sampler sampler, long draw, int[] recent) {
    using (Use use = InUse()) fixed (int* recentAt = recent) {
      return Raw.stateSample(use.Handle, sampler.Temperature, sampler.TopK, sampler.TopP, sampler.MinP,
                             sampler.RepetitionPenalty, sampler.Seed, draw, (IntPtr)recentAt, (ulong)recent.Length);
    }
  }
}

}
