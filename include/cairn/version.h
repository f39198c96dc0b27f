/* Cairn versions. Semantic versioning: the ABI is stable inside a major version. */
#ifndef CAIRN_VERSION_H
#define CAIRN_VERSION_H

#include "cairn/status.h"

#define CAIRN_VERSION_MAJOR 0
#define CAIRN_VERSION_MINOR 1
#define CAIRN_VERSION_PATCH 0
#define CAIRN_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/** The version of the loaded library, "0.1.0". Static. Thread-safe. @since 0.1 */
CAIRN_API const char* cairn_version_string(void);

/**
 * The ABI version of the loaded library. A program built against another CAIRN_ABI_VERSION must not use it.
 * Thread-safe. @since 0.1
 */
CAIRN_API uint32_t cairn_abi_version(void);

#ifdef __cplusplus
}
#endif
#endif
