// Requests of the HTTP API: what they may say, and a seeded crowd of malformed ones.
#include "app/serve/api_request.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/json.h"
#include "tests/app/serve/malformed.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

ApiLimits limits() {
  return {.model = "tiny",
          .sampling = {.temperature = 0.5, .top_p = 0.25},
          .max_new_tokens = 99,
          .max_choices = 4};
}

ApiRequest completion(const std::string& fields) {
  return parse_completion(R"({"model": "tiny", "prompt": "a")" + fields + "}", limits());
}

// What is wrong with a body; status 0 where nothing is.
ApiError fault(const std::string& body, bool chat = false) {
  try {
    (void)(chat ? parse_chat(body, limits()) : parse_completion(body, limits()));
  } catch (const ApiError& error) {
    return error;
  }
  return {0, "", ""};
}
ApiError fault_of(const std::string& fields) {
  return fault(R"({"model": "tiny", "prompt": "a")" + fields + "}");
}

TEST(ApiRequest, WhatItDoesNotSayIsAsTheServerHasIt) {
  const ApiRequest request = completion("");
  EXPECT_EQ(std::get<std::string>(request.prompts.at(0)), "a");
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.25);
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.max_tokens);
  EXPECT_FALSE(request.seed);
  EXPECT_FALSE(request.stream);
  EXPECT_THAT(request.stop, ElementsAre());
}

TEST(ApiRequest, EveryFieldIsRead) {
  const ApiRequest request = completion(
      R"(, "temperature": 1.5, "top_p": 0.75, "repetition_penalty": 1.25, "max_tokens": 7, "n": 3, "seed": 4294967295,
          "stop": ["x", "yz"], "stream": true, "stream_options": {"include_usage": true}, "ignore_eos": true,
          "user": "me", "logprobs": null, "echo": false, "presence_penalty": 0, "frequency_penalty": 0.0,
          "logit_bias": {}, "best_of": 1)");
  EXPECT_EQ(request.sampling.temperature, 1.5);
  EXPECT_EQ(request.sampling.top_p, 0.75);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.25);
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.n, 3);
  EXPECT_EQ(request.seed, 4294967295u);
  EXPECT_THAT(request.stop, ElementsAre("x", "yz"));
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_TRUE(request.ignore_eos);
}

TEST(ApiRequest, APromptIsATextOrTokensOrAListOfOneOfThem) {
  const auto prompts = [](const std::string& prompt) {
    return parse_completion(R"({"model": "tiny", "prompt": )" + prompt + "}", limits()).prompts;
  };
  EXPECT_THAT(prompts(R"(["a", "b"])"), ElementsAre(PromptInput("a"), PromptInput("b")));
  EXPECT_THAT(prompts("[4, 5]"), ElementsAre(PromptInput(TokenIds{4, 5})));
  EXPECT_THAT(prompts("[[4, 5], [6]]"), ElementsAre(PromptInput(TokenIds{4, 5}), PromptInput(TokenIds{6})));
}

TEST(ApiRequest, AChatIsMessagesOfTextWithTheNewerNamesOfThings) {
  const ApiRequest request = parse_chat(
      R"({"model": "tiny", "max_completion_tokens": 5, "messages": [{"role": "developer", "content": "be brief"},
          {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})",
      limits());
  EXPECT_EQ(request.max_tokens, 5);
  ASSERT_EQ(request.messages.size(), 2u);
  EXPECT_EQ(request.messages[0].role, "system");
  EXPECT_EQ(request.messages[1].content, "ab");
}

TEST(ApiRequest, QuestionsAreNumbersOneForEachPrompt) {
  EXPECT_THAT(completion(R"(, "question": 4294967295)").questions, ElementsAre(4294967295u));
  EXPECT_THAT(completion(R"(, "question": null)").questions, ElementsAre());
  const std::string two = R"({"model": "tiny", "prompt": ["a", "b"], "question": )";
  EXPECT_THAT(parse_completion(two + "[7, 0]}", limits()).questions, ElementsAre(7u, 0u));
  EXPECT_THAT(fault(two + "[7]}").what(), Names("question", "1 questions", "2 prompts"));
  EXPECT_EQ(fault(two + "7}").param, "question");
  EXPECT_EQ(fault_of(R"(, "question": [])").param, "question");
  EXPECT_EQ(fault_of(R"(, "question": -1)").param, "question");
  EXPECT_EQ(fault_of(R"(, "question": "1")").param, "question");
  EXPECT_EQ(fault_of(R"(, "question": 1, "n": 2)").param, "n");
}

TEST(ApiRequest, FaultsNameFieldAndRange) {
  EXPECT_EQ(fault_of(R"(, "temperature": 2.5)").param, "temperature");
  EXPECT_THAT(fault_of(R"(, "temperature": 2.5)").what(), Names("temperature", "2.5", 0, 2));
  EXPECT_EQ(fault_of(R"(, "max_tokens": 0)").param, "max_tokens");
  EXPECT_EQ(fault_of(R"(, "max_tokens": 18446744073709551615)").param, "max_tokens");
  EXPECT_EQ(fault_of(R"(, "max_tokens": 2.5)").param, "max_tokens");
  EXPECT_EQ(fault_of(R"(, "n": 5)").param, "n");
  EXPECT_EQ(fault_of(R"(, "seed": -1)").param, "seed");
  EXPECT_EQ(fault_of(R"(, "seed": 4294967296)").param, "seed");
  EXPECT_EQ(fault_of(R"(, "stop": "")").param, "stop");
  const auto stops = [](size_t count) {
    return fmt::format(R"(, "stop": {})", nlohmann::json(std::vector<std::string>(count, "a")).dump());
  };
  EXPECT_EQ(completion(stops(16)).stop.size(), 16u);
  EXPECT_EQ(fault_of(stops(17)).param, "stop");
  EXPECT_EQ(fault_of(R"(, "stream": 1)").param, "stream");
  EXPECT_EQ(fault_of(R"(, "stream_options": {"include_usage": true})").param, "stream_options");
  EXPECT_EQ(fault_of(R"(, "colour": "red")").param, "colour");
  EXPECT_EQ(fault(R"({"model": "tiny"})").param, "prompt");
  EXPECT_EQ(fault(R"({"prompt": "a"})").param, "model");
  EXPECT_EQ(fault(R"({"model": "tiny", "prompt": []})").param, "prompt");
  EXPECT_EQ(fault(R"({"model": "tiny", "prompt": ["a", 3]})").param, "prompt");
  EXPECT_EQ(fault(R"({"model": "tiny", "prompt": [-1]})").param, "prompt");
  EXPECT_EQ(fault(R"({"model": "tiny", "prompt": ["a", "b", "c"], "n": 2})").param, "n");
  EXPECT_EQ(fault(R"({"model": "tiny", "messages": []})", true).param, "messages");
  EXPECT_EQ(fault(R"({"model": "tiny", "messages": [{"role": "", "content": ""}]})", true).param,
            "messages[0].role");
}

TEST(ApiRequest, WhatIsNotSupportedSaysSoAndAnotherModelIsNotFound) {
  for (const char* fields :
       {R"(, "logprobs": 2)", R"(, "echo": true)", R"(, "best_of": 2)", R"(, "suffix": "x")",
        R"(, "presence_penalty": 0.5)", R"(, "logit_bias": {"4": 1})"}) {
    const ApiError error = fault_of(fields);
    EXPECT_EQ(error.status, 400) << fields;
    EXPECT_EQ(error.code, "unsupported_parameter") << fields;
    EXPECT_THAT(fields, HasSubstr(error.param));
  }
  const std::string chat = R"({"model": "tiny", "messages": [{"role": "user", "content": "a"}])";
  for (const char* fields :
       {R"(, "logprobs": true})", R"(, "top_logprobs": 2})", R"(, "tools": [{"type": "function"}]})",
        R"(, "response_format": {"type": "json_object"}})"})
    EXPECT_EQ(fault(chat + fields, true).code, "unsupported_parameter") << fields;
  EXPECT_EQ(fault(R"({"model": "other", "prompt": "a"})").status, 404);
  EXPECT_EQ(fault(R"({"model": "other", "prompt": "a"})").code, "model_not_found");
}

TEST(ApiRequest, AnErrorIsJsonWithItsFourFields) {
  const auto json = nlohmann::json::parse(fault_of(R"(, "n": 5)").json());
  EXPECT_EQ(json["error"]["type"], "invalid_request_error");
  EXPECT_EQ(json["error"]["param"], "n");
  EXPECT_TRUE(json["error"]["code"].is_null());
  EXPECT_THAT(json["error"]["message"].get<std::string>(), Names("n", 5, 1, 4));
}

// None of them reaches the engine, and each is answered with a client's error.
TEST(ApiRequest, MalformedBodiesAreRefusedWhateverTheyAre) {
  std::mt19937 random(20260101);
  for (int i = 0; i < 400; ++i) {
    const Malformed bad = malformed(&random, "tiny");
    const ApiError error = fault(bad.body, bad.chat);
    EXPECT_TRUE(error.status == 400 || error.status == 404)
        << error.status << " for " << bad.body.substr(0, 300);
    EXPECT_TRUE(nlohmann::json::accept(error.json()));
  }
}

}  // namespace
}  // namespace allot::app
