"""The aggregator as a Ray actor: starts the process, starts it again when it fails, tells where it listens."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from allot_ray.plan import AggregatorPlan
from allot_ray.process import ChildProcess, Ending

# The aggregator of a finished run lingers up to 5 s for its workers and then syncs its history. After LINGER_SECONDS its end
# is known on a busy machine, too; one that is asked to stop has DRAIN_SECONDS.
LINGER_SECONDS = 10.0
DRAIN_SECONDS = 30.0
RETRY_SECONDS = 2.0


@dataclass(frozen=True)
class AggregatorEnd:
    """Why `serve` returned. `status` is the JSON of `allot status`, empty where there is none."""

    ending: Ending
    code: int
    status: dict[str, Any]
    schedule: dict[str, Any]  # content of schedule.json; empty unless the run is finished


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        # As ZeroMQ does, so that connections of a process that just ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


class AggregatorHost:
    """Actor. `serve` blocks until the run ends; `endpoint` and `stop` are called meanwhile, so it needs three threads."""

    def __init__(self, allot: str, plan: AggregatorPlan):
        self._allot = allot
        self._plan = plan
        self._address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._port = self._choose_port()
        self._stopping = threading.Event()
        self._process: ChildProcess | None = None

    def endpoint(self) -> str:
        """Where workers connect; they may try before the process listens."""
        return f"tcp://{self._address}:{self._port}"

    def serve(self) -> AggregatorEnd:
        """Runs the aggregator until the run is finished, `stop` is called, or starting it again makes no sense."""
        # The config file has no place on disk that would stay behind when Ray kills this process.
        config = os.memfd_create("aggregator.conf")
        try:
            os.write(config, self._plan.config.encode())
            options = [*self._plan.options, *(["--config", f"/proc/self/fd/{config}"] if self._plan.config else [])]
            return self._serve(options, config)
        finally:
            os.close(config)

    def _serve(self, options: list[str], config: int) -> AggregatorEnd:
        command = [
            self._allot, "aggregator", "--run", self._plan.run, "--bind", self.endpoint(), "--exit-when-finished", *options,
        ]  # fmt: skip
        failures = 0
        while True:
            started = time.monotonic()
            with ChildProcess(command, DRAIN_SECONDS, pass_fds=(config,)) as self._process:
                if self._stopping.is_set():
                    self._process.terminate()
                code = self._process.wait()
            ending = Ending.of(code)
            status = self._status()
            finished = status.get("stage") == "finished"
            # Whoever sent a SIGTERM that was not ours meant the process, not the run.
            if finished or self._stopping.is_set() or ending is Ending.HOPELESS:
                return AggregatorEnd(ending, code, status, self._schedule() if finished else {})
            failures = 1 if time.monotonic() - started > 60 else failures + 1
            if failures >= self._plan.max_failures:
                return AggregatorEnd(Ending.FAILED, code, status, {})
            self._stopping.wait(RETRY_SECONDS)

    def stop(self) -> None:
        """Ends `serve` soon; the run directory can be continued."""
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()

    def _choose_port(self) -> int:
        if self._plan.port:
            return self._plan.port
        # An aggregator that was killed leaves its address behind. Workers still try it, so it is taken again if possible.
        try:
            left = (Path(self._plan.run) / "endpoint").read_text().strip()
        except OSError:
            left = ""
        host, _, port = left.removeprefix("tcp://").rpartition(":")
        if host == self._address and port.isdigit() and _is_free(host, int(port)):
            return int(port)
        return _free_port(self._address)

    def _status(self) -> dict[str, Any]:
        command = [self._allot, "status", "--run", self._plan.run, "--json"]
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            print(f"allot_ray: no status of {self._plan.run}: {answer.stderr.strip()}", flush=True)
            return {}
        status = json.loads(answer.stdout)
        assert isinstance(status, dict)
        return status

    def _schedule(self) -> dict[str, Any]:
        schedule = json.loads((Path(self._plan.run) / "schedule.json").read_text())
        assert isinstance(schedule, dict)
        return schedule
