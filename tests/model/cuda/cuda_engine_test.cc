// The engine on a CUDA device: against transformers, against the engine on the CPU and the double-precision
// reference, and what it promises of batches, slots and refusals. Skipped with a message where there is no
// GPU, but for what is refused without one.
//
// Sums are made in another order on the device than on the CPU, in decode than in prefill, and for one number
// of rows than for another, so tokens are not compared one by one between those. Each token is instead held
// against teacher-forced logits, with the rounding noise of the checkpoint as the measure: the distance of
// transformers' bfloat16 logits from its float32 ones.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "kernels/estimator.h"
#include "model/engine.h"
#include "model/safetensors.h"
#include "model/sampling.h"
#include "tests/kernels/cuda/cuda_launch.h"
#include "tests/model/generate.h"
#include "tests/model/golden.h"
#include "tests/model/reference_decoder.h"

namespace allot::model {
namespace {

using kernels::DType;
using kernels::Estimator;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

const std::filesystem::path kCheckpoints = std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/parity";
const std::filesystem::path kModel =
    kCheckpoints / "llama_head64";  // 2 layers, 96 tokens, 512 positions, eos 1
constexpr int32_t kVocabulary = 96;
constexpr DrawKey kKey{.run_seed = 11, .sampling_seed = 12};
constexpr DrawKey kOtherKey{.run_seed = 11, .sampling_seed = 13};

EngineOptions on_cpu(EngineOptions options = {}) {
  options.device = "cpu";
  options.dtype = DType::kBFloat16;
  if (options.cache_tokens == 0) options.cache_tokens = 8192;
  return options;
}

EngineOptions on_device(EngineOptions options = {}) {
  options = on_cpu(options);
  options.device = "cuda:0";
  return options;
}

// The root mean square distance of bfloat16 logits from float32 ones that rounding causes.
double rounding_noise(const Golden& golden) {
  return root_mean_square_difference(golden.logits_bfloat16, golden.logits);
}

double rounding_noise(const std::filesystem::path& checkpoint) {
  return rounding_noise(read_golden(checkpoint));
}

// How far chosen tokens are below the best logit of their rows.
struct Gaps {
  double largest = 0;
  double mean = 0;
};

// The tokens that `request` got, held against teacher-forced logits of `judge` with the draws of `request`.
Gaps gaps_of(Engine& judge, const GenerationRequest& request, const std::vector<int32_t>& tokens) {
  std::vector<int32_t> ids = request.prompt;
  ids.insert(ids.end(), tokens.begin(), tokens.end());
  const std::vector<float> logits = judge.logits(ids, request.samples, request.key, request.question);
  Gaps gaps;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto row = logits.begin() + static_cast<int64_t>(request.prompt.size() - 1 + i) * kVocabulary;
    const double gap = *std::max_element(row, row + kVocabulary) - row[tokens[i]];
    gaps.largest = std::max(gaps.largest, gap);
    gaps.mean += gap / static_cast<double>(tokens.size());
  }
  return gaps;
}

// Greedy tokens under exact attention are best but for rounding. Two evaluations of two logits have four
// roundings of one noise each, so a gap that rounding alone opens has at most twice the noise as standard
// deviation; five of those leave no room for a wrong token, which is off by the spread of the logits.
double tie(double noise) {
  return 10 * noise;
}

// Steps until nothing is pending and returns the tokens in the order of `requests`, whose ids are distinct.
std::vector<std::vector<int32_t>> run(Engine& engine, const std::vector<GenerationRequest>& requests) {
  for (const GenerationRequest& request : requests) engine.submit(request);
  const std::vector<GenerationResult> results = run_to_end(engine);
  std::vector<std::vector<int32_t>> tokens;
  for (const GenerationRequest& request : requests) {
    const auto result = std::ranges::find(results, request.id, &GenerationResult::id);
    if (result == results.end()) {
      ADD_FAILURE() << "request " << request.id << " never finished";
      tokens.emplace_back();
    } else {
      tokens.push_back(result->tokens);
    }
  }
  return tokens;
}

// Requests with prompts of 1 to `longest` tokens, each with a question of its own.
std::vector<GenerationRequest> ragged_requests(size_t count, size_t longest, int32_t max_new_tokens) {
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    requests.push_back(
        request_of(i, random_prompt(static_cast<uint32_t>(i), 1 + (37 * i) % longest), max_new_tokens));
    requests.back().key = kKey;
    requests.back().question = static_cast<uint32_t>(i);
  }
  return requests;
}

class CudaEngine : public kernels::testing::CudaTest {};

// --- Against transformers and the CPU

struct PassShape {
  int32_t prefill_chunk_tokens;
  int32_t page_size;
};

class CudaParity : public CudaEngine, public testing::WithParamInterface<const char*> {
 protected:
  std::filesystem::path directory() const { return kCheckpoints / GetParam(); }
  const Golden golden = read_golden(directory());
  const double noise = rounding_noise(golden);
};

// Both are roundings of the float32 model; ours may not be twice as far from it as transformers'. The golden
// text has 120 tokens: a chunk of 119 takes one more, others end within, at and beside the end of a page.
TEST_P(CudaParity, LogitsAreAsCloseToFloat32AsThoseOfTransformersHoweverPrefillIsCut) {
  for (const auto [chunk, page] : {PassShape{2048, 16}, PassShape{37, 16}, PassShape{37, 32},
                                   PassShape{64, 32}, PassShape{119, 48}, PassShape{2, 16}}) {
    Engine engine(directory(), on_device({.page_size = page, .prefill_chunk_tokens = chunk}));
    const std::vector<float> logits = engine.logits(golden.ids, {}, {}, 0);
    EXPECT_LT(root_mean_square_difference(logits, golden.logits), 2 * noise)
        << "chunks of " << chunk << ", pages of " << page;
  }
}

// Each position by itself, so that a single wrong one shows: its 96 logits share an error of the activations,
// whose size varies from position to position by more than that of an average over all.
TEST_P(CudaParity, LogitsOfEveryPositionAreCloseToThoseOfTheCpu) {
  Engine device(directory(), on_device({.prefill_chunk_tokens = 37})), cpu(directory(), on_cpu());
  const std::vector<float> ours = device.logits(golden.ids, {}, {}, 0),
                           expected = cpu.logits(golden.ids, {}, {}, 0);
  EXPECT_LT(root_mean_square_difference(ours, expected), 2 * noise);
  for (size_t t = 0; t < golden.ids.size(); ++t) {
    const auto row = [&](const std::vector<float>& logits) {
      return std::span(logits).subspan(t * kVocabulary, kVocabulary);
    };
    EXPECT_LT(root_mean_square_difference(row(ours), row(expected)), 6 * noise) << "position " << t;
  }
}

TEST_P(CudaParity, GreedyTokensAreBestByTheDevicesOwnLogitsAndByThoseOfTheCpu) {
  Engine device(directory(), on_device()), cpu(directory(), on_cpu());
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < golden.prompts.size(); ++i) requests.push_back(request_of(i, golden.prompts[i], 64));
  const auto tokens = run(device, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_LT(gaps_of(device, requests[i], tokens[i]).largest, tie(noise)) << "prompt " << i;
    EXPECT_LT(gaps_of(cpu, requests[i], tokens[i]).largest, tie(noise)) << "prompt " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, CudaParity,
                         testing::Values("llama_head64", "qwen2_head64_group7", "qwen3_head128",
                                         "mistral_head64_group1"),
                         [](const auto& checkpoint) { return std::string(checkpoint.param); });

// More positions than the device forms logits of at once.
TEST_F(CudaEngine, LogitsOfALongTextAreCloseToThoseOfTheCpu) {
  Engine device(kModel, on_device()), cpu(kModel, on_cpu());
  const std::vector<int32_t> ids = random_prompt(1, 500);
  EXPECT_LT(root_mean_square_difference(device.logits(ids, {}, {}, 0), cpu.logits(ids, {}, {}, 0)),
            2 * rounding_noise(kModel));
}

TEST_F(CudaEngine, RandomWeightsAreThoseOfTheCpu) {
  const std::vector<int32_t> ids = random_prompt(1, 50);
  Engine device(kModel, on_device({.random_weights = 7})), cpu(kModel, on_cpu({.random_weights = 7})),
      other(kModel, on_cpu({.random_weights = 8}));
  const std::vector<float> expected = cpu.logits(ids, {}, {}, 0);
  EXPECT_LT(root_mean_square_difference(device.logits(ids, {}, {}, 0), expected),
            0.05 * root_mean_square_difference(other.logits(ids, {}, {}, 0), expected));
}

// --- Sampled attention

std::vector<float> to_float(const std::vector<std::vector<double>>& rows) {
  std::vector<float> values;
  for (const std::vector<double>& row : rows) values.insert(values.end(), row.begin(), row.end());
  return values;
}

// Draws are compared by what they do to logits. Rounding moves the boundaries between keys, so some draws
// pick a neighbour, on the CPU in bfloat16 as on the device; few heads and samples keep them rare. One wrong
// coordinate of the draws (seed, question, layer, head, position) makes all draws of a layer others. The
// measure is the distance from the reference, which makes the same draws in double precision, against that of
// another seed: the CPU in bfloat16 comes to 0.10 to 0.34 of it at the lengths below, and to 0.56 and more
// with another seed in the last layer alone.
class CudaEstimator : public CudaEngine, public testing::WithParamInterface<Estimator> {
 protected:
  static constexpr int32_t kTile = 64;
  static EngineOptions options() { return {.estimator = GetParam(), .tile = kTile}; }
  const std::filesystem::path model = kCheckpoints / "qwen3_head128";  // 2 layers of 2 heads
  const std::vector<int32_t> samples{3, 3};
};

TEST_P(CudaEstimator, LogitsUseTheDrawsOfTheReference) {
  Engine cpu(model, on_cpu(options()));
  for (const size_t length : {40, 100}) {  // of one tile and of two
    const std::vector<int32_t> ids = random_prompt(5, length);
    const std::vector<float> expected = to_float(ReferenceDecoder(model).logits(
        ids, {.estimator = GetParam(), .samples = samples, .key = kKey, .question = 9, .tile = kTile}));
    const double of_another_seed =
        root_mean_square_difference(cpu.logits(ids, samples, kOtherKey, 9), expected);
    EXPECT_LT(root_mean_square_difference(cpu.logits(ids, samples, kKey, 9), expected),
              0.45 * of_another_seed);
    for (const int32_t chunk : {2048, 37}) {
      EngineOptions cut = on_device(options());
      cut.prefill_chunk_tokens = chunk;
      Engine device(model, cut);
      EXPECT_LT(root_mean_square_difference(device.logits(ids, samples, kKey, 9), expected),
                0.5 * of_another_seed)
          << length << " tokens in chunks of " << chunk;
      EXPECT_GT(root_mean_square_difference(device.logits(ids, samples, kOtherKey, 9), expected),
                0.7 * of_another_seed)
          << length << " tokens in chunks of " << chunk;
    }
  }
}

TEST_P(CudaEstimator, DecodeUsesTheDrawsOfTheReference) {
  Engine device(model, on_device(options())), cpu(model, on_cpu(options()));
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

INSTANTIATE_TEST_SUITE_P(Estimators, CudaEstimator,
                         testing::Values(Estimator::kIid, Estimator::kStrat, Estimator::kSys,
                                         Estimator::kProp, Estimator::kFlash, Estimator::kThreshold),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

// --- The choice of tokens

// What the sampler of the CPU chooses from the device's own teacher-forced logits. Rounding between decode
// and teacher forcing moves the boundaries between tokens, so a few draws fall to a neighbour.
double share_of_equal_choices(Engine& engine, const GenerationRequest& request,
                              const std::vector<int32_t>& tokens, DrawKey key) {
  std::vector<int32_t> ids = request.prompt;
  ids.insert(ids.end(), tokens.begin(), tokens.end());
  std::vector<float> logits = engine.logits(ids, request.samples, request.key, request.question);
  std::set<int32_t> seen(request.prompt.begin(), request.prompt.end());
  TokenSampler sampler;
  int64_t equal = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t position = request.prompt.size() - 1 + i;
    const std::vector<int32_t> distinct(seen.begin(), seen.end());
    const int32_t choice = sampler.choose(std::span(logits).subspan(position * kVocabulary, kVocabulary),
                                          request.sampling, distinct,
                                          {.key = key,
                                           .question = request.question,
                                           .layer = kTokenLayer,
                                           .head = 0,
                                           .position = static_cast<uint32_t>(position)});
    equal += choice == tokens[i];
    seen.insert(tokens[i]);
  }
  return static_cast<double>(equal) / static_cast<double>(tokens.size());
}

TEST_F(CudaEngine, SampledTokensAreThoseThatTheCpuChoosesFromTheSameLogits) {
  for (const SamplingParams sampling :
       {SamplingParams{.temperature = 1}, SamplingParams{.temperature = 2, .top_p = 0.9},
        SamplingParams{.temperature = 1.5, .top_p = 0.95, .repetition_penalty = 1.3}}) {
    Engine engine(kModel, on_device());
    std::vector<GenerationRequest> requests = ragged_requests(8, 60, 50);
    for (GenerationRequest& request : requests) request.sampling = sampling;
    const auto tokens = run(engine, requests);
    double equal = 0, equal_of_another_seed = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      equal += share_of_equal_choices(engine, requests[i], tokens[i], kKey) / 8;
      equal_of_another_seed += share_of_equal_choices(engine, requests[i], tokens[i], kOtherKey) / 8;
    }
    EXPECT_GT(equal, 0.9) << "temperature " << sampling.temperature;
    EXPECT_LT(equal_of_another_seed, 0.8) << "temperature " << sampling.temperature;
  }
}

TEST_F(CudaEngine, OtherSeedsAndQuestionsGiveOtherTokens) {
  Engine engine(kModel, on_device());
  const auto tokens = [&](DrawKey key, uint32_t question) {
    GenerationRequest request = request_of(0, random_prompt(2, 20), 16);
    request.key = key;
    request.question = question;
    request.sampling = {.temperature = 1};
    return run(engine, {request}).at(0);
  };
  const auto first = tokens({1, 2}, 3);
  EXPECT_EQ(tokens({1, 2}, 3), first);
  EXPECT_NE(tokens({2, 2}, 3), first);
  EXPECT_NE(tokens({1, 3}, 3), first);
  EXPECT_NE(tokens({1, 2}, 4), first);
}

// Some unseen token has a positive logit in every step, so that a seen one never wins.
GenerationRequest request_without_repetition() {
  GenerationRequest request = request_of(0, random_prompt(4, 12), 40);
  request.sampling.repetition_penalty = 1e6;
  return request;
}

TEST_F(CudaEngine, AHugeRepetitionPenaltyKeepsTokensOfPromptAndOutputFromComingAgain) {
  const GenerationRequest request = request_without_repetition();
  for (const EngineOptions& options : {on_cpu(), on_device()}) {
    Engine engine(kModel, options);
    const std::vector<int32_t> tokens = run(engine, {request}).at(0);
    std::set<int32_t> seen(request.prompt.begin(), request.prompt.end());
    for (const int32_t token : tokens) EXPECT_TRUE(seen.insert(token).second) << token << " came again";
  }
}

// The same engine, slot and shapes: the bits are the same, unless something of the first request stays.
TEST_F(CudaEngine, ASlotForgetsWhatItsLastSequenceHasSeen) {
  Engine engine(kModel, on_device({.max_sequences = 1}));
  const GenerationRequest request = request_without_repetition();
  const auto first = run(engine, {request});
  EXPECT_EQ(run(engine, {request}), first);
}

TEST_F(CudaEngine, ACancelledSequenceLeavesNothingSeenInItsSlot) {
  Engine engine(kModel, on_device({.max_sequences = 1}));
  const GenerationRequest request = request_without_repetition();
  const auto first = run(engine, {request});
  engine.submit(request);
  for (int step = 0; step < 10; ++step) EXPECT_THAT(engine.step(), IsEmpty());
  EXPECT_TRUE(engine.cancel(0));
  EXPECT_EQ(run(engine, {request}), first);
}

// --- Batches

// Mates with other prompts, schedules, seeds and rules, but of the same sizes, so that every pass has the
// same shape and bounds: then a request's bits may not change. Under sampled attention, sampled tokens and a
// penalty whatever leaked from a mate would show.
TEST_F(CudaEngine, TokensDoNotDependOnWhatBatchMatesHold) {
  Engine engine(kModel, on_device({.prefill_chunk_tokens = 64}));
  const auto batch = [](uint32_t mates) {
    std::vector<GenerationRequest> requests = ragged_requests(41, 90, 30);
    for (size_t i = 0; i < requests.size(); ++i) {
      GenerationRequest& request = requests[i];
      request.sampling = {.temperature = 1, .top_p = 0.95, .repetition_penalty = 1.1};
      request.samples = {7, 5};
      if (i % 10 == 0) continue;  // 0, 10, 20, 30 and 40 are the ones looked at
      request.prompt = random_prompt(1000 * mates + static_cast<uint32_t>(i), request.prompt.size());
      request.key.sampling_seed = mates;
      request.question = 1000 * mates + static_cast<uint32_t>(i);
      if (mates == 2) {
        request.sampling = {.temperature = 0.5};
        request.samples = {5, 6};
      }
    }
    return requests;
  };
  const auto first = run(engine, batch(1)), second = run(engine, batch(2));
  for (size_t i = 0; i < first.size(); ++i) {
    if (i % 10 == 0) {
      EXPECT_EQ(second[i], first[i]) << "request " << i;
    } else {
      EXPECT_NE(second[i], first[i]) << "mate " << i;
    }
  }
}

// Products of other numbers of rows may be rounded in another way, but no more than that: alone or among 40,
// each token is best by logits of its request alone. Prompts are longer than a chunk, mates come and go.
TEST_F(CudaEngine, GreedyTokensAloneAndAmongRaggedBatchMatesAreBestButForRounding) {
  const double noise = rounding_noise(kModel);
  Engine engine(kModel, on_device({.max_sequences = 24, .prefill_chunk_tokens = 50}));
  const std::vector<GenerationRequest> requests = ragged_requests(41, 170, 30);
  const auto together = run(engine, requests);
  size_t equal = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_LT(gaps_of(engine, requests[i], together[i]).largest, tie(noise)) << "request " << i;
    const auto alone = run(engine, {requests[i]}).at(0);
    EXPECT_LT(gaps_of(engine, requests[i], alone).largest, tie(noise)) << "request " << i << " alone";
    equal += alone == together[i];
  }
  EXPECT_GE(equal, requests.size() / 2);
}

// Dense and sampled sequences share launches. Rounding makes a few draws pick other keys, so sampled
// sequences are held against the schedule of another one.
TEST_F(CudaEngine, SequencesOfOneBatchFollowTheirOwnSchedules) {
  const std::filesystem::path model = kCheckpoints / "qwen3_head128";
  const double noise = rounding_noise(model);
  Engine device(model, on_device({.prefill_chunk_tokens = 64})), cpu(model, on_cpu());
  const std::vector<std::vector<int32_t>> schedules{{}, {1, 6}, {6, 1}, {2, 12}, {0, 3}};
  std::vector<GenerationRequest> requests = ragged_requests(30, 100, 30);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].samples = schedules[i % schedules.size()];
  const auto tokens = run(device, requests);
  std::vector<double> own(schedules.size()), others(schedules.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const size_t schedule = i % schedules.size();
    const Gaps gaps = gaps_of(cpu, requests[i], tokens[i]);
    if (schedules[schedule].empty()) {
      EXPECT_LT(gaps.largest, tie(noise)) << "dense request " << i;
    }
    own[schedule] += gaps.mean;
    GenerationRequest other = requests[i];
    other.samples = schedules[(schedule + 1) % schedules.size()];
    others[schedule] += gaps_of(cpu, other, tokens[i]).mean;
  }
  for (size_t i = 0; i < schedules.size(); ++i) {
    EXPECT_LT(own[i], 0.6 * others[i]) << "schedule " << testing::PrintToString(schedules[i]);
  }
}

TEST_F(CudaEngine, DensePrefillSamplesGeneratedPositionsOnly) {
  // With one token to come everything is prefill: the schedule must not matter.
  GenerationRequest request = request_of(0, random_prompt(3, 80), 1);
  request.key = kKey;
  Engine dense(kModel, on_device({.prefill = PrefillMode::kDense, .prefill_chunk_tokens = 30}));
  const auto exact = run(dense, {request});
  request.samples = {1, 1};
  EXPECT_EQ(run(dense, {request}), exact);
  // Generated tokens are sampled: another seed gives others.
  request.max_new_tokens = 40;
  const auto tokens = run(dense, {request});
  request.key = kOtherKey;
  EXPECT_NE(run(dense, {request}), tokens);
}

TEST_F(CudaEngine, RefillsSlotsAsSequencesFinish) {
  Engine engine(kModel, on_device({.max_sequences = 2}));
  // The second request outlives three others that take turns in the other slot.
  const std::vector<int32_t> new_tokens{4, 9, 2, 2};
  for (size_t i = 0; i < new_tokens.size(); ++i) {
    engine.submit(request_of(i, random_prompt(static_cast<uint32_t>(i), 4), new_tokens[i]));
  }
  std::vector<uint64_t> order;
  while (engine.pending() > 0) {
    for (const GenerationResult& result : engine.step()) {
      order.push_back(result.id);
      EXPECT_THAT(result.tokens, SizeIs(new_tokens[result.id]));
      EXPECT_EQ(result.finish, FinishReason::kLength);
      EXPECT_EQ(result.prompt_tokens, 4);
    }
  }
  EXPECT_THAT(order, ElementsAre(0, 2, 3, 1));
  EXPECT_THAT(engine.step(), IsEmpty());
  EXPECT_EQ(engine.counters().prefill_tokens, 16);
  EXPECT_EQ(engine.counters().decode_tokens, 3 + 8 + 1 + 1);
}

TEST_F(CudaEngine, CancelDropsQueuedAndRunningRequestsAndFreesTheirPages) {
  EngineOptions options = on_device({.max_sequences = 1});
  options.cache_tokens = 64;
  Engine engine(kModel, options);
  for (uint32_t i = 0; i < 3; ++i) engine.submit(request_of(i, random_prompt(i, 40), 24));
  (void)engine.step();
  EXPECT_TRUE(engine.cancel(0));   // running, holds the whole cache
  EXPECT_TRUE(engine.cancel(1));   // queued
  EXPECT_FALSE(engine.cancel(1));  // gone
  const std::vector<GenerationResult> results = run_to_end(engine);
  ASSERT_THAT(results, SizeIs(1));
  EXPECT_EQ(results[0].id, 2u);
  EXPECT_LT(gaps_of(engine, request_of(2, random_prompt(2, 40), 24), results[0].tokens).largest,
            tie(rounding_noise(kModel)));
}

TEST_F(CudaEngine, LogitsWhileRequestsRunLeaveTheirTokensAsTheyAre) {
  Engine engine(kModel, on_device());
  const GenerationRequest request = request_of(0, random_prompt(6, 30), 20);
  const auto expected = run(engine, {request});
  engine.submit(request);
  for (int step = 0; step < 5; ++step) EXPECT_THAT(engine.step(), IsEmpty());
  (void)engine.logits(random_prompt(7, 100), {}, kKey, 0);
  EXPECT_EQ(tokens_of(run_to_end(engine)), expected);
}

// --- The end of a sequence

TEST_F(CudaEngine, EndsAtAnEosTokenUnlessToldNotTo) {
  Engine engine(kModel, on_device());
  // A prompt whose greedy continuation has an eos token, found among a few.
  for (uint32_t seed = 0; seed < 200; ++seed) {
    GenerationRequest request = request_of(0, random_prompt(seed, 6), 30);
    const std::vector<int32_t> through = run(engine, {request}).at(0);
    EXPECT_THAT(through, SizeIs(30));
    const auto eos = std::ranges::find(through, 1);
    if (eos == through.end()) continue;
    request.ignore_eos = false;
    engine.submit(request);
    const GenerationResult result = run_to_end(engine).at(0);
    EXPECT_EQ(result.finish, FinishReason::kEos);
    EXPECT_EQ(result.tokens, std::vector<int32_t>(through.begin(), eos + 1));
    return;
  }
  FAIL() << "no prompt leads to an eos token; the test proves nothing";
}

// A copy of a checkpoint, to be changed.
class CopiedCheckpoint : public CudaEngine {
 protected:
  CopiedCheckpoint() { std::filesystem::copy(kModel, directory); }
  ~CopiedCheckpoint() override { std::filesystem::remove_all(directory); }

  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) /
      ("cuda_engine_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) +
       std::to_string(::getpid()));
};

TEST_F(CopiedCheckpoint, WithWeightsThatAreNotNumbersIsReportedByEveryStep) {
  const SafetensorsFile file(kModel / "model.safetensors");
  const TensorView& norm = find(file, "model.norm.weight");
  std::string content = read_file(kModel / "model.safetensors");
  const std::string weights(reinterpret_cast<const char*>(norm.bytes.data()), norm.bytes.size());
  content.replace(content.find(weights), weights.size(), std::string(weights.size(), '\xFF'));
  write_file_atomically(directory / "model.safetensors", content);
  Engine engine(directory, on_device());
  for (uint64_t id = 0; id < 2; ++id) {
    engine.submit(request_of(id, {3, 4}, 4));
    EXPECT_THAT([&] { (void)engine.step(); }, ThrowsMessage<Error>(HasSubstr("not a number")));
    EXPECT_TRUE(engine.cancel(id));
  }
}

// --- Refusals, all of them when the engine is made: a large checkpoint takes long to load and longer to run.

template <class Expected>
void expect_refusal(const std::filesystem::path& model, const EngineOptions& options,
                    const std::vector<std::string>& parts) {
  try {
    Engine engine(model, options);
    ADD_FAILURE() << "the engine was made; expected a refusal with " << testing::PrintToString(parts);
  } catch (const Expected& error) {
    for (const std::string& part : parts) EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

// Known without a device and without weights.
TEST(CudaEngineOptions, WithADtypeThatTheDeviceDoesNotServeAreUnsupported) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    EngineOptions options = on_device();
    options.dtype = dtype;
    expect_refusal<Unsupported>(kModel, options,
                                {"dtype " + std::string(kernels::name(dtype)), "use bfloat16"});
  }
}

TEST_F(CudaEngine, OnADeviceThatIsNotThereIsRefused) {
  EngineOptions options = on_device();
  options.device = "cuda:99";
  expect_refusal<CudaError>(kModel, options, {"99"});
}

TEST_F(CudaEngine, WithEstimatorTopkIsUnsupported) {
  expect_refusal<Unsupported>(kModel, on_device({.estimator = Estimator::kTopk}), {"topk"});
}

TEST_F(CudaEngine, WithPagesThatTheKernelsDoNotHaveIsUnsupported) {
  for (const int32_t page_size : {5, 8, 24}) {
    expect_refusal<Unsupported>(kModel, on_device({.page_size = page_size}),
                                {std::to_string(page_size), "multiple of 16"});
  }
}

TEST_F(CudaEngine, WithTilesThatTheKernelsDoNotHaveIsRefused) {
  for (const Estimator estimator : {Estimator::kProp, Estimator::kFlash}) {
    expect_refusal<InvalidArgument>(kModel, on_device({.estimator = estimator, .tile = 100}),
                                    {"tiles of 100 keys", "a multiple of 64"});
  }
}

TEST_F(CudaEngine, OfAModelWithHeadsThatTheKernelsDoNotHaveIsUnsupported) {
  expect_refusal<Unsupported>(kCheckpoints / "llama_group4", on_device(), {"head_dim", "8"});
}

TEST_F(CudaEngine, WithACacheBeyondTheDevicesMemoryIsRefusedWithTheNumbers) {
  EngineOptions options = on_device();
  options.cache_tokens = int64_t{1} << 34;  // of 2 layers, keys and values, 1 head, 64 elements, 2 bytes
  expect_refusal<Error>(kModel, options,
                        {std::to_string(options.cache_tokens) + " tokens",
                         std::to_string(options.cache_tokens * 512) + " bytes", "cache_tokens"});
}

TEST_F(CudaEngine, SizesTheCacheForEverySlotByDefault) {
  EngineOptions options = on_device({.max_sequences = 3});
  options.cache_tokens = 0;
  EXPECT_EQ(Engine(kModel, options).options().cache_tokens, 3 * 512);
}

}  // namespace
}  // namespace allot::model
