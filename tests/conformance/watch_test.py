#!/usr/bin/env python3
"""The watch names what a worker does wrong, and finds no fault with the worker of allot.

    watch_test.py ALLOT MODEL-DIRECTORY WORKER      (WORKER: an allot whose worker may answer by chance)"""

import math
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import google.protobuf  # noqa: F401
    import zmq  # noqa: F401
except ImportError as missing:
    print(f"skipped: Python module {missing.name} is missing; ./setup --check installs it")
    sys.exit(77)

import groups
import watch
from case import Worker, outcomes
from defects import Proxy
from peer import envelope, wire

ALLOT, MODEL, WORKER = sys.argv[1:4]
WORKER_SECONDS = 60


def wrong_result(**changes):
    def send(worker):
        (lease,) = worker.request()
        worker.result(lease, **{name: change(lease) for name, change in changes.items()})
    return send


def outcome_with(**fields):
    def made(lease):
        answers = outcomes(lease, correct=False)
        for name, value in fields.items():
            setattr(answers[0], name, value)
        return answers
    return made


def answers_of_another_lease(worker):
    (lease,) = worker.request()
    worker.release([], partial=[wire.PartialResult(lease=lease.lease, episode=lease.episode, outcomes=outcomes(lease)[:1])])


def answers_in_another_order(worker):
    (lease,) = worker.request()
    worker.release([lease], partial=[wire.PartialResult(lease=lease.lease, episode=lease.episode, outcomes=outcomes(lease)[1::-1])])


def forgets_to_list(worker):
    worker.request()
    end = time.monotonic() + 1.2 * watch.GRACE_SECONDS
    while time.monotonic() < end:
        worker.ask(wire.Heartbeat())
        time.sleep(worker.welcome.heartbeat_ms / 2000)
    worker.ask(wire.Heartbeat(), leases=[])


def falls_silent(worker):
    worker.request()
    time.sleep(1.5 * watch.LATE_FACTOR * worker.welcome.heartbeat_ms / 1000)


def withholds_replies():
    """The faults of answers without replies to a lease that asks for them."""
    lease = wire.Lease(lease=10**9, episode=1, questions=[4], replies=True)
    seen = watch.Watch()
    seen.granted[lease.lease] = lease
    watch.Conversation(seen).check_answers(wire.EpisodeResult(lease=lease.lease, episode=1, outcomes=outcomes(lease)))
    return seen.faults


WRONG = {
    "number": (lambda worker: worker.ask(wire.Heartbeat(), number=1), "does not follow message"),
    "version": (lambda worker: worker.ask(wire.Heartbeat(), protocol_version=2), "protocol version 2"),
    "delimiter": (lambda worker: worker.send_parts(b"", envelope(wire.Heartbeat(), 90).SerializeToString()), "2 frames"),
    "bytes": (lambda worker: worker.send_parts(b"\xff"), "no Envelope"),
    "size": (lambda worker: worker.send_parts(b"\xff" * (watch.MOST_BYTES + 1)), "1048577 bytes"),
    "body": (lambda worker: worker.ask(wire.Grant()), "grant is not for an aggregator"),
    "epoch": (lambda worker: worker.ask(wire.Heartbeat(), epoch=77), "epoch 77"),
    "model": (lambda worker: worker.hello(model=wire.ModelIdentity()), "REASON_MODEL"),
    "unfinished": (wrong_result(outcomes=outcome_with(finish=0)), "has finish 0"),
    "tokens": (wrong_result(outcomes=outcome_with(output_tokens=-3)), "-3 output tokens"),
    "score": (wrong_result(outcomes=outcome_with(score=1.0)), "score 1.0 and correct = False"),
    "seconds": (wrong_result(seconds=lambda lease: math.inf), "seconds is inf"),
    "missing": (wrong_result(outcomes=lambda lease: outcomes(lease)[1:]), "the answers are to"),
    "episode": (wrong_result(episode=lambda lease: lease.episode + 1), "is of episode"),
    "unknown": (lambda worker: worker.ask(wire.EpisodeResult(lease=2**62)), "was not granted"),
    "error": (wrong_result(error=lambda lease: "no"), "has an error and 4 outcomes"),
    "rejected": (wrong_result(outcomes=lambda lease: []), "was rejected"),
    "given back": (answers_of_another_lease, "does not give back"),
    "order": (answers_in_another_order, "the answers are to"),
    "list": (forgets_to_list, "does not list lease"),
    "silence": (falls_silent, "silent for"),
}


def welcome(endpoint, name):
    worker = Worker(endpoint)
    worker.name = worker.sender = name
    worker.welcome = worker.ask(wire.Hello(worker="a client", client=True))
    worker.welcome = worker.hello()
    worker.epoch = worker.welcome.epoch
    return worker


class OfWrongWorkers(unittest.TestCase):
    def test_each_fault_is_named_and_a_right_worker_has_none(self):
        with groups.started(ALLOT, MODEL, "results", {"lease-seconds": 2}) as target:
            for name, (act, expected) in WRONG.items():
                seen = watch.Watch()
                with self.subTest(name), Proxy(target.endpoint, observer=seen) as proxy:
                    worker = welcome(proxy.address, name)
                    try:
                        (lease,) = worker.request()
                        worker.result(lease)
                        self.assertEqual(seen.faults, [])
                        act(worker)
                        deadline = time.monotonic() + 5
                        while not any(expected in fault for fault in seen.faults) and time.monotonic() < deadline:
                            time.sleep(0.02)
                        self.assertIn(expected, "\n".join(seen.faults))
                    finally:
                        worker.close()

    def test_a_lease_that_asks_for_replies_gets_them(self):
        (fault,) = withholds_replies()
        self.assertIn("question 4 of lease 1000000000 has no reply", fault)

    def test_what_comes_before_the_welcome_is_named(self):
        seen = watch.Watch()
        with groups.started(ALLOT, MODEL, "results") as target, Proxy(target.endpoint, observer=seen) as proxy:
            worker = Worker(proxy.address)
            worker.ask(wire.Heartbeat())
            worker.close()
        self.assertEqual(len(seen.faults), 2, seen.faults)
        self.assertIn("heartbeat before a Welcome", seen.faults[0])
        self.assertIn("refused, REASON_NOT_INTRODUCED", seen.faults[1])


class OfTheWorkerOfAllot(unittest.TestCase):
    def test_a_whole_run_has_no_fault(self):
        with groups.started(ALLOT, MODEL, "results", {"episodes": 40}) as target, tempfile.TemporaryDirectory() as folder:
            observer = subprocess.Popen([sys.executable, watch.__file__, "--connect", target.endpoint, "--until-finished"],
                                        stdout=subprocess.PIPE, text=True)
            address = observer.stdout.readline().strip()  # after which it listens
            self.addCleanup(observer.stdout.close)
            self.addCleanup(observer.wait)
            self.addCleanup(observer.kill)
            log = pathlib.Path(folder) / "log"
            with log.open("wb") as file:
                worker = subprocess.run([WORKER, "worker", "--connect", address, "--model", MODEL, "--train", target.data, "--heldout",
                                         target.heldout, "--name", "w", "--exit-when-finished"], stdin=subprocess.DEVNULL, stdout=file,
                                        stderr=file, timeout=WORKER_SECONDS, check=False)
            self.assertEqual(worker.returncode, 0, log.read_text()[-3000:])
            said, _ = observer.communicate(timeout=WORKER_SECONDS)
            self.assertEqual(observer.returncode, 0, said)
            self.assertRegex(said, r"\A0 faults of [1-9]\d* connections\n\Z")


if __name__ == "__main__":
    del sys.argv[1:4]
    unittest.main(verbosity=2)
