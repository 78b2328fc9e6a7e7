// tokenize_bench TOKENIZER_DIRECTORY TEXTS.jsonl [repetitions]: one line of JSON with the speed of encoding
// on one core.
//
// TEXTS.jsonl has one JSON string a line; bench/tokenize/make_inputs.py makes such files,
// bench/tokenize/hf_tokenize.py times the same work with the `tokenizers` package. Time is this thread's
// processor time, so that other processes on the machine count little.
#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/quantile.h"
#include "bench/output.h"
#include "model/tokenizer.h"

namespace {

std::vector<std::string> read_texts(const char* path) {
  std::ifstream file(path);
  if (!file)
    throw allot::NotFound(std::string(path) + " cannot be opened; expected a file with a JSON string a line");
  std::vector<std::string> texts;
  for (std::string line; std::getline(file, line);)
    texts.push_back(nlohmann::json::parse(line).get<std::string>());
  return texts;
}

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: {} TOKENIZER_DIRECTORY TEXTS.jsonl [repetitions]\n", argv[0]);
    return 2;
  }
  try {
    const int repetitions = argc > 3 ? std::max(1, std::stoi(argv[3])) : 7;
    const double before_load = thread_seconds();
    const auto tokenizer = allot::model::Tokenizer::load(argv[1]);
    const double load_seconds = thread_seconds() - before_load;
    const std::vector<std::string> texts = read_texts(argv[2]);
    size_t bytes = 0;
    for (const std::string& text : texts) bytes += text.size();

    size_t tokens = 0;
    double first_speed = 0;      // megabytes a second of the first pass, to which every piece is new
    std::vector<double> speeds;  // of the passes after it
    for (int repetition = -1; repetition < repetitions; ++repetition) {
      tokens = 0;
      const double start = thread_seconds();
      for (const std::string& text : texts) tokens += tokenizer.encode(text).size();
      const double seconds = thread_seconds() - start;
      const double speed = static_cast<double>(bytes) * 1e-6 / seconds;
      if (repetition < 0)
        first_speed = speed;
      else
        speeds.push_back(speed);
    }
    fmt::print("{}", allot::bench::json_line({{"what", "allot"},
                                              {"tokenizer", argv[1]},
                                              {"texts", argv[2]},
                                              {"bytes", bytes},
                                              {"tokens", tokens},
                                              {"repetitions", repetitions},
                                              {"first_pass", first_speed},
                                              {"megabytes_per_second", allot::quantile(speeds, 0.5)},
                                              {"slowest", std::ranges::min(speeds)},
                                              {"fastest", std::ranges::max(speeds)},
                                              {"load_seconds", load_seconds}}));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", argv[0], error.what());
    return 1;
  }
  return 0;
}
