#include "model/kv_cache.h"

#include <string>

#include "base/error.h"

namespace allot::model {

PageAllocator::PageAllocator(int64_t num_pages) : in_use_(static_cast<size_t>(num_pages), false) {
  free_.reserve(in_use_.size());
  for (int64_t page = num_pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

std::vector<int32_t> PageAllocator::allocate(int64_t count) {
  if (count > free_pages()) return {};
  std::vector<int32_t> pages(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - pages.size());
  for (int32_t page : pages) in_use_[page] = true;
  return pages;
}

void PageAllocator::release(std::span<const int32_t> pages) {
  for (int32_t page : pages) {
    if (page < 0 || page >= num_pages() || !in_use_[page]) {
      throw InvalidArgument("KV cache: page " + std::to_string(page) + " of " + std::to_string(num_pages()) +
                            " was given back but is not in use");
    }
    in_use_[page] = false;
  }
  free_.insert(free_.end(), pages.rbegin(), pages.rend());
}

int64_t kv_bytes_per_token(const KvCacheShape& shape) {
  return int64_t{2} * shape.num_layers * shape.num_kv_heads * shape.head_dim * kernels::size_of(shape.dtype);
}

KvCache::KvCache(const KvCacheShape& shape)
    : shape_(shape),
      layer_bytes_(shape.num_pages * shape.page_size * shape.num_kv_heads * shape.head_dim *
                   kernels::size_of(shape.dtype)),
      buffer_(layer_bytes_ * 2 * shape.num_layers) {}

}  // namespace allot::model
