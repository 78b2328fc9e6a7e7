#include "model/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "model/utf8.h"

namespace allot::model {
namespace {

constexpr char32_t kEnd = 0x110000;

// What normalization does at a character. kSettled: the character stays as it is and never combines with what
// precedes it. kActive: anything else. kForeign: settled in the package, active in utf8proc.
enum class Role : uint8_t { kSettled, kActive, kForeign };

struct Run {
  char32_t first;
  char32_t last;
};

// Found by comparing the package (0.23.3) with utf8proc 2.8.0 (Unicode 15) on every code point beside marks
// of other combining classes, and on every canonical decomposition.
constexpr Run kForeign[] = {
    {0x07FD, 0x07FD},   {0x0898, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},   {0x0C3C, 0x0C3C},
    {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}};

void fail_if_negative(utf8proc_ssize_t result, size_t bytes) {
  if (result >= 0) return;
  throw InvalidArgument("NFC normalization of a text of " + std::to_string(bytes) +
                        " bytes failed: " + utf8proc_errmsg(result));
}

class Roles {
 public:
  static const Roles& get() {
    static const Roles roles;
    return roles;
  }

  Role of(char32_t c) const noexcept { return roles_[c]; }

 private:
  Roles() : roles_(kEnd, Role::kSettled) {
    for (char32_t c = 0; c < kEnd; ++c) classify(c);
    for (const Run& run : kForeign) {
      for (char32_t c = run.first; c <= run.last; ++c) roles_[c] = Role::kForeign;
    }
  }

  void classify(char32_t c) {
    const auto code_point = static_cast<utf8proc_int32_t>(c);
    const utf8proc_property_t* property = utf8proc_get_property(code_point);
    if (property->combining_class != 0) roles_[c] = Role::kActive;
    const bool hangul = c >= 0xAC00 && c <= 0xD7A3;  // decomposes by arithmetic
    if (property->decomp_seqindex == UINT16_MAX && !hangul) return;
    std::array<utf8proc_int32_t, 8> parts{};
    int boundary = 0;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(code_point, parts.data(), parts.size(), UTF8PROC_DECOMPOSE, &boundary);
    if (count == 1 && parts[0] == code_point) return;
    // All parts but the first can combine with what precedes them.
    for (utf8proc_ssize_t i = 1; i < count; ++i)
      roles_[static_cast<size_t>(parts[static_cast<size_t>(i)])] = Role::kActive;
    constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (utf8proc_normalize_utf32(parts.data(), count, kCompose) != 1 || parts[0] != code_point) {
      roles_[c] = Role::kActive;
    }
  }

  std::vector<Role> roles_;
};

void append_normalized(std::string_view text, std::string* result) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  // No character has more than four parts; the encoded text reuses the memory of the code points.
  std::vector<utf8proc_int32_t> code_points(text.size() * 4 + 1);
  utf8proc_ssize_t count = utf8proc_decompose(
      bytes, size, code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()) - 1, kOptions);
  fail_if_negative(count, text.size());
  count = utf8proc_reencode(code_points.data(), count, kOptions);
  fail_if_negative(count, text.size());
  result->append(reinterpret_cast<const char*>(code_points.data()), static_cast<size_t>(count));
}

// Below U+0300, whose first byte is 0xCC, every text is in NFC.
size_t settled_at_a_glance(std::string_view text, size_t at) {
  const auto stop = std::find_if(text.begin() + static_cast<ptrdiff_t>(at), text.end(),
                                 [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
  return static_cast<size_t>(stop - text.begin());
}

}  // namespace

// Only stretches with active characters are normalized: from the settled character with which they may
// combine to the next character that combines with nothing.
std::string_view to_nfc(std::string_view text, std::string* buffer) {
  size_t copied = 0;  // the text up to here is in the buffer
  size_t start = 0;   // of the last character, if a mark can combine with it, else behind it
  size_t at = settled_at_a_glance(text, 0);
  if (at == text.size()) return text;
  start = at - (at > 0 ? utf8_last(text.substr(0, at)).size() : 0);
  const Roles& roles = Roles::get();
  const auto role_at = [&](size_t place) {
    return roles.of(utf8_decode(text.substr(place, utf8_bytes(text[place]))));
  };
  buffer->clear();
  while (at < text.size()) {
    const Role role = role_at(at);
    if (role == Role::kActive) {
      size_t end = at;
      while (end < text.size() && role_at(end) == Role::kActive) end += utf8_bytes(text[end]);
      buffer->append(text, copied, start - copied);
      append_normalized(text.substr(start, end - start), buffer);
      copied = start = at = end;
    } else {
      const size_t end = at + utf8_bytes(text[at]);
      start = role == Role::kForeign ? end : at;
      at = end;
    }
  }
  if (copied == 0 && buffer->empty()) return text;
  return buffer->append(text, copied);
}

void prepare_nfc() {
  Roles::get();
}

}  // namespace allot::model
