#include "evaluation/code_grader.h"

#include <fmt/format.h>

#include <utility>

#include "evaluation/grader_process.h"

namespace allot::evaluation {

extern const std::string_view kCodeGraderProgram;  // code_grader.py

std::unique_ptr<Grader> make_code_grader() {
  // As one word of the shell: the program has no single quote but these.
  std::string word;
  for (const char c : kCodeGraderProgram) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  GraderOptions options;
  options.command = fmt::format("exec python3 -I -c '{}'", word);
  return make_grader(std::move(options));
}

}  // namespace allot::evaluation
