// What the engine on a CUDA device promises of slots, batches and refusals. Skipped with a message where
// there is no GPU, but for what is refused without one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "episode/samples.h"
#include "kernels/estimator.h"
#include "model/backend.h"
#include "model/engine.h"
#include "tests/kernels/methods.h"
#include "tests/model/checkpoints.h"
#include "tests/model/cuda/engine_runs.h"
#include "tests/model/generate.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using kernels::DType;
using kernels::Estimator;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

// --- Slots

// Some unseen token has a positive logit in every step, so that a seen one never wins.
GenerationRequest request_without_repetition() {
  GenerationRequest request = request_of(0, random_prompt(4, 12), 40);
  request.sampling.repetition_penalty = 1e6;
  return request;
}

TEST_F(CudaEngine, AHugeRepetitionPenaltyKeepsTokensOfPromptAndOutputFromComingAgain) {
  const GenerationRequest request = request_without_repetition();
  for (const EngineOptions& options : {on_cpu(), on_device()}) {
    Engine engine(kDeviceModel, options);
    const std::vector<int32_t> tokens = run(engine, {request}).at(0);
    std::set<int32_t> seen(request.prompt.begin(), request.prompt.end());
    for (const int32_t token : tokens) EXPECT_TRUE(seen.insert(token).second) << token << " came again";
  }
}

// The same engine, slot and shapes: the bits are the same, unless something of the first request stays.
TEST_F(CudaEngine, ASlotForgetsWhatItsLastSequenceHasSeen) {
  Engine engine(kDeviceModel, on_device({.max_sequences = 1}));
  const GenerationRequest request = request_without_repetition();
  const auto first = run(engine, {request});
  EXPECT_EQ(run(engine, {request}), first);
}

TEST_F(CudaEngine, ACancelledSequenceLeavesNothingSeenInItsSlot) {
  Engine engine(kDeviceModel, on_device({.max_sequences = 1}));
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
  Engine engine(kDeviceModel, on_device({.prefill_chunk_tokens = 64}));
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

// A backend that takes as many passes as a test says, so that one with its measured products serves both
// ways.
class LimitedBackend final : public Backend {
 public:
  LimitedBackend(std::unique_ptr<Backend> inner, const int32_t* limit)
      : inner_(std::move(inner)), limit_(limit) {}
  const KvCacheShape& cache_shape() const override { return inner_->cache_shape(); }
  void open_slot(int32_t slot, std::span<const int32_t> tokens) override { inner_->open_slot(slot, tokens); }
  int32_t max_submitted() const override { return std::min(*limit_, inner_->max_submitted()); }
  void submit(const ForwardBatch& batch, const kernels::AttentionMethod& attention,
              std::span<const TokenChoice> choices) override {
    fed += std::ssize(batch.chosen_before);
    inner_->submit(batch, attention, choices);
  }
  std::span<const int32_t> take() override { return inner_->take(); }
  void wait() override { inner_->wait(); }
  std::span<const float> logits(const ForwardBatch& batch,
                                const kernels::AttentionMethod& attention) override {
    return inner_->logits(batch, attention);
  }
  void reserve_states(int64_t rows) override { inner_->reserve_states(rows); }
  void keep_states(const ForwardBatch& batch, const kernels::AttentionMethod& attention, int64_t first_state,
                   std::span<int64_t> rows_read) override {
    inner_->keep_states(batch, attention, first_state, rows_read);
  }
  void compare_states(int64_t dense, std::span<const int64_t> sampled, int64_t rows,
                      std::span<kernels::RowDivergence> out) override {
    inner_->compare_states(dense, sampled, rows, out);
  }

  int64_t fed = 0;

 private:
  std::unique_ptr<Backend> inner_;
  const int32_t* limit_;
};

// Where every pass holds the same rows both ways: the same bits, so the same tokens, drawn and penalised ones
// too.
TEST_F(CudaEngine, PassesSubmittedAheadGiveTheTokensOfOneAtATime) {
  int32_t limit = 1;
  LimitedBackend* backend = nullptr;
  Engine engine(kDeviceModel, on_device({.prefill_chunk_tokens = 64}),
                [&](const WeightsSource& source, const ModelConfig& config, const EngineOptions& options) {
                  auto limited =
                      std::make_unique<LimitedBackend>(make_backend(source, config, options), &limit);
                  backend = limited.get();
                  return limited;
                });
  std::vector<GenerationRequest> requests = ragged_requests(41, 90, 40);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 3 > 0) requests[i].sampling = {.temperature = 1, .top_p = 0.95, .repetition_penalty = 1.2};
    if (i % 2 > 0) requests[i].samples = {7, 5};
  }
  const auto one_at_a_time = run(engine, requests);
  EXPECT_EQ(backend->fed, 0);
  limit = 2;
  for (int repetition = 0; repetition < 3; ++repetition) EXPECT_EQ(run(engine, requests), one_at_a_time);
  EXPECT_EQ(backend->fed, 3 * 39 * 41);
}

// Replies that end at all places, and slots that go from one to the next while a row in vain runs: what a
// slot had seen would rule tokens out, and another's pages would give other logits.
TEST_F(CudaEngine, RepliesThatStopAtAnyPlaceAreBeginningsOfTheWholeOnes) {
  const double noise = rounding_noise(kDeviceModel);
  Engine engine(kDeviceModel, on_device({.max_sequences = 5, .prefill_chunk_tokens = 64}));
  std::vector<GenerationRequest> requests = ragged_requests(40, 90, 30);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].stop = [length = 1 + i % 29](std::span<const int32_t> output) {
      return output.size() == length;
    };
  }
  const auto tokens = run(engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_THAT(tokens[i], SizeIs(1 + i % 29));
    EXPECT_LT(gaps_of(engine, requests[i], tokens[i]).largest, tie(noise)) << "request " << i;
  }
  EXPECT_EQ(engine.counters().decode_tokens + 40,
            std::accumulate(tokens.begin(), tokens.end(), int64_t{0},
                            [](int64_t sum, const auto& reply) { return sum + std::ssize(reply); }));
}

// Under a penalty that lets no token come again, one slot for all of them.
TEST_F(CudaEngine, ASlotForgetsTheTokenInVainOfASequenceThatStopped) {
  Engine engine(kDeviceModel, on_device({.max_sequences = 1}));
  const auto whole = run(engine, {request_without_repetition()}).at(0);
  std::vector<GenerationRequest> requests(12, request_without_repetition());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].id = i;
    requests[i].stop = [length = 2 + i](std::span<const int32_t> output) { return output.size() == length; };
  }
  const auto tokens = run(engine, requests);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(tokens[i], std::vector(whole.begin(), whole.begin() + 2 + i)) << i;
}

// Products of other numbers of rows may be rounded in another way, but no more than that: alone or among 40,
// each token is best by logits of its request alone. Prompts are longer than a chunk, mates come and go.
TEST_F(CudaEngine, GreedyTokensAloneAndAmongRaggedBatchMatesAreBestButForRounding) {
  const double noise = rounding_noise(kDeviceModel);
  Engine engine(kDeviceModel, on_device({.max_sequences = 24, .prefill_chunk_tokens = 50}));
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

// Prompts are exact by FlashAttention and decode steps by attend_cuda, as without a schedule: the same
// kernels on the same shapes.
TEST_F(CudaEngine, AScheduleOfExactLayersAloneGivesTheBitsOfExactAttention) {
  for (kernels::AttentionMethod method : kernels::testing::every_method()) {
    SCOPED_TRACE(kernels::describe(method));
    Engine engine(kDeviceModel, on_device({.attention = method}));
    const std::vector<int32_t> ids = random_prompt(4, 90), exact(2, kExactLayer);
    EXPECT_EQ(engine.logits(ids, exact, kKey, 1), engine.logits(ids, {}, kKey, 1));
    std::vector<GenerationRequest> requests = ragged_requests(6, 90, 20);
    const auto dense = run(engine, requests);
    for (GenerationRequest& request : requests) request.samples = exact;
    EXPECT_EQ(run(engine, requests), dense);
  }
}

// Logits of the device are held against those of the CPU, which is tested against the reference; a layer that
// attended as the other one should would be off by far more than rounding.
TEST_F(CudaEngine, AnExactLayerIsExactAndTheOthersStaySampled) {
  const double noise = rounding_noise(kDeviceModel);
  Engine device(kDeviceModel, on_device()), cpu(kDeviceModel, on_cpu());
  const std::vector<int32_t> ids = random_prompt(4, 90);
  const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
    double squares = 0;
    for (size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
    return std::sqrt(squares / static_cast<double>(a.size()));
  };
  const auto logits = [&](Engine& engine, const std::vector<int32_t>& samples) {
    return engine.logits(ids, samples, kKey, 1);
  };
  for (const std::vector<int32_t>& samples : {std::vector<int32_t>{kExactLayer, 4}, {4, kExactLayer}}) {
    const std::vector<float> ours = logits(device, samples);
    const double off = distance(ours, logits(cpu, samples));
    // A few draws within rounding of a boundary pick another key.
    EXPECT_LT(off, 0.5 * distance(ours, logits(device, {}))) << samples[0];
    EXPECT_LT(off, 0.5 * distance(ours, logits(device, {4, 4}))) << samples[0];
    EXPECT_GT(distance(ours, logits(device, {})), 4 * noise);
  }
}

// In a batch some layers are exact for all, some for none and some for a few; captured decode steps of one
// pattern must not serve another.
TEST_F(CudaEngine, ExactLayersOfBatchMatesChangeNoTokens) {
  const double noise = rounding_noise(kDeviceModel);
  Engine engine(kDeviceModel, on_device({.prefill_chunk_tokens = 64}));
  const std::vector<std::vector<std::vector<int32_t>>> batches = {
      {{kExactLayer, 9}},
      {{9, kExactLayer}},
      {{kExactLayer, kExactLayer}, {}},
      {{kExactLayer, 9}, {9, kExactLayer}, {8, 9}, {}, {kExactLayer, kExactLayer}}};
  for (const std::vector<std::vector<int32_t>>& schedules : batches) {
    std::vector<GenerationRequest> requests = ragged_requests(10, 90, 20);
    for (size_t i = 0; i < requests.size(); ++i) requests[i].samples = schedules[i % schedules.size()];
    const auto tokens = run(engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      if (exact_layers(requests[i].samples) < std::ssize(requests[i].samples)) continue;
      EXPECT_LT(gaps_of(engine, requests[i], tokens[i]).largest, tie(noise)) << "request " << i;
    }
    EXPECT_EQ(run(engine, requests), tokens);
  }
}

// A dense sequence stays dense beside mates whose scores are Bernoulli estimates: each of its tokens is best
// by exact logits of its request alone but for rounding, in prompts that are sampled and in decoding.
TEST_F(CudaEngine, ADenseSequenceIsExactBesideMatesOfEveryMethod) {
  const double noise = rounding_noise(kDeviceModel);
  for (kernels::AttentionMethod method : kernels::testing::every_method()) {
    SCOPED_TRACE(kernels::describe(method));
    Engine engine(kDeviceModel, on_device({.attention = method, .prefill_chunk_tokens = 64}));
    std::vector<GenerationRequest> requests = ragged_requests(12, 90, 20);
    for (size_t i = 1; i < requests.size(); i += 2) requests[i].samples = {8, 9};
    const auto tokens = run(engine, requests);
    for (size_t i = 0; i < requests.size(); i += 2) {
      EXPECT_LT(gaps_of(engine, requests[i], tokens[i]).largest, tie(noise)) << "request " << i;
    }
  }
}

// Prompts that come while replies are decoded, in chunks between their steps and behind keys that sampled
// attention has read: dense tokens are best but for rounding, sampled ones follow their own draws and not
// those of another seed.
TEST_F(CudaEngine, PromptsInChunksBesideRepliesOfEveryMethod) {
  const double noise = rounding_noise(kDeviceModel);
  for (kernels::AttentionMethod method : kernels::testing::every_method()) {
    SCOPED_TRACE(kernels::describe(method));
    Engine engine(kDeviceModel, on_device({.attention = method,
                                           .max_sequences = 24,
                                           .prefill_chunk_tokens = 128,
                                           .chunked_prefill_tokens = 48}));
    std::vector<GenerationRequest> requests = ragged_requests(18, 170, 30);
    for (size_t i = 1; i < requests.size(); i += 2) requests[i].samples = {8, 9};
    std::vector<GenerationResult> results;
    for (size_t step = 0, next = 0; next < requests.size() || engine.pending() > 0; ++step) {
      if (step % 2 == 0 && next < requests.size()) engine.submit(requests[next++]);
      std::ranges::move(engine.step(), std::back_inserter(results));
    }
    ASSERT_THAT(results, SizeIs(requests.size()));
    std::ranges::sort(results, {}, &GenerationResult::id);
    double own = 0, other = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Gaps gaps = gaps_of(engine, requests[i], results[i].tokens);
      if (i % 2 == 0) {
        EXPECT_LT(gaps.largest, tie(noise)) << "request " << i;
        continue;
      }
      own += gaps.mean;
      GenerationRequest another = requests[i];
      another.key = kOtherKey;
      other += gaps_of(engine, another, results[i].tokens).mean;
    }
    // Without draws another seed changes nothing.
    const bool draws =
        method.score_stage != kernels::ScoreStage::kExact ||
        (method.estimator != kernels::Estimator::kExact && method.estimator != kernels::Estimator::kTopk);
    EXPECT_LT(own, draws ? 0.05 * other : tie(noise));
  }
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
  Engine dense(kDeviceModel,
               on_device({.attention = {.prefill = kernels::Prefill::kDense}, .prefill_chunk_tokens = 30}));
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
  Engine engine(kDeviceModel, on_device({.max_sequences = 2}));
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
      EXPECT_EQ(result.finish, Finish::kLength);
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
  Engine engine(kDeviceModel, options);
  for (uint32_t i = 0; i < 3; ++i) engine.submit(request_of(i, random_prompt(i, 40), 24));
  (void)engine.step();
  EXPECT_TRUE(engine.cancel(0));   // running, holds the whole cache
  EXPECT_TRUE(engine.cancel(1));   // queued
  EXPECT_FALSE(engine.cancel(1));  // gone
  const std::vector<GenerationResult> results = run_to_end(engine);
  ASSERT_THAT(results, SizeIs(1));
  EXPECT_EQ(results[0].id, 2u);
  EXPECT_LT(gaps_of(engine, request_of(2, random_prompt(2, 40), 24), results[0].tokens).largest,
            tie(rounding_noise(kDeviceModel)));
}

TEST_F(CudaEngine, LogitsWhileRequestsRunLeaveTheirTokensAsTheyAre) {
  Engine engine(kDeviceModel, on_device());
  const GenerationRequest request = request_of(0, random_prompt(6, 30), 20);
  const auto expected = run(engine, {request});
  engine.submit(request);
  for (int step = 0; step < 5; ++step) EXPECT_THAT(engine.step(), IsEmpty());
  (void)engine.logits(random_prompt(7, 100), {}, kKey, 0);
  EXPECT_EQ(tokens_of(run_to_end(engine)), expected);
}

// --- The end of a sequence

TEST_F(CudaEngine, EndsAtAnEosTokenUnlessToldNotTo) {
  Engine engine(kDeviceModel, on_device());
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
    EXPECT_EQ(result.finish, Finish::kEos);
    EXPECT_EQ(result.tokens, std::vector<int32_t>(through.begin(), eos + 1));
    return;
  }
  FAIL() << "no prompt leads to an eos token; the test proves nothing";
}

TEST_F(CudaEngine, WithWeightsThatAreNotNumbersIsReportedByEveryStep) {
  const CopiedCheckpoint model(kDeviceModel);
  model.make_norm_nan();
  Engine engine(model.path(), on_device());
  for (uint64_t id = 0; id < 2; ++id) {
    engine.submit(request_of(id, {3, 4}, 4));
    EXPECT_THAT([&] { (void)engine.step(); }, ThrowsMessage<Error>(Names("logit")));
    EXPECT_TRUE(engine.cancel(id));
  }
}

// --- Refusals, all of them when the engine is made: a large checkpoint takes long to load and longer to run.

template <class Expected>
void expect_refusal(const std::filesystem::path& model, const EngineOptions& options,
                    const std::vector<std::string>& named) {
  try {
    Engine engine(model, options);
    ADD_FAILURE() << "the engine was made; expected a refusal with " << testing::PrintToString(named);
  } catch (const Expected& error) {
    EXPECT_THAT(error.what(), NamesAll(named));
  }
}

// Known without a device and without weights.
TEST(CudaEngineOptions, WithADtypeThatTheDeviceDoesNotServeAreUnsupported) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    EngineOptions options = on_device();
    options.dtype = dtype;
    expect_refusal<Unsupported>(kDeviceModel, options,
                                {"dtype", std::string(kernels::name(dtype)), "bfloat16"});
  }
}

TEST_F(CudaEngine, OnADeviceThatIsNotThereIsRefused) {
  EngineOptions options = on_device();
  options.device = "cuda:99";
  expect_refusal<CudaError>(kDeviceModel, options, {"99"});
}

TEST_F(CudaEngine, WithPagesThatTheKernelsDoNotHaveIsUnsupported) {
  for (const int32_t page_size : {5, 8, 24}) {
    expect_refusal<Unsupported>(kDeviceModel, on_device({.page_size = page_size}),
                                {std::to_string(page_size), "16"});
  }
}

TEST_F(CudaEngine, WithTilesThatTheKernelsDoNotHaveIsRefused) {
  for (const Estimator estimator : {Estimator::kProp, Estimator::kFlash}) {
    expect_refusal<InvalidArgument>(
        kDeviceModel, on_device({.attention = {.estimator = estimator, .tile = 100}}), {"100", "64"});
  }
}

TEST_F(CudaEngine, OfAModelWithHeadsThatTheKernelsDoNotHaveIsUnsupported) {
  expect_refusal<Unsupported>(kCheckpoints / "llama_group4", on_device(), {"head_dim", "8"});
}

TEST_F(CudaEngine, WithACacheBeyondTheDevicesMemoryIsRefusedWithTheNumbers) {
  EngineOptions options = on_device();
  // Of 2 layers, keys and values, 1 head, 64 elements, 2 bytes; and a norm of each value, 4 bytes.
  options.cache_tokens = int64_t{1} << 34;
  expect_refusal<Error>(
      kDeviceModel, options,
      {std::to_string(options.cache_tokens), std::to_string(options.cache_tokens * 520), "cache_tokens"});
}

TEST_F(CudaEngine, SizesTheCacheForEverySlotByDefault) {
  EngineOptions options = on_device({.max_sequences = 3});
  options.cache_tokens = 0;
  EXPECT_EQ(Engine(kDeviceModel, options).options().cache_tokens, 3 * 512);
}

}  // namespace
}  // namespace allot::model
