package org.cairn;

import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.Iterator;
import java.util.List;
import java.util.function.Function;
import org.cairn.raw.Raw;
import org.cairn.raw.cairn_moduleConstants;

/** A queue of work with its logits. One thread at a time. */
public final class Stream extends Handle {
  private static final int DENSE = -1;
  private final Model model;

  public Stream(Model model) {
    this(model, 0);
  }

  /** maxSequences 0: the library's default. */
  public Stream(Model model, int maxSequences) {
    super(create(model, maxSequences), Raw::streamRelease);
    this.model = model;
  }

  private static long create(Model model, int maxSequences) {
    try (Use use = model.use()) {
      return Raw.streamCreate(use.handle, maxSequences);
    }
  }

  Model model() {
    return model;
  }

  /** Reads text into a state. A new state reads the model's first token before it. */
  public void read(State state, String text) {
    read(state, text, null, 0, null);
  }

  /** sparse null: dense. Progress counts tokens, may cancel at a chunk border, and may throw. */
  public void read(State state, String text, Sparse sparse, long seed, ProgressListener progress) {
    int[] tokens = model.tokenize(text);
    int first = model.firstToken();
    if (first >= 0 && state.position() == 0) {
      int[] longer = new int[tokens.length + 1];
      longer[0] = first;
      System.arraycopy(tokens, 0, longer, 1, tokens.length);
      tokens = longer;
    }
    prefill(List.of(state), List.of(tokens), sparse, seed, progress);
  }

  /** Reads tokens.get(i) into states.get(i), all at once. One row of logits a sequence, after its last token. */
  public void prefill(List<State> states, List<int[]> tokens, Sparse sparse, long seed, ProgressListener progress) {
    long[] lengths = tokens.stream().mapToLong(part -> part.length).toArray();
    int[] joined =
        tokens.size() == 1 ? tokens.get(0) : tokens.stream().flatMapToInt(java.util.Arrays::stream).toArray();
    try (Use use = use(); Uses read = new Uses(states)) {
      Raw.streamPrefill(use.handle, read.handles, joined, lengths, cairn_moduleConstants.CAIRN_LOGITS_LAST,
          sparse == null ? DENSE : sparse.value, seed, ProgressListener.raw(progress));
    }
  }

  /** Reads one token into each state. Row i of the logits belongs to states.get(i). */
  public void decode(List<State> states, int... tokens) {
    try (Use use = use(); Uses read = new Uses(states)) {
      Raw.streamDecode(use.handle, read.handles, tokens);
    }
  }

  /**
   * Lends a row of the last call's logits: the library's own memory, read-only, no copy. It must not leave the function
   * and is only valid inside it.
   */
  public <T> T withLogits(long row, Function<FloatBuffer, T> function) {
    try (Use use = use()) {
      FloatBuffer lent = Raw.streamLogits(use.handle, row).order(ByteOrder.nativeOrder()).asFloatBuffer();
      return function.apply(lent.asReadOnlyBuffer());
    }
  }

  /** Chooses a token from a row of the logits, which stay where they are. */
  public int sample(long row, Sampler sampler, long draw, int... recent) {
    try (Use use = use()) {
      return Raw.streamSample(use.handle, row, sampler.temperature, sampler.topK, sampler.topP, sampler.minP,
          sampler.repetitionPenalty, sampler.seed, draw, recent);
    }
  }

  /**
   * Reads a prompt (empty: goes on from what was read); the iterator says what comes, piece by piece, whole characters, up to
   * `stop` (left out; may be null).
   */
  public Iterator<String> generate(State state, String prompt, int maxTokens, Sampler sampler, String stop) {
    read(state, prompt);
    return new TextIterator(this, state, maxTokens, sampler, stop);
  }
}
