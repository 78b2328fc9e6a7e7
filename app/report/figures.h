// The figures of a run's report. Each is drawn twice for the page, for wide and for narrow screens, so that
// its text keeps its size, and once as a file of its own.
#pragma once

#include <string>
#include <vector>

#include "app/files/schedule_file.h"
#include "app/report/report.h"
#include "app/report/svg_chart.h"

namespace allot::app {

// Size of a drawing in pixels; narrow ones show fewer labels.
struct Shape {
  double width = 720;
  double height = 300;
  bool narrow() const { return width < 500; }
};

struct Figure {
  std::string name;   // of the plot file: "schedule"
  std::string title;  // heading
  std::string caption;
  std::string wide;  // <svg> elements
  std::string narrow;
  std::string file;
};

// Every figure for which the run holds data, in the order of the page.
std::vector<Figure> make_figures(const ReportInput& input, const EvaluationRecord& evaluation);

// The charts alone.
Chart accuracy_chart(const EvaluationRecord& evaluation, Shape shape);
Chart schedule_chart(const aggregator::RunData& run, Shape shape);
Chart learning_chart(const aggregator::RunData& run, const EvaluationRecord& evaluation, Shape shape);
// One of the numbers that the learner describes itself with, "entropy"; at least one version has it.
Chart number_chart(const aggregator::RunData& run, const std::string& name, Shape shape);
// What the learner expected of its schedule after each update, over the even one and by going on; at least
// one version has an outlook.
Chart outlook_chart(const aggregator::RunData& run, Shape shape);
// What the learner describes of each layer: shares of the budget, or others. At least one version.
Chart layers_chart(const aggregator::RunData& run, Shape shape);
// Accuracy of the learned and of the uniform schedules against their total, each with its interval as a band,
// and dense attention as a level.
Chart frontier_chart(const evaluation::Frontier& frontier, kernels::BudgetUnit unit, Shape shape);
Chart ablation_chart(const evaluation::Ablation& ablation, Shape shape);

// Class of a cell of the heat map, 0 to 8, for a share given as a multiple of the uniform share; 4 is "about
// uniform".
int share_class(double times_uniform);

}  // namespace allot::app
