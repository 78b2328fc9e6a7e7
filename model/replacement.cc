#include "model/replacement.h"

#include <algorithm>
#include <utility>

namespace allot::model {
namespace {

constexpr size_t kMostTimesLonger = 64;

std::string read_pattern(const JsonView& component) {
  const JsonView pattern = component.at("pattern");
  if (pattern.find("Regex")) {
    throw Unsupported(pattern.where() + " is " + pattern.shown() + ", supported is a String");
  }
  const JsonView text = pattern.at("String");
  if (text.text().empty()) {
    throw Unsupported(text.where() + " is \"\", supported is a text that is not empty");
  }
  return text.text();
}

}  // namespace

Replacement::Replacement(std::string pattern, std::string content)
    : pattern_(std::move(pattern)), content_(std::move(content)) {}

Replacement::Replacement(const JsonView& component, size_t* times_longer)
    : Replacement(read_pattern(component), component.at("content").text()) {
  const size_t own = (content_.size() + pattern_.size() - 1) / pattern_.size();
  *times_longer *= std::clamp<size_t>(own, 1, kMostTimesLonger + 1);
  if (*times_longer > kMostTimesLonger) {
    throw Unsupported(component.where() + " can make a text, with what comes before it, more than " +
                      std::to_string(kMostTimesLonger) + " times as long, which is not supported");
  }
}

std::string_view Replacement::apply(std::string_view text, std::string* buffer) const {
  size_t match = text.find(pattern_);
  if (match == std::string_view::npos) return text;
  buffer->clear();
  size_t covered = 0;
  for (; match != std::string_view::npos; match = text.find(pattern_, covered)) {
    buffer->append(text.substr(covered, match - covered)).append(content_);
    covered = match + pattern_.size();
  }
  return buffer->append(text.substr(covered));
}

}  // namespace allot::model
