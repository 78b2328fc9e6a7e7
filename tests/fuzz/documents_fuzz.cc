// The readers of small JSON documents. The first byte of an input says which: a model's config.json, its
// generation_config.json, a schedule.json or a run's spec.json.
#include "app/files/schedule_file.h"
#include "base/error.h"
#include "model/model_config.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::fuzz {
namespace {

struct Directory {
  Directory() {
    links.link("config.json", config);
    links.link("generation_config.json", generation);
  }
  MemoryFile config;
  MemoryFile generation;
  LinkDirectory links;
};

void read_schedule(std::string_view text) {
  const app::ScheduleFile schedule = app::parse_schedule_file(text, "input");
  const std::string again = app::format_schedule_file(schedule);
  require(app::parse_schedule_file(again, "input") == schedule,
          "a schedule.json that was read can be written");
}

void read_spec(std::string_view text) {
  const wire::RunSpec spec = wire::spec_from_json(text, "input");
  require(wire::differences(wire::spec_from_json(wire::to_json(spec), "input"), spec).empty(),
          "a spec.json that was read can be written");
}

}  // namespace
}  // namespace allot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace allot::fuzz;
  static Directory directory;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0]) {
      case 'c':
        directory.config.set(text);
        (void)allot::model::read_model_config(directory.links.path());
        break;
      case 'g':
        directory.config.set("{}");
        directory.generation.set(text);
        (void)allot::model::read_generation_defaults(directory.links.path());
        break;
      case 's':
        read_schedule(text);
        break;
      case 'r':
        read_spec(text);
        break;
    }
  } catch (const allot::Error&) {
    // Refused with a typed error.
  }
  return 0;
}
