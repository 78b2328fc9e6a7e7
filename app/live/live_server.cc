#include "app/live/live_server.h"

#include <fmt/format.h>

#include <random>
#include <string_view>

#include "aggregator/metrics.h"
#include "app/cli/version.h"
#include "app/report/svg_chart.h"
#include "app/view/status_view.h"

namespace allot::app {

extern const std::string_view kPageHtml;
extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

namespace {

using aggregator::HttpResponse;
using aggregator::LiveState;

constexpr const char* kJson = "application/json; charset=utf-8";

// 128 random bits that nobody can guess.
std::string fresh_nonce() {
  std::random_device device;
  std::string nonce;
  for (int i = 0; i < 4; ++i) nonce += fmt::format("{:08x}", device());
  return nonce;
}

void replace_all(std::string* text, std::string_view what, std::string_view with) {
  for (size_t at = text->find(what); at != std::string::npos; at = text->find(what, at + with.size())) {
    text->replace(at, what.size(), with);
  }
}

// What either page may do.
std::string content_policy(const std::string& nonce) {
  return fmt::format(
      "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; img-src data:; base-uri 'none'; "
      "form-action 'none'",
      nonce);
}

std::string page_of(const std::string& nonce, const std::string& head, const std::string& state) {
  std::string page(kPageHtml);
  replace_all(&page, "{nonce}", nonce);
  replace_all(&page, "{head}", head);
  replace_all(&page, "{style}", chart_style() + std::string(kPageStyle));
  replace_all(&page, "{script}", kPageScript);
  // Last, and once: names that peers chose may look like the marks above.
  page.replace(page.find("{state}"), std::string_view("{state}").size(), state);
  return page;
}

HttpResponse page() {
  const std::string nonce = fresh_nonce();
  return {.content_type = "text/html; charset=utf-8",
          .body = live_page(nonce),
          .headers = {{"Content-Security-Policy",
                       content_policy(nonce) + "; connect-src 'self'; frame-ancestors 'none'"}}};
}

HttpResponse unavailable(const std::string& why) {
  return {.status = 503, .body = why + "\n"};
}

HttpResponse health(const LiveState& live) {
  if (!live.serving()) return {.body = "alive: " + live.why_not_ready() + "\n"};
  const Duration silence = live.silence(std::chrono::steady_clock::now());
  if (silence < kSilenceOfDeath) return {.body = "alive\n"};
  return unavailable(fmt::format("the service loop has not completed a round for {} ms; under {} is expected",
                                 silence.count(), kSilenceOfDeath.count()));
}

HttpResponse readiness(const LiveState& live) {
  const std::string why_not = live.why_not_ready();
  return why_not.empty() ? HttpResponse{.body = "ready\n"} : unavailable(why_not);
}

HttpResponse run_object(const LiveState& live) {
  const auto snapshot = live.snapshot();
  if (snapshot == nullptr) return unavailable(live.why_not_ready());
  const StatusContext context{.running = true,
                              .why_not_ready = live.why_not_ready(),
                              .at_ms = snapshot->at.time_since_epoch().count(),
                              .most_workers = kMostWorkersListed};
  return {.content_type = kJson, .body = json_line(to_json(snapshot->status, context)) + "\n"};
}

HttpResponse metrics(const LiveState& live, const std::filesystem::path& run_directory) {
  const auto snapshot = live.snapshot();
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = aggregator::prometheus_text(snapshot.get(), live.why_not_ready().empty(), version(),
                                              aggregator::read_process_figures(),
                                              aggregator::read_storage_figures(run_directory))};
}

}  // namespace

std::string live_page(const std::string& nonce) {
  return page_of(nonce, "", "");
}

std::string saved_page(const aggregator::Snapshot& snapshot) {
  const std::string nonce = fresh_nonce();
  std::string state = json_line(to_json(snapshot.status, {.running = false,
                                                          .aggregator = "none",
                                                          .why_not_ready = "no aggregator serves this run",
                                                          .at_ms = snapshot.at.time_since_epoch().count(),
                                                          .most_workers = kMostWorkersListed}));
  replace_all(&state, "<", "\\u003c");  // nothing in it ends the element
  return page_of(
      nonce,
      fmt::format("<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n", content_policy(nonce)),
      fmt::format("<script type=\"application/json\" id=\"state\">{}</script>\n", state));
}

aggregator::HttpServer::Handlers live_handlers(const std::shared_ptr<const LiveState>& live,
                                               const std::filesystem::path& run_directory) {
  aggregator::HttpServer::Handlers handlers = metrics_handlers(live, run_directory);
  handlers["/"] = page;
  handlers["/api/run"] = [live] { return run_object(*live); };
  return handlers;
}

aggregator::HttpServer::Handlers metrics_handlers(const std::shared_ptr<const LiveState>& live,
                                                  const std::filesystem::path& run_directory) {
  return {{"/healthz", [live] { return health(*live); }},
          {"/metrics", [live, run_directory] { return metrics(*live, run_directory); }},
          {"/readyz", [live] { return readiness(*live); }}};
}

}  // namespace allot::app
