#include "model/metaspace.h"

#include <algorithm>

namespace allot::model {
namespace {

Metaspace::Prepend read_prepend(const JsonView& component) {
  const auto scheme = component.find("prepend_scheme");
  // Files of older versions have add_prefix_space, which must agree with the scheme.
  const bool prefix = component.boolean_or("add_prefix_space", true);
  if (scheme && scheme->text() == "never") return Metaspace::Prepend::kNever;
  if (!prefix) component.at("add_prefix_space").fail("true, or prepend_scheme \"never\" with it");
  if (!scheme || scheme->text() == "always") return Metaspace::Prepend::kAlways;
  if (scheme->text() != "first") scheme->fail("always, first or never");
  return Metaspace::Prepend::kFirst;
}

}  // namespace

Metaspace::Metaspace(const JsonView& component)
    : character_(component.at("replacement").character()),
      prepend_(read_prepend(component)),
      split_(component.boolean_or("split", true)),
      spaces_(" ", character_) {}

bool Metaspace::prepends_to(std::string_view text, TextPlace place) const {
  if (prepend_ == Prepend::kNever || text.starts_with(character_)) return false;
  return prepend_ == Prepend::kAlways || place == TextPlace::kStart;
}

void Metaspace::cut(std::string_view text, TextPlace place, std::string* buffer,
                    std::vector<std::string_view>* pieces) const {
  text = spaces_.apply(text, buffer);
  if (prepends_to(text, place)) {
    if (text.data() != buffer->data()) buffer->assign(text);
    text = buffer->insert(0, character_);
  }
  if (!split_) return pieces->push_back(text);
  while (!text.empty()) {
    const size_t next = std::min(text.find(character_, 1), text.size());
    pieces->push_back(text.substr(0, next));
    text.remove_prefix(next);
  }
}

void Metaspace::decode(std::vector<std::string>* tokens) const {
  const Replacement left_out(character_, "");
  const Replacement to_space(character_, " ");
  std::string buffer;
  for (size_t i = 0; i < tokens->size(); ++i) {
    const bool leave_out = i == 0 && prepend_ != Prepend::kNever;
    std::string& token = (*tokens)[i];
    token = std::string((leave_out ? left_out : to_space).apply(token, &buffer));
  }
}

}  // namespace allot::model
