// Whose a worker is. Faults are counted for workers and for their holders, since whoever holds one key may
// give its workers any number of names.
#pragma once

#include <string_view>

namespace allot::aggregator {

// The holder of a worker is what stands before the first '/' of its name: the holder of its key where there
// are keys (Core::receive puts it there), else most often the worker itself.
inline std::string_view holder_of(std::string_view worker) {
  return worker.substr(0, worker.find('/'));
}

}  // namespace allot::aggregator
