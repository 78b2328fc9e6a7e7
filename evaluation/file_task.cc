#include "evaluation/file_task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "base/json.h"
#include "evaluation/code_grader.h"
#include "evaluation/json_fields.h"
#include "model/utf8.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<GradeBy, 7> kWays = {GradeBy::kExact,   GradeBy::kNumber,   GradeBy::kChoice,
                                          GradeBy::kProgram, GradeBy::kContains, GradeBy::kIntegers,
                                          GradeBy::kPython};
constexpr int32_t kFileVersion = 1;  // of the format
constexpr const char* kQuestion = "question";
constexpr const char* kAnswer = "answer";
// What a program of kPython may name besides the row's fields.
constexpr const char* kReply = "reply";          // whole, up to the first stop string
constexpr const char* kExtracted = "extracted";  // what `extract` found in it
// Fewer are no question.
constexpr int64_t kFewestTokensOfCut = 16;
// A grader process answers within 30 seconds.
constexpr int32_t kMostSeconds = 20;

// The texts of a list; a fault for anything else.
std::vector<std::string> texts(JsonFields& fields, const char* name) {
  const Json& list = fields.value(name);
  std::vector<std::string> found;
  bool good = list.is_array();
  if (good) {
    for (const Json& one : list) {
      good = good && one.is_string() && !one.get_ref<const std::string&>().empty();
      if (good) found.push_back(one.get<std::string>());
    }
  }
  if (!good)
    fields.fault(fmt::format("{} is {}, expected a list of texts that are not empty", fields.where(name),
                             shown(list)));
  return found;
}

// Gold answers of which there may be several, a line each.
std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (const std::string_view line = trim(text.substr(0, end)); !line.empty()) lines.emplace_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// The first `most` runs of digits in `text` that differ from one another.
std::vector<std::string> first_integers(std::string_view text, size_t most) {
  std::vector<std::string> found;
  for (size_t at = 0; at < text.size() && found.size() < most;) {
    if (!is_digit(text[at])) {
      ++at;
      continue;
    }
    size_t end = at;
    while (end < text.size() && is_digit(text[end])) ++end;
    const std::string number(text.substr(at, end - at));
    if (std::ranges::find(found, number) == found.end()) found.push_back(number);
    at = end;
  }
  return found;
}

// Whether `part` stands in `text`, in any case of any letters.
bool contains(std::string_view text, std::string_view part) {
  std::string pattern = "(?i)";
  for (const char c : part) {
    // A backslash makes any ASCII character but letters and digits itself.
    if (static_cast<unsigned char>(c) < 0x80 && !is_letter(c) && !is_digit(c)) pattern += '\\';
    pattern += c;
  }
  return Pattern(pattern).first(text).has_value();
}

// Which question could not be graded, for messages.
std::string called(const Question& question) {
  constexpr size_t kShown = 60;
  return fmt::format("question {} (\"{}{}\")", question.id, question.text.substr(0, kShown),
                     question.text.size() > kShown ? "…" : "");
}

}  // namespace

std::string_view name(GradeBy how) {
  switch (how) {
    case GradeBy::kExact:
      return "exact";
    case GradeBy::kNumber:
      return "number";
    case GradeBy::kChoice:
      return "choice";
    case GradeBy::kProgram:
      return "program";
    case GradeBy::kContains:
      return "contains";
    case GradeBy::kIntegers:
      return "integers";
    case GradeBy::kPython:
      return "python";
  }
  return "";
}

GradeBy parse_grade_by(std::string_view text) {
  std::vector<std::string_view> names;
  for (const GradeBy how : kWays) {
    if (name(how) == text) return how;
    names.push_back(name(how));
  }
  throw InvalidArgument(
      fmt::format("\"{}\" is no way to grade; known are: {}", text, fmt::join(names, ", ")));
}

FileTask::FileTask(std::string definition, std::unique_ptr<Grader> grader)
    : definition_(std::move(definition)), grader_(std::move(grader)) {
  std::vector<std::string> faults;
  if (definition_.size() > kMaxTaskFileBytes) {
    throw CorruptFile(fmt::format("the task file has {} bytes, expected at most {}", definition_.size(),
                                  kMaxTaskFileBytes));
  }
  read(&faults);
  if (!faults.empty())
    throw CorruptFile(fmt::format("the task file has {} fault{}: {}", faults.size(),
                                  faults.size() == 1 ? "" : "s", fmt::join(faults, "; ")));
}

FileTask::~FileTask() = default;

std::optional<std::string> FileTask::Extraction::find(std::string_view text) const {
  std::string rest;
  if (!remove.empty()) {
    for (size_t at; (at = text.find(remove)) != std::string_view::npos;
         text.remove_prefix(at + remove.size()))
      rest += text.substr(0, at);
    text = rest += text;
  }
  return std::optional<std::string>(last ? pattern.last(text) : pattern.first(text));
}

void FileTask::read(std::vector<std::string>* faults) {
  const Json json = Json::parse(definition_, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw CorruptFile("the task file is not JSON");
  JsonFields fields(json, "", faults);
  (void)fields.integer<int32_t>("allot_task", kFileVersion, kFileVersion);
  name_ = fields.text("name");
  if (!name_.empty() && !is_field_name(name_))
    fields.fault("'name' is " + shown(name_) + ", expected letters, digits, '_' and '-', a letter first");
  const std::vector<std::string> own = task_names();
  if (std::ranges::find(own, name_) != own.end())
    fields.fault("'name' is " + shown(name_) + ", which is a task of allot; choose another");
  version_ = fields.integer<int32_t>("version", 1);
  read_prompt(fields.text("prompt"), faults);
  message_ = fields.has("message") && fields.flag("message");
  if (fields.has("stop")) stop_ = texts(fields, "stop");
  for (const std::string& stop : stop_)
    if (completing_.find(stop.back()) == std::string::npos) completing_ += stop.back();

  const auto extraction = [&](const char* name) -> std::optional<Extraction> {
    if (!fields.has(name)) return std::nullopt;
    JsonFields part = fields.object(name);
    const std::string pattern = part.text("pattern");
    const std::string take = part.has("take") ? part.text("take") : "first";
    if (take != "first" && take != "last")
      part.fault(fmt::format("{} is \"{}\", expected \"first\" or \"last\"", part.where("take"), take));
    std::string remove = part.has("remove") ? part.text("remove") : "";
    if (pattern.empty()) return std::nullopt;
    try {
      return Extraction{.pattern = Pattern(pattern), .last = take == "last", .remove = std::move(remove)};
    } catch (const InvalidArgument& error) {
      part.fault(fmt::format("{}: {}", part.where("pattern"), error.what()));
      return std::nullopt;
    }
  };
  if (fields.has("choose")) {
    choose_ = texts(fields, "choose");
    if (choose_.size() < 2)
      fields.fault(fmt::format("'choose' has {} texts, expected at least 2", choose_.size()));
    if (!stop_.empty())
      fields.fault("'stop' ends generated replies, and 'choose' has none generated; leave one out");
    if (message_)
      fields.fault(
          "'choose' has texts behind the prompt, and a 'message' ends with the model's markup; leave one out");
  }
  if (fields.has("truncate")) {
    JsonFields cut = fields.object("truncate");
    middle_cut_.emplace();
    if (const std::string at = cut.text("at"); at != "middle")
      cut.fault(fmt::format("{} is \"{}\", expected \"middle\"", cut.where("at"), at));
    if (cut.has("tokens")) middle_cut_->tokens = cut.integer<int64_t>("tokens", kFewestTokensOfCut);
    if (!choose_.empty())
      fields.fault(
          "'truncate' makes room for a reply, and with 'choose' nothing is generated; leave one out");
  }
  strip_ = fields.has("strip") && fields.flag("strip");
  if (fields.has("by")) by_ = texts(fields, "by");
  if (std::ranges::find(by_, kQuestion) != by_.end())
    fields.fault("'by' names the question, which each row has its own of; name a field that many rows share");
  if (fields.has("columns")) columns_ = texts(fields, "columns");
  extract_ = extraction("extract");
  gold_ = extraction("gold");
  {
    JsonFields grade = fields.object("grade");
    how_ = grade.named("by", parse_grade_by);
    if (how_ == GradeBy::kExact && grade.has("ignore_case")) ignore_case_ = grade.flag("ignore_case");
    if (how_ == GradeBy::kChoice) {
      choices_ = grade.text("choices");
      for (char& c : choices_) {
        if (!is_letter(c))
          grade.fault(fmt::format("{} is \"{}\", expected letters alone", grade.where("choices"), choices_));
        if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
      }
    }
    if (how_ == GradeBy::kProgram && grade.has("fields")) {
      for (const std::string& field : texts(grade, "fields"))
        if (field != kAnswer) need(field);
    }
    if (how_ == GradeBy::kContains && grade.has("share")) share_ = grade.flag("share");
    if (how_ == GradeBy::kIntegers && grade.has("first")) integers_ = grade.integer<int32_t>("first", 1);
    if (how_ == GradeBy::kPython) {
      read_program(grade.text("program"), faults);
      if (grade.has("seconds")) seconds_ = grade.integer<int32_t>("seconds", 1, kMostSeconds);
    }
  }
  generation_.stop = stop_.empty() ? StopRule::kEos : StopRule::kAnswer;
  if (!fields.has("generation")) return;
  JsonFields generation = fields.object("generation");
  if (generation.has("temperature"))
    generation_.temperature = generation.real("temperature", 0, kMaxTemperature);
  if (generation.has("top_p")) generation_.top_p = generation.real("top_p", kMinTopP, 1);
  if (generation.has("repetition_penalty"))
    generation_.repetition_penalty =
        generation.real("repetition_penalty", kMinRepetitionPenalty, kMaxRepetitionPenalty);
  if (generation.has("max_new_tokens"))
    generation_.max_new_tokens = generation.integer<int32_t>("max_new_tokens", 1, kMaxNewTokens);
}

// Notes a field that rows must have besides question and answer.
void FileTask::need(const std::string& field) {
  if (field != kQuestion && std::ranges::find(field_names_, field) == field_names_.end())
    field_names_.push_back(field);
}

void FileTask::read_prompt(const std::string& text, std::vector<std::string>* faults) {
  try {
    prompt_ = FieldTemplate(text);
  } catch (const InvalidArgument& error) {
    faults->push_back(fmt::format("'prompt' {}", error.what()));
    return;
  }
  const std::vector<std::string> named = prompt_.fields();
  if (named.empty() && !text.empty())
    faults->emplace_back("'prompt' names no field; write {question} where the question stands");
  for (const std::string& field : named) {
    if (field == kAnswer)
      faults->emplace_back("'prompt' names {answer}: that would tell the model what it is asked for");
    else
      need(field);
  }
}

void FileTask::read_program(const std::string& text, std::vector<std::string>* faults) {
  try {
    program_ = FieldTemplate(text);
  } catch (const InvalidArgument& error) {
    faults->push_back(fmt::format("'grade.program' {}", error.what()));
    return;
  }
  bool of_reply = false;
  for (const std::string& field : program_.fields()) {
    if (field == kReply || field == kExtracted)
      of_reply = true;
    else if (field != kAnswer)
      need(field);
  }
  if (!of_reply && !text.empty())
    faults->emplace_back("'grade.program' names neither {reply} nor {extracted}, so that nothing is graded");
}

std::string FileTask::gold_answer(std::string_view answer) const {
  std::optional<std::string> found(answer);
  if (gold_) found = gold_->find(answer);
  if (!found || trim(*found).empty())
    throw InvalidArgument(fmt::format("no answer in \"{}\", where 'gold.pattern' of task {} looks for it",
                                      answer.substr(0, 40), name_));
  const std::string_view gold = trim(*found);
  if (how_ == GradeBy::kNumber && !gsm8k::parse_number(gold))
    throw InvalidArgument(
        fmt::format("the answer \"{}\" is not a number, which task {} grades by", gold.substr(0, 40), name_));
  if (how_ == GradeBy::kChoice && !choice(gold))
    throw InvalidArgument(fmt::format("the answer \"{}\" is not one of the choices {} of task {}",
                                      gold.substr(0, 40), choices_, name_));
  return std::string(gold);
}

Question FileTask::gold(std::string_view answer) const {
  // Where the answer is looked for in a text, that text is a worked solution.
  return {.text = "", .solution = std::string(gold_ ? answer : ""), .answer = gold_answer(answer)};
}

Dataset FileTask::load(const std::filesystem::path& file, const FieldNames& fields) const {
  check(fields);
  std::vector<DataField> wanted = {{.name = fields.question, .number = true},
                                   {.name = fields.answer, .number = true, .list = several_answers()}};
  for (const std::string& field : field_names_) wanted.push_back({.name = field, .number = true});
  const size_t first_of_by = wanted.size();
  for (const std::string& field : by_) wanted.push_back({.name = field, .number = true, .optional = true});
  // A grader may see the answer, the model may not.
  for (const std::string& field : prompt_.fields()) {
    if (field != kQuestion && field == fields.answer) {
      throw UsageError(fmt::format(
          "the prompt of task {} names {{{}}}, which --answer-field says is the answer: that would "
          "tell the model what it is asked for",
          name_, field));
    }
  }
  const DataRows data = read_rows(file, wanted, columns_);
  Dataset dataset{.path = file, .sha256 = data.sha256, .fields = fields, .questions = {}};
  for (const DataRow& row : data.rows) {
    Question question;
    try {
      question = gold(row.values[1]);
    } catch (const InvalidArgument& error) {
      throw CorruptFile(fmt::format("{}: field \"{}\": {}", place(file, row), fields.answer, error.what()));
    }
    question.id = static_cast<uint32_t>(dataset.questions.size());
    question.text = row.values[0];
    for (size_t i = 0; i < field_names_.size(); ++i) question.fields[field_names_[i]] = row.values[i + 2];
    for (size_t i = 0; i < by_.size(); ++i)
      if (const std::string& value = row.values[first_of_by + i]; !value.empty())
        question.fields.try_emplace(by_[i], value);
    dataset.questions.push_back(std::move(question));
  }
  return dataset;
}

std::string_view FileTask::field_of(const Question& question, const std::string& field) const {
  if (field == kQuestion) return question.text;
  const auto found = question.fields.find(field);
  if (found == question.fields.end())
    throw InvalidArgument(
        fmt::format("task {} has the field {{{}}}, which {} lacks", name_, field, called(question)));
  return found->second;
}

std::string FileTask::prompt(const Question& question) const {
  return prompt_.expand([&](const std::string& field) {
    const std::string_view text = field_of(question, field);
    return strip_ ? model::strip(text) : text;
  });
}

std::optional<char> FileTask::choice(std::string_view text) const {
  constexpr std::string_view kAround = "()[]{}.:*\"'`$";
  const auto around = [&](char c) { return is_space(c) || kAround.find(c) != std::string_view::npos; };
  while (!text.empty() && around(text.front())) text.remove_prefix(1);
  while (!text.empty() && around(text.back())) text.remove_suffix(1);
  if (text.size() != 1 || !is_letter(text.front())) return std::nullopt;
  const char letter = text.front() >= 'a' ? static_cast<char>(text.front() - 'a' + 'A') : text.front();
  return choices_.find(letter) == std::string::npos ? std::nullopt : std::optional(letter);
}

bool FileTask::equal(const Question& question, std::string_view answer) const {
  switch (how_) {
    case GradeBy::kExact:
      return ignore_case_ ? to_lower(trim(answer)) == to_lower(question.answer)
                          : trim(answer) == question.answer;
    case GradeBy::kNumber:
      return numbers_.equal(question, answer);
    case GradeBy::kChoice: {
      const std::optional<char> letter = choice(answer);
      return letter && letter == choice(question.answer);
    }
    case GradeBy::kContains:
    case GradeBy::kIntegers:
      return share_of(question, answer) == 1;
    case GradeBy::kProgram:
    case GradeBy::kPython:
      return false;  // only the program knows
  }
  return false;
}

double FileTask::share_of(const Question& question, std::string_view reply) const {
  const std::vector<std::string> golds = lines_of(question.answer);
  if (how_ == GradeBy::kIntegers) {
    const std::vector<std::string> found = first_integers(reply, static_cast<size_t>(integers_));
    const auto right = std::ranges::count_if(
        found, [&](const std::string& one) { return std::ranges::find(golds, one) != golds.end(); });
    return static_cast<double>(right) / integers_;
  }
  const auto there =
      std::ranges::count_if(golds, [&](const std::string& gold) { return contains(reply, gold); });
  if (!share_) return there > 0 ? 1 : 0;
  return static_cast<double>(there) / static_cast<double>(golds.size());
}

Grade FileTask::graded_by(const Question& question, std::string_view reply,
                          const std::optional<std::string>& extracted) const {
  if (!grader_)
    throw GradingFailure(fmt::format("task {} is graded by a program, and none was given; name it with {}",
                                     name_, runs_code() ? "--allow-code-execution" : "--grader"));
  try {
    if (!runs_code()) return grader_->grade(question, reply, extracted);
    if (!extracted) return {};  // there is no code to run
    const std::string program = program_.expand([&](const std::string& field) -> std::string_view {
      if (field == kReply) return reply;
      if (field == kExtracted) return *extracted;
      return field == kAnswer ? std::string_view(question.answer) : field_of(question, field);
    });
    Question asked = {.id = question.id, .text = "", .solution = "", .answer = ""};
    asked.fields[kCodeSeconds] = std::to_string(seconds_);
    return grader_->grade(asked, program, extracted);
  } catch (const GradingFailure& error) {
    throw GradingFailure(fmt::format("task {}, {}: {}", name_, called(question), error.what()));
  }
}

Grade FileTask::grade(const Question& question, std::string_view reply) const {
  for (const std::string& stop : stop_) reply = reply.substr(0, reply.find(stop));
  std::optional<std::string> found(reply);
  try {
    if (extract_) found = extract_->find(reply);
  } catch (const PatternLimit& error) {
    throw GradingFailure(fmt::format("task {}, {}: {}", name_, called(question), error.what()));
  }
  std::optional<std::string> answer;
  // Code is run whole, other answers are shown.
  if (found) answer = runs_code() ? *found : found->substr(0, gsm8k::kMaxAnswerBytes);
  if (needs_grader()) return graded_by(question, reply, answer);
  Grade grade;
  if (!found) return grade;
  grade.answer = std::move(answer);
  switch (how_) {
    case GradeBy::kNumber:
      grade.extracted = gsm8k::parse_number(*found).has_value();
      break;
    case GradeBy::kChoice:
      grade.extracted = choice(*found).has_value();
      break;
    case GradeBy::kIntegers:
      grade.extracted = !first_integers(*found, 1).empty();
      break;
    default:
      grade.extracted = !trim(*found).empty();
  }
  grade.score = several_answers() ? share_of(question, *found) : equal(question, *found) ? 1 : 0;
  return grade;
}

bool FileTask::complete(std::string_view reply) const {
  return std::ranges::any_of(stop_, [&](const std::string& stop) { return reply.find(stop) != reply.npos; });
}

}  // namespace allot::evaluation
