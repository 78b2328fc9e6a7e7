#include "bench/kernel_profile.h"

#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace allot::bench {
namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kBufferAlignment = 8;

// The calls of CUPTI that are needed, from the library of the process.
struct Cupti {
  decltype(&cuptiActivityEnable) enable;
  decltype(&cuptiActivityDisable) disable;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
  decltype(&cuptiActivityFlushAll) flush_all;
  decltype(&cuptiActivityGetNextRecord) get_next_record;
  decltype(&cuptiGetResultString) get_result_string;

  void check(CUptiResult result, const char* what) const {
    if (result == CUPTI_SUCCESS) return;
    const char* reason = nullptr;
    get_result_string(result, &reason);
    throw Error(fmt::format("{}: {} (CUPTI error {})", what, reason != nullptr ? reason : "unknown",
                            static_cast<int>(result)));
  }
};

Cupti load_cupti() {
  constexpr const char* kLibrary = "libcupti.so.13";
  void* const library = ::dlopen(kLibrary, RTLD_NOW);
  if (library == nullptr) {
    throw NotFound(
        fmt::format("kernels cannot be profiled: {}; it is part of the CUDA toolkit", ::dlerror()));
  }
  const auto find = [&]<class Function>(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(library, name));
    if (function == nullptr) throw NotFound(fmt::format("{} has no {}", kLibrary, name));
  };
  Cupti cupti{};
  find(cupti.enable, "cuptiActivityEnable");
  find(cupti.disable, "cuptiActivityDisable");
  find(cupti.register_callbacks, "cuptiActivityRegisterCallbacks");
  find(cupti.flush_all, "cuptiActivityFlushAll");
  find(cupti.get_next_record, "cuptiActivityGetNextRecord");
  find(cupti.get_result_string, "cuptiGetResultString");
  return cupti;
}

const Cupti& cupti() {
  static const Cupti loaded = load_cupti();
  return loaded;
}

// What CUPTI's callbacks, which carry no argument, write to; they may come on a thread of CUPTI's.
struct Collected {
  std::mutex mutex;
  std::map<std::string, KernelTime> kernels;
  std::vector<KernelSpan> spans;

  void add(const std::string& name, uint64_t start, uint64_t end) {
    KernelTime& kernel = kernels[name];
    kernel.name = name;
    ++kernel.launches;
    kernel.seconds += 1e-9 * static_cast<double>(end - start);
    spans.push_back({start, end});
  }
};

Collected& collected() {
  static Collected all;
  return all;
}

void give_buffer(uint8_t** buffer, size_t* size, size_t* records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *records = 0;  // as many as fit
}

void take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  const std::unique_ptr<uint8_t, decltype(&std::free)> owner(buffer, std::free);
  const std::lock_guard lock(collected().mutex);
  CUpti_Activity* record = nullptr;
  while (cupti().get_next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto* const kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
        collected().add(short_kernel_name(kernel->name), kernel->start, kernel->end);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto* const copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
        collected().add("copy", copy->start, copy->end);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto* const clear = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
        collected().add("clear", clear->start, clear->end);
        break;
      }
      default:
        break;
    }
  }
}

}  // namespace

BusyTime busy_time(std::vector<KernelSpan> spans) {
  if (spans.empty()) return {};
  std::ranges::sort(spans, {}, &KernelSpan::start);
  uint64_t busy = 0, covered = 0;
  for (const KernelSpan& span : spans) {
    if (span.end <= covered) continue;
    busy += span.end - std::max(span.start, covered);
    covered = span.end;
  }
  return {.busy_seconds = 1e-9 * static_cast<double>(busy),
          .whole_seconds = 1e-9 * static_cast<double>(covered - spans.front().start)};
}

std::string short_kernel_name(const std::string& declared) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(declared.c_str(), nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? demangled.get() : declared;
  constexpr std::string_view kAnonymous = "(anonymous namespace)::";
  for (size_t at; (at = name.find(kAnonymous)) != std::string::npos;) name.erase(at, kAnonymous.size());
  if (const size_t arguments = name.find_first_of("<("); arguments != std::string::npos)
    name.erase(arguments);
  if (name.starts_with("void ")) name.erase(0, 5);
  return name;
}

KernelProfile profile_kernels(const std::function<void()>& work) {
  constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                           CUPTI_ACTIVITY_KIND_MEMSET};
  const Cupti& api = cupti();
  {
    const std::lock_guard lock(collected().mutex);
    collected().kernels.clear();
    collected().spans.clear();
  }
  api.check(api.register_callbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
  for (const CUpti_ActivityKind kind : kKinds) api.check(api.enable(kind), "cuptiActivityEnable");
  work();
  api.check(api.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  for (const CUpti_ActivityKind kind : kKinds) api.check(api.disable(kind), "cuptiActivityDisable");
  const std::lock_guard lock(collected().mutex);
  KernelProfile profile;
  for (const auto& [name, kernel] : collected().kernels) profile.kernels.push_back(kernel);
  std::ranges::sort(profile.kernels, std::ranges::greater(), &KernelTime::seconds);
  profile.time = busy_time(collected().spans);
  return profile;
}

}  // namespace allot::bench
