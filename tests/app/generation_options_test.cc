#include "app/run/generation_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/run/run_spec_builder.h"
#include "base/error.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"
#include "wire/messages.pb.h"

namespace allot::app {
namespace {

using evaluation::Generation;
using evaluation::PromptStyle;
using evaluation::StopRule;

struct Row {
  PromptStyle style;
  Generation defaults;
};

// S2ANTA paper, Appendix O, for the chat styles; the limits on length are those of section 4.2 of the paper
// before it.
const Row kRows[] = {
    {PromptStyle::kBoxed,
     {.temperature = 0.6, .top_p = 0.95, .repetition_penalty = 1.1, .max_new_tokens = 4096}},
    {PromptStyle::kDeepseekChat,
     {.temperature = 0.6, .top_p = 0.95, .repetition_penalty = 1.1, .max_new_tokens = 4096}},
    {PromptStyle::kChat,
     {.temperature = 0.6,
      .top_p = 0.95,
      .repetition_penalty = 1.1,
      .max_new_tokens = 4096,
      .stop = StopRule::kEos}},
    {PromptStyle::kLlamaChat,
     {.temperature = 0.6,
      .top_p = 0.95,
      .repetition_penalty = 1.1,
      .max_new_tokens = 1024,
      .stop = StopRule::kEos}},
    {PromptStyle::kPlain, {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .max_new_tokens = 256}},
};

TEST(GenerationOptions, WhatIsNotGivenComesFromTheTaskAndItsPromptStyle) {
  for (const Row& row : kRows) {
    const auto task = evaluation::make_task("gsm8k", row.style);
    EXPECT_EQ(resolve({}, *task), row.defaults) << evaluation::name(row.style);
    Generation changed = row.defaults;
    changed.temperature = 0.25;
    changed.dtype = kernels::DType::kFloat32;
    GenerationOptions options;
    options.dtype = "float32";
    options.temperature = 0.25;
    EXPECT_EQ(resolve(options, *task), changed);
    changed.max_new_tokens = 7;
    changed.top_p = 0.5;
    changed.repetition_penalty = 2;
    EXPECT_EQ(resolve(options_of(changed), *task), changed);
  }
  EXPECT_EQ(std::size(kRows), evaluation::prompt_style_names().size());
}

TEST(GenerationOptions, ARunHasTheDefaultsOfItsPromptStyle) {
  const SmallModel small = write_small_model(fresh_directory());
  RunOptions run;
  run.model = small.model;
  run.data = small.train;
  run.heldout = small.heldout;
  run.policy.total = 64;
  for (const Row& row : kRows) {
    run.prompt = std::string(evaluation::name(row.style));
    const wire::GenerationSpec spec = build_run_spec(run).generation();
    EXPECT_EQ(spec.temperature(), row.defaults.temperature) << run.prompt;
    EXPECT_EQ(spec.top_p(), row.defaults.top_p) << run.prompt;
    EXPECT_EQ(spec.repetition_penalty(), row.defaults.repetition_penalty) << run.prompt;
    EXPECT_EQ(spec.max_new_tokens(), row.defaults.max_new_tokens) << run.prompt;
    EXPECT_EQ(spec.dtype(), kernels::name(row.defaults.dtype)) << run.prompt;
  }
}

TEST(GenerationOptions, HelpNamesTheDefaultUnderEachPromptStyle) {
  OptionSet set("x", "summary", "example");
  GenerationOptions options;
  declare_generation_options(&set, &options, "gsm8k");
  std::string help;  // as one line
  for (const char c : set.help())
    if (c != '\n' && !(c == ' ' && help.ends_with(' '))) help += c;
  EXPECT_THAT(help, testing::HasSubstr("4096 (boxed, deepseek-chat, chat), 1024 (llama-chat), 256 (plain)"));
  EXPECT_THAT(help, testing::HasSubstr("0.6 (boxed, llama-chat, deepseek-chat, chat), 0 (plain)"));
}

TEST(GenerationOptions, ValuesOutOfRangeAreRefused) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--temperature", "-1"},
                                                {"--top-p", "0"},
                                                {"--repetition-penalty", "0"},
                                                {"--max-new-tokens", "0"},
                                                {"--dtype", "int8"}}) {
    OptionSet set("x", "summary", "example");
    GenerationOptions options;
    declare_generation_options(&set, &options, "gsm8k");
    EXPECT_THROW((void)set.parse(words), UsageError) << words[0];
  }
}

}  // namespace
}  // namespace allot::app
