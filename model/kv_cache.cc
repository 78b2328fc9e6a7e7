#include "model/kv_cache.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "kernels/split_keys.h"

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
  free_.reserve(static_cast<size_t>(num_pages));  // so that freeing pages never allocates
  for (int64_t page = num_pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

OwnedPages PageAllocator::allocate(int64_t count) {
  if (count > free_pages()) return {};
  std::vector<int32_t> pages(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - pages.size());
  return OwnedPages(*this, std::move(pages));
}

LayerKeyBytes layer_key_bytes(const KvCacheShape& shape) {
  const int64_t vectors = layer_vectors(shape);
  if (shape.keys == kernels::KeyFormat::kSixteenBits) return {.first = layer_value_bytes(shape)};
  return {.first = vectors / kernels::kSplitBlockKeys * kernels::split_block_bytes(shape.head_dim),
          .low = shape.keys == kernels::KeyFormat::kSplit ? vectors * shape.head_dim : 0};
}

int64_t kv_bytes_per_token(const KvCacheShape& shape) {
  const bool split = shape.keys != kernels::KeyFormat::kSixteenBits;
  // A block of split keys is of several tokens, all of whose keys have the same part of it.
  KvCacheShape block = shape;
  block.page_size = kernels::kSplitBlockKeys;
  block.num_pages = 1;
  const int64_t vector = shape.head_dim * int64_t{kernels::size_of(shape.dtype)};
  const int64_t norms = shape.num_kv_heads * int64_t{sizeof(float)};
  const int64_t of_layer =
      layer_key_bytes(block).all() / kernels::kSplitBlockKeys + shape.num_kv_heads * vector + norms;
  return of_layer * shape.num_layers + (split ? shape.num_kv_heads * vector : 0);
}

namespace {

// As many as are in the cache at once.
int64_t tokens_in_use(const EngineOptions& options, const ModelConfig& config) {
  const int64_t most = config.max_position_embeddings;
  if (!options.sequence_tokens) return options.max_sequences * most;
  const int64_t sequence =
      pages_for(std::clamp<int64_t>(*options.sequence_tokens, 1, most), options.page_size) *
      options.page_size;
  // Beside the sequences the texts of a pass of fidelity(), each of which may leave most of its last page
  // empty, and one that is longer than a pass.
  const int64_t texts =
      max_pass_tokens(options) + int64_t{options.max_sequences} * options.page_size + sequence;
  return std::min(options.max_sequences * sequence + texts, options.max_sequences * most);
}

}  // namespace

KvCacheShape plan_cache(const EngineOptions& options, const ModelConfig& config,
                        std::optional<int64_t> spare_bytes) {
  KvCacheShape shape{.num_layers = config.num_layers,
                     .num_kv_heads = config.num_kv_heads,
                     .head_dim = config.head_dim,
                     .page_size = options.page_size,
                     .dtype = options.dtype,
                     .keys = options.keys};
  int64_t tokens = options.cache_tokens;
  if (tokens == 0) {
    tokens = tokens_in_use(options, config);
    if (spare_bytes) tokens = std::min(tokens, *spare_bytes / kv_bytes_per_token(shape));
    if (tokens == 0) {
      throw Error(
          "no memory is left for a KV cache: beside weights and activations " + std::to_string(*spare_bytes) +
          " bytes, and one token takes " + std::to_string(kv_bytes_per_token(shape)) +
          "; another process may hold the device's memory (nvidia-smi names it), or lower max_sequences");
    }
  }
  shape.num_pages = pages_for(tokens, options.page_size);
  if (shape.num_pages < 1 || shape.num_pages > INT32_MAX) {
    throw Error("a KV cache of " + std::to_string(tokens) + " tokens in pages of " +
                std::to_string(options.page_size) + " has " + std::to_string(shape.num_pages) +
                " pages, expected 1 to " + std::to_string(INT32_MAX) + "; set cache_tokens");
  }
  return shape;
}

KvCache::KvCache(const KvCacheShape& shape)
    : shape_(shape),
      layer_bytes_(layer_value_bytes(shape)),
      buffer_(layer_bytes_ * 2 * shape.num_layers),
      norms_(layer_vectors(shape) * shape.num_layers * int64_t{sizeof(float)}) {}

}  // namespace allot::model
