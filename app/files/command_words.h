// A command of allot as the words that a result prints so that it can be made again.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation/conditions.h"

namespace allot::app {

// A field of the conditions that an option sets.
struct ConditionOption {
  std::string field;   // in the JSON of the conditions, as a JSON pointer: "/attention/score_budget"
  std::string option;  // "score-budget"
};

// Those of these conditions, which are in their full JSON form: task, prompt style, all that is there of
// attention and generation, and the seed. What follows from these has no option: the task's version and its
// stop rule.
std::vector<ConditionOption> condition_options(const nlohmann::ordered_json& conditions);

// What conditions know by its hash only, or not at all: where it lies.
struct ConditionPlaces {
  std::string model;
  std::string adapter;    // used where the conditions have one
  std::string data;       // learned on, or measured on where nothing was learned
  std::string task_file;  // used where the task is from a file
  std::string grader;     // command; empty where the task needs none
};

// A word as a POSIX shell reads it back: in quotes where it has other characters than letters, digits and
// _-./=:,+@%, or none.
std::string shell_word(std::string_view word);

class CommandWords {
 public:
  explicit CommandWords(std::string_view command) : list_{"allot", std::string(command)} {}

  template <class Value>
  void add(std::string_view option, const Value& value) {
    list_.push_back(fmt::format("--{}", option));
    list_.push_back(fmt::format("{}", value));
  }
  void flag(std::string_view option, bool given) {
    if (given) list_.push_back(fmt::format("--{}", option));
  }

  // Every option that gives these conditions, but how many questions are asked. What is left out by the JSON
  // form, and flags that are off, are said only where one of `sources` says otherwise: the conditions that
  // the command would take over from its schedule files. Throws InvalidArgument where a field that an option
  // sets is not known.
  void add(const evaluation::Conditions& conditions, const ConditionPlaces& places,
           std::span<const evaluation::Conditions> sources = {});

  const std::vector<std::string>& list() const { return list_; }
  // As one line for a POSIX shell.
  std::string line() const;

 private:
  std::vector<std::string> list_;
};

}  // namespace allot::app
