#include "wire/authenticator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "base/error.h"
#include "base/file_state.h"
#include "base/log.h"
#include "wire/socket_event.h"

namespace allot::wire {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;
using namespace std::chrono_literals;

constexpr const char* kZapAddress = "inproc://zeromq.zap.01";  // given by RFC 27
constexpr const char* kMonitorAddress = "inproc://allot.connections";
constexpr const char* kStopAddress = "inproc://allot.stop";
// The allow-list's file is checked for changes this often, and at each connection.
constexpr auto kLookEvery = 1s;
// Refused connections are logged at most once in this time, in one line with their number.
constexpr auto kTellEvery = 10s;
// Each connection asks through a pipe that ZeroMQ keeps until the connection ends: about 10 KiB each way that
// are used only once. Closing this end frees both ways. Therefore a new socket takes over after this many
// answers, and the old one is closed when nothing has asked it for so long that its last answers have
// certainly been read: a question to a closed socket would have no answer, and its connection wait for the
// end of the time for handshakes.
constexpr int kAnswersOfOneSocket = 64;
constexpr auto kAnswersAreReadIn = 200ms;

// All frames of a message that has already arrived.
std::vector<zmq::message_t> receive_all(zmq::socket_t& socket) {
  std::vector<zmq::message_t> frames;
  while (true) {
    zmq::message_t frame;
    if (!socket.recv(frame, zmq::recv_flags::dontwait)) return frames;
    const bool more = frame.more();
    frames.push_back(std::move(frame));
    if (!more) return frames;
  }
}

}  // namespace

struct Authenticator::Impl {
  Impl(zmq::context_t& given, std::optional<std::filesystem::path> file, int limit)
      : allow_list_file(std::move(file)),
        max_connections(limit),
        context(&given),
        requests(open_requests()),
        connections(*context, zmq::socket_type::pair),
        stop_here(*context, zmq::socket_type::pair),
        stop_there(*context, zmq::socket_type::pair) {
    if (allow_list_file) {
      file_state = state_of(*allow_list_file);
      allow_list = read_allow_list(*allow_list_file);
      spdlog::log(allow_list.empty() ? spdlog::level::warn : spdlog::level::info,
                  "{} keys may connect, by {}", allow_list.size(), allow_list_file->string());
    }
    for (zmq::socket_t* socket : {&connections, &stop_here, &stop_there})
      socket->set(zmq::sockopt::linger, 0);
    requests.bind(kZapAddress);
    stop_here.bind(kStopAddress);
    stop_there.connect(kStopAddress);
  }

  void serve() {
    while (true) {
      try {
        // The last socket exists only for a moment after a change of sockets.
        std::array<zmq::pollitem_t, 4> items = {{{stop_here.handle(), 0, ZMQ_POLLIN, 0},
                                                 {connections.handle(), 0, ZMQ_POLLIN, 0},
                                                 {requests.handle(), 0, ZMQ_POLLIN, 0},
                                                 {earlier_requests.handle(), 0, ZMQ_POLLIN, 0}}};
        const size_t num_items = items.size() - (earlier_requests ? 0 : 1);
        zmq::poll(items.data(), num_items,
                  std::chrono::milliseconds(earlier_requests ? kAnswersAreReadIn : kLookEvery));
        if ((items[0].revents & ZMQ_POLLIN) != 0) return;
        // Always, since the sockets were not looked at in one moment: a connection whose question is here has
        // been accepted, though the event of that came after the look.
        count();
        look_at_file();
        if ((items[2].revents & ZMQ_POLLIN) != 0) answer(requests);
        if ((items[3].revents & ZMQ_POLLIN) != 0) {
          answer(earlier_requests);
          earlier_asked = std::chrono::steady_clock::now();
        }
        free_answered();
        tell_refused();
      } catch (const zmq::error_t& error) {
        if (error.num() == ETERM) return;
        if (error.num() != EINTR) spdlog::error("authentication: {}", error.what());
      } catch (const std::exception& error) {
        spdlog::error("authentication: {}", error.what());
      }
    }
  }

  // Each event of the socket is two frames.
  void count() {
    while (true) {
      const std::vector<zmq::message_t> frames = receive_all(connections);
      if (frames.empty()) return;
      const std::optional<SocketEvent> event = socket_event(frames[0].to_string_view());
      if (!event) continue;
      if (event->number == ZMQ_EVENT_ACCEPTED) ++num_connections;
      if (event->number == ZMQ_EVENT_DISCONNECTED) num_connections = std::max(0, num_connections - 1);
      // Such a peer is ended by ZeroMQ and never asked about. EFAULT: nobody could be asked.
      if ((event->number == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL && event->value != EFAULT) ||
          event->number == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
        refuse({"400", "the handshake failed: another server's key, or none"});
    }
  }

  void look_at_file() {
    if (!allow_list_file) return;
    const FileState now = state_of(*allow_list_file);
    if (now == file_state) return;
    file_state = now;
    try {
      AllowList list = read_allow_list(*allow_list_file);
      spdlog::info("{} was changed: {} keys may connect now", allow_list_file->string(), list.size());
      const std::lock_guard lock(mutex);
      allow_list = std::move(list);
    } catch (const Error& error) {
      spdlog::error("the changed allow-list cannot be used, the old one stays in force: {}", error.what());
    }
  }

  struct Verdict {
    const char* code;  // 200 come in, 400 no, 500 not now
    const char* text;
    std::string user = "";
  };

  // RFC 27: version, request id, domain, address, identity, mechanism, then what the mechanism brings.
  Verdict judge(const std::vector<zmq::message_t>& request) {
    if (request.size() < 6 || request[0].to_string_view() != "1.0") return {"500", "not ZAP 1.0"};
    if (num_connections > max_connections) return refuse({"500", "too many connections"});
    const std::string_view mechanism = request[5].to_string_view();
    if (mechanism != "CURVE" || request.size() != 7 || request[6].size() != kKeyBytes)
      return refuse({"400", "a key is needed"});
    PublicKey key;
    std::memcpy(key.bytes.data(), request[6].data(), kKeyBytes);
    const std::lock_guard lock(mutex);
    if (!allow_list.contains(key)) {
      last_unknown = key.text();
      return refuse({"400", "the key is not on the allow-list"});
    }
    return {"200", "OK", key.text()};
  }

  Verdict refuse(Verdict verdict) {
    ++num_refused;
    ++refused_untaken;
    last_reason = verdict.text;
    return verdict;
  }

  zmq::socket_t open_requests() {
    zmq::socket_t socket(*context, zmq::socket_type::rep);
    socket.set(zmq::sockopt::linger, 0);
    return socket;
  }

  // Ends the pipes of connections that have been answered (kAnswersOfOneSocket). A connection that asks after
  // the old socket is unbound and before the new one is bound is ended, and ZeroMQ makes it again a moment
  // later.
  void free_answered() {
    const SteadyTime now = std::chrono::steady_clock::now();
    if (earlier_requests) {
      if (now - earlier_asked >= kAnswersAreReadIn) earlier_requests.close();
    } else if (num_answered >= kAnswersOfOneSocket) {
      requests.unbind(kZapAddress);
      earlier_requests = std::exchange(requests, open_requests());
      requests.bind(kZapAddress);
      earlier_asked = now;
      num_answered = 0;
    }
  }

  void answer(zmq::socket_t& socket) {
    const std::vector<zmq::message_t> request = receive_all(socket);
    if (request.empty()) return;
    ++num_answered;
    const Verdict verdict = judge(request);
    const std::string id = request.size() > 1 ? request[1].to_string() : "";
    for (const std::string_view frame :
         {std::string_view("1.0"), std::string_view(id), std::string_view(verdict.code),
          std::string_view(verdict.text), std::string_view(verdict.user)}) {
      socket.send(zmq::buffer(frame), zmq::send_flags::sndmore);
    }
    socket.send(zmq::message_t(), zmq::send_flags::none);  // no metadata of our own
  }

  void tell_refused() {
    const SteadyTime now = std::chrono::steady_clock::now();
    if (num_refused == 0 || now < next_telling) return;
    next_telling = now + kTellEvery;
    spdlog::warn("refused {} connections; the last one: {}{}", num_refused, last_reason,
                 last_unknown.empty() ? "" : " (" + last_unknown + ")");
    num_refused = 0;
    last_unknown.clear();
  }

  const std::optional<std::filesystem::path> allow_list_file;
  const int max_connections;
  zmq::context_t* context;
  zmq::socket_t requests;          // from the socket's I/O thread
  zmq::socket_t earlier_requests;  // the socket used before it; null most of the time
  int num_answered = 0;            // answered by `requests`
  SteadyTime earlier_asked;        // when it was last, or its successor was opened
  zmq::socket_t connections;       // events of the socket
  zmq::socket_t stop_here, stop_there;
  mutable std::mutex mutex;
  AllowList allow_list;  // under `mutex`
  FileState file_state;
  int num_connections = 0;
  int64_t num_refused = 0;  // since the last line about them
  std::atomic<int64_t> refused_untaken = 0;
  std::string last_reason;
  std::string last_unknown;
  SteadyTime next_telling;
  std::thread thread;
};

Authenticator::Authenticator(zmq::context_t& context, std::optional<std::filesystem::path> allow_list,
                             int max_connections)
    : impl_(std::make_unique<Impl>(context, std::move(allow_list), max_connections)) {}

void Authenticator::watch(zmq::socket_t& socket) {
  // Without keys there is nothing to ask. Asking would cost each connection a pipe (see
  // kAnswersOfOneSocket), all at once when thousands come back after a restart.
  if (!impl_->allow_list_file) return;
  socket.set(zmq::sockopt::zap_domain, "allot");
  // Else a connection that finds nobody to ask (free_answered) would come in without being asked about, and
  // all that it sends would be dropped for want of a name.
  constexpr int kEnforceDomain = 93;  // ZMQ_ZAP_ENFORCE_DOMAIN, which zmq.h names in draft builds only
  constexpr int kOn = 1;
  if (::zmq_setsockopt(socket.handle(), kEnforceDomain, &kOn, sizeof kOn) != 0) {
    throw NetworkError(std::string("this libzmq cannot refuse connections that nobody was asked about: ") +
                       ::zmq_strerror(errno));
  }
  constexpr int kEvents = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
  if (::zmq_socket_monitor(socket.handle(), kMonitorAddress, kEvents) != 0) {
    throw NetworkError(std::string("connections cannot be counted: ") + ::zmq_strerror(errno));
  }
  impl_->connections.connect(kMonitorAddress);
  impl_->thread = std::thread([this] { impl_->serve(); });
}

Authenticator::~Authenticator() {
  if (!impl_->thread.joinable()) return;
  impl_->stop_there.send(zmq::message_t(), zmq::send_flags::none);
  impl_->thread.join();
}

int64_t Authenticator::take_refused() {
  return impl_->refused_untaken.exchange(0);
}

std::optional<KeyHolder> Authenticator::holder(std::string_view user) const {
  if (!impl_->allow_list_file) return KeyHolder{"", Role::kOperator};
  PublicKey key;
  try {
    key = parse_public_key(user, "a message's User-Id");
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->allow_list.find(key);
  if (found == impl_->allow_list.end()) return std::nullopt;
  return found->second;
}

}  // namespace allot::wire
