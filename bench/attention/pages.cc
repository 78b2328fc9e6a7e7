#include "bench/attention/pages.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace allot::bench::attention {
namespace {

constexpr uint64_t kShuffleSeed = 20;

int32_t pages_of(int32_t length, int32_t page_size) {
  return (length + page_size - 1) / page_size;
}

// [count] a permutation of 0 .. count.
std::vector<int32_t> page_numbers(int64_t count, PageOrder order) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  if (order == PageOrder::kShuffled) {
    // Not std::shuffle, whose result depends on the standard library.
    std::mt19937_64 random(kShuffleSeed);
    for (size_t i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[random() % i]);
  }
  return numbers;
}

}  // namespace

PagePlan plan_pages(std::span<const int32_t> lengths, int32_t page_size, PageOrder order) {
  PagePlan plan;
  plan.page_size = page_size;
  for (const int32_t length : lengths) {
    const int32_t pages = pages_of(length, page_size);
    plan.max_pages = std::max(plan.max_pages, pages);
    plan.num_pages += pages;
    plan.num_tokens += length;
  }
  plan.page_table.assign(lengths.size() * static_cast<size_t>(plan.max_pages), 0);
  plan.token_of_slot.assign(static_cast<size_t>(plan.num_pages * page_size), plan.num_tokens);

  const std::vector<int32_t> numbers = page_numbers(plan.num_pages, order);
  size_t used = 0;
  int64_t token = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    for (int32_t i = 0; i < pages_of(lengths[b], page_size); ++i) {
      const int32_t page = numbers[used++];
      plan.page_table[b * static_cast<size_t>(plan.max_pages) + static_cast<size_t>(i)] = page;
      const int32_t filled = std::min(page_size, lengths[b] - i * page_size);
      const auto slot = plan.token_of_slot.begin() + int64_t{page} * page_size;
      std::iota(slot, slot + filled, token);
      token += filled;
    }
  }
  return plan;
}

PagePlan plan_contiguous(std::span<const int32_t> lengths, int32_t multiple) {
  const int32_t longest = *std::ranges::max_element(lengths);
  return plan_pages(lengths, pages_of(longest, multiple) * multiple, PageOrder::kSequential);
}

}  // namespace allot::bench::attention
