"""`allot serve` with the embedded model, asked by the `openai` package where Python can import it, and by plain HTTP.

    openai_client_test.py ALLOT MODEL_DIRECTORY [--malformed N]

Exits with 1 on a difference. Replies must not depend on what else is in the batch, joins it or leaves it.
"""

import argparse
import concurrent.futures
import http.client
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time

try:
    import openai
except ImportError:
    openai = None

KEY = "a-key-of-this-test-alone"


class Server:
    def __init__(self, allot, model, directory, schedule="uniform:8", more=()):
        self.directory = directory
        keys = directory + "/keys"
        with open(keys, "w") as file:
            file.write(KEY + "\n")
        self.executed = directory + "/executed.json"
        self.lock = threading.Lock()
        self.least_steps = 0  # tokens of answered completions but the first of each, which prefill makes
        self.process = subprocess.Popen(
            [allot, "serve", "--model", model, "--schedule", schedule, "--address",
             "127.0.0.1:*", "--api-keys", keys, "--max-sequences", "8", "--threads", "2",
             "--executed-out", self.executed, *more],
            stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:"), self.url
        self.port = int(self.url.rstrip("/").rsplit(":", 1)[1])

    def post(self, path, body, timeout=60):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, data,
                           {"Content-Type": "application/json", "Authorization": "Bearer " + KEY})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text)

    def metric(self, name):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        for line in connection.getresponse().read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise AssertionError(name + " is no metric")

    def end(self):
        self.process.terminate()
        return self.process.wait(60)


def completion(server, prompt, seed, tokens, temperature):
    status, answer = server.post("/v1/completions", {
        "model": "tiny-gsm", "prompt": prompt, "seed": seed, "max_tokens": tokens, "temperature": temperature})
    assert status == 200, answer
    with server.lock:
        server.least_steps += answer["usage"]["completion_tokens"] - 1
    return answer["choices"][0]["text"]


def check_batch_mates(server, questions):
    """Replies alone, one after the other, against all at once with mates that leave in the middle."""
    asked = [(question + "\n", seed, 40 + seed, temperature) for seed, question in enumerate(questions)
             for temperature in (0, 2)]
    alone = [completion(server, *one) for one in asked]
    leaving = json.dumps({"model": "tiny-gsm", "prompt": "x", "max_tokens": 900, "ignore_eos": True}).encode()
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        gone = [pool.submit(leave, server, leaving) for _ in range(6)]
        together = list(pool.map(lambda one: completion(server, *one), asked))
        for one in gone:
            one.result()
    different = [i for i, (first, second) in enumerate(zip(alone, together)) if first != second]
    assert not different, f"replies {different} depend on their batch mates"
    assert len(set(alone)) > len(questions), "temperature changes nothing"
    steps = server.metric("allot_serve_steps_total")
    assert server.metric("allot_serve_step_requests_total") > 1.5 * steps, "hardly anything ran together"
    for _ in range(200):
        if server.metric('allot_serve_requests_running') == 0:
            break
        time.sleep(0.05)
    assert server.metric('allot_serve_requests_total{outcome="cancelled"}') == 6, "six clients went away"
    assert server.metric("allot_serve_requests_running") == 0


LONG_PROMPT, CHUNK = 900, 8


def check_long_prompt(server, question):
    """A stream goes on while a long prompt is computed: it has a token for every chunk of it. Both replies are those
    that they are alone."""
    streamed = {"model": "tiny-gsm", "prompt": question + "\n", "max_tokens": 700, "temperature": 2, "seed": 5,
                "ignore_eos": True}
    generator = random.Random(3)
    long_one = {"model": "tiny-gsm", "prompt": [generator.randrange(10, 60) for _ in range(LONG_PROMPT)],
                "max_tokens": 20, "temperature": 2, "seed": 6, "ignore_eos": True}
    alone = [server.post("/v1/completions", body)[1]["choices"][0]["text"] for body in (streamed, long_one)]
    text, runs = "", threading.Event()

    def read():
        nonlocal text
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({**streamed, "stream": True}),
                           {"Content-Type": "application/json", "Authorization": "Bearer " + KEY})
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                runs.set()
        connection.close()

    reader = threading.Thread(target=read)
    reader.start()
    assert runs.wait(60), "the stream does not begin"
    before = len(text)
    status, answer = server.post("/v1/completions", long_one)
    meanwhile = len(text) - before
    reader.join()
    assert status == 200, answer
    assert [text, answer["choices"][0]["text"]] == alone, "replies depend on each other"
    # A token is a character here, or nothing where the end token was drawn. The long reply's own tokens come beside those of
    # the stream.
    tokens, chunks = meanwhile / len(text) * streamed["max_tokens"], LONG_PROMPT // CHUNK
    assert tokens >= chunks, f"the stream had some {tokens:.0f} tokens while {chunks} chunks were computed"


def to_the_answer(reply):
    answer = re.search("####.*\n", reply)
    return reply[:answer.end()] if answer else reply


def check_questions(server, allot, model, schedule):
    """A greedy reply to a question that the request names is that of `allot eval`, character by character, up to where
    eval ends it: behind the line of its answer, where the server, which knows no task, goes on to the end token."""
    data, details = model + "/heldout.jsonl", server.directory + "/details.jsonl"
    subprocess.run([allot, "eval", "--model", model, "--data", data, "--limit", "24", "--schedule", schedule,
                    "--threads", "2", "--details", details], check=True, stdout=subprocess.DEVNULL)
    with open(details) as file:
        expected = [json.loads(line)["reply"] for line in file]
    with open(data) as file:
        prompts = [json.loads(next(file))["question"] + "\n" for _ in expected]

    def ask(fields, number):
        status, answer = server.post("/v1/completions", {"model": "tiny-gsm", "prompt": prompts[number], **fields})
        assert status == 200, answer
        return answer["choices"][0]["text"]

    def ask_by_openai(number):
        answer = client.completions.create(model="tiny-gsm", prompt=prompts[number], extra_body={"question": number})
        return answer.choices[0].text

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        named = list(pool.map(lambda number: ask({"question": number}, number), range(24)))
        nameless = list(pool.map(lambda number: ask({}, number), range(24)))
        if openai is not None:
            client = openai.OpenAI(base_url=server.url + "v1", api_key=KEY, max_retries=0)
            assert list(map(to_the_answer, pool.map(ask_by_openai, range(24)))) == expected
    named = list(map(to_the_answer, named))
    different = [number for number in range(24) if named[number] != expected[number]]
    assert not different, [(number, named[number], expected[number]) for number in different[:2]]
    status, answer = server.post("/v1/completions", {
        "model": "tiny-gsm", "prompt": prompts[8:16], "question": list(range(8, 16))})
    assert status == 200 and [to_the_answer(choice["text"]) for choice in answer["choices"]] == expected[8:16], answer
    assert list(map(to_the_answer, nameless)) != expected, "the question changes nothing"


def leave(server, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/completions", body,
                       {"Content-Type": "application/json", "Authorization": "Bearer " + KEY})
    time.sleep(0.2)
    connection.close()


def check_openai(server, question):
    client = openai.OpenAI(base_url=server.url + "v1", api_key=KEY, max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny-gsm"]
    messages = [{"role": "user", "content": question}]
    chat = client.chat.completions.create(model="tiny-gsm", messages=messages, temperature=0, seed=1, max_tokens=60)
    assert chat.choices[0].message.role == "assistant"
    assert chat.choices[0].finish_reason == "stop", chat
    assert "####" in chat.choices[0].message.content, chat
    assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens
    pieces, usage = [], None
    for chunk in client.chat.completions.create(model="tiny-gsm", messages=messages, temperature=0, seed=1,
                                                max_tokens=60, stream=True, stream_options={"include_usage": True}):
        if chunk.choices:
            pieces.append(chunk.choices[0].delta.content or "")
        else:
            usage = chunk.usage
    assert "".join(pieces) == chat.choices[0].message.content and len(pieces) > 10, pieces
    assert usage == chat.usage, (usage, chat.usage)
    several = client.completions.create(model="tiny-gsm", prompt=[question + "\n", "Tom has"], n=2, max_tokens=8,
                                        temperature=1, seed=3, stop=["####"])
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    for error, make in [
            (openai.AuthenticationError,
             lambda: openai.OpenAI(base_url=server.url + "v1", api_key="x", max_retries=0).models.list()),
            (openai.NotFoundError, lambda: client.completions.create(model="other", prompt="a")),
            (openai.BadRequestError, lambda: client.completions.create(model="tiny-gsm", prompt="a", logprobs=1)),
            (openai.BadRequestError, lambda: client.completions.create(model="tiny-gsm", prompt="a" * 5000))]:
        try:
            make()
        except error:
            continue
        raise AssertionError(f"{error.__name__} was not raised")


def malformed(generator):
    """A body that is no good request: a good one with bytes cut off, put in or changed beyond JSON or its fields."""
    good = json.dumps({"model": "tiny-gsm", "prompt": "What is 2 plus 3?", "max_tokens": 2}).encode()
    kind = generator.randrange(4)
    if kind == 0:
        return good[:generator.randrange(len(good))]
    if kind == 1:
        return bytes(generator.randrange(256) for _ in range(generator.randrange(200)))
    if kind == 2:
        field = generator.choice(["temperature", "top_p", "n", "seed", "stop", "stream", "stream_options", "max_tokens"])
        value = generator.choice(["-5", "{\"x\": []}", "[[[]]]", "1e999", "9" * 40, "[7]"])
        return good[:-1] + f', "{field}": {value}}}'.encode()
    return good[:-1] + b', "user": ' + b"[" * generator.randrange(40, 5000)


def check_malformed(server, count):
    generator = random.Random(20260103)
    statuses = {}
    for _ in range(count):
        body = malformed(generator)
        status, answer = server.post(generator.choice(["/v1/completions", "/v1/chat/completions"]), body)
        assert status in (400, 404), (status, body[:200])
        assert answer["error"]["message"], answer
        statuses[status] = statuses.get(status, 0) + 1
    assert server.process.poll() is None, "the server ended"
    print(f"{count} malformed requests: {statuses}")


def check_raw(server, count):
    """Bytes that are no HTTP, or no whole request: the server answers an error or closes, and serves the next client."""
    generator = random.Random(20261125)
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + KEY + "\r\n"
    makers = [
        lambda: bytes(generator.randrange(256) for _ in range(generator.randrange(1, 400))),
        lambda: head.encode()[:generator.randrange(1, len(head))],
        lambda: (head + "Content-Length: " + generator.choice(["-1", "1e9", "99999999999999999999", "x"]) + "\r\n\r\n{}").encode(),
        lambda: (head + "Content-Length: 500\r\n\r\n{\"model\"").encode(),
        lambda: (head + "Transfer-Encoding: chunked\r\n\r\n" + generator.choice(["zz", "-5", "fffffffff"]) + "\r\n{}\r\n").encode(),
        lambda: (head + "X-Long: " + "a" * generator.randrange(9000, 90000) + "\r\n\r\n").encode(),
        lambda: head.replace("POST", generator.choice(["G\0T", "post", "PRI * HTTP/2.0", ""])).encode() + b"\r\n"]
    for i in range(count):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            try:
                connection.sendall(makers[i % len(makers)]())
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(4096)
            except ConnectionError:
                continue  # closed before all was sent
        status = answer[9:12]
        assert not answer or status[:1] in (b"4", b"5"), answer[:200]
    assert server.process.poll() is None, "the server ended"
    assert completion(server, "What is 2 plus 3?\n", 1, 4, 0)


def check_range(server):
    """The header Range is ignored: an answer, or an error, comes whole and once."""
    ranges = {"Range": "bytes=" + ",".join(["0-"] * 2000), "Authorization": "Bearer " + KEY}
    for path, expected in [("/v1/models", 200), ("/health", 200), ("/v1/none", 404)]:
        lengths = []
        for headers in ({"Authorization": "Bearer " + KEY}, ranges):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            lengths.append(len(answer.read()))
            assert answer.status == expected, (path, answer.status)
            connection.close()
        assert lengths[0] == lengths[1] > 0, (path, lengths)


def check_executed(server):
    """Every token that a step decoded was sampled in every layer, eight samples a head.

    How many tokens the clients that went away had decoded before that depends on the machine, so the answered
    completions give the least number.
    """
    with open(server.executed) as file:
        executed = json.load(file)
    assert executed["samples"] == [8] * len(executed["layers"]) and executed["layers"], executed
    for layer in executed["layers"]:
        assert layer["sampled_tokens"] >= server.least_steps > 300 and layer["exact_tokens"] == 0, layer
        assert layer["samples"] == 8 * layer["sampled_tokens"] and layer["rows"] > layer["sampled_tokens"], layer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("allot")
    parser.add_argument("model")
    parser.add_argument("directory")
    parser.add_argument("--malformed", type=int, default=200)
    options = parser.parse_args()
    with open(options.model + "/heldout.jsonl") as file:
        questions = [json.loads(next(file))["question"] for _ in range(6)]
    server = Server(options.allot, options.model, options.directory)
    try:
        check_batch_mates(server, questions)
        if openai is None:
            print("the package openai is not there; asked by plain HTTP alone")
        else:
            check_openai(server, questions[0])
        check_malformed(server, options.malformed)
        check_raw(server, options.malformed // 2)
        check_range(server)
        code = server.end()
        assert code == 0, f"the server ended with {code}"
        check_executed(server)
    finally:
        server.process.kill()
    schedule = "uniform:3"  # few enough samples that replies depend on the draws
    server = Server(options.allot, options.model, options.directory, schedule)
    try:
        check_questions(server, options.allot, options.model, schedule)
        assert server.end() == 0
    finally:
        server.process.kill()
    server = Server(options.allot, options.model, options.directory, more=("--chunked-prefill", str(CHUNK)))
    try:
        check_long_prompt(server, questions[0])
        assert server.end() == 0
    finally:
        server.process.kill()
    print("all as expected" + ("" if openai is None else f", openai {openai.__version__}"))


if __name__ == "__main__":
    sys.exit(main())
