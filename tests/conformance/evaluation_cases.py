"""A run that evaluates: leases of given schedules whose replies come with the answers. docs/wire-protocol.md, Evaluations."""

from case import Case, outcomes
from peer import wire


def with_replies(lease, **changes):
    """Answers to all questions of a lease with their texts; a reply may end within a character."""
    answers = outcomes(lease, correct=False)
    for place, answer in enumerate(answers):
        answer.reply = f"reply {answer.question} ".encode() + b"\xe2\x82"
        if place == 0:
            answer.no_answer = True
        else:
            answer.answer = b"12"
    for field, value in changes.items():
        setattr(answers[-1], field, value)
    return answers


class Evaluation(Case):
    def evaluator(self, **hello):
        """A worker that the run takes."""
        return self.worker(**{"device": self.spec().spec.evaluation.device + ", conformance", "replies": True, **hello})

    def test_the_spec_says_that_nothing_is_learned(self):
        spec = self.spec().spec
        self.assertTrue(spec.HasField("evaluation"))
        self.assertIn(spec.evaluation.device, ("cpu", "cuda"))
        self.assertFalse(spec.HasField("policy"))
        self.assertEqual((spec.episodes, spec.task.heldout_questions), (0, 0))
        self.assertEqual(self.status().stage, "evaluate")

    def test_a_worker_that_sends_no_replies_is_refused_by_name(self):
        worker = self.stranger()
        self.assert_refused(worker.hello(device="cpu"), "REASON_RELEASE", worker.name, "conformance")

    def test_a_device_of_another_kind_is_refused_with_both(self):
        worker = self.stranger()
        kind = worker.welcome.spec.evaluation.device
        other = "cuda:0 of the suite" if kind == "cpu" else "cpu, of the suite"
        self.assert_refused(worker.hello(device=other, replies=True), "REASON_DEVICE", kind, other)

    def test_a_lease_asks_for_replies_and_names_schedule_and_repeat(self):
        worker = self.evaluator()
        leases = worker.request(2)
        for lease in leases:
            self.assertTrue(lease.replies)
            self.assertEqual((lease.kind, lease.split, lease.attempt), (wire.LEASE_KIND_ANSWERS, wire.SPLIT_TRAIN, 1))
            self.assertIn(len(lease.samples), (0, worker.welcome.spec.model.layers))
        worker.release(leases)

    def test_replies_are_accepted_once_and_counted(self):
        worker = self.evaluator()
        before = sum(score.answered for score in self.status().scores)
        (lease,) = worker.request()
        self.assert_verdict(worker.result(lease, outcomes=with_replies(lease)), "VERDICT_ACCEPTED")
        self.assert_verdict(worker.result(lease, outcomes=with_replies(lease)), "VERDICT_DUPLICATE", "VERDICT_ACCEPTED")
        self.assertEqual(sum(score.answered for score in self.status().scores), before + len(lease.questions))

    def test_an_answer_without_its_reply_is_rejected(self):
        worker, other = self.evaluator(), self.evaluator()
        (lease,) = worker.request()
        without = with_replies(lease)
        without[-1].ClearField("reply")
        ack = worker.result(lease, outcomes=without)
        self.assert_verdict(ack, "VERDICT_REJECTED")
        self.assertIn("reply", ack.message)
        again = self.lease_of(other, lease.episode)
        self.assertEqual(again.attempt, lease.attempt + 1)
        # An empty reply is one.
        self.assert_verdict(other.result(again, outcomes=with_replies(again, reply=b"")), "VERDICT_ACCEPTED")

    def test_replies_of_a_release_are_kept(self):
        worker = self.evaluator()
        before = self.status().counters.answers_kept
        (lease,) = worker.request()
        self.needs(len(lease.questions) > 1, "2 questions an episode")
        kept = wire.PartialResult(lease=lease.lease, episode=lease.episode, seconds=0.5, outcomes=with_replies(lease)[:1])
        worker.release([lease], partial=[kept])
        self.assertEqual(self.status().counters.answers_kept, before + 1)
        rest = self.lease_of(worker, lease.episode)
        self.assertEqual(list(rest.questions), list(lease.questions)[1:])
        self.assert_verdict(worker.result(rest, outcomes=with_replies(rest)), "VERDICT_ACCEPTED")

    def test_there_is_nothing_to_stop_or_to_bound(self):
        for command in ({"action": wire.Control.ACTION_STOP}, {"action": wire.Control.ACTION_TARGET, "reward": 0.5},
                        {"action": wire.Control.ACTION_BOUNDS, "bounds": "0:1"}, {"action": wire.Control.ACTION_EPISODES, "episodes": 9},
                        {"action": wire.Control.ACTION_HELDOUT_QUESTIONS, "heldout_questions": 1}):
            reply = self.control(**command)
            self.assertFalse(reply.done, reply.message)
            self.assertNotEqual(reply.message, "")
