"""Command line of allot_ray: prints the result of the run as one JSON object."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import signal
import sys
from pathlib import Path
from types import FrameType

import ray

from allot_ray.launch import LaunchFailed, launch
from allot_ray.plan import AggregatorPlan, LaunchPlan, WorkerPlan

EXAMPLE = """example, on the head node or in a Ray job:
  python -m allot_ray --config /shared/gsm8k.conf --run /shared/runs/gsm8k --workers 8 --allot /shared/bin/allot \\
    --worker-option=--model=/local/models/qwen7b --aggregator-option=--insecure
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="allot_ray",
        description="Starts an allot run on a Ray cluster and waits for its end.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--run", required=True, metavar="DIR", help="run directory, an absolute path on the aggregator's node")
    add("--config", type=Path, metavar="FILE", help="options of `allot aggregator`; without: continue the run in DIR")
    add("--workers", type=int, default=1, metavar="N", help="workers to keep alive (default 1)")
    add("--gpus-per-worker", type=float, default=1, metavar="X", help="0 to 1 (default 1); 0 runs on CPU")
    add("--cpus-per-worker", type=float, default=1, metavar="X", help="default 1")
    add("--allot", default="allot", metavar="PATH", help="the executable on every node (default: found on PATH)")
    add("--port", type=int, default=0, metavar="N", help="the aggregator's port (default: a free one)")
    add("--aggregator-resource", default="", metavar="NAME",
        help="custom Ray resource of the nodes where the aggregator may run (default: this node)")  # fmt: skip
    add("--aggregator-option", action="append", default=[], metavar="=--NAME[=VALUE]", help="may be repeated")
    add("--worker-option", action="append", default=[], metavar="=--NAME[=VALUE]", help="may be repeated")
    add("--retry-seconds", type=float, default=5, metavar="S", help="pause before a worker is replaced (default 5)")
    add("--address", metavar="ADDRESS", help="of the Ray cluster (default: as ray.init finds it)")
    return made


def plan_of(words: argparse.Namespace) -> LaunchPlan:
    return LaunchPlan(
        aggregator=AggregatorPlan(
            run=words.run,
            config=words.config.read_text() if words.config else "",
            options=tuple(words.aggregator_option),
            port=words.port,
            resource=words.aggregator_resource,
        ),
        workers=WorkerPlan(
            count=words.workers,
            gpus=words.gpus_per_worker,
            cpus=words.cpus_per_worker,
            options=tuple(words.worker_option),
        ),
        allot=words.allot,
        retry_seconds=words.retry_seconds,
    )


def stop_as_interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Exit status: 0 finished, 1 failed, 2 wrong usage, 130 asked to stop."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    words = parser().parse_args()
    try:
        plan = plan_of(words)
        plan.check()
    except (ValueError, OSError) as error:
        print(f"allot_ray: {error}", file=sys.stderr)
        return 2
    try:
        # Ray prints what the processes write to standard output; ours is for the result alone.
        with contextlib.redirect_stdout(sys.stderr):
            ray.init(address=words.address)
            signal.signal(signal.SIGTERM, stop_as_interrupt)  # after ray.init, which sets its own
            try:
                result = launch(plan)
            finally:
                ray.shutdown()  # prints what the processes wrote last
    except LaunchFailed as error:
        print(f"allot_ray: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"allot_ray: stopped; launch again to continue the run in {plan.aggregator.run}", file=sys.stderr)
        return 130
    print(json.dumps(dataclasses.asdict(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
