package org.cairn;

import java.nio.charset.StandardCharsets;

/** A call failed. The message tells the thing, the value and the limit. */
public final class CairnException extends RuntimeException {
  private static final long serialVersionUID = 1L;
  private final int code;

  public CairnException(int code, String message) {
    super(message);
    this.code = code;
  }

  /** As the raw layer throws it: the message in UTF-8. */
  CairnException(int code, byte[] message) {
    this(code, new String(message, StandardCharsets.UTF_8));
  }

  /** One of the constants of {@link Status}. */
  public int code() {
    return code;
  }
}
