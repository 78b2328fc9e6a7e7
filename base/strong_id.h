// Identifiers as distinct types, so that a lease number cannot be passed where an episode number is meant.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace allot {

template <class Tag>
struct StrongId {
  int64_t value = 0;
  friend auto operator<=>(const StrongId&, const StrongId&) = default;
};

using EpisodeId = StrongId<struct EpisodeTag>;
using LeaseId = StrongId<struct LeaseTag>;

}  // namespace allot

template <class Tag>
struct std::hash<allot::StrongId<Tag>> {
  size_t operator()(const allot::StrongId<Tag>& id) const noexcept { return std::hash<int64_t>{}(id.value); }
};
