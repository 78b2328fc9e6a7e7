// Keys from outside: `allot keys`, and a run whose processes know each other by them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>

#include "aggregator/run_data.h"
#include "base/file.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"
#include "tests/names.h"

namespace allot::app {
namespace {

class KeysCommand : public ::testing::Test {
 protected:
  KeysCommand()
      : directory_(fresh_directory()), small_(write_small_model(directory_)), run_(directory_ / "run") {}

  static std::string tool() { return std::string(ALLOT_SIMULATED_DIR) + "/allot"; }
  std::string file(const std::string& name) const { return (directory_ / name).string(); }

  std::string new_key(const std::string& name) const { return make_key(tool(), file(name)); }
  std::string secret_of(const std::string& name) const {
    const std::string text = read_file(file(name));
    return text.substr(text.find("\nsecret ") + 8, 64);  // the file's first line speaks of a secret key too
  }

  std::vector<std::string> aggregator(const std::vector<std::string>& more) const {
    auto words = run_words(tool(), "aggregator", small_, run_, 8, {"--log-level", "trace"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  std::filesystem::path directory_;
  SmallModel small_;
  std::filesystem::path run_;
};

TEST_F(KeysCommand, NewWritesAKeyForItsOwnerAndPrintsThePublicHalf) {
  const std::string key = new_key("a.key");
  EXPECT_EQ(key.size(), 64u);
  struct stat status = {};
  ASSERT_EQ(::stat(file("a.key").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_EQ(run_command({tool(), "keys", "public", file("a.key")}).out, key + "\n");
  const auto again = run_command({tool(), "keys", "new", "--out", file("a.key")});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.err, Names(file("a.key"), "replaced"));
  EXPECT_EQ(run_command({tool(), "keys", "public"}).code, 2);
  EXPECT_EQ(run_command({tool(), "keys", "old"}).code, 2);
}

TEST_F(KeysCommand, ARunWithKeysServesThoseOnTheListAndNoSecretLeavesItsFile) {
  new_key("server.key");
  const std::string worker = new_key("worker.key");
  new_key("stranger.key");
  write_file_atomically(file("keys.txt"), worker + " node-a\n");
  const std::vector<std::string> options = {
      "--bind",         "tcp://0.0.0.0:*",     "--key", file("server.key"), "--allow",
      file("keys.txt"), "--exit-when-finished"};
  RunningCommand serving(aggregator(options));
  const auto listening = serving.error_line_with("listening on tcp://");
  ASSERT_TRUE(listening);
  const std::string port = listening->substr(listening->rfind(':') + 1);

  const auto stranger = run_command({tool(), "status", "--connect", "tcp://127.0.0.1:" + port, "--key",
                                     file("stranger.key"), "--server-key", (run_ / "server-key").string()});
  EXPECT_EQ(stranger.code, 1);
  EXPECT_THAT(stranger.err, Names("allow-list"));
  const auto known = run_command({tool(), "status", "--connect", "tcp://127.0.0.1:" + port, "--key",
                                  file("worker.key"), "--server-key", (run_ / "server-key").string()});
  EXPECT_EQ(known.code, 0) << known.err;

  const auto worked = run_command({tool(), "worker", "--connect", "tcp://127.0.0.1:" + port, "--key",
                                   file("worker.key"), "--server-key", (run_ / "server-key").string(),
                                   "--exit-when-finished", "--log-level", "trace"});
  EXPECT_EQ(worked.code, 0) << worked.err;
  const auto served = serving.wait();
  EXPECT_EQ(served.code, 0) << served.err;
  EXPECT_EQ(aggregator::read_run(run_).stage, "finished");
  EXPECT_THAT(served.err, Names("node-a/"));

  const auto shown =
      run_command(aggregator({"--key", file("server.key"), "--allow", file("keys.txt"), "--dry-run"}));
  EXPECT_EQ(shown.code, 0) << shown.err;
  const std::string spec = read_file(run_ / "spec.json");
  for (const char* name : {"server.key", "worker.key"}) {
    const std::string secret = secret_of(name);
    ASSERT_EQ(secret.find_first_not_of("0123456789abcdef"), std::string::npos) << name;
    ASSERT_EQ(secret.size(), 64u);
    for (const std::string& text : {served.err, served.out, worked.err, worked.out, known.out, known.err,
                                    stranger.err, shown.out, spec, read_file(run_ / "history.sqlite")}) {
      EXPECT_EQ(text.find(secret), std::string::npos) << name;
    }
  }
}

TEST_F(KeysCommand, HalfOfWhatKeysNeedIsRefusedWithTheRemedy) {
  new_key("server.key");
  const auto no_list = run_command(aggregator({"--key", file("server.key")}));
  EXPECT_EQ(no_list.code, 2);
  EXPECT_THAT(no_list.err, Names("--allow"));
  const auto no_keys = run_command(aggregator({"--bind", "tcp://0.0.0.0:*"}));
  EXPECT_EQ(no_keys.code, 2);
  EXPECT_THAT(no_keys.err, Names("--allow", "tcp://0.0.0.0:*", "allot keys new"));
  const auto no_server =
      run_command({tool(), "status", "--connect", "tcp://127.0.0.1:1", "--key", file("server.key")});
  EXPECT_EQ(no_server.code, 2);
  EXPECT_THAT(no_server.err, Names("--server-key"));
  ASSERT_EQ(::chmod(file("server.key").c_str(), 0644), 0);
  write_file_atomically(file("keys.txt"), "");
  const auto open = run_command(aggregator({"--key", file("server.key"), "--allow", file("keys.txt")}));
  EXPECT_EQ(open.code, 2);
  EXPECT_THAT(open.err, Names("0644", "chmod 600"));
}

}  // namespace
}  // namespace allot::app
