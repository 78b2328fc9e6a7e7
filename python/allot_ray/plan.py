"""What a launch consists of. Plain values, checked as a whole before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class AggregatorPlan:
    """The one process that owns the run's history. It needs no GPU."""

    run: str  # run directory on the aggregator's node; on storage that survives the node, if the run shall
    config: str = ""  # text of a config file of `allot aggregator`; empty continues the run in the directory
    options: tuple[str, ...] = ()  # further command line options, for example ("--insecure",)
    port: int = 0  # 0: a free one, kept over restarts
    cpus: float = 1
    resource: str = ""  # custom Ray resource that marks the nodes it may run on; empty: the caller's node
    max_failures: int = 5  # ends with an error in a row before the launch gives up


@dataclass(frozen=True)
class WorkerPlan:
    """Workers are alike: each is one process with the share of one GPU that `gpus` says."""

    count: int = 1
    gpus: float = 1  # at most 1, since a worker runs on one device; 0 runs the model on CPU
    cpus: float = 1
    resources: dict[str, float] = field(default_factory=dict)  # further Ray resources, for example of a node type
    options: tuple[str, ...] = ()  # further command line options, for example ("--model", "/models/qwen7b")
    max_failures: int = 5  # ends with an error in a row before a worker's place is given up
    drain_seconds: float = 15  # a worker that is asked to stop is killed after this time

    def device(self) -> str:
        """Ray shows a task only the GPU that it gave it, so that this is always the first one."""
        return "cuda:0" if self.gpus > 0 else "cpu"


@dataclass(frozen=True)
class LaunchPlan:
    aggregator: AggregatorPlan
    workers: WorkerPlan
    allot: str = "allot"  # the executable on every node: a path, or a name found on PATH
    poll_seconds: float = 1  # how often the caller looks for ended workers and a moved aggregator
    retry_seconds: float = 5  # a place whose worker failed gets the next one after this time

    def check(self) -> None:
        """Raises ValueError that lists every fault of the plan."""
        aggregator, workers = self.aggregator, self.workers
        rules = [
            (aggregator.run.startswith("/"), f"the run directory must be an absolute path, not '{aggregator.run}'"),
            (0 <= aggregator.port <= 65535, f"the port must be 0 to 65535, not {aggregator.port}"),
            (aggregator.cpus >= 0, f"the aggregator's CPUs must not be negative: {aggregator.cpus}"),
            (aggregator.max_failures >= 1, f"the aggregator's failures must be at least 1: {aggregator.max_failures}"),
            (workers.count >= 1, f"the number of workers must be at least 1, not {workers.count}"),
            (0 <= workers.gpus <= 1, f"the GPUs of one worker must be 0 to 1, not {workers.gpus}"),
            (workers.cpus >= 0, f"the CPUs of one worker must not be negative: {workers.cpus}"),
            (workers.max_failures >= 1, f"the failures of a worker must be at least 1: {workers.max_failures}"),
            (workers.drain_seconds >= 0, f"the time to drain must not be negative: {workers.drain_seconds}"),
            (self.poll_seconds > 0, f"the time between two looks must be positive: {self.poll_seconds}"),
            (self.retry_seconds >= 0, f"the time before a retry must not be negative: {self.retry_seconds}"),
        ]
        faults = [text for holds, text in rules if not holds]
        if faults:
            raise ValueError("; ".join(faults))
