// What numbers of an analysis that are given by people have to satisfy before they are multiplied.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace allot::evaluation {

// The number. Throws InvalidArgument naming `what` where it is below 1.
int64_t at_least_1(std::string_view what, int64_t number);
// The product. Throws InvalidArgument with the factors where it does not fit into 64 bits.
int64_t product(std::initializer_list<int64_t> factors);

}  // namespace allot::evaluation
