// The prompts that `allot generate` is given.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

namespace allot::app {

struct GivenPrompt {
  uint32_t line = 0;  // 0-based: the coordinate of its draws, as a question's line is
  std::string text;
};

// A prompt of each line that is not blank: the line itself, or with `field` the string of that name in the
// JSON object that the line is. `place` names the stream in messages. Throws CorruptFile naming the line that
// is no JSON object or has no such string, and for a stream without any prompt.
std::vector<GivenPrompt> read_prompts(std::istream& in, const std::string& place, const std::string& field);

}  // namespace allot::app
