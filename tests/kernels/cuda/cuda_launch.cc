#include "cuda_launch.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "kernels/cuda/plan.h"
#include "workspace_counters.h"

namespace allot::kernels::testing {
namespace {

constexpr size_t kGuardBytes = 1024;
constexpr int kGuardByte = 0xFF;

CudaWorkspace workspace_of(const GuardedArray& array) {
  return {.data = array.data(), .bytes = array.bytes()};
}

}  // namespace

void skip_without_gpu() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    GTEST_SKIP() << "needs a GPU: " << devices << " CUDA devices found, " << cudaGetErrorString(error);
  }
}

void CudaTest::SetUp() {
  skip_without_gpu();
}

void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw CudaError(std::string(what) + ": " + cudaGetErrorString(error));
}

const DeviceLimits& gpu_limits() {
  static const DeviceLimits limits = device_limits(0);
  return limits;
}

GuardedArray::GuardedArray(size_t bytes, size_t alignment) : bytes_(bytes), front_(kGuardBytes + alignment) {
  require(cudaMalloc(reinterpret_cast<void**>(&base_), front_ + bytes + kGuardBytes), "cudaMalloc");
  data_ = base_ + front_;
  require(cudaMemset(base_, kGuardByte, front_), "cudaMemset");
  require(cudaMemset(data_ + bytes, kGuardByte, kGuardBytes), "cudaMemset");
  require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");  // other streams do not wait for this one
}

GuardedArray::~GuardedArray() {
  cudaFree(base_);
}

void GuardedArray::upload(const void* host, cudaStream_t stream) {
  require(cudaMemcpyAsync(data_, host, bytes_, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
}

void GuardedArray::fill(int byte, cudaStream_t stream) {
  require(cudaMemsetAsync(data_, byte, bytes_, stream), "cudaMemsetAsync");
}

std::vector<unsigned char> GuardedArray::download(cudaStream_t stream) const {
  std::vector<unsigned char> result(bytes_);
  require(cudaMemcpyAsync(result.data(), data_, bytes_, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return result;
}

void GuardedArray::expect_guards(const char* name, cudaStream_t stream) const {
  std::vector<unsigned char> guards(front_ + kGuardBytes);
  require(cudaMemcpyAsync(guards.data(), base_, front_, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  require(
      cudaMemcpyAsync(guards.data() + front_, data_ + bytes_, kGuardBytes, cudaMemcpyDeviceToHost, stream),
      "cudaMemcpyAsync");
  require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  const auto changed =
      std::find_if(guards.begin(), guards.end(), [](unsigned char x) { return x != kGuardByte; });
  if (changed == guards.end()) return;
  const auto at = static_cast<size_t>(changed - guards.begin());
  ADD_FAILURE() << name << ": guard byte " << (at < front_ ? front_ - at : at - front_)
                << (at < front_ ? " before" : " after") << " its " << bytes_ << " bytes is now "
                << int{*changed};
}

CudaLaunch::CudaLaunch(Launch& launch, const LaunchBounds& launch_bounds)
    : bounds(launch_bounds), host_(launch.params) {
  require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const auto element = static_cast<size_t>(size_of(host_.dtype));
  const auto array = [](size_t bytes, size_t alignment) {
    return std::make_unique<GuardedArray>(bytes, alignment);
  };
  const auto batch = static_cast<size_t>(host_.batch);
  const auto queries = static_cast<size_t>(bounds.num_queries);
  const auto row = static_cast<size_t>(query_elements());
  const auto stride = static_cast<size_t>(host_.query_stride);
  const size_t cache =
      static_cast<size_t>(host_.num_pages) * host_.num_kv_heads * host_.page_size * host_.head_dim * element;
  query_ = array(queries == 0 ? 0 : ((queries - 1) * stride + row) * element, 16);
  key_pages_ = array(cache, 16);
  value_pages_ = array(cache, 16);
  if (host_.value_norms != nullptr)
    value_norms_ = array(cache / host_.head_dim / element * sizeof(float), 16);
  page_table_ = array(batch * host_.max_pages * sizeof(int32_t), sizeof(int32_t));
  query_start_ = array((batch + 1) * sizeof(int64_t), sizeof(int64_t));
  lengths_ = array(batch * sizeof(int32_t), sizeof(int32_t));
  out_ = array(queries * row * element, 16);
  if (host_.budgets != nullptr) budgets_ = array(batch * sizeof(int32_t), sizeof(int32_t));
  if (host_.draws != nullptr) draws_ = array(batch * sizeof(SequenceDraws), sizeof(uint32_t));
  if (host_.split.high != nullptr) {
    const Launch::SplitBytes split = Launch::split_bytes(host_, bounds.num_queries);
    split_high_ = array(split.high, 16);
    if (host_.split.low != nullptr) split_low_ = array(split.low, 16);
    split_query_ = array(split.query, 16);
    split_query_units_ = array(split.query_units, sizeof(float));
  }
  if (host_.rows_read != nullptr) rows_read_ = array(batch * sizeof(int64_t), sizeof(int64_t));
}

CudaLaunch::~CudaLaunch() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

AttentionParams CudaLaunch::device_params() const {
  AttentionParams p = host_;
  p.query = query_->data();
  p.key_pages = key_pages_->data();
  p.value_pages = value_pages_->data();
  p.value_norms = value_norms_ ? static_cast<const float*>(value_norms_->data()) : nullptr;
  p.page_table = static_cast<const int32_t*>(page_table_->data());
  p.query_start = static_cast<const int64_t*>(query_start_->data());
  p.lengths = static_cast<const int32_t*>(lengths_->data());
  p.out = out_->data();
  p.budgets = budgets_ ? static_cast<const int32_t*>(budgets_->data()) : nullptr;
  p.draws = draws_ ? static_cast<const SequenceDraws*>(draws_->data()) : nullptr;
  if (split_high_) {
    p.split = {.high = split_high_->data(),
               .low = split_low_ ? static_cast<const int8_t*>(split_low_->data()) : nullptr,
               .query = static_cast<const int8_t*>(split_query_->data()),
               .query_units = static_cast<const float*>(split_query_units_->data())};
    if (!bounds.any_dense || host_.key_pages == nullptr) p.query = p.key_pages = nullptr;  // not read
  }
  p.rows_read = rows_read_ ? static_cast<int64_t*>(rows_read_->data()) : nullptr;
  return p;
}

void CudaLaunch::upload() {
  query_->upload(host_.query, stream_);
  if (host_.key_pages != nullptr) key_pages_->upload(host_.key_pages, stream_);
  value_pages_->upload(host_.value_pages, stream_);
  if (value_norms_) value_norms_->upload(host_.value_norms, stream_);
  page_table_->upload(host_.page_table, stream_);
  query_start_->upload(host_.query_start, stream_);
  lengths_->upload(host_.lengths, stream_);
  if (budgets_) budgets_->upload(host_.budgets, stream_);
  if (draws_) draws_->upload(host_.draws, stream_);
  if (split_high_) {
    split_high_->upload(host_.split.high, stream_);
    if (split_low_) split_low_->upload(host_.split.low, stream_);
    split_query_->upload(host_.split.query, stream_);
    split_query_units_->upload(host_.split.query_units, stream_);
  }
  if (rows_read_) rows_read_->upload(host_.rows_read, stream_);
}

void CudaLaunch::attend() {
  const size_t bytes = cuda_workspace_bytes(device_params(), bounds, limits);
  if (!workspace_ || workspace_->bytes() != bytes) workspace_ = std::make_unique<GuardedArray>(bytes, 256);
  workspace_->fill(0xFF, stream_);
  reset_cuda_workspace(workspace_of(*workspace_), stream_);
  out_->fill(0xFF, stream_);
  queue();
}

void CudaLaunch::queue() {
  attend_cuda(device_params(), bounds, limits, workspace_of(*workspace_), stream_);
}

void CudaLaunch::check() {
  check_cuda(workspace_of(*workspace_), stream_);
}

std::vector<double> CudaLaunch::output() {
  output_bytes_ = out_->download(stream_);
  query_->expect_guards("query", stream_);
  key_pages_->expect_guards("key_pages", stream_);
  value_pages_->expect_guards("value_pages", stream_);
  if (value_norms_) value_norms_->expect_guards("value_norms", stream_);
  page_table_->expect_guards("page_table", stream_);
  query_start_->expect_guards("query_start", stream_);
  lengths_->expect_guards("lengths", stream_);
  out_->expect_guards("out", stream_);
  if (budgets_) budgets_->expect_guards("budgets", stream_);
  if (draws_) draws_->expect_guards("draws", stream_);
  workspace_->expect_guards("workspace", stream_);
  expect_counters_at_zero(workspace_->download(stream_));
  if (split_high_) split_high_->expect_guards("split.high", stream_);
  if (split_low_) split_low_->expect_guards("split.low", stream_);
  if (rows_read_) {
    rows_read_->expect_guards("rows_read", stream_);
    const std::vector<unsigned char> counted = rows_read_->download(stream_);
    std::memcpy(host_.rows_read, counted.data(), counted.size());
  }
  const Elements elements(host_.dtype, output_bytes_);
  std::vector<double> result;
  for (int64_t i = 0; i < elements.count(); ++i) result.push_back(elements.get(i));
  return result;
}

std::vector<double> CudaLaunch::run() {
  upload();
  attend();
  check();
  const std::vector<double> result = output();
  expect_the_same_of_other_ways();
  return result;
}

void CudaLaunch::expect_the_same_of_other_ways() {
  enum Way { kBehind, kOverlapped, kShortRows };
  const auto way = [&] {
    const cuda::Plan plan = cuda::make_plan(device_params(), bounds, limits);
    return plan.short_decode.warps > 0 ? kShortRows : plan.announced > 0 ? kOverlapped : kBehind;
  };
  if (rows_read_) return;  // every run adds to them
  const DeviceLimits own = limits;
  std::set<Way> seen = {way()};
  const std::vector<unsigned char> expected = output_bytes_;
  for (limits.multiprocessors = 1; limits.multiprocessors < std::min(16, gpu_limits().multiprocessors);
       ++limits.multiprocessors) {
    if (!seen.insert(way()).second) continue;
    attend();
    check();
    output();
    EXPECT_TRUE(output_bytes_ == expected)
        << "other bytes where there are " << limits.multiprocessors << " multiprocessors, way " << way();
  }
  limits = own;
}

std::string CudaLaunch::fault() {
  upload();
  attend();
  try {
    check();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no fault";
}

std::vector<double> run_cuda(Launch& launch) {
  return CudaLaunch(launch).run();
}

}  // namespace allot::kernels::testing
