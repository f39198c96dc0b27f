package org.cairn;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import org.cairn.raw.Raw;

/** What a model says, in pieces of whole characters. */
final class TextIterator implements Iterator<String> {
  private static final class Decoder extends Handle {
    Decoder(Model model) {
      super(create(model), Raw::decoderRelease);
    }

    private static long create(Model model) {
      try (Use use = model.use()) {
        return Raw.decoderCreate(use.handle);
      }
    }

    String push(int token) {
      try (Use use = use()) {
        return new String(Raw.decoderPush(use.handle, token), StandardCharsets.UTF_8);
      }
    }

    String finish() {
      try (Use use = use()) {
        return new String(Raw.decoderFinish(use.handle), StandardCharsets.UTF_8);
      }
    }
  }

  private final Stream stream;
  private final State state;
  private final Sampler sampler;
  private final String stop;
  private final Decoder decoder;
  private final int maxTokens;
  private int[] said = new int[64];
  private int saidCount;
  private boolean isFinished;
  private String held = "";
  private String ready;

  TextIterator(Stream stream, State state, int maxTokens, Sampler sampler, String stop) {
    this.stream = stream;
    this.state = state;
    this.sampler = sampler;
    this.stop = stop == null ? "" : stop;
    this.maxTokens = maxTokens;
    this.decoder = new Decoder(stream.model());
  }

  @Override
  public boolean hasNext() {
    while (ready == null && !isFinished) step();
    return ready != null;
  }

  @Override
  public String next() {
    if (!hasNext()) throw new NoSuchElementException();
    String piece = ready;
    ready = null;
    return piece;
  }

  private void step() {
    if (saidCount >= maxTokens) {
      finish(held + decoder.finish());
      return;
    }
    int[] recent = Arrays.copyOfRange(said, Math.max(0, saidCount - sampler.recentTokens), saidCount);
    int token = state.sample(sampler, state.position(), recent);
    if (stream.model().isStop(token)) {
      finish(held + decoder.finish());
      return;
    }
    held += decoder.push(token);
    int end = stop.isEmpty() ? -1 : held.indexOf(stop);
    if (end >= 0) {
      finish(held.substring(0, end));
      return;
    }
    hold();
    if (saidCount == said.length) said = Arrays.copyOf(said, 2 * saidCount);
    said[saidCount++] = token;
    stream.decode(List.of(state), token);
  }

  /** Gives out all but what could be the beginning of `stop`; a pair of surrogates stays together. */
  private void hold() {
    int size = held.length() - Math.max(0, stop.length() - 1);
    if (size > 0 && Character.isHighSurrogate(held.charAt(size - 1))) --size;
    if (size <= 0) return;
    ready = held.substring(0, size);
    held = held.substring(size);
  }

  private void finish(String rest) {
    isFinished = true;
    decoder.close();
    if (!rest.isEmpty()) ready = rest;
  }
}
