// allot keys: creates the keys that authenticate aggregators and workers, and prints their public half.
#include <iostream>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "base/error.h"
#include "wire/keys.h"

namespace allot::app {

int run_keys(std::span<const std::string> arguments) {
  std::string action;
  std::string file;
  std::filesystem::path out = "allot.key";
  OptionSet set("keys", "make a secret key, or print the public key of one",
                "allot keys new --out worker.key");
  set.positional_choice("action", &action, {"new", "public"}, "ACTION",
                        "make a key, or print the public key of FILE");
  set.positional("file", &file, "FILE", "public: the file of the secret key");
  set.path("out", &out, "new: where to write the secret key, readable only by you");
  set.require("action");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (action == "new") {
    if (!file.empty()) throw UsageError("keys new takes no FILE; --out says where the key goes");
    const wire::KeyPair pair = wire::make_key_pair();
    wire::write_key_pair(out, pair);
    std::cout << pair.public_key.text() << '\n';
    return 0;
  }
  if (file.empty()) throw UsageError("keys public needs the FILE of a secret key");
  std::cout << wire::read_key_pair(file).public_key.text() << '\n';
  return 0;
}

}  // namespace allot::app
