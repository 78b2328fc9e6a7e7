"""Leases: how they are granted, renewed, lost and given back. docs/wire-protocol.md, Leases and Answers that are kept."""

import time

from case import CAPACITY, Case, one_line, outcome, outcomes
from peer import wire

MOST_LEASES = 64
NO_LEASE = 2**62


class Leases(Case):
    def test_a_lease_says_all_that_an_episode_needs(self):
        worker = self.worker()
        spec = worker.welcome.spec
        for lease in worker.request(2):
            self.assertGreaterEqual(lease.lease, 1)
            self.assertGreaterEqual(lease.episode, 0)
            self.assertGreaterEqual(lease.attempt, 1)
            self.assertIn(lease.kind, (wire.LEASE_KIND_ANSWERS, wire.LEASE_KIND_DIVERGENCE))
            self.assertIn(len(lease.samples), (0, spec.model.layers))
            self.assertTrue(all(samples >= -1 for samples in lease.samples))
            self.assertIn(lease.split, (wire.SPLIT_TRAIN, wire.SPLIT_HELDOUT))
            questions = spec.task.train.questions if lease.split == wire.SPLIT_TRAIN else spec.task.heldout.questions
            self.assertTrue(lease.questions)
            self.assertEqual(len(set(lease.questions)), len(lease.questions))
            self.assertLess(max(lease.questions), questions)
            self.assertEqual(lease.deadline_ms, spec.lease_ms)

    def test_no_more_are_granted_than_asked_for_and_64_at_most(self):
        worker = self.worker(capacity=1000)
        self.assertLessEqual(len(worker.request(3)), 3)
        self.assertLessEqual(len(worker.request(1000)), MOST_LEASES)

    def test_a_worker_holds_no_more_leases_than_it_says_it_runs_at_once(self):
        """As the Hello says, until a LeaseRequest says otherwise."""
        worker = self.worker(capacity=2)
        held = worker.request(10)
        self.assertEqual(len(held), 2)
        wait = worker.ask(wire.LeaseRequest(count=1))
        self.assertIsInstance(wait, wire.Wait, one_line(wait))
        self.assertNotEqual(wait.message, "")
        self.assertGreater(wait.retry_after_ms, 0)
        self.assert_verdict(worker.result(held[0]), "VERDICT_ACCEPTED")
        self.assertEqual(len(worker.request(10)), 1)
        self.assertEqual(len(worker.request(10, capacity=3)), 1)

    def test_no_lease_is_granted_where_none_is_asked_for(self):
        worker = self.worker()
        for count in (0, -1, -2**31):
            answer = worker.ask(wire.LeaseRequest(count=count))
            self.assertIsInstance(answer, wire.Wait, one_line(answer))
            self.assertFalse(answer.finished)

    def test_a_request_is_granted_each_time_it_comes(self):
        """So a worker that repeats one may get leases twice; those whose Grant it missed run out. Or it is told to wait."""
        worker = self.worker()
        first = worker.request()
        again = worker.ask(wire.LeaseRequest(count=1), number=worker.number)
        self.assertIsInstance(again, (wire.Grant, wire.Wait), one_line(again))
        if isinstance(again, wire.Grant):
            worker.leases += [lease.lease for lease in again.leases]
            self.assertNotEqual(first[0].lease, again.leases[0].lease)

    def test_an_episode_has_one_lease_at_a_time(self):
        leases = self.worker().request(3) + self.worker().request(3)
        self.assertEqual(len({lease.episode for lease in leases}), len(leases))
        self.assertEqual(len({lease.lease for lease in leases}), len(leases))

    def test_a_heartbeat_names_the_listed_leases_that_are_not_the_workers(self):
        first, second = self.worker(), self.worker()
        (own,), (others,) = first.request(), second.request()
        self.assertEqual(first.unknown([NO_LEASE, own.lease, others.lease, 0, -1]), [NO_LEASE, others.lease, 0, -1])

    def test_a_hello_without_a_lease_ends_it_and_uses_up_an_attempt(self):
        worker, other = self.worker(), self.worker()
        (lease,) = worker.request()
        again = self.worker(name=worker.name)
        self.assertEqual(again.unknown([lease.lease]), [lease.lease])
        worker.leases = []
        other_lease = self.lease_of(other, lease.episode)
        self.assertEqual(other_lease.attempt, lease.attempt + 1)
        self.assertNotEqual(other_lease.lease, lease.lease)
        self.assert_verdict(other.result(other_lease), "VERDICT_ACCEPTED")

    def test_a_hello_on_a_new_connection_keeps_the_leases_that_it_lists(self):
        worker = self.worker()
        kept, forgotten = worker.request(2)
        again = self.worker(name=worker.name, leases=[kept.lease])
        worker.leases = []
        self.assertEqual(again.unknown([kept.lease, forgotten.lease]), [forgotten.lease])
        self.assert_verdict(again.result(kept), "VERDICT_ACCEPTED")

    def test_the_status_counts_leases_and_episodes_of_a_worker(self):
        worker = self.worker()
        (lease, _) = worker.request(2)
        worker.result(lease)
        rows = [(row.leases, row.episodes_done, row.build, row.device) for row in self.status().workers
                if row.worker.rpartition("/")[2] == worker.name]
        self.assertEqual(rows, [(1, 1, "conformance", "none")])

    def test_a_worker_that_runs_no_kind_of_the_run_waits_and_is_told_why(self):
        worker = self.worker()
        (lease,) = worker.request()
        worker.release([lease])
        other = ({wire.LEASE_KIND_ANSWERS, wire.LEASE_KIND_DIVERGENCE} - {lease.kind}).pop()
        lacking = self.worker(kinds=[other])
        answer = lacking.ask(wire.LeaseRequest(count=1))
        self.assertIsInstance(answer, wire.Wait, one_line(answer))
        self.assertIn(wire.LeaseKind.Name(lease.kind).removeprefix("LEASE_KIND_").lower(), answer.message)
        self.assertGreater(answer.retry_after_ms, 0)

    def test_a_worker_that_names_no_kind_runs_answers(self):
        worker = self.worker()
        (lease,) = worker.request()
        worker.release([lease])
        self.needs(lease.kind == wire.LEASE_KIND_ANSWERS, "answers as its rewards")
        self.assertEqual(self.worker(kinds=[]).request()[0].kind, wire.LEASE_KIND_ANSWERS)


class Deadlines(Case):
    """These wait for leases to run out."""

    def worker_of_short_leases(self):
        worker = self.worker()
        self.lease_seconds = worker.welcome.spec.lease_ms / 1000
        self.needs(self.lease_seconds <= self.target.longest_lease, f"leases of at most {self.target.longest_lease} s")
        return worker

    def keep(self, worker, seconds, listed, body=wire.Heartbeat()):
        """Says something often enough for that long, listing these leases and no others."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            worker.ask(body, leases=listed)
            time.sleep(min(worker.welcome.heartbeat_ms / 1000, self.lease_seconds / 4))

    def test_a_message_renews_the_leases_that_it_lists_and_only_those(self):
        """What ran out is offered again as the next attempt; its late result is used all the same, and then the episode is done."""
        worker, other = self.worker_of_short_leases(), self.worker()
        before = self.status().counters
        listed, unlisted = worker.request(2)
        self.keep(worker, 2 * self.lease_seconds, [listed.lease])
        self.assertEqual(worker.unknown([listed.lease, unlisted.lease]), [unlisted.lease])
        after = self.status().counters
        self.assertGreaterEqual(after.expired, before.expired + 1)
        self.assertGreaterEqual(after.timed_out, before.timed_out + 1)
        again = self.lease_of(other, unlisted.episode)
        self.assertEqual(again.attempt, unlisted.attempt + 1)
        self.assert_verdict(worker.result(listed), "VERDICT_ACCEPTED")
        self.assert_verdict(worker.result(unlisted), "VERDICT_LATE")
        self.assertEqual(other.unknown([again.lease]), [again.lease])
        self.assert_verdict(other.result(again), "VERDICT_DUPLICATE", "VERDICT_LATE")

    def test_any_message_after_hello_renews(self):
        worker = self.worker_of_short_leases()
        (lease,) = worker.request()
        self.keep(worker, 1.5 * self.lease_seconds, [lease.lease], wire.LeaseRequest(count=0))
        self.assertEqual(worker.unknown([lease.lease]), [])

    def test_a_release_after_the_deadline_still_delivers_its_answers(self):
        worker, other = self.worker_of_short_leases(), self.worker()
        (lease,) = worker.request()
        self.needs(len(lease.questions) > 1, "episodes of at least 2 questions")
        self.keep(worker, 2 * self.lease_seconds, [])
        worker.release([lease], partial=[wire.PartialResult(lease=lease.lease, episode=lease.episode, outcomes=outcomes(lease)[:1],
                                                            seconds=0.5)])
        again = self.lease_of(other, lease.episode)
        self.assertEqual(list(again.questions), list(lease.questions)[1:])
        self.assert_verdict(other.result(again), "VERDICT_ACCEPTED")


class Drain(Case):
    def partial(self, lease, questions, correct=True):
        return wire.PartialResult(lease=lease.lease, episode=lease.episode, seconds=0.5,
                                  outcomes=[outcome(lease, question, correct) for question in questions])

    def two_workers_and_a_lease(self):
        worker, other = self.worker(), self.worker()
        (lease,) = worker.request()
        self.needs(len(lease.questions) >= 3, "episodes of at least 3 questions")
        return worker, other, lease

    def test_a_released_lease_is_offered_again_and_uses_up_no_attempt(self):
        worker, other, lease = self.two_workers_and_a_lease()
        before = self.status().counters
        self.assertEqual(list(worker.release([lease]).leases), [lease.lease])
        self.assertEqual(worker.unknown([lease.lease]), [lease.lease])
        again = self.lease_of(other, lease.episode)
        self.assertEqual((again.attempt, list(again.questions)), (lease.attempt, list(lease.questions)))
        self.assertEqual((again.sampling_seed, list(again.samples)), (lease.sampling_seed, list(lease.samples)))
        after = self.status().counters
        self.assertGreaterEqual(after.released, before.released + 1)
        self.assertEqual(after.preempted, before.preempted)

    def test_a_release_by_a_preempted_worker_is_counted_apart(self):
        worker, _, lease = self.two_workers_and_a_lease()
        before = self.status().counters.preempted
        worker.release([lease], reason=wire.Release.REASON_PREEMPTED)
        self.assertEqual(self.status().counters.preempted, before + 1)

    def test_answers_of_a_release_are_kept_and_the_next_lease_lists_the_other_questions(self):
        """So an EpisodeResult has as many outcomes as its lease has questions, which may be fewer than questions_per_episode."""
        worker, other, lease = self.two_workers_and_a_lease()
        before = self.status().counters.answers_kept
        kept = [lease.questions[0], lease.questions[2]]
        worker.release([lease], partial=[self.partial(lease, kept)])
        again = self.lease_of(other, lease.episode)
        self.assertEqual(list(again.questions), [question for question in lease.questions if question not in kept])
        self.assertEqual(self.status().counters.answers_kept, before + 2)
        self.assert_verdict(other.result(again), "VERDICT_ACCEPTED")

    def test_a_result_may_also_answer_what_was_kept(self):
        worker, other, lease = self.two_workers_and_a_lease()
        worker.release([lease], partial=[self.partial(lease, lease.questions[:1])])
        again = self.lease_of(other, lease.episode)
        self.assert_verdict(other.result(again, outcomes=outcomes(lease)), "VERDICT_ACCEPTED")

    def test_a_release_that_answers_the_last_question_is_the_result(self):
        worker, other, lease = self.two_workers_and_a_lease()
        worker.release([lease], partial=[self.partial(lease, lease.questions[:1])])
        again = self.lease_of(other, lease.episode)
        other.release([again], partial=[self.partial(again, again.questions)])
        self.assert_verdict(other.result(again), "VERDICT_DUPLICATE", "VERDICT_ACCEPTED")

    def test_a_repeated_release_is_answered_again_and_keeps_nothing_twice(self):
        worker, other, lease = self.two_workers_and_a_lease()
        before = self.status().counters.answers_kept
        for _ in range(2):
            answer = worker.release([lease], partial=[self.partial(lease, lease.questions[:1])])
            self.assertEqual(list(answer.leases), [lease.lease])
        self.assertEqual(self.status().counters.answers_kept, before + 1)
        self.assert_verdict(other.result(self.lease_of(other, lease.episode)), "VERDICT_ACCEPTED")

    def test_answers_that_do_not_fit_are_dropped_and_the_lease_is_released(self):
        for misfit in (lambda lease: [NO_QUESTION], lambda lease: lease.questions[:1] * 2, lambda lease: lease.questions[1::-1]):
            worker, other, lease = self.two_workers_and_a_lease()
            before = self.status().counters.rejected
            worker.release([lease], partial=[self.partial(lease, misfit(lease))])
            self.assertEqual(self.status().counters.rejected, before + 1)
            again = self.lease_of(other, lease.episode)
            self.assertEqual((again.attempt, list(again.questions)), (lease.attempt, list(lease.questions)))
            self.assert_verdict(other.result(again), "VERDICT_ACCEPTED")

    def test_nobody_releases_the_lease_of_another(self):
        worker, other, lease = self.two_workers_and_a_lease()
        other.release([lease], partial=[self.partial(lease, lease.questions)])
        self.assertEqual(worker.unknown([lease.lease]), [])
        self.assert_verdict(worker.result(lease), "VERDICT_ACCEPTED")

    def test_a_result_after_the_release_is_late_and_used(self):
        worker, _, lease = self.two_workers_and_a_lease()
        worker.release([lease])
        self.assert_verdict(worker.result(lease), "VERDICT_LATE")


NO_QUESTION = 2**32 - 1
assert CAPACITY >= 3
