// The paged KV cache: memory per layer, and which pages are free. A page holds page_size tokens of every KV
// head; a sequence owns any set of pages, listed in order in its page table. Torch-free and without threads
// of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/estimator.h"
#include "kernels/key_format.h"
#include "model/buffer.h"
#include "model/engine_options.h"
#include "model/model_config.h"

namespace allot::model {

// Number of pages that `tokens` tokens need.
constexpr int64_t pages_for(int64_t tokens, int32_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

class PageAllocator;

// Pages of one owner, in the order of its page table; they go back to the allocator, which must outlive this,
// when it ends.
class OwnedPages {
 public:
  OwnedPages() = default;
  ~OwnedPages() { give_back(); }
  OwnedPages(OwnedPages&& other) noexcept
      : allocator_(other.allocator_), pages_(std::exchange(other.pages_, {})) {}
  OwnedPages& operator=(OwnedPages&& other) noexcept;

  std::span<const int32_t> numbers() const { return pages_; }
  bool empty() const { return pages_.empty(); }

 private:
  friend class PageAllocator;
  OwnedPages(PageAllocator& allocator, std::vector<int32_t> pages)
      : allocator_(&allocator), pages_(std::move(pages)) {}
  void give_back();

  PageAllocator* allocator_ = nullptr;
  std::vector<int32_t> pages_;
};

// Hands out page numbers 0 .. num_pages - 1. The page that was freed last is handed out first, so that a
// cache sized for the worst case touches no more memory than was in use at one time.
class PageAllocator {
 public:
  explicit PageAllocator(int64_t num_pages);

  int64_t num_pages() const { return num_pages_; }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }

  // `count` >= 1 pages, or none at all when fewer are free.
  [[nodiscard]] OwnedPages allocate(int64_t count);

 private:
  friend class OwnedPages;

  int64_t num_pages_;
  std::vector<int32_t> free_;  // a stack
};

struct KvCacheShape {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_size = 0;
  int64_t num_pages = 0;
  kernels::DType dtype = kernels::DType::kFloat32;
  kernels::KeyFormat keys = kernels::KeyFormat::kSixteenBits;
};

// Keys of a layer in all its pages, or values.
constexpr int64_t layer_vectors(const KvCacheShape& shape) {
  return shape.num_pages * shape.page_size * shape.num_kv_heads;
}

// Bytes of a layer's keys in all its pages. Split ones (kernels/split_keys.h) are the blocks of high planes
// and units and, behind them, the low planes, where the format has these.
struct LayerKeyBytes {
  int64_t first = 0;  // 16-bit keys, or high planes
  int64_t low = 0;
  int64_t all() const { return first + low; }
};
LayerKeyBytes layer_key_bytes(const KvCacheShape& shape);
// And of its values.
constexpr int64_t layer_value_bytes(const KvCacheShape& shape) {
  return layer_vectors(shape) * shape.head_dim * kernels::size_of(shape.dtype);
}

// Bytes that the cache takes for one token: keys and values in all layers, the norms of the values, and
// beside split keys a 16-bit copy of the keys of one layer, for kernels that read such.
int64_t kv_bytes_per_token(const KvCacheShape& shape);

// The cache of an engine: options.cache_tokens or, when that is 0, enough for every slot to reach the model's
// last position, bounded by what `spare_bytes` holds where that is known. Throws Error with the numbers when
// that makes no page or more than there are page numbers.
KvCacheShape plan_cache(const EngineOptions& options, const ModelConfig& config,
                        std::optional<int64_t> spare_bytes);

// Memory of the keys and values of a cache with 16-bit keys, [num_pages, num_kv_heads, page_size, head_dim]
// each per layer, and of the norms of the values, float32 [num_pages, num_kv_heads, page_size] per layer.
class KvCache {
 public:
  explicit KvCache(const KvCacheShape& shape);

  const KvCacheShape& shape() const { return shape_; }
  int64_t layer_bytes() const { return layer_bytes_; }  // of the keys of a layer, or of its values
  void* keys(int32_t layer) { return buffer_.data() + layer_bytes_ * (2 * layer); }
  void* values(int32_t layer) { return buffer_.data() + layer_bytes_ * (2 * layer + 1); }
  float* value_norms(int32_t layer) { return norms_.as<float>() + layer_vectors(shape_) * layer; }

 private:
  KvCacheShape shape_;
  int64_t layer_bytes_;  // of keys or of values
  Buffer buffer_;
  Buffer norms_;
};

}  // namespace allot::model
