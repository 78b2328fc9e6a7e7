// Where each key of a batch lies in a paged cache: plain index arithmetic on the CPU, from which
// torch_peers.cc gathers the pages on the GPU.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace allot::bench::attention {

enum class PageOrder : uint8_t {
  kSequential,  // pages of a sequence lie in order, sequence after sequence
  kShuffled,    // pages lie anywhere, as in a server that has run for a while
};

// Tokens are numbered through the batch: sequence b owns lengths[b] numbers after those of the sequences
// before it.
struct PagePlan {
  int32_t page_size = 0;
  int32_t max_pages = 0;  // pages of the longest sequence
  int64_t num_pages = 0;
  int64_t num_tokens = 0;
  std::vector<int32_t> page_table;     // [batch, max_pages]; 0 after a sequence's last page
  std::vector<int64_t> token_of_slot;  // [num_pages, page_size]; num_tokens where no token lies
};

// Pages of `page_size` tokens for sequences of `lengths` keys, each at least 1; the shuffle is the same on
// every call.
PagePlan plan_pages(std::span<const int32_t> lengths, int32_t page_size, PageOrder order);

// One page a sequence, of the longest sequence's length rounded up to a multiple of `multiple`: a contiguous
// cache [batch, num_kv_heads, capacity, head_dim].
PagePlan plan_contiguous(std::span<const int32_t> lengths, int32_t multiple);

}  // namespace allot::bench::attention
