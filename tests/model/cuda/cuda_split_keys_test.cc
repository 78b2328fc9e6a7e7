// The engine on a CUDA device with split keys: exact attention over the keys that it restores, sampling by
// their planes, and both in one layer. Skipped with a message where there is no GPU, but for what is refused
// without one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "episode/samples.h"
#include "kernels/estimator.h"
#include "kernels/key_format.h"
#include "model/engine.h"
#include "model/fidelity.h"
#include "tests/model/cuda/engine_runs.h"
#include "tests/model/golden.h"
#include "tests/model/reference_decoder.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using kernels::Estimator;
using kernels::KeyFormat;

// Of an engine whose default estimator has kernels for split keys.
EngineOptions with_keys(KeyFormat keys, EngineOptions options = {}) {
  options.keys = keys;
  return on_device(options);
}

// --- Exact attention

class CudaSplitParity : public CudaEngine, public testing::WithParamInterface<const char*> {
 protected:
  std::filesystem::path directory() const { return kCheckpoints / GetParam(); }
  const Golden golden = read_golden(directory());
  const double noise = rounding_noise(golden);
};
INSTANTIATE_TEST_SUITE_P(Checkpoints, CudaSplitParity,
                         testing::Values("llama_head64", "qwen2_head64_group7", "qwen3_head128",
                                         "mistral_head64_group1"),
                         [](const auto& checkpoint) { return std::string(checkpoint.param); });

// The same criterion as over 16-bit keys: what splitting leaves of a key is nearer than bfloat16's rounding.
TEST_P(CudaSplitParity, ExactLogitsAreAsCloseToFloat32AsThoseOfTransformers) {
  for (const int32_t page : {16, 48}) {
    for (const int32_t chunk : {2048, 37}) {
      Engine engine(directory(),
                    with_keys(KeyFormat::kSplit, {.page_size = page, .prefill_chunk_tokens = chunk}));
      EXPECT_LT(root_mean_square_difference(engine.logits(golden.ids, {}, {}, 0), golden.logits), 2 * noise)
          << "chunks of " << chunk << ", pages of " << page;
    }
  }
}

TEST_P(CudaSplitParity, GreedyTokensAreBestByTheLogitsOfTheCpu) {
  Engine device(directory(), with_keys(KeyFormat::kSplit)), cpu(directory(), on_cpu());
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < golden.prompts.size(); ++i) requests.push_back(request_of(i, golden.prompts[i], 64));
  const auto tokens = run(device, requests);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_LT(gaps_of(cpu, requests[i], tokens[i]).largest, tie(noise)) << "prompt " << i;
}

// --- Sampled attention

// As CudaEstimator of cuda_parity_test.cc, which says what is measured.
class CudaSplitEstimator : public CudaEngine, public testing::WithParamInterface<Estimator> {
 protected:
  static EngineOptions options() { return {.attention = {.estimator = GetParam()}}; }
  const std::filesystem::path model = kCheckpoints / "qwen3_head128";
  const std::vector<int32_t> samples{3, 3};
};
INSTANTIATE_TEST_SUITE_P(Estimators, CudaSplitEstimator,
                         testing::Values(Estimator::kIid, Estimator::kStrat, Estimator::kSys,
                                         Estimator::kThreshold, Estimator::kJoint),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

TEST_P(CudaSplitEstimator, LogitsUseTheDrawsOfTheReference) {
  for (const size_t length : {40, 100}) {
    const std::vector<int32_t> ids = random_prompt(5, length);
    std::vector<float> expected;
    for (const std::vector<double>& row : ReferenceDecoder(model).logits(
             ids, {.estimator = GetParam(), .samples = samples, .key = kKey, .question = 9}))
      expected.insert(expected.end(), row.begin(), row.end());
    Engine cpu(model, on_cpu(options()));
    const double of_another_seed =
        root_mean_square_difference(cpu.logits(ids, samples, kOtherKey, 9), expected);
    for (const int32_t chunk : {2048, 37}) {
      EngineOptions cut = with_keys(KeyFormat::kSplit, options());
      cut.prefill_chunk_tokens = chunk;
      Engine device(model, cut);
      const double same = root_mean_square_difference(device.logits(ids, samples, kKey, 9), expected);
      const double other = root_mean_square_difference(device.logits(ids, samples, kOtherKey, 9), expected);
      std::printf("[ measured ] %s, %zu tokens in chunks of %d: %.2f and %.2f of another seed's distance\n",
                  std::string(kernels::name(GetParam())).c_str(), length, chunk, same / of_another_seed,
                  other / of_another_seed);
      EXPECT_LT(same, 0.5 * of_another_seed);
      EXPECT_GT(other, 0.7 * of_another_seed);
    }
  }
}

TEST_P(CudaSplitEstimator, DecodeUsesTheDrawsOfTheReference) {
  Engine device(model, with_keys(KeyFormat::kSplit, options())), cpu(model, on_cpu(options()));
  std::vector<GenerationRequest> requests = ragged_requests(12, 90, 40);
  for (GenerationRequest& request : requests) request.samples = samples;
  const auto tokens = run(device, requests);
  double same_draws = 0, other_draws = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    same_draws += gaps_of(cpu, requests[i], tokens[i]).mean;
    GenerationRequest other = requests[i];
    other.key = kOtherKey;
    other_draws += gaps_of(cpu, other, tokens[i]).mean;
  }
  EXPECT_LT(same_draws, 0.35 * other_draws);
}

// A prompt's queries are sequences of their own for attention, so its logits are those of decoding token by
// token but for the rounding of products; a wrong draw of one layer is far more.
TEST_F(CudaEngine, WithSplitKeysALongSampledPromptIsThatOfSmallPasses) {
  const EngineOptions options{.attention = {.estimator = Estimator::kSys}};
  const std::vector<int32_t> ids = random_prompt(6, 500), samples{24, 24};
  EngineOptions cut = with_keys(KeyFormat::kSplit, options);
  cut.prefill_chunk_tokens = 2;
  Engine whole(kDeviceModel, with_keys(KeyFormat::kSplit, options)), pairs(kDeviceModel, cut);
  const std::vector<float> expected = whole.logits(ids, samples, kKey, 9);
  const double other = root_mean_square_difference(whole.logits(ids, samples, kOtherKey, 9), expected);
  EXPECT_LT(root_mean_square_difference(pairs.logits(ids, samples, kKey, 9), expected), 0.5 * other);
}

// A pass of one query a sequence that is no decode step: what attention leaves of a single key is its value,
// over keys of any format. Before, the same rows were of another token.
TEST_F(CudaEngine, WithSplitKeysAPromptOfOneTokenAttendsToItself) {
  const EngineOptions options{.attention = {.estimator = Estimator::kSys}};
  const std::vector<int32_t> samples{5, 5};
  Engine split(kDeviceModel, with_keys(KeyFormat::kSplit, options)),
      sixteen(kDeviceModel, with_keys(KeyFormat::kSixteenBits, options));
  const std::vector<float> other = split.logits(random_prompt(9, 1), samples, kKey, 9);
  const std::vector<float> one = split.logits(random_prompt(8, 1), samples, kKey, 9);
  const std::vector<float> expected = sixteen.logits(random_prompt(8, 1), samples, kKey, 9);
  EXPECT_LT(root_mean_square_difference(one, expected), 0.05 * root_mean_square_difference(other, expected));
}

// --- Both in one layer

// Every second request attends exactly, and of the others every second one in its first layer: all layers are
// mixed, and the exact requests' tokens are best by the exact logits.
TEST_F(CudaEngine, WithSplitKeysExactAndSampledRequestsShareBatches) {
  const EngineOptions options{.attention = {.estimator = Estimator::kSys}, .prefill_chunk_tokens = 64};
  Engine device(kDeviceModel, with_keys(KeyFormat::kSplit, options)), cpu(kDeviceModel, on_cpu(options));
  std::vector<GenerationRequest> requests = ragged_requests(24, 90, 30);
  for (size_t i = 1; i < requests.size(); i += 2)
    requests[i].samples = i % 4 == 1 ? std::vector<int32_t>{kExactLayer, 12} : std::vector<int32_t>{12, 12};
  const auto tokens = run(device, requests);
  const double noise = rounding_noise(kDeviceModel);
  double same_draws = 0, other_draws = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Gaps gaps = gaps_of(cpu, requests[i], tokens[i]);
    if (i % 2 == 0) {
      EXPECT_LT(gaps.largest, tie(noise)) << "request " << i;
      continue;
    }
    same_draws += gaps.mean;
    GenerationRequest other = requests[i];
    other.key = kOtherKey;
    other_draws += gaps_of(cpu, other, tokens[i]).mean;
  }
  EXPECT_LT(same_draws, 0.5 * other_draws);
}

// The same sizes and bounds with other mates: a request's bits may not change.
TEST_F(CudaEngine, WithSplitKeysTokensDoNotDependOnWhatBatchMatesHold) {
  Engine engine(kDeviceModel, with_keys(KeyFormat::kSplit, {.attention = {.estimator = Estimator::kSys},
                                                            .prefill_chunk_tokens = 64}));
  const auto batch = [](uint32_t mates) {
    std::vector<GenerationRequest> requests = ragged_requests(21, 90, 30);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].samples = i % 3 == 1 ? std::vector<int32_t>{} : std::vector<int32_t>{7, 5};
      requests[i].sampling = {.temperature = 1};
      if (i % 10 == 0) continue;  // looked at
      requests[i].prompt = random_prompt(1000 * mates + static_cast<uint32_t>(i), requests[i].prompt.size());
      requests[i].question = 1000 * mates + static_cast<uint32_t>(i);
    }
    return requests;
  };
  const auto first = run(engine, batch(1)), second = run(engine, batch(2));
  for (const size_t i : {0, 10, 20}) EXPECT_EQ(second[i], first[i]) << "request " << i;
  EXPECT_NE(second, first);
}

// --- What it costs

// Divergences of sampling are those over 16-bit keys, as are the rows read; the high plane alone leaves
// more of them where samples leave little.
TEST_F(CudaEngine, FidelityWithSplitKeysIsThatWithSixteenBitKeys) {
  std::vector<FidelityText> texts;
  std::vector<FidelityPair> pairs;
  for (uint32_t i = 0; i < 12; ++i) {
    const size_t length = 1 + 71 * i % 330;
    texts.push_back({.ids = random_prompt(i, length),
                     .prompt_tokens = 1 + static_cast<int32_t>(length / 2),
                     .key = kKey,
                     .question = i});
    for (const Estimator estimator : {Estimator::kSys, Estimator::kThreshold, Estimator::kJoint})
      for (const int32_t samples : {6, 40})
        pairs.push_back({.text = i, .samples = {samples, samples}, .attention = {.estimator = estimator}});
    pairs.push_back({.text = i, .samples = {}});
  }
  struct Sums {
    double divergence = 0, rows = 0;
  };
  const auto sums_of = [&](KeyFormat keys, FidelityMode mode) {
    Engine engine(kDeviceModel, with_keys(keys, {.attention = {.estimator = Estimator::kSys},
                                                 .prefill_chunk_tokens = 200}));
    const std::vector<Fidelity> measured = engine.fidelity(texts, pairs, {.mode = mode, .count_rows = true});
    std::vector<Sums> sums(7);
    for (size_t i = 0; i < measured.size(); ++i) {
      sums[i % 7].divergence += static_cast<double>(measured[i].positions) * measured[i].divergence;
      sums[i % 7].rows += static_cast<double>(measured[i].rows_read);
    }
    return sums;
  };
  for (const FidelityMode mode : {FidelityMode::kPrefill, FidelityMode::kDecode, FidelityMode::kReply}) {
    const std::vector<Sums> sixteen = sums_of(KeyFormat::kSixteenBits, mode),
                            split = sums_of(KeyFormat::kSplit, mode),
                            high = sums_of(KeyFormat::kHighPlane, mode);
    for (size_t i = 0; i < 6; ++i) {
      std::printf("[ measured ] mode %d, case %zu: divergence %.4f, split %.4f, high %.4f\n",
                  static_cast<int>(mode), i, sixteen[i].divergence, split[i].divergence, high[i].divergence);
      EXPECT_NEAR(split[i].divergence / sixteen[i].divergence, 1, 0.2) << "case " << i;
      EXPECT_NEAR(split[i].rows / sixteen[i].rows, 1, 0.02) << "case " << i;
      EXPECT_NEAR(high[i].rows / sixteen[i].rows, 1, 0.02) << "case " << i;
      EXPECT_GT(sixteen[i].rows, 0);
    }
  }
}

// Numbers of a random cache are finite: tokens come out.
TEST_F(CudaEngine, WithSplitKeysARandomCacheServes) {
  for (const KeyFormat keys : {KeyFormat::kSplit, KeyFormat::kHighPlane}) {
    EngineOptions options = with_keys(keys, {.attention = {.estimator = Estimator::kSys}});
    options.skip_prefill = true;
    Engine engine(kDeviceModel, options);
    std::vector<GenerationRequest> requests = ragged_requests(4, 200, 8);
    requests[1].samples = {4, 4};
    requests[3].samples = {4, 4};
    for (const std::vector<int32_t>& tokens : run(engine, requests)) {
      ASSERT_EQ(tokens.size(), 8);
      for (const int32_t token : tokens) EXPECT_GE(token, 0);
    }
  }
}

TEST_F(CudaEngine, WithSplitKeysSizesTheCacheForEverySlotByDefault) {
  EngineOptions options = with_keys(KeyFormat::kSplit, {.max_sequences = 3});
  options.cache_tokens = 0;
  EXPECT_EQ(Engine(kDeviceModel, options).options().cache_tokens, 3 * 512);
  // Of 2 layers, values 128 bytes, a norm 4, planes 128, a unit 4 and as much to the next line; and 128 of
  // the copy of a layer's keys.
  options.cache_tokens = int64_t{1} << 34;
  try {
    Engine engine(kDeviceModel, options);
    ADD_FAILURE() << "made";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), Names(options.cache_tokens, options.cache_tokens * 664));
  }
}

// --- Refusals

TEST_F(CudaEngine, WithSplitKeysAnEstimatorWithoutKernelIsUnsupported) {
  for (const Estimator estimator : {Estimator::kFlash, Estimator::kProp, Estimator::kTopk}) {
    try {
      Engine engine(kDeviceModel, with_keys(KeyFormat::kSplit, {.attention = {.estimator = estimator}}));
      ADD_FAILURE() << kernels::name(estimator) << " was accepted";
    } catch (const Unsupported& error) {
      EXPECT_THAT(error.what(),
                  Names(std::string(kernels::name(estimator)), "threshold, joint, pooled and level"));
    }
  }
}

}  // namespace
}  // namespace allot::model
