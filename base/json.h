// nlohmann's JSON library, with its two classes compiled once, in json.cc: every source that includes the
// library itself compiles them again, which takes longer than the source's own code.
#pragma once

#include <nlohmann/json.hpp>

extern template class nlohmann::basic_json<>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
