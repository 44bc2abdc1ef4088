/* Calls of llama.cpp whose C++ exceptions become a code: its Vulkan backend throws where a device is lost or has no memory
 * left, and an exception that reaches a caller in C or Python ends the process. */
#include <cstdio>
#include <exception>

extern "C" {
#include "localspec.h"
}

template <class Call>
static int32_t guarded(Call call, char reason[LS_REASON_ROOM]) {
  reason[0] = '\0';
  try {
    return call();
  } catch (const std::exception &error) {
    std::snprintf(reason, LS_REASON_ROOM, "%s", error.what());
  } catch (...) {
    std::snprintf(reason, LS_REASON_ROOM, "an exception without a name");
  }
  return LS_THROWN;
}

int32_t ls_guard_pass(ls_pass_function pass, void *context, const ls_batch *batch, char reason[LS_REASON_ROOM]) {
  return guarded([=] { return pass(context, *batch); }, reason);
}

int32_t ls_guard_wait(ls_wait_function wait, void *context, char reason[LS_REASON_ROOM]) {
  return guarded(
      [=] {
        wait(context);
        return 0;
      },
      reason);
}

int32_t ls_guard_get(ls_get_function get, void *tensor, void *to, size_t offset, size_t bytes, char reason[LS_REASON_ROOM]) {
  return guarded(
      [=] {
        get(tensor, to, offset, bytes);
        return 0;
      },
      reason);
}
