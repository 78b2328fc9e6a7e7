// "Did you mean …?" for options, choices and commands.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace allot::app {

// The known name that needs the fewest edits (insert, delete, replace, or swap of neighbouring letters) to
// become `word`; the first of several. Nothing when even that name needs more edits than a third of the
// longer word's letters, where two edits are always allowed.
std::optional<std::string> nearest_name(std::string_view word, std::span<const std::string> known);

}  // namespace allot::app
