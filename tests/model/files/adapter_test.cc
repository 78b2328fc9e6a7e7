#include "model/adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "tests/model/adapter_files.h"
#include "tests/model/files/test_directory.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using nlohmann::json;

const std::string kQ = "model.layers.0.self_attn.q_proj";
const std::string kPrefix = "base_model.model.";
const std::string kDown = "model.layers.1.mlp.down_proj";

// Two layers: q_proj [8, 8], k_proj [4, 8], down_proj [8, 12].
ModelConfig small_config() {
  ModelConfig config;
  config.vocab_size = 16;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_layers = 2;
  config.num_q_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.max_position_embeddings = 32;
  return config;
}

std::vector<StoredTensor> joined(std::vector<StoredTensor> first, const std::vector<StoredTensor>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

class AdapterTest : public testing::Test {
 protected:
  // Rank 4 for q_proj of layer 0 and down_proj of layer 1.
  AdapterTest() : tensors_(joined(factors_of(kQ, 4, 8, 8), factors_of(kDown, 4, 12, 8))) {}

  Adapter open() const {
    write_adapter(path(), settings_, tensors_);
    return Adapter::open(path(), small_config());
  }
  std::filesystem::path path() const { return directory_.path() / "lora"; }
  template <class Expected>
  std::string fault() const {
    return message_of<Expected>([&] { (void)open(); });
  }
  // The same with another field of adapter_config.json.
  template <class Expected>
  std::string fault_with(const std::string& field, const json& value) {
    const json before = std::exchange(settings_[field], value);
    const std::string message = fault<Expected>();
    settings_[field] = before;
    return message;
  }
  StoredTensor& tensor(const std::string& name) {
    return *std::ranges::find(tensors_, kPrefix + name, &StoredTensor::name);
  }

  TestDirectory directory_;
  json settings_ = adapter_settings(4, 8);
  std::vector<StoredTensor> tensors_;
};

TEST_F(AdapterTest, HasTheModulesOfItsTensorsWhateverTargetModulesSays) {
  for (const json& target : {json("all-linear"), json::array({"q_proj"}), json(nullptr)}) {
    settings_["target_modules"] = target;
    const Adapter adapter = open();
    ASSERT_EQ(adapter.modules().size(), 2u);
    const AdaptedModule& module = adapter.modules().at(kQ);
    EXPECT_EQ(module.rank, 4);
    EXPECT_EQ(module.alpha, 8);
    EXPECT_EQ(module.update.scaling, 2);
    EXPECT_EQ(module.update.a.shape, (std::vector<int64_t>{4, 8}));
    EXPECT_EQ(module.update.b.shape, (std::vector<int64_t>{8, 4}));
    EXPECT_FALSE(adapter.rank_stabilised());
    EXPECT_EQ(adapter.base_model(), "somebody/base");
  }
}

TEST_F(AdapterTest, UpdatesTheWeightsOfItsModulesAndNoOtherTensor) {
  const Adapter adapter = open();
  ASSERT_TRUE(adapter.update_of(kQ + ".weight"));
  EXPECT_EQ(adapter.update_of(kQ + ".weight")->a.name, kPrefix + kQ + ".lora_A.weight");
  for (const char* other : {"model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.q_proj.bias",
                            "model.layers.0.self_attn.q_proj", "model.norm.weight", ""}) {
    EXPECT_FALSE(adapter.update_of(other)) << other;
  }
}

TEST_F(AdapterTest, RankStabilisedScalingDividesByTheRootOfTheRank) {
  settings_["use_rslora"] = true;
  settings_["lora_alpha"] = 3;
  tensors_ = factors_of(kQ, 5, 8, 8);
  settings_["r"] = 5;
  const Adapter adapter = open();
  EXPECT_TRUE(adapter.rank_stabilised());
  EXPECT_EQ(adapter.modules().at(kQ).update.scaling, static_cast<float>(3 / std::sqrt(5.0)));
}

TEST_F(AdapterTest, PatternsHoldForWholeNamesAndForEndsOfNamesAfterADot) {
  struct Case {
    const char* pattern;
    bool matches_q;
    bool matches_down;
  };
  for (const auto& [pattern, matches_q, matches_down] :
       {Case{"q_proj", true, false}, Case{"_proj", false, false}, Case{"down_proj", false, true},
        Case{"self_attn.q_proj", true, false}, Case{"model.layers.1.mlp.down_proj", false, true},
        Case{"^model.layers.0.self_attn.q_proj", true, false},
        Case{"^layers.0.self_attn.q_proj", false, false},
        Case{R"(model\.layers\.\d+\.(self_attn|mlp)\..*)", true, true}, Case{"q_proj|down_proj", true, true},
        Case{"layers.0", false, false}}) {
    settings_["alpha_pattern"] = {{pattern, 20}};
    const Adapter adapter = open();
    EXPECT_EQ(adapter.modules().at(kQ).alpha, matches_q ? 20 : 8) << pattern;
    EXPECT_EQ(adapter.modules().at(kDown).alpha, matches_down ? 20 : 8) << pattern;
  }
}

TEST_F(AdapterTest, AModuleWithARankOfItsOwnIsScaledByIt) {
  tensors_ = joined(factors_of(kQ, 2, 8, 8), factors_of(kDown, 4, 12, 8));
  settings_["rank_pattern"] = {{"q_proj", 2}};
  settings_["alpha_pattern"] = {{"down_proj", 1}};
  const Adapter adapter = open();
  EXPECT_EQ(adapter.modules().at(kQ).rank, 2);
  EXPECT_EQ(adapter.modules().at(kQ).update.scaling, 4);
  EXPECT_EQ(adapter.modules().at(kDown).rank, 4);
  EXPECT_EQ(adapter.modules().at(kDown).update.scaling, 0.25);
}

TEST_F(AdapterTest, PatternsThatContradictEachOtherAreRefused) {
  settings_["alpha_pattern"] = {{"q_proj", 1}, {"self_attn.q_proj", 1}};
  EXPECT_EQ(open().modules().at(kQ).alpha, 1);
  settings_["alpha_pattern"] = {{"q_proj", 1}, {"self_attn.q_proj", 2}};
  EXPECT_THAT(fault<Unsupported>(), Names("alpha_pattern", "q_proj", "self_attn.q_proj", kQ));
  settings_["alpha_pattern"] = {{"q_proj(", 1}};
  EXPECT_THAT(fault<Unsupported>(), Names("q_proj("));
}

TEST_F(AdapterTest, TernaryWeightsTakeNoUpdate) {
  (void)open();
  ModelConfig ternary = small_config();
  ternary.ternary = TernaryWeights::kMaster;
  EXPECT_THAT(message_of<Unsupported>([&] { (void)Adapter::open(path(), ternary); }),
              Names("adapter_config.json", "ternary"));
}

TEST_F(AdapterTest, AMissingFileIsNamedWithTheDirectory) {
  EXPECT_THAT(message_of<NotFound>([&] { (void)Adapter::open(path(), small_config()); }),
              Names(path(), "adapter_config.json", "--adapter"));
  (void)open();
  std::filesystem::remove(path() / "adapter_model.safetensors");
  EXPECT_THAT(message_of<NotFound>([&] { (void)Adapter::open(path(), small_config()); }),
              Names(path(), "adapter_model.safetensors"));
}

TEST_F(AdapterTest, FieldsThatAreImpossibleAreNamedWithTheirValue) {
  EXPECT_THAT(fault_with<CorruptFile>("r", 0), Names("adapter_config.json", "r", 0));
  EXPECT_THAT(fault_with<CorruptFile>("r", nullptr), Names("r", "missing"));
  EXPECT_THAT(fault_with<CorruptFile>("lora_alpha", "much"), Names("lora_alpha", "much"));
  EXPECT_THAT(fault_with<CorruptFile>("lora_alpha", 1e12), Names("lora_alpha", "1000000000000.0"));
  EXPECT_THAT(fault_with<CorruptFile>("use_rslora", 1), Names("use_rslora", 1));
  EXPECT_THAT(fault_with<CorruptFile>("rank_pattern", json::array({1})), Names("rank_pattern"));
  EXPECT_THAT(fault_with<CorruptFile>("rank_pattern", {{"q_proj", 1.5}}), Names("rank_pattern.q_proj", 1.5));
  directory_.write("lora/adapter_config.json", "{");
  EXPECT_THAT(message_of<CorruptFile>([&] { (void)Adapter::open(path(), small_config()); }),
              Names("adapter_config.json"));
}

TEST_F(AdapterTest, WhatIsMoreThanASumOfLowRankIsRefusedByItsField) {
  EXPECT_THAT(fault_with<Unsupported>("peft_type", "IA3"), Names("peft_type", "IA3", "LORA"));
  EXPECT_THAT(fault_with<Unsupported>("bias", "lora_only"), Names("bias", "lora_only", "none"));
  const std::pair<const char*, json> fields[] = {{"use_dora", true},
                                                 {"lora_bias", true},
                                                 {"fan_in_fan_out", true},
                                                 {"modules_to_save", {"lm_head"}},
                                                 {"trainable_token_indices", {3}},
                                                 {"target_parameters", {"experts.weight"}},
                                                 {"layer_replication", {{0, 2}}},
                                                 {"alora_invocation_tokens", {1}},
                                                 {"use_qalora", true},
                                                 {"use_bdlora", {{"nblocks", 2}}},
                                                 {"kasa_config", {{"beta", 1}}},
                                                 {"monteclora_config", {{"num_samples", 4}}},
                                                 {"arrow_config", {{"top_k", 3}}}};
  for (const auto& [field, value] : fields) {
    EXPECT_THAT(fault_with<Unsupported>(field, value), Names("adapter_config.json", field, value.dump()));
    for (const json& off : {json(nullptr), json(false), json::array(), json::object()}) {
      settings_[field] = off;
      EXPECT_NO_THROW((void)open()) << field << off;
    }
  }
}

TEST_F(AdapterTest, StartsOfTrainingThatChangeTheBaseAreRefused) {
  for (const json& start :
       {json(true), json(false), json("gaussian"), json("Gaussian"), json("eva"), json("orthogonal")}) {
    settings_["init_lora_weights"] = start;
    EXPECT_NO_THROW((void)open()) << start;
  }
  for (const char* start : {"pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "new_one"}) {
    EXPECT_THAT(fault_with<Unsupported>("init_lora_weights", start), Names("init_lora_weights", start));
  }
}

TEST_F(AdapterTest, AnAdapterOfAnotherBaseIsRefusedWithFoundAndExpected) {
  tensors_ = factors_of(kQ, 4, 16, 8);
  EXPECT_THAT(fault<Unsupported>(), Names("adapter_model.safetensors", kPrefix + kQ + ".lora_A.weight",
                                          "[4, 16]", "[rank, 8]", "[8, 8]", "somebody/base"));
  tensors_ = factors_of(kQ, 4, 8, 32);
  EXPECT_THAT(fault<Unsupported>(), Names(kPrefix + kQ + ".lora_B.weight", "[32, 4]", "[8, rank]", "[8, 8]"));
  tensors_ = factors_of(kQ, 4, 8, 8);
  tensor(kQ + ".lora_A.weight").shape = {2, 2, 8};
  EXPECT_THAT(fault<Unsupported>(), Names("[2, 2, 8]", "[rank, 8]"));
  tensors_ = factors_of("model.layers.2.self_attn.q_proj", 4, 8, 8);
  EXPECT_THAT(fault<Unsupported>(), Names("model.layers.2.self_attn.q_proj", "2 layers", "somebody/base"));
  tensors_ = factors_of("model.layers.0.mlp.experts.0.w1", 4, 8, 8);
  EXPECT_THAT(fault<Unsupported>(), Names("model.layers.0.mlp.experts.0.w1"));
}

TEST_F(AdapterTest, RanksThatDisagreeAreAllNamed) {
  settings_["r"] = 3;
  EXPECT_THAT(fault<CorruptFile>(), Names(kPrefix + kQ + ".lora_A.weight", "rank 4", "lora_B", "rank 3"));
  settings_["r"] = 4;
  settings_["rank_pattern"] = {{"down_proj", 6}};
  EXPECT_THAT(fault<CorruptFile>(), Names(kDown, 4, 6, "rank_pattern"));
  settings_["rank_pattern"] = json::object();
  tensors_[1] = factors_of(kQ, 5, 8, 8)[1];
  EXPECT_THAT(fault<CorruptFile>(), Names(kQ, 4, 5));
}

TEST_F(AdapterTest, ModulesOutsideTheLayersAreRefusedByTensor) {
  const std::vector<StoredTensor> before = tensors_;
  for (const auto& name :
       {"base_model.model.model.embed_tokens.lora_embedding_A", "base_model.model.lm_head.lora_A.weight",
        "base_model.model.lm_head.weight", "base_model.model.model.embed_tokens.weight"}) {
    tensors_ = joined(before, {stored_tensor<float>(name, "F32", {1, 1}, {1})});
    EXPECT_THAT(fault<Unsupported>(), Names(name, "q_proj", "down_proj", "merge_and_unload"));
  }
}

TEST_F(AdapterTest, ATensorThatIsNotKnownIsRefused) {
  const std::vector<StoredTensor> before = tensors_;
  const std::string prefix = kPrefix + kQ;
  for (const std::string& name :
       {prefix + ".lora_magnitude_vector", prefix + ".lora_B.bias", prefix + ".lora_A.default.weight",
        kQ + ".lora_A.weight", std::string("lora_A.weight"), std::string("x")}) {
    tensors_ = joined(before, {stored_tensor<float>(name, "F32", {1, 1}, {1})});
    EXPECT_THAT(fault<Unsupported>(), Names(name, kPrefix + kQ + ".lora_A.weight", ".lora_B.weight")) << name;
  }
}

TEST_F(AdapterTest, HalfOfAPairAndNoPairAtAllAreCorrupt) {
  const std::vector<StoredTensor> before = tensors_;
  tensors_ = {before[0], before[2], before[3]};
  EXPECT_THAT(fault<CorruptFile>(), Names(before[0].name, "no lora_B"));
  tensors_ = {before[1], before[2], before[3]};
  EXPECT_THAT(fault<CorruptFile>(), Names(before[1].name, "no lora_A"));
  tensors_ = {};
  EXPECT_THAT(fault<CorruptFile>(), Names("adapter_model.safetensors"));
}

TEST_F(AdapterTest, FactorsMayBeStoredInThreeDTypes) {
  for (const char* dtype : {"BF16", "F16"}) {
    tensors_ = {stored_tensor(kPrefix + kQ + ".lora_A.weight", dtype, {4, 8}, std::vector<uint16_t>(32)),
                factors_of(kQ, 4, 8, 8)[1]};
    EXPECT_NO_THROW((void)open()) << dtype;
  }
  tensors_[0] = stored_tensor(kPrefix + kQ + ".lora_A.weight", "I8", {4, 8}, std::vector<int8_t>(32));
  EXPECT_THAT(fault<Unsupported>(), Names(kPrefix + kQ + ".lora_A.weight", "I8", "F32"));
}

TEST_F(AdapterTest, ATruncatedFileIsCorrupt) {
  (void)open();
  const std::string whole = read_file(path() / "adapter_model.safetensors");
  for (const size_t size : {whole.size() - 1, size_t{20}, size_t{3}}) {
    directory_.write("lora/adapter_model.safetensors", whole.substr(0, size));
    EXPECT_THAT(message_of<CorruptFile>([&] { (void)Adapter::open(path(), small_config()); }),
                Names("adapter_model.safetensors"))
        << size;
  }
}

TEST_F(AdapterTest, TheFingerprintFollowsWhatIsAdded) {
  const AdapterIdentity before = open().identity();
  EXPECT_EQ(before.id, "lora");
  EXPECT_EQ(before.fingerprint.size(), 64u);
  // What is said for people does not count, and alpha and rank only by what they make of the factors.
  settings_["base_model_name_or_path"] = "elsewhere";
  settings_["lora_dropout"] = 0;
  settings_["alpha_pattern"] = {{"q_proj", 8}};
  EXPECT_EQ(open().identity(), before);
  std::filesystem::copy(path(), directory_.path() / "copy");
  const AdapterIdentity copy = Adapter::open(directory_.path() / "copy", small_config()).identity();
  EXPECT_EQ(copy.id, "copy");
  EXPECT_EQ(copy.fingerprint, before.fingerprint);

  settings_["alpha_pattern"] = {{"q_proj", 9}};
  EXPECT_NE(open().identity().fingerprint, before.fingerprint);
  settings_["alpha_pattern"] = json::object();
  settings_["use_rslora"] = true;
  EXPECT_NE(open().identity().fingerprint, before.fingerprint);
  settings_["use_rslora"] = false;
  tensors_.back().bytes[5] ^= 1;
  EXPECT_NE(open().identity().fingerprint, before.fingerprint);
}

}  // namespace
}  // namespace allot::model
