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
    super(Raw.modelLoad(device.handle(), path, ProgressListener.raw(progress)), Raw::modelRelease);
  }

  public String name() {
    return Raw.modelName(handle());
  }

  public int vocabSize() {
    return Raw.modelVocabSize(handle());
  }

  public int layerCount() {
    return Raw.modelLayerCount(handle());
  }

  /** The token that a new state reads first, or -1. */
  public int firstToken() {
    return Raw.modelFirstToken(handle());
  }

  public long freshStateBytes() {
    return Raw.modelFreshStateBytes(handle());
  }

  /** Adds no first token. */
  public int[] tokenize(String text) {
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    ByteBuffer direct = ByteBuffer.allocateDirect(bytes.length).put(bytes).flip();
    int[] tokens = new int[Math.toIntExact(Raw.modelTokenCount(handle(), direct))];
    Raw.modelTokenize(handle(), direct, tokens);
    return tokens;
  }

  /** Jinja text as the model's makers wrote it, never run by the library; empty when there is none. */
  public String chatTemplate() {
    ByteBuffer room = ByteBuffer.allocateDirect(Math.toIntExact(Raw.modelChatTemplateBytes(handle())));
    Raw.modelChatTemplate(handle(), room);
    return StandardCharsets.UTF_8.decode(room).toString();
  }

  public boolean isStop(int token) {
    return Raw.modelIsStop(handle(), token);
  }
}
