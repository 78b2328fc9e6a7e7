#include "model/kv_cache.h"

namespace allot::model {

OwnedPages& OwnedPages::operator=(OwnedPages&& other) noexcept {
  std::swap(allocator_, other.allocator_);
  std::swap(pages_, other.pages_);
  other.give_back();
  return *this;
}

void OwnedPages::give_back() {
  if (pages_.empty()) return;
  allocator_->free_.insert(allocator_->free_.end(), pages_.rbegin(), pages_.rend());
  pages_.clear();
}

PageAllocator::PageAllocator(int64_t num_pages) : num_pages_(num_pages) {
  free_.reserve(static_cast<size_t>(num_pages));  // giving back never allocates
  for (int64_t page = num_pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

OwnedPages PageAllocator::allocate(int64_t count) {
  if (count > free_pages()) return {};
  std::vector<int32_t> pages(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - pages.size());
  return OwnedPages(*this, std::move(pages));
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
