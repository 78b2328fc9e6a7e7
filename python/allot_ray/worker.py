"""One worker as a Ray task."""

from __future__ import annotations

from dataclasses import dataclass

import ray

from allot_ray.plan import WorkerPlan
from allot_ray.process import ChildProcess, Ending


@dataclass(frozen=True)
class WorkerEnd:
    """How a worker's process ended, on the node `node`."""

    ending: Ending
    code: int
    node: str


def worker_command(allot: str, plan: WorkerPlan, endpoint: str, name: str) -> list[str]:
    return [
        allot, "worker", "--connect", endpoint, "--name", name, "--device", plan.device(), "--exit-when-finished",
        *plan.options,
    ]  # fmt: skip


# Ray repeats a task whose node or process is gone as often as it takes: preemption is no failure. What the process itself
# reports by its exit status is a value that the caller judges (launch.py).
@ray.remote(max_retries=-1, retry_exceptions=False)
def run_worker(allot: str, plan: WorkerPlan, endpoint: str, name: str) -> WorkerEnd:
    """Runs the worker `name` until it ends. A repeated task has the same name, so that the aggregator ends the leases of the
    lost process as soon as the new one says Hello instead of waiting for their deadline."""
    with ChildProcess(worker_command(allot, plan, endpoint, name), plan.drain_seconds) as process:
        code = process.wait()
    return WorkerEnd(Ending.of(code), code, ray.get_runtime_context().get_node_id())
