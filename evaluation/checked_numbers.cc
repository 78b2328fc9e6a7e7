#include "evaluation/checked_numbers.h"

#include <fmt/ranges.h>
#include <spdlog/fmt/fmt.h>

#include "base/error.h"
#include "kernels/sampling.h"

namespace allot::evaluation {

int64_t at_least(int64_t least, std::string_view what, int64_t number) {
  if (number < least)
    throw InvalidArgument(fmt::format("{} is {}, expected at least {}", what, number, least));
  return number;
}

void check_budgets(std::string_view what, std::span<const int64_t> budgets) {
  for (const int64_t budget : budgets) {
    if (at_least_1(what, budget) > kernels::kMaxBudget)
      throw InvalidArgument(fmt::format("{} is {}, expected at most {}", what, budget, kernels::kMaxBudget));
  }
}

int64_t product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (const int64_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result))
      throw InvalidArgument(fmt::format(
          "the product of {} does not fit into 64 bits; ask for smaller numbers", fmt::join(factors, ", ")));
  return result;
}

}  // namespace allot::evaluation
