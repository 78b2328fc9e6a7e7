#include "model/token_table.h"

#include <algorithm>
#include <string>

namespace allot::model {

TokenTable::TokenTable(size_t count) {
  const size_t size = std::bit_ceil(std::max<size_t>(16, count + count / 2));
  slots_.resize(size);
  shift_ = 64 - std::countr_zero(size);
}

void TokenTable::insert(std::string_view text, int32_t id) {
  if (text.size() > kShortBytes) {
    long_.emplace(text, id);
    return;
  }
  const Key key = key_of(text);
  slots_[place_of(key)] = {key, id};
}

std::optional<int32_t> TokenTable::find_long(std::string_view text) const noexcept {
  const auto found = long_.find(text);
  return found == long_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace allot::model
