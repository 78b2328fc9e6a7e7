#include "app/serve/completion_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <functional>
#include <span>
#include <thread>
#include <utility>

#include "aggregator/http_address.h"
#include "app/serve/api_response.h"
#include "app/serve/http_listen.h"
#include "app/serve/serve_metrics.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace allot::app {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr time_t kIoSeconds = 30;
constexpr size_t kWaitingConnections = 256;
// How often a thread that waits for text looks whether its client is still there.
constexpr std::chrono::milliseconds kLook(100);
constexpr const char* kJsonType = "application/json";
constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
constexpr const char* kHealthy = "{\"status\":\"ok\"}";
constexpr const char* kEngineFailed = "the engine has failed";

// The replies to one request. They leave the batch when nobody wants them any more.
class Replies {
 public:
  explicit Replies(Batcher* batcher) : batcher_(batcher) {}
  ~Replies() {
    for (const One& one : all_)
      if (!one.ended) batcher_->cancel(*one.reply);
  }
  Replies(const Replies&) = delete;
  Replies& operator=(const Replies&) = delete;

  struct One {
    std::shared_ptr<PendingReply> reply;
    Choice choice;
    int32_t output_tokens = 0;
    bool ended = false;
  };
  void add(std::shared_ptr<PendingReply> reply) { all_.push_back({std::move(reply), {}, 0, false}); }
  std::span<One> all() { return all_; }
  bool ended() const { return std::ranges::all_of(all_, &One::ended); }

 private:
  Batcher* batcher_;
  std::vector<One> all_;
};

// An answer that is being written: its request's replies, and what was said of them.
struct Answer {
  explicit Answer(Batcher* batcher) : replies(batcher) {}

  AnswerHead head;
  Replies replies;
  Usage usage;
  bool stream = false;
  bool include_usage = false;
  bool opened = false;
};

void send_error(httplib::Response* response, const ApiError& error) {
  response->status = error.status;
  if (error.status == 401) response->set_header("WWW-Authenticate", "Bearer");
  if (error.status == 429 || error.status == 503) response->set_header("Retry-After", "1");
  response->set_content(error.json(), kJsonType);
}

ApiError error_of_status(int status) {
  switch (status) {
    case 400:
      return {400, "invalid_request_error", "the request is no HTTP that is understood"};
    case 404:
      return {404, "invalid_request_error", "there is no such path; see GET /v1/models"};
    case 405:
      return {405, "invalid_request_error", "the path does not answer this method"};
    case 413:
      return {413, "invalid_request_error", "the body is larger than the limit (--max-body-bytes)"};
    case 414:
      return {414, "invalid_request_error", "the address is too long"};
    default:
      return {status, "server_error", fmt::format("the request was answered with status {}", status)};
  }
}

}  // namespace

struct CompletionServer::Impl {
  ServerOptions options;
  ServedModel model;
  const model::Tokenizer* tokenizer = nullptr;
  Batcher* batcher = nullptr;
  httplib::Server server;
  std::thread thread;
  std::atomic<bool> ended{false};
  std::atomic<bool> ending{false};
  std::atomic<uint64_t> answers{0};
  std::atomic<uint32_t> unseeded{0};
  int port = 0;
  int64_t started = std::time(nullptr);
  ServeMetrics metrics;
  std::optional<aggregator::HttpServer> monitor;  // the last, since it answers from the others

  void set_up();
  void start_monitor(const aggregator::HttpAddress& address);
  void admit(const httplib::Request& request) const;
  std::vector<int32_t> tokens_of(const PromptInput& prompt) const;
  PromptInput chat_prompt(std::span<const model::ChatMessage> messages) const;
  int32_t room(const ApiRequest& request, size_t prompt_tokens) const;
  std::shared_ptr<Answer> begin(ApiKind kind, const ApiRequest& request);
  void answer(ApiKind kind, const httplib::Request& request, httplib::Response* response);
  bool write_part(Answer* answer, httplib::DataSink* sink) const;
  std::string models_json() const;
};

void CompletionServer::Impl::admit(const httplib::Request& request) const {
  if (options.address.loopback() && !aggregator::names_this_machine(request.get_header_value("Host"))) {
    throw ApiError(421, "invalid_request_error",
                   "this server listens on loopback and answers to localhost, 127.0.0.1 and [::1]");
  }
  if (request.path.starts_with("/v1/") && !options.keys.admits(request.get_header_value("Authorization"))) {
    throw ApiError(401, "authentication_error",
                   "no known key; send one as the header Authorization: Bearer KEY", "", "invalid_api_key");
  }
}

std::vector<int32_t> CompletionServer::Impl::tokens_of(const PromptInput& prompt) const {
  if (const auto* ids = std::get_if<TokenIds>(&prompt)) return *ids;
  std::vector<int32_t> tokens = tokenizer->encode(std::get<std::string>(prompt));
  if (tokens.empty()) throw ApiError(400, "invalid_request_error", "the prompt has no tokens", "prompt");
  return tokens;
}

PromptInput CompletionServer::Impl::chat_prompt(std::span<const model::ChatMessage> messages) const {
  if (!model.chat_refusal.empty()) {
    throw ApiError(400, "invalid_request_error",
                   fmt::format("chats are not served with this model: {}; put the text with its markup to "
                               "/v1/completions",
                               model.chat_refusal),
                   "messages", "unsupported_parameter");
  }
  if (!model.chat) {
    if (messages.size() == 1 && messages[0].role == "user") return messages[0].content + "\n";
    throw InvalidArgument(fmt::format(
        "the model has no chat template, so a conversation is one message of a user; there are {}, the first "
        "of role {}; use /v1/completions for other texts",
        messages.size(), messages[0].role));
  }
  const std::time_t seconds = std::time(nullptr);
  std::tm now{};
  localtime_r(&seconds, &now);
  // The template writes BOS itself, where the model has one.
  TokenIds ids = tokenizer->encode(model.chat->prompt(messages, now), /*add_special_tokens=*/false);
  if (ids.empty()) throw InvalidArgument("the chat template makes no tokens of these messages");
  return ids;
}

// How many tokens the reply may have.
int32_t CompletionServer::Impl::room(const ApiRequest& request, size_t prompt_tokens) const {
  const int64_t left = model.positions - static_cast<int64_t>(prompt_tokens);
  const int64_t wanted = request.max_tokens.value_or(1);
  if (left < wanted) {
    throw ApiError(400, "invalid_request_error",
                   fmt::format("the prompt has {} tokens and {} are asked for, but there are {} in all",
                               prompt_tokens, wanted, model.positions),
                   "max_tokens", "context_length_exceeded");
  }
  return static_cast<int32_t>(request.max_tokens ? wanted
                                                 : std::min<int64_t>(left, model.limits.max_new_tokens));
}

std::shared_ptr<Answer> CompletionServer::Impl::begin(ApiKind kind, const ApiRequest& request) {
  std::vector<PromptInput> inputs = request.prompts;
  if (kind == ApiKind::kChat) {
    inputs = {chat_prompt(request.messages)};
  }
  auto answer = std::make_shared<Answer>(batcher);
  answer->head = {
      .kind = kind,
      .id = fmt::format("{}-{}-{}", kind == ApiKind::kChat ? "chatcmpl" : "cmpl", started, ++answers),
      .created = std::time(nullptr),
      .model = model.limits.model};
  answer->stream = request.stream;
  answer->include_usage = request.include_usage;
  // Greedy replies without a seed have the same draws every time, and so have those of a question, which are
  // that of eval; others without one are to differ.
  const bool repeats = request.sampling.temperature == 0 || !request.questions.empty();
  const uint32_t seed = request.seed.value_or(repeats ? 0 : ++unseeded);
  for (const PromptInput& input : inputs) {
    model::GenerationRequest wanted;
    wanted.prompt = tokens_of(input);
    if (model.samples) wanted.samples = model.samples(std::ssize(wanted.prompt));
    wanted.key = {.run_seed = model.run_seed, .sampling_seed = seed};
    wanted.sampling = request.sampling;
    wanted.max_new_tokens = room(request, wanted.prompt.size());
    wanted.ignore_eos = request.ignore_eos;
    answer->usage.prompt_tokens += std::ssize(wanted.prompt);
    for (int32_t choice = 0; choice < request.n; ++choice) {
      const size_t place = answer->replies.all().size();
      wanted.question = request.questions.empty() ? static_cast<uint32_t>(place) : request.questions[place];
      answer->replies.add(batcher->submit(wanted, request.stop));
    }
  }
  return answer;
}

// Waits for more of the answer and writes it. False when nothing more comes, or when it was broken off.
bool CompletionServer::Impl::write_part(Answer* answer, httplib::DataSink* sink) const {
  const auto write = [sink](std::string_view text) { return sink->write(text.data(), text.size()); };
  const std::span<Replies::One> replies = answer->replies.all();
  std::string events;
  if (!answer->opened && answer->stream)
    for (size_t i = 0; i < replies.size(); ++i)
      events += opening_event(answer->head, static_cast<int32_t>(i));
  answer->opened = true;
  if (!events.empty()) return write(events);

  bool waited = false;
  for (size_t i = 0; i < replies.size(); ++i) {
    Replies::One& one = replies[i];
    if (one.ended) continue;
    // Of several replies, one is waited for and the others are looked at.
    const ReplyPart part = one.reply->take(waited ? std::chrono::milliseconds(0) : kLook);
    waited = true;
    if (!part.failure.empty()) {
      one.ended = true;
      if (!answer->stream)
        return false;  // the status is sent: an answer that ends in its middle is no answer
      write(event(ApiError(500, "server_error", part.failure).json()));
      sink->done();
      return true;
    }
    const auto index = static_cast<int32_t>(i);
    one.choice.text += part.text;
    if (answer->stream && !part.text.empty()) events += text_event(answer->head, index, part.text);
    if (!part.ended) continue;
    one.ended = true;
    one.choice.finish = part.finish;
    answer->usage.completion_tokens += part.output_tokens;
    if (answer->stream) events += closing_event(answer->head, index, part.finish);
  }
  if (ending.load()) return false;
  if (!answer->replies.ended()) return events.empty() ? sink->is_writable() : write(events);
  if (answer->stream) {
    if (answer->include_usage) events += usage_event(answer->head, answer->usage);
    events += kDoneEvent;
  } else {
    std::vector<Choice> choices;
    for (Replies::One& one : replies) choices.push_back(std::move(one.choice));
    events = answer_json(answer->head, choices, answer->usage);
  }
  if (!write(events)) return false;
  sink->done();
  return true;
}

void CompletionServer::Impl::answer(ApiKind kind, const httplib::Request& request,
                                    httplib::Response* response) {
  const auto begun = std::chrono::steady_clock::now();
  const ApiRequest asked = kind == ApiKind::kChat ? parse_chat(request.body, model.limits)
                                                  : parse_completion(request.body, model.limits);
  std::shared_ptr<Answer> answer;
  try {
    answer = begin(kind, asked);
  } catch (const InvalidArgument& error) {
    throw ApiError(400, "invalid_request_error", error.what(),
                   kind == ApiKind::kChat ? "messages" : "prompt");
  } catch (const Unsupported& error) {
    throw ApiError(400, "invalid_request_error", error.what(), kind == ApiKind::kChat ? "messages" : "prompt",
                   "unsupported_parameter");
  } catch (const TooManyRequests& error) {
    throw ApiError(429, "rate_limit_error", error.what(), "", "rate_limit_exceeded");
  } catch (const Error& error) {
    throw ApiError(503, "server_error", error.what());
  }
  response->set_header("X-Accel-Buffering", "no");
  response->set_chunked_content_provider(
      asked.stream ? "text/event-stream" : kJsonType,
      [this, answer](size_t, httplib::DataSink& sink) { return write_part(answer.get(), &sink); },
      [this, begun, answer](bool) {
        metrics.add_answer(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun));
      });
}

std::string CompletionServer::Impl::models_json() const {
  const Ordered entry = {{"id", model.limits.model},
                         {"object", "model"},
                         {"created", started},
                         {"owned_by", "allot"},
                         {"max_model_len", model.positions},
                         {"description", model.description}};
  return Ordered({{"object", "list"}, {"data", Ordered::array({entry})}})
      .dump(-1, ' ', /*ensure_ascii=*/false, Ordered::error_handler_t::replace);
}

void CompletionServer::Impl::set_up() {
  server.new_task_queue = [this] {
    return new BoundedQueue(static_cast<size_t>(options.connections), kWaitingConnections);
  };
  server.set_payload_max_length(static_cast<size_t>(options.max_body_bytes));
  server.set_read_timeout(kIoSeconds);
  server.set_write_timeout(kIoSeconds);
  server.set_tcp_nodelay(true);
  // What a handler throws becomes its answer.
  const auto guarded = [this](
                           const std::function<void(const httplib::Request&, httplib::Response&)>& handle) {
    return [this, handle](const httplib::Request& request, httplib::Response& response) {
      try {
        handle(request, response);
      } catch (const ApiError& error) {
        metrics.add_error(error.status);
        send_error(&response, error);
      } catch (const std::exception& error) {
        spdlog::warn("{} could not be answered: {}", request.path, error.what());
        metrics.add_error(500);
        send_error(&response, {500, "server_error", "this could not be answered; the server's log says why"});
      }
    };
  };
  // Before the library reads a body: a request without a key costs next to nothing.
  server.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    // The library would send the answer once for each range that is asked, so a few KiB of header could ask
    // for megabytes. It hands out its own object, which is not constant; without ranges the answer is whole.
    const_cast<httplib::Request&>(request).ranges.clear();
    response.set_header("Cache-Control", "no-store");
    response.set_header("X-Content-Type-Options", "nosniff");
    try {
      admit(request);
    } catch (const ApiError& error) {
      metrics.add_error(error.status);
      send_error(&response, error);
      response.set_header("Connection", "close");  // the body stays unread
      return httplib::Server::HandlerResponse::Handled;
    }
    return httplib::Server::HandlerResponse::Unhandled;
  });
  server.Get("/health", guarded([this](const httplib::Request&, httplib::Response& response) {
               if (batcher->failed()) throw ApiError(503, "server_error", kEngineFailed);
               response.set_content(kHealthy, kJsonType);
             }));
  server.Get("/metrics", guarded([this](const httplib::Request&, httplib::Response& response) {
               response.set_content(metrics.text(batcher->counters()), kMetricsType);
             }));
  server.Get("/v1/models", guarded([this](const httplib::Request&, httplib::Response& response) {
               response.set_content(models_json(), kJsonType);
             }));
  server.Post("/v1/completions",
              guarded([this](const httplib::Request& request, httplib::Response& response) {
                answer(ApiKind::kCompletion, request, &response);
              }));
  server.Post("/v1/chat/completions",
              guarded([this](const httplib::Request& request, httplib::Response& response) {
                answer(ApiKind::kChat, request, &response);
              }));
  server.set_error_handler([this](const httplib::Request&, httplib::Response& response) {
    if (!response.body.empty()) return;  // an error with its own text
    metrics.add_error(response.status);
    send_error(&response, error_of_status(response.status));
  });
}

void CompletionServer::Impl::start_monitor(const aggregator::HttpAddress& address) {
  const auto health_answer = [this] {
    const bool failed = batcher->failed();
    return aggregator::HttpResponse{.status = failed ? 503 : 200,
                                    .content_type = failed ? "text/plain; charset=utf-8" : kJsonType,
                                    .body = failed ? kEngineFailed : kHealthy};
  };
  const auto metrics_answer = [this] {
    return aggregator::HttpResponse{.content_type = kMetricsType, .body = metrics.text(batcher->counters())};
  };
  monitor.emplace(address,
                  aggregator::HttpServer::Handlers{{"/health", health_answer}, {"/metrics", metrics_answer}});
}

CompletionServer::CompletionServer(const ServerOptions& options, ServedModel model,
                                   const model::Tokenizer& tokenizer, Batcher* batcher)
    : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  impl_->model = std::move(model);
  impl_->tokenizer = &tokenizer;
  impl_->batcher = batcher;
  impl_->set_up();
  if (options.monitor) impl_->start_monitor(*options.monitor);
  impl_->port = bind_http(&impl_->server, options.address);
  impl_->thread = std::thread([this] {
    impl_->server.listen_after_bind();
    impl_->ended = true;
  });
  // stop() has no effect before the loop runs.
  while (!impl_->server.is_running() && !impl_->ended) std::this_thread::yield();
}

CompletionServer::~CompletionServer() {
  impl_->monitor.reset();
  impl_->ending = true;
  impl_->server.stop();
  impl_->thread.join();
}

std::string CompletionServer::monitor_url() const {
  return impl_->monitor ? impl_->monitor->url() : "";
}

std::string CompletionServer::url() const {
  return aggregator::http_url(impl_->options.address.host, impl_->port);
}

}  // namespace allot::app
