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

/// <summary>Looks at lent logits.</summary>
public delegate T LogitsFunction<T>(ReadOnlySpan<float> logits);

/// <summary>A queue of work with its logits. One thread at a time.</summary>
public sealed class Stream : CairnObject {
  const int Dense = -1;
  readonly Model model;

  /// <summary>maxSequences 0: the library's default.</summary>
  public Stream(Model model, int maxSequences = 0)
      : base(Create(model, maxSequences), Raw.streamRelease) { this.model = model; }

  static long Create(Model model, int maxSequences) {
    using (Use use = model.InUse()) return Raw.streamCreate(use.Handle, maxSequences);
  }

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
    long[] lengths = tokens.Select(part => (long)part.Length).ToArray();
    int[] joined = tokens.Count == 1 ? tokens[0] : tokens.SelectMany(part => part).ToArray();
    int policy = sparse.HasValue ? (int)sparse.Value : Dense;
    using (Use use = InUse()) using (var read = new Uses(states)) {
      long stream = use.Handle;
      long[] handles = read.Handles;
      ProgressCall.Run(progress, listener => {
        fixed (long* handlesAt = handles, lengthsAt = lengths) fixed (int* tokensAt = joined) {
          Raw.streamPrefill(stream, (IntPtr)handlesAt, (ulong)handles.Length, (IntPtr)tokensAt, (ulong)joined.Length,
                            (IntPtr)lengthsAt, (ulong)lengths.Length, 0, policy, seed, listener);
        }
      });
    }
  }

  /// <summary>Reads one token into each state. Row i of the logits belongs to states[i].</summary>
  public unsafe void Decode(IList<State> states, params int[] tokens) {
    using (Use use = InUse()) using (var read = new Uses(states)) {
      fixed (long* handlesAt = read.Handles) fixed (int* tokensAt = tokens) {
        Raw.streamDecode(use.Handle, (IntPtr)handlesAt, (ulong)read.Handles.Length, (IntPtr)tokensAt, (ulong)tokens.Length);
      }
    }
  }

  /// <summary>
  /// Lends a row of the last call's logits: the library's own memory, read-only, no copy. It is only valid inside the function.
  /// </summary>
  public unsafe T WithLogits<T>(long row, LogitsFunction<T> function) {
    using (Use use = InUse()) {
      Lent lent = Raw.streamLogits(use.Handle, row);
      return function(new ReadOnlySpan<float>((void*)lent.Data, checked((int)lent.Count)));
    }
  }

  /// <summary>Chooses a token from a row of the logits, which stay where they are.</summary>
  public unsafe int Sample(Sampler sampler, long row = 0, long draw = 0, params int[] recent) {
    using (Use use = InUse()) fixed (int* recentAt = recent) {
      return Raw.streamSample(use.Handle, row, sampler.Temperature, sampler.TopK, sampler.TopP, sampler.MinP,
                              sampler.RepetitionPenalty, sampler.Seed, draw, (IntPtr)recentAt, (ulong)recent.Length);
    }
  }

  /// <summary>
  /// Reads a prompt (empty: goes on from what was read), when the first piece is asked for, and says what comes: whole
  /// characters, up to `stop` (left out).
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
        int token = state.Sample(sampler, state.Position, recent);
        if (model.IsStop(token)) break;
        held += decoder.Push(token);
        int end = string.IsNullOrEmpty(stop) ? -1 : held.IndexOf(stop, StringComparison.Ordinal);
        if (end >= 0) {
          if (end > 0) yield return held.Substring(0, end);
          yield break;
        }
        // What could be the beginning of `stop` waits; a pair of surrogates stays together.
        int ready = held.Length - holdBack;
        if (ready > 0 && char.IsHighSurrogate(held[ready - 1])) --ready;
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
    internal TextDecoder(Model model) : base(Create(model), Raw.decoderRelease) {}
    static long Create(Model model) { using (Use use = model.InUse()) return Raw.decoderCreate(use.Handle); }
    internal string Push(int token) { using (Use use = InUse()) return Text(Raw.decoderPush(use.Handle, token)); }
    internal string Finish() { using (Use use = InUse()) return Text(Raw.decoderFinish(use.Handle)); }
    static unsafe string Text(Lent lent) {
      return lent.Count == UIntPtr.Zero ? "" : Encoding.UTF8.GetString((byte*)lent.Data, checked((int)lent.Count));
    }
  }
}

}
