// The OpenAI-compatible HTTP endpoint of `allot serve`: /v1/models, /v1/completions, /v1/chat/completions,
// /health and /metrics, on cpp-httplib. Each request has a thread while it is answered; all replies come from
// one batcher.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aggregator/http_server.h"
#include "app/serve/api_keys.h"
#include "app/serve/api_request.h"
#include "app/serve/batcher.h"
#include "model/chat_template.h"

namespace allot::app {

struct ServedModel {
  ApiLimits limits;
  // Null: the model has none, and a chat is one message of a user, as prompt style plain has it.
  std::shared_ptr<const model::ChatTemplate> chat;
  std::string chat_refusal;  // why chats are refused: the model has a template that allot does not run
  // Of a request whose prompt has so many tokens, empty = dense; may be empty: all are dense.
  std::function<std::vector<int32_t>(int64_t prompt_tokens)> samples;
  uint32_t run_seed = 0;
  int64_t positions = 0;    // most tokens of prompt and reply
  std::string description;  // of schedule and conditions, shown by /v1/models
};

struct ServerOptions {
  aggregator::HttpAddress address;
  // Where /health and /metrics are, too, on connections of their own: a probe need not wait until a stream
  // ends.
  std::optional<aggregator::HttpAddress> monitor;
  ApiKeys keys;
  int32_t connections = 256;  // answered at once; further ones wait to be accepted
  int64_t max_body_bytes = int64_t{4} << 20;
};

class CompletionServer {
 public:
  // Listens when the constructor returns. `tokenizer` and `batcher` outlive the server. Throws NetworkError
  // when an address cannot be bound.
  CompletionServer(const ServerOptions& options, ServedModel model, const model::Tokenizer& tokenizer,
                   Batcher* batcher);
  // Breaks off the answers that are still being written.
  ~CompletionServer();
  CompletionServer(const CompletionServer&) = delete;
  CompletionServer& operator=(const CompletionServer&) = delete;

  std::string url() const;          // "http://127.0.0.1:41234/"
  std::string monitor_url() const;  // of ServerOptions::monitor; empty without

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::app
