"""Frames: what one message is, and what happens to bytes that are none. docs/wire-protocol.md, Frames."""

import time

import zmq

from case import Case
from peer import body_of, envelope, wire

MOST_BYTES = 1 << 20
UNKNOWN_FIELD = 1000


def varint(number):
    made = b""
    while number > 127:
        made += bytes([number & 127 | 128])
        number >>= 7
    return made + bytes([number])


def padded(message, size):
    """The bytes of an Envelope, filled up with a field that nobody knows to exactly that size."""
    plain, key = message.SerializeToString(), varint(UNKNOWN_FIELD << 3 | 2)
    for length in range(size):
        frame = plain + key + varint(size - len(plain) - len(key) - length)
        if len(frame) + size - len(plain) - len(key) - length == size:
            return frame + b"x" * (size - len(frame))
    raise ValueError(f"{size} bytes are too few")


class Frames(Case):
    def test_one_message_is_one_frame_and_the_answer_names_the_question(self):
        """No empty delimiter; `in_reply_to` is the sender's `number`, which need not be the next one."""
        peer = self.peer()
        for number in (1, 2, 2**64 - 1):
            answer = peer.ask_envelope(wire.StatusRequest(), number=number)
            self.assertEqual((answer.in_reply_to, body_of(answer)[0]), (number, "status"))

    def test_the_aggregator_counts_its_own_messages(self):
        peer = self.peer()
        numbers = [peer.ask_envelope(wire.StatusRequest()).number for _ in range(3)]
        self.assertEqual(numbers, sorted(set(numbers)))
        self.assertGreaterEqual(numbers[0], 1)

    def test_bytes_that_are_no_envelope_are_refused_and_the_connection_goes_on(self):
        peer = self.peer()
        for frame in (b"\xff", b"GET / HTTP/1.1\r\n\r\n", b"\x08\x01\x10\x07\x22\x05w", b"\x0a" * 1000):
            peer.send_parts(frame)
            answer = peer.expect()
            self.assertEqual(answer.in_reply_to, 0)
            self.assert_refused(body_of(answer)[1], "REASON_MALFORMED")
        self.assertIsInstance(peer.ask(wire.StatusRequest()), wire.Status)

    def test_unreadable_messages_are_counted(self):
        before = self.status().counters.malformed
        peer = self.peer()
        peer.send_parts(b"\xff")
        self.assert_refused(body_of(peer.expect())[1], "REASON_MALFORMED")
        self.assertGreater(self.status().counters.malformed, before)

    def test_text_that_is_not_utf8_is_unreadable(self):
        peer = self.peer()
        frame = envelope(wire.StatusRequest(), 7, sender="w").SerializeToString().replace(b"\x22\x01w", b"\x22\x01\xff")
        peer.send_parts(frame)
        self.assert_refused(body_of(peer.expect())[1], "REASON_MALFORMED")

    def test_another_protocol_version_is_refused_by_name_and_answered(self):
        peer = self.peer()
        for version in (0, 2, 2**32 - 1):
            answer = peer.ask(wire.StatusRequest(), protocol_version=version)
            self.assert_refused(answer, "REASON_PROTOCOL_VERSION", str(version))

    def test_an_empty_frame_is_an_envelope_of_version_0(self):
        """A REQ socket sends one before each message, so it gets a Refused before each answer: connect with a DEALER."""
        peer = self.peer()
        peer.send_parts(b"", envelope(wire.StatusRequest(), 7).SerializeToString())
        first, second = peer.expect(), peer.expect()
        self.assert_refused(body_of(first)[1], "REASON_PROTOCOL_VERSION")
        self.assertEqual((first.in_reply_to, second.in_reply_to, body_of(second)[0]), (0, 7, "status"))

    def test_each_frame_of_a_multipart_message_is_an_envelope_of_its_own(self):
        peer = self.peer()
        peer.send_parts(*(envelope(wire.StatusRequest(), number).SerializeToString() for number in (5, 6, 7)))
        self.assertEqual([peer.expect().in_reply_to for _ in range(3)], [5, 6, 7])

    def test_an_envelope_without_a_body_is_malformed_and_answered(self):
        peer = self.peer()
        peer.send_parts(wire.Envelope(protocol_version=1, number=7).SerializeToString())
        answer = peer.expect()
        self.assertEqual(answer.in_reply_to, 7)
        self.assert_refused(body_of(answer)[1], "REASON_MALFORMED")

    def test_unknown_fields_are_ignored(self):
        peer = self.peer()
        peer.send_parts(padded(envelope(wire.StatusRequest(), 7), 200))
        self.assertEqual(body_of(peer.expect())[0], "status")

    def test_bodies_that_only_an_aggregator_sends_are_malformed(self):
        worker = self.worker()
        for body in (wire.Welcome(), wire.Grant(), wire.Wait(), wire.Ack(), wire.Released(), wire.HeartbeatReply(), wire.Status(),
                     wire.Refused(), wire.ControlReply()):
            self.assert_refused(worker.ask(body), "REASON_MALFORMED")

    def test_a_frame_of_1_mib_is_read(self):
        peer = self.peer()
        peer.send_parts(padded(envelope(wire.StatusRequest(), 7), MOST_BYTES))
        answer = peer.expect()
        self.assertEqual((answer.in_reply_to, body_of(answer)[0]), (7, "status"))

    def test_a_larger_frame_ends_the_connection_without_a_word(self):
        """The socket connects again by itself and is then somebody new. Nothing is answered and nothing counted."""
        before = self.status().counters.malformed
        worker = self.worker()
        worker.send_parts(padded(envelope(wire.Heartbeat(), 7), MOST_BYTES + 1024))
        self.assertTrue(worker.event(zmq.EVENT_DISCONNECTED), "the connection still stands")
        self.assert_refused(worker.ask(wire.Heartbeat()), "REASON_NOT_INTRODUCED")
        self.assertEqual(self.status().counters.malformed, before)


class Rate(Case):
    def test_a_sender_above_its_rate_is_told_to_wait_and_heard_again(self):
        """The Wait has in_reply_to 0, because the message was not read; it is to be sent again."""
        peer = self.peer()
        peer.ask(wire.StatusRequest())
        waits = []
        # Five seconds' worth may come at once.
        for _ in range(6 * self.target.rate // 100 + 10):
            for _ in range(100):
                peer.send(wire.Heartbeat())
            while (answer := peer.receive(0)) is not None:
                name, body = body_of(answer)
                if name == "wait":
                    waits.append((answer.in_reply_to, body))
            if waits:
                break
        while not waits and (answer := peer.receive(2)) is not None:
            if body_of(answer)[0] == "wait":
                waits.append((answer.in_reply_to, body_of(answer)[1]))
        self.assertTrue(waits, "the flood was read to its end")
        in_reply_to, wait = waits[0]
        self.assertEqual(in_reply_to, 0)
        self.assertGreaterEqual(wait.retry_after_ms, 1)
        while peer.receive(1) is not None:
            pass
        time.sleep(wait.retry_after_ms / 1000)
        self.assertIsInstance(peer.ask(wire.StatusRequest()), wire.Status)
