"""``python -m tenure``: see ``--help``."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import __version__, _figure, _library, _native, _recorded, trace

_COMMAND_VARIABLE = "TENURE_COMMAND"


class _Failure(Exception):
    """A message for stderr; the exit status is 2, as for every wrong input of `tenure`."""


# --- trace ----------------------------------------------------------------------------------------------------------


def _trace_path(output: str, device: int) -> str:
    """``out.csv.gz`` as ``out.device1.csv.gz``."""
    folder, name = os.path.split(output)
    stem, dot, rest = name.partition(".")
    return os.path.join(folder, f"{stem}.device{device}{dot}{rest}")


def _convert(arguments: argparse.Namespace) -> int:
    snapshot = trace.load(arguments.snapshot)
    try:
        return _convert_loaded(snapshot, arguments)
    except trace.SnapshotError as error:
        raise trace.SnapshotError(f"{arguments.snapshot}: {error}") from error


def _convert_loaded(snapshot: trace.Snapshot, arguments: argparse.Namespace) -> int:
    targets: Dict[Optional[int], str]
    if arguments.device == "all":
        targets = {device: _trace_path(arguments.output, device) for device in trace.devices(snapshot)}
        if not targets:
            trace.convert(snapshot)  # says what is missing
    elif arguments.device is None:
        used = trace.devices(snapshot)
        if len(used) > 1:
            raise trace.SnapshotError(
                f"devices {', '.join(map(str, used))} have a history: choose one with --device N, or --device all"
            )
        targets = {None: arguments.output}
    else:
        targets = {arguments.device: arguments.output}
    # All of them first: a device that cannot be converted leaves no files of the others.
    traces = {path: trace.convert(snapshot, device=device) for device, path in targets.items()}
    for path, made in traces.items():
        made.write(path)
        if arguments.quiet:
            continue
        print(f"{path}: device {made.device}, {len(made.events)} events, {made.blocks} blocks, {made.streams} streams")
        for note in made.notes():
            print(f"  {note}")
    return 0


def _device_argument(text: str) -> Any:
    if text == "all":
        return text
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a device's number nor all")
    return int(text)


# --- compare --------------------------------------------------------------------------------------------------------


def _is_script_of_this(path: str) -> bool:
    """Whether a file is what `pip` makes of this module: a script that is called `tenure`, too."""
    try:
        with open(path, "rb") as file:
            return b"tenure.__main__" in file.read(1024)
    except OSError:  # what cannot be read can still be run
        return False


def _on_the_path() -> Optional[str]:
    for folder in os.get_exec_path():
        found = shutil.which("tenure", path=folder)
        if found and not _is_script_of_this(found):
            return found
    return None


def _find_command() -> str:
    named = os.environ.get(_COMMAND_VARIABLE)
    if named:
        if not os.access(named, os.X_OK) or os.path.isdir(named) or _is_script_of_this(named):
            raise _Failure(f"{_COMMAND_VARIABLE} says {named}, which is no program")
        return named
    packaged = Path(__file__).parent / "bin" / "tenure"
    found = str(packaged) if os.access(packaged, os.X_OK) else _on_the_path()
    if not found:
        raise _Failure(
            "the program `tenure` was not found: it is built when `pip install` finds CLI11, nlohmann-json and zlib "
            "(apt-get install libcli11-dev nlohmann-json3-dev zlib1g-dev), and by `./dev build` in a checkout; put it on "
            f"the PATH or name it in {_COMMAND_VARIABLE}"
        )
    return found


def _is_snapshot(path: str) -> bool:
    """Whether a file holds a pickle: traces are text, whose first byte is never pickle's."""
    try:
        with open(path, "rb") as file:
            start = file.read(2)
        if start == b"\x1f\x8b":
            with gzip.open(path) as unpacked:
                start = unpacked.read(1)
    except (OSError, EOFError, zlib.error):
        return False  # `tenure` has better words for what is wrong with it
    return start[:1] == b"\x80"


def _traces_of(snapshot_path: str, folder: str) -> List[str]:
    snapshot = trace.load(snapshot_path)
    name = os.path.basename(snapshot_path)
    for ending in (".gz", ".pickle", ".pkl"):
        if name.endswith(ending) and name != ending:
            name = name[: -len(ending)]
    used = trace.devices(snapshot)
    paths = []
    reserved: Dict[str, Optional[int]] = {}
    chosen: List[Optional[int]] = [*used] or [None]
    for device in chosen:  # without any, convert says what is missing
        suffix = f".device{device}" if len(used) > 1 else ""
        path = os.path.join(folder, f"{name}{suffix}.csv.gz")
        try:
            made = trace.write(snapshot, path, device=device)
        except trace.SnapshotError as error:
            raise trace.SnapshotError(f"{snapshot_path}: {error}") from error
        for note in made.notes():
            print(f"{snapshot_path}: {note}", file=sys.stderr)
        paths.append(path)
        reserved[name + suffix] = _recorded.reserved_peak(snapshot, made.device)
    _write_peers(folder, reserved)
    return paths


def _write_peers(folder: str, reserved: Dict[str, Optional[int]]) -> None:
    """What `tenure compare` sets its policies beside: a line a trace of the folder."""
    lines = ["workload,native_reserved,expandable_reserved,mallocasync_reserved,recorded_reserved"]
    for name, peak in reserved.items():
        if peak is not None and not any(c in name for c in ",\r\n"):
            lines.append(f"{name},,,,{peak}")
    if len(lines) > 1:
        with open(os.path.join(folder, "peers.csv"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


def _take_option(arguments: Sequence[str], name: str) -> Tuple[List[str], Optional[str]]:
    """The arguments without ``name VALUE`` or ``name=VALUE``, and the value."""
    rest: List[str] = []
    value: Optional[str] = None
    waiting = iter(arguments)
    for argument in waiting:
        if argument == name:
            value = next(waiting, None)
            if value is None:
                raise _Failure(f"{name} needs a file")
        elif argument.startswith(name + "="):
            value = argument[len(name) + 1 :]
        else:
            rest.append(argument)
    return rest, value


def _compare(passed_on: Sequence[str]) -> int:
    command = _find_command()
    passed_on, figure = _take_option(passed_on, "--png")
    page = _take_option(passed_on, "--report")[1]
    with tempfile.TemporaryDirectory(prefix="tenure-") as folder:
        if figure is not None and page in (None, "-"):
            if page == "-":
                raise _Failure("--png needs the page in a file: --report FILE, or none")
            page = os.path.join(folder, "page.html")
            passed_on = [*passed_on, "--report", page]
        arguments: List[str] = []
        for index, argument in enumerate(passed_on):
            if not argument.startswith("-") and os.path.isfile(argument) and _is_snapshot(argument):
                inside = os.path.join(folder, str(index))  # snapshots of the same name do not meet
                os.mkdir(inside)
                arguments += _traces_of(argument, inside)
            else:
                arguments.append(argument)
        status = subprocess.run([command, "compare", *arguments], check=False).returncode
        if status < 0:  # ended by a signal: as a shell says it
            status = 128 - status
        if "--help" in passed_on or "-h" in passed_on:
            print(
                "With python -m tenure compare also: memory snapshots of PyTorch in place of traces, and --png FILE, a "
                "figure (matplotlib)."
            )
        elif figure is not None and page is not None and status in (0, 3):
            _figure.draw(_figure.data_of(page), figure)
        return status


# --- info -----------------------------------------------------------------------------------------------------------


def _information() -> Dict[str, Any]:
    information: Dict[str, Any] = {
        "tenure": __version__,
        "python": sys.version.split()[0],
        "torch": None,
        "torch_cuda": None,
        "devices": [],
        "libtenure": None,
        "library": None,
        "library_built_for_torch": None,
        "policies": [],
        "command": None,
        "missing": [],
    }
    missing: List[str] = information["missing"]
    try:
        information["command"] = _find_command()
    except _Failure as failure:
        missing.append(str(failure))
    try:
        native = _native.find()
        information["libtenure"] = str(native) if native else None
        if not native:
            missing.append(f"{_native.NAME} is not in this installation: CuPy, Numba and tenure.Buffer need it")
    except ImportError as error:
        missing.append(str(error))
    try:
        path = _library.find()
        information["library"] = str(path) if path else None
    except ImportError as error:
        missing.append(str(error))
    try:
        import torch
    except ImportError as error:
        missing.append(f"torch cannot be imported: {error}")
        return information
    information["torch"] = str(torch.__version__)
    information["torch_cuda"] = torch.version.cuda
    if torch.cuda.is_available():
        information["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    else:
        missing.append("torch sees no CUDA device")
    from . import torch as tenure_torch

    try:
        library = tenure_torch._load()
    except ImportError as error:
        if str(error) not in missing:
            missing.append(str(error))
    else:
        information["library_built_for_torch"] = library.built_for_torch
        information["policies"] = library.policy_names
    return information


def _info(arguments: argparse.Namespace) -> int:
    information = _information()
    if arguments.json:
        print(json.dumps(information, indent=2))
        return 0
    for key, value in information.items():
        if key == "missing":
            continue
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        print(f"{key.replace('_', ' '):24} {shown if shown not in (None, '') else '-'}")
    for reason in information["missing"]:
        print(f"missing: {reason}")
    return 0


# --- the command line -----------------------------------------------------------------------------------------------


_OF_THE_PROGRAM = {
    "run": "start a program whose CUDA memory is limited and pooled",
    "top": "show the arenas of running processes",
    "report": "draw a recorded run as a page of HTML",
}

_DOORS = """\
in programs:
  import tenure.torch; tenure.torch.install()    PyTorch (or TENURE_TORCH=1, with no change to the program)
  import tenure.cupy; tenure.cupy.install()      CuPy
  import tenure.numba; tenure.numba.install()    Numba (or NUMBA_CUDA_MEMORY_MANAGER=tenure.numba)
  tenure.Buffer((1024, 1024), "float32")         an array for everything that takes DLPack
  with tenure.arena("alice", max="4GiB"): ...    whose memory it is, and how much (PyTorch: tenure.torch.arena)
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tenure" if os.path.basename(sys.argv[0]) == "tenure" else "python -m tenure",
        description="GPU memory: allocation policies and arenas with hard byte limits.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_DOORS,
    )
    parser.add_argument("--version", action="version", version=f"tenure {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    convert = commands.add_parser(
        "trace",
        help="turn a PyTorch memory snapshot into a trace for compare",
        description="Turn a PyTorch memory snapshot into a trace for compare.",
    )
    convert.add_argument("snapshot", help="what torch.cuda.memory._dump_snapshot wrote")
    convert.add_argument("-o", "--output", required=True, help="the trace; compressed if it ends in .gz")
    convert.add_argument("--device", type=_device_argument, help="whose history; all: a file each, OUT.deviceN.csv.gz")
    convert.add_argument("--quiet", action="store_true", help="print nothing")
    convert.set_defaults(run=_convert)

    commands.add_parser(
        "compare",
        add_help=False,
        help="replay traces, or snapshots as they are, through every policy; compare --help lists the options",
    )

    for name, does in _OF_THE_PROGRAM.items():
        commands.add_parser(name, add_help=False, help=f"{does}; {name} --help lists the options")

    info = commands.add_parser("info", help="what is installed here, and what is missing")
    info.add_argument("--json", action="store_true", help="for programs")
    info.set_defaults(run=_info)
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run one command. Returns: the exit status."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if arguments[:1] == ["compare"]:
            return _compare(arguments[1:])
        if arguments and arguments[0] in _OF_THE_PROGRAM:
            command = _find_command()
            os.execv(command, [command, *arguments])
        parsed = _parser().parse_args(arguments)
        return int(parsed.run(parsed))
    except (_Failure, _figure.FigureError, trace.SnapshotError) as error:
        print(f"tenure: {error}", file=sys.stderr)
    except OSError as error:
        print(f"tenure: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
