"""A whole run on a Ray cluster: starts the aggregator, keeps the wanted number of workers alive, returns what was learned."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import ray
from ray.exceptions import RayError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from allot_ray.aggregator import DRAIN_SECONDS, LINGER_SECONDS, AggregatorEnd, AggregatorHost
from allot_ray.plan import AggregatorPlan, LaunchPlan, WorkerPlan
from allot_ray.process import Ending
from allot_ray.worker import WorkerEnd, run_worker

log = logging.getLogger("allot_ray")


class LaunchFailed(RuntimeError):
    """The run did not finish. Its directory is intact: launching again continues it."""


@dataclass(frozen=True)
class RunResult:
    run: str
    schedule_path: str
    schedule: dict[str, Any]  # content of schedule.json
    status: dict[str, Any]  # what `allot status --json` says
    workers_started: int  # including those that replaced others; repeats by Ray itself are not seen here


@dataclass
class Place:
    """One of the wanted workers: the task that fills it now, or the time when the next one may."""

    name: str
    task: ray.ObjectRef[WorkerEnd] | None = None
    started: float = 0
    not_before: float = 0
    failures: int = 0
    given_up: str = ""  # why, when no worker is started here any more


@dataclass
class Crew:
    """The wanted workers. Every empty place is a task that Ray has yet to place, which is what its autoscaler goes by."""

    allot: str
    plan: WorkerPlan
    retry_seconds: float
    endpoint: str
    started: int = 0
    places: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.places = [Place(f"ray-{number}") for number in range(1, self.plan.count + 1)]

    def tasks(self) -> list[ray.ObjectRef[WorkerEnd]]:
        return [place.task for place in self.places if place.task is not None]

    def fill(self) -> None:
        now = time.monotonic()
        for place in self.places:
            if place.task is not None or place.given_up or now < place.not_before:
                continue
            place.task = run_worker.options(
                name=f"allot worker {place.name}",
                num_cpus=self.plan.cpus,
                num_gpus=self.plan.gpus,
                resources=self.plan.resources,
            ).remote(self.allot, self.plan, self.endpoint, place.name)
            place.started = now
            self.started += 1

    def collect(self) -> None:
        """Empties the places whose workers ended, and judges how they ended."""
        if not self.tasks():
            return
        ended, _ = ray.wait(self.tasks(), num_returns=len(self.tasks()), timeout=0)
        for place in self.places:
            if place.task in ended:
                task, place.task = place.task, None
                self._judge(place, task)

    def _judge(self, place: Place, task: ray.ObjectRef[WorkerEnd]) -> None:
        try:
            end = ray.get(task)
        except TaskCancelledError:
            return
        except RayError as error:
            self._failed(place, str(error).strip().splitlines()[-1])
            return
        if end.ending is Ending.HOPELESS:
            place.given_up = f"worker {place.name} ended with status {end.code} on node {end.node}, which no retry cures"
            log.error("%s; its message is in the log of that node", place.given_up)
        elif end.ending is Ending.FAILED:
            self._failed(place, f"status {end.code} on node {end.node}")
        else:
            # Drained, since its node is to go: no failure. Not at once, so that the node can be marked as leaving. Or the run
            # is finished, and its aggregator still waits for other workers: none is started for it in vain.
            place.not_before = time.monotonic() + max(self.retry_seconds, LINGER_SECONDS)

    def _failed(self, place: Place, reason: str) -> None:
        now = time.monotonic()
        place.failures = 1 if now - place.started > 600 else place.failures + 1
        place.not_before = now + self.retry_seconds
        if place.failures >= self.plan.max_failures:
            place.given_up = f"worker {place.name} failed {place.failures} times in a row, at last with {reason}"
            log.error("%s", place.given_up)
        else:
            log.warning("worker %s failed: %s", place.name, reason)

    def move_to(self, endpoint: str) -> None:
        """The aggregator has another address: workers of the old one are drained and started again."""
        log.warning("the aggregator moved from %s to %s", self.endpoint, endpoint)
        self.endpoint = endpoint
        self.dismiss()

    def dismiss(self) -> None:
        """Drains every worker; `collect` empties the places."""
        for task in self.tasks():
            ray.cancel(task, force=False)

    def reasons_given_up(self) -> list[str]:
        return [place.given_up for place in self.places if place.given_up]


def _start_aggregator(plan: AggregatorPlan, allot: str) -> Any:
    placement: dict[str, Any] = {"resources": {plan.resource: 1}}
    if not plan.resource:
        node = ray.get_runtime_context().get_node_id()
        placement = {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
    return (
        ray.remote(AggregatorHost)
        .options(num_cpus=plan.cpus, max_restarts=-1, max_task_retries=-1, max_concurrency=3, **placement)
        .remote(allot, plan)
    )


def _endpoint_now(aggregator: Any, patience: float) -> str | None:
    """Nothing when the actor does not answer in time: it is being started, or lost, which `serve` then tells."""
    try:
        endpoint = ray.get(aggregator.endpoint.remote(), timeout=patience)
    except RayError:
        return None
    assert isinstance(endpoint, str)
    return endpoint


def _end_of(serving: Any, plan: LaunchPlan) -> AggregatorEnd:
    try:
        end = ray.get(serving)
    except RayError as error:
        raise LaunchFailed(
            f"the aggregator's node is gone and no other may run it ({error}); launch again to continue the run in "
            f"{plan.aggregator.run}, from a node that has this directory"
        ) from error
    assert isinstance(end, AggregatorEnd)
    return end


def launch(plan: LaunchPlan) -> RunResult:
    """Runs `plan` to the end of the run on the cluster that this process is connected to (ray.init).

    Returns when the run is finished. Raises ValueError for a faulty plan and LaunchFailed when the aggregator or every
    worker is given up. However it ends, workers have drained and the aggregator has stopped.
    """
    plan.check()
    aggregator = _start_aggregator(plan.aggregator, plan.allot)
    serving = aggregator.serve.remote()
    crew: Crew | None = None
    try:
        while True:
            done, _ = ray.wait([serving], timeout=plan.poll_seconds)
            if done:
                break
            endpoint = _endpoint_now(aggregator, plan.poll_seconds)
            if endpoint is None:
                continue
            if crew is None:
                log.info("the aggregator is at %s", endpoint)
                crew = Crew(plan.allot, plan.workers, plan.retry_seconds, endpoint)
            elif endpoint != crew.endpoint:
                crew.move_to(endpoint)
            crew.collect()
            crew.fill()
            reasons = crew.reasons_given_up()
            if len(reasons) == plan.workers.count:
                raise LaunchFailed(f"every worker was given up: {'; '.join(reasons)}")
        end = _end_of(serving, plan)
    finally:
        _shut_down(aggregator, serving, crew, plan.workers.drain_seconds)
    if not end.schedule:
        raise LaunchFailed(
            f"the aggregator ended with status {end.code} before the run was finished; its message is in Ray's log of "
            f"allot_ray.aggregator, the run in {plan.aggregator.run} can be continued"
        )
    return RunResult(
        run=plan.aggregator.run,
        schedule_path=str(PurePosixPath(plan.aggregator.run) / "schedule.json"),
        schedule=end.schedule,
        status=end.status,
        workers_started=crew.started if crew is not None else 0,
    )


def _shut_down(aggregator: Any, serving: Any, crew: Crew | None, drain_seconds: float) -> None:
    try:
        if crew is not None and crew.tasks():
            # Workers of a finished run end by themselves; what is left has lost touch with it, or waits for a place.
            _, left = ray.wait(crew.tasks(), num_returns=len(crew.tasks()), timeout=2)
            if left:
                crew.dismiss()
                ray.wait(left, num_returns=len(left), timeout=drain_seconds + 5)
        ended, _ = ray.wait([serving], timeout=0)
        if not ended:
            aggregator.stop.options(max_task_retries=0).remote()
            ray.wait([serving], timeout=DRAIN_SECONDS)
    finally:
        ray.kill(aggregator)
