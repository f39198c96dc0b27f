package org.cairn;

/** A call failed. The message tells the thing, the value and the limit. */
public final class CairnException extends RuntimeException {
  private static final long serialVersionUID = 1L;
  private final int code;

  public CairnException(int code, String message) {
    super(message);
    this.code = code;
  }

  /** One of the constants of {@link Status}. */
  public int code() {
    return code;
  }
}
