// The option --data of every command that reads questions, and those that name the fields of its rows.
#pragma once

#include <filesystem>

#include "app/cli/options.h"
#include "evaluation/data_rows.h"

namespace allot::app {

// Declares --data, --question-field and --answer-field. `use` says what the questions are for: "questions to
// learn on".
void declare_data_options(OptionSet* set, std::filesystem::path* data, evaluation::FieldNames* fields,
                          const char* use);

}  // namespace allot::app
