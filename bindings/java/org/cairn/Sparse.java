package org.cairn;

import org.cairn.raw.cairn_moduleConstants;

/** How GDN layers select what they read. */
public enum Sparse {
  ADAPTIVE(cairn_moduleConstants.CAIRN_SPARSE_ADAPTIVE),
  ALL(cairn_moduleConstants.CAIRN_SPARSE_ALL),
  RANDOM(cairn_moduleConstants.CAIRN_SPARSE_RANDOM),
  FIXED(cairn_moduleConstants.CAIRN_SPARSE_FIXED);

  final int value;

  Sparse(int value) {
    this.value = value;
  }
}
