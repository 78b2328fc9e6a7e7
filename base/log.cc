#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "base/error.h"

namespace allot {
namespace {

constexpr const char* kTime = "%Y-%m-%dT%H:%M:%S.%e%z";
bool as_json = false;

// The pattern's flag for a message as JSON text.
class JsonMessage : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& to) override {
    const std::string text = json_text({message.payload.data(), message.payload.size()});
    to.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessage>();
  }
};

std::unique_ptr<spdlog::pattern_formatter> json_formatter() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<JsonMessage>('*').set_pattern(std::string(R"({"time":")") + kTime +
                                                    R"(","level":"%l","name":"%n","message":%*})");
  return formatter;
}

// Length of the UTF-8 character that `text` begins with; 0 where it begins with none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  const size_t length = byte(0) < 0x80   ? 1
                        : byte(0) < 0xC2 ? 0
                        : byte(0) < 0xE0 ? 2
                        : byte(0) < 0xF0 ? 3
                        : byte(0) < 0xF5 ? 4
                                         : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t at = 1; at < length; ++at)
    if ((byte(at) & 0xC0) != 0x80) return 0;
  // Longer than needed, a surrogate, or beyond the last character.
  const bool wrong = (byte(0) == 0xE0 && byte(1) < 0xA0) || (byte(0) == 0xED && byte(1) > 0x9F) ||
                     (byte(0) == 0xF0 && byte(1) < 0x90) || (byte(0) == 0xF4 && byte(1) > 0x8F);
  return wrong ? 0 : length;
}

}  // namespace

std::string json_text(std::string_view text) {
  std::string json = "\"";
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0) {
      json += "\xEF\xBF\xBD";
    } else if (c == '"' || c == '\\') {
      json += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      json +=
          {'\\', 'u', '0', '0', kDigits[static_cast<size_t>(c) >> 4], kDigits[static_cast<size_t>(c) & 15]};
    } else {
      json += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return json + '"';
}

void set_up_logging(const std::string& name, const std::string& level) {
  const auto parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") {
    throw UsageError("log-level '" + level + "' is not known; use trace, debug, info, warn, error or off");
  }
  auto logger = spdlog::stderr_color_mt(name);
  logger->set_pattern(std::string(kTime) + " %^%-5l%$ %n: %v");
  logger->set_level(parsed);
  spdlog::set_default_logger(std::move(logger));
}

void log_as_json() {
  as_json = true;
  spdlog::default_logger()->set_formatter(json_formatter());
}

void report_error(std::string_view name, std::string_view text) {
  if (!as_json) {
    std::cerr << "allot " << name << ": " << text << std::endl;
    return;
  }
  const std::string logger = "allot " + std::string(name);
  spdlog::memory_buf_t line;
  json_formatter()->format(
      spdlog::details::log_msg(logger, spdlog::level::err, spdlog::string_view_t(text.data(), text.size())),
      line);
  std::cerr.write(line.data(), static_cast<std::streamsize>(line.size())).flush();
}

}  // namespace allot
