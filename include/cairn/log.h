/* Cairn's hooks into its host: log, memory, files. Set them before the first other call. */
#ifndef CAIRN_LOG_H
#define CAIRN_LOG_H

#include "cairn/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t cairn_log_level;
enum { CAIRN_LOG_ERROR = 1, CAIRN_LOG_WARNING = 2, CAIRN_LOG_INFO = 3, CAIRN_LOG_DEBUG = 4 };

/** One message, one line, no newline; never tokens or text. Called on the thread that caused it. @since 0.1 */
typedef void (*cairn_log_fn)(void* user, cairn_log_level level, const char* component, const char* message);

/**
 * Sets the log callback. Cairn is silent until this is called; NULL makes it silent again.
 * Thread-safe, but messages in flight may still reach the old callback.
 * @return CAIRN_STATUS_INVALID_ARGUMENT  max_level is none of those above. @since 0.1
 */
CAIRN_API cairn_status cairn_set_log_callback(cairn_log_fn callback, void* user, cairn_log_level max_level);

/**
 * Where host memory of states, weights and scratch comes from. Both functions are called from any thread.
 * allocate returns NULL when there is no memory; alignment is a power of two, at most 4,096.
 */
typedef struct cairn_allocator {
  size_t struct_size;
  void* user;
  void* (*allocate)(void* user, size_t size_bytes, size_t alignment);
  void (*release)(void* user, void* memory, size_t size_bytes);
} cairn_allocator;

/**
 * Replaces the allocator for objects made from now on; NULL restores the default.
 * @return CAIRN_STATUS_WRONG_STATE  while any handle is alive, or a call in flight uses memory of it;
 *         CAIRN_STATUS_INVALID_ARGUMENT  a function is NULL. @since 0.1
 */
CAIRN_API cairn_status cairn_set_allocator(const cairn_allocator* allocator);

/**
 * How Cairn touches the file system: the POSIX calls of the same names, and their contracts; they return -1 and set
 * *error_number on failure. A test injects faults here; a host can redirect to its own store.
 */
typedef struct cairn_io {
  size_t struct_size;
  void* user;
  int (*open)(void* user, const char* path, int flags, unsigned mode, int* error_number);
  int (*openat)(void* user, int directory, const char* name, int flags, unsigned mode, int* error_number);
  int64_t (*pread)(void* user, int file, void* data, size_t size_bytes, int64_t offset, int* error_number);
  int64_t (*pwrite)(void* user, int file, const void* data, size_t size_bytes, int64_t offset, int* error_number);
  int (*fsync)(void* user, int file, int* error_number);
  int (*close)(void* user, int file, int* error_number);
  int (*renameat)(void* user, int directory, const char* from, const char* to, int* error_number);
  int (*unlinkat)(void* user, int directory, const char* name, int* error_number);
  int64_t (*file_size)(void* user, int file, int* error_number); /* regular files only; else -1 and EINVAL */
} cairn_io;

/**
 * Replaces the I/O table for calls made from now on; NULL restores the default.
 * @return CAIRN_STATUS_INVALID_ARGUMENT  a function is NULL. @since 0.1
 */
CAIRN_API cairn_status cairn_set_io(const cairn_io* io);

#ifdef __cplusplus
}
#endif
#endif
