using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.InteropServices;
using Cairn.Native;

namespace Cairn {

/// <summary>Memory of the library, as the raw layer hands it over.</summary>
[StructLayout(LayoutKind.Sequential)]
public struct Lent {
  internal IntPtr Data;
  internal UIntPtr Count;
}

/// <summary>Owns a handle of the library; the collector gives it back when nobody disposed it.</summary>
sealed class CairnHandle : SafeHandle {
  readonly Action<long> release;

  internal CairnHandle(long handle, Action<long> release) : base(IntPtr.Zero, true) {
    this.release = release;
    SetHandle((IntPtr)handle);
  }

  public override bool IsInvalid { get { return handle == IntPtr.Zero; } }

  protected override bool ReleaseHandle() {
    release((long)handle);
    return true;
  }
}

/// <summary>The handle for the length of a call: neither Dispose nor the collector takes it away meanwhile.</summary>
struct Use : IDisposable {
  readonly CairnHandle owned;

  /// <summary>0 when disposed: the library refuses it.</summary>
  internal readonly long Handle;

  internal Use(CairnHandle handle) {
    bool isHeld = false;
    try {
      handle.DangerousAddRef(ref isHeld);
    } catch (ObjectDisposedException) {
    }
    owned = isHeld ? handle : null;
    Handle = isHeld ? (long)handle.DangerousGetHandle() : 0;
  }

  public void Dispose() {
    if (owned != null) owned.DangerousRelease();
  }
}

/// <summary>The same for many.</summary>
sealed class Uses : IDisposable {
  readonly Use[] uses;
  internal readonly long[] Handles;

  internal Uses(IList<State> owners) {
    foreach (State owner in owners) {
      if (owner == null) throw new ArgumentNullException("states");
    }
    uses = owners.Select(owner => owner.InUse()).ToArray();
    Handles = uses.Select(use => use.Handle).ToArray();
  }

  public void Dispose() {
    foreach (Use use in uses) use.Dispose();
  }
}

/// <summary>
/// What devices, models, states and streams share. Disposing twice, in any order and from any thread is harmless: what a call
/// uses at that moment is given back when the call is over. Using a disposed object is a CairnException with InvalidHandle.
/// </summary>
public abstract class CairnObject : IDisposable {
  readonly CairnHandle owned;

  internal CairnObject(long handle, Action<long> release) { owned = new CairnHandle(handle, release); }

  internal Use InUse() { return new Use(owned); }

  public void Dispose() { owned.Dispose(); }

  /// <summary>A text for the library, where a NUL would end it.</summary>
  internal static string WithoutNul(string text) {
    if (text != null && text.IndexOf('\0') >= 0) throw new ArgumentException("a text holds a NUL");
    return text;
  }
}

/// <summary>
/// Hands progress to a delegate. A managed exception must not unwind through native frames: it is kept, the call is
/// cancelled, and Finish throws it afterwards.
/// </summary>
sealed class ProgressCall : Progress {
  readonly Func<long, long, bool> function;
  Exception caught;

  ProgressCall(Func<long, long, bool> function) { this.function = function; }

  public override bool report(long done, long total) {
    try {
      return function(done, total);
    } catch (Exception error) {
      caught = error;
      return false;
    }
  }

  internal static void Run(Func<long, long, bool> function, Action<Progress> call) {
    if (function == null) {
      call(null);
      return;
    }
    using (var progress = new ProgressCall(function)) {
      try {
        call(progress);
      } catch (CairnException) when (progress.caught != null) {
      }
      if (progress.caught != null) {
        System.Runtime.ExceptionServices.ExceptionDispatchInfo.Capture(progress.caught).Throw();
      }
    }
  }
}

}
