#include "wire/keys.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/names.h"

namespace allot::wire {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

class Keys : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::filesystem::path file_ = directory_.path() / "worker.key";
};

TEST_F(Keys, AKeyFileIsItsOwnersAloneAndReadsBack) {
  const KeyPair pair = make_key_pair();
  write_key_pair(file_, pair);
  struct stat status = {};
  ASSERT_EQ(::stat(file_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  const KeyPair again = read_key_pair(file_);
  EXPECT_EQ(again.public_key, pair.public_key);
  EXPECT_EQ(again.secret_key.bytes(), pair.secret_key.bytes());
}

TEST_F(Keys, TwoKeysDiffer) {
  EXPECT_NE(make_key_pair().public_key, make_key_pair().public_key);
}

TEST_F(Keys, AnExistingFileIsNotReplaced) {
  write_key_pair(file_, make_key_pair());
  const std::string before = read_file(file_);
  EXPECT_THAT([&] { write_key_pair(file_, make_key_pair()); }, ThrowsMessage<StorageError>(Names(file_)));
  EXPECT_EQ(read_file(file_), before);
}

TEST_F(Keys, AFileThatOthersMayReadOrTheGroupMayWriteIsRefused) {
  write_key_pair(file_, make_key_pair());
  for (const mode_t mode : {0604, 0602, 0620, 0644, 0666}) {
    ASSERT_EQ(::chmod(file_.c_str(), mode), 0);
    EXPECT_THAT([&] { (void)read_key_pair(file_); }, ThrowsMessage<InvalidArgument>(Names("chmod 600")))
        << mode;
  }
  for (const mode_t mode : {0600, 0400, 0440, 0640}) {
    ASSERT_EQ(::chmod(file_.c_str(), mode), 0);
    EXPECT_NO_THROW((void)read_key_pair(file_)) << mode;
  }
}

TEST_F(Keys, AFileThatWasDamagedIsRefusedWithoutQuotingIt) {
  write_key_pair(file_, make_key_pair());
  const std::string good = read_file(file_);
  const std::string secret = good.substr(good.find("\nsecret ") + 8, 64);
  std::string other_public = good;
  other_public.replace(good.find("\npublic ") + 8, 64, make_key_pair().public_key.text());
  for (const std::string& bad :
       {std::string("rubbish ") + secret, good.substr(0, good.size() - 2), other_public, std::string()}) {
    std::filesystem::remove(file_);
    write_file_atomically(file_, bad);
    ASSERT_EQ(::chmod(file_.c_str(), 0600), 0);
    EXPECT_THAT([&] { (void)read_key_pair(file_); },
                ThrowsMessage<CorruptFile>(AllOf(Names(file_), Not(HasSubstr(secret.substr(0, 16))))));
  }
  EXPECT_THROW((void)read_key_pair(directory_.path() / "absent"), NotFound);
  EXPECT_THROW((void)read_key_pair(directory_.path()), CorruptFile);
}

TEST_F(Keys, TheKeysOfAServerAreGivenAsOneItselfOrAsAFileWithOneOrTwo) {
  const PublicKey key = make_key_pair().public_key, next = make_key_pair().public_key;
  EXPECT_THAT(read_server_keys(key.text()), ElementsAre(key));
  const std::filesystem::path file = directory_.path() / "server-key";
  write_file_atomically(file, key.text() + "\n");
  EXPECT_THAT(read_server_keys(file.string()), ElementsAre(key));
  write_file_atomically(file, key.text() + "\n\n  " + next.text());
  EXPECT_THAT(read_server_keys(file.string()), ElementsAre(key, next));
  write_file_atomically(file, key.text() + "\n" + next.text() + "\n" + key.text() + "\n");
  EXPECT_THAT([&] { (void)read_server_keys(file.string()); }, ThrowsMessage<InvalidArgument>(Names(3, file)));
  write_file_atomically(file, key.text() + "\nsecret\n");
  EXPECT_THAT([&] { (void)read_server_keys(file.string()); },
              ThrowsMessage<InvalidArgument>(AllOf(Names("line 2", file), Not(HasSubstr("secret")))));
  write_file_atomically(file, "\n");
  EXPECT_THROW((void)read_server_keys(file.string()), InvalidArgument);
  EXPECT_THROW((void)read_server_keys((directory_.path() / "absent").string()), NotFound);
  EXPECT_THROW((void)parse_public_key(key.text() + "0", "it"), InvalidArgument);
  for (const char wrong : {'A', 'G', 'g', ' '})
    EXPECT_THROW((void)parse_public_key(std::string(64, wrong), "it"), InvalidArgument) << wrong;
}

TEST_F(Keys, AnAllowListNamesHoldersAndTheirRoles) {
  const PublicKey a = make_key_pair().public_key, b = make_key_pair().public_key,
                  c = make_key_pair().public_key;
  const AllowList list =
      parse_allow_list("# who may connect\n\n" + a.text() + " node-a\n  " + b.text() +
                           "\tanna operator # leaves in May\r\n" + c.text() + " wall viewer",
                       "keys.txt");
  EXPECT_EQ(list, (AllowList{{a, {"node-a", Role::kWorker}},
                             {b, {"anna", Role::kOperator}},
                             {c, {"wall", Role::kViewer}}}));
}

TEST_F(Keys, EveryWrongLineOfAnAllowListIsNamed) {
  const std::string key = make_key_pair().public_key.text();
  const std::string text = key + " one\nabc two\n" + key + " three\n" + make_key_pair().public_key.text() +
                           "\n" + make_key_pair().public_key.text() + " four king\n" +
                           make_key_pair().public_key.text() + " a/b\n" + make_key_pair().public_key.text() +
                           " five worker now\n";
  EXPECT_THAT([&] { (void)parse_allow_list(text, "keys.txt"); },
              ThrowsMessage<CorruptFile>(AllOf(
                  Names("keys.txt:2", "keys.txt:3", "keys.txt:4", "keys.txt:5", "keys.txt:6", "keys.txt:7"),
                  Not(Names("keys.txt:1")))));
}

}  // namespace
}  // namespace allot::wire
