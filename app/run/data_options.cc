#include "app/run/data_options.h"

#include <string>

namespace allot::app {

void declare_data_options(OptionSet* set, std::filesystem::path* data, evaluation::FieldNames* fields,
                          const char* use) {
  std::string help = use;
  help += ": JSON lines, a JSON list, or CSV with a header line (.csv); docs/tasks.md says how to get GSM8K";
  set->path("data", data, help.c_str());
  set->text("question-field", &fields->question, "NAME",
            "field of the data's rows, or column of CSV, that holds the question");
  set->text("answer-field", &fields->answer, "NAME",
            "field of the data's rows, or column of CSV, that holds the answer");
}

}  // namespace allot::app
