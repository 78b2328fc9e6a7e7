// Sums over ranks that are streams of one GPU: what travels between GPUs travels through its memory here.
#include "kernels/peer_sum_cuda.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "captured_graph.h"
#include "kernels/rows_cuda.h"
#include "rows_cuda.h"

namespace allot::kernels {
namespace {

using testing::CapturedGraph;
using testing::Elements;
using testing::gpu_limits;
using testing::GuardedArray;
using testing::kAll;
using testing::random_elements;
using testing::require;
using testing::tolerance;

class PeerSumCuda : public testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    require(cudaMallocHost(reinterpret_cast<void**>(&stop_), sizeof(uint32_t)), "cudaMallocHost");
    *stop_ = 0;
  }
  // Ranks with mailboxes in which nothing was ever sent.
  void make_ranks(int32_t ranks) {
    ranks_.clear();
    for (int32_t r = 0; r < ranks; ++r) ranks_.push_back(std::make_unique<Rank>());
  }
  void TearDown() override {
    ranks_.clear();
    if (stop_ != nullptr) require(cudaFreeHost(stop_), "cudaFreeHost");
  }

  PeerSumParams of_rank(int32_t rank) const {
    PeerSumParams p = {.rank = rank, .ranks = static_cast<int32_t>(ranks_.size()), .stop = stop_};
    for (size_t r = 0; r < ranks_.size(); ++r) p.mailboxes[r] = ranks_[r]->mailbox;
    return p;
  }
  PeerSumParams params(int32_t rank, int64_t count, DType dtype, void* data) const {
    PeerSumParams p = of_rank(rank);
    p.count = count;
    p.dtype = dtype;
    p.data = data;
    return p;
  }

  struct Rank {
    Rank() {
      require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
      require(cudaMalloc(&mailbox, kPeerMailboxBytes), "a mailbox");
      require(cudaMemsetAsync(mailbox, 0, kPeerMailboxBytes, stream), "cudaMemsetAsync");
      require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    }
    ~Rank() {
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      EXPECT_EQ(cudaFree(mailbox), cudaSuccess);
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    }
    cudaStream_t stream = nullptr;
    void* mailbox = nullptr;
  };
  std::vector<std::unique_ptr<Rank>> ranks_;
  uint32_t* stop_ = nullptr;

  std::unique_ptr<GuardedArray> put(const Elements& elements, size_t rank) const {
    auto array = std::make_unique<GuardedArray>(elements.bytes().size(), 8);
    array->upload(elements.bytes().data(), ranks_[rank]->stream);
    // Nobody's copy waits behind a kernel that waits for somebody.
    require(cudaStreamSynchronize(ranks_[rank]->stream), "upload");
    return array;
  }

  // Sums rows and norms them, and compares with a sum and a norm in two kernels.
  void expect_norms(int64_t rows, int32_t width, DType dtype, uint32_t seed) {
    const Elements residual = random_elements(dtype, rows * width, seed),
                   weight = random_elements(dtype, width, seed + 1);
    struct Arrays {
      std::unique_ptr<GuardedArray> input, residual, weight;
    };
    const auto arrays_of = [&](size_t r) {
      return Arrays{put(random_elements(dtype, rows * width, seed + 2 + static_cast<uint32_t>(r)), r),
                    put(residual, r), put(weight, r)};
    };
    const auto norm_of = [&](const Arrays& arrays) {
      return RmsNormParams{.rows = rows,
                           .width = width,
                           .dtype = dtype,
                           .epsilon = 1e-5f,
                           .input = arrays.input->data(),
                           .residual = arrays.residual->data(),
                           .weight = arrays.weight->data(),
                           .out = arrays.input->data()};
    };
    std::vector<Arrays> together, apart;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      together.push_back(arrays_of(r));
      apart.push_back(arrays_of(r));
    }
    // In this order, because a kernel that runs for the first time is loaded, which may wait for those that
    // run.
    const auto each_rank = [&](const auto& queue) {
      for (size_t r = 0; r < ranks_.size(); ++r) queue(r, static_cast<int32_t>(r), ranks_[r]->stream);
    };
    each_rank([&](size_t r, int32_t rank, cudaStream_t stream) {
      peer_sum_norm_cuda(of_rank(rank), norm_of(together[r]), gpu_limits(), stream);
    });
    each_rank([&](size_t r, int32_t rank, cudaStream_t stream) {
      peer_sum_cuda(params(rank, rows * width, dtype, apart[r].input->data()), gpu_limits(), stream);
    });
    each_rank([&](size_t r, int32_t, cudaStream_t stream) {
      rms_norm_cuda(norm_of(apart[r]), gpu_limits(), stream);
    });
    const std::vector<unsigned char> first = together[0].input->download(ranks_[0]->stream);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const cudaStream_t stream = ranks_[r]->stream;
      EXPECT_EQ(together[r].input->download(stream), first) << "rank " << r << " has other bits";
      EXPECT_EQ(together[r].residual->download(stream), apart[r].residual->download(stream));
      const Elements out(dtype, together[r].input->download(stream)),
          expected(dtype, apart[r].input->download(stream));
      for (int64_t i = 0; i < out.count(); ++i)
        ASSERT_NEAR(out.get(i), expected.get(i), tolerance(dtype, 2 * expected.get(i)))
            << "number " << i << " of rank " << r;
      for (const auto& array : {&together[r].input, &together[r].residual, &together[r].weight})
        (*array)->expect_guards("a rank's rows", stream);
    }
  }

  // Sums `count` numbers and compares with float32 sums in the order of the ranks. `seed` makes the numbers.
  void expect_sums(int64_t count, DType dtype, uint32_t seed) {
    std::vector<Elements> numbers;
    std::vector<std::unique_ptr<GuardedArray>> arrays;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      numbers.push_back(random_elements(dtype, count, seed + static_cast<uint32_t>(r)));
      arrays.push_back(put(numbers.back(), r));
    }
    for (size_t r = 0; r < ranks_.size(); ++r)
      peer_sum_cuda(params(static_cast<int32_t>(r), count, dtype, arrays[r]->data()), gpu_limits(),
                    ranks_[r]->stream);
    Elements expected(dtype, count, 0);
    for (int64_t i = 0; i < count; ++i) {
      float sum = 0;
      for (const Elements& of_rank : numbers) sum += of_rank.get(i);
      expected.set(i, sum);
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Elements sums(dtype, arrays[r]->download(ranks_[r]->stream));
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(sums.get(i), expected.get(i)) << "number " << i << " of rank " << r;
      arrays[r]->expect_guards("a rank's numbers", ranks_[r]->stream);
    }
  }
};

// One after the other, so that sums of other sizes have left their marks in the mailboxes.
TEST_F(PeerSumCuda, AreThoseOfAllRanksWhateverWasSummedBefore) {
  for (const int32_t ranks : {2, 4}) {
    make_ranks(ranks);
    uint32_t seed = 1;
    for (const DType dtype : kAll) {
      const auto most = most_peer_sum_bytes(ranks) / static_cast<int64_t>(size_of(dtype));
      for (const int64_t count :
           {int64_t{4}, most, int64_t{8192}, int64_t{8}, int64_t{8192}, most - 4, int64_t{1028}}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(count) + " of " +
                     std::string(name(dtype)));
        expect_sums(count, dtype, seed += 10);
      }
    }
  }
}

TEST_F(PeerSumCuda, NormedInTheSameKernelAreAsInTwo) {
  if (gpu_limits().compute_capability < 90) GTEST_SKIP() << "clusters need compute capability 9.0";
  for (const int32_t ranks : {2, 4}) {
    make_ranks(ranks);
    uint32_t seed = 100;
    for (const DType dtype : kAll) {
      // One block a row, three, eight; rows that end within a block; as many rows as there is room for.
      const auto elements = static_cast<int32_t>(8 / size_of(dtype));
      for (const auto& [rows, chunks] :
           {std::pair{1, 256}, {5, 8}, {3, 700}, {1, 2048}, {2, 2000}, {64 / ranks, 1024}}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(rows) + " rows of " +
                     std::to_string(chunks * elements) + " " + std::string(name(dtype)));
        expect_norms(rows, chunks * elements, dtype, seed += 10);
        expect_sums(elements * 300, dtype, seed += 10);
      }
    }
  }
}

TEST_F(PeerSumCuda, OfACapturedGraphAreSummedAnewEveryTime) {
  constexpr int64_t kCount = 2048;
  constexpr int kTimes = 7;
  make_ranks(2);
  std::vector<std::unique_ptr<GuardedArray>> arrays;
  std::vector<std::unique_ptr<CapturedGraph>> graphs;
  for (int32_t r = 0; r < 2; ++r) {
    arrays.push_back(put(Elements(DType::kFloat32, kCount, 1), static_cast<size_t>(r)));
    graphs.push_back(std::make_unique<CapturedGraph>(ranks_[r]->stream, [&] {
      peer_sum_cuda(params(r, kCount, DType::kFloat32, arrays[r]->data()), gpu_limits(), ranks_[r]->stream);
    }));
  }
  for (int i = 0; i < kTimes; ++i) {
    for (const auto& graph : graphs) graph->launch();
  }
  for (int32_t r = 0; r < 2; ++r) {
    const Elements sums(DType::kFloat32, arrays[r]->download(ranks_[r]->stream));
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(sums.get(i), 1 << kTimes) << "rank " << r;
  }
}

TEST_F(PeerSumCuda, EndWhereARankIsMissingWhenTheHostSaysSo) {
  make_ranks(2);
  GuardedArray numbers(1024, 8);
  peer_sum_cuda(params(0, 256, DType::kFloat32, numbers.data()), gpu_limits(), ranks_[0]->stream);
  EXPECT_EQ(cudaStreamQuery(ranks_[0]->stream), cudaErrorNotReady);
  std::atomic_ref(*stop_).store(1);
  EXPECT_EQ(cudaStreamSynchronize(ranks_[0]->stream), cudaSuccess);
}

}  // namespace
}  // namespace allot::kernels
