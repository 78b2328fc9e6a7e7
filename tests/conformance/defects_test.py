#!/usr/bin/env python3
"""Every case of the suite finds the fault that it is for: each is run against an aggregator with one defect and has to fail, and
against the same aggregator behind the same proxy without one, and has to hold.

    defects_test.py ALLOT MODEL-DIRECTORY"""

import contextlib
import math
import os
import sys
import unittest
from unittest import mock

os.environ.setdefault("CONFORMANCE_ANSWER_SECONDS", "2")  # many defects are answers that never come

try:
    import google.protobuf  # noqa: F401
    import zmq
except ImportError as missing:
    print(f"skipped: Python module {missing.name} is missing; ./setup --check installs it")
    sys.exit(77)

import groups
from case import Target
from defects import (FIXED_KEYS, Proxy, asked_for, clears, field, instead, of_body, of_request, open_door, parse, stored, verdict,
                     with_message)
from frame_cases import MOST_BYTES
from peer import Keys, wire

Reason = wire.Refused
HASH = "0" * 64


def set_in(body, name, value):
    setattr(body, name, value)


def refuse(reason):
    return lambda asked: wire.Refused(reason=reason, message="no")


def is_worker(hello):
    return not hello.client


def in_hello(change):
    return of_request("hello", lambda hello: change(hello) and None if is_worker(hello) else None)


def to_body(name, holds=lambda body: True):
    return {"when": asked_for(name, holds)}


def without_replies(message, name):
    bodies = [message.result] if name == "result" else message.release.partial if name == "release" else []
    for body in bodies:
        for outcome in body.outcomes:
            outcome.ClearField("reply")


def number_of_refusals(asked, answer):
    if answer.HasField("refused") and answer.in_reply_to == 0:
        answer.in_reply_to = 1


def no_number_for_the_bodiless(asked, answer):
    if asked is not None and asked.WhichOneof("body") is None:
        answer.in_reply_to = 0


def unread_wait_is_an_answer(asked, answer):
    if answer.HasField("wait") and answer.in_reply_to == 0:
        answer.in_reply_to = 1


def one_number(asked, answer):
    answer.number = 5


def mends_text(parts):
    good = wire.Envelope(protocol_version=1, number=7, status_request=wire.StatusRequest()).SerializeToString()
    return [part if parse(part) is not None else good for part in parts]


def refuses_what_it_does_not_know(parts):
    def changed(part):
        message = parse(part)
        if message is None:
            return part
        message.DiscardUnknownFields()
        return part if len(message.SerializeToString()) == len(part) else b"\xff"
    return [changed(part) for part in parts]


def same_grant_again():
    granted = {}

    def reply(asked, answer):
        if answer.HasField("grant"):
            answer.grant.CopyFrom(granted.setdefault((asked.sender, asked.number), answer.grant))
    return reply


def each_lease(name, value):
    def change(grant, _):
        for lease in grant.leases:
            setattr(lease, name, value(lease) if callable(value) else value)
    return of_body("grant", change)


def mended_outcomes(change):
    def mend(result):
        for outcome in result.outcomes:
            change(outcome)
    return of_request("result", mend)


def without_repeats(result):
    seen, kept = set(), []
    for outcome in result.outcomes:
        if outcome.question not in seen:
            kept.append(outcome)
        seen.add(outcome.question)
    made = [wire.QuestionOutcome.FromString(outcome.SerializeToString()) for outcome in kept]
    result.ClearField("outcomes")
    result.outcomes.extend(made)


def without_leases(name):
    return with_message(lambda message, found: message.ClearField("leases") if found == name else None)


def clear_repeated(name, path):
    return of_body(name, lambda body, asked: body.ClearField(path))


# Group, cases (CLASS.METHOD, after "test_" as far as it is unique), and what of Proxy is changed. The key says what the defect is.
DEFECTS = {
    "puts an empty delimiter before its answers": ("frames", ["Frames.one_message"], {"raw": lambda frame: [b"", frame]}),
    "does not count its messages": ("frames", ["Frames.the_aggregator_counts"], {"reply": one_number}),
    "takes unreadable bytes for message 1": ("frames", ["Frames.bytes_that_are_no"], {"reply": number_of_refusals}),
    "does not count what it cannot read": ("frames", ["Frames.unreadable"], {"reply": field("status", "counters.malformed", 0)}),
    "reads text that is not UTF-8": ("frames", ["Frames.text_that"], {"request": mends_text}),
    "speaks any version": ("frames", ["Frames.another_protocol"], {"request": with_message(lambda m, _: set_in(m, "protocol_version", 1))}),
    "skips empty frames": ("frames", ["Frames.an_empty"], {"request": lambda parts: [part for part in parts if part]}),
    "reads the first frame alone": ("frames", ["Frames.each_frame"], {"request": lambda parts: parts[:1]}),
    "does not say which message had no body": ("frames", ["Frames.an_envelope_without"], {"reply": no_number_for_the_bodiless}),
    "refuses unknown fields": ("frames", ["Frames.unknown"], {"request": refuses_what_it_does_not_know}),
    "asks those who speak like an aggregator to say hello": (
        "frames", ["Frames.bodies_that"], {"reply": field("refused", "reason", Reason.REASON_NOT_INTRODUCED, **to_body("grant"))}),
    "takes less than 1 MiB": ("frames", ["Frames.a_frame_of"], {"most_bytes": MOST_BYTES - 1}),
    "takes frames of any size": ("frames", ["Frames.a_larger"], {"most_bytes": -1}),
    "answers what it did not read": ("rate", ["Rate.a_sender"], {"reply": unread_wait_is_an_answer}),

    "asks for heartbeats too seldom": ("handshake", ["Handshake.a_client_is"], {"reply": field("welcome", "heartbeat_ms", 10**7)}),
    "lets clients work": ("handshake", ["Handshake.a_client_may"], {"reply": instead("refused", lambda _: wire.Wait(), **to_body("lease_request"))}),
    "finds fault with a heartbeat before hello": (
        "handshake", ["Handshake.nothing_but"], {"reply": field("refused", "reason", Reason.REASON_MALFORMED, **to_body("heartbeat"))}),
    "loses the fingerprint": ("handshake", ["Handshake.a_worker_that_repeats"],
                              {"request": in_hello(lambda hello: set_in(hello.model, "weights_fingerprint", ""))}),
    "does not say what differs": ("handshake", ["Handshake.another_model", "Handshake.other_data"], {"reply": field("refused", "message", "no")}),
    "counts no refused hellos": ("handshake", ["Handshake.refused_hellos"], {"reply": field("status", "counters.mismatched", 0)}),
    "does not look at adapters": ("handshake", ["Handshake.an_adapter"], {"reply": instead(
        "refused", lambda _: wire.Welcome(), **to_body("hello", lambda hello: not hello.model.HasField("adapter")))}),
    "compares the name of the model": ("handshake", ["Handshake.names_and_places"], {"reply": instead(
        "welcome", refuse(Reason.REASON_MODEL), **to_body("hello", lambda hello: hello.model.id == "elsewhere"))}),
    "does not count questions": ("handshake", ["Handshake.other_data"], {"request": in_hello(lambda hello: set_in(hello.train, "questions", 24))}),
    "takes a usual field for another": ("handshake", ["Handshake.a_field_of"], {"reply": instead(
        "welcome", refuse(Reason.REASON_DATASET), **to_body("hello", lambda hello: hello.train.HasField("question_field")))}),
    "compares the data first": ("handshake", ["Handshake.the_model_is"], {"reply": field("refused", "reason", Reason.REASON_DATASET)}),
    "cuts long names": ("handshake", ["Handshake.a_name"], {"request": in_hello(lambda hello: set_in(hello, "worker", hello.worker[:200]))}),
    "never says that a lease is gone": ("handshake", ["Handshake.the_name_of"], {"reply": clears("heartbeat_reply", "unknown_leases")}),
    "does not look at epochs": ("handshake", ["Handshake.a_message_by"], {"request": with_message(lambda m, _: set_in(m, "epoch", 0))}),
    "checks epoch 0": ("handshake", ["Handshake.epoch_0"], {"reply": instead(
        "heartbeat_reply", refuse(Reason.REASON_NOT_INTRODUCED), lambda asked: asked.epoch == 0)}),
    "refuses a second hello": ("handshake", ["Handshake.hello_may"], {"reply": instead(
        "welcome", refuse(Reason.REASON_MALFORMED), lambda asked: asked.leases)}),
    "sends away who said a wrong hello": ("handshake", ["Handshake.a_refused"], {"reply": instead(
        "heartbeat_reply", refuse(Reason.REASON_NOT_INTRODUCED), lambda asked: asked.number == 3)}),
    "computes the fingerprint in another way": ("handshake", ["Identities.of_the_model"], {
        "reply": field("welcome", "spec.model.weights_fingerprint", HASH)}),
    "computes the fingerprint of the adapter in another way": ("handshake", ["Identities.of_the_adapter"], {
        "reply": field("welcome", "spec.model.adapter.fingerprint", HASH)}),
    "computes the hash of the data in another way": ("handshake", ["Identities.of_the_data"], {
        "reply": field("welcome", "spec.task.train.sha256", HASH)}),

    "gives other deadlines": ("leases", ["Leases.a_lease_says"], {"reply": each_lease("deadline_ms", 1)}),
    "grants one more": ("leases", ["Leases.no_more"], {"request": of_request("lease_request", lambda asked: set_in(asked, "count", asked.count + 1))}),
    "does not look at the capacity": ("leases", ["Leases.a_worker_holds"], {"request": in_hello(lambda hello: set_in(hello, "capacity", 64))}),
    "grants one at least": ("leases", ["Leases.no_lease"], {"request": of_request("lease_request", lambda a: set_in(a, "count", max(1, a.count)))}),
    "grants the same again": ("leases", ["Leases.a_request"], {"reply": same_grant_again()}),
    "leases an episode to all": ("leases", ["Leases.an_episode"], {"reply": each_lease("episode", 0)}),
    "forgets what it granted": ("leases", ["Leases.a_heartbeat", "Drain.nobody"], {"reply": of_body(
        "heartbeat_reply", lambda body, asked: (body.ClearField("unknown_leases"), body.unknown_leases.extend(asked.leases)))}),
    "counts no attempts": ("leases", ["Leases.a_hello_without"], {"reply": each_lease("attempt", 1)}),
    "ends all leases at a hello": ("leases", ["Leases.a_hello_on"], {"request": without_leases("hello")}),
    "lists no workers": ("leases", ["Leases.the_status"], {"reply": clear_repeated("status", "workers")}),
    "does not say why one has to wait": ("leases", ["Leases.a_worker_that_runs"], {"reply": field("wait", "message", "")}),
    "takes silence for no kind": ("leases", ["Leases.a_worker_that_names"], {"request": in_hello(
        lambda hello: None if hello.kinds else hello.kinds.append(wire.LEASE_KIND_DIVERGENCE))}),
    "counts a release as an attempt": ("leases", ["Drain.a_released", "Drain.answers_that"], {"reply": each_lease("attempt", lambda lease: lease.lease)}),
    "does not know preemption": ("leases", ["Drain.a_release_by"], {"request": of_request("release", lambda asked: asked.ClearField("reason"))}),
    "keeps no answers": ("leases", ["Drain.answers_of", "Drain.a_release_that", "Drain.a_repeated"],
                         {"request": of_request("release", lambda asked: asked.ClearField("partial"))}),
    "does not say what was released": ("leases", ["Drain.a_repeated", "Drain.a_released"], {"reply": clears("released", "leases")}),
    "rejects what is late": ("leases", ["Drain.a_result_after"], {"reply": verdict("LATE", "REJECTED")}),
    "rejects all": ("leases", ["Drain.a_result_may", "Drain.nobody", "Drain.answers_of"], {"reply": verdict("ACCEPTED", "REJECTED")}),

    "takes heartbeats for nothing": ("deadlines", ["Deadlines.a_message"], {"request": without_leases("heartbeat")}),
    "renews at heartbeats alone": ("deadlines", ["Deadlines.any_message"], {"request": without_leases("lease_request")}),
    "keeps no answers that are late": ("deadlines", ["Deadlines.a_release"], {"request": of_request("release", lambda a: a.ClearField("partial"))}),

    "counts no attempts after failures": ("results", ["Verdicts.a_failed"], {"reply": each_lease("attempt", 1)}),
    "calls unknown leases stale": ("results", ["Verdicts.a_lease_that"], {"reply": verdict("REJECTED", "STALE")}),
    "does not know the first verdict": ("results", ["Verdicts.a_repeat"], {"reply": stored("LATE")}),
    "counts no broken workers": ("results", ["Verdicts.a_worker_that"], {"reply": field("status", "counters.crashed", 0)}),
    "accepts twice": ("results", ["Verdicts.accepted"], {"reply": verdict("DUPLICATE", "ACCEPTED")}),
    "forgets what it gave up": ("results", ["Verdicts.an_episode"], {"reply": clear_repeated("status", "given_up")}),
    "accepts what it cannot learn from": ("results", ["Verdicts.the_partner", "OldResults.what"], {"reply": verdict("STALE", "ACCEPTED")}),
    "mends the finish": ("results", ["Verdicts.finish"], {"request": mended_outcomes(lambda o: set_in(o, "finish", o.finish if o.finish in (1, 2, 3) else 1))}),
    "mends tokens": ("results", ["Verdicts.tokens"], {"request": mended_outcomes(
        lambda o: (set_in(o, "prompt_tokens", max(0, o.prompt_tokens)), set_in(o, "output_tokens", max(0, o.output_tokens))))}),
    "mends seconds": ("results", ["Verdicts.seconds"], {"request": of_request(
        "result", lambda asked: set_in(asked, "seconds", asked.seconds if math.isfinite(asked.seconds) and asked.seconds >= 0 else 0))}),
    "does not look at scores": ("results", ["Verdicts.scores"], {"request": mended_outcomes(lambda o: o.ClearField("score"))}),
    "takes an answer twice": ("results", ["Verdicts.the_outcomes"], {"request": of_request("result", without_repeats)}),
    "knows no partial credit": ("results", ["Verdicts.partial"], {"reply": verdict("ACCEPTED", "REJECTED")}),
    "counts nothing rejected": ("results", ["Verdicts.the_lease"], {"reply": field("status", "counters.rejected", 0)}),
    "does not tell foreign results from others": ("results", ["Verdicts.the_lease"], {"reply": field("status", "counters.foreign", 0)}),

    "does not count what runs": ("control", ["Status.the_status_counts"], {"reply": field("status", "episodes_running", 0)}),
    "says another lease time": ("control", ["Status.the_status_repeats"], {"reply": field("status", "lease_ms", 1)}),
    "does not say that it is paused": ("control", ["Control.a_pause"], {"reply": field("wait", "paused", False)}),
    "forgets bounds": ("control", ["Control.bounds"], {"request": of_request("control", lambda asked: asked.ClearField("bounds"))}),
    "forgets held-out questions": ("control", ["Control.held_out"], {"request": of_request(
        "control", lambda asked: asked.ClearField("heldout_questions"))}),
    "counts no disagreement": ("checks", ["CrossCheck.what"], {"reply": field("status", "cross_check.disagreements", 0)}),
    "does all that is asked": ("control", ["Control.commands"], {"reply": field("control_reply", "done", True)}),
    "takes another target": ("control", ["Control.the_number"], {"request": of_request(
        "control", lambda asked: set_in(asked, "reward", 0.5 if asked.reward else 0.0))}),
    "notes anybody": ("control", ["Control.who"], {"request": of_request("control", lambda asked: set_in(asked, "by", "somebody"))}),
    "evaluates and learns": ("evaluation", ["Evaluation.the_spec"], {"reply": clears("welcome", "spec")}),
    "takes whom it cannot use": ("evaluation", ["Evaluation.a_worker"], {"request": in_hello(lambda hello: set_in(hello, "replies", True))}),
    "takes devices of all kinds": ("evaluation", ["Evaluation.a_device"], {"request": in_hello(lambda hello: set_in(hello, "device", "cpu"))}),
    "asks for no replies": ("evaluation", ["Evaluation.a_lease"], {"reply": each_lease("replies", False)}),
    "loses replies": ("evaluation", ["Evaluation.replies_are", "Evaluation.replies_of"], {"request": with_message(without_replies)}),
    "makes up replies": ("evaluation", ["Evaluation.an_answer"], {"request": mended_outcomes(
        lambda o: None if o.HasField("reply") else set_in(o, "reply", b""))}),
    "stops what does not learn": ("evaluation", ["Evaluation.there"], {"reply": field("control_reply", "done", True)}),
    "never says that it is over": ("control", ["TheEnd.stop"], {"reply": field("wait", "finished", False)}),
}
# Roles that a wrong list gives to the keys, and the case that finds it.
WRONG_ROLES = {"Roles.a_viewer": ("viewer", "wall worker"), "Roles.what_a_viewer": ("viewer", "wall worker"),
               "Roles.a_worker": ("worker", "ann operator"), "Roles.an_operator": ("operator", "eve worker"),
               "Roles.the_holder": ("second worker", "ann worker")}
OPEN_DOORS = {"Strangers.no_key": "null", "Strangers.a_password": "plain", "Strangers.a_key": "curve", "Strangers.a_worker": "curve",
              "Strangers.who_shows": "curve"}
ALLOT, MODEL = sys.argv[1:3]


def cases(target, names, pattern):
    """The one case whose name begins so."""
    kind, _, beginning = pattern.partition(".")
    found = list(groups.cases_of(target, names, f"{kind}.test_{beginning}*"))
    if len(found) != 1:
        raise ValueError(f"{pattern} is the beginning of {[name for name, _ in found]}, one name is expected")
    return found[0]


def behind(target, **change):
    return Proxy(target.endpoint, **change)


class Defects(unittest.TestCase):
    found = set()

    def assert_finds(self, target, names, pattern):
        name, case = cases(target, names, pattern)
        result = unittest.TestResult()
        case.run(result)
        self.assertEqual(result.skipped, [])
        self.assertTrue(result.failures or result.errors, f"{name} holds nevertheless")
        self.found.add(name)
        if os.environ.get("CONFORMANCE_LOG"):
            print(name, (result.failures + result.errors)[0][1].strip().splitlines()[-1][:150], sep=": ")

    def test_each_defect_is_found(self):
        for defect, (group, patterns, change) in DEFECTS.items():
            with self.subTest(defect), groups.started(ALLOT, MODEL, group) as target, behind(target, **change) as proxy:
                target.endpoint = proxy.address
                for pattern in patterns:
                    with self.subTest(pattern):
                        self.assert_finds(target, groups.GROUPS[group].cases, pattern)

    def test_keys_with_another_role_are_found(self):
        for pattern, (role, entry) in WRONG_ROLES.items():
            with self.subTest(pattern), mock.patch.dict(groups.ROLES, {role: entry}), groups.started(ALLOT, MODEL, "keys") as target:
                self.assert_finds(target, groups.GROUPS["keys"].cases, pattern)

    def test_open_doors_are_found(self):
        public, secret = (zmq.utils.z85.decode(key) for key in FIXED_KEYS)
        for pattern, door in OPEN_DOORS.items():
            # The keys that a case makes are those of the server: so it gets in with a key that is on no list.
            with self.subTest(pattern), open_door(door) as endpoint, mock.patch.object(zmq, "curve_keypair", return_value=FIXED_KEYS):
                target = Target(endpoint, {"worker": Keys(public, public, secret)})
                self.assert_finds(target, ["key_cases.Strangers"], pattern)

    def test_every_case_holds_behind_a_proxy_without_a_defect(self):
        for group, what in groups.GROUPS.items():
            if what.keys:
                continue
            with self.subTest(group), groups.started(ALLOT, MODEL, group) as target, behind(target) as proxy:
                target.endpoint = proxy.address
                result = unittest.TestResult()
                groups.suite_of(target, what.cases).run(result)
                self.assertEqual((result.failures, result.errors, result.skipped), ([], [], []))


class Everything(unittest.TestCase):
    def test_every_case_of_the_suite_has_a_defect(self):
        """Runs last, by its name."""
        every = {name for name, _ in groups.cases_of(Target(""), groups.ALL_CASES + groups.GROUPS["evaluation"].cases)}
        self.assertEqual(every - Defects.found, set())


if __name__ == "__main__":
    with contextlib.suppress(IndexError):
        del sys.argv[1:3]
    unittest.main(verbosity=2)
