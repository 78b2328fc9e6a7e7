// A model over several CUDA devices is the model on one. Skipped with a message where there are fewer than
// two, but for what is refused without one.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "episode/samples.h"
#include "model/collective.h"
#include "model/cuda/device_memory.h"
#include "model/cuda/graph.h"
#include "model/cuda/nccl.h"
#include "model/engine.h"
#include "model/fidelity.h"
#include "model/split_backend.h"
#include "tests/kernels/methods.h"
#include "tests/model/checkpoints.h"
#include "tests/model/cuda/engine_runs.h"
#include "tests/model/generate.h"
#include "tests/model/golden.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using kernels::Estimator;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

// Over 2 devices, and over 4 where there are as many.
class CudaSplit : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (device_count() < GetParam()) GTEST_SKIP() << "needs " << GetParam() << " CUDA devices";
  }
  static EngineOptions over_devices(EngineOptions options = {}) {
    options = on_device(options);
    options.device = "cuda:0-" + std::to_string(GetParam() - 1);
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, CudaSplit, testing::Values(2, 4),
                         [](const auto& one) { return std::to_string(one.param); });

// A trained model of 8 heads over 4 KV heads, and a vocabulary of 99, which no number of devices divides.
std::vector<int32_t> tiny_prompt(uint32_t seed, size_t length) {
  return random_prompt(seed, length);
}
constexpr size_t kTinyLayers = 8;

// What a rank has after collectives on its number plus one, kCount times.
struct RankNumbers {
  std::vector<float> data, gathered;
};
constexpr int64_t kCount = 8192;
constexpr int64_t kManyNumbers = 1'000'000;  // more than devices send each other

// Calls queue(collective, stream, data, gathered) for each rank of a new group, on its device and a thread of
// its own.
template <class Queue>
std::vector<RankNumbers> run_collectives(int ranks, int64_t count, const Queue& queue) {
  std::vector<int> devices(static_cast<size_t>(ranks));
  std::iota(devices.begin(), devices.end(), 0);
  cuda::NcclGroup group(devices);
  RankThreads threads(ranks);
  std::vector<RankNumbers> all(devices.size());
  threads.run(
      [&](int32_t rank) {
        cuda::check(cudaSetDevice(rank), "cudaSetDevice");
        const cuda::Stream stream;
        const std::vector<float> own(count, static_cast<float>(rank + 1));
        const cuda::DeviceBuffer data(count * 4), gathered(ranks * count * 4);
        cuda::check(cudaMemcpyAsync(data.data(), own.data(), count * 4, cudaMemcpyHostToDevice, stream.get()),
                    "copy");
        queue(group.of_rank(rank), stream, data, gathered);
        const auto download = [&](const cuda::DeviceBuffer& from) {
          std::vector<float> to(static_cast<size_t>(from.size()) / 4);
          cuda::check(
              cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDeviceToHost, stream.get()),
              "copy");
          stream.synchronize();
          return to;
        };
        all[rank] = {.data = download(data), .gathered = download(gathered)};
      },
      [&] { group.abort(); });
  return all;
}

std::vector<float> sum_of_ranks(int ranks, int64_t count) {
  return std::vector<float>(static_cast<size_t>(count), static_cast<float>(ranks * (ranks + 1) / 2));
}

TEST_P(CudaSplit, SumsAndGathersOverTheDevices) {
  for (const int64_t count : {kCount, kManyNumbers}) {
    const std::vector<RankNumbers> ranks =
        run_collectives(GetParam(), count,
                        [&](Collective& collective, const cuda::Stream& stream,
                            const cuda::DeviceBuffer& data, const cuda::DeviceBuffer& gathered) {
                          collective.gather(data.data(), gathered.data(), count * 4, stream.get());
                          collective.sum(data.data(), count, kernels::DType::kFloat32, stream.get());
                        });
    for (const RankNumbers& rank : ranks) {
      EXPECT_EQ(rank.data, sum_of_ranks(GetParam(), count));
      for (size_t i = 0; i < rank.gathered.size(); ++i)
        ASSERT_EQ(rank.gathered[i], static_cast<float>(static_cast<int64_t>(i) / count + 1));
    }
  }
}

// Few numbers from device to device, many through a library, in turn.
TEST_P(CudaSplit, SumsOfSeveralSizesFollowEachOther) {
  const std::vector<RankNumbers> ranks = run_collectives(
      GetParam(), kManyNumbers,
      [](Collective& collective, const cuda::Stream& stream, const cuda::DeviceBuffer& data,
         const cuda::DeviceBuffer&) {
        for (const int64_t count : {kCount, kManyNumbers, int64_t{4}, kCount, kCount, int64_t{2}})
          collective.sum(data.data(), count, kernels::DType::kFloat32, stream.get());
      });
  // Each sum after the first has `ranks` equal terms.
  const auto ranks_to = [](double power) { return std::pow(static_cast<double>(GetParam()), power); };
  const double first = GetParam() * (GetParam() + 1) / 2.0;
  for (const RankNumbers& rank : ranks) {
    EXPECT_EQ(rank.data[0], first * ranks_to(5));
    EXPECT_EQ(rank.data[3], first * ranks_to(4));
    EXPECT_EQ(rank.data[kCount - 1], first * ranks_to(3));
    EXPECT_EQ(rank.data[kCount], first);
    EXPECT_EQ(rank.data.back(), first);
  }
}

// As where a cache is filled at random: no prompt's pass comes before the graph of a decode step.
TEST_P(CudaSplit, TheFirstCollectivesMayBeWithinACapture) {
  const std::vector<RankNumbers> ranks =
      run_collectives(GetParam(), kCount,
                      [](Collective& collective, const cuda::Stream& stream, const cuda::DeviceBuffer& data,
                         const cuda::DeviceBuffer& gathered) {
                        const cuda::Graph graph = cuda::Graph::capture(stream.get(), [&] {
                          collective.sum(data.data(), kCount, kernels::DType::kFloat32, stream.get());
                          collective.gather(data.data(), gathered.data(), kCount * 4, stream.get());
                        });
                        graph.launch(stream.get());
                        stream.synchronize();
                      });
  for (const RankNumbers& rank : ranks)
    EXPECT_EQ(rank.gathered, sum_of_ranks(GetParam(), GetParam() * kCount));
}

// Both round sums at other places than one device does, so the distance to exact logits is the measure.
TEST_P(CudaSplit, LogitsAreAsNearToExactOnesAsThoseOfOneDevice) {
  EngineOptions exact = on_cpu();
  exact.dtype = kernels::DType::kFloat32;
  const std::vector<int32_t> ids = tiny_prompt(3, 333);  // more rows than logits are computed of at once
  const std::vector<float> expected = Engine(kTinyGsm, exact).logits(ids, {}, kKey, 0);
  const double noise =
      root_mean_square_difference(Engine(kTinyGsm, on_device()).logits(ids, {}, kKey, 0), expected);
  Engine split(kTinyGsm, over_devices());
  EXPECT_LE(root_mean_square_difference(split.logits(ids, {}, kKey, 0), expected), 1.5 * noise);
  EXPECT_GT(noise, 0);
}

// Every estimator, and every way to draw scores.
std::vector<kernels::AttentionMethod> drawing_methods() {
  std::vector<kernels::AttentionMethod> methods;
  for (const kernels::AttentionMethod& method : kernels::testing::every_method()) {
    const bool exact_scores = method.score_stage == kernels::ScoreStage::kExact;
    const bool draws = method.estimator != Estimator::kPooled && method.estimator != Estimator::kExact &&
                       method.estimator != Estimator::kTopk;
    if (draws && (exact_scores || method.estimator == Estimator::kSys)) methods.push_back(method);
  }
  return methods;
}

// The first layer alone samples: what rounding makes of its input, which is the same, moves few draws. Logits
// of one device and of several are near then, those of other draws far.
TEST_P(CudaSplit, DrawsAreThoseOfOneDevice) {
  for (const kernels::AttentionMethod& method : drawing_methods()) {
    EngineOptions options;
    options.attention = method;
    const std::vector<int32_t> ids = tiny_prompt(4, 120);
    std::vector<int32_t> samples(kTinyLayers, kExactLayer);
    samples[0] = 8;
    Engine one(kTinyGsm, on_device(options));
    const std::vector<float> expected = one.logits(ids, samples, kKey, 5);
    const std::vector<float> others = one.logits(ids, samples, kOtherKey, 5);
    const std::vector<float> logits = Engine(kTinyGsm, over_devices(options)).logits(ids, samples, kKey, 5);
    const double same = root_mean_square_difference(logits, expected);
    const double far = root_mean_square_difference(others, expected);
    EXPECT_LT(same, 0.1 * far) << kernels::describe(method);  // 0.02 to 0.035 on H100s
  }
}

// Prompts in pieces, steps of several sizes, sequences that come and go.
TEST_P(CudaSplit, ChoosesTokensThatAreBestByTheCpu) {
  const EngineOptions options{.max_sequences = 24, .prefill_chunk_tokens = 64};
  Engine split(kTinyGsm, over_devices(options));
  EngineOptions exact = on_cpu();
  exact.dtype = kernels::DType::kFloat32;
  Engine judge(kTinyGsm, exact);
  const std::vector<GenerationRequest> requests = ragged_requests(41, 90, 30);
  const auto tokens = run(split, requests);
  const int32_t vocabulary = judge.config().vocab_size;
  double noise = 0, largest = 0;
  {
    const std::vector<int32_t> ids = tiny_prompt(3, 90);
    noise = root_mean_square_difference(Engine(kTinyGsm, on_device()).logits(ids, {}, kKey, 0),
                                        judge.logits(ids, {}, kKey, 0));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_THAT(tokens[i], SizeIs(30));
    std::vector<int32_t> ids = requests[i].prompt;
    ids.insert(ids.end(), tokens[i].begin(), tokens[i].end());
    const std::vector<float> logits = judge.logits(ids, {}, kKey, 0);
    for (size_t t = 0; t < tokens[i].size(); ++t) {
      const auto row = logits.begin() + static_cast<int64_t>(requests[i].prompt.size() - 1 + t) * vocabulary;
      largest = std::max<double>(largest, *std::max_element(row, row + vocabulary) - row[tokens[i][t]]);
    }
  }
  EXPECT_LE(largest, tie(noise));
}

// Sampled attention, sampled tokens, penalties: the same engine gives the same tokens again, and all devices
// agree on them (take() checks).
TEST_P(CudaSplit, RepeatsItsTokens) {
  EngineOptions options;
  options.attention = {.estimator = Estimator::kJoint};
  Engine split(kTinyGsm, over_devices(options));
  std::vector<GenerationRequest> requests = ragged_requests(17, 90, 30);
  for (GenerationRequest& request : requests) {
    request.samples.assign(kTinyLayers, 6);
    request.samples[0] = kExactLayer;
    request.sampling = {.temperature = 1, .top_p = 0.95, .repetition_penalty = 1.1};
  }
  const auto first = run(split, requests);
  EXPECT_EQ(run(split, requests), first);
}

TEST_P(CudaSplit, HasTheFidelityAndTheValueRowsOfOneDevice) {
  const kernels::AttentionMethod method{.estimator = Estimator::kSys};
  std::vector<FidelityText> texts;
  std::vector<FidelityPair> pairs;
  for (uint32_t i = 0; i < 12; ++i) {
    texts.push_back({.ids = tiny_prompt(i, 100 + 30 * i), .prompt_tokens = 20, .key = kKey, .question = i});
    pairs.push_back({.text = i, .samples = std::vector<int32_t>(kTinyLayers, 10), .attention = method});
  }
  const FidelityOptions options{.mode = FidelityMode::kReply, .count_rows = true};
  const auto expected = Engine(kTinyGsm, on_device()).fidelity(texts, pairs, options);
  const auto results = Engine(kTinyGsm, over_devices()).fidelity(texts, pairs, options);
  double divergence = 0, of_one = 0, rows = 0, rows_of_one = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    divergence += results[i].divergence;
    of_one += expected[i].divergence;
    rows += static_cast<double>(results[i].rows_read);
    rows_of_one += static_cast<double>(expected[i].rows_read);
  }
  EXPECT_NEAR(divergence, of_one, 0.1 * of_one);
  EXPECT_NEAR(rows, rows_of_one, 0.01 * rows_of_one);
}

TEST_P(CudaSplit, OfRandomWeightsIsTheSameModel) {
  EngineOptions options;
  options.random_weights = 7;
  const std::vector<int32_t> ids = tiny_prompt(3, 90);
  EngineOptions exact = on_cpu(options);
  exact.dtype = kernels::DType::kFloat32;
  const std::vector<float> expected = Engine(kTinyGsm, exact).logits(ids, {}, kKey, 0);
  const double noise =
      root_mean_square_difference(Engine(kTinyGsm, on_device(options)).logits(ids, {}, kKey, 0), expected);
  EXPECT_LE(
      root_mean_square_difference(Engine(kTinyGsm, over_devices(options)).logits(ids, {}, kKey, 0), expected),
      1.5 * noise);
}

// Without a device: the numbers are looked at first.
TEST(CudaSplitRefusals, NameTheNumbers) {
  EngineOptions options = on_device();
  options.device = "cuda:0-1";
  EXPECT_THAT([&] { Engine(kDeviceModel, options); },
              ThrowsMessage<Unsupported>(Names("2 devices", "1 KV heads")));
}

}  // namespace
}  // namespace allot::model
