"""Status, Control and the end of a run. docs/wire-protocol.md, Status and Control."""

import time

from case import Case, Verdict, one_line, outcomes
from peer import wire

MOST_REQUESTS_TO_THE_END = 200


class Status(Case):
    def test_the_status_repeats_what_a_client_needs_of_the_spec(self):
        welcome, status = self.spec(), self.status()
        spec = welcome.spec
        self.assertEqual((status.run_id, status.epoch), (spec.run_id, welcome.epoch))
        self.assertEqual((status.model, status.task, status.estimator, status.unit, status.total_samples, status.lease_ms),
                         (spec.model.id, spec.task.name, spec.attention.estimator, spec.attention.unit, spec.policy.total, spec.lease_ms))
        self.assertEqual(len(status.recommended), spec.model.layers)
        self.assertIn(status.stage, ("preflight", "learn", "verify", "finished"))

    def test_the_status_counts_what_runs(self):
        before = self.status()
        worker = self.worker()
        granted = worker.request(2)
        after = self.status()
        self.assertEqual(after.episodes_running, before.episodes_running + len(granted))
        self.assertEqual(after.counters.granted, before.counters.granted + len(granted))


class Control(Case):
    def steering(self):
        return self.status().steering[-1]

    def test_a_pause_grants_nothing_takes_results_and_ends_with_resume(self):
        worker = self.worker()
        (lease,) = worker.request()
        answer = self.control(action=wire.Control.ACTION_PAUSE)
        self.assertTrue(answer.done, answer.message)
        try:
            self.assertTrue(self.status().paused)
            event = self.steering()
            self.assertEqual((event.action, event.by.rpartition("/")[2]), (wire.Control.ACTION_PAUSE, "conformance"))
            wait = worker.ask(wire.LeaseRequest(count=1))
            self.assertIsInstance(wait, wire.Wait, one_line(wait))
            self.assertEqual((wait.paused, wait.finished), (True, False))
            self.assertGreater(wait.retry_after_ms, 0)
            self.assert_verdict(worker.result(lease), "VERDICT_ACCEPTED")
        finally:
            answer = self.control(action=wire.Control.ACTION_RESUME)
        self.assertTrue(answer.done, answer.message)
        self.assertFalse(self.status().paused)
        worker.request()
        self.assertFalse(self.control(action=wire.Control.ACTION_RESUME).done, "the run was not paused")

    def test_the_number_of_episodes_and_a_target_can_be_changed(self):
        spec = self.spec().spec
        self.needs(self.status().stage in ("preflight", "learn"), "learning still to do")
        wanted = self.status().episodes_wanted
        self.assertTrue(self.control(action=wire.Control.ACTION_EPISODES, episodes=wanted + 7).done)
        self.assertEqual(self.status().episodes_wanted, wanted + 7)
        if spec.reward_kind in ("", "answers"):
            self.assertTrue(self.control(action=wire.Control.ACTION_TARGET, reward=1.0).done)
            self.assertEqual(self.status().target_reward, 1.0)
        self.assertTrue(self.control(action=wire.Control.ACTION_EPISODES, episodes=wanted).done)
        self.assertEqual((self.status().episodes_wanted, self.status().target_reward), (wanted, 0))

    def test_bounds_can_be_changed(self):
        self.needs(self.status().stage in ("preflight", "learn"), "learning still to do")
        bounds = self.spec().spec.policy.bounds
        self.assertTrue(self.control(action=wire.Control.ACTION_BOUNDS, bounds="0:1-4").done)
        self.assertEqual(self.steering().bounds, "0:1-4")
        self.assertFalse(self.control(action=wire.Control.ACTION_BOUNDS, bounds="none of these").done)
        self.assertTrue(self.control(action=wire.Control.ACTION_BOUNDS, bounds=bounds).done)

    def test_held_out_questions_can_be_changed(self):
        task = self.spec().spec.task
        self.needs(self.status().stage in ("preflight", "learn") and task.heldout_questions > 1, "learning still to do and held-out questions")
        fewer = task.heldout_questions - 1
        self.assertTrue(self.control(action=wire.Control.ACTION_HELDOUT_QUESTIONS, heldout_questions=fewer).done)
        self.assertEqual(self.steering().heldout_questions, fewer)
        self.assertFalse(self.control(action=wire.Control.ACTION_HELDOUT_QUESTIONS, heldout_questions=task.heldout.questions + 1).done)
        self.assertTrue(self.control(action=wire.Control.ACTION_HELDOUT_QUESTIONS, heldout_questions=task.heldout_questions).done)

    def test_commands_that_mean_nothing_are_not_done_and_not_noted(self):
        events = len(self.status().steering)
        for command in ({"action": wire.Control.ACTION_UNSPECIFIED}, {"action": 99}, {"action": wire.Control.ACTION_EPISODES, "episodes": 0},
                        {"action": wire.Control.ACTION_EPISODES, "episodes": -1}, {"action": wire.Control.ACTION_TARGET, "reward": float("nan")},
                        {"action": wire.Control.ACTION_TARGET, "reward": -1.0}):
            answer = self.control(**command)
            self.assertIsInstance(answer, wire.ControlReply)
            self.assertFalse(answer.done, command)
            self.assertNotEqual(answer.message, "")
        self.assertEqual(len(self.status().steering), events)

    def test_who_controls_has_to_be_named(self):
        answer = self.control(action=wire.Control.ACTION_PAUSE, by="")
        self.assertFalse(answer.done)
        self.assertNotEqual(answer.message, "")
        self.assertFalse(self.status().paused)


class CrossCheck(Case):
    """A share of the told episodes is run once more by a worker of another holder; without keys each worker is a holder."""

    def test_what_a_worker_answered_is_leased_to_another_holder_and_differing_grades_are_counted(self):
        self.needs(self.spec().spec.cross_check == 1, "all grades checked twice")
        first, second = self.worker(), self.worker("second worker" if self.target.roles else "worker")
        before = self.status().cross_check
        (lease,) = first.request(1)
        self.assert_verdict(first.result(lease, outcomes=outcomes(lease, correct=True)), "VERDICT_ACCEPTED")
        (check,) = second.request(1)
        same = ("kind", "split", "sampling_seed", "questions", "samples")
        self.assertEqual([getattr(check, field) for field in same], [getattr(lease, field) for field in same])
        self.assertNotEqual(check.episode, lease.episode)
        self.assert_verdict(second.result(check, outcomes=outcomes(check, correct=False)), "VERDICT_ACCEPTED")
        checks = self.status().cross_check
        self.assertEqual(checks.episodes - before.episodes, 1)
        self.assertEqual(checks.disagreements - before.disagreements, len(lease.questions))
        self.assertEqual(len(checks.holders), 2)


class TheEnd(Case):
    """Ends the run, so it comes last: learning stops, the verification is answered, and every worker is told that it is over."""

    def test_stop_then_verification_then_finished(self):
        worker = self.worker()
        heldout, of_episode = worker.welcome.spec.task.heldout_questions, worker.welcome.spec.questions_per_episode
        self.needs(3 * heldout <= of_episode * MOST_REQUESTS_TO_THE_END // 2, "so few held-out questions that it can be ended here")
        self.needs(self.status().stage in ("learn", "finished"), "no preflight")
        if self.status().stage == "learn":
            answer = self.control(action=wire.Control.ACTION_STOP)
            self.assertTrue(answer.done, answer.message)
        splits = set()
        for _ in range(MOST_REQUESTS_TO_THE_END):
            answer = worker.ask(wire.LeaseRequest(count=1))
            if isinstance(answer, wire.Wait) and answer.finished:
                break
            if isinstance(answer, wire.Wait):
                time.sleep(answer.retry_after_ms / 1000)
                continue
            (lease,) = answer.leases
            splits.add(lease.split)
            verdict = Verdict.Name(worker.result(lease).verdict)
            # What other cases left open may be too old to learn from, and is an answer nevertheless.
            self.assertIn(verdict, ("VERDICT_ACCEPTED", "VERDICT_STALE")[:2 if lease.split == wire.SPLIT_TRAIN else 1])
        self.assertIsInstance(answer, wire.Wait, f"not finished after {MOST_REQUESTS_TO_THE_END} requests")
        self.assertTrue(answer.finished, f"not finished after {MOST_REQUESTS_TO_THE_END} requests")
        status = self.status()
        self.assertEqual(status.stage, "finished")
        if heldout > 0:
            self.assertIn(wire.SPLIT_HELDOUT, splits)
            self.assertEqual({score.label for score in status.scores}, {"uniform", "learned", "dense"})
            self.assertEqual({(score.answered, score.wanted) for score in status.scores}, {(heldout, heldout)})
        if 0 < heldout < worker.welcome.spec.task.heldout.questions:
            # More held-out questions are verified of the same schedules, then it is finished again.
            more = heldout + 1
            self.assertTrue(self.control(action=wire.Control.ACTION_HELDOUT_QUESTIONS, heldout_questions=more).done)
            self.assertEqual(self.status().stage, "verify")
            for lease in worker.request(3):
                self.assertEqual((lease.split, list(lease.questions)), (wire.SPLIT_HELDOUT, [heldout]))
                self.assert_verdict(worker.result(lease), "VERDICT_ACCEPTED")
            self.assertEqual({(score.answered, score.wanted) for score in self.status().scores}, {(more, more)})
            self.assertEqual(self.status().stage, "finished")
        # More episodes than it has learned from would let it go on.
        for action in (wire.Control.ACTION_STOP, wire.Control.ACTION_EPISODES, wire.Control.ACTION_PAUSE):
            self.assertFalse(self.control(action=action, episodes=max(1, status.episodes_done)).done)
        late = self.worker()
        self.assertTrue(late.ask(wire.LeaseRequest(count=1)).finished)
