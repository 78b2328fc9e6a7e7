#include "app/serve/pending_reply.h"

#include <iterator>
#include <utility>

namespace allot::app {

ReplyPart PendingReply::take(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [this] { return part_.ended || !part_.text.empty(); });
  ReplyPart taken = part_;
  part_.text.clear();
  return taken;
}

void PendingReply::add(ReplyPart part) {
  {
    const std::lock_guard lock(mutex_);
    part.text.insert(0, part_.text);
    part_ = std::move(part);
  }
  changed_.notify_one();
}

Deliveries::Deliveries() : thread_([this] { run(); }) {}

Deliveries::~Deliveries() {
  send();
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  sent_.notify_one();
  thread_.join();
}

void Deliveries::add(std::shared_ptr<PendingReply> reply, ReplyPart part) {
  added_.push_back({std::move(reply), std::move(part)});
}

void Deliveries::send() {
  if (added_.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    waiting_.insert(waiting_.end(), std::move_iterator(added_.begin()), std::move_iterator(added_.end()));
  }
  sent_.notify_one();
  added_.clear();
}

void Deliveries::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    sent_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    std::vector<Delivery> delivered = std::exchange(waiting_, {});
    lock.unlock();
    for (Delivery& one : delivered) one.reply->add(std::move(one.part));
    delivered.clear();
    lock.lock();
  }
}

}  // namespace allot::app
