// The HTTP endpoint from outside, on an engine without a model.
#include "app/serve/completion_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <thread>

#include "base/json.h"
#include "tests/app/serve/fake_engine.h"
#include "tests/app/serve/malformed.h"

namespace allot::app {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The JSON of the events of a stream, without [DONE].
std::vector<json> events_of(const std::string& body) {
  std::vector<json> events;
  for (size_t begin = 0; begin < body.size();) {
    const size_t end = body.find("\n\n", begin);
    if (end == std::string::npos || body.compare(begin, 6, "data: ") != 0) {
      ADD_FAILURE() << "no event at byte " << begin << " of " << body;
      break;
    }
    const std::string text = body.substr(begin + 6, end - begin - 6);
    if (text != "[DONE]") events.push_back(json::parse(text));
    begin = end + 2;
  }
  return events;
}

class CompletionServerTest : public ::testing::Test {
 protected:
  void start(std::vector<std::string> keys = {}, int64_t most_requests = 512) {
    batcher_.emplace(std::make_unique<FakeEngine>(&state_), tokenizer_,
                     Batcher::Options{.most_requests = most_requests});
    ServedModel served;
    served.limits = {.model = "tiny", .sampling = {}, .max_new_tokens = 20};
    served.chat = chat_;
    served.chat_refusal = chat_refusal_;
    served.run_seed = 3;
    served.positions = FakeEngine::kPositions;
    ServerOptions options;
    options.address = {.host = "127.0.0.1", .port = 0};
    options.keys = ApiKeys(std::move(keys));
    options.connections = connections_;
    options.max_body_bytes = 100000;
    options.monitor = monitor_;
    server_.emplace(options, served, tokenizer_, &*batcher_);
    port_ = std::stoi(server_->url().substr(server_->url().rfind(':') + 1));
  }
  ~CompletionServerTest() override {
    state_.let_go();
    server_.reset();
  }

  httplib::Client client() const {
    httplib::Client made("127.0.0.1", port_);
    made.set_read_timeout(60);
    return made;
  }
  httplib::Result post(const std::string& path, const std::string& body) const {
    return client().Post(path, body, "application/json");
  }
  json answer(const std::string& path, const std::string& body) const {
    const auto result = post(path, body);
    if (!result) return {};
    EXPECT_EQ(result->status, 200) << result->body;
    return json::parse(result->body);
  }
  // What a completion of `prompt` gives alone.
  std::string alone(const std::string& prompt, int32_t tokens, uint32_t seed = 0, uint32_t choice = 0) const {
    model::GenerationRequest request;
    request.prompt = tokenizer_.encode(prompt);
    request.key = {.run_seed = 3, .sampling_seed = seed};
    request.question = choice;
    request.max_new_tokens = tokens;
    return text_alone(tokenizer_, request);
  }
  std::string metric(const std::string& name) const {
    const std::string text = client().Get("/metrics")->body;
    const size_t begin = text.find("\n" + name + " ") + name.size() + 2;
    return text.substr(begin, text.find('\n', begin) - begin);
  }

  std::shared_ptr<const model::ChatTemplate> chat_;
  std::string chat_refusal_;
  int32_t connections_ = 32;
  std::optional<aggregator::HttpAddress> monitor_;
  FakeEngineState state_;
  model::Tokenizer tokenizer_ = embedded_tokenizer();
  std::optional<Batcher> batcher_;
  std::optional<CompletionServer> server_;
  int port_ = 0;
};

TEST_F(CompletionServerTest, TheMonitorAnswersWhileStreamsTakeAllConnections) {
  connections_ = 1;
  monitor_ = {.host = "127.0.0.1", .port = 0};
  start();
  state_.allow(0);
  std::thread streaming([&] { (void)post("/v1/completions", R"({"model": "tiny", "prompt": "abc"})"); });
  while (batcher_->counters().running == 0) std::this_thread::yield();
  const std::string url = server_->monitor_url();
  httplib::Client monitor("127.0.0.1", std::stoi(url.substr(url.rfind(':') + 1)));
  EXPECT_EQ(monitor.Get("/health")->body, "{\"status\":\"ok\"}");
  EXPECT_THAT(monitor.Get("/metrics")->body, HasSubstr("allot_serve_requests_running 1"));
  EXPECT_EQ(monitor.Get("/v1/models")->status, 404);
  httplib::Client waiting("127.0.0.1", port_);
  waiting.set_read_timeout(0, 300'000);
  EXPECT_FALSE(waiting.Get("/health")) << "the one connection is a stream's";
  state_.let_go();
  streaming.join();
}

TEST_F(CompletionServerTest, AMonitorAddressThatIsTakenIsRefused) {
  start();
  monitor_ = {.host = "127.0.0.1", .port = port_};
  server_.reset();
  const aggregator::HttpServer other(*monitor_, {});
  EXPECT_THROW(start(), NetworkError);
}

TEST_F(CompletionServerTest, ANamedQuestionHasTheDrawsOfThatQuestion) {
  start();
  const json two =
      answer("/v1/completions",
             R"({"model": "tiny", "prompt": ["abc", "d"], "max_tokens": 6, "question": [17, 3]})");
  EXPECT_EQ(two["choices"][0]["text"], alone("abc", 6, 0, 17));
  EXPECT_EQ(two["choices"][1]["text"], alone("d", 6, 0, 3));
  EXPECT_NE(alone("abc", 6, 0, 17), alone("abc", 6, 0, 0));
  // With a temperature, too, a question repeats; a seed is another coordinate.
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(
        answer("/v1/completions",
               R"({"model": "tiny", "prompt": "abc", "max_tokens": 6, "temperature": 1, "question": 17})")
            ["choices"][0]["text"],
        alone("abc", 6, 0, 17));
  EXPECT_EQ(
      answer("/v1/completions",
             R"({"model": "tiny", "prompt": "abc", "max_tokens": 6, "seed": 9, "question": 17})")["choices"]
                                                                                                 [0]["text"],
      alone("abc", 6, 9, 17));
}

TEST_F(CompletionServerTest, ACompletionHasTextFinishAndUsage) {
  start();
  const json made = answer("/v1/completions", R"({"model": "tiny", "prompt": "abc", "max_tokens": 6})");
  EXPECT_EQ(made["object"], "text_completion");
  EXPECT_EQ(made["choices"][0]["text"], alone("abc", 6));
  EXPECT_EQ(made["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(made["usage"]["prompt_tokens"], 4) << "BOS is one of them";
  EXPECT_EQ(made["usage"]["completion_tokens"], 6);
  EXPECT_EQ(made["usage"]["total_tokens"], 10);
  EXPECT_THAT(made["id"].get<std::string>(), StartsWith("cmpl-"));
}

TEST_F(CompletionServerTest, ChoicesAreNumberedOverPromptsAndHaveDrawsOfTheirOwn) {
  start();
  const json made =
      answer("/v1/completions",
             R"({"model": "tiny", "prompt": ["abc", "abd"], "n": 2, "max_tokens": 6, "seed": 5})");
  ASSERT_EQ(made["choices"].size(), 4u);
  EXPECT_EQ(made["choices"][0]["text"], alone("abc", 6, 5, 0));
  EXPECT_EQ(made["choices"][1]["text"], alone("abc", 6, 5, 1));
  EXPECT_EQ(made["choices"][3]["text"], alone("abd", 6, 5, 3));
  EXPECT_EQ(made["usage"]["prompt_tokens"], 8);
}

TEST_F(CompletionServerTest, WithoutASeedGreedyRepliesRepeatAndSampledOnesDiffer) {
  start();
  const auto text = [&](const std::string& temperature) {
    return answer("/v1/completions",
                  R"({"model": "tiny", "prompt": "abc", "max_tokens": 6, "temperature": )" + temperature +
                      "}")["choices"][0]["text"];
  };
  EXPECT_EQ(text("0"), text("0"));
  EXPECT_NE(text("1"), text("1"));
}

TEST_F(CompletionServerTest, AChatIsWrittenByTheModelsOwnTemplateWithoutASecondBos) {
  chat_ = std::make_shared<const model::ChatTemplate>(
      "{{ bos_token }}{% for m in messages %}{% if m.role == 'cook' %}{{ raise_exception('no cooks') }}{% endif %}"
      "{{ m.role[0] + m.content + eos_token }}{% endfor %}{{ messages|groupby('a') if messages|length > 2 }}",
      model::SpecialTokens{{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  start();
  const auto body = [](const std::string& messages) {
    return R"({"model": "tiny", "max_tokens": 6, "messages": [)" + messages + "]}";
  };
  const std::string talk = R"({"role": "developer", "content": "a"}, {"role": "user", "content": "bc"})";
  const json made = answer("/v1/chat/completions", body(talk));
  // <s> s a </s> u b c </s>
  EXPECT_EQ(made["usage"]["prompt_tokens"], 8);
  model::GenerationRequest alone;
  alone.prompt = tokenizer_.encode("<s>sa</s>ubc</s>", false);
  alone.key = {.run_seed = 3, .sampling_seed = 0};
  alone.max_new_tokens = 6;
  EXPECT_EQ(made["choices"][0]["message"]["content"], text_alone(tokenizer_, alone));

  const auto refused = [&](const std::string& messages) {
    const auto result = post("/v1/chat/completions", body(messages));
    EXPECT_EQ(result->status, 400);
    EXPECT_EQ(json::parse(result->body)["error"]["param"], "messages");
    return json::parse(result->body)["error"]["message"].get<std::string>();
  };
  EXPECT_THAT(refused(R"({"role": "cook", "content": "a"})"), HasSubstr("no cooks"));
  EXPECT_THAT(refused(talk + R"(, {"role": "user", "content": ""})"), HasSubstr("groupby"));
}

TEST_F(CompletionServerTest, WithoutARunnableTemplateChatsAreOneMessageOrNone) {
  const std::string two =
      R"({"model": "tiny", "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]})";
  start();
  const auto plain = post("/v1/chat/completions", two);
  EXPECT_EQ(plain->status, 400);
  EXPECT_THAT(plain->body, AllOf(HasSubstr("no chat template"), HasSubstr("/v1/completions")));
  chat_refusal_ = "line 3: the tag macro";
  start();
  const auto refused = post("/v1/chat/completions", two);
  EXPECT_EQ(refused->status, 400);
  EXPECT_THAT(refused->body, AllOf(HasSubstr("line 3: the tag macro"), HasSubstr("unsupported_parameter")));
}

TEST_F(CompletionServerTest, AStreamHasTheTextInPiecesThenTheEndAndTheUsage) {
  start();
  const auto result =
      post("/v1/chat/completions",
           R"({"model": "tiny", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 9,
                               "stream": true, "stream_options": {"include_usage": true}})");
  ASSERT_EQ(result->status, 200);
  EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream");
  EXPECT_THAT(result->body, EndsWith("data: [DONE]\n\n"));
  const std::vector<json> events = events_of(result->body);
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.front()["choices"][0]["delta"]["role"], "assistant");
  std::string text;
  for (size_t i = 1; i + 2 < events.size(); ++i) {
    EXPECT_TRUE(events[i]["choices"][0]["finish_reason"].is_null());
    text += events[i]["choices"][0]["delta"]["content"].get<std::string>();
  }
  EXPECT_EQ(text, alone("abc\n", 9)) << "the plain markup ends with a newline";
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 9);
  EXPECT_TRUE(events.back()["choices"].empty());
}

TEST_F(CompletionServerTest, AStreamIsWrittenWhileItsReplyIsMade) {
  start();
  state_.allow(3);
  std::string seen;
  const auto reader = [&](const char* data, size_t bytes) {
    seen.append(data, bytes);
    if (seen.find("\"text\":\"" + alone("abc", 1)) != std::string::npos) state_.let_go();
    return true;
  };
  httplib::Request request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.set_header("Content-Type", "application/json");
  request.body = R"({"model": "tiny", "prompt": "abc", "max_tokens": 12, "stream": true})";
  request.content_receiver = [&](const char* data, size_t bytes, uint64_t, uint64_t) {
    return reader(data, bytes);
  };
  // The engine makes no fourth step before the first pieces were read here.
  ASSERT_TRUE(client().send(request));
  EXPECT_THAT(seen, EndsWith("data: [DONE]\n\n"));
}

TEST_F(CompletionServerTest, AStopStringIsNotInTheReply) {
  start();
  const std::string whole = alone("abc", 20);
  const std::string stop = whole.substr(7, 2);
  const json body = {{"model", "tiny"}, {"prompt", "abc"}, {"stop", stop}};
  for (const bool stream : {false, true}) {
    json asked = body;
    asked["stream"] = stream;
    const auto result = post("/v1/completions", asked.dump());
    std::string text;
    if (stream) {
      for (const json& event : events_of(result->body))
        text += event["choices"][0]["text"].get<std::string>();
      EXPECT_EQ(events_of(result->body).back()["choices"][0]["finish_reason"], "stop");
    } else {
      text = json::parse(result->body)["choices"][0]["text"];
    }
    EXPECT_EQ(text, whole.substr(0, whole.find(stop)));
  }
}

TEST_F(CompletionServerTest, AClientThatGoesTakesItsRequestOutOfTheBatch) {
  start();
  for (const char* stream : {"false", "true"}) {
    const int64_t before = batcher_->counters().cancelled;
    state_.allow(3);
    httplib::Client gone("127.0.0.1", port_);
    gone.set_read_timeout(0, 300000);  // 0.3 s, then it closes the connection
    const auto result = gone.Post(
        "/v1/completions",
        std::string(R"({"model": "tiny", "prompt": "abc", "max_tokens": 390, "stream": )") + stream + "}",
        "application/json");
    EXPECT_FALSE(result);
    gone.stop();
    // The batcher's thread is held in a step, and takes note of the departure after it.
    for (int i = 0; i < 300 && batcher_->counters().cancelled == before; ++i) {
      state_.allow(1);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_EQ(batcher_->counters().cancelled, before + 1) << stream;
    EXPECT_EQ(batcher_->counters().running, 0) << stream;
    state_.let_go();
  }
  EXPECT_EQ(answer("/v1/completions",
                   R"({"model": "tiny", "prompt": "abc", "max_tokens": 6})")["choices"][0]["text"],
            alone("abc", 6));
}

TEST_F(CompletionServerTest, ManyClientsAtOnceGetTheRepliesThatTheyGetAlone) {
  start();
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int thread = 0; thread < 12; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 6; ++i) {
        const std::string prompt = "abc" + std::to_string(thread * 10 + i);
        const int tokens = 3 + (thread + 5 * i) % 17;
        const json body = {{"model", "tiny"}, {"prompt", prompt}, {"max_tokens", tokens}, {"seed", i}};
        const auto result = post("/v1/completions", body.dump());
        if (!result || result->status != 200) continue;
        right += json::parse(result->body)["choices"][0]["text"] ==
                 alone(prompt, tokens, static_cast<uint32_t>(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 72);
  EXPECT_GT(state_.most_together, 1);
}

TEST_F(CompletionServerTest, WithoutAKeyNothingIsToldButHealthAndMetrics) {
  start({"0123456789abcdef", "fedcba9876543210"});
  const std::string body = R"({"model": "tiny", "prompt": "abc", "max_tokens": 2})";
  for (const char* header :
       {"", "Bearer 0123456789abcdeg", "Bearer 0123456789abcde", "0123456789abcdef", "Basic x"}) {
    const auto result = client().Post("/v1/completions", httplib::Headers{{"Authorization", header}}, body,
                                      "application/json");
    EXPECT_EQ(result->status, 401) << header;
    EXPECT_EQ(json::parse(result->body)["error"]["code"], "invalid_api_key");
  }
  EXPECT_EQ(client().Get("/v1/models")->status, 401);
  EXPECT_EQ(client().Get("/health")->status, 200);
  EXPECT_EQ(client().Get("/metrics")->status, 200);
  EXPECT_EQ(state_.steps, 0);
  const auto admitted =
      client().Post("/v1/completions", httplib::Headers{{"Authorization", "Bearer fedcba9876543210"}}, body,
                    "application/json");
  EXPECT_EQ(admitted->status, 200);
}

TEST_F(CompletionServerTest, ErrorsAreJsonWithTheirStatus) {
  start({}, /*most_requests=*/1);
  const auto code = [&](const std::string& path, const std::string& body) {
    const auto result = post(path, body);
    EXPECT_TRUE(json::parse(result->body)["error"]["message"].is_string()) << result->body;
    return result->status;
  };
  EXPECT_EQ(code("/v1/completions", "{"), 400);
  EXPECT_EQ(code("/v1/completions", R"({"model": "other", "prompt": "abc"})"), 404);
  EXPECT_EQ(code("/v1/embeddings", "{}"), 404);
  EXPECT_EQ(code("/v1/completions", R"({"model": "tiny", "prompt": "abc", "max_tokens": 398})"), 400);
  EXPECT_EQ(code("/v1/completions", R"({"model": "tiny", "prompt": [98]})"), 400) << "the engine refuses it";
  EXPECT_EQ(code("/v1/completions", std::string(100001, ' ')), 413);
  state_.allow(0);  // the first of the next two stays
  EXPECT_EQ(code("/v1/completions", R"({"model": "tiny", "prompt": ["abc", "abd"]})"), 429)
      << "one runs at most";
  state_.let_go();
  const auto foreign =
      client().Post("/v1/completions", httplib::Headers{{"Host", "example.org"}}, "{}", "text/plain");
  EXPECT_EQ(foreign->status, 421);
  EXPECT_EQ(metric("allot_serve_errors_total{status=\"429\"}"), "1");
}

TEST_F(CompletionServerTest, ModelsNamesTheModelAndHealthTellsOfAnEngineThatFailed) {
  start();
  const json models = json::parse(client().Get("/v1/models")->body);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], FakeEngine::kPositions);
  EXPECT_EQ(client().Get("/health")->status, 200);
  state_.broken = true;
  const auto result = post("/v1/completions", R"({"model": "tiny", "prompt": "abc", "stream": true})");
  EXPECT_THAT(result->body, HasSubstr("not a number"));
  EXPECT_EQ(client().Get("/health")->status, 503);
  EXPECT_EQ(post("/v1/completions", R"({"model": "tiny", "prompt": "abc"})")->status, 503);
}

TEST_F(CompletionServerTest, MalformedRequestsKillNothing) {
  start();
  std::mt19937 random(20260102);
  for (int i = 0; i < 300; ++i) {
    const Malformed bad = malformed(&random, "tiny");
    const auto result = post(bad.chat ? "/v1/chat/completions" : "/v1/completions", bad.body);
    ASSERT_TRUE(result) << bad.body.substr(0, 200);
    EXPECT_TRUE(result->status == 400 || result->status == 404) << result->status << bad.body.substr(0, 200);
  }
  EXPECT_EQ(state_.steps, 0);
  EXPECT_EQ(answer("/v1/completions",
                   R"({"model": "tiny", "prompt": "abc", "max_tokens": 2})")["choices"][0]["text"],
            alone("abc", 2));
}

}  // namespace
}  // namespace allot::app
