// The standard output of another program, as text.
#pragma once

#include <string>
#include <vector>

namespace allot::app {

// Runs command[0] (a path) with the words after it to its end and returns what it wrote to standard output.
// Standard input is empty; standard error is this process's own, so messages reach the user. Throws Error
// when it cannot be started or does not exit with code 0.
std::string output_of(const std::vector<std::string>& command);

}  // namespace allot::app
