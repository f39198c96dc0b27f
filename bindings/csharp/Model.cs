using System;
using System.Text;
using Cairn.Native;

namespace Cairn {

/// <summary>Immutable weights on a device, and their tokenizer. Any thread may use it.</summary>
public sealed class Model : CairnObject {
  public Model(Device device, string path, Func<long, long, bool> progress = null)
      : base(Load(device, path, progress), Raw.modelRelease) {}

  static long Load(Device device, string path, Func<long, long, bool> progress) {
    using (Use use = device.InUse()) {
      long parent = use.Handle, handle = 0;
      ProgressCall.Run(progress, listener => { handle = Raw.modelLoad(parent, WithoutNul(path), listener); });
      return handle;
    }
  }

  public string Name { get { using (Use use = InUse()) return Raw.modelName(use.Handle); } }
  public int VocabSize { get { using (Use use = InUse()) return Raw.modelVocabSize(use.Handle); } }
  public int LayerCount { get { using (Use use = InUse()) return Raw.modelLayerCount(use.Handle); } }
  public long FreshStateBytes { get { using (Use use = InUse()) return Raw.modelFreshStateBytes(use.Handle); } }

  /// <summary>The token that a new state reads first, or -1.</summary>
  public int FirstToken { get { using (Use use = InUse()) return Raw.modelFirstToken(use.Handle); } }

  /// <summary>Adds no first token.</summary>
  public unsafe int[] Tokenize(string text) {
    byte[] bytes = Encoding.UTF8.GetBytes(text);
    using (Use use = InUse()) fixed (byte* data = bytes) {
      var tokens = new int[Raw.modelTokenCount(use.Handle, (IntPtr)data, (ulong)bytes.Length)];
      fixed (int* room = tokens) {
        Raw.modelTokenize(use.Handle, (IntPtr)data, (ulong)bytes.Length, (IntPtr)room, (ulong)tokens.Length);
      }
      return tokens;
    }
  }

  /// <summary>Jinja text as the model's makers wrote it, never run by the library; empty when there is none.</summary>
  public unsafe string ChatTemplate {
    get {
      using (Use use = InUse()) {
        var room = new byte[Raw.modelChatTemplateBytes(use.Handle)];
        fixed (byte* data = room) { Raw.modelChatTemplate(use.Handle, (IntPtr)data, (ulong)room.Length); }
        return Encoding.UTF8.GetString(room);
      }
    }
  }

  public bool IsStop(int token) { using (Use use = InUse()) return Raw.modelIsStop(use.Handle, token); }
}

}
