// generate_bench MODEL [float32|bfloat16] [samples per layer] [threads]: one line of JSON with medians over
// repetitions.
#include <fmt/core.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "bench/generate.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr,
               "usage: {} MODEL [float32|bfloat16] [samples per layer, 0 = dense] [threads, 0 = all] "
               "[repetitions]\n",
               argv[0]);
    return 2;
  }
  try {
    allot::model::EngineOptions options;
    options.dtype = allot::kernels::parse_dtype(argc > 2 ? argv[2] : "bfloat16");
    const int samples = argc > 3 ? std::stoi(argv[3]) : 0;
    options.threads = argc > 4 ? std::stoi(argv[4]) : 0;
    allot::model::Engine engine(argv[1], options);
    allot::bench::GenerateWorkload workload;
    if (argc > 5) workload.repetitions = std::max(1, std::stoi(argv[5]));
    if (samples > 0) workload.samples.assign(engine.config().num_layers, samples);
    const allot::bench::GenerateTiming timing = median(time_generation(engine, workload));
    fmt::print(
        "{{\"what\":\"allot\",\"dtype\":\"{}\",\"samples\":{},\"threads\":{},\"seconds\":{:.4f},\"prefill_"
        "seconds\":{:.4f},"
        "\"decode_seconds\":{:.4f},\"new_tokens_per_second\":{:.0f}}}\n",
        name(options.dtype), samples, engine.options().threads, timing.total_seconds, timing.prefill_seconds,
        timing.decode_seconds, workload.prompts * workload.new_tokens / timing.total_seconds);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", argv[0], error.what());
    return 1;
  }
  return 0;
}
