#!/usr/bin/env python3
"""Stands between workers and an aggregator without keys, passes on what both say, and names each thing that a worker does and
docs/wire-protocol.md does not allow.

    watch.py --connect tcp://127.0.0.1:7400 [--until-finished]

Prints the address that workers are to connect to, then one line for each fault. Exits with 1 if there was one, else with 0."""

import argparse
import math
import signal
import sys
import threading
import time

from defects import Proxy, parse
from peer import PROTOCOL_VERSION, body_of, wire

MOST_BYTES = 1 << 20
# A message may be this much later than heartbeat_ms says: machines and networks are busy now and then.
LATE_FACTOR = 2
# So long after a Grant has passed, messages may still be on the way that were sent before the worker had it.
GRACE_SECONDS = 1
FINISHES = {wire.FINISH_REASON_EOS, wire.FINISH_REASON_STOP, wire.FINISH_REASON_LENGTH}
LOOKING_ON = {"status_request", "control"}
FOR_AGGREGATORS = LOOKING_ON | {"hello", "lease_request", "result", "release", "heartbeat"}


class Watch:
    """What passes a proxy. faults: one text for each; finished: whether a worker was told that the run is over."""

    def __init__(self, tell=lambda text: None, now=time.monotonic):
        self.tell, self.now = tell, now
        self.faults, self.finished = [], False
        self.granted = {}  # every lease that was ever granted
        self.conversations = {}

    def fault(self, text):
        self.faults.append(text)
        self.tell(text)

    def said(self, peer, parts):
        self.conversations.setdefault(peer, Conversation(self)).said(parts)

    def answered(self, peer, answer):
        self.conversations[peer].answered(answer)

    def idle(self):
        for conversation in self.conversations.values():
            conversation.silence()


class Conversation:
    """One connection."""

    def __init__(self, watch):
        self.watch = watch
        self.name, self.number, self.epoch = "a peer without a Hello", 0, 0
        self.introduced = self.client = False
        self.held = {}  # lease -> since when the worker can know that it holds it
        self.heartbeat_seconds, self.heard = None, None

    def fault(self, text):
        self.watch.fault(f"{self.name}, message {self.number}: {text}")

    def silence(self):
        """A worker that holds leases and says nothing loses them."""
        silent = self.held and self.heartbeat_seconds and self.watch.now() - self.heard
        if silent and silent > LATE_FACTOR * self.heartbeat_seconds:
            self.fault(f"silent for {silent:.1f} s with {len(self.held)} leases; a message at least every {self.heartbeat_seconds:.1f} s is expected")
            self.held.clear()  # said once; or it has moved to another connection

    def said(self, parts):
        self.heard = self.watch.now()
        if len(parts) != 1:
            self.fault(f"it has {len(parts)} frames, one is expected")
        for frame in parts:
            message = parse(frame) if frame else None
            if len(frame) > MOST_BYTES:
                self.fault(f"it has {len(frame)} bytes, at most {MOST_BYTES} are expected")
            if message is None:
                self.fault(f"a frame of {len(frame)} bytes is no Envelope")
            else:
                self.said_envelope(message)

    def said_envelope(self, message):
        name, body = body_of(message)
        before, self.number = self.number, message.number
        if message.number <= before:
            self.fault(f"it does not follow message {before}; numbers that start at 1 and rise are expected")
        if message.protocol_version != PROTOCOL_VERSION:
            self.fault(f"protocol version {message.protocol_version}, {PROTOCOL_VERSION} is expected")
        if name not in FOR_AGGREGATORS:
            self.fault(f"{name} is not for an aggregator")
        elif name == "hello":
            self.client, self.name = body.client, body.worker or self.name
            self.held = dict.fromkeys(message.leases, self.watch.now())
        elif name not in LOOKING_ON:
            self.said_by_a_worker(message, name, body)

    def said_by_a_worker(self, message, name, body):
        if not self.introduced:
            return self.fault(f"{name} before a Welcome")
        if message.epoch not in (0, self.epoch):
            self.fault(f"it is of epoch {message.epoch}, the Welcome said {self.epoch}")
        named = set()
        if name == "result":
            named = {body.lease}
            self.check_result(body)
        elif name == "release":
            named = set(body.leases)
            for partial in body.partial:
                self.check_answers(partial)
                if partial.lease not in named:
                    self.fault(f"answers of lease {partial.lease}, which the Release does not give back")
        for lease, since in self.held.items():
            if lease not in message.leases and lease not in named and self.watch.now() - since > GRACE_SECONDS:
                self.fault(f"{name} does not list lease {lease}, which is held and not answered: it will run out")

    def check_result(self, result):
        if not result.error:
            self.check_answers(result, whole=True)
        elif result.outcomes:
            self.fault(f"the result of lease {result.lease} has an error and {len(result.outcomes)} outcomes")

    def check_answers(self, result, whole=False):
        if not math.isfinite(result.seconds) or result.seconds < 0:
            self.fault(f"seconds is {result.seconds}, a number of at least 0 is expected")
        for outcome in result.outcomes:
            where = f"question {outcome.question} of lease {result.lease}"
            if outcome.finish not in FINISHES:
                self.fault(f"{where} has finish {outcome.finish}, 1 to 3 is expected")
            if outcome.prompt_tokens < 0 or outcome.output_tokens < 0:
                self.fault(f"{where} has {outcome.prompt_tokens} prompt and {outcome.output_tokens} output tokens, at least 0 is expected")
            if outcome.HasField("score") and (not math.isfinite(outcome.score) or outcome.correct != (outcome.score == 1)):
                self.fault(f"{where} has score {outcome.score} and correct = {outcome.correct}; correct where the score is 1 is expected")
        lease = self.watch.granted.get(result.lease)
        if lease is None:
            return self.fault(f"lease {result.lease} was not granted since this watch began")
        if result.episode != lease.episode:
            self.fault(f"lease {result.lease} is of episode {lease.episode}, not of {result.episode}")
        for outcome in result.outcomes:
            if lease.replies and not outcome.HasField("reply"):
                self.fault(f"question {outcome.question} of lease {result.lease} has no reply, which the lease asks for")
        answered, asked = [outcome.question for outcome in result.outcomes], list(lease.questions)
        expected = asked if whole else [question for question in asked if question in answered]
        if answered != expected:
            self.fault(f"lease {result.lease} asks {asked}, the answers are to {answered}")

    def answered(self, answer):
        name, body = body_of(answer)
        if name == "welcome":
            self.introduced, self.epoch, self.heartbeat_seconds = not self.client, body.epoch, body.heartbeat_ms / 1000
        elif name == "refused":
            # That an aggregator was started again is no fault of the worker.
            again = body.reason == wire.Refused.REASON_NOT_INTRODUCED and self.introduced
            self.introduced = self.introduced and not again
            if not again:
                self.fault(f"refused, {wire.Refused.Reason.Name(body.reason)}: {body.message}")
        elif name == "grant":
            for lease in body.leases:
                self.watch.granted[lease.lease] = lease
                self.held[lease.lease] = self.watch.now()
        elif name == "ack":
            self.held.pop(body.lease, None)
            if body.verdict == wire.Ack.VERDICT_REJECTED:
                self.fault(f"the result of lease {body.lease} was rejected: {body.message}")
        elif name in ("released", "heartbeat_reply"):
            for lease in body.leases if name == "released" else body.unknown_leases:
                self.held.pop(lease, None)
        elif name == "wait":
            self.watch.finished = self.watch.finished or body.finished


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connect", metavar="ENDPOINT", required=True, help="the aggregator")
    parser.add_argument("--until-finished", action="store_true", help="end once a worker was told that the run is over")
    given = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    watch = Watch(lambda text: print(text, flush=True))
    with Proxy(given.connect, observer=watch) as proxy:
        print(proxy.address, flush=True)
        while not stop.wait(0.5) and not (given.until_finished and watch.finished):
            pass
        time.sleep(GRACE_SECONDS)  # for what is still on the way
    print(f"{len(watch.faults)} faults of {len(watch.conversations)} connections", flush=True)
    return 1 if watch.faults else 0


if __name__ == "__main__":
    sys.exit(main())
