// What a run may ask of its workers that those of earlier releases do not know. A worker ignores fields of a
// spec that it does not know, so it says which it does, and one that would leave something out is refused.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wire/messages_fwd.h"

namespace allot::wire {

// Those that this release knows, as the path of a field in RunSpec: "generation.keys". For Hello.features.
[[nodiscard]] std::vector<std::string_view> known_features();

// Those that `spec` asks for and `hello` does not name, each with what the spec says: "generation.keys
// (split)". Empty where the worker does all that the spec says.
[[nodiscard]] std::vector<std::string> missing_features(const RunSpec& spec, const Hello& hello);

}  // namespace allot::wire
