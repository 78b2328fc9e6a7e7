"""What the cases share: the aggregator under test, workers that can be told what to say, and answers to a lease."""

import itertools
import time
import unittest

from peer import Peer, body_of, wire

Reason = wire.Refused.Reason
Verdict = wire.Ack.Verdict
# Leases that a worker of these cases declares that it holds at once; it never asks for more.
CAPACITY = 16
# How often a worker asks again when it is told to wait, if not for longer than that.
PATIENCE = 4
MOST_WAIT_MS = 1000
_names = itertools.count(1)


class Target:
    """An aggregator: where it listens, and the keys of each role (none without keys).

    roles: {"worker": Keys, "operator": …, "viewer": …, "second worker": …}; model, data, heldout, adapter: the files of its run,
    where they are at hand; rate: messages a second that it takes of one connection; longest_lease: cases that wait for a lease to run
    out are skipped in runs with longer leases, in seconds."""

    def __init__(self, endpoint, roles=None, model=None, data=None, heldout=None, rate=1000, longest_lease=10, adapter=None):
        self.endpoint, self.roles = endpoint, roles or {}
        self.model, self.data, self.heldout = model, data, heldout
        self.rate, self.longest_lease, self.adapter = rate, longest_lease, adapter


class Worker(Peer):
    """A peer that has said Hello and keeps its list of leases."""

    name = ""
    welcome = None

    def hello(self, **changes):
        hello = wire.Hello(**{"worker": self.name, "build": "conformance", "device": "none", "capacity": CAPACITY,
                              "kinds": [wire.LEASE_KIND_ANSWERS, wire.LEASE_KIND_DIVERGENCE], **identities(self.welcome.spec), **changes})
        return self.ask(hello, epoch=0)

    def request(self, count=1, **more):
        """The leases granted; they are listed from then on. Fails when there are none."""
        for _ in range(PATIENCE):
            answer = self.ask(wire.LeaseRequest(count=count, **more))
            # An aggregator that is busy, or was for a moment, may put off anyone; it says for how long.
            if not isinstance(answer, wire.Wait) or answer.finished or answer.paused or answer.retry_after_ms > MOST_WAIT_MS:
                break
            time.sleep(answer.retry_after_ms / 1000)
        if not isinstance(answer, wire.Grant):
            raise AssertionError(f"a LeaseRequest for {count} is answered with {type(answer).__name__} ({one_line(answer)}), "
                                 "Grant is expected")
        self.leases += [lease.lease for lease in answer.leases]
        return list(answer.leases)

    def result(self, lease, **changes):
        """Sends the answers to a lease; returns the Ack."""
        ack = self.ask(wire.EpisodeResult(**{"lease": lease.lease, "episode": lease.episode, "outcomes": outcomes(lease),
                                             "seconds": 0.5, **changes}))
        if lease.lease in self.leases:
            self.leases.remove(lease.lease)
        return ack

    def release(self, leases, **more):
        answer = self.ask(wire.Release(leases=[lease.lease for lease in leases], **more))
        self.leases = [lease for lease in self.leases if lease not in answer.leases]
        return answer

    def unknown(self, leases):
        """Those of the numbers that are not this worker's any more."""
        return list(self.ask(wire.Heartbeat(), leases=leases).unknown_leases)


def identities(spec):
    """What a Hello says of model and data so that a run takes the worker: they are compared, and only the worker can know
    whether they are true."""
    return {"model": spec.model, "train": spec.task.train, "heldout": spec.task.heldout}


def outcome(lease, question, correct=True):
    """An answer to one question. A divergence is a score of any size, an answer is right or wrong."""
    made = wire.QuestionOutcome(question=question, correct=correct, finish=wire.FINISH_REASON_EOS, prompt_tokens=20, output_tokens=10)
    if lease.kind == wire.LEASE_KIND_DIVERGENCE:
        made.correct, made.score = False, 0.25
    return made


def outcomes(lease, correct=None):
    """Answers to all questions of a lease, in its order."""
    return [outcome(lease, question, question % 2 == 0 if correct is None else correct) for question in lease.questions]


def one_line(message):
    return " ".join(str(message).split())


class Case(unittest.TestCase):
    """Every case closes its peers and gives its leases back, so that the next finds the run as this one did."""

    target = None  # of the whole suite

    def setUp(self):
        self.peers = []

    def tearDown(self):
        for peer in self.peers:
            try:
                if isinstance(peer, Worker) and peer.welcome is not None and peer.name:
                    peer.send(wire.Release(leases=peer.leases))
                    while (answer := peer.receive(2)) is not None and body_of(answer)[0] not in ("released", "refused"):
                        pass
            finally:
                peer.close()

    def keys(self, role):
        if not self.target.roles:
            return None
        if role not in self.target.roles:
            self.skipTest(f"no key of a {role} was given (--help says how)")
        return self.target.roles[role]

    def needs(self, holds, what):
        if not holds:
            self.skipTest(f"the run is not one with {what}; tests/conformance/README.md says how to start one")

    def peer(self, role="worker", make=Peer, **options):
        made = make(self.target.endpoint, keys=self.keys(role), **options)
        self.peers.append(made)
        return made

    def spec(self):
        """What a client, who names no model, is told of the run."""
        answer = self.peer().ask(wire.Hello(worker="a client", client=True))
        self.assertIsInstance(answer, wire.Welcome, one_line(answer))
        return answer

    def stranger(self, role="worker", name=None):
        """A worker that knows the run and has not said Hello yet."""
        made = self.peer(role, Worker)
        made.name = name or f"conformance-{next(_names)}"
        made.sender = made.name
        made.welcome = self.spec()
        return made

    def worker(self, role="worker", name=None, leases=(), **hello):
        """A worker that was welcomed."""
        made = self.stranger(role, name)
        made.leases = list(leases)
        answer = made.hello(**hello)
        self.assertIsInstance(answer, wire.Welcome, one_line(answer))
        made.welcome, made.epoch = answer, answer.epoch
        return made

    def lease_of(self, worker, episode):
        """The lease under which `worker` is granted that episode; other leases it gets on the way are given back afterwards."""
        others = []
        try:
            for _ in range(CAPACITY):
                (lease,) = worker.request()
                if lease.episode == episode:
                    return lease
                others.append(lease)
        finally:
            if others:
                worker.release(others)
        self.fail(f"episode {episode} is not offered again: {worker.name} was granted {[lease.episode for lease in others]}")

    def status(self, role="worker"):
        answer = self.peer(role).ask(wire.StatusRequest())
        self.assertIsInstance(answer, wire.Status)
        return answer

    def control(self, **command):
        return self.peer("operator").ask(wire.Control(**{"by": "conformance", **command}))

    def assert_verdict(self, ack, verdict, stored="VERDICT_UNSPECIFIED"):
        self.assertIsInstance(ack, wire.Ack, one_line(ack))
        self.assertEqual((Verdict.Name(ack.verdict), Verdict.Name(ack.stored)), (verdict, stored), one_line(ack))

    def assert_refused(self, answer, reason, *words):
        """`words` are to be in the message, whatever else it says."""
        self.assertIsInstance(answer, wire.Refused, one_line(answer))
        self.assertEqual(Reason.Name(answer.reason), reason, answer.message)
        self.assertNotEqual(answer.message, "")
        for word in words:
            self.assertIn(word, answer.message)
