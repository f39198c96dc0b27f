package org.cairn;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.cairn.raw.Raw;

/** Immutable weights on a device, and their tokenizer. Any thread may use it. */
public final class Model extends Handle {
  public Model(Device device, String path) {
    this(device, path, null);
  }

  /** Progress counts bytes. */
  public Model(Device device, String path, ProgressListener progress) {
    super(load(device, path, progress), Raw::modelRelease);
  }

  private static long load(Device device, String path, ProgressListener progress) {
    try (Use use = device.use()) {
      return Raw.modelLoad(use.handle, path, ProgressListener.raw(progress));
    }
  }

  public String name() {
    try (Use use = use()) {
      return Raw.modelName(use.handle);
    }
  }

  public int vocabSize() {
    try (Use use = use()) {
      return Raw.modelVocabSize(use.handle);
    }
  }

  public int layerCount() {
    try (Use use = use()) {
      return Raw.modelLayerCount(use.handle);
    }
  }

  /** The token that a new state reads first, or -1. */
  public int firstToken() {
    try (Use use = use()) {
      return Raw.modelFirstToken(use.handle);
    }
  }

  public long freshStateBytes() {
    try (Use use = use()) {
      return Raw.modelFreshStateBytes(use.handle);
    }
  }

  /** Adds no first token. */
  public int[] tokenize(String text) {
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    ByteBuffer direct = ByteBuffer.allocateDirect(bytes.length).put(bytes).flip();
    try (Use use = use()) {
      int[] tokens = new int[Math.toIntExact(Raw.modelTokenCount(use.handle, direct))];
      Raw.modelTokenize(use.handle, direct, tokens);
      return tokens;
    }
  }

  /** Jinja text as the model's makers wrote it, never run by the library; empty when there is none. */
  public String chatTemplate() {
    try (Use use = use()) {
      ByteBuffer room = ByteBuffer.allocateDirect(Math.toIntExact(Raw.modelChatTemplateBytes(use.handle)));
      Raw.modelChatTemplate(use.handle, room);
      return StandardCharsets.UTF_8.decode(room).toString();
    }
  }

  public boolean isStop(int token) {
    try (Use use = use()) {
      return Raw.modelIsStop(use.handle, token);
    }
  }
}
