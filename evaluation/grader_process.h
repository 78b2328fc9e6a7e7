// A grader as a child process: a program that reads a JSON object a line on stdin,
// {"id", "question", "answer", "reply", "extracted", "fields"}, and answers each with a line {"score": 0 to
// 1} on stdout, which may also say what it took for the answer: "extracted", a text or null. docs/tasks.md
// describes both, docs/security.md what the sandbox around the program keeps out and what it does not.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "evaluation/grader.h"

namespace allot::evaluation {

struct GraderOptions {
  std::string command;                         // for /bin/sh -c
  std::chrono::milliseconds patience{30'000};  // for the answer to one reply, the program's start included
  int64_t memory_bytes = int64_t{4} << 30;     // of address space, of each of its processes
  int64_t cpu_seconds = 3600;                  // of each of its processes, over its life
  int64_t file_bytes = int64_t{64} << 20;      // of each file that it writes
  int64_t open_files = 256;
  int64_t processes = 512;        // where it has namespaces of its own, which count them
  std::filesystem::path scratch;  // where it may write; empty: a directory that is made and removed with it
};

// Starts the program at the first reply and keeps it. A program that hangs, ends or answers nonsense is
// killed with all its processes, the reply that it was asked about is a GradingFailure, and the next reply
// starts it again. One thread at a time, the one that made it: the kernel ends the program with that thread.
// It runs in a sandbox (sandbox.h); what the kernel does not give of that is said once a process, in a
// warning.
std::unique_ptr<Grader> make_grader(GraderOptions options);

// The same with the usual limits; null for an empty command, the grader of code for kCodeGrader
// (code_grader.h).
std::unique_ptr<Grader> make_grader(const std::string& command);

// Throws UsageError when the task asks for a grader and `command` is none, or not the one it asks for.
void require_grader(const Task& task, const std::string& command);

}  // namespace allot::evaluation
