"""Keys and roles: who gets in, and what they may say. docs/wire-protocol.md, Security, and docs/security.md."""

import time

import zmq

from case import Case, one_line
from peer import Keys, Peer, body_of, wire

SILENCE_SECONDS = 1
COUNTED_SECONDS = 10


class Roles(Case):
    def setUp(self):
        super().setUp()
        self.needs(self.target.roles, "keys")

    def test_a_viewer_sees_the_status_and_the_spec_and_no_more(self):
        viewer = self.peer("viewer")
        self.assertIsInstance(viewer.ask(wire.StatusRequest()), wire.Status)
        self.assertIsInstance(viewer.ask(wire.Hello(worker="a client", client=True)), wire.Welcome)
        for body in (wire.Hello(worker="w"), wire.LeaseRequest(count=1), wire.EpisodeResult(lease=1), wire.Release(), wire.Heartbeat(),
                     wire.Control(action=wire.Control.ACTION_PAUSE, by="viewer")):
            self.assert_refused(viewer.ask(body), "REASON_NOT_ALLOWED")
        self.assertFalse(self.status().paused)

    def test_what_a_viewer_is_refused_is_counted(self):
        before = self.status().counters.not_allowed
        self.assert_refused(self.peer("viewer").ask(wire.Heartbeat()), "REASON_NOT_ALLOWED")
        self.assertEqual(self.status().counters.not_allowed, before + 1)

    def test_a_worker_may_not_control(self):
        answer = self.peer("worker").ask(wire.Control(action=wire.Control.ACTION_PAUSE, by="worker"))
        if isinstance(answer, wire.Refused):
            self.assert_refused(answer, "REASON_NOT_ALLOWED")
        else:
            self.assertIsInstance(answer, wire.ControlReply, one_line(answer))
            self.assertFalse(answer.done)
            self.assertNotEqual(answer.message, "")
        self.assertFalse(self.status().paused)

    def test_an_operator_may_work_and_control(self):
        worker = self.worker("operator")
        self.assert_verdict(worker.result(worker.request()[0]), "VERDICT_ACCEPTED")
        self.assertTrue(self.control(action=wire.Control.ACTION_PAUSE).done)
        self.assertTrue(self.control(action=wire.Control.ACTION_RESUME).done)

    def test_the_holder_is_part_of_the_workers_name(self):
        """So two holders may use one name, and no name speaks for another holder."""
        first = self.worker("worker", name="the-same")
        second = self.worker("second worker", name="the-same")
        (lease,) = first.request()
        self.assertEqual(second.unknown([lease.lease]), [lease.lease])
        self.assert_verdict(second.result(lease), "VERDICT_REJECTED")
        names = {row.worker for row in self.status().workers if row.worker.endswith("/the-same")}
        self.assertEqual(len(names), 2, names)
        third = self.worker("second worker", name=sorted(names)[0])
        self.assertEqual(third.unknown([lease.lease]), [lease.lease])
        self.assert_verdict(first.result(lease), "VERDICT_ACCEPTED")


class Strangers(Case):
    """Whoever has no key on the list gets no byte of an answer."""

    def setUp(self):
        super().setUp()
        self.needs(self.target.roles, "keys")

    def assert_not_heard(self, keys=None, setup=None, event=zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL |
                         zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED):
        peer = Peer(self.target.endpoint, keys=keys, setup=setup)
        self.peers.append(peer)
        peer.send(wire.StatusRequest())
        self.assertTrue(event is None or peer.event(event), "the handshake did not fail")
        answer = peer.receive(SILENCE_SECONDS)
        self.assertIsNone(answer, answer and body_of(answer))

    def test_who_shows_a_key_that_is_not_on_the_list_is_counted(self):
        before = self.status().counters.refused_connections
        self.test_a_key_that_is_not_on_the_list()
        deadline = time.monotonic() + COUNTED_SECONDS  # the handshake is not refused where messages are answered
        while (counted := self.status().counters.refused_connections) <= before and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertGreater(counted, before)

    def test_a_key_that_is_not_on_the_list(self):
        public, secret = (zmq.utils.z85.decode(key) for key in zmq.curve_keypair())
        server = self.target.roles["worker"].server
        self.assert_not_heard(Keys(server, public, secret), event=zmq.EVENT_HANDSHAKE_FAILED_AUTH)

    def test_no_key_at_all(self):
        self.assert_not_heard()

    def test_a_password(self):
        def plain(socket):
            socket.plain_username, socket.plain_password = b"admin", b"admin"

        self.assert_not_heard(setup=plain)

    def test_a_worker_that_expects_another_server(self):
        """The aggregator cannot read such a peer's handshake; the peer does not take this one for the server it means."""
        worker = self.target.roles["worker"]
        public, _ = (zmq.utils.z85.decode(key) for key in zmq.curve_keypair())
        self.assert_not_heard(Keys(public, worker.public, worker.secret), event=None)
