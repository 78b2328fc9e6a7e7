// What slots have seen, told to the device together.
#include "model/cuda/seen_tokens.h"

#include <cuda_runtime.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "kernels/token_sampler_cuda.h"
#include "tests/kernels/cuda/cuda_launch.h"

namespace allot::model::cuda {
namespace {

constexpr int32_t kSlots = 4;
constexpr int32_t kVocab = 100;

class SeenTokensCuda : public kernels::testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) stream.emplace();
  }
  std::vector<std::set<int32_t>> ids_of(const SeenTokens& seen) {
    const int64_t words = kernels::seen_words(kVocab);
    std::vector<uint32_t> bits(kSlots * words);
    check(cudaMemcpyAsync(bits.data(), seen.data(), bits.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost,
                          stream->get()),
          "cudaMemcpyAsync");
    stream->synchronize();
    std::vector<std::set<int32_t>> ids(kSlots);
    for (int32_t slot = 0; slot < kSlots; ++slot)
      for (int32_t id = 0; id < 32 * words; ++id)
        if ((bits[slot * words + id / 32] >> (id % 32) & 1) != 0) ids[slot].insert(id);
    return ids;
  }
  void queue(SeenTokens& seen) { seen.queue(kernels::testing::gpu_limits(), stream->get()); }

  using Sets = std::vector<std::set<int32_t>>;
  std::optional<Stream> stream;  // where there is a device
};

TEST_F(SeenTokensCuda, BeginWithThePromptsOfTheSlotsOpened) {
  SeenTokens seen(kSlots, kVocab, stream->get());
  EXPECT_EQ(ids_of(seen), Sets(kSlots));
  seen.open(2, std::vector<int32_t>{0, 99, 31, 99});
  seen.open(0, std::vector<int32_t>{32});
  EXPECT_EQ(ids_of(seen), Sets(kSlots)) << "the device was told before queue()";
  queue(seen);
  EXPECT_EQ(ids_of(seen), (Sets{{32}, {}, {0, 31, 99}, {}}));
}

TEST_F(SeenTokensCuda, AreForgottenWhereASlotIsOpenedAgainAndKeptElsewhere) {
  SeenTokens seen(kSlots, kVocab, stream->get());
  seen.open(1, std::vector<int32_t>{4});
  seen.open(3, std::vector<int32_t>{5});
  queue(seen);
  // Opened twice before a pass: the first sequence never ran.
  seen.open(1, std::vector<int32_t>{50, 51});
  seen.open(1, std::vector<int32_t>{60});
  queue(seen);
  queue(seen);
  EXPECT_EQ(ids_of(seen), (Sets{{}, {60}, {}, {5}}));
}

// One behind the other without waiting, with staging memory that has to grow.
TEST_F(SeenTokensCuda, ArriveWhateverIsQueuedBehindThem) {
  SeenTokens seen(kSlots, kVocab, stream->get());
  Sets expected(kSlots);
  for (int32_t round = 0; round < 50; ++round) {
    const int32_t slot = round % kSlots;
    std::vector<int32_t> prompt(1 + 40 * round, round);
    seen.open(slot, prompt);
    queue(seen);
    expected[slot] = {round};
  }
  EXPECT_EQ(ids_of(seen), expected);
}

}  // namespace
}  // namespace allot::model::cuda
