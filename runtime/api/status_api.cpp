// cairn/status.h and cairn/version.h. These three leave the thread's message alone.
#include "cairn/version.h"
#include "runtime/api/guard.h"

extern "C" {

const char* cairn_status_name(cairn_status status) {
  switch (status) {
#define CAIRN_NAME(code) \
  case code: return #code
    CAIRN_NAME(CAIRN_STATUS_OK);
    CAIRN_NAME(CAIRN_STATUS_INVALID_ARGUMENT);
    CAIRN_NAME(CAIRN_STATUS_INVALID_HANDLE);
    CAIRN_NAME(CAIRN_STATUS_BUFFER_TOO_SMALL);
    CAIRN_NAME(CAIRN_STATUS_LIMIT_EXCEEDED);
    CAIRN_NAME(CAIRN_STATUS_BUSY);
    CAIRN_NAME(CAIRN_STATUS_WRONG_STATE);
    CAIRN_NAME(CAIRN_STATUS_FORMAT);
    CAIRN_NAME(CAIRN_STATUS_CHECKSUM);
    CAIRN_NAME(CAIRN_STATUS_VERSION);
    CAIRN_NAME(CAIRN_STATUS_MISMATCH);
    CAIRN_NAME(CAIRN_STATUS_UNSUPPORTED);
    CAIRN_NAME(CAIRN_STATUS_OUT_OF_MEMORY);
    CAIRN_NAME(CAIRN_STATUS_OUT_OF_DEVICE_MEMORY);
    CAIRN_NAME(CAIRN_STATUS_STATE_FULL);
    CAIRN_NAME(CAIRN_STATUS_IO);
    CAIRN_NAME(CAIRN_STATUS_NOT_FOUND);
    CAIRN_NAME(CAIRN_STATUS_NO_SPACE);
    CAIRN_NAME(CAIRN_STATUS_DURABILITY);
    CAIRN_NAME(CAIRN_STATUS_CANCELLED);
    CAIRN_NAME(CAIRN_STATUS_NUMERIC);
    CAIRN_NAME(CAIRN_STATUS_DEVICE);
    CAIRN_NAME(CAIRN_STATUS_STATE_INVALID);
    CAIRN_NAME(CAIRN_STATUS_INTERNAL);
#undef CAIRN_NAME
    default: return "CAIRN_STATUS_UNKNOWN";
  }
}

const char* cairn_last_error_message(void) { return cairn::api::last_error_message(); }

const char* cairn_version_string(void) { return CAIRN_VERSION_STRING; }

uint32_t cairn_abi_version(void) { return CAIRN_ABI_VERSION; }

}  // extern "C"
