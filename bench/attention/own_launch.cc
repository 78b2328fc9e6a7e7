#include "bench/attention/own_launch.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/rows_cuda.h"

namespace allot::bench::attention {
namespace {

constexpr DrawKey kDrawKey = {.run_seed = 1, .sampling_seed = 2};

DeviceBytes decode_starts(int32_t batch) {
  std::vector<int64_t> starts(static_cast<size_t>(batch) + 1);
  std::iota(starts.begin(), starts.end(), 0);
  return to_device<int64_t>(starts);
}

DeviceBytes draws_of(int32_t batch) {
  std::vector<kernels::SequenceDraws> draws;
  for (int32_t b = 0; b < batch; ++b) draws.push_back({kDrawKey, static_cast<uint32_t>(b)});
  return to_device<kernels::SequenceDraws>(draws);
}

size_t output_bytes(const Batch& batch) {
  const Shape& shape = *batch.shape;
  return static_cast<size_t>(int64_t{shape.batch} * shape.num_q_heads * shape.head_dim *
                             kernels::size_of(batch.dtype));
}

kernels::DeviceLimits limits_of_current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "ask for the current device");
  return kernels::device_limits(device);
}

// Of every vector of the value pages, in their order.
DeviceBytes norms_of(const Batch& batch, const kernels::DeviceLimits& limits, cudaStream_t stream) {
  const int64_t vectors = batch.plan->num_pages * batch.shape->num_kv_heads * batch.plan->page_size;
  std::vector<int64_t> each(static_cast<size_t>(vectors));
  std::iota(each.begin(), each.end(), 0);
  const DeviceBytes slots = to_device<int64_t>(each);
  DeviceBytes norms(each.size() * sizeof(float));
  kernels::store_value_norms_cuda({.tokens = vectors,
                                   .num_kv_heads = 1,
                                   .head_dim = batch.shape->head_dim,
                                   .dtype = batch.dtype,
                                   .values = batch.value_pages,
                                   .value_stride = batch.shape->head_dim,
                                   .value_norms = static_cast<float*>(norms.data()),
                                   .num_pages = vectors,
                                   .page_size = 1,
                                   .slots = static_cast<const int64_t*>(slots.data())},
                                  limits, stream);
  check(cudaStreamSynchronize(stream), "compute the norms of the values");
  return norms;
}

}  // namespace

OwnLaunch::OwnLaunch(const Batch& batch, const kernels::AttentionMethod& method, KeyFormat keys,
                     cudaStream_t stream)
    : stream_(stream),
      limits_(limits_of_current_device()),
      bounds_{.num_queries = batch.shape->batch,
              .max_queries = 1,
              .max_length = std::ranges::max(batch.lengths),
              .max_budget = std::ranges::max(batch.budgets),
              // As in a decode step: only queries are of the kernel before.
              .settled_keys = true},
      page_table_(to_device<int32_t>(batch.plan->page_table)),
      query_start_(decode_starts(batch.shape->batch)),
      lengths_(to_device<int32_t>(batch.lengths)),
      budgets_(to_device<int32_t>(batch.budgets)),
      draws_(draws_of(batch.shape->batch)),
      value_norms_(0),
      high_(0),
      low_(0),
      query_planes_(0),
      query_units_(0),
      out_(output_bytes(batch)),
      workspace_(0) {
  // All bits set are a NaN, so an element that is never written shows.
  check(cudaMemsetAsync(out_.data(), 0xFF, out_.size(), stream), "fill the output");
  const Shape& shape = *batch.shape;
  params_.batch = shape.batch;
  params_.num_q_heads = shape.num_q_heads;
  params_.num_kv_heads = shape.num_kv_heads;
  params_.head_dim = shape.head_dim;
  params_.page_size = batch.plan->page_size;
  params_.max_pages = batch.plan->max_pages;
  params_.num_pages = batch.plan->num_pages;
  params_.dtype = batch.dtype;
  params_.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  params_.query = batch.query;
  params_.query_stride = int64_t{shape.num_q_heads} * shape.head_dim;
  params_.key_pages = batch.key_pages;
  params_.value_pages = batch.value_pages;
  params_.page_table = static_cast<const int32_t*>(page_table_.data());
  params_.query_start = static_cast<const int64_t*>(query_start_.data());
  params_.lengths = static_cast<const int32_t*>(lengths_.data());
  params_.out = out_.data();
  params_.method = method;
  params_.budgets = static_cast<const int32_t*>(budgets_.data());
  params_.draws = static_cast<const kernels::SequenceDraws*>(draws_.data());
  if (kernels::uses_value_norms(method)) {
    value_norms_ = norms_of(batch, limits_, stream);
    params_.value_norms = static_cast<const float*>(value_norms_.data());
  }
  if (keys != KeyFormat::kSixteenBits) split_keys(batch, keys == KeyFormat::kSplit);
  workspace_ = DeviceBytes(kernels::cuda_workspace_bytes(params_, bounds_, limits_));
}

void OwnLaunch::split_keys(const Batch& batch, bool with_low_plane) {
  const Shape& shape = *batch.shape;
  const int64_t vectors = batch.plan->num_pages * shape.num_kv_heads * batch.plan->page_size;
  std::vector<int64_t> each(static_cast<size_t>(vectors));
  std::iota(each.begin(), each.end(), 0);
  const DeviceBytes slots = to_device<int64_t>(each);
  high_ = DeviceBytes(
      static_cast<size_t>(vectors / kernels::kSplitBlockKeys * kernels::split_block_bytes(shape.head_dim)));
  if (with_low_plane) low_ = DeviceBytes(static_cast<size_t>(vectors * shape.head_dim));
  kernels::store_split_keys_cuda({.tokens = vectors,
                                  .num_kv_heads = 1,
                                  .head_dim = shape.head_dim,
                                  .dtype = batch.dtype,
                                  .keys = batch.key_pages,
                                  .key_stride = shape.head_dim,
                                  .high = high_.data(),
                                  .low = static_cast<int8_t*>(low_.data()),
                                  .num_pages = vectors / kernels::kSplitBlockKeys,
                                  .page_size = kernels::kSplitBlockKeys,
                                  .slots = static_cast<const int64_t*>(slots.data())},
                                 limits_, stream_);
  check(cudaStreamSynchronize(stream_), "split the keys");
  const int64_t queries = int64_t{shape.batch} * shape.num_q_heads;
  query_planes_ = DeviceBytes(static_cast<size_t>(2 * queries * shape.head_dim));
  query_units_ = DeviceBytes(static_cast<size_t>(queries) * sizeof(float));
  split_queries_ = {.tokens = shape.batch,
                    .num_q_heads = shape.num_q_heads,
                    .head_dim = shape.head_dim,
                    .dtype = batch.dtype,
                    .queries = params_.query,
                    .query_stride = params_.query_stride,
                    .planes = static_cast<int8_t*>(query_planes_.data()),
                    .units = static_cast<float*>(query_units_.data())};
  params_.key_pages = nullptr;
  params_.split = {.high = high_.data(),
                   .low = static_cast<const int8_t*>(low_.data()),
                   .query = split_queries_.planes,
                   .query_units = split_queries_.units};
}

void OwnLaunch::queue() const {
  if (params_.split.high != nullptr) kernels::split_queries_cuda(split_queries_, limits_, stream_);
  kernels::attend_cuda(params_, bounds_, limits_, {workspace_.data(), workspace_.size()}, stream_);
}

void OwnLaunch::check_result() const {
  kernels::check_cuda({workspace_.data(), workspace_.size()}, stream_);
}

}  // namespace allot::bench::attention
