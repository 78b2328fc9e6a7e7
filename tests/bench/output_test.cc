#include "bench/output.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include "base/json.h"

namespace allot::bench {
namespace {

const Table kTable({{"kernel", -8}, {"us", 6, 1}, {"runs", 6}});

TEST(Table, TextIsLeftAndNumbersAreRightWithTheDecimalsOfTheirColumn) {
  EXPECT_EQ(kTable.head(), "kernel      us  runs\n");
  EXPECT_EQ(kTable.line({"sys", 12.345, 40}), "sys       12.3    40\n");
}

TEST(Table, MissingNumbersAreDashes) {
  EXPECT_EQ(kTable.line({"sys", std::optional<double>(), 40}), "sys          -    40\n");
  EXPECT_EQ(kTable.line({"sys", std::numeric_limits<double>::quiet_NaN()}), "sys          -\n");
}

TEST(Table, ALineOfTooManyCellsIsRefused) {
  EXPECT_THROW((void)kTable.line({"sys", 1, 2, 3}), std::logic_error);
}

TEST(JsonLine, IsOneLineAndHasNullForNumbersThatAreNone) {
  const nlohmann::ordered_json row = {{"us", json_number(1.5)},
                                      {"least", json_number(std::nullopt)},
                                      {"most", json_number(std::numeric_limits<double>::infinity())},
                                      {"text", "broken \xff"}};
  EXPECT_EQ(json_line(row), "{\"us\":1.5,\"least\":null,\"most\":null,\"text\":\"broken \xef\xbf\xbd\"}\n");
}

}  // namespace
}  // namespace allot::bench
