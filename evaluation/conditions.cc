#include "evaluation/conditions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/sha256.h"
#include "evaluation/json_fields.h"
#include "evaluation/method_json.h"
#include "evaluation/task.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

// The structs are taken apart by structured bindings, so code with a new member does not compile until the
// member is written here; and the reader refuses fields that it does not read. So no member can be forgotten.
Json model_json(const model::ModelIdentity& identity) {
  const auto& [name, config, tokenizer, weights, layers, num_q_heads, num_kv_heads, head_dim, adapter] =
      identity;
  Json json = {{"id", name},
               {"config_sha256", config},
               {"tokenizer_sha256", tokenizer},
               {"weights_fingerprint", weights},
               {"layers", layers},
               {"num_q_heads", num_q_heads},
               {"num_kv_heads", num_kv_heads},
               {"head_dim", head_dim}};
  if (adapter) {
    const auto& [id, fingerprint] = *adapter;
    json["adapter"] = {{"id", id}, {"fingerprint", fingerprint}};
  }
  return json;
}

std::optional<model::AdapterIdentity> read_adapter(JsonFields& model) {
  if (!model.has("adapter")) return std::nullopt;
  JsonFields fields = model.object("adapter");
  return model::AdapterIdentity{.id = fields.text("id"), .fingerprint = fields.sha256("fingerprint")};
}

model::ModelIdentity read_model(JsonFields&& fields) {
  return {.id = fields.text("id"),
          .config_sha256 = fields.sha256("config_sha256"),
          .tokenizer_sha256 = fields.sha256("tokenizer_sha256"),
          .weights_fingerprint = fields.sha256("weights_fingerprint"),
          .layers = fields.integer<int32_t>("layers", 1),
          .num_q_heads = fields.integer<int32_t>("num_q_heads", 1),
          .num_kv_heads = fields.integer<int32_t>("num_kv_heads", 1),
          .head_dim = fields.integer<int32_t>("head_dim", 1),
          .adapter = read_adapter(fields)};
}

Json task_json(const TaskIdentity& task) {
  const auto& [name, version, prompt_style, definition_sha256] = task;
  Json json = {{"name", name}, {"version", version}, {"prompt_style", prompt_style}};
  if (definition_sha256) json["definition_sha256"] = *definition_sha256;
  return json;
}

TaskIdentity read_task(JsonFields&& fields) {
  TaskIdentity task{.name = fields.text("name"),
                    .version = fields.integer<int32_t>("version", 1),
                    .prompt_style = fields.text("prompt_style")};
  if (fields.has("definition_sha256")) task.definition_sha256 = fields.sha256("definition_sha256");
  return task;
}

Json data_json(const DataUse& data) {
  const auto& [sha256, questions, fields] = data;
  Json json = {{"sha256", sha256}, {"questions", questions}};
  const FieldNames usual;
  if (fields.question != usual.question) json["question_field"] = fields.question;
  if (fields.answer != usual.answer) json["answer_field"] = fields.answer;
  return json;
}

DataUse read_data(JsonFields&& fields) {
  DataUse data{.sha256 = fields.sha256("sha256"), .questions = fields.integer<int64_t>("questions", 1)};
  if (fields.has("question_field")) data.fields.question = fields.text("question_field");
  if (fields.has("answer_field")) data.fields.answer = fields.text("answer_field");
  return data;
}

Json generation_json(const Generation& generation) {
  const auto& [dtype, weights, keys, temperature, top_p, repetition_penalty, max_new_tokens, stop] =
      generation;
  Json json = {{"dtype", kernels::name(dtype)}};
  if (weights != model::WeightStorage::kDtype) json["weights"] = model::name(weights);
  if (keys != kernels::KeyFormat::kSixteenBits) json["keys"] = kernels::name(keys);
  json["temperature"] = temperature;
  json["top_p"] = top_p;
  json["repetition_penalty"] = repetition_penalty;
  json["max_new_tokens"] = max_new_tokens;
  json["stop"] = name(stop);
  return json;
}

Generation read_generation(JsonFields&& fields) {
  return {
      .dtype = fields.named("dtype", kernels::parse_dtype),
      .weights = fields.has("weights") ? fields.named("weights", model::parse_weight_storage)
                                       : model::WeightStorage::kDtype,
      .keys = fields.has("keys") ? fields.named("keys", kernels::parse_key_format)
                                 : kernels::KeyFormat::kSixteenBits,
      .temperature = fields.real("temperature", 0, kMaxTemperature),
      .top_p = fields.real("top_p", kMinTopP, 1),
      .repetition_penalty = fields.real("repetition_penalty", kMinRepetitionPenalty, kMaxRepetitionPenalty),
      .max_new_tokens = fields.integer<int32_t>("max_new_tokens", 1, kMaxNewTokens),
      .stop = fields.named("stop", parse_stop_rule)};
}

// Calls `visit(field, value)` for every value that is not an object.
template <class Visit>
void for_each_field(Json& json, const std::string& path, const Visit& visit) {
  for (auto& [name, value] : json.items()) {
    const std::string field = path.empty() ? name : path + "." + name;
    if (value.is_object()) {
      for_each_field(value, field, visit);
    } else {
      visit(field, value);
    }
  }
}

Json::json_pointer pointer(const std::string& field) {
  std::string text = "/" + field;
  std::ranges::replace(text, '.', '/');
  return Json::json_pointer(text);
}

// Values that every reader above accepts; they take the place of unknown fields while the rest is read.
const Conditions& placeholders() {
  static const Conditions conditions = [] {
    const std::string hash(64, '0');
    Conditions made;
    made.model = {.id = "?",
                  .config_sha256 = hash,
                  .tokenizer_sha256 = hash,
                  .weights_fingerprint = hash,
                  .layers = 1,
                  .num_q_heads = 1,
                  .num_kv_heads = 1,
                  .head_dim = 1};
    made.task = {.name = "?", .version = 1, .prompt_style = "?"};
    made.learned_on = DataUse{.sha256 = hash, .questions = 1};
    made.measured_on = made.learned_on;
    return made;
  }();
  return conditions;
}

}  // namespace

TaskIdentity identity_of(const Task& task, std::string_view prompt_style) {
  TaskIdentity identity{
      .name = std::string(task.name()), .version = task.version(), .prompt_style = std::string(prompt_style)};
  if (!task.definition().empty()) {
    identity.prompt_style = task.message() ? kFileMessageStyle : kFileStyle;
    identity.definition_sha256 = sha256_hex(task.definition());
  }
  return identity;
}

bool operator==(const Conditions& first, const Conditions& second) {
  return to_json(first) == to_json(second);
}

Json to_json(const Conditions& conditions) {
  const auto& [model, task, learned_on, measured_on, attention, generation, seed, unknown] = conditions;
  Json json = {{"model", model_json(model)}, {"task", task_json(task)}};
  if (learned_on) json["learned_on"] = data_json(*learned_on);
  if (measured_on) json["measured_on"] = data_json(*measured_on);
  json["attention"] = method_json(attention);
  json["generation"] = generation_json(generation);
  json["seed"] = seed;
  for (const std::string& field : unknown) json[pointer(field)] = nullptr;
  return json;
}

Json full_json(const Conditions& conditions) {
  Json json = to_json(conditions);
  const auto name_fields = [&](const char* group, const std::optional<DataUse>& data) {
    if (!data || json[group]["sha256"].is_null()) return;
    json[group]["question_field"] = data->fields.question;
    json[group]["answer_field"] = data->fields.answer;
  };
  name_fields("learned_on", conditions.learned_on);
  name_fields("measured_on", conditions.measured_on);
  if (Json& generation = json["generation"]; !generation["dtype"].is_null()) {
    generation["weights"] = model::name(conditions.generation.weights);
    generation["keys"] = kernels::name(conditions.generation.keys);
  }
  Json& attention = json["attention"];
  if (attention["estimator"].is_null()) return json;
  const kernels::AttentionMethod& method = conditions.attention;
  attention["unit"] = name(method.unit);
  const auto values = kernels::own_parameters(method.estimator, method.parameters);
  for (size_t i = 0; i < values.size(); ++i)
    attention["parameters"][kernels::row_of(method.estimator).parameters[i].name] = values[i];
  return json;
}

Conditions read_conditions(const Json& json, const std::string& path, std::vector<std::string>* faults) {
  Conditions conditions;
  Json known = json;
  const Json stand_in = to_json(placeholders());
  if (known.is_object()) {
    for_each_field(known, "", [&](const std::string& field, Json& value) {
      if (!value.is_null() || !stand_in.contains(pointer(field))) return;
      if (stand_in.at(pointer(field)).is_object())
        return;  // a whole group that is null is a fault, noted below
      conditions.unknown.insert(field);
      value = stand_in.at(pointer(field));
    });
  }
  // When only one of score stage and score budget is known, the placeholder of the other must fit it.
  if (conditions.unknown.contains("attention.score_stage")) {
    Json& attention = known["attention"];
    attention["score_stage"] =
        name(attention["score_budget"] == 0 ? kernels::ScoreStage::kExact : kernels::ScoreStage::kBernoulli);
  } else if (conditions.unknown.contains("attention.score_budget")) {
    Json& attention = known["attention"];
    attention["score_budget"] = attention["score_stage"] == name(kernels::ScoreStage::kExact) ? 0 : 1;
  }
  JsonFields fields(known, path, faults);
  conditions.model = read_model({fields.value("model"), fields.full("model"), faults});
  conditions.task = read_task({fields.value("task"), fields.full("task"), faults});
  const auto data = [&](const char* name) -> std::optional<DataUse> {
    if (!fields.has(name)) return std::nullopt;
    return read_data({fields.value(name), fields.full(name), faults});
  };
  conditions.learned_on = data("learned_on");
  conditions.measured_on = data("measured_on");
  conditions.attention = read_method({fields.value("attention"), fields.full("attention"), faults});
  conditions.generation = read_generation({fields.value("generation"), fields.full("generation"), faults});
  conditions.seed = fields.integer<uint32_t>("seed", 0);
  return conditions;
}

Json unknown_conditions() {
  Json json = to_json(placeholders());
  json.erase("learned_on");
  json.erase("measured_on");
  for_each_field(json, "", [](const std::string&, Json& value) { value = nullptr; });
  return json;
}

std::vector<Difference> differences(const Conditions& first, const Conditions& second) {
  std::vector<Difference> found;
  Json here = full_json(first);
  const Json there = full_json(second);
  // Unlike other groups that one side lacks, an adapter that is not there says that there was none.
  if (first.model.adapter.has_value() != second.model.adapter.has_value()) {
    const auto text = [](const Json& json) { return json.at("model").value("adapter", Json()).dump(); };
    found.push_back({"model.adapter", text(here), text(there)});
  }
  for_each_field(here, "", [&](const std::string& field, const Json& value) {
    if (value.is_null() || !there.contains(pointer(field))) return;
    const Json& other = there.at(pointer(field));
    if (!other.is_null() && other != value) found.push_back({field, value.dump(), other.dump()});
  });
  return found;
}

bool decides_results(std::string_view field) {
  constexpr std::array<std::string_view, 8> kFree = {"model.id",
                                                     "model.adapter.id",
                                                     "learned_on.sha256",
                                                     "learned_on.questions",
                                                     "learned_on.question_field",
                                                     "learned_on.answer_field",
                                                     "measured_on.questions",
                                                     "seed"};
  return std::ranges::find(kFree, field) == kFree.end();
}

std::vector<Difference> decisive_differences(const Conditions& first, const Conditions& second) {
  std::vector<Difference> found = differences(first, second);
  std::erase_if(found, [](const Difference& difference) { return !decides_results(difference.field); });
  return found;
}

std::string describe(const std::vector<Difference>& differences) {
  std::vector<std::string> parts;
  for (const Difference& difference : differences)
    parts.push_back(fmt::format("{} {} against {}", difference.field, difference.first, difference.second));
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string describe(const Conditions& conditions) {
  // Whether all fields whose names begin with this text are known.
  const auto known = [&](std::string_view fields) {
    return std::ranges::none_of(conditions.unknown,
                                [&](const std::string& field) { return field.starts_with(fields); });
  };
  const auto& adapter = conditions.model.adapter;
  return fmt::format("{} version {}, {} prompts; {}{}; {}; {}", conditions.task.name, conditions.task.version,
                     conditions.task.prompt_style, adapter ? fmt::format("adapter {}; ", adapter->id) : "",
                     known("attention.") ? kernels::describe(conditions.attention)
                                         : std::string(kernels::name(conditions.attention.estimator)),
                     known("generation.") ? describe(conditions.generation) : "generation not known",
                     known("seed") ? fmt::format("seed {}", conditions.seed) : "seed not known");
}

}  // namespace allot::evaluation
