// Keys of CURVE, ZeroMQ's encryption: the holder of a secret key is identified by its public key. Only files
// and texts here; docs/security.md shows them. A key is written as 64 lower-case hexadecimal digits, which
// shells, YAML and comments leave alone, unlike ZeroMQ's own Z85.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace allot::wire {

inline constexpr size_t kKeyBytes = 32;

// Overwritten in memory when destroyed; has no text form except in its file.
class SecretKey {
 public:
  explicit SecretKey(const std::array<uint8_t, kKeyBytes>& bytes) : bytes_(bytes) {}
  SecretKey(const SecretKey&) = default;
  SecretKey& operator=(const SecretKey&) = default;
  ~SecretKey();
  const std::array<uint8_t, kKeyBytes>& bytes() const { return bytes_; }

 private:
  std::array<uint8_t, kKeyBytes> bytes_;
};

struct PublicKey {
  std::array<uint8_t, kKeyBytes> bytes = {};
  std::string text() const;  // 64 digits
  friend auto operator<=>(const PublicKey&, const PublicKey&) = default;
};

struct KeyPair {
  PublicKey public_key;
  SecretKey secret_key;
};

KeyPair make_key_pair();

// Throws InvalidArgument for anything but 64 hexadecimal digits, naming `what` and not the text: it may be a
// secret key in the wrong place.
PublicKey parse_public_key(std::string_view text, std::string_view what);
// The keys that an aggregator may have, as given to an option: the key itself, or a file with a line for each
// of one or two keys. Throws NotFound and InvalidArgument.
std::vector<PublicKey> read_server_keys(const std::string& key_or_file);

// Makes `file` with mode 0600. Throws StorageError when it exists or cannot be written.
void write_key_pair(const std::filesystem::path& file, const KeyPair& pair);
// Throws NotFound, CorruptFile, or InvalidArgument when anyone but its owner and group may read the file or
// anyone but its owner may write it. The group may read, because Kubernetes mounts a Secret that way for a
// process that is not root. No message quotes the file.
KeyPair read_key_pair(const std::filesystem::path& file);

// What a key may do. A viewer asks for the status; a worker also takes leases; an operator also
// controls the run.
enum class Role : uint8_t { kViewer, kWorker, kOperator };

struct KeyHolder {
  std::string name;  // 1 to 64 letters, digits, '-', '_' and '.'
  Role role = Role::kWorker;
  friend bool operator==(const KeyHolder&, const KeyHolder&) = default;
};

using AllowList = std::map<PublicKey, KeyHolder>;

// Lines "KEY NAME [viewer|worker|operator]", by default worker; '#' begins a comment. `place` names the text
// in messages. Throws CorruptFile listing every line that is wrong, with its number and what is expected; a
// key listed twice is an error, a name listed twice is not, since a holder may change keys.
AllowList parse_allow_list(std::string_view text, const std::string& place);
// Throws NotFound, or as parse_allow_list.
AllowList read_allow_list(const std::filesystem::path& file);

// What a peer needs to talk to an aggregator that asks for keys.
struct ClientKeys {
  PublicKey server;  // to be tried first
  KeyPair own;
  // While an aggregator changes its key: the one that it has instead, before or after.
  std::optional<PublicKey> other_server = std::nullopt;

  // Takes the other one first where there are two; false where there is one.
  bool try_other_server();
  // The same keys, in whatever order.
  friend bool operator==(const ClientKeys& a, const ClientKeys& b);
};

}  // namespace allot::wire
