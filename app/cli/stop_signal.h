// SIGINT and SIGTERM as a flag that loops check: a process that is asked to stop first finishes its
// work in hand.
#pragma once

#include <atomic>
#include <chrono>

namespace allot::app {

// From now on SIGINT and SIGTERM set the returned flag and interrupt blocking system calls; a third such
// signal ends the process at once. Calling it again returns the same flag.
const std::atomic<bool>& watch_stop_signals();

// The signal that set the flag; 0 before the first.
int stop_signal();

// Waits, or returns early when a signal comes.
void pause_for(std::chrono::milliseconds duration);

}  // namespace allot::app
