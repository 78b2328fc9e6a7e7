#include "app/run/user_name.h"

#include <pwd.h>
#include <unistd.h>

namespace allot::app {

std::string user_and_host() {
  const passwd* user = ::getpwuid(::getuid());
  char host[256] = "unknown host";
  ::gethostname(host, sizeof host - 1);
  return (user != nullptr ? std::string(user->pw_name) : "user " + std::to_string(::getuid())) + "@" + host;
}

}  // namespace allot::app
