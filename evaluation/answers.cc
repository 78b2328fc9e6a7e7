#include "evaluation/answers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/json_fields.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 3> kFinishNames = {"eos", "stop", "length"};  // by Finish

Finish parse_finish(const std::string& text) {
  for (size_t i = 0; i < kFinishNames.size(); ++i)
    if (text == kFinishNames[i]) return static_cast<Finish>(i);
  throw InvalidArgument(fmt::format("'{}' is none of {}", text, fmt::join(kFinishNames, ", ")));
}

}  // namespace

std::string format_answer(const Answer& answer) {
  const Json row = {{"schedule", answer.key.schedule},
                    {"repeat", answer.key.repeat},
                    {"question", answer.key.question},
                    {"gold", answer.gold},
                    {"answer", answer.answer ? Json(*answer.answer) : Json()},
                    {"extracted", answer.extracted},
                    {"correct", answer.score == 1},
                    {"score", answer.score},
                    {"prompt_tokens", answer.prompt_tokens},
                    {"output_tokens", answer.output_tokens},
                    {"finish", kFinishNames.at(static_cast<size_t>(answer.finish))},
                    {"reply", answer.reply}};
  return row.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

Answer parse_answer(std::string_view line, const std::string& place) {
  const Json row = parse_document(line, place);
  std::vector<std::string> faults;
  Answer answer;
  {
    JsonFields fields(row, "", &faults);
    // A gold answer, a reply and what was found in it may be empty, which JsonFields::text refuses.
    const auto text = [&](const char* name) -> std::string {
      const Json& value = fields.value(name);
      if (value.is_string()) return value.get<std::string>();
      fields.fault(fmt::format("{} is {}, expected a text", fields.where(name), shown(value)));
      return {};
    };
    answer.key.schedule = fields.text("schedule");
    answer.key.repeat = fields.integer<uint32_t>("repeat", 0);
    answer.key.question = fields.integer<uint32_t>("question", 0);
    answer.gold = text("gold");
    if (!fields.value("answer").is_null()) answer.answer = text("answer");
    answer.extracted = fields.flag("extracted");
    answer.score = fields.real("score", 0, 1);
    if (fields.flag("correct") != (answer.score == 1))
      fields.fault(fmt::format("'correct' does not fit a 'score' of {}", answer.score));
    answer.prompt_tokens = fields.integer<int32_t>("prompt_tokens", 0);
    answer.output_tokens = fields.integer<int32_t>("output_tokens", 0);
    answer.finish = fields.named("finish", parse_finish);
    answer.reply = text("reply");
  }
  if (!faults.empty()) throw CorruptFile(fmt::format("{}: {}", place, fmt::join(faults, "; ")));
  return answer;
}

AnswerJournal::AnswerJournal(std::filesystem::path file) : path_(std::move(file)) {
  if (path_.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path_.parent_path(), error);
    if (error) throw StorageError("cannot create " + path_.parent_path().string() + ": " + error.message());
  }
  open();
  try {
    read();
  } catch (...) {
    close();
    throw;
  }
}

AnswerJournal::~AnswerJournal() {
  close();
}

void AnswerJournal::fail(const char* step) const {
  throw StorageError(fmt::format("cannot {} {}: {}", step, path_.string(), std::strerror(errno)));
}

void AnswerJournal::open() {
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) fail("open");
  synced_ = clock_.now();
  if (::flock(file_, LOCK_EX | LOCK_NB) == 0) return;
  const bool taken = errno == EWOULDBLOCK;
  const int reason = errno;
  close();
  errno = reason;
  if (taken)
    throw Mismatch(path_.string() +
                   " is written by another evaluation now; wait for its end, or name another directory");
  fail("lock");
}

void AnswerJournal::read() {
  const std::string content = read_file(path_);
  const size_t whole = content.rfind('\n') + 1;  // 0 where no line is whole
  size_t number = 0;
  for (size_t begin = 0; begin < whole;) {
    const size_t end = content.find('\n', begin);
    ++number;
    Answer answer = parse_answer(std::string_view(content).substr(begin, end - begin),
                                 fmt::format("{}: line {}", path_.string(), number));
    AnswerKey key = answer.key;
    answers_.insert_or_assign(std::move(key), std::move(answer));
    begin = end + 1;
  }
  if (whole < content.size() && ::ftruncate(file_, static_cast<off_t>(whole)) != 0) fail("shorten");
}

void AnswerJournal::append(const Answer& answer) {
  const std::string line = format_answer(answer);
  for (size_t written = 0; written < line.size();) {
    const ssize_t count = ::write(file_, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write");
    written += static_cast<size_t>(count);
  }
  if (clock_.now() - synced_ >= std::chrono::seconds(1)) sync();
  answers_.insert_or_assign(answer.key, answer);
}

void AnswerJournal::sync() {
  if (::fdatasync(file_) != 0) fail("sync");
  synced_ = clock_.now();
}

void AnswerJournal::rewrite(std::map<AnswerKey, Answer> answers) {
  std::string content;
  for (const auto& [key, answer] : answers) content += format_answer(answer);
  write_file_atomically(path_, content);
  // The lock was on the file that this one has replaced.
  close();
  open();
  answers_ = std::move(answers);
}

void AnswerJournal::close() {
  if (file_ < 0) return;
  ::fdatasync(file_);
  ::close(file_);
  file_ = -1;
}

}  // namespace allot::evaluation
