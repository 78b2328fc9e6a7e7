// Bodies that are no good requests, made at random from good ones.
#pragma once

#include <random>
#include <string>

namespace allot::app {

struct Malformed {
  std::string body;
  bool chat = false;  // meant for /v1/chat/completions
};

inline Malformed malformed(std::mt19937* random, const std::string& model) {
  const auto pick = [&](auto... options) {
    const std::string all[] = {options...};
    return all[std::uniform_int_distribution<size_t>(0, sizeof...(options) - 1)(*random)];
  };
  const auto number = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(*random); };
  Malformed made;
  made.chat = number(0, 1) == 1;
  const std::string input = made.chat ? R"("messages": [{"role": "user", "content": "What is 2 plus 3?"}])"
                                      : R"("prompt": "What is 2 plus 3?")";
  const std::string good = R"({"model": ")" + model + R"(", )" + input + R"(, "max_tokens": 4)";
  switch (number(0, 7)) {
    case 0:  // cut off somewhere
      made.body = (good + "}").substr(0, static_cast<size_t>(number(0, static_cast<int>(good.size()))));
      break;
    case 1:  // a field with a value of another kind or beyond its range
      made.body =
          good + ", \"" +
          pick("temperature", "top_p", "n", "seed", "stop", "stream", "stream_options", "ignore_eos",
               "repetition_penalty", "logit_bias", "presence_penalty") +
          "\": " +
          pick("{\"a\": 1}", "[[]]", "-3", "1e400", "99999999999999999999", "\"\"", "[1, \"a\"]", "1e99") +
          "}";
      break;
    case 2:  // an unknown field
      made.body = good + ", \"f" + std::to_string(number(0, 1 << 20)) + "\": 1}";
      break;
    case 3: {  // bytes at random
      made.body.resize(static_cast<size_t>(number(0, 300)));
      for (char& byte : made.body) byte = static_cast<char>(number(0, 255));
      break;
    }
    case 4:  // deep
      made.body = good + ", \"user\": " +
                  std::string(static_cast<size_t>(number(40, 20000)), pick("[", "{\"a\":")[0]);
      break;
    case 5:  // no UTF-8 in a text
      made.body = good + ", \"user\": \"" + pick("\xff", "\xc3\x28", "\xed\xa0\x80", "\xf8\x88") + "\"}";
      break;
    case 6:  // another model or an input of another kind
      made.body = R"({"model": )" + pick("\"another\"", "3", "[]", "{}", "null") + ", " + input + "}";
      break;
    default:
      made.body = R"({"model": ")" + model + R"(", ")" + (made.chat ? "messages" : "prompt") + R"(": )" +
                  pick("null", "{}", "[]", "true", "1.5", "[{}]", "[[-1]]", "[[\"a\"]]", "[null]",
                       "[{\"role\": \"user\"}]", "[{\"role\": 3, \"content\": \"a\"}]") +
                  "}";
  }
  return made;
}

}  // namespace allot::app
