// What a person wrote on a command line or in a file that it names, read by a library: what is wrong with it
// is a wrong usage, which starting again does not cure.
#pragma once

#include "base/error.h"

namespace allot::app {

// Returns what `read` returns. Throws UsageError in place of InvalidArgument and CorruptFile.
template <class Read>
decltype(auto) as_usage(Read read) {
  try {
    return read();
  } catch (const InvalidArgument& fault) {
    throw UsageError(fault.what());
  } catch (const CorruptFile& fault) {
    throw UsageError(fault.what());
  }
}

// The same for options that name data of a person, whose damage is no wrong usage: CorruptFile is passed on.
template <class Read>
decltype(auto) options_as_usage(Read read) {
  try {
    return read();
  } catch (const InvalidArgument& fault) {
    throw UsageError(fault.what());
  }
}

}  // namespace allot::app
