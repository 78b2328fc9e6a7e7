// allot import: turns a GGUF file into a Hugging Face model directory, which is what models are here.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <string>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/stop_signal.h"
#include "app/view/progress_line.h"
#include "base/error.h"
#include "base/json.h"
#include "model/gguf/import.h"

namespace allot::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint64_t kMebibyte = uint64_t{1} << 20;

struct ImportOptions {
  std::string gguf;
  fs::path out;
  std::string dtype = "bfloat16";
  bool json = false;
};

model::TensorDType parse_dtype(const std::string& name) {
  if (name == "float32") return model::TensorDType::kF32;
  return name == "bfloat16" ? model::TensorDType::kBF16 : model::TensorDType::kF16;
}

// How many tensors of each type the file has: {"Q4_1": 210, "F32": 61}.
std::map<std::string, int64_t> types_of(const model::ImportPlan& plan) {
  std::map<std::string, int64_t> types;
  for (const model::ImportedTensor& tensor : plan.tensors) ++types[tensor.source->layout->name];
  return types;
}

Json summary_json(const model::ImportPlan& plan, const ImportOptions& options) {
  Json documents = Json::object();
  for (const auto& [name, content] : plan.documents) documents[name] = content.size();
  return {{"gguf", options.gguf},
          {"directory", options.out.string()},
          {"architecture", plan.architecture},
          {"dtype", options.dtype},
          {"tensors", plan.tensors.size()},
          {"types", types_of(plan)},
          {"parameters", plan.parameters()},
          {"weight_bytes", plan.weight_bytes()},
          {"documents", documents},
          {"notes", plan.notes}};
}

// Each line starts with `mark`.
std::string summary_text(const model::ImportPlan& plan, const ImportOptions& options,
                         const std::string& mark) {
  std::string types;
  for (const auto& [name, count] : types_of(plan)) {
    types += fmt::format("{}{} {}", types.empty() ? "" : ", ", name, count);
  }
  std::string text = fmt::format("{}{}: {}, {} parameters in {}\n", mark, options.out.string(),
                                 plan.architecture, plan.parameters(), options.dtype);
  text += fmt::format("{}  model.safetensors: {} tensors ({}), {} bytes\n", mark, plan.tensors.size(), types,
                      plan.weight_bytes());
  for (const auto& [name, content] : plan.documents) {
    text += fmt::format("{}  {}: {} bytes\n", mark, name, content.size());
  }
  for (const std::string& note : plan.notes) text += fmt::format("{}note: {}\n", mark, note);
  return text;
}

}  // namespace

int run_import(std::span<const std::string> arguments) {
  ImportOptions options;
  OptionSet set("import",
                "turn a GGUF file (llama, qwen2 or qwen3; F32, F16, BF16, Q8_0, Q4_0 to Q5_1, Q4_K to Q6_K) "
                "into a Hugging Face model directory with unquantised weights; docs/internals/gguf.md says "
                "what is supported",
                "allot import SmolLM2-135M-Instruct.Q4_1.gguf --out models/smollm2-135m-instruct");
  set.positional("gguf", &options.gguf, "FILE", "the GGUF file");
  set.path("out", &options.out, "directory to make; it must not exist, or be empty");
  set.choice("dtype", &options.dtype, {"float32", "bfloat16", "float16"},
             "type of the weights that are written, rounded to nearest even; an engine in bfloat16 computes "
             "the same with bfloat16 as with float32, which takes twice the space");
  set.flag("json", &options.json, "print what was written as JSON");
  set.require("gguf");
  set.require("out");
  // What a dry run prints is a config file, so what would be written stands there as comments.
  set.resolve_with([&] {
    model::require_new_or_empty(options.out);
    if (!set.dry_run()) return;
    const model::GgufFile file(options.gguf);
    std::cout << summary_text(model::plan_import(file, parse_dtype(options.dtype)), options, "# ");
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  const model::GgufFile file(options.gguf);
  const model::ImportPlan plan = model::plan_import(file, parse_dtype(options.dtype));
  const auto& stop = watch_stop_signals();
  {
    ProgressLine line("MiB");
    model::write_import(plan, options.out, [&](uint64_t written, uint64_t wanted) {
      if (stop.load()) throw Error("stopped by a signal; " + options.out.string() + " was not made");
      const auto mebibytes = [](uint64_t bytes) {
        return static_cast<int64_t>((bytes + kMebibyte - 1) / kMebibyte);
      };
      line.update(mebibytes(written), mebibytes(wanted));
    });
  }
  std::cout << (options.json ? summary_json(plan, options).dump(2) + "\n" : summary_text(plan, options, ""));
  return 0;
}

}  // namespace allot::app
