// Replies that are being generated, between the engine's thread and those that wait for their text.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "episode/finish.h"

namespace allot::app {

// What has come of a reply since the last look.
struct ReplyPart {
  std::string text = {};
  bool ended = false;
  Finish finish = Finish::kLength;  // when it ended, as are the following
  int32_t output_tokens = 0;
  std::string failure = {};  // not empty: it ended because the engine failed or the server ends
};

// A reply whose parts come from Deliveries and are taken by one other thread.
class PendingReply {
 public:
  explicit PendingReply(uint64_t id) : id_(id) {}
  uint64_t id() const { return id_; }
  // Waits up to `limit` for text or the end.
  ReplyPart take(std::chrono::milliseconds limit);

 private:
  friend class Deliveries;
  void add(ReplyPart part);

  const uint64_t id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  ReplyPart part_;
};

// Hands parts to replies in a thread of its own: to wake a thread takes microseconds, a step of the engine
// makes text for hundreds, and the GPU would wait for all of them. The parts of a reply keep their order.
class Deliveries {
 public:
  Deliveries();
  // Delivers what was added.
  ~Deliveries();
  Deliveries(const Deliveries&) = delete;
  Deliveries& operator=(const Deliveries&) = delete;

  // Both from one thread. What is added is on its way after the next send().
  void add(std::shared_ptr<PendingReply> reply, ReplyPart part);
  void send();

 private:
  struct Delivery {
    std::shared_ptr<PendingReply> reply;
    ReplyPart part;
  };
  void run();

  std::vector<Delivery> added_;  // of the thread that adds
  std::mutex mutex_;
  std::condition_variable sent_;
  std::vector<Delivery> waiting_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace allot::app
