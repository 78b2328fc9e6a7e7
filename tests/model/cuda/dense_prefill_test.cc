// LibTorch's FlashAttention over keys gathered from pages, against the reference in double precision and
// against the exact kernel of kernels/. Skipped with a message where there is no GPU or no CUDA part of
// LibTorch.
#include "model/cuda/dense_prefill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/rows_cuda.h"
#include "tests/kernels/cuda/cuda_launch.h"
#include "tests/kernels/cuda/oracle.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::model::cuda {
namespace {

using kernels::DType;
using kernels::testing::Comparison;
using kernels::testing::Elements;
using kernels::testing::gpu_limits;
using kernels::testing::GuardedArray;
using kernels::testing::Launch;
using kernels::testing::LaunchSpec;
using kernels::testing::require;
using ::testing::AnyOf;

class DensePrefillCuda : public kernels::testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    try {
      prefill_ = DensePrefill::load(0);
    } catch (const NotFound& error) {
      GTEST_SKIP() << error.what();
    }
  }

  std::unique_ptr<DensePrefill> prefill_;
};

class TestStream {
 public:
  TestStream() { require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }
  ~TestStream() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  TestStream(const TestStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// A Launch's pages on the device, gathered and attended on a stream of its own; every array lies between
// guard bands.
class FlashLaunch {
 public:
  FlashLaunch(const DensePrefill& prefill, const Launch& launch)
      : prefill_(prefill),
        p_(launch.params),
        cum_queries_(starts(p_.batch, [&](int64_t b) { return p_.query_start[b + 1] - p_.query_start[b]; })),
        cum_keys_(starts(p_.batch, [&](int64_t b) { return p_.lengths[b]; })),
        query_(((tokens() - 1) * p_.query_stride + width()) * element(), 16),
        key_pages_(cache_bytes(), 16),
        value_pages_(cache_bytes(), 16),
        page_table_(static_cast<size_t>(p_.batch * p_.max_pages) * sizeof(int32_t), sizeof(int32_t)),
        device_cum_queries_(cum_queries_.size() * sizeof(int32_t), sizeof(int32_t)),
        device_cum_keys_(cum_keys_.size() * sizeof(int32_t), sizeof(int32_t)),
        keys_(packed_bytes(), 16),
        values_(packed_bytes(), 16),
        out_(static_cast<size_t>(tokens() * width()) * element(), 16) {
    query_.upload(p_.query, stream_.get());
    key_pages_.upload(p_.key_pages, stream_.get());
    value_pages_.upload(p_.value_pages, stream_.get());
    page_table_.upload(p_.page_table, stream_.get());
    device_cum_queries_.upload(cum_queries_.data(), stream_.get());
    device_cum_keys_.upload(cum_keys_.data(), stream_.get());
    keys_.fill(0xFF, stream_.get());
    values_.fill(0xFF, stream_.get());
    out_.fill(0xFF, stream_.get());
    kernels::gather_cache_cuda({.sequences = p_.batch,
                                .total_keys = cum_keys_.back(),
                                .num_kv_heads = p_.num_kv_heads,
                                .head_dim = p_.head_dim,
                                .page_size = p_.page_size,
                                .max_pages = p_.max_pages,
                                .num_pages = p_.num_pages,
                                .dtype = p_.dtype,
                                .key_pages = key_pages_.data(),
                                .value_pages = value_pages_.data(),
                                .page_table = static_cast<const int32_t*>(page_table_.data()),
                                .cum_keys = static_cast<const int32_t*>(device_cum_keys_.data()),
                                .keys = keys_.data(),
                                .values = values_.data()},
                               gpu_limits(), stream_.get());
    require(cudaStreamSynchronize(stream_.get()), "gather_cache");
  }

  cudaStream_t stream() const { return stream_.get(); }
  GuardedArray& query() { return query_; }
  GuardedArray& out() { return out_; }

  // `slack` is added to the bounds of queries and keys.
  void queue(int32_t slack = 0) {
    DensePrefillParams params{.sequences = p_.batch,
                              .tokens = tokens(),
                              .total_keys = cum_keys_.back(),
                              .max_queries = largest_step(cum_queries_),
                              .max_keys = largest_step(cum_keys_),
                              .num_q_heads = p_.num_q_heads,
                              .num_kv_heads = p_.num_kv_heads,
                              .head_dim = p_.head_dim,
                              .dtype = p_.dtype,
                              .scale = p_.scale,
                              .query = query_.data(),
                              .query_stride = p_.query_stride,
                              .keys = keys_.data(),
                              .values = values_.data(),
                              .cum_queries = static_cast<const int32_t*>(device_cum_queries_.data()),
                              .cum_keys = static_cast<const int32_t*>(device_cum_keys_.data()),
                              .out = out_.data()};
    params.max_queries += slack;
    params.max_keys += slack;
    prefill_.attend(params, stream_.get());
  }

  // [tokens, num_q_heads, head_dim]; fails the test when a guard byte changed.
  std::vector<double> output() {
    const Elements elements(p_.dtype, out_.download(stream_.get()));
    query_.expect_guards("query", stream_.get());
    keys_.expect_guards("keys", stream_.get());
    values_.expect_guards("values", stream_.get());
    out_.expect_guards("out", stream_.get());
    std::vector<double> result;
    for (int64_t i = 0; i < elements.count(); ++i) result.push_back(elements.get(i));
    return result;
  }

 private:
  template <class Count>
  static std::vector<int32_t> starts(int64_t batch, const Count& count) {
    std::vector<int32_t> result = {0};
    for (int64_t b = 0; b < batch; ++b) result.push_back(result.back() + static_cast<int32_t>(count(b)));
    return result;
  }
  static int32_t largest_step(const std::vector<int32_t>& cumulated) {
    int32_t largest = 0;
    for (size_t i = 1; i < cumulated.size(); ++i)
      largest = std::max(largest, cumulated[i] - cumulated[i - 1]);
    return largest;
  }
  int64_t tokens() const { return cum_queries_.back(); }
  int64_t width() const { return int64_t{p_.num_q_heads} * p_.head_dim; }
  size_t element() const { return static_cast<size_t>(kernels::size_of(p_.dtype)); }
  size_t cache_bytes() const {
    return static_cast<size_t>(p_.num_pages * p_.num_kv_heads * p_.page_size * p_.head_dim) * element();
  }
  size_t packed_bytes() const {
    return static_cast<size_t>(int64_t{cum_keys_.back()} * p_.num_kv_heads * p_.head_dim) * element();
  }

  const DensePrefill& prefill_;
  const kernels::AttentionParams& p_;
  TestStream stream_;
  std::vector<int32_t> cum_queries_, cum_keys_;
  GuardedArray query_, key_pages_, value_pages_, page_table_, device_cum_queries_, device_cum_keys_, keys_,
      values_, out_;
};

// New prompts, chunks that continue one, single tokens, a sequence without new ones.
LaunchSpec ragged(int32_t num_q_heads, int32_t num_kv_heads, int32_t head_dim, int32_t page_size,
                  DType dtype) {
  return {.sequences = {{1, 1},
                        {2, 2},
                        {17, 17},
                        {64, 300},
                        {65, 65},
                        {1, 129},
                        {0, 40},
                        {130, 200},
                        {9, 97},
                        {128, 513},
                        {200, 200}},
          .num_q_heads = num_q_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = head_dim,
          .page_size = page_size,
          .dtype = dtype,
          .seed = static_cast<uint32_t>(head_dim + num_q_heads)};
}

// Root of the mean squared difference over the root of the mean square.
double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, square = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    square += b[i] * b[i];
  }
  return std::sqrt(difference / square);
}

TEST_F(DensePrefillCuda, OfRaggedChunksFollowsTheReferenceAndTheExactKernel) {
  struct Shape {
    int32_t num_q_heads, num_kv_heads, head_dim, page_size;
  };
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const Shape& shape : {Shape{2, 2, 64, 16}, Shape{8, 2, 64, 32}, Shape{7, 1, 64, 128},
                               Shape{2, 2, 128, 32}, Shape{8, 2, 128, 128}, Shape{14, 2, 128, 16}}) {
      const std::string where = std::string(name(dtype)) + ", " + std::to_string(shape.num_q_heads) + " on " +
                                std::to_string(shape.num_kv_heads) + " heads of " +
                                std::to_string(shape.head_dim);
      Launch launch(ragged(shape.num_q_heads, shape.num_kv_heads, shape.head_dim, shape.page_size, dtype));
      FlashLaunch flash(*prefill_, launch);
      flash.queue();
      const std::vector<double> result = flash.output();
      kernels::testing::expect_near_plain(kernels::testing::compare(launch.params, result), 0, where);
      const std::vector<double> exact = kernels::testing::run_cuda(launch);
      ASSERT_EQ(result.size(), exact.size());
      // Both round the weights of the values and the output once.
      EXPECT_LE(relative_difference(result, exact), dtype == DType::kBFloat16 ? 0.01 : 0.00125) << where;
    }
  }
}

TEST_F(DensePrefillCuda, OfOneQueryASequenceFollowsTheReference) {
  Launch launch({.sequences = {{1, 1}, {1, 64}, {1, 257}, {0, 3}},
                 .num_q_heads = 8,
                 .num_kv_heads = 2,
                 .head_dim = 128,
                 .dtype = DType::kBFloat16});
  FlashLaunch flash(*prefill_, launch);
  flash.queue();
  kernels::testing::expect_near_plain(kernels::testing::compare(launch.params, flash.output()), 0, "");
}

TEST_F(DensePrefillCuda, DoesNotDependOnHowLooseTheBoundsAre) {
  Launch launch(ragged(8, 2, 128, 16, DType::kBFloat16));
  FlashLaunch flash(*prefill_, launch);
  flash.queue();
  const std::vector<unsigned char> tight = flash.out().download(flash.stream());
  flash.out().fill(0xFF, flash.stream());
  flash.queue(100);
  EXPECT_EQ(flash.out().download(flash.stream()), tight);
}

// On any other stream attention would begin while the query is still NaN, or end after it is NaN again.
TEST_F(DensePrefillCuda, KeepsToTheOrderOfItsStream) {
  Launch first_launch(ragged(8, 2, 128, 16, DType::kBFloat16));
  Launch second_launch(ragged(7, 1, 64, 32, DType::kFloat16));
  FlashLaunch first(*prefill_, first_launch), second(*prefill_, second_launch);
  constexpr size_t kDelayBytes = size_t{256} << 20;  // written 50 times, it keeps the stream busy
  const GuardedArray delay(kDelayBytes, 256);
  for (FlashLaunch* const flash : {&first, &second, &first}) {
    flash->queue();
    const std::vector<unsigned char> expected = flash->out().download(flash->stream());
    const GuardedArray copy(flash->query().bytes(), 16);
    const auto copy_query = [&](void* to, const void* from) {
      require(cudaMemcpyAsync(to, from, copy.bytes(), cudaMemcpyDeviceToDevice, flash->stream()),
              "cudaMemcpyAsync");
    };
    copy_query(copy.data(), flash->query().data());
    flash->query().fill(0xFF, flash->stream());
    flash->out().fill(0xFF, flash->stream());
    require(cudaStreamSynchronize(flash->stream()), "cudaStreamSynchronize");
    for (int i = 0; i < 50; ++i) {
      require(cudaMemsetAsync(delay.data(), i, delay.bytes(), flash->stream()), "cudaMemsetAsync");
    }
    copy_query(flash->query().data(), copy.data());
    flash->queue();
    const std::vector<unsigned char> result = flash->out().download(flash->stream());
    EXPECT_EQ(result, expected);
  }
  prefill_->release_memory();
  first.queue();
  (void)first.output();
}

DensePrefillParams params() {
  const auto address = [](uintptr_t value) { return reinterpret_cast<void*>(value); };
  const auto integers = [](uintptr_t value) { return reinterpret_cast<const int32_t*>(value); };
  return {.sequences = 2,
          .tokens = 30,
          .total_keys = 50,
          .max_queries = 20,
          .max_keys = 40,
          .num_q_heads = 8,
          .num_kv_heads = 2,
          .head_dim = 128,
          .scale = 0.1f,
          .query = address(0x1000),
          .query_stride = 1536,
          .keys = address(0x2000),
          .values = address(0x3000),
          .cum_queries = integers(0x4004),
          .cum_keys = integers(0x5004),
          .out = address(0x6000)};
}

TEST(DensePrefill, RefusesWhatItCannotDoWithTheValues) {
  const auto refused = [](const auto& change) {
    DensePrefillParams p = params();
    change(p);
    return message_of<Error>([&] { validate(p); });
  };
  EXPECT_EQ(refused([](DensePrefillParams&) {}), "nothing was thrown");
  EXPECT_THAT(refused([](DensePrefillParams& p) { p.dtype = DType::kFloat32; }),
              Names("dtype", "float32", "bfloat16", "float16"));
  EXPECT_THAT(refused([](DensePrefillParams& p) { p.head_dim = 100; }), Names("head_dim", 100, 8, 8, 256));
  EXPECT_THAT(refused([](DensePrefillParams& p) { p.sequences = 0; }), Names("sequences", 0, 1, 2147483646));
  EXPECT_THAT(refused([](DensePrefillParams& p) { p.total_keys = 29; }),
              Names("total_keys", 29, 30, 2147483647));
  EXPECT_THAT(refused([](DensePrefillParams& p) { p.max_queries = 14; }), Names("max_queries", 14, 15, 30));
  EXPECT_THAT(refused([](DensePrefillParams& p) { p.max_keys = 51; }), Names("max_keys", 51, 20, 50));
  EXPECT_THAT(refused([](DensePrefillParams& p) { p.max_keys = 19; }), Names("max_keys", 19, 20, 50));
  EXPECT_THAT(refused([](DensePrefillParams& p) { p.num_kv_heads = 3; }),
              Names("num_q_heads", 8, "num_kv_heads", 3));
  EXPECT_THAT(refused([](DensePrefillParams& p) { p.query_stride = 1020; }),
              Names("query_stride", 1020, 8, "num_q_heads", "head_dim", 1024));
  EXPECT_THAT(refused([](DensePrefillParams& p) { p.query_stride = 1028; }),
              Names("query_stride", 1028, 8, "num_q_heads", "head_dim", 1024));
  EXPECT_THAT(refused([](DensePrefillParams& p) { p.out = nullptr; }), Names("out", "null"));
  EXPECT_THAT(refused([](DensePrefillParams& p) { p.keys = reinterpret_cast<const void*>(0x2008); }),
              Names("keys", 8200, 16));
}

TEST(DensePrefill, NamesTheLibraryOrTheDeviceThatIsMissing) {
  EXPECT_THAT(message_of<Error>([] { (void)DensePrefill::load(1000); }),
              AnyOf(Names("libtorch_cuda.so"), Names("device 1000")));
}

}  // namespace
}  // namespace allot::model::cuda
