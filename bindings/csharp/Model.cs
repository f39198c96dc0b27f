using System;
using System.Text;
using Cairn.Native;

namespace Cairn {

/// <summary>Immutable weights on a device, and their tokenizer. Any thread may use it.</summary>
public sealed class Model : CairnObject {
  public Model(Device device, string path, Func<long, long, bool> progress = null)
      : base(Load(device, path, progress), Raw.modelRelease) {}

  static long Load(Device device, string path, Func<long, long, bool> progress) {
    long handle = 0;
    ProgressCall.Run(progress, listener => { handle = Raw.modelLoad(device.Handle, WithoutNul(path), listener); });
    return handle;
  }

  public string Name { get { return Raw.modelName(Handle); } }
  public int VocabSize { get { return Raw.modelVocabSize(Handle); } }
  public int LayerCount { get { return Raw.modelLayerCount(Handle); } }
  public long FreshStateBytes { get { return Raw.modelFreshStateBytes(Handle); } }

  /// <summary>The token that a new state reads first, or -1.</summary>
  public int FirstToken { get { return Raw.modelFirstToken(Handle); } }

  /// <summary>Adds no first token.</summary>
  public unsafe int[] Tokenize(string text) {
    byte[] bytes = Encoding.UTF8.GetBytes(text);
    fixed (byte* data = bytes) {
      var tokens = new int[Raw.modelTokenCount(Handle, (IntPtr)data, (ulong)bytes.Length)];
      fixed (int* room = tokens) {
        Raw.modelTokenize(Handle, (IntPtr)data, (ulong)bytes.Length, (IntPtr)room, (ulong)tokens.Length);
      }
      return tokens;
    }
  }

  /// <summary>Jinja text as the model's makers wrote it, never run by the library; empty when there is none.</summary>
  public unsafe string ChatTemplate {
    get {
      var room = new byte[Raw.modelChatTemplateBytes(Handle)];
      fixed (byte* data = room) { Raw.modelChatTemplate(Handle, (IntPtr)data, (ulong)room.Length); }
      return Encoding.UTF8.GetString(room);
    }
  }

  public bool IsStop(int token) { return Raw.modelIsStop(Handle, token); }
}

}
