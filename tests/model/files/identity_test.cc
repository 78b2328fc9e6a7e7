// Which model a directory holds: hashes of its files, and the fingerprint of its weights.
#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/sha256.h"
#include "model/model_config.h"
#include "tests/hub_snapshot.h"
#include "tests/model/adapter_files.h"
#include "tests/model/files/test_directory.h"
#include "tests/names.h"

namespace allot::model {
namespace {

const std::string kConfig =
    R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
    "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

std::string safetensors(const std::string& header, const std::string& data) {
  return std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header + data;
}

class IdentityTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_.write("config.json", kConfig);
    directory_.write("tokenizer.json", "{}");
  }
  void write_weights(const std::string& data) {
    directory_.write(
        "model.safetensors",
        safetensors(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[)" +
                        std::to_string(data.size() - 3) + R"(],"data_offsets":[3,)" +
                        std::to_string(data.size()) + "]}}",
                    data));
  }
  std::string fingerprint() { return identify_model(directory_.path()).weights_fingerprint; }

  TestDirectory directory_;
};

TEST_F(IdentityTest, NamesTheDirectoryAndHashesItsFiles) {
  write_weights("abcdef");
  const ModelIdentity identity = identify_model(directory_.path() / "");
  EXPECT_EQ(identity.id, directory_.path().filename().string());
  EXPECT_EQ(identity.config_sha256, sha256_hex(kConfig));
  EXPECT_EQ(identity.tokenizer_sha256, sha256_hex("{}"));
  EXPECT_EQ(identity.layers, 32);
  EXPECT_EQ(identity.num_q_heads, 32);
  EXPECT_EQ(identity.num_kv_heads, 8);
  EXPECT_EQ(identity.head_dim, 128);
  EXPECT_EQ(identity, identify_model(directory_.path()));
}

TEST_F(IdentityTest, OfWholeWeightsSeesEveryByte) {
  std::string data(20'000, 'x');
  write_weights(data);
  const std::string before = whole_weights_sha256(directory_.path()), sampled = fingerprint();
  EXPECT_EQ(before, sha256_hex("a\nU8 3\nxxxb\nU8 19997\n" + std::string(19'997, 'x')));
  data[2'000] = 'y';  // between the blocks of the sample
  write_weights(data);
  EXPECT_EQ(fingerprint(), sampled);
  EXPECT_NE(whole_weights_sha256(directory_.path()), before);
}

TEST_F(IdentityTest, OfASnapshotIsThatOfItsFilesUnderTheNameOnTheHub) {
  write_weights("abcdef");
  ModelIdentity expected = identify_model(directory_.path());
  expected.id = "org/name";
  const TemporaryDirectory cache;
  const std::filesystem::path snapshot =
      write_snapshot(cache.path(), "org/name", "main", std::string(40, '7'), directory_.path());
  EXPECT_EQ(identify_model(snapshot), expected);
}

TEST_F(IdentityTest, OfASnapshotThatLacksAFileSaysHowToDownloadIt) {
  const TemporaryDirectory cache;
  const std::string download = "hf download org/name --revision " + std::string(40, '7');
  const std::filesystem::path snapshot =
      write_snapshot(cache.path(), "org/name", "main", std::string(40, '7'), directory_.path());
  const auto fault = [&](const IdentifyOptions& options) {
    return message_of<NotFound>([&] { (void)identify_model(snapshot, options); });
  };
  const auto write = [&](const char* file, const char* text) { std::ofstream(snapshot / file) << text; };
  EXPECT_THAT(fault({}), Names("model.safetensors", download));
  write("model.safetensors.index.json", R"({"weight_map": {"a": "model-00001-of-00001.safetensors"}})");
  EXPECT_THAT(fault({}), Names("model-00001-of-00001.safetensors", download));
  const IdentifyOptions adapted{.random_weights = 1, .adapter = snapshot};
  EXPECT_THAT(fault(adapted), Names("adapter_config.json", download));
  write("adapter_config.json", "{}");
  EXPECT_THAT(fault(adapted), Names("adapter_model.safetensors", download));
  for (const char* file : {"tokenizer.json", "config.json"}) {
    std::filesystem::remove(snapshot / file);
    EXPECT_THAT(fault({}), Names(file, download));
  }
}

TEST_F(IdentityTest, OfRandomWeightsFollowsTheSeedAndNeedsNoCheckpoint) {
  const auto identify = [&](uint64_t seed) {
    return identify_model(directory_.path(), {.random_weights = seed});
  };
  EXPECT_EQ(identify(3), identify(3));
  EXPECT_NE(identify(3).weights_fingerprint, identify(4).weights_fingerprint);
  EXPECT_THAT(message_of<NotFound>([&] { identify_model(directory_.path()); }),
              Names("model.safetensors", "--random-weights"));
  write_weights("abcdef");
  EXPECT_NE(identify(3).weights_fingerprint, fingerprint());
}

TEST_F(IdentityTest, OfAModelWithAnAdapterNamesTheAdapterBesideTheSameWeights) {
  write_weights("abcdef");
  EXPECT_FALSE(identify_model(directory_.path()).adapter);
  const std::filesystem::path adapter = directory_.path() / "lora";
  write_adapter(adapter, adapter_settings(4, 8), factors_of("model.layers.31.mlp.down_proj", 4, 14336, 4096));
  const ModelIdentity identity = identify_model(directory_.path(), {.adapter = adapter / ""});
  ASSERT_TRUE(identity.adapter);
  EXPECT_EQ(identity.adapter->id, "lora");
  EXPECT_EQ(identity.weights_fingerprint, fingerprint());
  EXPECT_NE(identity, identify_model(directory_.path()));
  write_adapter(adapter, adapter_settings(4, 8), factors_of("model.layers.32.mlp.down_proj", 4, 14336, 4096));
  EXPECT_THAT(message_of<Unsupported>([&] { identify_model(directory_.path(), {.adapter = adapter}); }),
              Names("model.layers.32.mlp.down_proj", "32 layers"));
}

TEST_F(IdentityTest, SaysThatTheTokenizerIsMissingUnlessNoneIsNeeded) {
  write_weights("abcdef");
  std::filesystem::remove(directory_.path() / "tokenizer.json");
  EXPECT_THAT(message_of<NotFound>([&] { identify_model(directory_.path()); }),
              Names("tokenizer.json", "missing", "allot bench decode"));
  EXPECT_EQ(identify_model(directory_.path(), {.needs_tokenizer = false}).tokenizer_sha256, "");
}

TEST_F(IdentityTest, TheFingerprintFollowsTheWeights) {
  write_weights("abcdef");
  const std::string before = fingerprint();
  write_weights("abcdeF");
  EXPECT_NE(fingerprint(), before);
  write_weights("abcdefg");
  EXPECT_NE(fingerprint(), before);
}

TEST_F(IdentityTest, TheFingerprintSamplesTheBeginningAndTheEndOfALargeTensor) {
  std::string data(1'000'000, 'x');
  write_weights(data);
  const std::string before = fingerprint();
  data.back() = 'y';
  write_weights(data);
  EXPECT_NE(fingerprint(), before);
  data.back() = 'x';
  data[3] = 'y';
  write_weights(data);
  EXPECT_NE(fingerprint(), before);
}

TEST_F(IdentityTest, ShardingDoesNotChangeTheFingerprint) {
  write_weights("abcdef");
  const std::string before = fingerprint();
  std::filesystem::remove(directory_.path() / "model.safetensors");
  const std::string header = R"(":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})";
  directory_.write("1.safetensors", safetensors(R"({"b)" + header, "def"));
  directory_.write("2.safetensors", safetensors(R"({"a)" + header, "abc"));
  directory_.write("model.safetensors.index.json",
                   R"({"weight_map": {"b": "1.safetensors", "a": "2.safetensors"}})");
  EXPECT_EQ(fingerprint(), before);
}

}  // namespace
}  // namespace allot::model
