// Options of a run of the small model, and the fault of a spec that cannot be built of them.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "app/run/run_spec_builder.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"
#include "tests/message_of.h"

namespace allot::app {

// A fixture: the options say pairs with a total of 64.
class SmallRun : public ::testing::Test {
 protected:
  SmallRun() : small_(write_small_model(fresh_directory())) {
    run_.model = small_.model;
    run_.data = small_.train;
    run_.heldout = small_.heldout;
    run_.policy.name = "pairs";
    run_.policy.total = 64;
  }

  // What an error of this kind says; empty where there is none.
  template <class Expected>
  std::string fault() {
    return message_of<Expected>([&] { (void)build_run_spec(run_); });
  }

  SmallModel small_;
  RunOptions run_;
};

}  // namespace allot::app
