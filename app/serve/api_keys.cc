#include "app/serve/api_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/file.h"

namespace allot::app {
namespace {

constexpr size_t kLeastKeyBytes = 16;

bool same_bytes(std::string_view first, std::string_view second) {
  if (first.size() != second.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < first.size(); ++i)
    difference |= static_cast<unsigned char>(first[i]) ^ static_cast<unsigned char>(second[i]);
  return difference == 0;
}

}  // namespace

ApiKeys ApiKeys::read(const std::filesystem::path& file) {
  std::istringstream in(read_file(file));
  std::vector<std::string> keys;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty() || line.starts_with('#')) continue;
    const bool printable = std::ranges::all_of(line, [](char c) { return c > ' ' && c <= '~'; });
    if (line.size() < kLeastKeyBytes || !printable) {
      throw CorruptFile(fmt::format(
          "{}, line {}: a key has at least {} visible ASCII characters and no spaces; `openssl rand -hex 24` makes "
          "one",
          file.string(), number, kLeastKeyBytes));
    }
    keys.push_back(line);
  }
  if (keys.empty()) throw CorruptFile(file.string() + " has no key; expected one a line");
  return ApiKeys(std::move(keys));
}

bool ApiKeys::admits(std::string_view authorization) const {
  if (keys_.empty()) return true;
  constexpr std::string_view kBearer = "Bearer ";
  if (!authorization.starts_with(kBearer)) return false;
  authorization.remove_prefix(kBearer.size());
  bool found = false;
  for (const std::string& key : keys_) found |= same_bytes(key, authorization);
  return found;
}

}  // namespace allot::app
