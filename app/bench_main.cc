// The executable with the CUDA kernels and their peers: separate, because allot-model also runs on machines
// without a GPU. Users type `allot`, which starts this program for `allot bench attention`.
#include <string>
#include <vector>

#include "app/cli/command_line.h"

int main(int argc, char** argv) {
  using namespace allot::app;
  static constexpr Command kCommands[] = {
      {"bench", "measure attention on a CUDA GPU beside its peers", true, run_bench_attention, {"attention"}},
  };
  return run_command_line(kCommands, std::vector<std::string>(argv + 1, argv + argc));
}
