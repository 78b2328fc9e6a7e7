#include "app/cli/stop_signal.h"

#include <poll.h>

#include <csignal>

namespace allot::app {
namespace {

std::atomic<bool> stop_requested{false};
std::atomic<int> first_signal{0};
std::atomic<int> signals_seen{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_signal(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  stop_requested = true;
  if (signals_seen.fetch_add(1) + 1 >= 3) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  }
}

}  // namespace

const std::atomic<bool>& watch_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;  // without SA_RESTART, so that a poll returns
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  return stop_requested;
}

int stop_signal() {
  return first_signal;
}

void pause_for(std::chrono::milliseconds duration) {
  ::poll(nullptr, 0, static_cast<int>(duration.count()));
}

}  // namespace allot::app
