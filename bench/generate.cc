#include "bench/generate.h"

#include <algorithm>
#include <chrono>

#include "base/philox.h"

namespace allot::bench {
namespace {

int32_t random_token(uint32_t prompt, uint32_t place, int32_t vocab_size) {
  const DrawRow row{.key = {}, .question = prompt, .layer = 0, .head = 0, .position = place};
  return static_cast<int32_t>(draw_bits(row, 0) % static_cast<uint32_t>(vocab_size));
}

model::GenerationRequest make_request(uint32_t number, const GenerateWorkload& workload, int32_t vocab_size) {
  model::GenerationRequest request;
  request.id = number;
  request.question = number;
  request.samples = workload.samples;
  request.max_new_tokens = workload.new_tokens;
  request.ignore_eos = true;
  for (int32_t place = 0; place < workload.prompt_tokens; ++place) {
    request.prompt.push_back(random_token(number, static_cast<uint32_t>(place), vocab_size));
  }
  return request;
}

GenerateTiming run_once(model::Engine& engine, const GenerateWorkload& workload) {
  const model::EngineCounters before = engine.counters();
  const auto start = std::chrono::steady_clock::now();
  for (int32_t i = 0; i < workload.prompts; ++i) {
    engine.submit(make_request(static_cast<uint32_t>(i), workload, engine.config().vocab_size));
  }
  while (engine.pending() > 0) (void)engine.step();
  const std::chrono::duration<double> total = std::chrono::steady_clock::now() - start;
  return {.total_seconds = total.count(),
          .prefill_seconds = engine.counters().prefill_seconds - before.prefill_seconds,
          .decode_seconds = engine.counters().decode_seconds - before.decode_seconds};
}

}  // namespace

std::vector<GenerateTiming> time_generation(model::Engine& engine, const GenerateWorkload& workload) {
  run_once(engine, workload);
  std::vector<GenerateTiming> timings;
  for (int i = 0; i < workload.repetitions; ++i) timings.push_back(run_once(engine, workload));
  return timings;
}

GenerateTiming median(std::vector<GenerateTiming> timings) {
  const auto middle = timings.begin() + static_cast<std::ptrdiff_t>(timings.size() / 2);
  std::ranges::nth_element(timings, middle, {}, &GenerateTiming::total_seconds);
  return *middle;
}

}  // namespace allot::bench
