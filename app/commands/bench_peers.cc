#include "app/commands/bench_peers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <sstream>

#include "app/cli/child_process.h"
#include "base/error.h"
#include "base/file.h"

namespace allot::app {
namespace {

constexpr std::chrono::hours kPatience(2);

std::vector<std::string> command_of(const DecodePeer& peer, const PeerWork& work) {
  const bench::GenerateWorkload& workload = work.workload;
  std::vector<std::string> command{peer.python, peer.script.string(), work.model.string()};
  const auto add = [&](const char* option, const std::string& value) {
    command.insert(command.end(), {option, value});
  };
  add("--dtype", work.dtype);
  add("--device", work.device);
  add("--threads", std::to_string(work.threads));
  add("--repetitions", std::to_string(workload.repetitions));
  add("--prompts", std::to_string(work.prompts));
  add("--prompt-tokens", std::to_string(workload.prompt_tokens));
  add("--new-tokens", std::to_string(workload.new_tokens));
  add("--max-sequences", std::to_string(work.max_sequences));
  add("--temperature", fmt::to_string(workload.sampling.temperature));
  add("--top-p", fmt::to_string(workload.sampling.top_p));
  add("--repetition-penalty", fmt::to_string(workload.sampling.repetition_penalty));
  if (work.random_weights) add("--random-weights", std::to_string(*work.random_weights));
  return command;
}

// The line of JSON that the script ends with; what its libraries print as they end may follow it.
std::optional<PeerTiming> timing_in(const std::string& output) {
  std::optional<PeerTiming> timing;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('{')) continue;
    const auto json = nlohmann::ordered_json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    try {
      const PeerTiming read{
          .seconds = json.at("seconds").get<double>(),
          .prefill_seconds = json.at("prefill_seconds").get<double>(),
          .decode_seconds = json.at("seconds").get<double>() - json.at("prefill_seconds").get<double>(),
          .fastest_seconds = json.at("fastest_seconds").get<double>(),
          .slowest_seconds = json.at("slowest_seconds").get<double>(),
          .conditions = json.at("conditions")};
      if (read.conditions.is_object()) timing = read;
    } catch (const nlohmann::json::exception&) {  // another line of JSON
    }
  }
  return timing;
}

std::string last_line(std::string text) {
  text.erase(text.find_last_not_of(" \n") + 1);
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

PeerTiming run_decode_peer(const DecodePeer& peer, const PeerWork& work) {
  const auto log = std::filesystem::temp_directory_path() / fmt::format("allot-bench-{}.log", ::getpid());
  std::filesystem::remove(log);
  ChildProcess process(command_of(peer, work), log);
  const auto status = process.wait(kPatience);
  const std::string output = read_file(log);
  std::filesystem::remove(log);
  const std::optional<PeerTiming> timing = timing_in(output);
  if (!status || !status->success() || !timing) {
    throw Error(fmt::format("{} {} {}: {}", peer.python, peer.script.string(),
                            !status              ? "did not end"
                            : !status->success() ? status->to_string()
                                                 : "printed no timing",
                            last_line(output)));
  }
  return *timing;
}

std::string conditions_text(const nlohmann::ordered_json& conditions) {
  std::string text;
  for (const auto& [name, value] : conditions.items()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name,
                        value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text;
}

}  // namespace allot::app
