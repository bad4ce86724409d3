"""Starts programs in a process that has imported torch and not touched CUDA: by fork, which saves the import.

Reads requests from stdin, a JSON line each: {"script", "arguments", "output", "errors", "seconds"}. Answers on stdout with a line
{"status": ...}: the exit status as subprocess has it, or null if the program took longer and was ended. The program runs as
`__main__` and ends as any other.
"""

import json
import os
import signal
import sys
import time

import torch  # noqa: F401  (what it is for)


def _wait(child, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _serve():
    """Returns: in each child its request; in the zygote nothing, when nobody asks any more."""
    while True:
        line = sys.stdin.readline()
        if not line:
            return None
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            return request
        print(json.dumps({"status": _wait(child, request["seconds"])}), flush=True)


def _become(request):
    for fd, (path, flags) in enumerate(
        [
            (os.devnull, os.O_RDONLY),
            (request["output"], os.O_WRONLY | os.O_CREAT),
            (request["errors"], os.O_WRONLY | os.O_CREAT),
        ]
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    sys.argv = [request["script"], *request["arguments"]]
    with open(request["script"], encoding="utf-8") as file:
        return compile(file.read(), request["script"], "exec")


_request = _serve()
if _request is not None:
    exec(_become(_request))
