#include "app/cli/stop_signal.h"

#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>

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

// A signal may come in the middle of a product, and oneDNN's code for those in float32 runs with its stack
// pointer in a workspace on the heap: a handler's frame there would overwrite what lies before it. The kernel
// hands a process's signals to its first thread.
void use_own_stack() {
  alignas(64) static std::byte stack[size_t{64} << 10];  // a frame with all vector registers takes 11 KiB
  stack_t present = {};
  if (::gettid() != ::getpid() || ::sigaltstack(nullptr, &present) != 0) return;
  if ((present.ss_flags & SS_DISABLE) == 0) return;
  const stack_t own = {.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof(stack)};
  ::sigaltstack(&own, nullptr);
}

}  // namespace

const std::atomic<bool>& watch_stop_signals() {
  use_own_stack();
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK;  // without SA_RESTART, so that a poll returns
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
