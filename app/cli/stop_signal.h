// SIGINT and SIGTERM as a flag that loops look at: a process that is asked to stop finishes what
// it holds first.
#pragma once

#include <atomic>
#include <chrono>

namespace allot::app {

// From now on SIGINT and SIGTERM set the returned flag and interrupt blocking system calls; a third such
// signal ends the process at once, for the impatient. Calling it again returns the same flag.
const std::atomic<bool>& watch_stop_signals();

// The signal that set the flag, 0 while none has come.
int stop_signal();

// Waits, or returns early when a signal comes.
void pause_for(std::chrono::milliseconds duration);

}  // namespace allot::app
