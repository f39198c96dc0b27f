using System;
using System.Collections.Generic;
using System.Linq;
using System.Text;
using Cairn.Native;

namespace Cairn {

/// <summary>How to choose a token. All zero is greedy; the same seed and position give the same choice.</summary>
public sealed class Sampler {
  public float Temperature, TopP, MinP, RepetitionPenalty;
  public int TopK;
  public int RecentTokens = 64;
  public long Seed;
}

/// <summary>How GDN layers select what they read.</summary>
public enum Sparse { Adaptive = 0, All = 1, Random = 2, Fixed = 3 }

/// <summary>A queue of work with its logits. One thread at a time.</summary>
public sealed class Stream : CairnObject {
  const int Dense = -1;
  readonly Model model;

  /// <summary>maxSequences 0: the library's default.</summary>
  public Stream(Model model, int maxSequences = 0)
      : base(Raw.streamCreate(model.Handle, maxSequences), Raw.streamRelease) { this.model = model; }

  /// <summary>
  /// Reads text into a state. A new state reads the model's first token before it. Progress counts tokens, may cancel at
  /// a chunk border, and may throw.
  /// </summary>
  public void Read(State state, string text, Sparse? sparse = null, long seed = 0,
                   Func<long, long, bool> progress = null) {
    IEnumerable<int> tokens = model.Tokenize(text);
    if (model.FirstToken >= 0 && state.Position == 0) tokens = new[] {model.FirstToken}.Concat(tokens);
    Prefill(new[] {state}, new[] {tokens.ToArray()}, sparse, seed, progress);
  }

  /// <summary>Reads tokens[i] into states[i], all at once. One row of logits a sequence, after its last token.</summary>
  public unsafe void Prefill(IList<State> states, IList<int[]> tokens, Sparse? sparse = null, long seed = 0,
                             Func<long, long, bool> progress = null) {
    long[] handles = states.Select(state => state.Handle).ToArray();
    long[] lengths = tokens.Select(part => (long)part.Length).ToArray();
    int[] joined = tokens.Count == 1 ? tokens[0] : tokens.SelectMany(part => part).ToArray();
    int policy = sparse.HasValue ? (int)sparse.Value : Dense;
    ProgressCall.Run(progress, listener => {
      fixed (long* handlesAt = handles, lengthsAt = lengths) fixed (int* tokensAt = joined) {
        Raw.streamPrefill(Handle, (IntPtr)handlesAt, (ulong)handles.Length, (IntPtr)tokensAt, (ulong)joined.Length,
                          (IntPtr)lengthsAt, (ulong)lengths.Length, 0, policy, seed, listener);
      }
    });
  }

  /// <summary>Reads one token into each state. Row i of the logits belongs to states[i].</summary>
  public unsafe void Decode(IList<State> states, params int[] tokens) {
    long[] handles = states.Select(state => state.Handle).ToArray();
    fixed (long* handlesAt = handles) fixed (int* tokensAt = tokens) {
      Raw.streamDecode(Handle, (IntPtr)handlesAt, (ulong)handles.Length, (IntPtr)tokensAt, (ulong)tokens.Length);
    }
  }

  /// <summary>
  /// A row of the last call's logits: the library's own memory, no copy. Valid until the next call on this stream.
  /// </summary>
  public unsafe ReadOnlySpan<float> Logits(long row = 0) {
    Lent lent = Raw.streamLogits(Handle, row);
    return new ReadOnlySpan<float>((void*)lent.Data, checked((int)lent.Count));
  }

  /// <summary>Chooses a token from a row of the logits, which stay where they are.</summary>
  public unsafe int Sample(Sampler sampler, long row = 0, long draw = 0, params int[] recent) {
    fixed (int* recentAt = recent) {
      return Raw.streamSample(Handle, row, sampler.Temperature, sampler.TopK, sampler.TopP, sampler.MinP,
                              sampler.RepetitionPenalty, sampler.Seed, draw, (IntPtr)recentAt, (ulong)recent.Length);
    }
  }

  /// <summary>
  /// Reads a prompt, when the first piece is asked for, and says what comes: whole characters, up to `stop` (left out).
  /// </summary>
  public IEnumerable<string> Generate(State state, string prompt, int maxTokens = 256, Sampler sampler = null,
                                      string stop = null) {
    sampler = sampler ?? new Sampler();
    int holdBack = string.IsNullOrEmpty(stop) ? 0 : stop.Length - 1;
    Read(state, prompt);
    var said = new List<int>();
    string held = "";
    using (var decoder = new TextDecoder(model)) {
      while (said.Count < maxTokens) {
        int[] recent = said.Skip(Math.Max(0, said.Count - sampler.RecentTokens)).ToArray();
        int token = Sample(sampler, 0, state.Position, recent);
        if (model.IsStop(token)) break;
        held += decoder.Push(token);
        int end = string.IsNullOrEmpty(stop) ? -1 : held.IndexOf(stop, StringComparison.Ordinal);
        if (end >= 0) {
          if (end > 0) yield return held.Substring(0, end);
          yield break;
        }
        // What could be the beginning of `stop` waits.
        int ready = held.Length - holdBack;
        if (ready > 0) {
          yield return held.Substring(0, ready);
          held = held.Substring(ready);
        }
        said.Add(token);
        Decode(new[] {state}, token);
      }
      held += decoder.Finish();
    }
    if (held.Length > 0) yield return held;
  }

  sealed class TextDecoder : CairnObject {
    internal TextDecoder(Model model) : base(Raw.decoderCreate(model.Handle), Raw.decoderRelease) {}
    internal string Push(int token) { return Text(Raw.decoderPush(Handle, token)); }
    internal string Finish() { return Text(Raw.decoderFinish(Handle)); }
    static unsafe string Text(Lent lent) {
      return lent.Count == UIntPtr.Zero ? "" : Encoding.UTF8.GetString((byte*)lent.Data, checked((int)lent.Count));
    }
  }
}

}
