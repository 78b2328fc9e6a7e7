#include "model/vocabulary.h"

namespace allot::model {

Vocabulary::Vocabulary(const JsonView& vocab) {
  if (!vocab.value().is_object() || vocab.value().empty())
    vocab.fail("an object from tokens to ids, not empty");
  ids_.reserve(vocab.value().size());
  for (const auto& [token, value] : vocab.value().items()) {
    const bool in_range = value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{kMaxTokenId};
    if (!in_range) {
      throw CorruptFile(vocab.where() + " gives token \"" + token + "\" the id " + value.dump() +
                        ", expected an integer from 0 to " + std::to_string(kMaxTokenId));
    }
    const auto id = value.get<int32_t>();
    const auto entry = ids_.emplace(token, id).first;
    if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1, nullptr);
    const std::string*& holder = tokens_[static_cast<size_t>(id)];
    if (holder != nullptr) {
      throw CorruptFile(vocab.where() + " gives id " + std::to_string(id) + " to both \"" + *holder +
                        "\" and \"" + token + "\", expected distinct ids");
    }
    holder = &entry->first;
  }
}

std::optional<int32_t> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* Vocabulary::token(int32_t id) const {
  return id < 0 || static_cast<size_t>(id) >= tokens_.size() ? nullptr : tokens_[static_cast<size_t>(id)];
}

}  // namespace allot::model
