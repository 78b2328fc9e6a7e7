#include "evaluation/ruler/contexts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numbers>
#include <numeric>
#include <span>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "base/philox.h"
#include "evaluation/ruler/words.h"

namespace allot::evaluation::ruler {
namespace {

struct KindName {
  ContextKind kind;
  std::string_view task;
};
constexpr std::array<KindName, 3> kKinds = {{{ContextKind::kNeedles, "ruler-niah-multivalue"},
                                             {ContextKind::kFrequentWords, "ruler-fwe"},
                                             {ContextKind::kQuestions, "ruler-qa"}}};

constexpr int kNeedles = 4;
constexpr uint32_t kLeastValue = 1'000'000;  // seven digits
constexpr uint32_t kValues = 9'000'000;
// A context whose answer stands in it by chance as well is made again.
constexpr uint32_t kMostTries = 100;

// What draws are for.
enum Stream : uint32_t { kSentence, kDepth, kThing, kValue, kOrder, kPerson, kTown, kCraft, kAsked, kWord };

// The draws of one context: functions of what they are for and of an index.
struct Draws {
  uint32_t seed = 0;
  uint32_t number = 0;
  uint32_t attempt = 0;

  uint64_t bits(Stream stream, uint32_t index, uint32_t part = 0) const {
    const PhiloxBlock block = philox4x32_10({{index, stream, part, attempt}}, seed, number);
    return uint64_t{block.word[0]} << 32 | block.word[1];
  }
  uint64_t below(uint64_t limit, Stream stream, uint32_t index, uint32_t part = 0) const {
    return bits(stream, index, part) % limit;
  }
  template <size_t kSize>
  std::string_view one_of(const std::array<std::string_view, kSize>& words, Stream stream, uint32_t index,
                          uint32_t part = 0) const {
    return words[below(kSize, stream, index, part)];
  }
  // `index` to a number below `limit`, each to another: the invented names of a text differ.
  uint64_t spread(uint64_t index, uint64_t limit, Stream stream) const {
    uint64_t factor = below(limit, stream, 0) | 1;
    while (std::gcd(factor, limit) != 1) factor += 2;
    return (index % limit * factor + below(limit, stream, 1)) % limit;
  }
};

constexpr uint64_t kSyllables = kConsonants.size() * kVowels.size();

// Of a number below kSyllables to the power of `count`.
std::string syllables(uint64_t number, int count) {
  std::string text;
  for (; count > 0; --count, number /= kSyllables) {
    text += kConsonants[number % kSyllables / kVowels.size()];
    text += kVowels[number % kVowels.size()];
  }
  return text;
}

std::string capital(std::string text) {
  if (text.front() >= 'a' && text.front() <= 'z') text.front() = static_cast<char>(text.front() - 'a' + 'A');
  return text;
}

std::string sentence(const Draws& draws, uint32_t index) {
  const auto role = [&](uint32_t part) { return draws.one_of(kRoles, kSentence, index, part); };
  const auto deed = [&](uint32_t part) { return draws.one_of(kDeeds, kSentence, index, part); };
  const auto thing = [&](uint32_t part) { return draws.one_of(kThings, kSentence, index, part); };
  const std::string_view place = draws.one_of(kPlaces, kSentence, index, 1);
  const std::string_view time = draws.one_of(kTimes, kSentence, index, 2);
  switch (draws.below(4, kSentence, index)) {
    case 0:
      return fmt::format("The {} {} {} {}.", role(3), deed(4), thing(5), place);
    case 1:
      return fmt::format("{}, the {} {} {}.", capital(std::string(time)), role(3), deed(4), thing(5));
    case 2:
      return fmt::format("The {} {} {} {}, and the {} {} {}.", role(3), deed(4), thing(5), time, role(6),
                         deed(7), thing(8));
    default:
      return fmt::format("{} the {} {} {} {}.", capital(std::string(place)), role(3), deed(4), thing(5),
                         time);
  }
}

// In any case, also within words, as the tasks look for answers.
int occurrences(const std::string& text, const std::string& answer) {
  const std::string all = to_lower(text), one = to_lower(answer);
  int found = 0;
  for (size_t at = all.find(one); at != std::string::npos; at = all.find(one, at + 1)) ++found;
  return found;
}

// A kind of context of any number of units.
class Maker {
 public:
  virtual ~Maker() = default;
  // With so many units, of at least fewest().
  virtual std::string text(int64_t units) const = 0;
  virtual int64_t fewest() const = 0;
  virtual std::vector<std::string> answers() const = 0;
  // Whether `text` holds the answers where it should and nowhere else.
  virtual bool sound(const std::string& text) const {
    return std::ranges::all_of(answers(),
                               [&](const std::string& answer) { return occurrences(text, answer) == 1; });
  }
};

// Units are sentences.
class Needles final : public Maker {
 public:
  explicit Needles(const Draws& draws) : draws_(draws) {
    thing_ = fmt::format("{}-{}", draws.one_of(kQualities, kThing, 0), draws.one_of(kNouns, kThing, 1));
    for (uint32_t i = 0; std::ssize(values_) < kNeedles; ++i) {
      std::string value = std::to_string(kLeastValue + draws.below(kValues, kValue, i));
      if (std::ranges::find(values_, value) == values_.end()) values_.push_back(std::move(value));
    }
  }
  int64_t fewest() const override { return 1; }
  std::vector<std::string> answers() const override { return values_; }
  std::string text(int64_t units) const override {
    std::vector<std::pair<int64_t, size_t>> needles;  // before which sentence, and which value
    for (uint32_t i = 0; i < values_.size(); ++i) {
      const auto share = static_cast<double>(draws_.bits(kDepth, i) >> 11) * 0x1p-53;
      needles.emplace_back(static_cast<int64_t>(share * static_cast<double>(units + 1)), i);
    }
    std::ranges::sort(needles);
    std::string text =
        "Numbers of something are hidden in the text below. Read all of it: afterwards you will be asked for "
        "them.\n\n";
    auto next = needles.begin();
    for (int64_t i = 0; i <= units; ++i) {
      for (; next != needles.end() && next->first == i; ++next)
        text += fmt::format("One of the numbers of the {} is {}. ", thing_, values_[next->second]);
      if (i < units) text += sentence(draws_, static_cast<uint32_t>(i)) + ' ';
    }
    text.back() = '\n';
    return text + fmt::format(
                      "\nQuestion: Which four numbers does the text give as those of the {}? Write the "
                      "four numbers alone.\nAnswer:",
                      thing_);
  }

 private:
  Draws draws_;
  std::string thing_;
  std::vector<std::string> values_;
};

// Units are documents, on a person each. Document 0 is on the one who is asked for, document 1 on whom that
// one learned from.
class Questions final : public Maker {
 public:
  Questions(const Draws& draws, int32_t hops) : draws_(draws), hops_(hops) {}
  int64_t fewest() const override { return 2; }
  std::vector<std::string> answers() const override { return {town(hops_ == 1 ? 0 : 1, of_birth())}; }
  std::string text(int64_t units) const override {
    std::vector<uint32_t> order(static_cast<size_t>(units));
    std::iota(order.begin(), order.end(), uint32_t{0});
    std::ranges::sort(order, {}, [&](uint32_t i) { return draws_.bits(kOrder, i); });
    std::string text = "Answer the question at the end from these documents, with the answer alone.\n\n";
    for (size_t i = 0; i < order.size(); ++i)
      text += fmt::format("Document {}\n{}\n\n", i + 1, document(order[i]));
    const std::string asked =
        hops_ == 1 ? person(0) : fmt::format("the one from whom {} learned {}", person(0), craft(0));
    return text + (of_birth()
                       ? fmt::format("Question: In which town was {} born?\nAnswer:", asked)
                       : fmt::format("Question: In which town is the workshop of {}?\nAnswer:", asked));
  }

 private:
  bool of_birth() const { return draws_.below(2, kAsked, 0) == 0; }
  std::string person(uint32_t i) const {
    constexpr uint64_t kFirst = kSyllables * kSyllables, kLast = kFirst * kSyllables;
    return capital(syllables(draws_.below(kFirst, kPerson, i, 1), 2) + "n ") +
           capital(syllables(draws_.spread(i, kLast, kPerson), 3) + "s");
  }
  // Of birth, or of the workshop.
  std::string town(uint32_t i, bool birth) const {
    constexpr uint64_t kStems = kSyllables * kSyllables;
    const uint64_t number = draws_.spread(2 * uint64_t{i} + birth, kStems * kTownEnds.size(), kTown);
    return capital(syllables(number % kStems, 2)).append(kTownEnds[number / kStems]);
  }
  std::string_view craft(uint32_t i) const { return draws_.one_of(kCrafts, kCraft, i); }
  std::string document(uint32_t i) const {
    // Whom a person learned from has a document, too, so that this tells nobody apart; one of them has none.
    const uint32_t teacher = i == 0 ? 1 : i == 1 ? UINT32_MAX : i - 1;
    const std::string name = person(i);
    return fmt::format("{} was born in {}. {} learned {} from {} and has a workshop in {}. {}", name,
                       town(i, true), name, craft(i), person(teacher), town(i, false), sentence(draws_, i));
  }

  Draws draws_;
  int32_t hops_;
};

// Words whose frequencies fall with the square of their rank, the most frequent one being dots that mean
// nothing. Units are words; those that the next word of the law has no room for are dots as well.
class FrequentWords final : public Maker {
 public:
  explicit FrequentWords(const Draws& draws) : draws_(draws) {}
  // So many that the fourth rank has more than the fifth.
  int64_t fewest() const override { return 75; }
  std::vector<std::string> answers() const override { return {word(1), word(2), word(3)}; }
  bool sound(const std::string&) const override {
    const std::vector<std::string> found = answers();
    return std::ranges::none_of(found, [](const std::string& one) {
      return occurrences(std::string(kHead) + std::string(kTail), one) > 0;
    });
  }
  std::string text(int64_t units) const override {
    std::vector<std::string> words;
    for (uint32_t rank = 0;; ++rank) {
      const auto number =
          static_cast<int64_t>(static_cast<double>(units) * kShareOfFirst /
                               (static_cast<double>(rank + 1) * static_cast<double>(rank + 1)));
      if (number == 0) break;
      words.insert(words.end(), static_cast<size_t>(number), rank == 0 ? std::string(kDots) : word(rank));
    }
    words.resize(static_cast<size_t>(units), std::string(kDots));
    for (size_t i = words.size(); i > 1; --i)
      std::swap(words[i - 1], words[draws_.below(i, kOrder, static_cast<uint32_t>(i))]);
    return fmt::format("{}{}{}", kHead, fmt::join(words, " "), kTail);
  }

 private:
  static constexpr std::string_view kDots = "....";
  static constexpr std::string_view kHead =
      "The coded text below consists of invented words, some of which come more often than others. The dots mean "
      "nothing.\n\n";
  static constexpr std::string_view kTail =
      "\n\nQuestion: Which three words are the most frequent of the coded text, leaving the dots aside? Write the "
      "three words alone.\nAnswer:";
  // 1 / (1 + 1/4 + 1/9 + …)
  static constexpr double kShareOfFirst = 6 / (std::numbers::pi * std::numbers::pi);

  std::string word(uint32_t rank) const {
    return syllables(draws_.spread(rank, kSyllables * kSyllables * kSyllables, kWord), 3);
  }

  Draws draws_;
};

std::unique_ptr<Maker> maker_of(const ContextSetting& setting, const Draws& draws) {
  switch (setting.kind) {
    case ContextKind::kNeedles:
      return std::make_unique<Needles>(draws);
    case ContextKind::kFrequentWords:
      return std::make_unique<FrequentWords>(draws);
    case ContextKind::kQuestions:
      return std::make_unique<Questions>(draws, setting.hops);
  }
  return nullptr;
}

// The longest context of the maker that has at most `tokens`.
LongContext longest(const Maker& maker, std::string_view task, int64_t tokens, const CountTokens& count) {
  LongContext best;
  const auto fits = [&](int64_t units, int64_t* found) {
    std::string text = maker.text(units);
    *found = count(text);
    if (*found > tokens) return false;
    best.input = std::move(text);
    best.tokens = *found;
    return true;
  };
  int64_t low = maker.fewest(), low_tokens = 0, high_tokens = 0;
  if (!fits(low, &low_tokens))
    throw InvalidArgument(
        fmt::format("a prompt of {} has at least {} tokens of this tokenizer, and {} are allowed", task,
                    low_tokens, tokens));
  int64_t high = 2 * low;
  while (fits(high, &high_tokens)) {
    low = std::exchange(high, 2 * high);
    low_tokens = high_tokens;
  }
  // Tokens are nearly a straight line over units, so a step or two of interpolation comes to the end of it;
  // halves in between, where they do not.
  for (bool halve = false; high - low > 1; halve = !halve) {
    const double share = halve ? 0.5
                               : (static_cast<double>(tokens - low_tokens) + 0.5) /
                                     static_cast<double>(std::max<int64_t>(high_tokens - low_tokens, 1));
    const int64_t middle =
        std::clamp(low + static_cast<int64_t>(share * static_cast<double>(high - low)), low + 1, high - 1);
    int64_t middle_tokens = 0;
    if (fits(middle, &middle_tokens)) {
      low = middle;
      low_tokens = middle_tokens;
    } else {
      high = middle;
      high_tokens = middle_tokens;
    }
  }
  return best;
}

}  // namespace

ContextKind parse_context_kind(std::string_view task) {
  for (const KindName& kind : kKinds)
    if (kind.task == task) return kind.kind;
  throw InvalidArgument(fmt::format("there are no contexts for task \"{}\"; there are for {}", task,
                                    fmt::join(context_tasks(), ", ")));
}

std::vector<std::string> context_tasks() {
  std::vector<std::string> tasks;
  for (const KindName& kind : kKinds) tasks.emplace_back(kind.task);
  return tasks;
}

LongContext make_context(const ContextSetting& setting, uint32_t number, const CountTokens& count) {
  const auto kind = std::ranges::find(kKinds, setting.kind, &KindName::kind);
  for (uint32_t attempt = 0; attempt < kMostTries; ++attempt) {
    const auto maker = maker_of(setting, {.seed = setting.seed, .number = number, .attempt = attempt});
    LongContext context = longest(*maker, kind->task, setting.tokens, count);
    if (!maker->sound(context.input)) continue;
    context.outputs = maker->answers();
    return context;
  }
  throw Error(fmt::format("none of {} contexts of {} with seed {} held its answers just once", kMostTries,
                          kind->task, setting.seed));
}

}  // namespace allot::evaluation::ruler
