"""One peer of an aggregator: a DEALER socket that sends and receives Envelopes, and nothing that hides them. Only pyzmq, protobuf
and protoc are used; the messages are those of wire/messages.proto, compiled into a temporary directory."""

import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import zmq

PROTO = pathlib.Path(__file__).resolve().parents[2] / "wire/messages.proto"
PROTOCOL_VERSION = 1
# How long an answer may take before a case fails. Generous: a busy machine is no fault of the aggregator.
ANSWER_SECONDS = float(os.environ.get("CONFORMANCE_ANSWER_SECONDS", "20"))


def compile_messages(proto=PROTO):
    """The Python module that protoc makes of messages.proto."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        subprocess.run(["protoc", f"-I{proto.parent}", f"--python_out={folder}", proto.name], check=True)
        sys.path.insert(0, folder)
        try:
            return importlib.import_module("messages_pb2")
        finally:
            sys.path.remove(folder)


wire = compile_messages()
BODIES = {field.message_type.name: field.name for field in wire.Envelope.DESCRIPTOR.oneofs_by_name["body"].fields}


def envelope(body, number, **fields):
    """An Envelope around a body message: envelope(wire.Heartbeat(), 2, leases=[7])."""
    message = wire.Envelope(**{"protocol_version": PROTOCOL_VERSION, "number": number, **fields})
    getattr(message, BODIES[type(body).__name__]).CopyFrom(body)
    return message


def body_of(message):
    """(name, body): ("grant", Grant)."""
    name = message.WhichOneof("body")
    return name, getattr(message, name) if name else None


class NoAnswer(AssertionError):
    pass


class Keys:
    """What one peer needs of CURVE, as raw 32 bytes each."""

    def __init__(self, server, public, secret):
        self.server, self.public, self.secret = server, public, secret

    @classmethod
    def read(cls, server_hex, secret_key_file):
        """From 64 hexadecimal digits and a file with a line `public HEX` and a line `secret HEX`."""
        lines = dict(line.split()[:2] for line in pathlib.Path(secret_key_file).read_text().splitlines()
                     if line.startswith(("public ", "secret ")))
        return cls(bytes.fromhex(server_hex), bytes.fromhex(lines["public"]), bytes.fromhex(lines["secret"]))


class Peer:
    """number: the count of the message sent last; the first is 1, because in_reply_to 0 means "answers no message"."""

    def __init__(self, endpoint, keys=None, sender="", setup=None):
        self.sender, self.number, self.epoch = sender, 0, 0
        self.leases = []  # what each Envelope lists: the leases that this peer works on or has an unacked result of
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndtimeo = int(ANSWER_SECONDS * 1000)
        self.monitor = self.socket.get_monitor_socket()
        if keys is not None:
            self.socket.curve_serverkey = keys.server
            self.socket.curve_publickey = keys.public
            self.socket.curve_secretkey = keys.secret
        if setup is not None:
            setup(self.socket)
        self.socket.connect(endpoint)

    def close(self):
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)
        self.context.term()

    def send_parts(self, *parts):
        """Bytes as they are, one frame each."""
        self.socket.send_multipart(list(parts))

    def send(self, body, **fields):
        """Sends one Envelope and returns its number."""
        self.number += 1
        fields = {"sender": self.sender, "leases": self.leases, "epoch": self.epoch, **fields}
        message = envelope(body, fields.pop("number", self.number), **fields)
        self.send_parts(message.SerializeToString())
        return message.number

    def receive_parts(self, seconds=ANSWER_SECONDS):
        """The frames of the next message; None when none came in time."""
        if not self.socket.poll(int(seconds * 1000)):
            return None
        return self.socket.recv_multipart()

    def receive(self, seconds=ANSWER_SECONDS):
        """The next Envelope, which must be the only frame of its message; None when none came in time."""
        parts = self.receive_parts(seconds)
        if parts is None:
            return None
        if len(parts) != 1:
            raise AssertionError(f"a message has {len(parts)} frames, one Envelope in one frame is expected")
        message = wire.Envelope.FromString(parts[0])
        if message.protocol_version != PROTOCOL_VERSION:
            raise AssertionError(f"an Envelope has protocol version {message.protocol_version}, {PROTOCOL_VERSION} is expected")
        return message

    def expect(self):
        """The next Envelope, which has to come."""
        message = self.receive()
        if message is None:
            raise NoAnswer(f"nothing came in {ANSWER_SECONDS} s after message {self.number}")
        return message

    def ask_envelope(self, body, **fields):
        """Sends and waits for the Envelope that answers it."""
        number = self.send(body, **fields)
        deadline = time.monotonic() + ANSWER_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            message = self.receive(left)
            if message is not None and message.in_reply_to == number:
                return message
        raise NoAnswer(f"no answer to message {number} ({type(body).__name__}) in {ANSWER_SECONDS} s")

    def ask(self, body, **fields):
        """The body of the answer."""
        return body_of(self.ask_envelope(body, **fields))[1]

    def event(self, wanted, seconds=ANSWER_SECONDS):
        """Waits for an event of the connection (zmq.EVENT_…); False when none came in time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self.monitor.poll(int(left * 1000) + 1):
                return False
            event = int.from_bytes(self.monitor.recv_multipart()[0][:2], sys.byteorder)
            if event & wanted:
                return True
        return False
