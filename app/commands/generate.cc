// allot generate: a model's replies to prompts, under dense attention or under a schedule.
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>

#include "app/cli/command.h"
#include "app/cli/stop_signal.h"
#include "app/scoring/prompt_source.h"
#include "app/scoring/reply_engine.h"
#include "base/error.h"
#include "base/json.h"
#include "episode/finish.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;

struct GenerateOptions : ReplyOptions {
  std::optional<std::string> prompt;
  std::string file;
  std::string field;
  std::string schedule;
  std::string system;
  bool json = false;
};

std::vector<GivenPrompt> prompts_of(const GenerateOptions& options) {
  if (options.prompt) {
    if (!options.file.empty() || !options.field.empty())
      throw UsageError("--prompt is the whole input; --file and --field belong to inputs of a prompt a line");
    return {{.line = 0, .text = *options.prompt}};
  }
  if (!options.file.empty() && options.file != "-") {
    std::ifstream in(options.file, std::ios::binary);
    if (!in) throw NotFound("--file " + options.file + " cannot be read");
    return read_prompts(in, options.file, options.field);
  }
  if (options.file.empty() && ::isatty(STDIN_FILENO) == 1)
    throw UsageError("no prompt: give --prompt TEXT, --file PATH, or a prompt a line on stdin");
  return read_prompts(std::cin, "stdin", options.field);
}

evaluation::Prompt styled(const GivenPrompt& given, const ReplyPlan& plan,
                          worker::EngineGenerator* generator) {
  evaluation::Prompt prompt;
  prompt.id = given.line;
  prompt.question = given.line;
  // The coordinates that eval gives to the question of the same line.
  prompt.key = {.run_seed = plan.conditions.seed, .sampling_seed = 0};
  prompt.text = given.text;
  if (plan.task)
    prompt.text = plan.task->prompt({.id = given.line, .text = given.text, .solution = "", .answer = ""});
  prompt.samples = plan.schedules.front().samples_of_prompt(std::ssize(generator->tokenised(prompt.text)));
  if (!plan.task) return prompt;
  prompt.completing = plan.task->completing_characters();
  if (!prompt.completing.empty())
    prompt.complete = [task = plan.task.get()](std::string_view reply) { return task->complete(reply); };
  return prompt;
}

const char* name(Finish finish) {
  switch (finish) {
    case Finish::kEos:
      return "eos";
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
  }
  return "";
}

std::string row(const GivenPrompt& given, const evaluation::Reply& reply) {
  const Json json = {{"line", given.line},
                     {"prompt", given.text},
                     {"reply", reply.text},
                     {"finish", name(reply.finish)},
                     {"prompt_tokens", reply.prompt_tokens},
                     {"output_tokens", reply.output_tokens}};
  // A reply may end within a character.
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// Replies to one prompt, each piece of it on stdout as it comes.
int stream(worker::EngineGenerator* generator, evaluation::Prompt prompt) {
  size_t shown = 0;
  prompt.on_text = [&shown](const std::string& text) {
    std::cout << text << std::flush;
    shown += text.size();
  };
  generator->submit(prompt);
  const auto& stop = watch_stop_signals();
  while (!stop.load()) {
    const std::vector<evaluation::Reply> replies = generator->step();
    if (replies.empty()) continue;
    const evaluation::Reply& reply = replies.front();
    std::cout << std::string_view(reply.text).substr(std::min(shown, reply.text.size())) << std::endl;
    if (reply.finish == Finish::kLength)
      std::cerr << fmt::format("cut off after {} new tokens\n", reply.output_tokens);
    return 0;
  }
  std::cout << std::endl;
  throw Error("stopped before the reply ended");
}

// Replies to all prompts, decoded together: a JSON object a line, in the prompts' order, each as soon as
// those before it are there.
int answer_all(worker::EngineGenerator* generator, std::span<const GivenPrompt> given,
               const ReplyPlan& plan) {
  std::map<uint64_t, std::string> rows;  // by line, while earlier ones are missing
  std::deque<const GivenPrompt*> order;
  std::map<uint64_t, const GivenPrompt*> places;
  int status = 0;
  for (const GivenPrompt& one : given) {
    order.push_back(&one);
    places[one.line] = &one;
    try {
      generator->submit(styled(one, plan, generator));
    } catch (const InvalidArgument& error) {
      status = 1;
      rows[one.line] = Json({{"line", one.line}, {"prompt", one.text}, {"error", error.what()}})
                           .dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
    }
  }
  const auto& stop = watch_stop_signals();
  while (true) {
    while (!order.empty() && rows.contains(order.front()->line)) {
      std::cout << rows.extract(order.front()->line).mapped() << std::endl;
      order.pop_front();
    }
    if (order.empty()) return status;
    if (stop.load())
      throw Error(fmt::format("stopped after {} of {} replies", given.size() - order.size(), given.size()));
    for (const evaluation::Reply& reply : generator->step())
      rows[reply.id] = row(*places.at(reply.id), reply);
  }
}

}  // namespace

int run_generate(std::span<const std::string> arguments) {
  GenerateOptions options;
  options.bands = Bands::kFollowed;
  std::string prompt;
  OptionSet set(
      "generate", "reply to a prompt, or to a prompt of each line, under dense attention or under a schedule",
      "allot generate --model assets/tiny-gsm --schedule uniform:16 --prompt \"Ann has 3 apples and buys 4 "
      "more. How many apples does she have?\"");
  declare_reply_options(&set, &options, PromptStyles::kOfTaskOrNone);
  set.text("prompt", &prompt, "TEXT", "the prompt; its reply is written to stdout as it comes");
  set.text("file", &options.file, "PATH",
           "prompts, one a line; - is stdin, which is also read without --prompt and --file");
  set.text("field", &options.field, "NAME",
           "lines are JSON objects, and the prompt is the string of this name");
  set.text("schedule", &options.schedule, "SCHEDULE",
           fmt::format("{}; default config where there is one, else dense", kScheduleForms).c_str());
  set.suggest("schedule", {"dense", "config"});
  set.text("system", &options.system, "TEXT", "the system message before each prompt that is a message");
  declare_executed_out(&set, &options);
  set.flag("json", &options.json, "a JSON object for a single prompt, too, as for the lines of a file");
  ReplyPlan plan;
  set.resolve_with([&] {
    if (options.schedule.empty()) options.schedule = usual_schedule(options.model);
    plan = plan_replies(std::array{options.schedule}, std::nullopt, &options, &set);
    if (!options.system.empty() &&
        prompt_form(plan.conditions.task.prompt_style) != model::PromptForm::kMessage)
      throw UsageError(
          fmt::format("--system is a message of a chat, and prompts of --prompt-style {} are none; "
                      "message and chat have messages",
                      options.prompt_style));
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (set.given("prompt")) options.prompt = prompt;

  const std::vector<GivenPrompt> given = prompts_of(options);
  std::cerr << describe(plan);
  worker::EngineGenerator generator(options.model, engine_options(options, plan.conditions),
                                    generation_limits(plan), prompt_form(plan.conditions.task.prompt_style),
                                    options.system);
  const int status = options.prompt && !options.json
                         ? stream(&generator, styled(given.front(), plan, &generator))
                         : answer_all(&generator, given, plan);
  write_executed(plan, options, generator.engine());
  return status;
}

}  // namespace allot::app
