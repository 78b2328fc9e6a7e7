#include "app/serve/http_listen.h"

#include <cerrno>
#include <memory>

namespace allot::app {

int bind_http(httplib::Server* server, const aggregator::HttpAddress& address) {
  // The library's default is SO_REUSEPORT, with which a second server would silently share the port.
  const auto bound = std::make_shared<socket_t>(INVALID_SOCKET);
  server->set_socket_options([bound](socket_t socket) {
    *bound = socket;
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  errno = 0;
  int port = address.port;
  if (address.port == 0) {
    port = server->bind_to_any_port(address.host);
  } else if (!server->bind_to_port(address.host, address.port)) {
    port = -1;
  }
  if (port >= 0) {
    // The library lets five connections wait to be accepted; more that come at the same moment are reset or
    // try again after a second. A second listen only changes that number (capped by net.core.somaxconn).
    ::listen(*bound, aggregator::kMostWaitingConnections);
    return port;
  }
  aggregator::throw_cannot_bind(address, errno);
}

}  // namespace allot::app
