"""Aggregators with one defect each: a real one behind a proxy that changes what passes, or a socket that lets in whom it should not."""

import contextlib
import threading

import zmq
import zmq.auth.thread
import zmq.utils.z85

from peer import body_of, wire

# The proxy's own limit is the aggregator's, so that connections end at the same frames.
MOST_BYTES = (1 << 20) + 64
POLL_MS = 20


def parse(frame):
    try:
        return wire.Envelope.FromString(frame)
    except Exception:  # noqa: BLE001, whatever protobuf calls it
        return None


class Proxy:
    """Stands before an aggregator. request(parts) changes the frames of a peer's message; reply(asked, answer) changes the answer,
    an Envelope, to the Envelope `asked` (None where that could not be read); raw(frame) makes the frames of what is sent back. Each
    peer has a connection of its own to the aggregator, so that it is one peer there too. An observer sees all that passes: said(peer,
    parts), answered(peer, answer), and idle() now and then, all on the proxy's thread."""

    def __init__(self, endpoint, request=None, reply=None, raw=None, most_bytes=MOST_BYTES, observer=None):
        self.endpoint = endpoint
        self.change_request = request or (lambda parts: parts)
        self.change_reply = reply or (lambda asked, answer: None)
        self.raw = raw or (lambda frame: [frame])
        self.observer = observer
        self.context = zmq.Context()
        self.front = self.context.socket(zmq.ROUTER)
        self.front.maxmsgsize = most_bytes
        self.front.linger = 0
        port = self.front.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"
        self.backs, self.asked = {}, {}
        self.stopping = threading.Event()
        self.fault = None
        self.thread = threading.Thread(target=self.work)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()
        for back in self.backs.values():
            back.close(0)
        self.front.close(0)
        self.context.term()
        if self.fault is not None:
            raise RuntimeError("the proxy itself failed") from self.fault

    def back_of(self, peer):
        if peer not in self.backs:
            back = self.backs[peer] = self.context.socket(zmq.DEALER)
            back.linger = 0
            back.connect(self.endpoint)
        return self.backs[peer]

    def work(self):
        try:
            self.pass_messages()
        except Exception as fault:  # noqa: BLE001, it is raised again where the proxy ends
            self.fault = fault

    def pass_messages(self):
        poller = zmq.Poller()
        poller.register(self.front, zmq.POLLIN)
        while not self.stopping.is_set():
            ready = dict(poller.poll(POLL_MS))
            if self.observer is not None:
                self.observer.idle()
            if self.front in ready:
                peer, *parts = self.front.recv_multipart()
                known = peer in self.backs
                back = self.back_of(peer)
                if not known:
                    poller.register(back, zmq.POLLIN)
                for part in parts:
                    if (message := parse(part)) is not None:
                        self.asked[peer, message.number] = message
                if self.observer is not None:
                    self.observer.said(peer, parts)
                parts = self.change_request(parts)
                if parts:
                    back.send_multipart(parts)
            for peer, back in list(self.backs.items()):
                if back in ready:
                    answer = wire.Envelope.FromString(back.recv())
                    self.change_reply(self.asked.get((peer, answer.in_reply_to)), answer)
                    if self.observer is not None:
                        self.observer.answered(peer, answer)
                    self.front.send_multipart([peer, *self.raw(answer.SerializeToString())])


@contextlib.contextmanager
def open_door(kind):
    """Answers every StatusRequest. kind: "curve" lets in any key, and its own is FIXED_KEYS; "null" and "plain" ask for none."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    if kind == "curve":
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = FIXED_KEYS
    elif kind == "plain":
        authenticator = zmq.auth.thread.ThreadAuthenticator(context)
        authenticator.start()
        authenticator.configure_plain(passwords={"admin": "admin"})
        socket.plain_server = True
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    stopping = threading.Event()

    def work():
        while not stopping.is_set():
            if socket.poll(POLL_MS):
                peer, frame = socket.recv_multipart()
                asked = parse(frame)
                answer = wire.Envelope(protocol_version=1, number=1, in_reply_to=asked.number, status=wire.Status())
                socket.send_multipart([peer, answer.SerializeToString()])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield f"tcp://127.0.0.1:{port}"
    finally:
        stopping.set()
        thread.join()
        socket.close(0)
        if kind == "plain":
            authenticator.stop()
        context.term()


FIXED_KEYS = zmq.curve_keypair()


# ---- Changes of replies. Each returns a function for Proxy's `reply`.


def of_body(name, change, when=lambda asked: True):
    """Changes the bodies of that name: change(body, asked)."""
    def reply(asked, answer):
        found, body = body_of(answer)
        if found == name and when(asked):
            change(body, asked)
    return reply


def field(name, path, value, when=lambda asked: True):
    """Sets a field, "counters.malformed", of bodies of that name; value may be a function of what is there."""
    def change(body, asked):
        *way, last = path.split(".")
        for step in way:
            body = getattr(body, step)
        before = getattr(body, last)
        setattr(body, last, value(before) if callable(value) else value)
    return of_body(name, change, when)


def clears(name, path, when=lambda asked: True):
    return of_body(name, lambda body, asked: body.ClearField(path), when)


def instead(name, make, when=lambda asked: True):
    """Answers with another body: make(asked) returns it."""
    def reply(asked, answer):
        if body_of(answer)[0] == name and when(asked):
            body = make(asked)
            field_name = next(field.name for field in wire.Envelope.DESCRIPTOR.oneofs_by_name["body"].fields
                              if field.message_type == body.DESCRIPTOR)
            getattr(answer, field_name).CopyFrom(body)
    return reply


def asked_for(name, holds=lambda body: True):
    """True for requests of that body."""
    def when(asked):
        return asked is not None and body_of(asked)[0] == name and holds(body_of(asked)[1])
    return when


def verdict(before, after):
    return field("ack", "verdict", lambda now: wire.Ack.Verdict.Value("VERDICT_" + after) if now == wire.Ack.Verdict.Value("VERDICT_" + before)
                 else now)


def stored(after):
    return field("ack", "stored", lambda now: now and wire.Ack.Verdict.Value("VERDICT_" + after))


# ---- Changes of requests. Each returns a function for Proxy's `request`.


def with_message(change):
    """change(message, name) of each Envelope; it may return bytes to send instead."""
    def request(parts):
        made = []
        for part in parts:
            message = parse(part)
            instead_of_it = change(message, body_of(message)[0]) if message is not None else None
            made.append(part if message is None else instead_of_it if instead_of_it is not None else message.SerializeToString())
        return made
    return request


def of_request(name, change):
    """Changes requests of that body: change(body)."""
    return with_message(lambda message, found: change(getattr(message, name)) and None if found == name else None)
