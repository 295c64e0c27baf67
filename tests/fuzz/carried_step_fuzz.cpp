// A step over pages that another process told: whatever it says, no number leads outside what was opened.
#include "engine/generate/carried_step.h"
#include "kernels/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const qeng::CarriedLimits limits{6, 6, 4, 8, 4, 64};
  try {
    const qeng::CarriedStep step =
        qeng::unpack_step(std::string_view(reinterpret_cast<const char*>(data), size), limits);
    for (int32_t slot : step.rows.slots)
      if (slot < 0 || slot >= limits.pages * limits.page_tokens) std::abort();
    for (size_t i = 0; i < step.rows.lengths.size(); ++i)
      for (int32_t at = 0; at < step.rows.lengths[i]; at += 4)
        if (step.rows.pages.at(i * static_cast<size_t>(step.most) + static_cast<size_t>(at / 4)) < 0) std::abort();
    if (qeng::pack_step(step).size() != size) std::abort();
  } catch (const qeng::Error&) {
  }
  return 0;
}
