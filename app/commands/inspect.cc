// allot inspect: what a model directory, a schedule or a run directory holds, and every problem it has.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <set>

#include "aggregator/run_data.h"
#include "aggregator/run_directory.h"
#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/files/schedule_file.h"
#include "app/run/model_options.h"
#include "app/run/run_directory.h"
#include "app/view/status_view.h"
#include "base/error.h"
#include "base/json.h"
#include "evaluation/json_fields.h"
#include "evaluation/task.h"
#include "model/adapter.h"
#include "model/hub_cache.h"
#include "model/model_config.h"
#include "model/safetensors.h"
#include "model/tokenizer.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

namespace fs = std::filesystem;

// What was found: facts in the order they are shown, and problems.
struct Findings {
  std::string kind;  // "model", "schedule", "run"
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
  std::vector<std::string> problems = {};

  // Notes what `look` throws as a problem, so that one fault does not hide the next.
  template <class Look>
  void attempt(Look look) {
    try {
      look();
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    }
  }
};

void inspect_config(const fs::path& directory, Findings* findings) {
  const model::ModelConfig config = model::read_model_config(directory);
  findings->facts["architecture"] = config.architecture_name;
  findings->facts["layers"] = config.num_layers;
  findings->facts["query_heads"] = config.num_q_heads;
  findings->facts["kv_heads"] = config.num_kv_heads;
  findings->facts["head_dim"] = config.head_dim;
  findings->facts["hidden_size"] = config.hidden_size;
  findings->facts["intermediate_size"] = config.intermediate_size;
  findings->facts["vocab_size"] = config.vocab_size;
  findings->facts["positions"] = config.max_position_embeddings;
  findings->facts["rope_theta"] = config.rope_theta;
  findings->facts["llama3_rope_scaling"] = config.rope_scaling.has_value();
  findings->facts["tied_embeddings"] = config.tie_word_embeddings;
}

void inspect_weights(const fs::path& directory, Findings* findings) {
  const auto checkpoint = model::Checkpoint::open(directory);
  int64_t parameters = 0;
  int64_t bytes = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    int64_t count = 1;
    for (const int64_t extent : tensor.shape) count *= extent;
    parameters += count;
    bytes += static_cast<int64_t>(tensor.bytes.size());
  }
  findings->facts["tensors"] = checkpoint.tensors().size();
  findings->facts["parameters"] = parameters;
  findings->facts["weight_bytes"] = bytes;
}

void inspect_adapter(const fs::path& directory, const fs::path& model, Findings* findings) {
  const auto adapter = model::Adapter::open(directory, model::read_model_config(model));
  std::set<int64_t> ranks;
  std::set<double> alphas;
  std::set<std::string> kinds;
  for (const auto& [name, module] : adapter.modules()) {
    ranks.insert(module.rank);
    alphas.insert(module.alpha);
    kinds.insert(name.substr(name.rfind('.') + 1));
  }
  findings->facts["adapter"] = directory.string();
  findings->facts["adapter_base_model"] = adapter.base_model();
  findings->facts["adapter_rank"] = ranks;
  findings->facts["adapter_alpha"] = alphas;
  findings->facts["adapter_rank_stabilised"] = adapter.rank_stabilised();
  findings->facts["adapter_modules"] = kinds;
  findings->facts["adapter_weights"] = adapter.modules().size();
  findings->facts["adapter_fingerprint"] = adapter.identity().fingerprint;
}

void inspect_tokenizer(const fs::path& directory, Findings* findings) {
  const auto tokenizer = model::Tokenizer::load(directory);
  findings->facts["tokens"] = tokenizer.vocab_size();
  findings->facts["prompt_style"] = evaluation::name(usual_prompt_style(tokenizer));
}

// The key "allot", which programs that do not know it pass over.
void inspect_own_schedule(const fs::path& directory, Findings* findings) {
  if (!findings->facts.contains("layers")) return;  // config.json is wrong, which is noted
  const auto own = read_own_schedule(directory);
  if (!own) return;
  findings->facts["schedule_samples"] = evaluation::samples_json(own->schedule.samples);
  findings->facts["schedule_total"] = own->total;
  findings->facts["schedule_estimator"] = kernels::name(own->conditions.attention.estimator);
  findings->facts["schedule_unit"] = kernels::name(own->conditions.attention.unit);
  findings->facts["schedule_run_id"] = own->run_id;
  if (own->resolved_from) findings->facts["schedule_resolved"] = resolved_text(*own);
  // The adapter is not known here, so a schedule that was learned with one is not held against it.
  model::ModelIdentity here = model::identify_model(directory);
  here.adapter = own->conditions.model.adapter;
  check_matches(*own, here);
}

// Of a snapshot in a cache of the Hugging Face hub.
void note_hub_name(const fs::path& model, Findings* findings) {
  const auto snapshot = model::snapshot_name(model);
  if (!snapshot) return;
  findings->facts["hub_name"] = snapshot->repository;
  findings->facts["hub_commit"] = snapshot->revision;
}

Findings inspect_model(const fs::path& directory, const std::optional<fs::path>& adapter,
                       bool whole_weights) {
  Findings findings{.kind = "model"};
  note_hub_name(directory, &findings);
  findings.attempt([&] { inspect_config(directory, &findings); });
  findings.attempt([&] {
    const auto defaults = model::read_generation_defaults(directory);
    findings.facts["end_tokens"] = defaults.eos_token_ids;
    if (defaults.eos_token_ids.empty()) {
      findings.problems.push_back("neither generation_config.json nor config.json in " + directory.string() +
                                  " names an eos_token_id; replies would end at --max-new-tokens only");
    }
  });
  findings.attempt([&] { inspect_tokenizer(directory, &findings); });
  findings.attempt([&] { inspect_weights(directory, &findings); });
  findings.attempt([&] { inspect_own_schedule(directory, &findings); });
  if (adapter) findings.attempt([&] { inspect_adapter(*adapter, directory, &findings); });
  if (findings.problems.empty()) {
    findings.attempt([&] {
      const auto identity = model::identify_model(directory);
      findings.facts["config_sha256"] = identity.config_sha256;
      findings.facts["tokenizer_sha256"] = identity.tokenizer_sha256;
      findings.facts["weights_fingerprint"] = identity.weights_fingerprint;
      if (whole_weights) findings.facts["weights_sha256"] = model::whole_weights_sha256(directory);
    });
  }
  return findings;
}

// By which names the data are read, where these are not the usual ones.
void note_field_names(const evaluation::FieldNames& names, Findings* findings) {
  const evaluation::FieldNames usual;
  if (names.question != usual.question) findings->facts["question_field"] = names.question;
  if (names.answer != usual.answer) findings->facts["answer_field"] = names.answer;
}

Findings inspect_schedule(const fs::path& file) {
  Findings findings{.kind = "schedule"};
  findings.attempt([&] {
    const ScheduleFile schedule = read_schedule_file(file, Bands::kFollowed);
    findings.facts["model"] = schedule.conditions.model.id;
    findings.facts["layers"] = schedule.conditions.model.layers;
    findings.facts["samples"] = evaluation::samples_json(schedule.schedule.samples);
    findings.facts["total"] = schedule.total;
    if (!schedule.bands.empty()) findings.facts["bands"] = bands_json(schedule.bands);
    if (schedule.resolved_from) findings.facts["resolved"] = resolved_text(schedule);
    if (schedule.costs) findings.facts["other_totals"] = text(*schedule.costs);
    findings.facts["exact_layers"] = exact_layers(schedule.schedule.samples);
    findings.facts["floor"] = schedule.floor;
    findings.facts["estimator"] = kernels::name(schedule.conditions.attention.estimator);
    findings.facts["unit"] = kernels::name(schedule.conditions.attention.unit);
    findings.facts["prefill"] = kernels::name(schedule.conditions.attention.prefill);
    findings.facts["task"] = schedule.conditions.task.name;
    if (const auto& data = schedule.conditions.learned_on) note_field_names(data->fields, &findings);
    if (const auto& adapter = schedule.conditions.model.adapter) {
      findings.facts["adapter"] = adapter->id;
      findings.facts["adapter_fingerprint"] = adapter->fingerprint;
    }
    findings.facts["conditions"] = evaluation::describe(schedule.conditions);
    findings.facts["run_id"] = schedule.run_id;
    findings.facts["policy_version"] = schedule.policy_version;
    findings.facts["tool_version"] = schedule.tool_version;
    if (schedule.evaluation.uniform) findings.facts["uniform"] = to_json(*schedule.evaluation.uniform);
    if (schedule.evaluation.learned) findings.facts["learned"] = to_json(*schedule.evaluation.learned);
    if (schedule.evaluation.dense) findings.facts["dense"] = to_json(*schedule.evaluation.dense);
  });
  return findings;
}

// Where the run's model is; nothing where it is not here.
std::optional<fs::path> model_of_run(const wire::RunSpec& spec, Findings* findings) {
  const fs::path place = recorded_directory(spec.model_path(), "--model");
  if (!fs::exists(place)) {
    findings->problems.push_back("the run's model directory " + spec.model_path() +
                                 " does not exist; give workers --model");
    return std::nullopt;
  }
  return place;
}

void check_weights_of_run(const wire::RunSpec& spec, const fs::path& model, Findings* findings) {
  if (const std::string& whole = spec.model().weights_sha256(); !whole.empty()) {
    const std::string here = model::whole_weights_sha256(model);
    if (here != whole)
      findings->problems.push_back(fmt::format(
          "the weights in {} have SHA-256 {}, those of the run's model {}", model.string(), here, whole));
  }
  const auto found = model::identify_model(model);
  if (found.weights_fingerprint == spec.model().weights_fingerprint()) return;
  findings->problems.push_back("the weights in " + model.string() + " have fingerprint " +
                               found.weights_fingerprint + ", the run's model has " +
                               spec.model().weights_fingerprint());
}

void check_adapter_of_run(const wire::RunSpec& spec, const std::optional<fs::path>& model,
                          Findings* findings) {
  const wire::AdapterIdentity& adapter = spec.model().adapter();
  const fs::path place = recorded_directory(adapter.path(), "--adapter");
  if (!fs::exists(place)) {
    findings->problems.push_back("the run's adapter directory " + adapter.path() +
                                 " does not exist; give workers --adapter");
    return;
  }
  if (!model) return;  // noted by the caller
  const auto found = model::Adapter::open(place, model::read_model_config(*model)).identity();
  if (found.fingerprint == adapter.fingerprint()) return;
  findings->problems.push_back("the adapter in " + place.string() + " has fingerprint " + found.fingerprint +
                               ", the run's adapter has " + adapter.fingerprint());
}

Findings inspect_run(const fs::path& directory) {
  Findings findings{.kind = "run"};
  findings.attempt([&] {
    const auto run = aggregator::read_run(directory);
    const wire::Status status = status_of(run);
    findings.facts["run_id"] = run.spec.run_id();
    findings.facts["stage"] = run.stage;
    findings.facts["model"] = run.spec.model_path();
    note_hub_name(run.spec.model_path(), &findings);
    if (run.spec.model().has_adapter()) findings.facts["adapter"] = run.spec.model().adapter().path();
    findings.facts["data"] = run.spec.task().train().path();
    findings.facts["heldout"] = run.spec.task().heldout().path();
    note_field_names(worker::field_names(run.spec.task().train()), &findings);
    findings.facts["total"] = run.spec.policy().total();
    findings.facts["policy"] = run.spec.policy().name();
    findings.facts["estimator"] = run.spec.attention().estimator();
    findings.facts["unit"] = run.spec.attention().unit().empty() ? "samples" : run.spec.attention().unit();
    findings.facts["seed"] = run.spec.seed();
    findings.facts["episodes_done"] = status.episodes_done();
    findings.facts["episodes_wanted"] = status.episodes_wanted();
    findings.facts["policy_version"] = run.policy_version;
    findings.facts["schedule"] = evaluation::samples_json(run.recommended);
    for (const auto& score : status.scores()) {
      findings.facts["score " + score.label()] =
          fmt::format("{}/{}, {} wanted", score.correct(), score.answered(), score.wanted());
    }
    // What a resumed run would trip over.
    std::optional<fs::path> model;
    findings.attempt([&] { model = model_of_run(run.spec, &findings); });
    if (model) findings.attempt([&] { check_weights_of_run(run.spec, *model, &findings); });
    if (run.spec.model().has_adapter())
      findings.attempt([&] { check_adapter_of_run(run.spec, model, &findings); });
    for (const auto* data : {&run.spec.task().train(), &run.spec.task().heldout()}) {
      if (!data->path().empty() && !fs::exists(data->path())) {
        findings.problems.push_back("the run's data file " + data->path() +
                                    " does not exist; give workers --train or --heldout");
      }
    }
  });
  if (fs::exists(schedule_file(directory))) {
    findings.attempt([&] { (void)read_schedule_file(schedule_file(directory), Bands::kFollowed); });
  }
  return findings;
}

Findings inspect(const fs::path& path, const std::optional<fs::path>& adapter, bool whole_weights) {
  if (!fs::exists(path)) throw NotFound(path.string() + " does not exist");
  const bool is_model = fs::exists(path / "config.json") || fs::exists(path / "tokenizer.json");
  if (adapter && !is_model) {
    throw UsageError("--adapter " + adapter->string() + " belongs to a model, and " + path.string() +
                     " is none; give the directory of its model");
  }
  if (!fs::is_directory(path)) return inspect_schedule(path);
  if (fs::exists(aggregator::spec_path(path)) || fs::exists(aggregator::history_path(path)))
    return inspect_run(path);
  if (is_model) return inspect_model(path, adapter, whole_weights);
  if (fs::exists(path / "adapter_config.json")) {
    throw UsageError(path.string() +
                     " is an adapter, which is looked at with its model: allot inspect MODEL " +
                     "--adapter " + path.string());
  }
  throw NotFound(
      path.string() +
      " holds neither a model (config.json, tokenizer.json) nor a run (spec.json, history.sqlite)" +
      model::download_hint(path));
}

void print(const fs::path& path, const Findings& findings, bool as_json) {
  if (as_json) {
    nlohmann::ordered_json json = {{"path", path.string()}, {"kind", findings.kind}};
    json.update(findings.facts);
    json["problems"] = findings.problems;
    std::cout << json.dump() << '\n';
    return;
  }
  std::cout << path.string() << ": a " << findings.kind << '\n';
  for (const auto& [name, value] : findings.facts.items()) {
    std::cout << fmt::format("  {:<22}{}\n", name,
                             value.is_string() ? value.get<std::string>() : value.dump());
  }
  for (const std::string& problem : findings.problems) std::cout << "  problem: " << problem << '\n';
  if (findings.problems.empty()) std::cout << "  no problems found\n";
}

}  // namespace

int run_inspect(std::span<const std::string> arguments) {
  std::string path;
  std::optional<fs::path> adapter;
  bool json = false, whole_weights = false;
  OptionSet set(
      "inspect",
      "say what a model directory, a schedule.json or a run directory holds, and what is wrong with it",
      "allot inspect assets/tiny-gsm");
  set.positional(
      "path", &path, "PATH",
      "model (a directory, or org/name[@revision] in the local cache of the Hugging Face hub), schedule file or run directory");
  declare_adapter_option(&set, &adapter, "directory of a LoRA adapter of the model: also say what it holds");
  set.flag("whole-weights", &whole_weights, "also print the SHA-256 of all bytes of a model's weights");
  set.flag("json", &json, "print one JSON object");
  set.require("path");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  const fs::path found = model_directory(path);
  const Findings findings = inspect(found, adapter, whole_weights);
  print(found.string(), findings, json);
  return findings.problems.empty() ? 0 : 1;
}

}  // namespace allot::app
