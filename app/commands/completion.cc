// allot completion: prints a script that completes command lines in a shell.
#include "app/cli/completion.h"

#include <iostream>

#include "app/cli/command.h"
#include "app/cli/command_tables.h"
#include "app/cli/options.h"

namespace allot::app {

int run_completion(std::span<const std::string> arguments) {
  std::string shell;
  OptionSet set("completion", "print a script that completes allot's commands, options and values in a shell",
                "source <(allot completion bash)");
  set.positional_choice(
      "shell", &shell, {"bash", "zsh"}, "SHELL",
      "whose script; cmake --install and the wheel put both where the shells look for them");
  set.require("shell");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  const std::vector<CommandDescription> commands = all_commands();
  std::cout << (shell == "bash" ? bash_completion(commands) : zsh_completion(commands));
  return 0;
}

}  // namespace allot::app
