// The words of a reply, where somebody wants to keep them: learners and histories do not.
#pragma once

#include <optional>
#include <string>

namespace allot {

struct ReplyText {
  std::string reply;                  // may end within a character
  std::optional<std::string> answer;  // what the task found in it
  friend bool operator==(const ReplyText&, const ReplyText&) = default;
};

}  // namespace allot
