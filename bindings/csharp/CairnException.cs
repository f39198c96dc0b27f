using System;

namespace Cairn {

/// <summary>A call failed. The message tells the thing, the value and the limit.</summary>
public sealed class CairnException : Exception {
  public CairnException(int code, string message) : base(message) { Code = (Status)code; }
  public Status Code { get; }
}

/// <summary>Status codes of the library.</summary>
public enum Status {
  InvalidArgument = 1, InvalidHandle = 2, BufferTooSmall = 3, LimitExceeded = 4, Busy = 5, WrongState = 6,
  Format = 20, Checksum = 21, Version = 22, Mismatch = 23, Unsupported = 24,
  OutOfMemory = 30, OutOfDeviceMemory = 31, StateFull = 32,
  Io = 40, NotFound = 41, NoSpace = 42, Durability = 43,
  Cancelled = 50, Numeric = 51, Device = 52, StateInvalid = 53, Internal = 60
}

}
