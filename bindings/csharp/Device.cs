using Cairn.Native;

namespace Cairn {

/// <summary>Where models live.</summary>
public sealed class Device : CairnObject {
  /// <summary>"auto" takes the first available backend; another name is that backend or an error. Threads 0: all.</summary>
  public Device(string backend = "auto", int index = 0, int threads = 0)
      : base(Raw.deviceOpen(WithoutNul(backend), index, threads), Raw.deviceRelease) {}

  public string Backend { get { using (Use use = InUse()) return Raw.deviceBackend(use.Handle); } }
  public string Name { get { using (Use use = InUse()) return Raw.deviceName(use.Handle); } }
}

}
