"""A headless Chromium driven over its DevTools pipe (NUL-separated JSON on descriptors 3 and 4): loads a page at a given
size, gives its DOM values and pictures, and collects whatever the page complains about. Needs nothing but Chromium."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def chromium():
    """Path of the browser, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="allot-browser-")
        to_browser, self.out = os.pipe()
        self.into, from_browser = os.pipe()
        # The browser's own ends may be 3 and 4 already: copies far above them survive dup2 in the child.
        ends = [os.dup(to_browser), os.dup(from_browser)]

        def connect():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        flags = ["--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--hide-scrollbars",
                 "--disable-component-update", "--disable-sync", "--no-proxy-server", "--remote-debugging-pipe",
                 "--force-color-profile=srgb", "--disable-dev-shm-usage", f"--user-data-dir={self.profile}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # Chromium's sandbox does not run as root
        self.process = subprocess.Popen([chromium(), *flags, "about:blank"], preexec_fn=connect, close_fds=False,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self.number = 0
        self.buffer = b""
        self.complaints = []
        self.requests = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.into)
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.into], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium did not answer in time")
            read = os.read(self.into, 1 << 16)
            if not read:
                raise RuntimeError("Chromium ended")
            self.buffer += read
        line, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(line)
        self.note(message.get("method"), message.get("params", {}))
        return message

    def note(self, method, given):
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(given["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console.{given['type']}: {json.dumps(given['args'])[:500]}")
        elif method == "Log.entryAdded":
            self.complaints.append(f"{given['entry']['source']}: {given['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 30
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def value(self, expression):
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression, seconds=20):
        deadline = time.monotonic() + seconds
        while not self.value(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the page never came to {expression}; it says: {self.value('document.body.innerText')[:500]}")
            time.sleep(0.05)

    def size(self, width, height=900, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url):
        """Loads the page and waits until it has shown its figures once."""
        self.call("Page.navigate", url=url)
        self.wait_for("document.body && document.body.dataset.refreshed > 0")

    def refreshed(self):
        """Waits until the page has asked for its figures again."""
        before = self.value("Number(document.body.dataset.refreshed)")
        self.wait_for(f"Number(document.body.dataset.refreshed) > {before}")

    def picture(self, path):
        """The whole page as a PNG file."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))
