// allot logits: the model's logits after each of the given tokens, as a NumPy array.
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <bit>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <limits>

#include "app/cli/command.h"
#include "app/files/schedule_argument.h"
#include "app/run/generation_options.h"
#include "app/run/model_options.h"
#include "app/scoring/scoring.h"
#include "base/ascii.h"
#include "base/error.h"
#include "base/file.h"
#include "model/engine.h"

namespace allot::app {
namespace {

std::vector<int32_t> parse_ids(std::string_view text) {
  std::vector<int32_t> ids;
  for (const std::string_view entry : entries_of(text)) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), id);
    if (error != std::errc{} || end != entry.data() + entry.size() || id < 0)
      throw UsageError(fmt::format(
          "--ids: entry {} is \"{}\", expected a token id; ids are separated by commas, as in 1,15,7",
          ids.size(), entry));
    ids.push_back(id);
  }
  return ids;
}

// NumPy's .npy format, version 1.0: magic, version, header length (16 bit, little endian), a Python literal
// padded with spaces so that the data begins at a multiple of 64 bytes, row-major data.
std::string npy(const std::vector<float>& values, size_t rows) {
  static_assert(std::endian::native == std::endian::little, "data is written as it lies in memory, as '<f4'");
  constexpr size_t kPrefixBytes = 10;
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows,
                                   values.size() / rows);
  header.append(63 - (kPrefixBytes + header.size()) % 64, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() & 0xFF);
  file += static_cast<char>(header.size() >> 8);
  file += header;
  file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return file;
}

}  // namespace

int run_logits(std::span<const std::string> arguments) {
  std::filesystem::path model;
  std::optional<std::filesystem::path> adapter;
  std::string ids_text;
  std::string schedule = "dense";
  std::string dtype = "float32";
  std::string weights = "dtype";
  std::string keys = "16-bit";
  kernels::AttentionMethod method;
  int64_t seed = 0;
  int64_t question = 0;
  std::optional<int64_t> random_weights;
  std::string device = "cpu";
  int32_t threads = 0;
  std::filesystem::path out;
  OptionSet set("logits",
                "write the logits at every position of a sequence of token ids as a float32 .npy array [ids, "
                "vocabulary]",
                "allot logits --model assets/tiny-gsm --ids 1,15,7 --out logits.npy");
  declare_model_option(
      &set, &model, "Hugging Face model: a directory, or org/name[@revision] in the local cache of the hub");
  declare_adapter_option(&set, &adapter);
  set.text("ids", &ids_text, "A,B,…", "token ids, used as they are");
  set.text("schedule", &schedule, "SCHEDULE", kScheduleForms);
  set.suggest("schedule", {"dense", "config"});
  declare_estimator_options(&set, &method, EstimatorChoice::kAny);
  set.choice("dtype", &dtype, {"float32", "bfloat16", "float16"}, "dtype of weights and activations");
  declare_weights_option(&set, &weights);
  declare_keys_option(&set, &keys);
  set.integer("seed", &seed, 0, std::numeric_limits<uint32_t>::max(), "N", "seed of the attention samples");
  set.integer("question", &question, 0, std::numeric_limits<uint32_t>::max(), "N",
              "number of the question whose samples are drawn");
  set.integer("random-weights", &random_weights, 0, std::numeric_limits<uint32_t>::max(), "SEED",
              "make random weights instead of reading them; then config.json is enough");
  set.device(&device);
  set.integer("threads", &threads, 0, 4096, "N", "threads of the model; 0 uses all cores");
  set.path("out", &out, "write to this file instead of stdout");
  set.require("model");
  set.require("ids");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (out.empty() && ::isatty(STDOUT_FILENO) == 1)
    throw UsageError("the array is binary and stdout is a terminal; give --out FILE.npy");

  check_adapter(adapter, random_weights);

  const std::vector<int32_t> ids = parse_ids(ids_text);
  model::EngineOptions options;
  if (random_weights) options.random_weights = static_cast<uint64_t>(*random_weights);
  options.adapter = adapter;
  if (schedule != kOwnSchedule)
    note_unread_schedule(model, fmt::format("--schedule {} runs it", kOwnSchedule));
  const NamedSchedule named = parse_schedule_argument(
      schedule,
      model::identify_model(
          model, {.random_weights = options.random_weights, .adapter = adapter, .needs_tokenizer = false}),
      model);
  options.dtype = kernels::parse_dtype(dtype);
  options.weights = model::parse_weight_storage(weights);
  options.keys = kernels::parse_key_format(keys);
  options.attention = method;
  options.max_sequences = 1;
  options.device = device;
  options.threads = threads;
  model::Engine engine(model, options);
  const std::vector<int32_t> samples = named.schedule ? named.schedule->samples : std::vector<int32_t>{};
  const std::vector<float> logits =
      engine.logits(ids, samples, {.run_seed = static_cast<uint32_t>(seed), .sampling_seed = 0},
                    static_cast<uint32_t>(question));

  const std::string file = npy(logits, ids.size());
  if (out.empty())
    std::cout.write(file.data(), std::ssize(file));
  else
    write_file_atomically(out, file);
  return 0;
}

}  // namespace allot::app
