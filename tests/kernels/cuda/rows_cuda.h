// What the tests of the row operations on a GPU share: tolerances, and arrays between guards.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda_launch.h"

namespace allot::kernels::testing {

inline constexpr DType kAll[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
inline constexpr float kOld = 77.0f;  // what an output holds before

// A result rounded once is within half a unit in the last place; float32 sums of terms of size `terms` add a
// few of theirs.
inline double tolerance(DType dtype, double expected, double terms = 0) {
  const double unit = dtype == DType::kFloat32 ? 1e-6 : dtype == DType::kBFloat16 ? 0.0040 : 0.0005;
  return unit * std::abs(expected) + 2e-6 * (std::abs(expected) + terms) + 1e-7;
}

// Arrays of one test on the device, between guards, on a stream of their own.
class RowsCuda : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    for (const auto& array : arrays_) array->expect_guards("an array", stream_);
    require(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }

  // Alignment of every array made from now on: 16 bytes, or that of an element to refuse vectors.
  size_t alignment_ = 16;

  GuardedArray& put_bytes(const void* data, size_t bytes, size_t alignment) {
    arrays_.push_back(std::make_unique<GuardedArray>(bytes, alignment));
    arrays_.back()->upload(data, stream_);
    require(cudaStreamSynchronize(stream_), "upload");
    return *arrays_.back();
  }
  GuardedArray& put(const Elements& elements) {
    return put_bytes(elements.bytes().data(), elements.bytes().size(), alignment_);
  }
  template <class X>
  const X* put(const std::vector<X>& values) {
    const size_t alignment = std::is_same_v<X, float> && alignment_ == 16 ? 16 : sizeof(X);
    return static_cast<const X*>(put_bytes(values.data(), values.size() * sizeof(X), alignment).data());
  }
  Elements get(DType dtype, const GuardedArray& array) { return Elements(dtype, array.download(stream_)); }

  // Calls body(dtype) for every dtype, with aligned arrays and with ones that are not.
  template <class Body>
  void for_every_kind(const Body& body) {
    for (const DType dtype : kAll) {
      for (const bool aligned : {true, false}) {
        SCOPED_TRACE(std::string(name(dtype)) + (aligned ? " aligned" : " not aligned"));
        alignment_ = aligned ? 16 : static_cast<size_t>(size_of(dtype));
        body(dtype);
        for (const auto& array : arrays_) array->expect_guards("an array", stream_);
        arrays_.clear();
      }
    }
  }

  cudaStream_t stream_ = nullptr;
  std::vector<std::unique_ptr<GuardedArray>> arrays_;
};

}  // namespace allot::kernels::testing
