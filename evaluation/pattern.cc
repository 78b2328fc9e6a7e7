#include "evaluation/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

namespace allot::evaluation {
namespace {

PCRE2_SPTR bytes(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// Replies and patterns are shown only in part.
constexpr size_t kShownPattern = 80;

}  // namespace

// Without the just-in-time compiler, which counts steps in its own way: whether a search reaches the limit
// must not depend on the machine.
struct Pattern::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_match_data* match = nullptr;

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

Pattern::Pattern(std::string text) : text_(std::move(text)), code_(std::make_unique<Code>()) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Without \C, which would match within a character.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
  code_->code = pcre2_compile(bytes(text_), text_.size(), options, &error, &offset, nullptr);
  if (code_->code == nullptr) {
    throw InvalidArgument(
        fmt::format("the regular expression \"{}\" is not one that PCRE2 reads: {} at byte {}",
                    text_.substr(0, kShownPattern), message_of(error), offset));
  }
  code_->match = pcre2_match_data_create_from_pattern(code_->code, nullptr);
  pcre2_set_match_limit(code_->context, kMostPatternSteps);
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

namespace {

struct Found {
  size_t start = 0;
  size_t end = 0;
  std::optional<std::string_view> part;
};

std::optional<Found> search(const pcre2_code* code, pcre2_match_context* context, pcre2_match_data* match,
                            std::string_view text, size_t from, uint32_t options,
                            const std::string& pattern) {
  const int groups = pcre2_match(code, bytes(text), text.size(), from, options, match, context);
  if (groups == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (groups < 0) {
    throw PatternLimit(fmt::format(
        "the regular expression \"{}\" gave up on a text of {} bytes ({}; the limit is {} steps); "
        "write it without a repetition of a repetition",
        pattern.substr(0, kShownPattern), text.size(), message_of(groups), kMostPatternSteps));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match);
  // \K can put the start of a match behind its end.
  Found found{.start = std::min(ends[0], ends[1]), .end = ends[1], .part = std::nullopt};
  const size_t group = pcre2_get_ovector_count(match) > 1 ? 1 : 0;
  if (static_cast<size_t>(groups) > group && ends[2 * group] != PCRE2_UNSET &&
      ends[2 * group] <= ends[2 * group + 1])
    found.part = text.substr(ends[2 * group], ends[2 * group + 1] - ends[2 * group]);
  return found;
}

}  // namespace

std::optional<std::string_view> Pattern::first(std::string_view text) const {
  const auto found = search(code_->code, code_->context, code_->match, text, 0, 0, text_);
  return found ? found->part : std::nullopt;
}

std::optional<std::string_view> Pattern::last(std::string_view text) const {
  std::optional<Found> last;
  size_t from = 0;
  uint32_t options = 0;
  for (int matches = 0; from <= text.size(); ++matches) {
    const auto found = search(code_->code, code_->context, code_->match, text, from, options, text_);
    if (!found) break;
    if (matches == kMostMatches)
      throw PatternLimit(
          fmt::format("the regular expression \"{}\" has more than {} matches in a text of {} "
                      "bytes; write one that matches fewer places",
                      text_.substr(0, kShownPattern), kMostMatches, text.size()));
    last = found;
    // An empty match is not looked for at its own place once more.
    options = found->end == found->start || found->end <= from ? PCRE2_NOTEMPTY_ATSTART : 0;
    from = std::max(found->end, from);
  }
  return last ? last->part : std::nullopt;
}

}  // namespace allot::evaluation
