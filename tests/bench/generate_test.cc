#include "bench/generate.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

#include "tests/model/checkpoints.h"
#include "tests/model/delayed_backend.h"
#include "tests/model/generate.h"

namespace allot::bench {
namespace {

TEST(MedianTiming, IsTheRepetitionInTheMiddleAsAWhole) {
  std::vector<GenerateTiming> timings(3);
  timings[0].total_seconds = 5;
  timings[0].prefill_seconds = 1;
  timings[1].total_seconds = 1;
  timings[1].prefill_seconds = 3;
  timings[2].total_seconds = 2;
  timings[2].prefill_seconds = 2;
  const GenerateTiming middle = median(timings);
  EXPECT_EQ(middle.total_seconds, 2);
  EXPECT_EQ(middle.prefill_seconds, 2);
}

// A step that was handed over before the first of them is none of them, nor is one that still waits behind
// them.
TEST(RunDecodeSteps, RunsAsManyPassesAsStepsBetweenBeginAndEnd) {
  model::DelayedPasses passes;
  model::Engine engine(model::kLlamaGroup4, model::small_engine(), model::delayed(&passes));
  for (const int steps : {1, 5}) {
    GenerateWorkload workload;
    workload.prompts = 3;
    workload.prompt_tokens = 6;
    int64_t ran = 0;
    run_decode_steps(engine, workload, steps, [&](const std::function<void()>& all) {
      const int64_t before = passes.ran;
      all();
      ran = passes.ran - before;
    });
    EXPECT_EQ(ran, steps);
    EXPECT_EQ(engine.pending(), 0);
  }
}

}  // namespace
}  // namespace allot::bench
