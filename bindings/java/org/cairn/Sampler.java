package org.cairn;

/** How to choose a token. All zero is greedy; the same seed and position give the same choice. */
public final class Sampler {
  public static final Sampler GREEDY = new Sampler();

  final float temperature, topP, minP, repetitionPenalty;
  final int topK, recentTokens;
  final long seed;

  public Sampler() {
    this(0, 0, 0, 0, 0, 64, 0);
  }

  private Sampler(float temperature, int topK, float topP, float minP, float repetitionPenalty, int recentTokens,
      long seed) {
    this.temperature = temperature;
    this.topK = topK;
    this.topP = topP;
    this.minP = minP;
    this.repetitionPenalty = repetitionPenalty;
    this.recentTokens = recentTokens;
    this.seed = seed;
  }

  public Sampler temperature(float value) {
    return new Sampler(value, topK, topP, minP, repetitionPenalty, recentTokens, seed);
  }

  public Sampler topK(int value) {
    return new Sampler(temperature, value, topP, minP, repetitionPenalty, recentTokens, seed);
  }

  public Sampler topP(float value) {
    return new Sampler(temperature, topK, value, minP, repetitionPenalty, recentTokens, seed);
  }

  public Sampler minP(float value) {
    return new Sampler(temperature, topK, topP, value, repetitionPenalty, recentTokens, seed);
  }

  /** Of the last recentTokens tokens said. */
  public Sampler repetitionPenalty(float value, int recentTokens) {
    return new Sampler(temperature, topK, topP, minP, value, recentTokens, seed);
  }

  public Sampler seed(long value) {
    return new Sampler(temperature, topK, topP, minP, repetitionPenalty, recentTokens, value);
  }
}
