#include "model/gguf/import.h"

#include <gmock/gmock.h>

#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "model/model_config.h"
#include "model/tokenizer.h"
#include "tests/model/files/test_directory.h"
#include "tests/model/gguf/small_gguf.h"
#include "tests/names.h"

namespace allot::model {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

const fs::path kGolden = fs::path(ALLOT_SOURCE_DIR) / "tests/data/gguf";

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

template <class T>
std::vector<T> values_of(const TensorView& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

class ImportTest : public testing::Test {
 protected:
  // Written to `out()`.
  void import(const GgufBytes& bytes, TensorDType dtype = TensorDType::kF32) const {
    const GgufFile file(directory_.write("x.gguf", bytes.file()));
    write_import(plan_import(file, dtype), out());
  }
  fs::path out() const { return directory_.path() / "models" / "small"; }

  TestDirectory directory_;
};

TEST_F(ImportTest, OfFilesOfThePythonPackageGivesItsNumbersAndTheIdsOfTokenizers) {
  const auto expected = nlohmann::json::parse(read_file(kGolden / "expected.json"));
  for (const auto& [name, model] : expected.items()) {
    const GgufFile file(kGolden / (name + ".gguf"));
    const fs::path directory = directory_.path() / name;
    write_import(plan_import(file, TensorDType::kF32), directory);

    const Checkpoint checkpoint = Checkpoint::open(directory);
    EXPECT_EQ(checkpoint.tensors().size(), model["tensors"].size()) << name;
    for (const auto& [tensor, digest] : model["tensors"].items()) {
      const auto& bytes = checkpoint.at(tensor).bytes;
      EXPECT_EQ(sha256_hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()}),
                digest.get<std::string>())
          << name << ": " << tensor;
    }
    const Tokenizer tokenizer = Tokenizer::load(directory);
    for (const auto& [text, ids] : model["ids"].items()) {
      EXPECT_EQ(tokenizer.encode(text), ids.get<std::vector<int32_t>>()) << name << ": " << text;
    }
    EXPECT_EQ(tokenizer.chat_template(), "{% for message in messages %}{{ message['content'] }}{% endfor %}");
  }
  EXPECT_EQ(expected.size(), 3u);
}

TEST_F(ImportTest, IsAModelDirectoryForEveryReader) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    GgufBytes bytes = small_gguf(architecture);
    bytes.set("tokenizer.ggml.eot_token_id", uint32_t{kEot});
    import(bytes, TensorDType::kBF16);
    EXPECT_THAT(names_in(out()), ElementsAre("config.json", "generation_config.json", "model.safetensors",
                                             "tokenizer.json", "tokenizer_config.json"));
    const ModelConfig config = read_model_config(out());
    EXPECT_EQ(config.num_layers, 2);
    EXPECT_EQ(config.vocab_size, 264);
    EXPECT_EQ(config.head_dim, 4);
    EXPECT_EQ(config.rope_theta, 50000);
    EXPECT_EQ(config.rms_norm_eps, double{1e-5f});
    EXPECT_TRUE(config.tie_word_embeddings);
    EXPECT_EQ(config.stored_dtype, "bfloat16");
    EXPECT_EQ(config.qk_norm, std::string(architecture) == "qwen3");
    const GenerationDefaults defaults = read_generation_defaults(out());
    EXPECT_THAT(defaults.eos_token_ids, ElementsAre(kEos, kEot));
    EXPECT_EQ(defaults.bos_token_id, kBos);
    EXPECT_EQ(defaults.pad_token_id, std::nullopt);
    const ModelIdentity identity = identify_model(out());
    EXPECT_EQ(identity.id, "small");
    EXPECT_EQ(identity.num_kv_heads, 1);
    EXPECT_EQ(Tokenizer::load(out()).vocab_size(), config.vocab_size);
    EXPECT_THAT(names_in(directory_.path() / "models"), ElementsAre("small"));
    fs::remove_all(out());
  }
}

TEST_F(ImportTest, PutsRowsOfQueryAndKeyBackAndLeavesTheOthers) {
  import(small_gguf("llama"));
  const Checkpoint checkpoint = Checkpoint::open(out());
  // Number i of tensor n is 1000 n + i, in rows of 8.
  const auto first_of_rows = [&](const char* name) {
    const auto values = values_of<float>(checkpoint.at(name));
    std::vector<float> firsts;
    for (size_t i = 0; i < values.size(); i += 8) firsts.push_back(values[i]);
    return firsts;
  };
  EXPECT_THAT(first_of_rows("model.layers.0.self_attn.q_proj.weight"),
              ElementsAre(2000, 2016, 2008, 2024, 2032, 2048, 2040, 2056));
  EXPECT_THAT(first_of_rows("model.layers.0.self_attn.k_proj.weight"), ElementsAre(3000, 3016, 3008, 3024));
  EXPECT_THAT(first_of_rows("model.layers.0.self_attn.v_proj.weight"), ElementsAre(4000, 4008, 4016, 4024));
  EXPECT_EQ(values_of<float>(checkpoint.at("model.layers.0.self_attn.q_proj.weight"))[15], 2023);
}

TEST_F(ImportTest, PutsBiasesOfQueryAndKeyBackToo) {
  GgufBytes bytes = small_gguf("llama");
  for (const char* layer : {"blk.0.", "blk.1."}) {
    bytes.tensor(floats(layer + std::string("attn_q.bias"), {8}, {0, 1, 2, 3, 4, 5, 6, 7}));
    bytes.tensor(floats(layer + std::string("attn_k.bias"), {4}, {0, 1, 2, 3}));
    bytes.tensor(floats(layer + std::string("attn_v.bias"), {4}, {0, 1, 2, 3}));
    bytes.tensor(floats(layer + std::string("attn_output.bias"), {8}, {0, 1, 2, 3, 4, 5, 6, 7}));
  }
  import(bytes);
  EXPECT_TRUE(read_model_config(out()).attention_output_bias);
  const Checkpoint checkpoint = Checkpoint::open(out());
  const auto bias = [&](const char* name) {
    return values_of<float>(checkpoint.at("model.layers.1.self_attn." + std::string(name) + ".bias"));
  };
  EXPECT_THAT(bias("q_proj"), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(bias("k_proj"), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(bias("v_proj"), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(bias("o_proj"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST_F(ImportTest, RoundsToTheDTypeToNearestEven) {
  GgufBytes bytes = small_gguf("llama");
  // Between two bfloat16 numbers, nearer the upper, and two ties.
  bytes.tensor(
      floats("output_norm.weight", {8}, {1, 0x1.018p0f, 0x1.01p0f, 0x1.03p0f, -3, 0, 0x1.0022p0f, 65504}));
  import(bytes, TensorDType::kBF16);
  EXPECT_THAT(values_of<uint16_t>(Checkpoint::open(out()).at("model.norm.weight")),
              ElementsAre(0x3F80, 0x3F81, 0x3F80, 0x3F82, 0xC040, 0, 0x3F80, 0x4780));
  fs::remove_all(out());
  import(bytes, TensorDType::kF16);
  EXPECT_EQ(read_model_config(out()).stored_dtype, "float16");
  EXPECT_THAT(values_of<uint16_t>(Checkpoint::open(out()).at("model.norm.weight")),
              ElementsAre(0x3C00, 0x3C06, 0x3C04, 0x3C0C, 0xC200, 0, 0x3C01, 0x7BFF));
}

TEST_F(ImportTest, ANumberBeyondFloat16IsRefusedAndLeavesNothing) {
  GgufBytes bytes = small_gguf("llama");
  bytes.tensor(floats("output_norm.weight", {8}, {1, 1, 1, 1, 1, 1, 1, 70000}));
  EXPECT_THAT(message_of<Unsupported>([&] { import(bytes, TensorDType::kF16); }),
              Names("model.norm.weight", "70000.000000", "bfloat16"));
  EXPECT_THAT(names_in(directory_.path() / "models"), IsEmpty());
}

TEST_F(ImportTest, KeepsADirectoryThatHoldsSomething) {
  fs::create_directories(out());
  import(small_gguf("llama"));  // an empty one is taken
  const std::string config = read_file(out() / "config.json");
  EXPECT_THAT(message_of<InvalidArgument>([&] { import(small_gguf("qwen2")); }), Names(out(), "not empty"));
  EXPECT_EQ(read_file(out() / "config.json"), config);
  EXPECT_THAT(names_in(directory_.path() / "models"), ElementsAre("small"));
  directory_.write("file", "x");
  EXPECT_THAT(message_of<InvalidArgument>([&] { require_new_or_empty(directory_.path() / "file"); }),
              Names(directory_.path() / "file"));
}

TEST_F(ImportTest, WhatTheReadersRefuseNeverGetsItsName) {
  const GgufFile file(directory_.write("x.gguf", small_gguf("llama").file()));
  ImportPlan plan = plan_import(file, TensorDType::kF32);
  plan.documents["tokenizer.json"] = "{}";
  EXPECT_THAT(message_of<CorruptFile>([&] { write_import(plan, out()); }), Names("model"));
  EXPECT_THAT(names_in(directory_.path() / "models"), IsEmpty());
}

TEST_F(ImportTest, TellsHowFarItIsAndStopsWhenAskedTo) {
  const GgufFile file(directory_.write("x.gguf", small_gguf("llama").file()));
  const ImportPlan plan = plan_import(file, TensorDType::kF16);
  std::vector<uint64_t> written;
  // A slash at the end is no other directory.
  write_import(plan, out().string() + "/", [&](uint64_t so_far, uint64_t wanted) {
    EXPECT_EQ(wanted, plan.weight_bytes());
    written.push_back(so_far);
  });
  EXPECT_EQ(written.size(), plan.tensors.size());
  EXPECT_TRUE(std::ranges::is_sorted(written));
  EXPECT_EQ(written.back(), static_cast<uint64_t>(plan.parameters()) * 2);
  fs::remove_all(out());
  EXPECT_THAT(message_of<Error>(
                  [&] { write_import(plan, out(), [](uint64_t, uint64_t) { throw Error("stopped"); }); }),
              Names("stopped"));
  EXPECT_THAT(names_in(directory_.path() / "models"), IsEmpty());
}

TEST_F(ImportTest, ALargeTensorComesInPieces) {
  GgufBytes bytes;
  bytes.tensor({.name = "t", .shape = {3000, 1024}, .type = 2, .bytes = std::string(3000 * 32 * 18, '\x21')});
  const GgufFile file(directory_.write("x.gguf", bytes.file()));
  size_t numbers = 0, pieces = 0;
  for_each_piece({.name = "t", .source = &file.tensors()[0]}, [&](std::span<const float> piece) {
    numbers += piece.size();
    ++pieces;
    EXPECT_LE(piece.size(), size_t{1} << 20);
  });
  EXPECT_EQ(numbers, 3000u * 1024);
  EXPECT_EQ(pieces, 3u);
}

}  // namespace
}  // namespace allot::model
