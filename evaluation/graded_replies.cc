#include "evaluation/graded_replies.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/ascii.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/json_fields.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

struct ReplyLine {
  std::string place;
  bool numbered = false;
  std::string schedule;
  uint32_t repeat = 0;
  GradedReply graded = {};
};

[[noreturn]] void wrong(const std::string& place, const char* field, const Json& found,
                        const std::string& expected) {
  throw CorruptFile(fmt::format("{}: '{}' is {}, expected {}", place, field, shown(found), expected));
}

double score_of(const Json& row, const std::string& place) {
  if (const auto score = row.find("score"); score != row.end()) {
    if (!score->is_number() || !(score->get<double>() >= 0 && score->get<double>() <= 1))
      wrong(place, "score", *score, "a number 0 to 1");
    return score->get<double>();
  }
  const auto correct = row.find("correct");
  if (correct == row.end())
    throw CorruptFile(place + ": neither 'score' nor 'correct'; allot grade --keep adds them to a reply");
  if (*correct == true || *correct == 1) return 1;
  if (*correct == false || *correct == 0) return 0;
  wrong(place, "correct", *correct, "true, false, 1 or 0");
}

std::optional<std::string> text_of(const Json& row, const char* field) {
  const auto found = row.find(field);
  if (found == row.end() || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

// Of a question or repeat; nothing where the row has none.
std::optional<uint32_t> number_of(const Json& row, const char* field, const std::string& place) {
  const auto found = row.find(field);
  if (found == row.end() || !found->is_number()) return std::nullopt;
  constexpr uint32_t kMost = std::numeric_limits<uint32_t>::max();
  if (!found->is_number_unsigned() || found->get<uint64_t>() > kMost)
    wrong(place, field, *found, fmt::format("its number, 0 to {}", kMost));
  return found->get<uint32_t>();
}

// One reply for each question, with the mean score of its repeats; without the text where there are several.
std::vector<GradedReply> joined_repeats(std::vector<ReplyLine> lines) {
  std::map<uint32_t, GradedReply> questions;
  std::map<uint32_t, std::set<uint32_t>> repeats;
  for (ReplyLine& line : lines) {
    const uint32_t question = line.graded.question;
    if (!repeats[question].insert(line.repeat).second)
      throw CorruptFile(fmt::format("{}: a second reply to question {}{}", line.place, question,
                                    line.repeat == 0 ? "" : fmt::format(" in repeat {}", line.repeat)));
    const auto [at, first] = questions.try_emplace(question, line.graded);
    if (first) continue;
    at->second.score += line.graded.score;
    at->second.reply.reset();
  }
  std::vector<GradedReply> replies;
  for (auto& [question, reply] : questions) {
    reply.score /= static_cast<double>(repeats[question].size());
    replies.push_back(std::move(reply));
  }
  return replies;
}

ReplyLine read_line(std::string_view line, std::string place) {
  const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object()) throw CorruptFile(place + ": not a JSON object");
  ReplyLine read{.place = std::move(place), .schedule = text_of(row, "schedule").value_or("")};
  read.graded.score = score_of(row, read.place);
  read.graded.reply = text_of(row, "reply");
  if (!read.graded.reply) read.graded.reply = text_of(row, "prediction");
  read.graded.gold = text_of(row, "gold");
  if (const auto question = number_of(row, "question", read.place)) {
    read.graded.question = *question;
    read.numbered = true;
  }
  read.repeat = number_of(row, "repeat", read.place).value_or(0);
  return read;
}

// "3, 4, 5, 6, 7 and 12 more".
std::string first_of(const std::vector<uint32_t>& questions) {
  constexpr size_t kShownQuestions = 5;
  const size_t count = std::min(questions.size(), kShownQuestions);
  std::string text = fmt::format(
      "{}", fmt::join(questions.begin(), questions.begin() + static_cast<ptrdiff_t>(count), ", "));
  if (questions.size() > count) text += fmt::format(" and {} more", questions.size() - count);
  return text;
}

std::vector<uint32_t> questions_not_in(const GradedReplies& some, const GradedReplies& others) {
  std::vector<uint32_t> missing;
  for (const GradedReply& one : some.replies)
    if (!std::ranges::binary_search(others.replies, one.question, {}, &GradedReply::question))
      missing.push_back(one.question);
  return missing;
}

void require_same_questions(const GradedReplies& first, const GradedReplies& second) {
  for (const auto& [some, others] : {std::pair(&first, &second), std::pair(&second, &first)}) {
    const std::vector<uint32_t> missing = questions_not_in(*some, *others);
    if (missing.empty()) continue;
    throw Mismatch(fmt::format(
        "{} has {} replies and {} has {}: questions {} are in the former alone; compare "
        "replies to the same questions",
        some->label, some->replies.size(), others->label, others->replies.size(), first_of(missing)));
  }
  for (size_t i = 0; i < first.replies.size(); ++i) {
    const auto &one = first.replies[i].gold, &other = second.replies[i].gold;
    if (one && other && *one != *other)
      throw Mismatch(
          fmt::format("question {} has the right answer {} in {} and {} in {}; they are replies to other "
                      "questions",
                      first.replies[i].question, *one, first.label, *other, second.label));
  }
}

}  // namespace

GradedReplies read_graded_replies(const std::filesystem::path& file, const std::string& schedule) {
  const std::string content = read_file(file);
  std::vector<ReplyLine> lines;
  std::set<std::string> schedules;
  size_t number = 0;
  for (std::string_view rest = content; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    if (trim(line).empty()) continue;
    lines.push_back(read_line(line, fmt::format("{}: line {}", file.string(), number)));
    schedules.insert(lines.back().schedule);
  }
  if (lines.empty()) throw CorruptFile(file.string() + " has no reply");
  if (schedule.empty() ? schedules.size() > 1 : !schedules.contains(schedule))
    throw UsageError(
        fmt::format("{} has replies under the schedules {}; {}", file.string(), fmt::join(schedules, ", "),
                    schedule.empty() ? "name one" : fmt::format("'{}' is none of them", schedule)));
  if (!schedule.empty())
    std::erase_if(lines, [&](const ReplyLine& line) { return line.schedule != schedule; });

  const bool numbered = lines.front().numbered;
  GradedReplies read{.label = file.string(), .replies = {}};
  if (schedules.size() > 1) read.label += " under " + schedule;
  uint32_t number_in_file = 0;
  for (ReplyLine& line : lines) {
    if (line.numbered != numbered)
      throw CorruptFile(
          fmt::format("{}: {} question's number, unlike {}; expected one in every line, or in none",
                      line.place, line.numbered ? "a" : "no", lines.front().place));
    if (!numbered) line.graded.question = number_in_file++;
  }
  read.replies = joined_repeats(std::move(lines));
  return read;
}

RepliesComparison compare_replies(const GradedReplies& first, const GradedReplies& second) {
  require_same_questions(first, second);
  std::vector<double> scores[2];
  RepliesComparison comparison;
  int64_t same = 0;
  bool texts = true;
  for (size_t i = 0; i < first.replies.size(); ++i) {
    const GradedReply &one = first.replies[i], &other = second.replies[i];
    scores[0].push_back(one.score);
    scores[1].push_back(other.score);
    if (one.score != other.score) comparison.different.push_back({one.question, one.score, other.score});
    texts = texts && one.reply && other.reply;
    same += texts && *one.reply == *other.reply;
  }
  comparison.test = compare_scores(scores[0], scores[1]);
  if (texts) comparison.same_replies = same;
  return comparison;
}

}  // namespace allot::evaluation
