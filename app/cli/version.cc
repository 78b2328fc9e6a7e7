#include "app/cli/version.h"

namespace allot::app {

const char* version() {
  return ALLOT_VERSION;
}

}  // namespace allot::app
