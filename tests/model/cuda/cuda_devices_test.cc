#include "model/cuda_devices.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace allot::model {
namespace {

TEST(CudaDevices, AreAsManyAsTheDriverCountsOrSayWhyThereAreNone) {
  const CudaDevices found = find_cuda_devices();
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    EXPECT_TRUE(found.devices.empty());
    EXPECT_NE(found.reason, "");
    GTEST_SKIP() << "needs a GPU: " << count << " CUDA devices found, " << cudaGetErrorString(error);
  }
  ASSERT_EQ(static_cast<int>(found.devices.size()), count);
  EXPECT_EQ(found.reason, "");
  for (int index = 0; index < count; ++index) {
    EXPECT_EQ(found.devices[index].index, index);
    EXPECT_NE(found.devices[index].product, "");
    size_t unused = 0;
    size_t total = 0;
    ASSERT_EQ(cudaSetDevice(index), cudaSuccess);
    ASSERT_EQ(cudaMemGetInfo(&unused, &total), cudaSuccess);
    EXPECT_EQ(found.devices[index].memory_bytes, static_cast<int64_t>(total));
  }
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST(CudaDevices, ComputeRightlyEachAndAreRefusedByNameWhereThereIsNone) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  EXPECT_THROW((void)check_cuda_device(error == cudaSuccess ? count : 0), CudaError);
  if (error != cudaSuccess || count == 0) {
    GTEST_SKIP() << "needs a GPU: " << count << " CUDA devices found, " << cudaGetErrorString(error);
  }
  for (int index = 0; index < count; ++index) EXPECT_EQ(check_cuda_device(index), CudaCheck::kWorks);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

}  // namespace
}  // namespace allot::model
