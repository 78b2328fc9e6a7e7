// Names on the Hugging Face hub, in caches laid out as huggingface_hub 1.33 lays them out.
#include "model/hub_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "tests/model/files/test_directory.h"

namespace allot::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

EnvironmentVariable variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> std::optional<std::string> {
    const auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return found->second;
  };
}

class HubCache : public ::testing::Test {
 protected:
  std::filesystem::path folder() const { return cache_.path() / "models--org--name"; }
  void add_snapshot(const std::string& commit) const {
    std::filesystem::create_directories(folder() / "snapshots" / commit);
  }
  void add_revision(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((folder() / "refs" / name).parent_path());
    std::ofstream(folder() / "refs" / name) << content;
  }
  std::filesystem::path find(std::string_view text) const {
    return find_snapshot(cache_.path(), parse_hub_name(text).value());
  }
  std::string fault(std::string_view text) const {
    return message_of<NotFound>([&] { (void)find(text); });
  }

  TestDirectory cache_;
};

TEST(HubCachePlace, IsWhereTheVariablesOfHuggingFaceSay) {
  EXPECT_EQ(hub_cache(variables({{"HF_HUB_CACHE", "/a"}, {"HF_HOME", "/b"}, {"HOME", "/h"}})), "/a");
  EXPECT_EQ(hub_cache(variables({{"HUGGINGFACE_HUB_CACHE", "/c"}, {"HF_HOME", "/b"}})), "/c");
  EXPECT_EQ(hub_cache(variables({{"HF_HUB_CACHE", ""}, {"HF_HOME", "~/b"}, {"HOME", "/h"}})), "/h/b/hub");
  EXPECT_EQ(hub_cache(variables({{"XDG_CACHE_HOME", "/x"}, {"HOME", "/h"}})), "/x/huggingface/hub");
  EXPECT_EQ(hub_cache(variables({{"HOME", "/h"}})), "/h/.cache/huggingface/hub");
  EXPECT_THAT(message_of<NotFound>([] { (void)hub_cache(variables({})); }), HasSubstr("HF_HUB_CACHE"));
}

TEST(HubName, HasTwoPartsAndMayHaveARevision) {
  EXPECT_EQ(parse_hub_name("Qwen/Qwen2.5-7B"), (HubName{"Qwen/Qwen2.5-7B", ""}));
  EXPECT_EQ(parse_hub_name("org/name@refs/pr/1"), (HubName{"org/name", "refs/pr/1"}));
  for (const char* text : {"", "name", "/name", "org/", "a/b/c", "../b", "./b", "a/.b", "a/b--c", "a/b c",
                           "a/b@", "a/b@../x", "a/b@-x", "a/b@x y", "/a/b"})
    EXPECT_FALSE(parse_hub_name(text)) << text;
}

TEST_F(HubCache, ARevisionIsTheSnapshotOfItsCommit) {
  add_snapshot(kCommit);
  add_revision("main", kCommit);
  add_revision("refs/pr/1", std::string(kCommit) + "\n");
  const auto snapshot = folder() / "snapshots" / kCommit;
  EXPECT_EQ(find("org/name"), snapshot);
  EXPECT_EQ(find("org/name@main"), snapshot);
  EXPECT_EQ(find("org/name@refs/pr/1"), snapshot);
  EXPECT_EQ(find(std::string("org/name@") + kCommit), snapshot);
}

TEST_F(HubCache, WhatIsMissingIsNamedWithTheCommandThatFetchesIt) {
  EXPECT_THAT(fault("org/name"),
              AllOf(HasSubstr(cache_.path().string()), HasSubstr("'hf download org/name'")));
  add_snapshot(kCommit);
  EXPECT_THAT(fault("org/name"), AllOf(HasSubstr("no revision main"), HasSubstr(kCommit)));
  EXPECT_THAT(fault("org/name@v2"), HasSubstr("'hf download org/name --revision v2'"));
  const std::string other(40, 'f');
  EXPECT_THAT(fault("org/name@" + other), AllOf(HasSubstr(other), HasSubstr(kCommit)));
  add_revision("main", other);
  EXPECT_THAT(fault("org/name"), AllOf(HasSubstr(other), HasSubstr("revision main")));
  add_revision("main", "../../etc");
  EXPECT_THAT(message_of<CorruptFile>([&] { (void)find("org/name"); }), HasSubstr("no commit"));
}

TEST_F(HubCache, AFileOrDirectoryThatExistsWins) {
  const auto environment = variables({{"HF_HUB_CACHE", cache_.path().string()}});
  EXPECT_EQ(locate(cache_.path(), environment), cache_.path());
  EXPECT_EQ(locate("no/such/directory", environment), "no/such/directory");  // no name on the hub
  add_snapshot(kCommit);
  add_revision("main", kCommit);
  EXPECT_EQ(locate("org/name", environment), folder() / "snapshots" / kCommit);
  EXPECT_THAT(message_of<NotFound>([&] { (void)locate("org/other", environment); }),
              AllOf(HasSubstr("org/other is no file or directory"), HasSubstr("hf download org/other")));
}

TEST_F(HubCache, ASnapshotIsCalledByItsRepository) {
  const auto snapshot = folder() / "snapshots" / kCommit;
  EXPECT_EQ(model_name(snapshot), "org/name");
  EXPECT_EQ(model_name(snapshot / ""), "org/name");
  EXPECT_EQ(snapshot_name(snapshot), (HubName{"org/name", kCommit}));
  EXPECT_EQ(model_name("/models/mine/"), "mine");
  EXPECT_EQ(model_name(folder() / "snapshots" / "mine"), "mine");
  EXPECT_THAT(download_hint(snapshot), HasSubstr(std::string("hf download org/name --revision ") + kCommit));
  EXPECT_EQ(download_hint("/models/mine"), "");
}

}  // namespace
}  // namespace allot::model
