// The keys that clients of the HTTP API send as bearer tokens.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace allot::app {

class ApiKeys {
 public:
  // No keys: everybody is let in.
  ApiKeys() = default;
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}
  // A key a line; lines that are blank or begin with # say nothing. Throws NotFound, and CorruptFile for a
  // file without keys, and for a key that is shorter than 16 characters or has other characters than a header
  // may.
  static ApiKeys read(const std::filesystem::path& file);

  bool empty() const { return keys_.empty(); }
  // Whether an Authorization header has one of the keys. Takes as long for a wrong key as for a right one of
  // the same length.
  bool admits(std::string_view authorization) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace allot::app
