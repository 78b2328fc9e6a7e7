#include "bench/generate.h"

#include <algorithm>
#include <chrono>

#include "base/philox.h"

namespace allot::bench {

model::GenerationRequest random_request(uint32_t number, int32_t prompt_tokens, int32_t new_tokens,
                                        const std::vector<int32_t>& samples, int32_t vocab_size) {
  model::GenerationRequest request;
  request.id = number;
  request.question = number;
  request.samples = samples;
  request.max_new_tokens = new_tokens;
  request.ignore_eos = true;
  for (int32_t place = 0; place < prompt_tokens; ++place) {
    const DrawRow row{
        .key = {}, .question = number, .layer = 0, .head = 0, .position = static_cast<uint32_t>(place)};
    request.prompt.push_back(static_cast<int32_t>(draw_bits(row, 0) % static_cast<uint32_t>(vocab_size)));
  }
  return request;
}

namespace {

model::GenerationRequest make_request(uint32_t number, const GenerateWorkload& workload, int32_t vocab_size) {
  model::GenerationRequest request =
      random_request(number, workload.prompt_tokens, workload.new_tokens, workload.samples, vocab_size);
  request.sampling = workload.sampling;
  return request;
}

GenerateTiming run_once(model::Engine& engine, const GenerateWorkload& workload) {
  const model::EngineCounters before = engine.counters();
  const auto start = std::chrono::steady_clock::now();
  for (int32_t i = 0; i < workload.prompts; ++i) {
    engine.submit(make_request(static_cast<uint32_t>(i), workload, engine.config().vocab_size));
  }
  GenerateTiming timing;
  while (engine.pending() > 0) {
    const double decoded = engine.counters().decode_seconds;
    (void)engine.step();
    if (const double seconds = engine.counters().decode_seconds - decoded; seconds > 0)
      timing.decode_steps.push_back(seconds);
  }
  timing.total_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const model::EngineCounters& after = engine.counters();
  timing.prefill_seconds = after.prefill_seconds - before.prefill_seconds;
  timing.decode_seconds = after.decode_seconds - before.decode_seconds;
  timing.prefill_tokens = after.prefill_tokens - before.prefill_tokens;
  timing.decode_tokens = after.decode_tokens - before.decode_tokens;
  return timing;
}

}  // namespace

std::vector<GenerateTiming> time_generation(model::Engine& engine, const GenerateWorkload& workload) {
  GenerateWorkload warm_up = workload;
  warm_up.new_tokens = std::min(workload.new_tokens, kWarmUpTokens);
  for (int i = 0; i < workload.warm_ups; ++i) run_once(engine, warm_up);
  std::vector<GenerateTiming> timings;
  for (int i = 0; i < workload.repetitions; ++i) timings.push_back(run_once(engine, workload));
  return timings;
}

namespace {
constexpr int kUntimed = 2;  // what is new to the engine, such as a size of batch, happens in these steps
}  // namespace

int32_t tokens_of_decode_steps(int steps) {
  // The first token comes with the prompt, and one step is handed over ahead.
  return kUntimed + steps + 2;
}

void run_decode_steps(model::Engine& engine, const GenerateWorkload& workload, int steps,
                      const std::function<void(const std::function<void()>& steps)>& around) {
  GenerateWorkload few = workload;
  few.new_tokens = tokens_of_decode_steps(steps);
  for (int32_t i = 0; i < few.prompts; ++i) {
    engine.submit(make_request(static_cast<uint32_t>(i), few, engine.config().vocab_size));
  }
  for (int decoded = 0; decoded < kUntimed;) {
    const int64_t before = engine.counters().decode_tokens;
    (void)engine.step();
    decoded += engine.counters().decode_tokens > before ? 1 : 0;
  }
  engine.wait_for_device();  // the step that was handed over ahead is none of those
  around([&] {
    for (int i = 0; i < steps; ++i) (void)engine.step();
    engine.wait_for_device();
  });
  while (engine.pending() > 0) (void)engine.step();
}

GenerateTiming median(std::vector<GenerateTiming> timings) {
  const auto middle = timings.begin() + static_cast<std::ptrdiff_t>(timings.size() / 2);
  std::ranges::nth_element(timings, middle, {}, &GenerateTiming::total_seconds);
  return *middle;
}

}  // namespace allot::bench
