"""Results: every verdict. docs/wire-protocol.md, the table of verdicts and what a result may hold."""

import math

from case import Case, Verdict, outcome, outcomes
from peer import wire

NO_QUESTION = 2**32 - 1
# Beyond this, an update of the policy takes too many answers for a test.
MOST_ANSWERS = 400


class Verdicts(Case):
    def test_accepted_then_duplicate_with_the_first_verdict(self):
        worker = self.worker()
        before = self.status()
        (lease,) = worker.request()
        ack = worker.result(lease)
        self.assert_verdict(ack, "VERDICT_ACCEPTED")
        self.assertEqual((ack.lease, ack.episode), (lease.lease, lease.episode))
        ack = worker.result(lease)
        self.assert_verdict(ack, "VERDICT_DUPLICATE", "VERDICT_ACCEPTED")
        self.assertEqual((ack.lease, ack.episode), (lease.lease, lease.episode))
        after = self.status()
        self.assertEqual(after.counters.accepted, before.counters.accepted + 1)
        self.assertEqual(after.counters.duplicate, before.counters.duplicate + 1)
        self.assertEqual(after.episodes_done, before.episodes_done + 1)

    def test_a_repeat_with_other_content_changes_nothing(self):
        worker = self.worker()
        (lease,) = worker.request()
        self.assert_verdict(worker.result(lease), "VERDICT_ACCEPTED")
        self.assert_verdict(worker.result(lease, outcomes=[]), "VERDICT_DUPLICATE", "VERDICT_ACCEPTED")
        self.assert_verdict(worker.result(lease, outcomes=[], error="no"), "VERDICT_DUPLICATE", "VERDICT_ACCEPTED")

    def test_a_failed_episode_is_offered_again_as_the_next_attempt(self):
        worker, other = self.worker(), self.worker()
        before = self.status().counters.failed
        (lease,) = worker.request()
        self.needs(worker.welcome.spec.max_attempts > 1, "at least 2 attempts")
        self.assert_verdict(worker.result(lease, outcomes=[], error="the device is on fire"), "VERDICT_FAILED")
        self.assert_verdict(worker.result(lease), "VERDICT_DUPLICATE", "VERDICT_FAILED")
        self.assertEqual(self.status().counters.failed, before + 1)
        again = self.lease_of(other, lease.episode)
        self.assertEqual((again.attempt, list(again.questions)), (lease.attempt + 1, list(lease.questions)))
        self.assert_verdict(other.result(again), "VERDICT_ACCEPTED")

    def test_a_worker_that_broke_is_counted(self):
        worker, other = self.worker(), self.worker()
        before = self.status().counters.crashed
        (lease,) = worker.request()
        self.needs(worker.welcome.spec.max_attempts > 1, "at least 2 attempts")
        self.assert_verdict(worker.result(lease, outcomes=[], error="it broke", crashed=True), "VERDICT_FAILED")
        self.assertEqual(self.status().counters.crashed, before + 1)
        self.assert_verdict(other.result(self.lease_of(other, lease.episode)), "VERDICT_ACCEPTED")

    def give_up(self, episode, reason):
        """Fails an episode, each time on another worker, until its attempts are used up; then one success, so that the
        aggregator does not take the run for broken."""
        max_attempts = self.spec().spec.max_attempts
        for _ in range(max_attempts):
            worker = self.worker()
            lease = self.lease_of(worker, episode)
            self.assert_verdict(worker.result(lease, outcomes=[], error=reason), "VERDICT_FAILED")
            if lease.attempt == max_attempts:
                break
        worker = self.worker()
        self.assertIn(Verdict.Name(worker.result(worker.request()[0]).verdict), ("VERDICT_ACCEPTED", "VERDICT_STALE"))

    def test_an_episode_that_was_given_up_is_stale(self):
        worker = self.worker()
        self.needs(worker.welcome.spec.max_attempts <= 5, "at most 5 attempts")
        before = self.status().counters
        (lease,) = worker.request()
        worker.release([lease])
        self.give_up(lease.episode, "a reason")
        status = self.status()
        self.assertEqual(status.counters.set_aside, before.set_aside + 1)
        reasons = {row.episode: row.reason for row in status.given_up}
        self.assertIn("a reason", reasons.get(lease.episode, "not in Status.given_up"))
        self.assert_verdict(worker.result(lease), "VERDICT_STALE")
        self.assertGreater(self.status().counters.stale, before.stale)

    def test_the_partner_of_an_episode_that_was_given_up_is_stale(self):
        """The two episodes of a pair are scored on the same questions, one after the other. The message is empty."""
        worker = self.worker()
        spec = worker.welcome.spec
        self.needs(spec.policy.name == "pairs" and spec.max_attempts <= 5, "pairs as its policy and at most 5 attempts")
        leases = sorted(worker.request(4), key=lambda lease: lease.episode)
        first, second = next((one, two) for one, two in zip(leases, leases[1:]) if list(one.questions) == list(two.questions))
        worker.release([first])
        self.give_up(first.episode, "a reason")
        self.assert_verdict(worker.result(second), "VERDICT_STALE")

    def test_a_lease_that_never_was_is_rejected(self):
        worker = self.worker()
        (lease,) = worker.request()
        for number, episode in ((2**62, lease.episode), (0, lease.episode), (-1, -1), (lease.lease, lease.episode + 1)):
            self.assert_verdict(worker.ask(wire.EpisodeResult(lease=number, episode=episode, outcomes=outcomes(lease))), "VERDICT_REJECTED")
        self.assert_verdict(worker.result(lease), "VERDICT_ACCEPTED")

    def test_the_lease_of_another_worker_is_rejected_and_stays_with_it(self):
        worker, other = self.worker(), self.worker()
        (lease,) = worker.request()
        before = self.status().counters
        self.assert_verdict(other.result(lease), "VERDICT_REJECTED")
        after = self.status().counters
        self.assertEqual((after.rejected, after.foreign), (before.rejected + 1, before.foreign + 1))
        self.assert_verdict(worker.result(lease), "VERDICT_ACCEPTED")

    def assert_misfit(self, change):
        """`change` makes a result unfit: it is rejected, uses up an attempt, and the next worker answers the episode."""
        worker, other = self.worker(), self.worker()
        (lease,) = worker.request()
        self.needs(worker.welcome.spec.max_attempts > 1 and len(lease.questions) > 1, "at least 2 attempts and 2 questions")
        result = wire.EpisodeResult(lease=lease.lease, episode=lease.episode, outcomes=outcomes(lease, correct=True), seconds=0.5)
        change(result)
        ack = worker.ask(result)
        worker.leases.remove(lease.lease)
        self.assert_verdict(ack, "VERDICT_REJECTED")
        self.assertNotEqual(ack.message, "")
        self.assert_verdict(worker.result(lease), "VERDICT_DUPLICATE", "VERDICT_REJECTED")
        again = self.lease_of(other, lease.episode)
        self.assertEqual(again.attempt, lease.attempt + 1)
        self.assert_verdict(other.result(again), "VERDICT_ACCEPTED")

    def test_the_outcomes_are_the_questions_of_the_lease_in_their_order(self):
        lease = wire.Lease(kind=wire.LEASE_KIND_ANSWERS)
        self.assert_misfit(lambda result: result.outcomes.pop())
        self.assert_misfit(lambda result: result.ClearField("outcomes"))
        self.assert_misfit(lambda result: result.outcomes.reverse())
        self.assert_misfit(lambda result: result.outcomes.append(result.outcomes[-1]))
        self.assert_misfit(lambda result: result.outcomes.append(outcome(lease, NO_QUESTION)))

    def test_finish_is_1_to_3(self):
        for finish in (0, 4, -1):
            self.assert_misfit(lambda result, finish=finish: setattr(result.outcomes[0], "finish", finish))

    def test_tokens_are_at_least_0(self):
        self.assert_misfit(lambda result: setattr(result.outcomes[0], "prompt_tokens", -1))
        self.assert_misfit(lambda result: setattr(result.outcomes[0], "output_tokens", -1))

    def test_seconds_are_a_number_of_at_least_0(self):
        for seconds in (-1.0, math.nan, math.inf, -math.inf):
            self.assert_misfit(lambda result, seconds=seconds: setattr(result, "seconds", seconds))

    def test_scores_are_in_the_range_of_the_kind(self):
        for score in (-0.5, 1.5, math.nan, math.inf):
            self.assert_misfit(lambda result, score=score: setattr(result.outcomes[0], "score", score))

    def test_partial_credit_and_each_finish_are_accepted(self):
        worker = self.worker()
        (lease,) = worker.request()
        self.needs(lease.kind == wire.LEASE_KIND_ANSWERS, "answers as its rewards")
        answers = outcomes(lease, correct=False)
        for place, answer in enumerate(answers):
            answer.score, answer.finish, answer.no_answer = place / len(answers), place % 3 + 1, place == 0
            answer.prompt_tokens = answer.output_tokens = 0
        self.assert_verdict(worker.result(lease, outcomes=answers, seconds=0.0), "VERDICT_ACCEPTED")


class OldResults(Case):
    """Takes the policy so far on that what earlier cases left open is too old; hence a class of its own, which comes late."""

    def test_what_is_older_than_the_policy_lag_is_stale(self):
        worker, other = self.worker(), self.worker()
        lag = worker.welcome.spec.policy.max_policy_lag
        self.needs(lag <= 16, "a policy lag of at most 16 versions")
        (old,) = worker.request()
        answers = 0
        while self.status().policy_version <= old.policy_version + lag:
            answers += 1
            self.needs(answers < MOST_ANSWERS, f"an update at least every {MOST_ANSWERS // (lag + 1)} episodes")
            worker.ask(wire.Heartbeat())
            other.result(other.request()[0])
        self.assert_verdict(worker.result(old), "VERDICT_STALE")
        self.assert_verdict(worker.result(old), "VERDICT_DUPLICATE", "VERDICT_STALE")
