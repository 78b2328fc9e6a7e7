// Decides who may connect: answers ZeroMQ's authentication requests (ZAP, RFC 27) on a thread of its own, by
// the allow-list and by how many connections there are. The list is read again when its file changes.
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
  // be used at the start; later the last good one stays.
  Authenticator(zmq::context_t& context, std::optional<std::filesystem::path> allow_list,
                int max_connections);
  // After every socket that it watches is closed.
  ~Authenticator();
  Authenticator(const Authenticator&) = delete;
  Authenticator& operator=(const Authenticator&) = delete;

  // Counts the connections of `socket`, and has them ask here; without a list they are neither counted nor
  // asked. Before it is bound.
  void watch(zmq::socket_t& socket);
  // Whoever holds the key named `user`, the User-Id of a message; nothing when the list has it no more.
  std::optional<KeyHolder> holder(std::string_view user) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::wire
