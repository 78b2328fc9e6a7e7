#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "app/cli/command.h"
#include "app/files/export_formats.h"
#include "app/files/schedule_argument.h"
#include "app/report/run_summary.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/temporary_directory.h"
#include "evaluation/json_fields.h"
#include "model/adapter.h"
#include "model/model_config.h"
#include "model/tensor_shapes.h"
#include "model/weights_source.h"
#include "tests/app/report/example_run.h"
#include "tests/app/small_model.h"
#include "tests/model/adapter_files.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

// A model directory and a schedule learned for it, new for each test.
class Export : public ::testing::Test {
 protected:
  Export() {
    model_ = write_small_model(directory_.path() / "small").model;
    file_ = schedule_file_of(example_run(), "0.1.0");
    file_.conditions.model = model::identify_model(model_);
    write_schedule_file(schedule(), file_);
  }

  std::filesystem::path schedule() const { return directory_.path() / "schedule.json"; }
  ExportRequest request() const { return {.schedule = file_, .model = std::nullopt}; }

  // What `allot export` with these words throws; "" when it does not.
  static std::string fault(const std::vector<std::string>& words) {
    try {
      run_export(words);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  // All files of a format, one behind the other.
  static std::string whole(const ExportRequest& request, std::string_view format) {
    if (!export_format(format).has_several_files()) return export_schedule(request, format);
    std::string text;
    for (const ExportedFile& file : export_files(request, format)) text += file.text;
    return text;
  }

  const TemporaryDirectory directory_;
  std::filesystem::path model_;
  ScheduleFile file_;
};

TEST_F(Export, JsonHoldsTheSamplesAndHowTheyAreUsed) {
  const Json json = Json::parse(export_schedule(request(), "json"));
  EXPECT_EQ(json, Json({{"model", file_.conditions.model.id},
                        {"estimator", "sys"},
                        {"prefill", "sampled"},
                        {"total", 64},
                        {"samples", file_.schedule.samples},
                        {"conditions", evaluation::to_json(file_.conditions)}}));
}

TEST_F(Export, CsvHasOneLinePerLayer) {
  file_.schedule.samples = {50, 8, 6};
  EXPECT_EQ(export_schedule(request(), "csv"), "layer,samples\n0,50\n1,8\n2,6\n");
}

TEST_F(Export, AUnitOfRowsIsNamedInEveryFormat) {
  EXPECT_FALSE(Json::parse(export_schedule(request(), "json")).contains("unit"));
  file_.conditions.attention = {.estimator = kernels::Estimator::kJoint, .unit = kernels::BudgetUnit::kRows};
  file_.schedule.samples = {50, 8, 6};
  EXPECT_EQ(export_schedule(request(), "csv"), "layer,rows\n0,50\n1,8\n2,6\n");
  EXPECT_EQ(Json::parse(export_schedule(request(), "json")).at("unit"), "rows");
  const Json overlay = Json::parse(export_schedule(request(), "hf")).at("allot");
  EXPECT_EQ(overlay.at("conditions").at("attention").at("unit"), "rows");
}

TEST_F(Export, ExactLayersAreNamedInEveryFormat) {
  file_.schedule.samples = {kExactLayer, 8, 6};
  EXPECT_EQ(export_schedule(request(), "csv"), "layer,samples\n0,exact\n1,8\n2,6\n");
  const Json samples = {"exact", 8, 6};
  EXPECT_EQ(Json::parse(export_schedule(request(), "json")).at("samples"), samples);
  const Json overlay = Json::parse(export_schedule(request(), "hf")).at("allot");
  EXPECT_EQ(overlay.at("samples"), samples);
  EXPECT_EQ(overlay.at("schema_version"), 3);
  ExportRequest with_model = request();
  with_model.model = model_;
  EXPECT_EQ(Json::parse(export_schedule(with_model, "hf-config")).at("allot"), overlay);
}

TEST_F(Export, OverlayNamesTheModelItIsFor) {
  const Json json = Json::parse(export_schedule(request(), "hf"));
  ASSERT_EQ(json.size(), 1u);
  const Json& allot = json.at("allot");
  EXPECT_EQ(allot.at("schema_version"), 2);
  EXPECT_EQ(allot.at("samples"), file_.schedule.samples);
  EXPECT_EQ(allot.at("conditions"), evaluation::to_json(file_.conditions));
  EXPECT_EQ(allot.at("conditions").at("attention").at("estimator"), "sys");
  EXPECT_EQ(allot.at("conditions").at("generation").at("temperature"), 0);
  EXPECT_EQ(allot.at("run_id"), file_.run_id);
}

TEST_F(Export, MergedConfigKeepsEveryFieldOfTheModelInItsOrder) {
  const std::string before = read_file(model_ / "config.json");
  const std::filesystem::path out = directory_.path() / "exported" / "config.json";
  EXPECT_EQ(fault({"--schedule", schedule().string(), "--format", "hf-config", "--model", model_.string(),
                   "--out", out.string()}),
            "");
  EXPECT_EQ(read_file(model_ / "config.json"), before);
  const Json original = Json::parse(before);
  Json merged = Json::parse(read_file(out));
  EXPECT_EQ(merged.at("allot"), Json::parse(to_hf_overlay(request())).at("allot"));
  merged.erase("allot");
  EXPECT_EQ(merged.dump(), original.dump());
}

TEST_F(Export, FormatsThatAProgramMustObeySayOnStderrWhatItNeeds) {
  for (const ExportFormat& format : export_formats()) {
    std::vector<std::string> words = {"--schedule", schedule().string(), "--format",
                                      format.name,  "--model",           model_.string()};
    if (format.has_several_files()) words.insert(words.end(), {"--out", directory_.path() / format.name});
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(fault(words), "");
    EXPECT_THAT(::testing::internal::GetCapturedStdout(), ::testing::EndsWith("\n"));
    const std::string said = ::testing::internal::GetCapturedStderr();
    const std::string_view name = format.name;
    if (name.starts_with("hf")) {
      EXPECT_THAT(said, ::testing::AllOf(Names("allot_attention.register()"), Names("attn_implementation")));
    } else if (name == "vllm" || name == "k8s") {
      EXPECT_THAT(said, Names("allot_vllm", "--attention-backend CUSTOM", "dense")) << name;
    } else if (name == "sglang") {
      EXPECT_THAT(said, Names("allot_sglang", "--attention-backend allot", "dense"));
    } else {
      EXPECT_EQ(said, "") << name;
    }
  }
}

TEST_F(Export, EveryFormatIsReachableByItsNameAndEndsWithANewline) {
  ExportRequest with_model = request();
  with_model.model = model_;
  ASSERT_EQ(export_formats().size(), 9u);
  for (const ExportFormat& format : export_formats())
    EXPECT_TRUE(whole(with_model, format.name).ends_with("\n")) << format.name;
}

TEST_F(Export, ASolvedTotalSaysInEveryObjectThatItWasNotVerified) {
  ExportRequest request{.schedule = resolve_total(file_, 100), .model = model_};
  const Json resolved = {{"from_total", 64}, {"verified", false}};
  EXPECT_EQ(Json::parse(export_schedule(request, "json")).at("resolved"), resolved);
  EXPECT_EQ(Json::parse(export_schedule(request, "json")).at("total"), 100);
  EXPECT_EQ(Json::parse(export_schedule(request, "hf")).at("allot").at("resolved"), resolved);
  EXPECT_EQ(Json::parse(export_schedule(request, "hf-config")).at("allot").at("resolved"), resolved);
  EXPECT_EQ(parse_schedule_file(export_schedule(request, "schedule"), "s.json"), request.schedule);
  for (const ExportFormat& format : export_formats())
    EXPECT_THAT(whole(request, format.name), Not(HasSubstr("accuracy"))) << format.name;
  EXPECT_FALSE(Json::parse(export_schedule(this->request(), "json")).contains("resolved"));
}

TEST_F(Export, SeveralTotalsBecomeAFileEachInAFolder) {
  const std::filesystem::path out = directory_.path() / "totals";
  EXPECT_EQ(fault({"--schedule", schedule().string(), "--total", "40,64,100", "--format", "schedule", "--out",
                   out.string()}),
            "");
  EXPECT_EQ(read_schedule_file(out / "schedule-40.json"), resolve_total(file_, 40));
  EXPECT_EQ(read_schedule_file(out / "schedule-64.json"), file_) << "its own total keeps its evidence";
  EXPECT_EQ(fault({"--schedule", schedule().string(), "--total", "40,100", "--format", "csv", "--out",
                   out.string()}),
            "");
  EXPECT_THAT(read_file(out / "schedule-100.csv"), HasSubstr("layer,samples\n0,"));
  EXPECT_EQ(fault({"--schedule", schedule().string(), "--total", "40", "--format", "csv", "--out",
                   (out / "one.csv").string()}),
            "");
  EXPECT_EQ(read_file(out / "one.csv"), read_file(out / "schedule-40.csv"));
}

TEST_F(Export, TotalsThatCannotBeAreWrongUsage) {
  const auto with = [&](const std::string& totals) {
    return fault({"--schedule", schedule().string(), "--total", totals});
  };
  EXPECT_THAT(with("40,100"), Names("--total", "40,100", "--out"));
  EXPECT_THAT(with("40,many"), Names("--total", "many"));
  EXPECT_THAT(with("40,40"), Names("--total", 40, "twice"));
  EXPECT_THAT(with("7"), Names("--total", 7, 8));
  file_.costs.reset();
  write_schedule_file(schedule(), file_);
  EXPECT_THAT(with("40"), Names("--total", 40, file_.run_id, 64));
  EXPECT_EQ(with("64"), "");
}

TEST_F(Export, ModelThatDoesNotMatchIsRefusedNamingBothInEveryFormat) {
  file_.conditions.model.id = "another";
  file_.conditions.model.weights_fingerprint = std::string(64, '9');
  write_schedule_file(schedule(), file_);
  for (const ExportFormat& format : export_formats()) {
    const std::filesystem::path out = directory_.path() / "never";
    EXPECT_THAT(fault({"--schedule", schedule().string(), "--format", format.name, "--model", model_.string(),
                       "--out", out.string()}),
                Names("another", model_.filename(), "weights_fingerprint", std::string(64, '9')));
    EXPECT_FALSE(std::filesystem::exists(out));
  }
}

TEST_F(Export, TheAdapterOfTheModelMustBeThatOfTheSchedule) {
  const std::string adapter = directory_.path() / "lora";
  write_small_adapter(adapter, 4);
  const std::vector<std::string> plain = {"--schedule", schedule().string(),          "--format", "csv",
                                          "--out",      directory_.path() / "out.csv"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), plain.begin(), plain.end());
    return fault(more);
  };
  EXPECT_THAT(with({"--model", model_.string(), "--adapter", adapter}), Names("adapter", "null", "lora"));
  EXPECT_THAT(with({"--adapter", adapter}), Names("--adapter", adapter, "--model"));
  file_.conditions.model = model::identify_model(model_, {.adapter = adapter});
  write_schedule_file(schedule(), file_);
  EXPECT_EQ(with({"--model", model_.string(), "--adapter", adapter}), "");
  EXPECT_THAT(with({"--model", model_.string()}), Names("adapter", "lora", "null"));
}

TEST_F(Export, ModelDirectoryHasTheConfigAndLinksToTheOtherFiles) {
  const std::filesystem::path out = directory_.path() / "exported";
  const auto exported_to = [&](const std::filesystem::path& folder) {
    return fault({"--schedule", schedule().string(), "--format", "hf-model", "--model", model_.string(),
                  "--out", folder.string()});
  };
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(exported_to(out), "");
    EXPECT_FALSE(std::filesystem::is_symlink(out / "config.json"));
    EXPECT_EQ(Json::parse(read_file(out / "config.json")).at("allot"),
              Json::parse(to_hf_overlay(request())).at("allot"));
    EXPECT_EQ(std::filesystem::read_symlink(out / "model.safetensors"),
              std::filesystem::canonical(model_ / "model.safetensors"));
    EXPECT_EQ(read_file(out / "tokenizer.json"), read_file(model_ / "tokenizer.json"));
  }
  EXPECT_FALSE(Json::parse(read_file(model_ / "config.json")).contains("allot"));
  EXPECT_THAT(exported_to(model_), Names("model directory"));
  EXPECT_THAT(exported_to(model_ / "below"), Names("model directory"));
  std::filesystem::remove(out / "tokenizer.json");
  write_file_atomically(out / "tokenizer.json", "mine");
  EXPECT_THAT(exported_to(out), Names(out / "tokenizer.json"));
  EXPECT_EQ(read_file(out / "tokenizer.json"), "mine");
  EXPECT_THAT(fault({"--schedule", schedule().string(), "--format", "hf-model", "--model", model_.string()}),
              Names("--out"));
}

TEST_F(Export, ModelDirectoryWithAnAdapterHasItMergedIntoTheWeights) {
  const std::filesystem::path adapter = directory_.path() / "lora";
  const std::filesystem::path out = directory_.path() / "exported";
  model_ = std::filesystem::path(ALLOT_SOURCE_DIR) / "assets/tiny-gsm";
  model::write_adapter(adapter, model::adapter_settings(2, 4),
                       model::factors_of("model.layers.5.self_attn.q_proj", 2, 256, 256));
  file_.conditions.model = model::identify_model(model_, {.adapter = adapter});
  write_schedule_file(schedule(), file_);
  const std::vector<std::string> words = {"--schedule", schedule().string(), "--format",  "hf-model",
                                          "--model",    model_.string(),     "--adapter", adapter.string(),
                                          "--out",      out.string()};
  std::string weights;
  for (int time = 0; time < 2; ++time) {  // the second in place of the first
    ASSERT_EQ(fault(words), "");
    EXPECT_FALSE(std::filesystem::is_symlink(out / "model.safetensors"));
    EXPECT_TRUE(std::filesystem::is_symlink(out / "tokenizer.json"));
    if (time == 0) weights = read_file(out / "model.safetensors");
    EXPECT_EQ(read_file(out / "model.safetensors"), weights);
  }
  // What an engine reads there without an adapter is what it reads of the model with it, in the file's
  // bfloat16.
  const model::ModelConfig config = model::read_model_config(model_);
  const auto there = model::WeightsSource::checkpoint(out, config);
  const auto here = model::WeightsSource::checkpoint(model_, config, model::Adapter::open(adapter, config));
  const auto plain = model::WeightsSource::checkpoint(model_, config);
  const auto elements = [](const model::WeightsSource& source, const std::string& name) {
    const model::WeightTensor tensor = source.at(name);
    std::vector<uint16_t> values(tensor.count());
    model::write_elements(tensor, 0, tensor.count(), kernels::DType::kBFloat16,
                          reinterpret_cast<std::byte*>(values.data()));
    return values;
  };
  std::vector<std::string> changed;
  for (const auto& [name, shape] : model::decoder_tensor_shapes(config)) {
    EXPECT_EQ(there.at(name).dtype, model::TensorDType::kBF16) << name;
    EXPECT_EQ(elements(there, name), elements(here, name)) << name;
    if (elements(there, name) != elements(plain, name)) changed.push_back(name);
  }
  EXPECT_THAT(changed, ElementsAre("model.layers.5.self_attn.q_proj.weight"));
  // Its schedule is for these weights, and says where they come from.
  const auto own = read_own_schedule(out);
  ASSERT_TRUE(own);
  EXPECT_EQ(own->schedule, file_.schedule);
  EXPECT_EQ(own->conditions.model.weights_fingerprint, model::identify_model(out).weights_fingerprint);
  EXPECT_FALSE(own->conditions.model.adapter);
  ASSERT_TRUE(own->merged_from);
  EXPECT_EQ(own->merged_from->weights_fingerprint, file_.conditions.model.weights_fingerprint);
  EXPECT_EQ(own->merged_from->adapter, file_.conditions.model.adapter);
  EXPECT_NO_THROW(check_matches(*own, model::identify_model(out)));
  EXPECT_THROW(check_matches(*own, model::identify_model(model_)), Mismatch);
  EXPECT_EQ(read_schedule_file(out / "schedule.json").conditions.model.weights_fingerprint,
            own->conditions.model.weights_fingerprint);
  // Somebody's weights are never written over.
  const std::filesystem::path taken = directory_.path() / "taken";
  std::filesystem::create_directory(taken);
  write_file_atomically(taken / "model.safetensors", "mine");
  std::vector<std::string> elsewhere = words;
  elsewhere.back() = taken.string();
  EXPECT_THAT(fault(elsewhere), Names(taken / "model.safetensors"));
  EXPECT_EQ(read_file(taken / "model.safetensors"), "mine");
}

TEST_F(Export, NothingIsWrittenIntoTheModelDirectory) {
  const std::string before = read_file(model_ / "config.json");
  for (const std::filesystem::path& out :
       {model_ / "config.json", model_ / "other.json", model_ / "." / "config.json",
        model_ / "sub" / ".." / "config.json"}) {
    EXPECT_THAT(fault({"--schedule", schedule().string(), "--format", "hf-config", "--model", model_.string(),
                       "--out", out.string()}),
                Names(out, "model directory"));
  }
  std::filesystem::create_directory_symlink(model_, directory_.path() / "link");
  EXPECT_THAT(fault({"--schedule", schedule().string(), "--format", "hf-config", "--model", model_.string(),
                     "--out", (directory_.path() / "link" / "config.json").string()}),
              Names("model directory"));
  EXPECT_EQ(read_file(model_ / "config.json"), before);
  EXPECT_FALSE(std::filesystem::exists(model_ / "other.json"));
}

TEST_F(Export, WrongUseIsAnsweredWithWhatIsMissing) {
  EXPECT_THAT(fault({"--format", "csv"}), Names("--schedule"));
  EXPECT_THAT(fault({"--schedule", schedule().string(), "--format", "hf-config"}), Names("--model"));
  EXPECT_THAT(fault({"--schedule", schedule().string(), "--format", "yaml"}),
              Names("--format", "yaml", "csv"));
  EXPECT_THAT(fault({"--schedule", (directory_.path() / "absent.json").string()}), Names("absent.json"));
  EXPECT_THROW((void)export_schedule(request(), "yaml"), InvalidArgument);
  EXPECT_THROW((void)export_schedule(request(), "hf-config"), InvalidArgument);
}

// The words of the command in a script of two lines, as the shell gives them to the program.
std::vector<std::string> words_of(const std::string& script, const std::filesystem::path& folder) {
  std::string command = script;
  command.replace(command.find("exec "), 5, "exec printf '%s\\0' ");
  write_file_atomically(folder / "words.sh", command);
  std::string out = (folder / "words").string();
  EXPECT_EQ(std::system(fmt::format("sh '{}/words.sh' --port 1 > '{}'", folder.string(), out).c_str()), 0);
  const std::string found = read_file(out);
  std::vector<std::string> words;
  for (size_t begin = 0; begin < found.size(); begin = found.find('\0', begin) + 1)
    words.emplace_back(found.c_str() + begin);
  return words;
}

TEST_F(Export, VllmAndSglangGetTheOverlayAsAFileAndInACommandThatTheShellReads) {
  file_.run_id = "it's a \"run\"; $HOME `ls`";
  ExportRequest request = this->request();
  request.model = model_;
  const std::string overlay = Json::parse(to_hf_overlay(request)).dump();
  const auto vllm = export_files(request, "vllm");
  ASSERT_EQ(vllm.size(), 2u);
  EXPECT_EQ(vllm[0], (ExportedFile{"hf-overrides.json", to_hf_overlay(request)}));
  EXPECT_EQ(vllm[1].name, "vllm-serve.sh");
  EXPECT_THAT(words_of(vllm[1].text, directory_.path()),
              ElementsAre("vllm", "serve", model_.string(), "--attention-backend", "CUSTOM",
                          "--no-enable-prefix-caching", "--hf-overrides", overlay, "--port", "1"));
  const auto sglang = export_files(request, "sglang");
  ASSERT_EQ(sglang.size(), 2u);
  EXPECT_EQ(sglang[0], (ExportedFile{"model-override-args.json", to_hf_overlay(request)}));
  EXPECT_EQ(sglang[1].name, "sglang-serve.sh");
  EXPECT_THAT(words_of(sglang[1].text, directory_.path()),
              ElementsAre("env", "SGLANG_USE_HND_KVCACHE=1", "python3", "-m", "sglang.launch_server",
                          "--model-path", model_.string(), "--attention-backend", "allot", "--page-size",
                          "16", "--disable-prefill-cuda-graph", "--disable-radix-cache",
                          "--json-model-override-args", overlay, "--port", "1"));
}

TEST_F(Export, PrefixCachesStayOnWhereNoPromptIsSampledAndTheModelIsAPlaceWhereNoneIsGiven) {
  file_.conditions.attention.prefill = kernels::Prefill::kDense;
  EXPECT_THAT(export_files(request(), "vllm")[1].text,
              ::testing::AllOf(HasSubstr("vllm serve MODEL --attention-backend CUSTOM --hf-overrides"),
                               Not(HasSubstr("caching"))));
  EXPECT_THAT(export_files(request(), "sglang")[1].text,
              ::testing::AllOf(HasSubstr("--model-path MODEL "), Not(HasSubstr("--disable-radix-cache"))));
}

// A key of the ConfigMap: its block, a step further out.
std::string block(const std::string& yaml, const std::string& key) {
  const std::string head = "  " + key + ": |\n";
  size_t begin = yaml.find(head);
  if (begin == std::string::npos) return "";
  begin += head.size();
  std::string text;
  while (yaml.compare(begin, 4, "    ") == 0) {
    const size_t end = yaml.find('\n', begin);
    text += yaml.substr(begin + 4, end + 1 - begin - 4);
    begin = end + 1;
  }
  return text;
}

TEST_F(Export, AConfigMapHoldsTheScheduleAndTheOverridesToTheByte) {
  ExportRequest named = request();
  named.name = "smol-224";
  const std::string yaml = export_schedule(named, "k8s");
  EXPECT_THAT(yaml, HasSubstr("kind: ConfigMap\nmetadata:\n  name: 'smol-224'\n"));
  EXPECT_EQ(block(yaml, "schedule.json"), format_schedule_file(file_));
  EXPECT_EQ(block(yaml, "hf-overrides.json"), to_hf_overlay(request()));
  for (const char* wrong : {"", "A", "a_b", "-a", "a-", "a..b", "a.-b", "a-.b", "a b"}) {
    named.name = wrong;
    EXPECT_THROW((void)export_schedule(named, "k8s"), InvalidArgument) << wrong;
  }
  for (const char* right : {"a", "7", "a-b.c-1"}) {
    named.name = right;
    EXPECT_NO_THROW((void)export_schedule(named, "k8s")) << right;
  }
  named.name = std::string(254, 'a');
  EXPECT_THROW((void)export_schedule(named, "k8s"), InvalidArgument);
}

TEST_F(Export, EveryFormatIsReadBackToTheSameSchedule) {
  file_.schedule.samples = {kExactLayer, 30, 4, 6, 6, 6, 6, 6};
  file_.costs.reset();
  file_.start = {};
  const auto same = [&](const Json& object) {
    EXPECT_EQ(object.at("samples"), evaluation::samples_json(file_.schedule.samples));
    std::vector<std::string> faults;
    EXPECT_EQ(evaluation::read_conditions(object.at("conditions"), "c", &faults), file_.conditions);
    EXPECT_TRUE(faults.empty());
  };
  same(Json::parse(export_schedule(request(), "json")));
  same(Json::parse(export_schedule(request(), "hf")).at("allot"));
  same(Json::parse(export_files(request(), "vllm")[0].text).at("allot"));
  same(Json::parse(export_files(request(), "sglang")[0].text).at("allot"));
  std::istringstream csv(export_schedule(request(), "csv"));
  std::string line, list;
  std::getline(csv, line);
  while (std::getline(csv, line))
    list += fmt::format("{}{}", list.empty() ? "" : ",", line.substr(line.find(',') + 1));
  model::ModelIdentity identity = file_.conditions.model;
  identity.layers = 8;
  EXPECT_EQ(parse_schedule_argument(list, identity, model_).schedule, file_.schedule);
}

TEST_F(Export, SeveralFilesGoToAFolderWhichIsNotTheModels) {
  const std::filesystem::path out = directory_.path() / "served";
  const std::vector<std::string> words = {"--schedule", schedule().string(), "--format", "vllm"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return fault(more);
  };
  EXPECT_THAT(with({}), Names("--format", "vllm", "--out"));
  EXPECT_EQ(with({"--out", out}), "");
  EXPECT_EQ(read_file(out / "hf-overrides.json"), to_hf_overlay(request()));
  EXPECT_EQ(read_file(out / "vllm-serve.sh"), export_files(request(), "vllm")[1].text);
  EXPECT_EQ(with({"--out", out, "--total", "40,100"}), "");
  EXPECT_EQ(Json::parse(read_file(out / "schedule-40" / "hf-overrides.json")).at("allot").at("samples"),
            Json(resolve_total(file_, 40).schedule.samples));
  EXPECT_THAT(with({"--model", model_.string(), "--out", model_.string()}), Names("model directory"));
  EXPECT_FALSE(std::filesystem::exists(model_ / "hf-overrides.json"));
  EXPECT_THAT(with({"--out", out, "--name", "x"}), Names("--name", "k8s", "vllm"));
  EXPECT_THROW((void)export_schedule(request(), "vllm"), InvalidArgument);
  EXPECT_THROW((void)export_files(request(), "csv"), InvalidArgument);
}

TEST_F(Export, ConfigThatIsNoObjectIsRefused) {
  write_file_atomically(model_ / "config.json", "[1]");
  ExportRequest with_model = request();
  with_model.model = model_;
  EXPECT_THROW((void)to_hf_config(with_model), CorruptFile);
}

}  // namespace
}  // namespace allot::app
