#include "model/cuda/cuda_backend.h"

#include <cuda_runtime.h>

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/device.h"
#include "base/error.h"
#include "base/round_up.h"
#include "kernels/attention_fault_cuda.h"
#include "kernels/bfloat16.h"
#include "kernels/rows_cuda.h"
#include "kernels/token_sampler_cuda.h"
#include "model/cuda/chosen_tokens.h"
#include "model/cuda/decoder.h"
#include "model/cuda/dense_prefill.h"
#include "model/cuda/device_memory.h"
#include "model/cuda/device_weights.h"
#include "model/cuda/graph.h"
#include "model/cuda/nccl.h"
#include "model/cuda/pass_arrays.h"
#include "model/cuda/seen_tokens.h"
#include "model/split_backend.h"
#include "model/storage_formats.h"

namespace allot::model {
namespace cuda {
namespace {

// Device memory that is left for libraries, the driver, graphs, and the contiguous keys and values of
// a long prompt.
constexpr int64_t kSpareBytes = int64_t{3} << 30;
// Prompts are padded to multiples of this many rows, so that products have few different sizes.
constexpr int64_t kPrefillRows = 64;
// Rows whose logits are computed at once.
constexpr int64_t kLogitsRows = 256;
// Rows that compare_states compares at once: the more, the less often a product reads the vocabulary's
// weights.
constexpr int64_t kMaxComparedRows = CudaDecoder::kMaxProjectedRows;
constexpr int64_t kComparedBytes = int64_t{128} << 20;  // of their logits, where kLogitsRows need no more
int64_t compared_rows(int64_t row_bytes) {
  return std::clamp(kComparedBytes / row_bytes / kPrefillRows * kPrefillRows, kLogitsRows, kMaxComparedRows);
}
// Bounds of the smallest decode graphs.
constexpr int32_t kLeastLength = 256;
constexpr int32_t kLeastBudget = 8;

// Bounds are powers of two, so that a graph serves sequences while they grow.
int32_t bound(int64_t value, int32_t least) {
  return static_cast<int32_t>(std::max<int64_t>(least, std::bit_ceil(static_cast<uint64_t>(value))));
}

// Many sequences have two bounds more: attend_cuda's kernel for many short rows has more warps the shorter
// the rows, and takes seven heads a group up to some 1,300 keys.
int32_t length_bound(int64_t longest, int64_t sequences) {
  constexpr int64_t kMany = 256;
  const int32_t power = bound(longest, kLeastLength);
  if (sequences < kMany) return power;
  for (const int32_t between : {768, 1280}) {
    if (longest <= between) return std::min(power, between);
  }
  return power;
}

AttentionMode attention_mode(const ForwardBatch& batch, int32_t layer) {
  const auto of_layer = std::span(batch.budgets).subspan(layer * batch.batch(), batch.batch());
  const auto dense = std::ranges::count(of_layer, kernels::kDenseBudget);
  if (dense == 0) return AttentionMode::kSampled;
  return dense == batch.batch() ? AttentionMode::kDense : AttentionMode::kMixed;
}

bool is_decode(const ForwardBatch& batch) {
  return batch.num_tokens() == batch.batch() &&
         static_cast<int64_t>(batch.output_rows.size()) == batch.batch();
}

class CudaBackend final : public Backend {
 public:
  // Without a cache.
  CudaBackend(const WeightsSource& source, const ModelConfig& config, const EngineOptions& options,
              int device, const ModelRank& rank = {});
  ~CudaBackend() override;

  // The cache takes the memory that weights and activations leave, except for kSpareBytes and for the
  // attention weights of its keys: 2 bytes a key and query head, in a workspace that may have to be replaced
  // by one of twice its size.
  KvCacheShape choose_cache(const EngineOptions& options) const;
  void make_cache(const KvCacheShape& shape, const EngineOptions& options);

  const KvCacheShape& cache_shape() const override { return decoder_.cache_shape(); }
  void open_slot(int32_t slot, std::span<const int32_t> tokens) override;
  int32_t max_submitted() const override { return ChosenTokens::kPasses; }
  void submit(const ForwardBatch& batch, const kernels::AttentionMethod& attention,
              std::span<const TokenChoice> choices) override;
  std::span<const int32_t> take() override;
  void wait() override;
  std::span<const float> logits(const ForwardBatch& batch,
                                const kernels::AttentionMethod& attention) override;
  void reserve_states(int64_t rows) override;
  void keep_states(const ForwardBatch& batch, const kernels::AttentionMethod& attention, int64_t first_state,
                   std::span<int64_t> rows_read) override;
  void compare_states(int64_t dense, std::span<const int64_t> sampled, int64_t rows,
                      std::span<kernels::RowDivergence> out) override;

 private:
  // Makes the device current on the calling thread: called before anything is made on it, and in every call,
  // since each may come from another thread.
  struct DeviceChoice {
    explicit DeviceChoice(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }
  };

  // With `decode` the batch is a decode step, padded to a size that has a graph.
  PassPlan plan_of(const ForwardBatch& batch, bool decode) const;
  // Makes memory for a pass; graphs that were captured with smaller memory are dropped.
  void reserve(const PassPlan& plan, const kernels::AttentionMethod& attention);
  // Sends the batch to the device and returns the arrays there, for kernels.
  PassArrays send(const PassPlan& plan, const ForwardBatch& batch, std::span<const TokenChoice> choices);
  bool find_dense_prefill();
  // Makes the buffer at least as large; what it held is lost when it grows. Waits for the stream then.
  void grow(DeviceBuffer* buffer, int64_t bytes);
  void queue_choices(const PassPlan& plan, const PassArrays& arrays);

  DeviceChoice device_choice_;
  int device_number_;
  ModelConfig config_;
  kernels::DType dtype_;
  kernels::DeviceLimits device_;
  bool is_first_;  // of the ranks: its logits are the ones returned
  Stream stream_;
  std::unique_ptr<DensePrefill> dense_prefill_;
  bool dense_prefill_missing_ = false;
  CudaDecoder decoder_;

  // Arrays of a pass, filled while the device may still read those of the pass before.
  struct Staging {
    PinnedBuffer memory;
    Event sent;
  };
  std::array<Staging, 2> staging_;
  size_t next_staging_ = 0;
  DeviceBuffer arrays_;
  SeenTokens seen_;
  ChosenTokens chosen_;
  std::vector<float> logits_;
  DeviceBuffer states_;     // kept hidden states [rows, hidden_size]
  DeviceBuffer rows_read_;  // [sequences] of a pass
  // Logits of a block of states [compared_rows, logits_stride], and how all blocks diverge.
  DeviceBuffer dense_logits_;
  DeviceBuffer sampled_logits_;
  DeviceBuffer divergences_;
  std::set<int64_t> tuned_rows_;
  std::map<PassPlan, Graph> graphs_;
};

CudaDecoder::Limits decoder_limits(const EngineOptions& options) {
  const int64_t decode = decode_rows(options.max_sequences);
  return {.rows = std::max(round_up(max_pass_tokens(options), kPrefillRows), decode),
          .outputs = std::max(decode, kLogitsRows)};
}

CudaBackend::CudaBackend(const WeightsSource& source, const ModelConfig& config, const EngineOptions& options,
                         int device, const ModelRank& rank)
    : device_choice_(device),
      device_number_(device),
      config_(config),
      dtype_(options.dtype),
      device_(kernels::device_limits(device)),
      is_first_(rank.split.rank == 0),
      decoder_(config,
               load_device_weights(source, config, options.dtype, options.threads,
                                   {.storage = options.weights, .split = rank.split}),
               options.dtype, decoder_limits(options), device_, rank),
      seen_(options.max_sequences, config.vocab_size, stream_.get()),
      chosen_(decoder_.limits().rows) {
  stream_.synchronize();
}

void CudaBackend::make_cache(const KvCacheShape& shape, const EngineOptions& options) {
  const DeviceChoice choice(device_number_);
  decoder_.make_cache(shape);
  if (options.skip_prefill) decoder_.fill_cache_at_random(stream_.get());
  stream_.synchronize();
}

CudaBackend::~CudaBackend() {
  // Passes that nobody takes may still run on the memory that is freed now.
  (void)cudaSetDevice(device_number_);
  (void)cudaStreamSynchronize(stream_.get());
}

KvCacheShape CudaBackend::choose_cache(const EngineOptions& options) const {
  const DeviceChoice choice(device_number_);
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const int64_t left = std::max<int64_t>(0, static_cast<int64_t>(free) - kSpareBytes);
  const double of_token = static_cast<double>(kv_bytes_per_token({.num_layers = config_.num_layers,
                                                                  .num_kv_heads = config_.num_kv_heads,
                                                                  .head_dim = config_.head_dim,
                                                                  .dtype = dtype_,
                                                                  .keys = options.keys}));
  const double share = of_token / (of_token + 4.0 * config_.num_q_heads);
  const KvCacheShape shape =
      plan_cache(options, config_, static_cast<int64_t>(share * static_cast<double>(left)));
  const int64_t needed = shape.num_pages * shape.page_size * static_cast<int64_t>(of_token);
  if (needed > left) {
    throw Error("a KV cache of " + std::to_string(shape.num_pages * shape.page_size) + " tokens takes " +
                std::to_string(needed) + " bytes, but weights and activations leave " + std::to_string(free) +
                " of the device's " + std::to_string(total) + " bytes, of which " +
                std::to_string(kSpareBytes) + " stay free; lower cache_tokens or max_sequences");
  }
  return shape;
}

// Loads the library's attention when a prompt first needs it; false where it is not available.
bool CudaBackend::find_dense_prefill() {
  if (dense_prefill_ == nullptr && !dense_prefill_missing_) {
    try {
      dense_prefill_ = DensePrefill::load(device_number_);
      decoder_.use(*dense_prefill_);
    } catch (const NotFound& missing) {
      dense_prefill_missing_ = true;
      spdlog::warn(
          "exact attention of prompts runs on kernels meant for decode, which is slow for long prompts, "
          "because LibTorch's cannot be loaded: {}",
          missing.what());
    }
  }
  return dense_prefill_ != nullptr;
}

void CudaBackend::open_slot(int32_t slot, std::span<const int32_t> tokens) {
  seen_.open(slot, tokens);
}

PassPlan CudaBackend::plan_of(const ForwardBatch& batch, bool decode) const {
  PassPlan plan;
  const int32_t longest = *std::ranges::max_element(batch.lengths);
  for (int32_t layer = 0; layer < config_.num_layers; ++layer)
    plan.modes.push_back(attention_mode(batch, layer));
  plan.decode = decode;
  plan.shape.num_layers = config_.num_layers;
  const bool samples = plan.has(AttentionMode::kSampled) || plan.has(AttentionMode::kMixed);
  if (samples) {
    plan.max_budget = bound(*std::ranges::max_element(batch.budgets), kLeastBudget);
  }
  if (plan.decode) {
    plan.shape.rows = plan.shape.sequences = plan.shape.outputs = plan.queries = decode_rows(batch.batch());
    plan.max_length = length_bound(longest, batch.batch());
    plan.shape.max_pages = static_cast<int32_t>(pages_for(plan.max_length, cache_shape().page_size));
    return plan;
  }
  plan.shape.rows = round_up(batch.num_tokens(), kPrefillRows);
  plan.shape.sequences = batch.batch();
  plan.shape.outputs = static_cast<int64_t>(batch.output_rows.size());
  plan.shape.max_pages = batch.max_pages;
  plan.queries = batch.num_tokens();
  plan.max_length = longest;
  plan.total_keys = std::accumulate(batch.lengths.begin(), batch.lengths.end(), int64_t{0});
  for (int64_t b = 0; b < batch.batch(); ++b) {
    const int64_t queries = batch.query_start[b + 1] - batch.query_start[b];
    plan.max_queries = std::max(plan.max_queries, static_cast<int32_t>(queries));
  }
  const bool one_query_each = plan.queries == plan.shape.sequences && plan.max_queries == 1;
  if (cache_shape().keys != kernels::KeyFormat::kSixteenBits && samples && !one_query_each)
    plan.shape.apart = plan.queries;
  return plan;
}

void CudaBackend::reserve(const PassPlan& plan, const kernels::AttentionMethod& attention) {
  const int64_t workspace = decoder_.attention_bytes(plan, attention);
  if (decoder_.reserve_attention(workspace, stream_.get())) graphs_.clear();
  if (plan.has(AttentionMode::kDense) && plan.max_queries > 1 && find_dense_prefill()) {
    decoder_.reserve_dense_prefill(plan.total_keys, stream_.get());
  }
  const int64_t bytes = lay_out_pass(plan.shape, nullptr).bytes;
  if (bytes > arrays_.size()) {
    stream_.synchronize();
    graphs_.clear();
    for (Staging& staging : staging_) staging.memory = PinnedBuffer(bytes + bytes / 2);
    arrays_ = DeviceBuffer(bytes + bytes / 2);
  }
}

PassArrays CudaBackend::send(const PassPlan& plan, const ForwardBatch& batch,
                             std::span<const TokenChoice> choices) {
  Staging& staging = staging_[next_staging_];
  next_staging_ = (next_staging_ + 1) % staging_.size();
  staging.sent.synchronize();
  const PassBlock host = lay_out_pass(plan.shape, staging.memory.data());
  fill_pass(plan.shape, batch, choices, host.arrays);
  check(cudaMemcpyAsync(arrays_.data(), staging.memory.data(), host.bytes, cudaMemcpyHostToDevice,
                        stream_.get()),
        "cudaMemcpyAsync");
  staging.sent.record(stream_.get());
  return lay_out_pass(plan.shape, arrays_.data()).arrays;
}

void CudaBackend::queue_choices(const PassPlan& plan, const PassArrays& arrays) {
  const int64_t outputs = plan.shape.outputs;
  if (outputs == 0) return;
  kernels::choose_tokens_cuda({.rows = outputs,
                               .vocab_size = config_.vocab_size,
                               .dtype = dtype_,
                               .logits = decoder_.logits(),
                               .logits_stride = decoder_.logits_stride(),
                               .rules = arrays.rules,
                               .draws = arrays.token_draws,
                               .positions = arrays.token_positions,
                               .seen = seen_.data(),
                               .seen_rows = seen_.slots(),
                               .seen_row = arrays.token_seen_rows,
                               .chosen = chosen_.on_device()},
                              device_, stream_.get());
}

void CudaBackend::submit(const ForwardBatch& batch, const kernels::AttentionMethod& attention,
                         std::span<const TokenChoice> choices) {
  const DeviceChoice choice(device_number_);
  const PassPlan plan = plan_of(batch, is_decode(batch));
  reserve(plan, attention);
  if (plan.decode && tuned_rows_.insert(plan.shape.rows).second) {
    decoder_.tune(plan.shape.rows, stream_.get());
  }
  seen_.queue(device_, stream_.get());
  const PassArrays arrays = send(plan, batch, choices);
  const auto queue = [&] {
    if (plan.decode || !batch.chosen_before.empty()) {
      kernels::feed_tokens_cuda({.tokens = plan.shape.rows,
                                 .choices = arrays.chosen_before,
                                 .chosen = chosen_.on_device(),
                                 .chosen_rows = chosen_.rows(),
                                 .ids = arrays.tokens},
                                device_, stream_.get());
    }
    decoder_.queue(plan, arrays, attention, stream_.get());
    queue_choices(plan, arrays);
  };
  if (plan.decode) {
    auto found = graphs_.find(plan);
    if (found == graphs_.end()) found = graphs_.emplace(plan, Graph::capture(stream_.get(), queue)).first;
    found->second.launch(stream_.get());
  } else {
    queue();
  }
  // Not in the graph, because passes send their tokens to different places.
  chosen_.send(static_cast<int64_t>(choices.size()), decoder_.attention_workspace(), stream_.get());
}

std::span<const int32_t> CudaBackend::take() {
  const DeviceChoice choice(device_number_);
  const ChosenTokens::Taken taken = chosen_.take();
  if (taken.fault.code != 0) {
    kernels::reset_cuda_workspace(decoder_.attention_workspace(), stream_.get());
    kernels::throw_fault(taken.fault);
  }
  return taken.tokens;
}

void CudaBackend::wait() {
  const DeviceChoice choice(device_number_);
  stream_.synchronize();
}

std::span<const float> CudaBackend::logits(const ForwardBatch& batch,
                                           const kernels::AttentionMethod& attention) {
  const DeviceChoice choice(device_number_);
  PassPlan plan = plan_of(batch, is_decode(batch));
  plan.decode = false;
  reserve(plan, attention);
  decoder_.queue(plan, send(plan, batch, {}), attention, stream_.get());
  const int64_t outputs = plan.shape.outputs, at_once = decoder_.limits().outputs;
  const int64_t stride = decoder_.logits_stride();
  if (is_first_) logits_.resize(outputs * config_.vocab_size);
  std::vector<uint16_t> rows(std::min(outputs, at_once) * stride);
  for (int64_t first = 0; first < outputs; first += at_once) {
    const int64_t count = std::min(at_once, outputs - first);
    if (first > 0) decoder_.project_logits(first, count, stream_.get());
    if (!is_first_) continue;
    check(cudaMemcpyAsync(rows.data(), decoder_.logits(), count * stride * sizeof(uint16_t),
                          cudaMemcpyDeviceToHost, stream_.get()),
          "cudaMemcpyAsync");
    stream_.synchronize();
    for (int64_t i = 0; i < count; ++i) {
      std::transform(rows.begin() + i * stride, rows.begin() + i * stride + config_.vocab_size,
                     logits_.begin() + (first + i) * config_.vocab_size, kernels::float_from_bfloat16);
    }
  }
  decoder_.check(stream_.get());
  return logits_;
}

void CudaBackend::grow(DeviceBuffer* buffer, int64_t bytes) {
  if (buffer->size() >= bytes) return;
  stream_.synchronize();
  *buffer = DeviceBuffer();  // freed first: old and new together may not fit
  *buffer = DeviceBuffer(bytes);
}

void CudaBackend::reserve_states(int64_t rows) {
  const DeviceChoice choice(device_number_);
  grow(&states_, rows * decoder_.state_bytes());
}

void CudaBackend::keep_states(const ForwardBatch& batch, const kernels::AttentionMethod& attention,
                              int64_t first_state, std::span<int64_t> rows_read) {
  const DeviceChoice choice(device_number_);
  PassPlan plan = plan_of(batch, /*decode=*/false);
  // By sequence, or by query where these are apart.
  std::vector<int64_t> counted(
      rows_read.empty() ? 0 : static_cast<size_t>(std::max<int64_t>(batch.batch(), plan.shape.apart)));
  const auto counted_bytes = static_cast<int64_t>(counted.size() * sizeof(int64_t));
  if (counted_bytes > 0) {
    grow(&rows_read_, counted_bytes);
    check(cudaMemsetAsync(rows_read_.data(), 0, counted_bytes, stream_.get()), "cudaMemsetAsync");
    plan.rows_read = rows_read_.as<int64_t>();
  }
  reserve(plan, attention);
  decoder_.queue_states(plan, send(plan, batch, {}), attention, stream_.get());
  const int64_t bytes = plan.shape.outputs * decoder_.state_bytes();
  if (bytes > 0) {
    check(cudaMemcpyAsync(states_.data() + first_state * decoder_.state_bytes(), decoder_.states(), bytes,
                          cudaMemcpyDeviceToDevice, stream_.get()),
          "cudaMemcpyAsync");
  }
  if (counted_bytes > 0) {
    check(cudaMemcpyAsync(counted.data(), rows_read_.data(), counted_bytes, cudaMemcpyDeviceToHost,
                          stream_.get()),
          "cudaMemcpyAsync");
  }
  decoder_.check(stream_.get());
  for (int64_t b = 0; b < std::ssize(rows_read); ++b) {
    const auto of = [&](int64_t i) {
      return counted.begin() + (plan.shape.apart > 0 ? batch.query_start[i] : i);
    };
    rows_read[b] = std::accumulate(of(b), of(b + 1), rows_read[b]);
  }
}

void CudaBackend::compare_states(int64_t dense, std::span<const int64_t> sampled, int64_t rows,
                                 std::span<kernels::RowDivergence> out) {
  const DeviceChoice choice(device_number_);
  const int64_t row_bytes = decoder_.logits_stride() * kernels::size_of(dtype_);
  const int64_t block = compared_rows(row_bytes);
  grow(&dense_logits_, block * row_bytes);
  grow(&sampled_logits_, block * row_bytes);
  grow(&divergences_, static_cast<int64_t>(out.size_bytes()));
  const auto project = [&](int64_t first, int64_t count, const DeviceBuffer& logits) {
    decoder_.project_states(states_.data() + first * decoder_.state_bytes(), count, logits.data(),
                            stream_.get());
  };
  for (int64_t first = 0; first < rows; first += block) {
    const int64_t count = std::min(block, rows - first);
    project(dense + first, count, dense_logits_);
    for (size_t i = 0; i < sampled.size(); ++i) {
      project(sampled[i] + first, count, sampled_logits_);
      kernels::row_divergence_cuda(
          {.rows = count,
           .vocab_size = config_.vocab_size,
           .dtype = dtype_,
           .stride = decoder_.logits_stride(),
           .dense = dense_logits_.data(),
           .sampled = sampled_logits_.data(),
           .out = divergences_.as<kernels::RowDivergence>() + static_cast<int64_t>(i) * rows + first},
          device_, stream_.get());
    }
  }
  check(cudaMemcpyAsync(out.data(), divergences_.data(), out.size_bytes(), cudaMemcpyDeviceToHost,
                        stream_.get()),
        "cudaMemcpyAsync");
  stream_.synchronize();
}

// Refuses attention settings that the device does not support, before anything is loaded.
void check_attention(const ModelConfig& config, const EngineOptions& options,
                     const kernels::DeviceLimits& limits) {
  alignas(256) static const std::byte nowhere[256] = {};
  kernels::AttentionParams params{.batch = 1,
                                  .num_q_heads = config.num_q_heads,
                                  .num_kv_heads = config.num_kv_heads,
                                  .head_dim = config.head_dim,
                                  .page_size = options.page_size,
                                  .max_pages = 1,
                                  .num_pages = 1,
                                  .dtype = options.dtype,
                                  .scale = 1,
                                  .query = nowhere,
                                  .query_stride = int64_t{config.num_q_heads} * config.head_dim,
                                  .key_pages = nowhere,
                                  .value_pages = nowhere,
                                  .value_norms = reinterpret_cast<const float*>(nowhere),
                                  .page_table = reinterpret_cast<const int32_t*>(nowhere),
                                  .query_start = reinterpret_cast<const int64_t*>(nowhere),
                                  .lengths = reinterpret_cast<const int32_t*>(nowhere),
                                  .out = const_cast<std::byte*>(nowhere),
                                  .method = options.attention,
                                  .budgets = reinterpret_cast<const int32_t*>(nowhere),
                                  .draws = reinterpret_cast<const kernels::SequenceDraws*>(nowhere)};
  if (options.keys != kernels::KeyFormat::kSixteenBits) {
    const auto* const plane = reinterpret_cast<const int8_t*>(nowhere);
    params.split = {.high = nowhere,
                    .low = options.keys == kernels::KeyFormat::kSplit ? plane : nullptr,
                    .query = plane,
                    .query_units = reinterpret_cast<const float*>(nowhere)};
  }
  kernels::validate_cuda(params, {.num_queries = 1, .max_length = 1, .max_budget = 1}, limits);
}

// One backend for each device, loaded at the same time.
std::unique_ptr<Backend> make_ranks(const WeightsSource& source, const ModelConfig& of_rank,
                                    EngineOptions options, std::span<const int> devices) {
  const auto group = std::make_shared<NcclGroup>(devices);
  const auto count = static_cast<int32_t>(devices.size());
  auto threads = std::make_unique<RankThreads>(count);
  options.threads = std::max(1, options.threads / count);
  std::vector<std::unique_ptr<CudaBackend>> ranks(devices.size());
  std::vector<KvCacheShape> caches(devices.size());
  const std::function<void()> nothing = [] {};  // ranks do not wait for each other here
  threads->run(
      [&](int32_t rank) {
        const ModelRank place{.split = {.rank = rank, .ranks = count}, .collective = &group->of_rank(rank)};
        ranks[rank] = std::make_unique<CudaBackend>(source, of_rank, options, devices[rank], place);
        caches[rank] = ranks[rank]->choose_cache(options);
      },
      nothing);
  // A page is on all ranks.
  const KvCacheShape& cache = *std::ranges::min_element(caches, {}, &KvCacheShape::num_pages);
  threads->run([&](int32_t rank) { ranks[rank]->make_cache(cache, options); }, nothing);
  return make_split_backend(
      {.threads = std::move(threads),
       .ranks = {std::make_move_iterator(ranks.begin()), std::make_move_iterator(ranks.end())},
       .abort = [group] { group->abort(); }});
}

}  // namespace
}  // namespace cuda

std::unique_ptr<Backend> make_cuda_backend(const WeightsSource& source, const ModelConfig& config,
                                           const EngineOptions& options, std::span<const int> devices) {
  if (options.dtype != kernels::DType::kBFloat16) {
    throw Unsupported("engine options: dtype " + std::string(kernels::name(options.dtype)) +
                      " runs on the CPU only; on a CUDA device use bfloat16");
  }
  const auto ranks = static_cast<int32_t>(devices.size());
  check_split(config, options.attention, ranks);
  require_formats(options.weights, options.keys,
                  {.kind = Device::Kind::kCuda, .index = devices[0], .count = ranks});
  const ModelConfig of_rank = config_of_rank(config, ranks);
  for (const int device : devices) {
    const kernels::DeviceLimits limits = kernels::device_limits(device);
    cuda::require_capability(options.weights, limits);
    cuda::check_attention(of_rank, options, limits);
  }
  if (ranks > 1) return cuda::make_ranks(source, of_rank, options, devices);
  auto backend = std::make_unique<cuda::CudaBackend>(source, config, options, devices[0]);
  backend->make_cache(backend->choose_cache(options), options);
  return backend;
}

}  // namespace allot::model
