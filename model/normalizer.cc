#include "model/normalizer.h"

#include "model/nfc.h"
#include "model/utf8.h"

namespace allot::model {

Normalizer::Normalizer(const JsonView& component) {
  add(component);
}

void Normalizer::add(const JsonView& component) {
  const std::string& type = component.at("type").text();
  if (type == "NFC") {
    prepare_nfc();
    steps_.emplace_back(Nfc{});
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{component.at("prepend").text()});
  } else if (type == "Replace") {
    const Replacement replacement(component, &times_longer_);
    keeps_start_ = keeps_start_ && is_one_character(replacement.pattern()) && !replacement.content().empty();
    steps_.emplace_back(replacement);
  } else if (type == "Sequence") {
    for (const JsonView& element : component.at("normalizers").elements()) add(element);
  } else {
    throw Unsupported(component.where() + " has type " + type +
                      ", supported are NFC, Prepend, Replace, Sequence, or no normalizer");
  }
}

std::string_view Normalizer::apply(std::string_view text, Scratch& scratch) const {
  size_t unused = 0;
  for (const auto& step : steps_) {
    std::string& buffer = scratch[unused];
    if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (text.empty()) continue;
      text = buffer.assign(prepend->prefix).append(text);
    } else if (const auto* replacement = std::get_if<Replacement>(&step)) {
      text = replacement->apply(text, &buffer);
    } else {
      text = to_nfc(text, &buffer);
    }
    if (text.data() == buffer.data()) unused = 1 - unused;
  }
  return text;
}

}  // namespace allot::model
