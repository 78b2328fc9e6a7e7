// An allot-model whose worker answers by chance instead of running a model: a question is right with the
// chance that a calibrated landscape gives its schedule, and a divergence is that landscape's noise.
// Everything else of it is the real worker command, so that `allot tune` is tested with real processes where
// no LibTorch is.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "app/cli/command_line.h"
#include "app/cli/stop_signal.h"
#include "app/run/devices.h"
#include "app/run/worker_command.h"
#include "base/philox.h"
#include "policy/simulation.h"
#include "wire/messages.pb.h"

namespace allot::app {
namespace {

class SimulatedRunner final : public worker::EpisodeRunner {
 public:
  explicit SimulatedRunner(uint32_t run_seed) : run_seed_(run_seed), landscape_(policy::tiny_landscape()) {}

  // One episode after the other: each schedule is asked for when the last is answered, so a run is the same
  // every time.
  int capacity() const override { return 1; }

  void start(Episode episode) override { episodes_.emplace(episode.id, std::move(episode)); }

  std::vector<worker::EpisodeResult> advance() override {
    std::vector<worker::EpisodeResult> results;
    for (const auto& [id, episode] : episodes_) {
      if (held(id)) {
        pause_for(std::chrono::milliseconds(2));
        return {};
      }
      worker::EpisodeResult result;
      result.episode = id;
      for (const uint32_t question : episode.questions) {
        const DrawRow row{.key = {run_seed_, episode.sampling_seed}, .question = question};
        result.results.push_back(
            {.question = question,
             .score = episode.kind == RewardKind::kDivergence
                          ? divergence(episode)
                          : (draw_uniform(row, 0) < chance(episode, question) ? 1.0 : 0.0),
             .prompt_tokens = 10,
             .output_tokens = 20});
      }
      results.push_back(std::move(result));
    }
    episodes_.clear();
    return results;
  }

  void cancel(EpisodeId episode) override { episodes_.erase(episode); }

 private:
  static bool held(EpisodeId episode) {
    const char* file = std::getenv("ALLOT_SIMULATED_HOLD");
    return episode.value >= 20 && file != nullptr && std::filesystem::exists(file);
  }

  double chance(const Episode& episode, uint32_t question) const {
    return episode.samples.empty() ? landscape_.dense : landscape_.chance({episode.samples}, question);
  }

  double divergence(const Episode& episode) const {
    return episode.samples.empty() ? 0 : landscape_.noise({episode.samples});
  }

  uint32_t run_seed_;
  policy::Landscape landscape_;
  std::map<EpisodeId, Episode> episodes_;
};

// As many GPUs as ALLOT_SIMULATED_GPUS says.
model::CudaDevices simulated_devices() {
  const char* text = std::getenv("ALLOT_SIMULATED_GPUS");
  model::CudaDevices found;
  for (int32_t index = 0; text != nullptr && index < std::stoi(text); ++index) {
    found.devices.push_back({.index = index, .product = "Simulated GPU", .memory_bytes = int64_t{80} << 30});
  }
  if (found.devices.empty()) found.reason = "this simulation has none";
  return found;
}

int run_simulated_worker(std::span<const std::string> arguments) {
  return run_worker_command(
      arguments,
      [](const WorkerOptions& options) -> WorkerDevice {
        const Device device = parse_device(options.device);
        if (device.kind == Device::Kind::kCpu) return {"simulation"};
        return {"simulation on " + describe(require_cuda_device(device, simulated_devices()))};
      },
      [](const wire::RunSpec& spec, const WorkerOptions&) {
        return std::make_unique<SimulatedRunner>(spec.seed());
      });
}

int run_simulated_devices(std::span<const std::string> arguments) {
  return run_devices_command(arguments, simulated_devices, [](int32_t) { return model::CudaCheck::kWorks; });
}

}  // namespace
}  // namespace allot::app

int main(int argc, char** argv) {
  using namespace allot::app;
  static constexpr Command kCommands[] = {
      {"worker", "answer by chance", true, run_simulated_worker},
      {"devices", "list devices that do not exist", true, run_simulated_devices},
  };
  return run_command_line(kCommands, std::vector<std::string>(argv + 1, argv + argc));
}
