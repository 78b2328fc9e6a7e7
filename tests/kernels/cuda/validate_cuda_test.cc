// What the host refuses before a CUDA launch, with the values in the message. Nothing here touches a GPU: the
// pointers are numbers that nobody follows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "kernels/attention_cuda.h"
#include "tests/kernels/cuda/device_limits.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

template <class T>
T* address(uintptr_t number) {
  return reinterpret_cast<T*>(number);
}

enum class Refusal { kNone, kInvalidArgument, kUnsupported, kOther };

struct Outcome {
  Refusal refusal = Refusal::kNone;
  std::string message = "accepted";
};

Outcome outcome_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return {Refusal::kInvalidArgument, error.what()};
  } catch (const Unsupported& error) {
    return {Refusal::kUnsupported, error.what()};
  } catch (const std::exception& error) {
    return {Refusal::kOther, error.what()};
  }
  return {};
}

// A decode launch of 6 sequences that passes; each test breaks one thing.
class ValidateCuda : public ::testing::Test {
 protected:
  ValidateCuda() {
    params_.batch = 6;
    params_.num_q_heads = 32;
    params_.num_kv_heads = 8;
    params_.head_dim = 128;
    params_.page_size = 16;
    params_.max_pages = 64;
    params_.num_pages = 400;
    params_.dtype = DType::kBFloat16;
    params_.scale = 0.088f;
    params_.query = address<const void>(0x10000);
    params_.query_stride = 4096;
    params_.key_pages = address<const void>(0x20010);
    params_.value_pages = address<const void>(0x30020);
    params_.page_table = address<const int32_t>(0x40004);
    params_.query_start = address<const int64_t>(0x50008);
    params_.lengths = address<const int32_t>(0x60004);
    params_.out = address<void>(0x70030);
    params_.method.estimator = Estimator::kSys;
    params_.budgets = address<const int32_t>(0x80004);
    params_.draws = address<const SequenceDraws>(0x90004);
  }

  Outcome outcome() const {
    return outcome_of([&] { validate_cuda(params_, bounds_, limits_); });
  }

  // The launch is refused with a message that names every value.
  void expect_refused(Refusal refusal, const std::vector<std::string>& values) const {
    const Outcome found = outcome();
    EXPECT_EQ(found.refusal, refusal) << found.message;
    EXPECT_THAT(found.message, NamesAll(values));
  }
  void expect_invalid(const std::vector<std::string>& values) const {
    expect_refused(Refusal::kInvalidArgument, values);
  }
  void expect_unsupported(const std::vector<std::string>& values) const {
    expect_refused(Refusal::kUnsupported, values);
  }

  AttentionParams params_;
  LaunchBounds bounds_{.num_queries = 6, .max_queries = 1, .max_length = 1024, .max_budget = 128};
  DeviceLimits limits_ = kH200;
};

TEST_F(ValidateCuda, AWholeLaunchIsAccepted) {
  EXPECT_EQ(outcome().message, "accepted");
}

TEST_F(ValidateCuda, EveryShapeOfTheContractIsAccepted) {
  for (const int32_t architecture : {80, 86, 89, 90, 100, 120}) {
    limits_ = {.compute_capability = architecture,
               .multiprocessors = 20,
               .shared_bytes_per_block = architecture == 80                         ? 166912
                                         : architecture < 90 || architecture == 120 ? 101376
                                                                                    : 232448};
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      for (const int32_t head_dim : {32, 64, 96, 128, 256}) {
        for (int32_t group = 1; group <= 16; ++group) {
          for (const int32_t page_size : {16, 32, 64, 128, 1024, 262144}) {
            for (const Estimator estimator :
                 {Estimator::kExact, Estimator::kIid, Estimator::kStrat, Estimator::kSys, Estimator::kProp,
                  Estimator::kFlash, Estimator::kThreshold}) {
              params_.dtype = dtype;
              params_.head_dim = head_dim;
              params_.num_q_heads = 8 * group;
              params_.query_stride = int64_t{8} * group * head_dim;
              params_.page_size = page_size;
              params_.method.estimator = estimator;
              for (const int32_t max_queries : {1, 6}) {
                bounds_.max_queries = max_queries;
                ASSERT_EQ(outcome().message, "accepted")
                    << "architecture " << architecture << " " << name(dtype) << " head_dim " << head_dim
                    << " group " << group << " page_size " << page_size << " " << name(estimator)
                    << " max_queries " << max_queries;
              }
            }
          }
        }
      }
    }
  }
}

TEST_F(ValidateCuda, TheLargestBoundsAreAccepted) {
  params_.batch = 1024;
  params_.max_pages = 16384;
  params_.num_pages = 1 << 24;
  bounds_ = {.num_queries = 1024,
             .max_queries = 1,
             .max_length = kMaxCudaLength,
             .max_budget = kMaxCudaLength,
             .any_dense = true};
  EXPECT_EQ(outcome().message, "accepted");
  EXPECT_GT(cuda_workspace_bytes(params_, bounds_, limits_), 0u);
}

TEST_F(ValidateCuda, AnEmptyBatchNeedsNoPointers) {
  AttentionParams empty = params_;
  empty.batch = 0;
  empty.query = empty.key_pages = empty.value_pages = nullptr;
  empty.page_table = empty.lengths = empty.budgets = nullptr;
  empty.query_start = nullptr;
  empty.draws = nullptr;
  empty.out = nullptr;
  params_ = empty;
  bounds_ = {};
  EXPECT_EQ(outcome().message, "accepted");
}

TEST_F(ValidateCuda, ANegativeBatchIsRefused) {
  params_.batch = -3;
  expect_invalid({"batch", "-3"});
}

TEST_F(ValidateCuda, Float32HasNoKernel) {
  params_.dtype = DType::kFloat32;
  expect_unsupported({"float32", "bfloat16", "float16"});
}

TEST_F(ValidateCuda, OtherHeadDimensionsHaveNoKernel) {
  params_.query_stride = 32 * 512;
  for (const int32_t bad : {8, 48, 80, 112, 192}) {
    params_.head_dim = bad;
    expect_unsupported({"head_dim", std::to_string(bad), "64", "96", "128", "256"});
  }
  for (const int32_t bad : {0, -64, 100, 512}) {
    params_.head_dim = bad;
    EXPECT_THAT(outcome().message, Names("head_dim", bad));
  }
}

TEST_F(ValidateCuda, HeadGroupsAboveSixteenHaveNoKernel) {
  params_.num_kv_heads = 1;
  params_.num_q_heads = 17;
  expect_unsupported({"17", "16"});
}

TEST_F(ValidateCuda, HeadsThatDoNotDivideAreRefused) {
  for (const int32_t bad : {30, 7, 0, -8}) {
    params_.num_q_heads = bad;
    expect_invalid({std::to_string(bad) + " query heads", "8 KV heads"});
  }
  params_.num_q_heads = 32;
  params_.num_kv_heads = 0;
  expect_invalid({"32 query heads", "0 KV heads"});
}

TEST_F(ValidateCuda, TheFirstHeadIsThatOfAKvHead) {
  for (const int32_t bad : {-4, 1, 6, 65536}) {  // of 32 query heads over 8 KV heads
    params_.first_head = bad;
    expect_invalid({"first_head is " + std::to_string(bad), "multiple of 4", "at most 65504"});
  }
}

TEST_F(ValidateCuda, AtMost1024QueryHeadsAreAccepted) {
  params_.num_kv_heads = 128;
  params_.num_q_heads = 1024;
  params_.query_stride = 1024 * 128;
  EXPECT_EQ(outcome().message, "accepted");
  params_.num_kv_heads = 1025;
  params_.num_q_heads = 1025;
  params_.query_stride = 1025 * 128;
  expect_invalid({"1025 query heads", "1025 KV heads", "1024"});
}

TEST_F(ValidateCuda, PagesAreMultiplesOfSixteenTokens) {
  for (const int32_t bad : {1, 8, 24, 100}) {
    params_.page_size = bad;
    params_.max_pages = 1024;
    expect_unsupported({"page_size", std::to_string(bad), "16"});
  }
  for (const int32_t bad : {0, -16}) {
    params_.page_size = bad;
    EXPECT_THAT(outcome().message, Names("page_size", bad));
  }
}

TEST_F(ValidateCuda, PointersAreAlignedToSixteenBytes) {
  const AttentionParams good = params_;
  params_.query = address<const void>(0x10008);
  expect_invalid({"query", "16"});
  params_ = good;
  params_.key_pages = address<const void>(0x20002);
  expect_invalid({"key_pages", "16"});
  params_ = good;
  params_.value_pages = address<const void>(0x30004);
  expect_invalid({"value_pages", "16"});
  params_ = good;
  params_.out = address<void>(0x70038);
  expect_invalid({"out", "16"});
}

TEST_F(ValidateCuda, TheQueryStrideKeepsQueriesAligned) {
  for (const int64_t bad : {4097, 4100, 4103}) {
    params_.query_stride = bad;
    expect_invalid({"query_stride", std::to_string(bad), "8"});
  }
  params_.query_stride = 4104;
  EXPECT_EQ(outcome().message, "accepted");
}

TEST_F(ValidateCuda, AShortStrideIsRefused) {
  params_.query_stride = 4088;
  expect_invalid({"query_stride", "4088", "4096"});
}

TEST_F(ValidateCuda, NullPointersAreNamed) {
  const AttentionParams good = params_;
  const auto expect_named = [&](const char* field, auto member) {
    params_ = good;
    params_.*member = nullptr;
    expect_invalid({field, "null"});
  };
  expect_named("query", &AttentionParams::query);
  expect_named("key_pages", &AttentionParams::key_pages);
  expect_named("value_pages", &AttentionParams::value_pages);
  expect_named("page_table", &AttentionParams::page_table);
  expect_named("query_start", &AttentionParams::query_start);
  expect_named("lengths", &AttentionParams::lengths);
  expect_named("out", &AttentionParams::out);
  expect_named("budgets", &AttentionParams::budgets);
  expect_named("draws", &AttentionParams::draws);
}

TEST_F(ValidateCuda, ExactNeedsNeitherBudgetsNorDraws) {
  params_.method.estimator = Estimator::kExact;
  params_.budgets = nullptr;
  params_.draws = nullptr;
  EXPECT_EQ(outcome().message, "accepted");
  params_.method.score_stage = ScoreStage::kBernoulli;
  params_.method.score_budget = 4;
  expect_invalid({"draws", "null"});
}

TEST_F(ValidateCuda, TheScaleIsPositiveAndFinite) {
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    params_.scale = bad;
    expect_invalid({"scale"});
  }
}

TEST_F(ValidateCuda, TheLayerFitsItsPlaceInTheDraws) {
  params_.layer = 65535;
  expect_invalid({"layer", "65535"});
}

TEST_F(ValidateCuda, TilesHaveKeys) {
  for (const Estimator estimator : {Estimator::kProp, Estimator::kFlash}) {
    params_.method.estimator = estimator;
    for (const int32_t bad : {0, -64}) {
      params_.method.tile = bad;
      expect_invalid({std::string(name(estimator)), std::to_string(bad)});
    }
  }
}

TEST_F(ValidateCuda, ABernoulliStageNeedsABudget) {
  params_.method.score_stage = ScoreStage::kBernoulliStrat;
  for (const int32_t bad : {0, -1, 1 << 30}) {
    params_.method.score_budget = bad;
    expect_invalid({"bernoulli-strat", std::to_string(bad)});
  }
  params_.method.score_budget = 8;
  EXPECT_EQ(outcome().message, "accepted");
}

TEST_F(ValidateCuda, ABudgetOfRowsNeedsAnEstimatorWhoseHeadsChooseTogether) {
  params_.method.unit = BudgetUnit::kRows;
  expect_invalid({"sys", "rows", "joint", "level"});
  for (const Estimator estimator : {Estimator::kJoint, Estimator::kLevel}) {
    params_.method.estimator = estimator;
    EXPECT_EQ(outcome().message, "accepted");
  }
}

TEST_F(ValidateCuda, ValueNormsNeedTheNorms) {
  params_.method.estimator = Estimator::kJoint;
  EXPECT_EQ(outcome().message, "accepted");
  set_parameter(&params_.method, "value-norms", 1);
  expect_invalid({"value_norms", "null"});
  params_.value_norms = address<float>(0x90008);
  expect_invalid({"value_norms", "0x90008", "16"});
  params_.value_norms = address<float>(0x90010);
  EXPECT_EQ(outcome().message, "accepted");
}

TEST_F(ValidateCuda, AMeanGroupQueryNeedsABernoulliStage) {
  params_.method.mean_group_query = true;
  expect_invalid({"mean_group_query"});
}

TEST_F(ValidateCuda, TheLengthBoundHasItsLimits) {
  for (const int32_t bad : {kMaxCudaLength + 1, -1, std::numeric_limits<int32_t>::max()}) {
    params_.max_pages = 1 << 20;
    bounds_.max_length = bad;
    expect_invalid({"max_length", std::to_string(bad), std::to_string(kMaxCudaLength)});
  }
}

TEST_F(ValidateCuda, TheLengthBoundFitsThePageTable) {
  bounds_.max_length = 1025;
  expect_invalid({"max_length", "1025", "64"});
}

TEST_F(ValidateCuda, TheBudgetBoundHasItsLimits) {
  for (const int32_t bad : {kMaxCudaLength + 1, -1, std::numeric_limits<int32_t>::min()}) {
    bounds_.max_budget = bad;
    expect_invalid({"max_budget", std::to_string(bad), std::to_string(kMaxCudaLength)});
  }
}

TEST_F(ValidateCuda, TheQueryBoundsFitEachOther) {
  bounds_.num_queries = -1;
  expect_invalid({"num_queries", "-1"});
  bounds_.num_queries = 6;
  for (const int32_t bad : {0, -2}) {
    bounds_.max_queries = bad;
    expect_invalid({"max_queries", std::to_string(bad)});
  }
  // 6 sequences of one query each cannot have 7.
  bounds_ = {.num_queries = 7, .max_queries = 1, .max_length = 1024, .max_budget = 128};
  expect_invalid({"num_queries", "7", "6"});
}

TEST_F(ValidateCuda, RowsAreCountedIn32Bits) {
  // 32 heads a query: 2^31 rows are one too many.
  bounds_ = {.num_queries = 67108863, .max_queries = 1 << 30, .max_length = 1024, .max_budget = 128};
  EXPECT_EQ(outcome().message, "accepted");
  bounds_.num_queries = 67108864;
  expect_invalid({"num_queries", "67108864", "32 query heads", "67108863"});
  bounds_.num_queries = int64_t{1} << 40;
  expect_invalid({"num_queries", "1099511627776", "67108863"});
}

TEST_F(ValidateCuda, TheWorkspaceOfARefusedShapeHasNoSize) {
  bounds_.max_length = 1025;
  EXPECT_EQ(outcome_of([&] { (void)cuda_workspace_bytes(params_, bounds_, limits_); }).message,
            outcome().message);
  bounds_.max_length = 1024;
  params_.dtype = DType::kFloat32;
  EXPECT_EQ(outcome_of([&] { (void)cuda_workspace_bytes(params_, bounds_, limits_); }).message,
            outcome().message);
}

TEST_F(ValidateCuda, AnOldGpuIsRefused) {
  limits_.compute_capability = 75;
  const Outcome found = outcome();
  EXPECT_EQ(found.refusal, Refusal::kUnsupported) << found.message;
  EXPECT_THAT(found.message, Names("7.5", "8.0"));
}

TEST_F(ValidateCuda, AttendRefusesWhatValidateRefuses) {
  params_.head_dim = 80;
  const Outcome found = outcome_of([&] {
    attend_cuda(params_, bounds_, limits_, {address<void>(0x100000), size_t{1} << 30}, nullptr);
  });
  EXPECT_EQ(found.refusal, Refusal::kUnsupported) << found.message;
  EXPECT_EQ(found.message, outcome().message);
}

// A launch over split keys that passes.
class ValidateSplitKeys : public ValidateCuda {
 protected:
  ValidateSplitKeys() {
    params_.query = params_.key_pages = nullptr;  // not read
    params_.split = {.high = address<const void>(0xA0010),
                     .low = address<const int8_t>(0xB0010),
                     .query = address<const int8_t>(0xC0010),
                     .query_units = address<const float>(0xD0004)};
  }
};

TEST_F(ValidateSplitKeys, HaveKernelsInDecodeForHeadsOf64And128) {
  for (const int32_t head_dim : {64, 128}) {
    for (int32_t group = 1; group <= 16; ++group) {
      for (const Estimator estimator :
           {Estimator::kExact, Estimator::kIid, Estimator::kStrat, Estimator::kSys, Estimator::kThreshold,
            Estimator::kJoint, Estimator::kPooled, Estimator::kLevel}) {
        params_.head_dim = head_dim;
        params_.num_q_heads = 8 * group;
        params_.query_stride = int64_t{8} * group * head_dim;
        params_.method.estimator = estimator;
        EXPECT_EQ(outcome().message, "accepted") << head_dim << " " << group << " " << name(estimator);
      }
    }
  }
}

TEST_F(ValidateSplitKeys, HaveNoKernelElsewhere) {
  params_.head_dim = 96;
  params_.query_stride = 32 * 96;
  expect_unsupported({"head_dim 96", "64 and 128"});
  params_.head_dim = 128;
  params_.query_stride = 4096;
  for (const Estimator estimator : {Estimator::kProp, Estimator::kFlash, Estimator::kTopk}) {
    params_.method.estimator = estimator;
    expect_unsupported(
        {std::string(name(estimator)), "exact, iid, strat, sys, threshold, joint, pooled and level"});
  }
  params_.method.estimator = Estimator::kSys;
  params_.method.score_stage = ScoreStage::kBernoulli;
  params_.method.score_budget = 4;
  expect_unsupported({"bernoulli", "exact"});
  params_.method.score_stage = ScoreStage::kExact;
  bounds_.max_queries = 2;
  expect_unsupported({"6 queries of 6 sequences"});
}

TEST_F(ValidateSplitKeys, ServeSequencesThatAttendExactlyUnlessThereAreSixteenBitKeys) {
  bounds_.any_dense = true;
  EXPECT_EQ(outcome().message, "accepted");
  params_.key_pages = address<const void>(0x20010);
  expect_invalid({"query", "null"});
  params_.query = address<const void>(0x10010);
  EXPECT_EQ(outcome().message, "accepted");
  params_.key_pages = address<const void>(0x20008);
  expect_invalid({"key_pages", "0x20008", "16"});
  params_.key_pages = address<const void>(0x20010);
  params_.method.estimator = Estimator::kExact;
  expect_invalid({"key_pages", "split.high"});
}

TEST_F(ValidateSplitKeys, BesideExactAttentionNeedRoomForItsIndexOfSequences) {
  params_.query = params_.key_pages = address<const void>(0x10010);
  params_.num_q_heads = 16 * params_.num_kv_heads;
  params_.query_stride = int64_t{params_.num_q_heads} * params_.head_dim;
  params_.batch = bounds_.num_queries = kMaxCudaBatch;
  limits_.shared_bytes_per_block = 99 * 1024;
  EXPECT_EQ(outcome().message, "accepted");
  bounds_.any_dense = true;
  expect_unsupported({"8192 sequences", "101376"});
  params_.batch = bounds_.num_queries = 1024;
  EXPECT_EQ(outcome().message, "accepted");
}

// Whoever works on a row holds the sizes of all its keys, of rows of any length.
TEST_F(ValidateSplitKeys, HaveKernelsWithNormsWhereBlocksSeeEachOthersMemory) {
  params_.method.estimator = Estimator::kJoint;
  set_parameter(&params_.method, "value-norms", 1);
  params_.value_norms = address<const float>(0xE0010);
  params_.max_pages = kMaxCudaLength / params_.page_size;
  for (const int32_t length : {200, 1024, 5000, 30000, kMaxCudaLength}) {
    for (const int32_t budget : {8, 32, 33, 2048}) {
      bounds_.max_length = length;
      bounds_.max_budget = budget;
      EXPECT_EQ(outcome().message, "accepted") << length << " keys, " << budget << " samples";
    }
  }
  limits_.compute_capability = 89;
  expect_unsupported({"norms", "8.9", "9.0", "value-norms 0"});
  set_parameter(&params_.method, "value-norms", 0);
  EXPECT_EQ(outcome().message, "accepted");
}

TEST_F(ValidateSplitKeys, NeedAlignedArrays) {
  const SplitKeys good = params_.split;
  params_.split.low = address<const int8_t>(0xB0008);
  expect_invalid({"split.low", "0xb0008", "16"});
  params_.split = good;
  params_.split.high = address<const void>(0xA0004);
  expect_invalid({"split.high", "0xa0004", "16"});
  params_.split = good;
  params_.split.query = nullptr;
  expect_invalid({"split.query", "null"});
  params_.split = good;
  params_.split.query_units = nullptr;
  expect_invalid({"split.query_units", "null"});
  params_.split = good;
  params_.split.high = nullptr;
  expect_invalid({"split.low", "split.high"});
}

TEST_F(ValidateCuda, AttendRefusesAWorkspaceThatIsTooSmallNullOrMisaligned) {
  const size_t needed = cuda_workspace_bytes(params_, bounds_, limits_);
  ASSERT_GT(needed, 0u);
  const auto attempt = [&](CudaWorkspace workspace) {
    return outcome_of([&] { attend_cuda(params_, bounds_, limits_, workspace, nullptr); });
  };
  for (const size_t bytes : {needed - 1, size_t{0}}) {
    const Outcome found = attempt({address<void>(0x100000), bytes});
    EXPECT_EQ(found.refusal, Refusal::kInvalidArgument) << found.message;
    EXPECT_THAT(found.message, Names("workspace", bytes, needed));
  }
  const Outcome misaligned = attempt({address<void>(0x100080), needed});
  EXPECT_EQ(misaligned.refusal, Refusal::kInvalidArgument) << misaligned.message;
  EXPECT_THAT(misaligned.message, Names("workspace", 256));
  const Outcome null = attempt({nullptr, needed});
  EXPECT_EQ(null.refusal, Refusal::kInvalidArgument) << null.message;
  EXPECT_THAT(null.message, Names("workspace", "0x0"));
}

TEST(DeviceLimitsOf, ADeviceThatDoesNotExistIsRefused) {
  for (const int bad : {-1, 1000}) EXPECT_THROW((void)device_limits(bad), CudaError) << "device " << bad;
}

}  // namespace
}  // namespace allot::kernels
