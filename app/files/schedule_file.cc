#include "app/files/schedule_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <regex>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/json_fields.h"
#include "evaluation/method_json.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;
using Fields = evaluation::JsonFields;
using evaluation::shown;

constexpr int32_t kNoExactLayersVersion = 2;
constexpr int32_t kNoBandsVersion = 3;
constexpr std::string_view kCalibrationRewards[] = {"divergence", "mixed"};
constexpr std::string_view kModes[] = {"prefill", "decode", "reply"};

evaluation::PairedTest read_paired(Fields fields, const EvaluationRecord& scores,
                                   std::vector<std::string>* faults) {
  const int64_t questions = scores.learned ? scores.learned->questions : 0;
  const evaluation::PairedTest paired = evaluation::read_paired_test(fields, "learned", "uniform", questions);
  if (!scores.uniform || !scores.learned || scores.uniform->questions != questions) {
    faults->push_back(
        "'evaluation.paired' needs 'evaluation.uniform' and 'evaluation.learned' on the same questions");
    return paired;
  }
  const auto [only_learned, only_uniform, of] = paired.pairs;
  const int64_t gained = scores.learned->correct - scores.uniform->correct;
  if (paired.graded) {
    // Who scored higher says nothing of by how much.
  } else if (only_learned - only_uniform != gained) {
    faults->push_back(fmt::format("'evaluation.paired' says {} - {} more right answers, the scores say {}",
                                  only_learned, only_uniform, gained));
  } else if (only_learned > scores.learned->correct) {
    faults->push_back(fmt::format("'evaluation.paired.only_learned' is {}, but only {} answers are right",
                                  only_learned, scores.learned->correct));
  }
  const double difference = scores.learned->value - scores.uniform->value;
  if (std::abs(paired.difference - difference) > evaluation::kRatioTolerance) {
    faults->push_back(fmt::format("'evaluation.paired.difference' is {}, the scores differ by {}",
                                  paired.difference, difference));
  }
  return paired;
}

EvaluationRecord read_evaluation(const Json& object, std::vector<std::string>* faults) {
  EvaluationRecord evaluation;
  Fields fields(object, "evaluation", faults);
  const auto accuracy = [&](const char* name) -> std::optional<evaluation::Accuracy> {
    if (!fields.has(name)) return std::nullopt;
    Fields score = fields.object(name);
    return evaluation::read_accuracy(score);
  };
  evaluation.uniform = accuracy("uniform");
  evaluation.learned = accuracy("learned");
  evaluation.dense = accuracy("dense");
  if (fields.has("paired")) {
    evaluation.paired =
        read_paired({fields.value("paired"), "evaluation.paired", faults}, evaluation, faults);
  }
  return evaluation;
}

CalibrationRecord read_calibration(const Json& object, std::vector<std::string>* faults) {
  CalibrationRecord record;
  Fields fields(object, "calibration", faults);
  const auto divergence = [&](const char* name) -> evaluation::Divergence {
    Fields found = fields.object(name);
    return {.mean = found.real("divergence", 0, std::numeric_limits<double>::max()),
            .standard_error = found.real("standard_error", 0, std::numeric_limits<double>::max())};
  };
  record.reward = fields.text("reward");
  if (!record.reward.empty() &&
      std::ranges::find(kCalibrationRewards, record.reward) == std::end(kCalibrationRewards))
    fields.fault(fmt::format("'calibration.reward' is \"{}\", expected divergence or mixed", record.reward));
  record.mode = fields.text("mode");
  if (!record.mode.empty() && std::ranges::find(kModes, record.mode) == std::end(kModes))
    fields.fault(fmt::format("'calibration.mode' is \"{}\", expected prefill, decode or reply", record.mode));
  // The four stand together.
  bool checked = false;
  for (const char* name : {"texts", "positions", "uniform", "learned"}) checked |= fields.has(name);
  if (checked)
    record.check = {.texts = fields.integer<int64_t>("texts", 1),
                    .positions = fields.integer<int64_t>("positions", 1),
                    .uniform = divergence("uniform"),
                    .learned = divergence("learned")};
  return record;
}

Json calibration_json(const CalibrationRecord& record) {
  const auto divergence = [](const evaluation::Divergence& measured) {
    return Json{{"divergence", measured.mean}, {"standard_error", measured.standard_error}};
  };
  Json json = {{"reward", record.reward}, {"mode", record.mode}};
  if (record.check) {
    json["texts"] = record.check->texts;
    json["positions"] = record.check->positions;
    json["uniform"] = divergence(record.check->uniform);
    json["learned"] = divergence(record.check->learned);
  }
  return json;
}

// A list of `count` numbers >= least.
std::vector<double> read_reals(const Json& list, const std::string& place, size_t count, double least,
                               std::vector<std::string>* faults) {
  std::vector<double> numbers;
  for (const Json& entry : list)
    if (entry.is_number() && entry.get<double>() >= least) numbers.push_back(entry.get<double>());
  if (!list.is_array() || list.size() != count || numbers.size() != count)
    faults->push_back(fmt::format("'{}' is {}, expected {} numbers >= {}", place, shown(list), count, least));
  return numbers;
}

policy::LayerCosts read_costs(const Json& object, size_t layers, std::vector<std::string>* faults) {
  constexpr double kMost = std::numeric_limits<double>::max();
  constexpr double kLeast = std::numeric_limits<double>::min();
  policy::LayerCosts costs;
  Fields fields(object, "costs", faults);
  const auto reals = [&](const char* name, double least) {
    return read_reals(fields.value(name), fields.full(name), layers, least, faults);
  };
  costs.model = fields.named("model", policy::parse_cost_model);
  if (costs.model == policy::CostModel::kShares) {
    costs.shares = reals("shares", 0);
    if (std::ranges::all_of(costs.shares, [](double share) { return share == 0; }))
      fields.fault("'costs.shares' are all 0, expected a part of the budget in at least one layer");
    return costs;
  }
  costs.unit = fields.real("unit", kLeast, kMost);
  const auto [low, high] = fields.interval("fitted_totals", 0, std::numeric_limits<int32_t>::max());
  costs.fitted = {.low = static_cast<int64_t>(low), .high = static_cast<int64_t>(high)};
  if (costs.model == policy::CostModel::kDivergence) {
    costs.scales = reals("scales", -kMost);
    costs.exponents = reals("exponents", kLeast);
    return costs;
  }
  const Json& weights = fields.value("weights");
  if (!weights.is_array() || weights.size() != layers) {
    fields.fault(fmt::format("'costs.weights' is {}, expected a list for each of the {} layers",
                             shown(weights), layers));
    return costs;
  }
  for (size_t layer = 0; layer < layers; ++layer)
    costs.weights.push_back(read_reals(weights[layer], fmt::format("costs.weights[{}]", layer),
                                       policy::kResponseCurves, 0, faults));
  return costs;
}

Json costs_json(const policy::LayerCosts& costs) {
  Json json = {{"model", name(costs.model)}};
  if (costs.model != policy::CostModel::kShares) {
    json["unit"] = costs.unit;
    json["fitted_totals"] = {costs.fitted->low, costs.fitted->high};
  }
  if (!costs.shares.empty()) json["shares"] = costs.shares;
  if (!costs.scales.empty()) json["scales"] = costs.scales;
  if (!costs.exponents.empty()) json["exponents"] = costs.exponents;
  if (!costs.weights.empty()) json["weights"] = costs.weights;
  return json;
}

// Fields of the conditions that no schedule.json of version 1 says.
const std::vector<std::string>& unknown_in_version_1() {
  static const std::vector<std::string> fields = {
      "model.tokenizer_sha256", "learned_on.questions",      "generation.dtype",
      "generation.temperature", "generation.top_p",          "generation.repetition_penalty",
      "generation.stop",        "generation.max_new_tokens", "seed"};
  return fields;
}

// The conditions as version 1 has them: in the fields model, attention and task, and in the number of
// questions scored.
evaluation::Conditions read_version_1(Fields& file, const EvaluationRecord& evaluation,
                                      std::vector<std::string>* faults) {
  evaluation::Conditions conditions;
  {
    Fields model(file.value("model"), "model", faults);
    conditions.model.id = model.text("id");
    conditions.model.config_sha256 = model.sha256("config_sha256");
    conditions.model.weights_fingerprint = model.sha256("weights_fingerprint");
    conditions.model.layers = model.integer<int32_t>("layers", 1);
    conditions.model.num_q_heads = model.integer<int32_t>("num_q_heads", 1);
    conditions.model.num_kv_heads = model.integer<int32_t>("num_kv_heads", 1);
    conditions.model.head_dim = model.integer<int32_t>("head_dim", 1);
  }
  conditions.attention = evaluation::read_method({file.value("attention"), "attention", faults});
  conditions.unknown = {unknown_in_version_1().begin(), unknown_in_version_1().end()};
  Fields task(file.value("task"), "task", faults);
  conditions.task.name = task.text("name");
  conditions.task.version = task.integer<int32_t>("version", 1);
  conditions.task.prompt_style = task.text("prompt_style");
  conditions.learned_on = {.sha256 = task.sha256("train_sha256")};
  if (!task.has("heldout_sha256")) return conditions;
  conditions.measured_on = {.sha256 = task.sha256("heldout_sha256")};
  for (const auto* score : {&evaluation.learned, &evaluation.uniform, &evaluation.dense})
    if (*score)
      conditions.measured_on->questions = std::max(conditions.measured_on->questions, (*score)->questions);
  if (conditions.measured_on->questions == 0) conditions.unknown.insert("measured_on.questions");
  return conditions;
}

// A schedule that was `calibrated` alone may know of no task: plain text has none.
evaluation::Conditions read_conditions(Fields& file, bool calibrated, std::vector<std::string>* faults) {
  evaluation::Conditions conditions =
      evaluation::read_conditions(file.value("conditions"), "conditions", faults);
  for (const std::string& field : conditions.unknown) {
    if (calibrated && field.starts_with("task.")) continue;
    if (std::ranges::find(unknown_in_version_1(), field) != unknown_in_version_1().end()) continue;
    if (field == "measured_on.questions") continue;
    faults->push_back(
        fmt::format("'conditions.{}' is null, expected a value; a schedule is of no use without it", field));
  }
  return conditions;
}

void check_costs(const ScheduleFile& file, std::vector<std::string>* faults) {
  if (file.resolved_from) {
    const EvaluationRecord& measured = file.evaluation;
    if (!file.costs || measured != EvaluationRecord{} || (file.calibration && file.calibration->check))
      faults->push_back(
          "'resolved' says that the schedule follows from 'costs' and was not verified; expected these, and "
          "nothing in 'evaluation' or measured in 'calibration'");
    return;  // at another total the order of equal savings may rest on the last bits of a machine's exp()
  }
  if (!file.costs) return;
  std::string found;
  try {
    const policy::Schedule solved = policy::solve(*file.costs, file.schedule, file.total, file.floor);
    if (solved == file.schedule) return;
    found = solved.to_string();
  } catch (const InvalidArgument& error) {
    found = error.what();
  }
  faults->push_back(fmt::format("'costs' give the schedule {} at a total of {}, 'samples' is {}", found,
                                file.total, file.schedule.to_string()));
}

// Whether the same layers of both are exact; they have as many.
bool exact_alike(const policy::Schedule& first, const policy::Schedule& second) {
  return std::ranges::equal(first.samples, second.samples,
                            [](int32_t a, int32_t b) { return (a == kExactLayer) == (b == kExactLayer); });
}

void check_bands(const ScheduleFile& file, std::vector<std::string>* faults) {
  int64_t before = 0;
  for (size_t i = 0; i < file.bands.size(); ++i) {
    const auto& [most, schedule] = file.bands[i];
    if (most <= before)
      faults->push_back(fmt::format("'bands[{}].most_tokens' is {}, expected more than {}", i, most, before));
    before = most;
    if (schedule.samples.size() != file.schedule.samples.size() || !exact_alike(schedule, file.schedule))
      faults->push_back(
          fmt::format("'bands[{}].samples' is {}, expected as many layers, and the same exact ones, as in {}",
                      i, schedule.to_string(), file.schedule.to_string()));
  }
  if (!file.bands.empty() && (file.costs || file.resolved_from || !file.start.samples.empty()))
    faults->push_back(
        "'bands' stand beside 'costs', 'resolved' or 'start', which are of one schedule; expected none of "
        "these");
}

void check_samples(const ScheduleFile& file, int32_t version, std::vector<std::string>* faults) {
  if (schema_version_of(file) > std::max(version, kNoExactLayersVersion)) {
    faults->push_back(
        fmt::format("'samples' has exact layers, which 'schema_version' {} does not; set it to {}", version,
                    schema_version_of(file)));
  }
  check_bands(file, faults);
  if (file.schedule.samples.size() != static_cast<size_t>(file.conditions.model.layers)) {
    faults->push_back(fmt::format("'samples' has {} entries, the model has {} layers",
                                  file.schedule.samples.size(), file.conditions.model.layers));
  }
  if (file.schedule.total() != file.total) {
    faults->push_back(fmt::format("'samples' sum to {}, 'total' is {}", file.schedule.total(), file.total));
  }
  check_costs(file, faults);
  const policy::Schedule& start = file.start;
  if (start.samples.empty()) return;
  if (start.samples.size() != file.schedule.samples.size() || start.total() != file.total ||
      !exact_alike(start, file.schedule)) {
    faults->push_back(fmt::format(
        "'start' is {}, expected {} samples over {} layers, of which those are exact that are so in {}",
        start.to_string(), file.total, file.schedule.samples.size(), file.schedule.to_string()));
  }
}

// The parser keeps the last of two fields of one name; a file that says a thing twice is refused instead.
class DuplicateFinder {
 public:
  bool operator()(int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_.emplace_back();
    if (event == Json::parse_event_t::object_end) open_.pop_back();
    if (event == Json::parse_event_t::key && !open_.back().insert(parsed.get<std::string>()).second) {
      duplicates_.push_back(fmt::format("'{}' is there twice in one object", parsed.get<std::string>()));
    }
    return true;
  }
  const std::vector<std::string>& duplicates() const { return duplicates_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::vector<std::string> duplicates_;
};

Json evaluation_json(const EvaluationRecord& evaluation) {
  Json json = Json::object();
  if (evaluation.uniform) json["uniform"] = to_json(*evaluation.uniform);
  if (evaluation.learned) json["learned"] = to_json(*evaluation.learned);
  if (evaluation.dense) json["dense"] = to_json(*evaluation.dense);
  if (evaluation.paired) json["paired"] = to_json(*evaluation.paired, "learned", "uniform");
  return json;
}

Json file_json(const ScheduleFile& file) {
  Json json = {{"schema_version", schema_version_of(file)},
               {"conditions", evaluation::to_json(file.conditions)},
               {"samples", evaluation::samples_json(file.schedule.samples)},
               {"total", file.total},
               {"floor", file.floor}};
  if (!file.bands.empty()) json["bands"] = bands_json(file.bands);
  json["evaluation"] = evaluation_json(file.evaluation);
  if (file.calibration) json["calibration"] = calibration_json(*file.calibration);
  if (file.costs) json["costs"] = costs_json(*file.costs);
  if (file.resolved_from) json["resolved"] = {{"from_total", *file.resolved_from}, {"verified", false}};
  json["run_id"] = file.run_id;
  if (!file.start.samples.empty()) json["start"] = evaluation::samples_json(file.start.samples);
  json.update({{"policy_version", file.policy_version}, {"tool_version", file.tool_version}});
  return json;
}

// The version decides what the other fields mean, so it is read before them. The newest where there is none,
// which is a fault that the reader of the fields notes.
int32_t read_version(const Json& json, int32_t oldest, int32_t newest, const std::string& place) {
  if (!json.is_object() || !json.contains("schema_version")) return newest;
  const Json& found = json["schema_version"];
  if (!found.is_number_integer() || found < oldest || found > newest) {
    throw Unsupported(fmt::format(
        "{}: 'schema_version' is {}, this allot reads {} to {}; use the allot that wrote the file", place,
        shown(found), oldest, newest));
  }
  return found.get<int32_t>();
}

int64_t read_resolved(Fields& fields) {
  Fields resolved = fields.object("resolved");
  const auto total = resolved.integer<int64_t>("from_total", 0);
  if (resolved.flag("verified"))
    resolved.fault("'resolved.verified' is true, expected false; what was measured of it is elsewhere");
  return total;
}

model::ModelIdentity read_merged_from(Fields& fields) {
  Fields merged = fields.object("merged_from");
  model::ModelIdentity model;
  model.id = merged.text("id");
  model.weights_fingerprint = merged.sha256("weights_fingerprint");
  Fields adapter = merged.object("adapter");
  model.adapter =
      model::AdapterIdentity{.id = adapter.text("id"), .fingerprint = adapter.sha256("fingerprint")};
  return model;
}

// Indented JSON with lists of numbers, and of samples, on one line. A line end is never inside a JSON text,
// so only lists are touched.
std::string readable(const Json& json) {
  static const std::regex kNumberList(R"(\[\n((?:[-+.0-9eE,\s]|"exact")*)\n\s*\])");
  static const std::regex kSeparator(R"(,\s+)");
  static const std::regex kIndent(R"(^\s+)");
  const std::string indented = json.dump(2);
  std::string text;
  auto rest = indented.begin();
  for (std::sregex_iterator list(indented.begin(), indented.end(), kNumberList), end; list != end; ++list) {
    const std::string numbers = std::regex_replace((*list)[1].str(), kSeparator, ", ");
    text.append(rest, (*list)[0].first);
    text += fmt::format("[{}]", std::regex_replace(numbers, kIndent, ""));
    rest = (*list)[0].second;
  }
  return text.append(rest, indented.end()) + "\n";
}

}  // namespace

int32_t schema_version_of(const ScheduleFile& file) {
  if (!file.bands.empty()) return kScheduleSchemaVersion;
  return exact_layers(file.schedule.samples) > 0 ? kNoBandsVersion : kNoExactLayersVersion;
}

ScheduleFile parse_schedule_file(std::string_view text, const std::string& place) {
  DuplicateFinder finder;
  Json json;
  try {
    json = Json::parse(text, std::ref(finder));
  } catch (const Json::parse_error& error) {
    throw CorruptFile(fmt::format(
        "{}: byte {} is no JSON; expected a schedule.json as `allot tune` writes it", place, error.byte));
  } catch (const Json::out_of_range&) {
    throw CorruptFile(
        fmt::format("{}: a number is beyond the range of a 64-bit float; expected a schedule.json as `allot "
                    "tune` writes it",
                    place));
  }
  const int32_t version = read_version(json, /*oldest=*/1, kScheduleSchemaVersion, place);
  std::vector<std::string> faults = finder.duplicates();
  ScheduleFile file;
  {
    Fields fields(json, "", &faults);
    fields.value("schema_version");
    file.evaluation = read_evaluation(fields.value("evaluation"), &faults);
    if (version != 1 && fields.has("calibration"))
      file.calibration = read_calibration(fields.value("calibration"), &faults);
    if (version != 1 && fields.has("resolved")) file.resolved_from = read_resolved(fields);
    const bool calibrated = file.calibration && (file.calibration->check || file.resolved_from);
    file.conditions = version == 1 ? read_version_1(fields, file.evaluation, &faults)
                                   : read_conditions(fields, calibrated, &faults);
    file.floor = fields.integer<int32_t>("floor", 0);
    file.schedule.samples = fields.samples("samples", file.floor);
    file.total = fields.integer<int64_t>("total", 0);
    if (version > kNoBandsVersion)
      file.bands = read_bands(fields.value("bands"), "bands", file.floor, &faults);
    if (version != 1 && fields.has("costs"))
      file.costs = read_costs(fields.value("costs"), file.schedule.samples.size(), &faults);
    file.run_id = fields.text("run_id");
    if (version != 1 && fields.has("start")) file.start.samples = fields.samples("start", file.floor);
    file.policy_version = fields.integer<int64_t>("policy_version", 0);
    file.tool_version = fields.text("tool_version");
  }
  // Contradictions between fields mean something only when each field is sound.
  if (faults.empty()) check_samples(file, version, &faults);
  if (!faults.empty()) throw CorruptFile(fmt::format("{}: {}", place, fmt::join(faults, "; ")));
  return file;
}

ScheduleFile read_schedule_file(const std::filesystem::path& path, Bands bands) {
  ScheduleFile file = parse_schedule_file(read_file(path), path.string());
  if (bands == Bands::kRefused && !file.bands.empty())
    throw Unsupported(fmt::format(
        "{} has schedules for {} lengths of prompts, and here one is needed for all; eval, generate and serve "
        "choose by length, and the runs that learned them (run '{}' and those beside it) have one each",
        path.string(), file.bands.size() + 1, file.run_id));
  return file;
}

std::optional<ScheduleFile> read_own_schedule(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  const Json config = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object())
    throw CorruptFile(path.string() + ": is no JSON object; expected a model's config");
  if (!config.contains("allot")) return std::nullopt;
  const Json& key = config["allot"];
  const std::string place = path.string() + ", key \"allot\"";
  read_version(key, kNoExactLayersVersion, kNoBandsVersion, place);
  std::vector<std::string> faults;
  ScheduleFile file;
  {
    Fields fields(key, "", &faults);
    fields.value("schema_version");
    file.conditions = evaluation::read_conditions(fields.value("conditions"), "conditions", &faults);
    file.floor = 0;
    file.schedule.samples = fields.samples("samples", file.floor);
    if (fields.has("resolved")) file.resolved_from = read_resolved(fields);
    if (fields.has("merged_from")) file.merged_from = read_merged_from(fields);
    file.run_id = fields.text("run_id");
    file.tool_version = fields.text("tool_version");
  }
  if (faults.empty() && std::ssize(file.schedule.samples) != file.conditions.model.layers) {
    faults.push_back(fmt::format("'samples' has {} entries, 'conditions.model.layers' is {}",
                                 file.schedule.samples.size(), file.conditions.model.layers));
  }
  if (!faults.empty()) {
    throw CorruptFile(fmt::format("{}: {}; write it again with `allot export --format hf-config`", place,
                                  fmt::join(faults, "; ")));
  }
  file.total = file.schedule.total();
  file.conditions.unknown.insert("model.config_sha256");
  return file;
}

std::string format_schedule_file(const ScheduleFile& file) {
  try {
    std::string text = readable(file_json(file));
    parse_schedule_file(text, "schedule to be written");
    return text;
  } catch (const CorruptFile& fault) {
    throw InvalidArgument(fault.what());
  } catch (const Json::type_error&) {
    throw InvalidArgument("schedule to be written: a text is no UTF-8; expected UTF-8 in every field");
  }
}

void write_schedule_file(const std::filesystem::path& path, const ScheduleFile& file) {
  write_file_atomically(path, format_schedule_file(file));
}

ScheduleFile resolve_total(const ScheduleFile& file, int64_t total) {
  if (total == file.total) return file;
  if (!file.costs) {
    throw InvalidArgument(fmt::format(
        "the schedule of run '{}' keeps nothing from which a schedule of {} follows, it holds that of {} alone: "
        "allot {} wrote it, or nobody learned it; `allot tune` with the options of the run writes it again, and "
        "`allot calibrate --total {}` learns one",
        file.run_id, total, file.total, file.tool_version, total));
  }
  ScheduleFile resolved = file;
  resolved.schedule = policy::solve(*file.costs, file.schedule, total, file.floor);
  resolved.total = total;
  resolved.resolved_from = file.resolved_from.value_or(file.total);
  resolved.evaluation = {};
  resolved.conditions.measured_on.reset();
  std::erase_if(resolved.conditions.unknown,
                [](const std::string& field) { return field.starts_with("measured_on"); });
  if (resolved.calibration) resolved.calibration->check.reset();
  resolved.start = {};
  return resolved;
}

std::string resolved_text(const ScheduleFile& file) {
  if (!file.resolved_from) return "";
  std::string text = fmt::format("re-solved from a run at total {}, not verified", *file.resolved_from);
  if (!file.costs) return text;  // of a config.json, which does not hold them
  if (file.costs->model == policy::CostModel::kShares) {
    text += "; its shares of the budget were kept, since the run learned nothing of other totals";
  } else if (!file.costs->fitted->holds(file.total)) {
    text += fmt::format("; {} is far from it: layers were measured as totals of {} to {} have them",
                        file.total, file.costs->fitted->low, file.costs->fitted->high);
  }
  return text;
}

std::string text(const policy::LayerCosts& costs) {
  if (costs.model == policy::CostModel::kShares) return "shares of the budget";
  return fmt::format("a {} model, fitted to layers as totals of {} to {} have them", name(costs.model),
                     costs.fitted->low, costs.fitted->high);
}

std::vector<policy::ScheduleBand> read_bands(const Json& list, const std::string& place, int32_t floor,
                                             std::vector<std::string>* faults) {
  std::vector<policy::ScheduleBand> bands;
  if (!list.is_array() || list.empty()) {
    faults->push_back(fmt::format("'{}' is {}, expected a list of at least one band", place, shown(list)));
    return bands;
  }
  for (size_t i = 0; i < list.size(); ++i) {
    Fields fields(list[i], fmt::format("{}[{}]", place, i), faults);
    policy::ScheduleBand& band = bands.emplace_back();
    band.most_tokens = fields.integer<int64_t>("most_tokens", 1);
    band.schedule.samples = fields.samples("samples", floor);
  }
  return bands;
}

nlohmann::ordered_json bands_json(std::span<const policy::ScheduleBand> bands) {
  Json list = Json::array();
  for (const auto& [most, schedule] : bands)
    list.push_back({{"most_tokens", most}, {"samples", evaluation::samples_json(schedule.samples)}});
  return list;
}

void check_matches(const ScheduleFile& file, const model::ModelIdentity& model) {
  constexpr std::string_view kModel = "model.";
  evaluation::Conditions here = file.conditions;
  here.model = model;
  here.unknown.clear();
  std::vector<std::string> differences;
  for (const evaluation::Difference& difference : evaluation::differences(file.conditions, here)) {
    if (!difference.field.starts_with(kModel) || difference.field == "model.id" ||
        difference.field == "model.adapter.id" || difference.field == "model.tokenizer_sha256")
      continue;
    differences.push_back(fmt::format("{} {} against {}", difference.field.substr(kModel.size()),
                                      difference.first, difference.second));
  }
  if (differences.empty()) return;
  throw Mismatch(fmt::format(
      "the schedule was learned for model '{}', this model is '{}' and differs (schedule against "
      "model): {}; use the model and the adapter of the schedule, or learn a schedule for this one with `allot tune`",
      file.conditions.model.id, model.id, fmt::join(differences, "; ")));
}

}  // namespace allot::app
