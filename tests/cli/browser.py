"""A headless Chromium for tests, spoken to over its debugging pipe: no driver and no package is needed.

    with Browser() as browser:
        page = browser.open(path, width=390, height=844)
        page.evaluate("document.title")

Where no Chromium is, `find()` returns None: apt-get install chromium, or name one in TENURE_BROWSER.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def find():
    named = os.environ.get("TENURE_BROWSER")
    if named:
        return shutil.which(named)
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="tenure-browser-")
        to_read, self.to = os.pipe()
        self.come, from_write = os.pipe()

        def numbers():  # what it reads from is 3, what it writes to is 4
            a, b = os.dup(to_read), os.dup(from_write)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--disable-background-networking", "--disable-dev-shm-usage", f"--user-data-dir={self.folder}",
             "--remote-debugging-pipe", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            pass_fds=(), preexec_fn=numbers,
        )  # fmt: skip
        os.close(to_read)
        os.close(from_write)
        self.rest, self.last, self.events = b"", 0, []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except Exception:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.come)
        shutil.rmtree(self.folder, ignore_errors=True)

    def message(self, seconds):
        end = time.monotonic() + seconds
        while b"\0" not in self.rest:
            ready = select.select([self.come], [], [], max(0, end - time.monotonic()))[0]
            got = os.read(self.come, 1 << 20) if ready else b""
            if not got:
                raise TimeoutError("the browser does not answer")
            self.rest += got
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, session=None, seconds=60, **parameters):
        self.last += 1
        request = {"id": self.last, "method": method, "params": parameters}
        if session:
            request["sessionId"] = session
        os.write(self.to, json.dumps(request).encode() + b"\0")
        while True:
            m = self.message(seconds)
            if m.get("id") == self.last:
                if "error" in m:
                    raise RuntimeError(f"{method}: {m['error']['message']}")
                return m["result"]
            if "method" in m:
                self.events.append(m)

    def open(self, path, width, height, scale=1, dark=False):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.call(domain + ".enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=width < 600)  # fmt: skip
        scheme = "dark" if dark else "light"
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        page.call("Page.navigate", url="file://" + os.path.abspath(path))
        page.wait_for("document.readyState === 'complete' && location.protocol === 'file:'")
        return page


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"].get("exception", {}).get("description", answer))
        return answer["result"].get("value")

    def wait_for(self, condition, seconds=30):
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            if time.monotonic() > end:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def press(self, key):
        code = {"Enter": 13, "Tab": 9, "ArrowRight": 39, "End": 35}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      **(text if kind == "keyDown" else {}))  # fmt: skip

    def screenshot(self, path, whole=True):
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def pdf(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))

    def errors(self):
        """What the page complained of, and every request beyond the file itself."""
        found = []
        for m in self.browser.events:
            if m.get("sessionId") != self.session:
                continue
            p = m["params"]
            if m["method"] == "Runtime.exceptionThrown":
                found.append(p["exceptionDetails"].get("exception", {}).get("description", "an exception"))
            if m["method"] == "Log.entryAdded" and p["entry"]["level"] == "error":
                found.append(p["entry"]["text"])
            if m["method"] == "Network.requestWillBeSent" and not p["request"]["url"].startswith(("file:", "data:")):
                found.append("request: " + p["request"]["url"])
        return found
