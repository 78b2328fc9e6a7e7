// Chosen tokens on their way to the host while the device goes on.
#include "model/cuda/chosen_tokens.h"

#include <cuda_runtime.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/kernels/cuda/cuda_launch.h"

namespace allot::model::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kWorkspaceBytes = size_t{16} << 20;  // more than the header of any workspace

class ChosenTokensCuda : public kernels::testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    stream.emplace();
    memory = DeviceBuffer(static_cast<int64_t>(kWorkspaceBytes));
    check(cudaMemsetAsync(memory.data(), 0, kWorkspaceBytes, stream->get()), "cudaMemsetAsync");
  }
  // As a pass that chooses these.
  void choose(const ChosenTokens& tokens, const std::vector<int32_t>& ids) {
    check(cudaMemcpyAsync(tokens.on_device(), ids.data(), ids.size() * sizeof(int32_t),
                          cudaMemcpyHostToDevice, stream->get()),
          "cudaMemcpyAsync");
  }
  kernels::CudaWorkspace workspace() const { return {memory.data(), kWorkspaceBytes}; }

  std::optional<Stream> stream;  // where there is a device
  DeviceBuffer memory;
};

TEST_F(ChosenTokensCuda, AreTakenInTheOrderInWhichTheyWereSent) {
  ChosenTokens tokens(4);
  choose(tokens, {1, 2, 3, 4});
  tokens.send(4, workspace(), stream->get());
  for (int32_t pass = 0; pass < 5; ++pass) {
    choose(tokens, {10 * pass, -1});
    tokens.send(pass % 3, workspace(), stream->get());
    const ChosenTokens::Taken before = tokens.take();
    EXPECT_EQ(before.fault.code, 0);
    if (pass == 0) {
      EXPECT_THAT(before.tokens, ElementsAre(1, 2, 3, 4));
    } else if (pass % 3 == 1) {
      EXPECT_THAT(before.tokens, IsEmpty());
    } else if (pass % 3 == 2) {
      EXPECT_THAT(before.tokens, ElementsAre(10 * (pass - 1)));
    } else {
      EXPECT_THAT(before.tokens, ElementsAre(10 * (pass - 1), -1));
    }
  }
  EXPECT_THAT(tokens.take().tokens, ElementsAre(40));
}

TEST_F(ChosenTokensCuda, ComeWithTheFaultThatWasThereWhenTheyWereSent) {
  ChosenTokens tokens(1);
  choose(tokens, {7});
  tokens.send(1, workspace(), stream->get());
  const kernels::AttentionFault fault{.code = 1, .sequence = 5, .value = 6, .limit = 4};
  check(cudaMemcpyAsync(memory.data(), &fault, sizeof fault, cudaMemcpyHostToDevice, stream->get()),
        "cudaMemcpyAsync");
  tokens.send(1, workspace(), stream->get());
  EXPECT_EQ(tokens.take().fault.code, 0);
  const ChosenTokens::Taken taken = tokens.take();
  EXPECT_EQ(taken.fault.sequence, 5);
  EXPECT_EQ(taken.fault.limit, 4);
  EXPECT_THAT(taken.tokens, ElementsAre(7));
}

}  // namespace
}  // namespace allot::model::cuda
