/* Cairn status codes. Values are fixed for ever; new codes only fill gaps. */
#ifndef CAIRN_STATUS_H
#define CAIRN_STATUS_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define CAIRN_API __declspec(dllimport)
#elif defined(__GNUC__)
#define CAIRN_API __attribute__((visibility("default")))
#else
#define CAIRN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/**
 * What a call came to. Every function that can fail returns one of these; cairn_last_error_message() then tells
 * the thing, the value and the limit.
 *
 * After a failed call a state is either UNCHANGED (arguments, formats, memory), at a CHUNK BORDER (cancelled:
 * cairn_state_info().position tells how much was read), or INVALID (CAIRN_STATUS_DEVICE while work was in flight; until
 * reset, restored or rewound every call on it returns CAIRN_STATUS_STATE_INVALID). Numbers that are not finite while
 * running are no failure: cairn_state_get_statistics counts them, and saving refuses them.
 *
 * Callbacks are C functions: they must not throw, nor leave by longjmp. An exception that leaves a progress, read or
 * write callback all the same is caught: the call returns CAIRN_STATUS_INTERNAL with its text, and states are as after
 * a cancel. One that leaves a log, allocator or I/O hook may end the program.
 */
typedef int32_t cairn_status;
enum {
  CAIRN_STATUS_OK = 0,
  /* the call */
  CAIRN_STATUS_INVALID_ARGUMENT = 1, /* a value is wrong: NULL, negative, unknown option, token out of range */
  CAIRN_STATUS_INVALID_HANDLE = 2,   /* NULL, released, of another kind, or never a handle */
  CAIRN_STATUS_BUFFER_TOO_SMALL = 3, /* the size needed is reported */
  CAIRN_STATUS_LIMIT_EXCEEDED = 4,   /* a configured limit (cairn_limits, quota) forbids it */
  CAIRN_STATUS_BUSY = 5,             /* another thread uses this state or stream; nothing was done */
  CAIRN_STATUS_WRONG_STATE = 6,      /* right call, wrong moment: for example from inside a callback */
  /* files and what is in them */
  CAIRN_STATUS_FORMAT = 20,      /* not a Cairn file, or its structure or meaning is damaged */
  CAIRN_STATUS_CHECKSUM = 21,    /* structure is right, bytes are damaged */
  CAIRN_STATUS_VERSION = 22,     /* written by a newer format version */
  CAIRN_STATUS_MISMATCH = 23,    /* a snapshot of another model, other weights or another M0 */
  CAIRN_STATUS_UNSUPPORTED = 24, /* understood, but this build, backend or device cannot do it */
  /* resources */
  CAIRN_STATUS_OUT_OF_MEMORY = 30,
  CAIRN_STATUS_OUT_OF_DEVICE_MEMORY = 31,
  CAIRN_STATUS_STATE_FULL = 32, /* no key-value room left (see kv_capacity_tokens) */
  /* input and output */
  CAIRN_STATUS_IO = 40,
  CAIRN_STATUS_NOT_FOUND = 41, /* file, backend or device */
  CAIRN_STATUS_NO_SPACE = 42,
  CAIRN_STATUS_DURABILITY = 43, /* the new file is in place but may not survive a power loss */
  /* running */
  CAIRN_STATUS_CANCELLED = 50,
  CAIRN_STATUS_NUMERIC = 51, /* a non-finite number where none may be */
  CAIRN_STATUS_DEVICE = 52,  /* the device failed */
  CAIRN_STATUS_STATE_INVALID = 53,
  CAIRN_STATUS_INTERNAL = 60 /* a bug in Cairn: please report the message */
};

/**
 * The name of a status, for example "CAIRN_STATUS_BUSY"; "CAIRN_STATUS_UNKNOWN" for any other value.
 * Static, never NULL. Thread-safe. @since 0.1
 */
CAIRN_API const char* cairn_status_name(cairn_status status);

/**
 * The message of the last failed call of this thread: one line with the thing, the value and the limit; "" after a
 * successful call. Owned by the library; valid until this thread's next call. Thread-safe. @since 0.1
 */
CAIRN_API const char* cairn_last_error_message(void);

/**
 * Progress of a long call. Called on the calling thread, at chunk borders.
 *
 * @param done, total  In units of the call (bytes for files, tokens for prefill); total > 0.
 * @return 0 to go on; anything else cancels: the call returns CAIRN_STATUS_CANCELLED.
 * Calling a Cairn function that takes the same state or stream from inside returns CAIRN_STATUS_BUSY.
 * @since 0.1
 */
typedef int (*cairn_progress_fn)(void* user, uint64_t done, uint64_t total);

#ifdef __cplusplus
}
#endif
#endif
