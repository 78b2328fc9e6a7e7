"""Starts an allot run on a Ray cluster: one aggregator and any number of workers, as processes of Ray tasks.

Placement, restarts and scaling are Ray's; which episodes run is allot's. docs/launchers.md shows how to use it.

    from allot_ray import AggregatorPlan, LaunchPlan, WorkerPlan, launch
    result = launch(LaunchPlan(aggregator=AggregatorPlan(run=..., config=...), workers=WorkerPlan(count=8)))
"""

from allot_ray.launch import LaunchFailed, RunResult, launch
from allot_ray.plan import AggregatorPlan, LaunchPlan, WorkerPlan

__all__ = ["AggregatorPlan", "LaunchFailed", "LaunchPlan", "RunResult", "WorkerPlan", "launch"]
