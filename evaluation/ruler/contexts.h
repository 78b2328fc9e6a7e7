// Long contexts for the tasks that are graded as RULER's (README.md), as long as wanted for any tokenizer, of
// texts of our own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace allot::evaluation::ruler {

enum class ContextKind : uint8_t {
  kNeedles,        // four numbers of one thing, in sentences that say nothing of it: niah_multivalue
  kFrequentWords,  // the three most frequent of many invented words: fwe
  kQuestions,      // a town in one of many documents on invented people: qa
};
// Of the task that grades it, "ruler-fwe"; throws InvalidArgument naming all.
ContextKind parse_context_kind(std::string_view task);
std::vector<std::string> context_tasks();  // "ruler-niah-multivalue", "ruler-fwe", "ruler-qa"

struct ContextSetting {
  ContextKind kind = ContextKind::kNeedles;
  int64_t tokens = 4096;  // that the prompt may have
  uint32_t seed = 0;
  // kQuestions: documents that the answer takes. Of two, the first says from whom a person learned, the
  // second where that one lived.
  int32_t hops = 1;
};

struct LongContext {
  std::string input;
  std::vector<std::string> outputs;  // the gold answers
  int64_t tokens = 0;                // of the input
};

// Tokens of a prompt, with those that the tokenizer adds.
using CountTokens = std::function<int64_t(const std::string&)>;

// Context number `number` of a setting: a function of the setting, the number and the counts alone. It has as
// many units (sentences, documents, words) as fit, so that one more would not. Each needle and each town that
// is asked for stands in it once; the frequent words are more frequent than all others. Throws
// InvalidArgument naming the fewest tokens that are possible where `tokens` is below them.
LongContext make_context(const ContextSetting& setting, uint32_t number, const CountTokens& count);

}  // namespace allot::evaluation::ruler
