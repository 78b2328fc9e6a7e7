// Runs a test's Launch on the GPU: every array is copied to device memory between guard bands, aligned as
// little as the contract allows, so that a stray read gives NaN and a stray write is seen.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention_cuda.h"
#include "tests/kernels/launch.h"
#include "tight_bounds.h"

namespace allot::kernels::testing {

// Skips the test with the reason where there is no GPU.
void skip_without_gpu();

// Base of all tests that need a GPU.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

// Throws CudaError naming `what` unless `error` is cudaSuccess.
void require(cudaError_t error, const char* what);

// Limits of the GPU the tests run on.
const DeviceLimits& gpu_limits();

// Device memory between guard bands of 0xFF bytes: NaN as bfloat16 and float16, -1 as an integer.
class GuardedArray {
 public:
  // `alignment` of data() is exact: the address is no multiple of twice that.
  GuardedArray(size_t bytes, size_t alignment);
  ~GuardedArray();
  GuardedArray(const GuardedArray&) = delete;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void upload(const void* host, cudaStream_t stream);
  void fill(int byte, cudaStream_t stream);
  std::vector<unsigned char> download(cudaStream_t stream) const;
  // Fails the test, naming the array, when a guard byte changed.
  void expect_guards(const char* name, cudaStream_t stream) const;

 private:
  size_t bytes_, front_;
  unsigned char* base_ = nullptr;
  unsigned char* data_ = nullptr;
};

// A launch on a stream of its own. The Launch stays the owner of the host arrays; scalar params are read from
// it at every run, arrays at every upload().
class CudaLaunch {
 public:
  explicit CudaLaunch(Launch& launch) : CudaLaunch(launch, tight_bounds(launch.params)) {}
  CudaLaunch(Launch& launch, const LaunchBounds& bounds);
  ~CudaLaunch();
  CudaLaunch(const CudaLaunch&) = delete;

  LaunchBounds bounds;
  DeviceLimits limits = gpu_limits();
  cudaStream_t stream() const { return stream_; }
  CudaWorkspace workspace() const {
    return {workspace_->data(), workspace_->bytes()};
  }  // of the last attend()

  // upload(), attend() and output(), with check_cuda before the output is read. On a device with fewer
  // multiprocessors the kernel for many short rows may serve the same launch, or values may be sampled while
  // keys are read: it is run so, too, and the test fails unless the output has the same bytes.
  std::vector<double> run();
  // As run(), for a launch whose content is at fault: the message of check_cuda, "no fault" when there is
  // none. The output can be read afterwards.
  std::string fault();

  // Copies the host arrays to the device; sizes are those at construction.
  void upload();
  // Fills output and workspace with NaN and queues the launch.
  void attend();
  // The same without touching output and workspace first: what a graph captures.
  void queue();
  void check();
  // Output as double [num_queries, num_q_heads, head_dim]; fails the test when a guard byte of any array
  // changed. The Launch's rows_read, where it counts, are then those after the launch.
  std::vector<double> output();
  // The exact bytes of the last output().
  const std::vector<unsigned char>& output_bytes() const { return output_bytes_; }
  // Elements of the output that belong to one query.
  int64_t query_elements() const { return int64_t{host_.num_q_heads} * host_.head_dim; }

 private:
  AttentionParams device_params() const;
  void expect_the_same_of_other_ways();

  const AttentionParams& host_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<GuardedArray> query_, key_pages_, value_pages_, value_norms_, page_table_, query_start_,
      lengths_, out_, budgets_, draws_, rows_read_, split_high_, split_low_, split_query_, split_query_units_,
      workspace_;
  std::vector<unsigned char> output_bytes_;
};

// The output of a launch with tight bounds.
std::vector<double> run_cuda(Launch& launch);

}  // namespace allot::kernels::testing
