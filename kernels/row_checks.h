// Host checks of the row operations: what params must satisfy wherever the operation runs. The content of
// arrays is checked by code that can read it.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>

#include "base/error.h"
#include "kernels/fp8.h"
#include "kernels/rows.h"
#include "kernels/split_keys.h"

namespace allot::kernels {

// Where a row operation runs.
struct RowPlace {
  const char* suffix;  // of the operation's name in messages
  const char* memory;  // what a pointer must point to
  int64_t most_rows;   // rows or tokens of a call
  int64_t most_width;  // of activate_and_multiply
};
inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
// Of operations on the CPU.
inline constexpr RowPlace kHostPlace{
    .suffix = "", .memory = "the operation's data", .most_rows = kNoLimit, .most_width = kNoLimit};

// Checks fields of one operation. All functions throw InvalidArgument naming operation, field, value and
// what was expected.
class RowCheck {
 public:
  RowCheck(const char* operation, const RowPlace& place) : operation_(operation), place_(place) {}

  const RowPlace& place() const { return place_; }

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    throw InvalidArgument(fmt::format("{}{}: ", operation_, place_.suffix) +
                          fmt::format(text, std::forward<Args>(args)...));
  }
  void size(const char* field, int64_t value, int64_t least, int64_t most = kNoLimit) const {
    if (value >= least && value <= most) return;
    if (most == kNoLimit) refuse("{} is {}; expected at least {}", field, value, least);
    refuse("{} is {}; expected {} to {}", field, value, least, most);
  }
  void rows(const char* field, int64_t value) const { size(field, value, 0, place_.most_rows); }
  void epsilon(const char* field, float value) const {
    if (!(value >= 0)) refuse("{} is {}; expected 0 or more", field, value);
  }
  void pointers(std::initializer_list<std::pair<const char*, const void*>> fields) const {
    for (const auto& [field, pointer] : fields) {
      if (pointer == nullptr) refuse("{} is null; it must point to {}", field, place_.memory);
    }
  }

 private:
  const char* operation_;
  const RowPlace& place_;
};

// Pointers are not checked when there are no rows. The returned RowCheck can be used for further checks.
RowCheck check_fields(const RmsNormParams& params, const RowPlace& place);
RowCheck check_fields(const RotaryParams& params, const RowPlace& place);
RowCheck check_fields(const ValueNormsParams& params, const RowPlace& place);
RowCheck check_fields(const ActivateAndMultiplyParams& params, const RowPlace& place);
RowCheck check_fields(const EmbeddingParams& params, const RowPlace& place);
RowCheck check_fields(const DivergenceParams& params, const RowPlace& place);
RowCheck check_fields(const StoreSplitKeysParams& params, const RowPlace& place);
RowCheck check_fields(const SplitQueriesParams& params, const RowPlace& place);
RowCheck check_fields(const QuantizeRowsParams& params, const RowPlace& place);
// That pages hold whole blocks of split keys.
void check_split_pages(const RowCheck& check, int32_t page_size);

}  // namespace allot::kernels
