// Runs Python programs that hold code from replies: a grader whose replies are programs, for task files that
// grade by "python". It is a grader process (grader_process.h) with a program of ours (code_grader.py), so it
// has that one's sandbox and limits, and each program runs in a process of its own with a time limit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "evaluation/grader.h"

namespace allot::evaluation {

// What --grader is where --allow-code-execution stands instead.
inline constexpr std::string_view kCodeGrader = "python3 of --allow-code-execution";
// The field of a question in which the grader reads how many seconds its program has.
inline constexpr const char* kCodeSeconds = "seconds";

// Score 1 for a program that runs to its end within the question's seconds (3 without that field), else 0:
// one that raises, exits before its end whatever the status, or hangs. Needs python3 in PATH.
std::unique_ptr<Grader> make_code_grader();

}  // namespace allot::evaluation
