// Decides who may connect: answers ZeroMQ's authentication requests (ZAP, RFC 27) on a thread of its
// own. The answer depends on the allow-list and on the number of connections. The list is read again
// when its file changes.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "wire/keys.h"

namespace zmq {
class context_t;
class socket_t;
}  // namespace zmq

namespace allot::wire {

class Authenticator {
 public:
  // Peers are asked for keys when `allow_list` is set. Throws NotFound and CorruptFile for a list that cannot
  // be used at the start; when it becomes unusable later, the last good one stays in force.
  Authenticator(zmq::context_t& context, std::optional<std::filesystem::path> allow_list,
                int max_connections);
  // Every watched socket must be closed before.
  ~Authenticator();
  Authenticator(const Authenticator&) = delete;
  Authenticator& operator=(const Authenticator&) = delete;

  // Counts the connections of `socket` and makes each ask this authenticator; without a list they are neither
  // counted nor asked. Call it before `socket` is bound.
  void watch(zmq::socket_t& socket);
  // The holder of the key named `user` (the User-Id of a message); nothing when the key is no longer
  // on the list.
  std::optional<KeyHolder> holder(std::string_view user) const;
  // Connections that were refused since the last call; 0 where peers need no key.
  [[nodiscard]] int64_t take_refused();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::wire
