/*
 * Cairn: an embeddable runtime for language models whose memory is a recurrent state.
 *
 * Four nouns. A DEVICE runs things. A MODEL is immutable weights on a device. A STATE is the memory of one agent: it is
 * created, fed, forked, rewound, saved, restored. A STREAM is a queue of work with its scratch. Read the headers in the
 * order below; the rules that hold everywhere are said once, here.
 *
 * Ownership   A function that makes an object hands over a handle; give it back with the matching *_release, in any
 *             order (children keep their parents alive), NULL allowed. A handle is checked on every call: NULL, released
 *             or wrong-kind handles are CAIRN_STATUS_INVALID_HANDLE, never a crash. No call keeps a caller's pointer.
 * Errors      Functions return a cairn_status; cairn_last_error_message() has the details for the calling thread. On
 *             failure out-parameters are NULL or untouched, and states are as status.h says. A function's list of
 *             errors leaves out what any call may give: INVALID_ARGUMENT, INVALID_HANDLE, BUSY, OUT_OF_MEMORY,
 *             OUT_OF_DEVICE_MEMORY, DEVICE, STATE_INVALID, INTERNAL, and WRONG_STATE from a log or allocator callback
 *             or in a forked process.
 * Threads     Devices and models: any thread. States, streams, decoders: one user at a time, else CAIRN_STATUS_BUSY.
 *             A host's rounding mode, denormals and floating-point traps neither matter nor change. The device that it
 *             chose for its thread (cudaSetDevice, a driver's context, hipSetDevice) is current again after every call
 *             and in its callbacks, but for those of logs and allocators, which may find another one.
 * Processes   After a fork() the parent goes on as if nothing had been. In the child, if any handle was alive or a call
 *             was running, every call returns CAIRN_STATUS_WRONG_STATE and releases do nothing: the threads and devices
 *             are the parent's. Fork before the first handle is made, or start the child with exec.
 * Structs     Option and info structs begin with struct_size (use the *_INIT macros) and grow at their end. Zero means
 *             default; an options pointer may be NULL: all defaults. A larger struct of a newer header is accepted when
 *             the unknown tail is zero. `reserved` must be 0, what is documented as "1: ..." must be 0 or 1.
 * Text        UTF-8. Sizes in bytes, positions in tokens.
 * Quiet       The library never prints, exits, aborts, or throws. It reads one environment variable:
 *             CAIRN_BACKEND_PATH, a folder with backend plug-ins.
 */
#ifndef CAIRN_H
#define CAIRN_H

#include "cairn/status.h"
#include "cairn/version.h"
#include "cairn/log.h"
#include "cairn/device.h"
#include "cairn/model.h"
#include "cairn/state.h"
#include "cairn/snapshot.h"
#include "cairn/stream.h"

#endif
