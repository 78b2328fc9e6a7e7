// What numbers of an analysis that are given by people have to satisfy before they are multiplied.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

namespace allot::evaluation {

// The number. Throws InvalidArgument naming `what` where it is below `least`.
int64_t at_least(int64_t least, std::string_view what, int64_t number);
inline int64_t at_least_1(std::string_view what, int64_t number) {
  return at_least(1, what, number);
}
// Throws InvalidArgument naming `what` where one is no budget of a query: 1 to kernels::kMaxBudget.
void check_budgets(std::string_view what, std::span<const int64_t> budgets);
// The product. Throws InvalidArgument with the factors where it does not fit into 64 bits.
int64_t product(std::initializer_list<int64_t> factors);

}  // namespace allot::evaluation
