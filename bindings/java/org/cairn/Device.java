package org.cairn;

import org.cairn.raw.Raw;

/** Where models live. */
public final class Device extends Handle {
  /** The first available backend, all cores. */
  public Device() {
    this("auto", 0, 0);
  }

  /** A backend by name is that backend or an error. Threads 0: all cores. */
  public Device(String backend, int index, int threads) {
    super(Raw.deviceOpen(backend, index, threads), Raw::deviceRelease);
  }

  public String backend() {
    try (Use use = use()) {
      return Raw.deviceBackend(use.handle);
    }
  }

  public String name() {
    try (Use use = use()) {
      return Raw.deviceName(use.handle);
    }
  }
}
