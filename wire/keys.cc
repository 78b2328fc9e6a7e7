#include "wire/keys.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>
#include <vector>

#include "base/ascii.h"
#include "base/error.h"
#include "base/file.h"

namespace allot::wire {
namespace {

using Bytes = std::array<uint8_t, kKeyBytes>;

constexpr size_t kZ85Size = 41;  // of a key, with the zero at its end
constexpr size_t kMaxNameSize = 64;
// A key file has two lines and a comment.
constexpr size_t kMaxKeyFileSize = 4096;
constexpr std::string_view kPublicField = "public ";
constexpr std::string_view kSecretField = "secret ";

// Text that holds a secret; overwritten when it is destroyed.
struct SecretText {
  ~SecretText() { ::explicit_bzero(text.data(), text.size()); }
  std::string text;
};

void write_hex(const Bytes& bytes, char* to) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const uint8_t byte : bytes) {
    *to++ = kDigits[byte >> 4];
    *to++ = kDigits[byte & 0xF];
  }
}

std::optional<Bytes> read_hex(std::string_view text) {
  if (text.size() != 2 * kKeyBytes) return std::nullopt;
  Bytes bytes = {};
  for (size_t i = 0; i < text.size(); ++i) {
    const char digit = text[i];
    int value = 0;
    if (digit >= '0' && digit <= '9') {
      value = digit - '0';
    } else if (digit >= 'a' && digit <= 'f') {
      value = digit - 'a' + 10;
    } else {
      return std::nullopt;
    }
    bytes[i / 2] = static_cast<uint8_t>(bytes[i / 2] << 4 | value);
  }
  return bytes;
}

PublicKey public_key_of(const SecretKey& secret) {
  char z85_secret[kZ85Size], z85_public[kZ85Size];
  ::zmq_z85_encode(z85_secret, secret.bytes().data(), kKeyBytes);
  const int failed = ::zmq_curve_public(z85_public, z85_secret);
  ::explicit_bzero(z85_secret, sizeof z85_secret);
  if (failed != 0) throw Unsupported("this build of libzmq has no CURVE; install one with libsodium");
  PublicKey key;
  ::zmq_z85_decode(key.bytes.data(), z85_public);
  return key;
}

bool is_holder_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameSize && std::ranges::all_of(name, [](char c) {
    return is_letter(c) || is_digit(c) || c == '-' || c == '_' || c == '.';
  });
}

std::optional<Role> parse_role(std::string_view text) {
  if (text == "viewer") return Role::kViewer;
  if (text == "worker") return Role::kWorker;
  if (text == "operator") return Role::kOperator;
  return std::nullopt;
}

// Reads from the file that was checked, not from whatever its name may refer to a moment later.
void read_checked(const std::filesystem::path& file, std::string* text) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    throw NotFound("cannot read the secret key " + file.string() + ": " + std::strerror(errno) +
                   "; allot keys new makes one");
  }
  struct stat status = {};
  ::fstat(descriptor, &status);
  text->resize(kMaxKeyFileSize);
  ssize_t size = 0;
  if (S_ISREG(status.st_mode)) size = ::pread(descriptor, text->data(), text->size(), 0);
  ::close(descriptor);
  text->resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  if ((status.st_mode & (S_IWGRP | S_IRWXO)) != 0) {
    throw InvalidArgument(
        fmt::format("the secret key {} has mode {:04o}: its owner alone may write it and no others "
                    "may read it; chmod 600 it, and make a new key if others could read it",
                    file.string(), status.st_mode & 07777u));
  }
}

}  // namespace

SecretKey::~SecretKey() {
  ::explicit_bzero(bytes_.data(), bytes_.size());
}

std::string PublicKey::text() const {
  std::string text(2 * kKeyBytes, '0');
  write_hex(bytes, text.data());
  return text;
}

KeyPair make_key_pair() {
  char z85_public[kZ85Size], z85_secret[kZ85Size];
  if (::zmq_curve_keypair(z85_public, z85_secret) != 0) {
    throw Unsupported("this build of libzmq has no CURVE; install one with libsodium");
  }
  Bytes secret = {};
  ::zmq_z85_decode(secret.data(), z85_secret);
  ::explicit_bzero(z85_secret, sizeof z85_secret);
  const SecretKey key(secret);
  ::explicit_bzero(secret.data(), secret.size());
  return {public_key_of(key), key};
}

PublicKey parse_public_key(std::string_view text, std::string_view what) {
  const std::optional<Bytes> bytes = read_hex(text);
  if (!bytes) {
    throw InvalidArgument(fmt::format(
        "{} is not a public key; 64 digits 0-9 a-f are expected, as `allot keys public FILE` prints them",
        what));
  }
  return {*bytes};
}

std::vector<PublicKey> read_server_keys(const std::string& key_or_file) {
  if (const auto bytes = read_hex(key_or_file)) return {{*bytes}};
  std::string text;
  try {
    text = read_file(key_or_file);
  } catch (const NotFound& error) {
    throw NotFound("the aggregator's public key is 64 digits 0-9 a-f or a file that holds them; " +
                   std::string(error.what()));
  }
  std::vector<PublicKey> keys;
  std::string_view rest = trim(text);
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    keys.push_back(parse_public_key(trim(line), fmt::format("line {} of {}", keys.size() + 1, key_or_file)));
    rest = trim(rest.substr(line.size()));
  }
  if (keys.empty() || keys.size() > 2)
    throw InvalidArgument(
        fmt::format("{} has {} public keys; one is expected, or two while the aggregator changes its key",
                    key_or_file, keys.size()));
  return keys;
}

bool ClientKeys::try_other_server() {
  if (!other_server) return false;
  std::swap(server, *other_server);
  return true;
}

bool operator==(const ClientKeys& a, const ClientKeys& b) {
  const bool same = a.server == b.server && a.other_server == b.other_server;
  const bool swapped = a.other_server == b.server && a.server == b.other_server;
  return a.own.public_key == b.own.public_key && (same || swapped);
}

void write_key_pair(const std::filesystem::path& file, const KeyPair& pair) {
  SecretText secret;
  secret.text = "# A secret key of allot: whoever has this file can act as the owner of the public key.\n" +
                std::string(kPublicField) + pair.public_key.text() + '\n' + std::string(kSecretField);
  const size_t at = secret.text.size();
  secret.text.resize(at + 2 * kKeyBytes + 1, '\n');
  write_hex(pair.secret_key.bytes(), secret.text.data() + at);

  const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    throw StorageError("cannot write the secret key " + file.string() + ": " + std::strerror(errno) +
                       (errno == EEXIST ? "; it is not replaced, as what trusts it would break" : ""));
  }
  const ssize_t size = ::write(descriptor, secret.text.data(), secret.text.size());
  const bool written = size == static_cast<ssize_t>(secret.text.size()) && ::fsync(descriptor) == 0;
  const int reason = errno;
  ::close(descriptor);
  if (!written) {
    ::unlink(file.c_str());
    throw StorageError("cannot write the secret key " + file.string() + ": " + std::strerror(reason));
  }
}

KeyPair read_key_pair(const std::filesystem::path& file) {
  SecretText content;
  read_checked(file, &content.text);
  std::optional<Bytes> named;
  std::optional<SecretKey> secret;
  for (size_t begin = 0; begin < content.text.size();) {
    const size_t end = std::min(content.text.find('\n', begin), content.text.size());
    const std::string_view line = trim(std::string_view(content.text).substr(begin, end - begin));
    begin = end + 1;
    if (line.starts_with(kPublicField)) named = read_hex(trim(line.substr(kPublicField.size())));
    if (line.starts_with(kSecretField)) {
      auto bytes = read_hex(trim(line.substr(kSecretField.size())));
      if (!bytes) continue;
      secret.emplace(*bytes);
      ::explicit_bzero(bytes->data(), bytes->size());
    }
  }
  if (!secret || !named) {
    throw CorruptFile(
        file.string() +
        " is not a secret key: a line 'public' and a line 'secret', each with 64 digits 0-9 a-f, are "
        "expected; allot keys new makes one");
  }
  const PublicKey public_key = public_key_of(*secret);
  if (public_key.bytes != *named) {
    throw CorruptFile(file.string() + " names the public key " + PublicKey{*named}.text() +
                      ", but its secret key belongs to " + public_key.text() +
                      "; restore the file or make a new key");
  }
  return {public_key, *secret};
}

AllowList parse_allow_list(std::string_view text, const std::string& place) {
  AllowList list;
  std::vector<std::string> faults;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const auto fault = [&](std::string_view expected) {
      faults.push_back(fmt::format("{}:{}: {}", place, number, expected));
    };
    std::istringstream words(line.substr(0, line.find('#')));
    std::string key, name, role, more;
    words >> key >> name >> role >> more;
    if (key.empty()) continue;
    const auto bytes = read_hex(key);
    const auto parsed_role = role.empty() ? Role::kWorker : parse_role(role);
    if (!bytes) {
      fault("a line begins with a public key, 64 digits 0-9 a-f");
    } else if (!is_holder_name(name)) {
      fault("after the key a name is expected: up to 64 letters, digits, '-', '_' and '.'");
    } else if (!parsed_role || !more.empty()) {
      fault("after the name nothing or one of viewer, worker, operator is expected");
    } else if (!list.emplace(PublicKey{*bytes}, KeyHolder{name, *parsed_role}).second) {
      fault("this key is listed already");
    }
  }
  if (!faults.empty()) throw CorruptFile(fmt::format("{}", fmt::join(faults, "; ")));
  return list;
}

AllowList read_allow_list(const std::filesystem::path& file) {
  return parse_allow_list(read_file(file), file.string());
}

}  // namespace allot::wire
