package org.cairn;

import org.cairn.raw.Raw;
import org.cairn.raw.cairn_moduleConstants;

/** Status codes of the library. */
public final class Status {
  public static final int INVALID_ARGUMENT = cairn_moduleConstants.CAIRN_STATUS_INVALID_ARGUMENT;
  public static final int INVALID_HANDLE = cairn_moduleConstants.CAIRN_STATUS_INVALID_HANDLE;
  public static final int BUFFER_TOO_SMALL = cairn_moduleConstants.CAIRN_STATUS_BUFFER_TOO_SMALL;
  public static final int LIMIT_EXCEEDED = cairn_moduleConstants.CAIRN_STATUS_LIMIT_EXCEEDED;
  public static final int BUSY = cairn_moduleConstants.CAIRN_STATUS_BUSY;
  public static final int WRONG_STATE = cairn_moduleConstants.CAIRN_STATUS_WRONG_STATE;
  public static final int FORMAT = cairn_moduleConstants.CAIRN_STATUS_FORMAT;
  public static final int CHECKSUM = cairn_moduleConstants.CAIRN_STATUS_CHECKSUM;
  public static final int VERSION = cairn_moduleConstants.CAIRN_STATUS_VERSION;
  public static final int MISMATCH = cairn_moduleConstants.CAIRN_STATUS_MISMATCH;
  public static final int UNSUPPORTED = cairn_moduleConstants.CAIRN_STATUS_UNSUPPORTED;
  public static final int OUT_OF_MEMORY = cairn_moduleConstants.CAIRN_STATUS_OUT_OF_MEMORY;
  public static final int OUT_OF_DEVICE_MEMORY = cairn_moduleConstants.CAIRN_STATUS_OUT_OF_DEVICE_MEMORY;
  public static final int STATE_FULL = cairn_moduleConstants.CAIRN_STATUS_STATE_FULL;
  public static final int IO = cairn_moduleConstants.CAIRN_STATUS_IO;
  public static final int NOT_FOUND = cairn_moduleConstants.CAIRN_STATUS_NOT_FOUND;
  public static final int NO_SPACE = cairn_moduleConstants.CAIRN_STATUS_NO_SPACE;
  public static final int DURABILITY = cairn_moduleConstants.CAIRN_STATUS_DURABILITY;
  public static final int CANCELLED = cairn_moduleConstants.CAIRN_STATUS_CANCELLED;
  public static final int NUMERIC = cairn_moduleConstants.CAIRN_STATUS_NUMERIC;
  public static final int DEVICE = cairn_moduleConstants.CAIRN_STATUS_DEVICE;
  public static final int STATE_INVALID = cairn_moduleConstants.CAIRN_STATUS_STATE_INVALID;
  public static final int INTERNAL = cairn_moduleConstants.CAIRN_STATUS_INTERNAL;

  private Status() {}

  /** For example "CAIRN_STATUS_BUSY". */
  public static String name(int code) {
    return Raw.statusName(code);
  }
}
