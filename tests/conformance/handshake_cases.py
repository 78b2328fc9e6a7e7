"""Hello, Welcome and who may say what before. docs/wire-protocol.md, Conversation and Identities."""

import hashlib

import identity
from case import Case, identities, one_line
from peer import wire

MOST_NAME_BYTES = 200


class Handshake(Case):
    def test_a_client_is_told_the_spec_without_naming_a_model(self):
        welcome = self.spec()
        spec = welcome.spec
        self.assertGreaterEqual(welcome.epoch, 1)
        self.assertGreater(welcome.heartbeat_ms, 0)
        self.assertLess(welcome.heartbeat_ms, spec.lease_ms, "whoever says something so seldom loses its leases")
        self.assertNotEqual(spec.run_id, "")
        self.assertGreaterEqual(spec.model.layers, 1)
        self.assertGreaterEqual(spec.task.train.questions, spec.questions_per_episode)

    def test_a_client_may_not_work(self):
        client = self.peer()
        client.ask(wire.Hello(worker="a client", client=True))
        self.assert_refused(client.ask(wire.LeaseRequest(count=1)), "REASON_NOT_INTRODUCED")

    def test_nothing_but_status_and_control_is_heard_before_hello(self):
        for body in (wire.LeaseRequest(count=1), wire.EpisodeResult(lease=1), wire.Release(), wire.Heartbeat(), wire.Grant()):
            self.assert_refused(self.peer().ask(body), "REASON_NOT_INTRODUCED")
        self.assertIsInstance(self.peer().ask(wire.StatusRequest()), wire.Status)
        self.assertIsInstance(self.peer("operator").ask(wire.Control(by="conformance")), wire.ControlReply)

    def test_a_worker_that_repeats_the_identities_of_the_welcome_is_welcome(self):
        """The identity is the worker's own word: the aggregator compares it and cannot look at the worker's files."""
        worker = self.stranger()
        answer = worker.hello()
        self.assertIsInstance(answer, wire.Welcome, one_line(answer))
        self.assertEqual(answer.spec, worker.welcome.spec)
        self.assertEqual(answer.epoch, worker.welcome.epoch)
        self.assertIsInstance(worker.ask(wire.Heartbeat(), epoch=answer.epoch), wire.HeartbeatReply)

    def test_another_model_is_refused_with_both_values(self):
        worker = self.stranger()
        other = hashlib.sha256(b"another").hexdigest()
        for field in ("config_sha256", "tokenizer_sha256", "weights_fingerprint"):
            model = wire.ModelIdentity.FromString(worker.welcome.spec.model.SerializeToString())
            setattr(model, field, other)
            self.assert_refused(worker.hello(model=model), "REASON_MODEL", field, other)
        for field in ("layers", "num_q_heads", "num_kv_heads", "head_dim"):
            model = wire.ModelIdentity.FromString(worker.welcome.spec.model.SerializeToString())
            setattr(model, field, getattr(model, field) + 1)
            self.assert_refused(worker.hello(model=model), "REASON_MODEL", field)
        self.assert_refused(worker.ask(wire.LeaseRequest(count=1)), "REASON_NOT_INTRODUCED")

    def test_refused_hellos_are_counted(self):
        worker = self.stranger()
        before = self.status().counters.mismatched
        for wrong in ({"model": wire.ModelIdentity()}, {"train": wire.DatasetIdentity()}, {"worker": ""}):
            self.assertIsInstance(worker.hello(**wrong), wire.Refused)
        self.assertEqual(self.status().counters.mismatched, before + 3)

    def test_an_adapter_more_or_less_is_another_model(self):
        worker = self.stranger()
        model = wire.ModelIdentity.FromString(worker.welcome.spec.model.SerializeToString())
        if model.HasField("adapter"):
            model.ClearField("adapter")
        else:
            model.adapter.SetInParent()
        self.assert_refused(worker.hello(model=model), "REASON_MODEL", "adapter")

    def test_names_and_places_of_models_and_files_are_not_compared(self):
        worker = self.stranger()
        same = identities(worker.welcome.spec)
        same["model"] = wire.ModelIdentity.FromString(same["model"].SerializeToString())
        same["model"].id = "elsewhere"
        if same["model"].HasField("adapter"):
            same["model"].adapter.id = same["model"].adapter.path = "elsewhere"
        for data in ("train", "heldout"):
            same[data] = wire.DatasetIdentity.FromString(same[data].SerializeToString())
            same[data].path = "/elsewhere.jsonl"
        answer = worker.hello(**same)
        self.assertIsInstance(answer, wire.Welcome, one_line(answer))

    def test_other_data_are_refused(self):
        worker = self.stranger()
        compared = ["train"] + ["heldout"] * (worker.welcome.spec.task.heldout_questions > 0)
        for data in compared:
            for field, value in (("sha256", hashlib.sha256(b"another").hexdigest()), ("questions", 999_999), ("question_field", "other"),
                                 ("answer_field", "other")):
                other = wire.DatasetIdentity.FromString(getattr(worker.welcome.spec.task, data).SerializeToString())
                setattr(other, field, value)
                self.assert_refused(worker.hello(**{data: other}), "REASON_DATASET", field, str(value))

    def test_a_field_of_the_rows_that_is_not_named_is_the_usual_one(self):
        worker = self.stranger()
        train = wire.DatasetIdentity.FromString(worker.welcome.spec.task.train.SerializeToString())
        self.needs(not train.HasField("question_field"), "the usual fields")
        train.question_field = "question"
        self.assertIsInstance(worker.hello(train=train), wire.Welcome)

    def test_the_model_is_compared_before_the_data(self):
        worker = self.stranger()
        self.assert_refused(worker.hello(model=wire.ModelIdentity(), train=wire.DatasetIdentity()), "REASON_MODEL")

    def test_a_name_has_1_to_200_bytes_without_control_characters(self):
        """With keys the holder's name and a slash come before it and count."""
        prefix = len(self.worker_names()[0].rpartition("/")[0]) + 1 if self.target.roles else 0
        worker = self.stranger()
        for name in ("", "w" * (MOST_NAME_BYTES - prefix + 1), "ä" * (MOST_NAME_BYTES // 2) + "w", "a\nb", "a\x7fb", "\0"):
            self.assert_refused(worker.hello(worker=name), "REASON_MALFORMED")
        for name in ("w", "w" * (MOST_NAME_BYTES - prefix), "ä ö 漢"):
            answer = worker.hello(worker=name)
            self.assertIsInstance(answer, wire.Welcome, one_line(answer))
            self.assertIn(name, "\n".join(self.worker_names()))

    def worker_names(self):
        self.worker()
        return [row.worker for row in self.status().workers]

    def test_the_name_of_the_hello_counts_and_sender_does_not(self):
        first, second = self.worker(), self.worker()
        (lease,) = first.request()
        second.sender = first.name
        self.assertEqual(second.unknown([lease.lease]), [lease.lease])
        first.sender = second.name
        self.assertEqual(first.unknown([lease.lease]), [])

    def test_a_message_by_the_welcome_of_another_epoch_changes_nothing(self):
        worker = self.worker()
        (lease,) = worker.request()
        for epoch in (worker.epoch + 1, worker.epoch - 1 or 2**62, -1):
            answer = worker.ask(wire.EpisodeResult(lease=lease.lease, episode=lease.episode, error="no"), epoch=epoch)
            self.assert_refused(answer, "REASON_NOT_INTRODUCED")
        self.assert_verdict(worker.result(lease), "VERDICT_ACCEPTED")

    def test_epoch_0_is_not_checked(self):
        self.assertIsInstance(self.worker().ask(wire.Heartbeat(), epoch=0), wire.HeartbeatReply)

    def test_hello_may_be_said_again_on_the_same_connection(self):
        worker = self.worker()
        (lease,) = worker.request()
        self.assertIsInstance(worker.hello(), wire.Welcome)
        self.assertEqual(worker.unknown([lease.lease]), [])

    def test_a_refused_hello_leaves_the_worker_that_was_welcome(self):
        worker = self.worker()
        self.assert_refused(worker.hello(model=wire.ModelIdentity()), "REASON_MODEL")
        self.assertIsInstance(worker.ask(wire.Heartbeat()), wire.HeartbeatReply)


class Identities(Case):
    """The page says how each identity is computed; identity.py does it so, from the files of the run."""

    def test_of_the_model(self):
        self.needs(self.target.model is not None, "its model at hand (--model)")
        spec = self.spec().spec
        self.assertEqual(identity.of_model(self.target.model), {name: getattr(spec.model, name) for name in
                                                                ("config_sha256", "tokenizer_sha256", "weights_fingerprint")})

    def test_of_the_data(self):
        self.needs(self.target.data is not None and self.target.heldout is not None, "its data at hand (--data, --heldout)")
        task = self.spec().spec.task
        self.assertEqual((task.train.sha256, task.heldout.sha256), (identity.of_file(self.target.data), identity.of_file(self.target.heldout)))

    def test_of_the_adapter(self):
        self.needs(self.target.adapter is not None, "an adapter at hand (--adapter)")
        self.assertEqual(identity.of_adapter(self.target.adapter), self.spec().spec.model.adapter.fingerprint)
