#include "app/run/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "tests/app/run_command.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const model::CudaDevices kTwo = {
    .devices = {{.index = 0, .product = "NVIDIA H200", .memory_bytes = 150121545728},
                {.index = 1, .product = "NVIDIA L4", .memory_bytes = int64_t{22} << 30}},
    .reason = ""};
const model::CudaDevices kNone = {.devices = {}, .reason = "no driver"};

std::vector<std::string> names_of(const std::vector<Device>& devices) {
  std::vector<std::string> names;
  for (const Device& device : devices) names.push_back(device.name());
  return names;
}

// A program that answers every command line with `answer`.
std::string program_answering(const std::string& answer) {
  const auto file = fresh_directory() / "allot-model";
  write_file_atomically(file, "#!/bin/sh\ncat <<'END'\n" + answer + "\nEND\n");
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  return file.string();
}

TEST(Devices, AreDescribedByNameProductAndWholeGibibytes) {
  EXPECT_EQ(describe(kTwo.devices[0]), "cuda:0 NVIDIA H200, 139 GiB");
  EXPECT_EQ(describe(kTwo.devices[1]), "cuda:1 NVIDIA L4, 22 GiB");
  EXPECT_EQ(describe_cpu(16), "cpu, 16 cores");
  EXPECT_EQ(describe_cpu(1), "cpu, 1 core");
}

TEST(Devices, ChosenByAllAreTheCudaDevices) {
  EXPECT_EQ(names_of(choose_devices("all", [] { return kTwo; })),
            (std::vector<std::string>{"cuda:0", "cuda:1"}));
}

TEST(Devices, ChosenByAListKeepItsOrder) {
  EXPECT_EQ(names_of(choose_devices("cuda:1,cpu,cuda", [] { return kTwo; })),
            (std::vector<std::string>{"cuda:1", "cpu", "cuda:0"}));
}

TEST(Devices, ChosenWithoutCudaAskNobody) {
  const auto find = []() -> model::CudaDevices { throw Error("asked"); };
  EXPECT_EQ(names_of(choose_devices("cpu", find)), std::vector<std::string>{"cpu"});
  EXPECT_THAT([&] { (void)choose_devices("all", find); }, ThrowsMessage<Error>("asked"));
}

TEST(Devices, ThatAreNotHereAreRefusedWithWhatIsHere) {
  EXPECT_THAT(
      [] { (void)choose_devices("cuda:0,cuda:2", [] { return kTwo; }); },
      ThrowsMessage<Unsupported>(Names("cuda:2", "cuda:0 NVIDIA H200, 139 GiB", "cuda:1 NVIDIA L4, 22 GiB")));
  EXPECT_THAT([] { (void)choose_devices("cpu,cuda:0", [] { return kNone; }); },
              ThrowsMessage<Unsupported>(Names("cuda:0", "no driver")));
  EXPECT_THAT([] { (void)choose_devices("all", [] { return kNone; }); },
              ThrowsMessage<Unsupported>(Names("devices", "all", "no driver", "cpu")));
}

TEST(Devices, OfARangeAreAllHereAndDescribedTogether) {
  EXPECT_EQ(names_of(choose_devices("cpu,cuda:0-1", [] { return kTwo; })),
            (std::vector<std::string>{"cpu", "cuda:0-1"}));
  EXPECT_THAT([] { (void)choose_devices("cuda:1-2", [] { return kTwo; }); },
              ThrowsMessage<Unsupported>(Names("cuda:2", "cuda:1 NVIDIA L4, 22 GiB")));
  EXPECT_EQ(describe(parse_device("cuda:0-1"), [] { return kTwo; }),
            "cuda:0-1 (cuda:0 NVIDIA H200, 139 GiB; cuda:1 NVIDIA L4, 22 GiB)");
}

TEST(Devices, AreReadFromTheAnswerOfTheModelProgram) {
  const auto found = ask_for_cuda_devices(program_answering(
      R"({"devices": [{"device": "cpu", "cores": 16}, {"device": "cuda:0", "product": "NVIDIA H200",)"
      R"( "memory_bytes": 150121545728}], "no_cuda_because": ""})"));
  ASSERT_EQ(found.devices.size(), 1u);
  EXPECT_EQ(describe(found.devices[0]), "cuda:0 NVIDIA H200, 139 GiB");
  const auto none = ask_for_cuda_devices(
      program_answering(R"({"devices": [{"device": "cpu", "cores": 2}], "no_cuda_because": "no driver"})"));
  EXPECT_TRUE(none.devices.empty());
  EXPECT_EQ(none.reason, "no driver");
}

TEST(Devices, ThatCannotBeReadAreAnErrorShowingTheAnswer) {
  for (const char* answer : {"cpu", R"({"devices": 1})", R"({"devices": [{"device": "tpu"}]})"}) {
    const std::string program = program_answering(answer);
    EXPECT_THAT([&] { (void)ask_for_cuda_devices(program); },
                ThrowsMessage<Error>(Names("--json", "\"" + std::string(answer))));
  }
}

// What `allot devices --check NAME` prints with two devices of which `check` says how they are.
std::string check_output(const std::string& name, const CheckCudaDevice& check) {
  ::testing::internal::CaptureStdout();
  int code = 1;
  try {
    code = run_devices_command(
        std::vector<std::string>{"--check", name}, [] { return kTwo; }, check);
  } catch (...) {
    (void)::testing::internal::GetCapturedStdout();
    throw;
  }
  EXPECT_EQ(code, 0);
  return ::testing::internal::GetCapturedStdout();
}

TEST(Devices, CheckedSayThatTheyWork) {
  std::vector<int32_t> asked;
  const auto works = [&](int32_t index) {
    asked.push_back(index);
    return model::CudaCheck::kWorks;
  };
  EXPECT_EQ(check_output("cuda:1", works), "cuda:1 NVIDIA L4, 22 GiB: works\n");
  EXPECT_EQ(check_output("cuda", works), "cuda:0 NVIDIA H200, 139 GiB: works\n");
  EXPECT_THAT(check_output("cpu", works), HasSubstr(": works\n"));
  EXPECT_EQ(asked, (std::vector<int32_t>{1, 0}));
  EXPECT_THAT(check_output("cuda:0-1", works), HasSubstr("NVIDIA L4, 22 GiB): works\n"));
  EXPECT_EQ(asked, (std::vector<int32_t>{1, 0, 0, 1}));
}

TEST(Devices, CheckedWhileOthersHaveThemPassAndSaySo) {
  EXPECT_EQ(check_output("cuda:0", [](int32_t) { return model::CudaCheck::kTaken; }),
            "cuda:0 NVIDIA H200, 139 GiB: not checked, other processes have taken it\n");
  const auto second_is_taken = [](int32_t index) {
    return index == 1 ? model::CudaCheck::kTaken : model::CudaCheck::kWorks;
  };
  EXPECT_THAT(check_output("cuda:0-1", second_is_taken),
              HasSubstr(": not checked, other processes have taken cuda:1\n"));
}

TEST(Devices, CheckedFailWhereTheyAreBrokenOrNotThereOrNoDevices) {
  const auto broken = [](int32_t) -> model::CudaCheck { throw CudaError("cudaMemset: unspecified failure"); };
  EXPECT_THAT([&] { (void)check_output("cuda:0", broken); },
              ThrowsMessage<CudaError>("cudaMemset: unspecified failure"));
  EXPECT_THAT([&] { (void)check_output("cuda:2", broken); }, ThrowsMessage<Unsupported>(Names("cuda:2")));
  EXPECT_THAT([&] { (void)check_output("gpu", broken); }, ThrowsMessage<UsageError>(Names("gpu")));
}

}  // namespace
}  // namespace allot::app
