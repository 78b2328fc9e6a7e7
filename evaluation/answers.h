// Answered questions as files hold them, a JSON object a line: what `eval --details` writes, and the journal
// of an evaluation that goes on where it was stopped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "episode/finish.h"

namespace allot::evaluation {

// Which question, of how many times it is asked under which schedule.
struct AnswerKey {
  std::string schedule;  // its label
  uint32_t repeat = 0;
  uint32_t question = 0;
  friend auto operator<=>(const AnswerKey&, const AnswerKey&) = default;
};

struct Answer {
  AnswerKey key;
  std::string gold;
  std::optional<std::string> answer;  // what was found in the reply
  bool extracted = false;
  double score = 0;  // 0 to 1
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
  Finish finish = Finish::kEos;
  std::string reply;
};

// A line with its end. A reply that ends within a character has U+FFFD for the part.
std::string format_answer(const Answer& answer);
// The inverse, without the line's end. Throws CorruptFile listing what is wrong, with `place` in front.
Answer parse_answer(std::string_view line, const std::string& place);

// A file of answers that grows by one line at a time, so that what was answered before the process ended, in
// whatever way, is there when the next one opens it. Of two lines with one key the later counts. One process
// at a time: the file is locked.
class AnswerJournal {
 public:
  // Opens or creates `file`; creates its directory. A last line without its end, which a process left that
  // was killed while it wrote, is cut off. Throws StorageError; Mismatch while another process has the file
  // open; CorruptFile naming the line of anything else that is wrong.
  explicit AnswerJournal(std::filesystem::path file);
  ~AnswerJournal();
  AnswerJournal(const AnswerJournal&) = delete;
  AnswerJournal& operator=(const AnswerJournal&) = delete;

  const std::map<AnswerKey, Answer>& answers() const { return answers_; }
  // In one write; on disk after a second at most, or when the journal is closed. Throws StorageError.
  void append(const Answer& answer);
  // Has everything on disk when it returns. Throws StorageError.
  void sync();
  // Replaces the file at once by these answers. Throws StorageError.
  void rewrite(std::map<AnswerKey, Answer> answers);

 private:
  void open();
  void read();
  void close();
  [[noreturn]] void fail(const char* step) const;

  std::filesystem::path path_;
  int file_ = -1;
  SystemClock clock_;
  Timestamp synced_;
  std::map<AnswerKey, Answer> answers_;
};

}  // namespace allot::evaluation
