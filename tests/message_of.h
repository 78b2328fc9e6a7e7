// What is thrown, for tests of its words.
#pragma once

#include <string>

namespace allot {

// The message of the Expected that `action` throws, or "nothing was thrown". Anything else that it throws
// goes on and fails the test.
template <class Expected, class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace allot
