/* Devices: where models and states live. */
#ifndef CAIRN_DEVICE_H
#define CAIRN_DEVICE_H

#include "cairn/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A device opened for use. Thread-safe. Released by cairn_device_release. */
typedef struct cairn_device cairn_device;

/** One backend that was found, or one that was looked for and why it is not there. */
typedef struct cairn_backend_info {
  size_t struct_size;
  char name[32];         /* "cpu", "cuda", "rocm", "reference" */
  int32_t device_count;  /* 0 when it loaded but found no device */
  int32_t is_available;  /* 1 when at least one device can be opened */
  char path[512];        /* the plug-in's file; "" when linked in */
  char reason[512];      /* why it is not available; "" when it is */
} cairn_backend_info;

#define CAIRN_BACKEND_INFO_INIT {sizeof(cairn_backend_info), {0}, 0, 0, {0}, {0}}

/** Number of backends known to this build, found or not. Never initialises a device. Thread-safe. @since 0.1 */
CAIRN_API cairn_status cairn_backend_count(int32_t* count);

/**
 * Describes backend `index`. Thread-safe.
 * @return CAIRN_STATUS_INVALID_ARGUMENT  index outside [0, count). @since 0.1
 */
CAIRN_API cairn_status cairn_backend_get_info(int32_t index, cairn_backend_info* info);

typedef struct cairn_device_options {
  size_t struct_size;
  const char* backend;  /* "cpu", "cuda", ...; NULL or "auto": the first available of cuda, rocm, cpu */
  int32_t index;        /* which device of the backend, 0 based */
  int32_t thread_count; /* cpu, reference: worker threads including the caller, at most 1,024; 0: the cores
                           this process may use */
} cairn_device_options;

#define CAIRN_DEVICE_OPTIONS_INIT {sizeof(cairn_device_options), NULL, 0, 0}

/**
 * Opens a device. A backend asked for by name is that backend or an error, never another one.
 *
 * @param device   [out] Owned by the caller. NULL on failure.
 * @return CAIRN_STATUS_NOT_FOUND    no such backend or device; the message says what was looked for and where;
 *         CAIRN_STATUS_UNSUPPORTED  the device is too old for this build.
 * Thread-safe. @since 0.1
 */
CAIRN_API cairn_status cairn_device_open(const cairn_device_options* options, cairn_device** device);

typedef struct cairn_device_info {
  size_t struct_size;
  char backend[32];             /* what `auto` chose */
  char name[128];               /* "NVIDIA H200", the processor's name, ... */
  int32_t index;
  int32_t thread_count;         /* 0 on a GPU */
  uint64_t memory_total_bytes;  /* 0: not known */
  uint64_t memory_free_bytes;
  char features[256];           /* instruction sets or compute capability, blank separated */
} cairn_device_info;

#define CAIRN_DEVICE_INFO_INIT {sizeof(cairn_device_info), {0}, {0}, 0, 0, 0, 0, {0}}

/** Describes an open device. Thread-safe. @since 0.1 */
CAIRN_API cairn_status cairn_device_get_info(const cairn_device* device, cairn_device_info* info);

/** Gives the handle back. Models on the device keep it alive. NULL is allowed. Thread-safe. @since 0.1 */
CAIRN_API void cairn_device_release(cairn_device* device);

#ifdef __cplusplus
}
#endif
#endif
