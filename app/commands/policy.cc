// allot policy --stdio: a learner that answers JSON lines, for programs that bring their own rewards.
#include <iostream>
#include <string>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "base/error.h"
#include "policy/session.h"

namespace allot::app {

int run_policy(std::span<const std::string> arguments) {
  bool stdio = false;
  std::string method = policy::PolicyConfig{}.name;
  int32_t floor = 0;
  OptionSet options(
      "policy", "let another program drive a learner: JSON lines on stdin and stdout",
      "echo '{\"op\":\"init\",\"layers\":28,\"samples\":224}' | allot policy --stdio --method pairs");
  options.flag("stdio", &stdio, "read requests from stdin, one a line, and answer each on stdout");
  options.choice("method", &method, policy::policy_names(), "the learner");
  options.integer("floor", &floor, 0, 1'000'000, "N",
                  "least samples of a layer, where init does not say \"floor\"");
  if (options.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (!stdio) throw UsageError("policy speaks JSON lines only; give --stdio");

  policy::Session session(method, floor);
  for (std::string line; !session.stopped() && std::getline(std::cin, line);) {
    std::cout << session.answer(line) << std::endl;
  }
  return 0;
}

}  // namespace allot::app
