"""PyTorch memory snapshots as traces for ``tenure compare``.

    torch.cuda.memory._record_memory_history(stacks="python", context=None, max_entries=2_000_000)
    ...                                                     # some steps of the program
    torch.cuda.memory._dump_snapshot("program.pickle")

    tenure.trace.write("program.pickle", "program.csv.gz")   # or: python -m tenure trace program.pickle

A trace is what the program asked of its allocator: allocations, frees, and the moment when each freed block might be
handed out again. What the recording allocator did with its segments is not part of it, so a recording made under any
policy can be replayed under every other.

Recordings that begin in mid-program are completed: a block that is freed in the history but was not allocated in it,
or that a segment shows as live at the end, was there at the start, and the trace allocates it first.

Snapshots are read without trusting them: a pickle that asks for anything but plain containers is refused.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Dict, Iterable, List, NamedTuple, Optional, Union

__all__ = ["Event", "SnapshotError", "Trace", "convert", "devices", "load", "write"]

Snapshot = Dict[str, Any]
Source = Union[str, "os.PathLike[str]", BinaryIO, Snapshot]

_HEADER = "t_us,op,id,bytes,stream\n"
_HOW_TO_RECORD = (
    "call torch.cuda.memory._record_memory_history(max_entries=2_000_000) before the part of the program that is of "
    "interest, and take the snapshot while the history is on"
)


class SnapshotError(ValueError):
    """What was given is not a usable PyTorch memory snapshot; the message says why and, where it can, what to do."""


class Event(NamedTuple):
    """One line of a trace."""

    t_us: int
    """Microseconds since the recording began; never falls."""
    op: str
    """``a`` allocate, ``f`` free, ``c`` the free is complete: every stream may have the memory."""
    id: int
    """Names one block, from 0 in order of allocation."""
    bytes: int
    """As requested, not rounded."""
    stream: int
    """0 is the default stream; others are numbered in order of first use."""


@dataclass
class Trace:
    """The events of one device, and what had to be assumed to complete them."""

    device: int
    events: List[Event] = field(default_factory=list)
    live_at_start: int = 0
    """Blocks that were there before the recording began."""
    gaps: int = 0
    """How often the history must have missed something (it was off in between) that the trace had to make up for."""
    refused: int = 0
    """Requests that the recording program's allocator refused (``oom``); they are not part of the trace."""
    streams: int = 0
    """Distinct streams, the default stream always among them."""

    @property
    def blocks(self) -> int:
        """How many blocks the trace allocates."""
        return sum(event.op == "a" for event in self.events)

    def write(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Write the trace to ``path``, compressed if its name ends in ``.gz``.

        The same trace makes the same file, byte for byte. A file that exists is replaced, and only by a whole one.
        """
        path = os.fspath(path)
        temporary = f"{path}.{os.getpid()}.part"
        raw = open(temporary, "xb")  # not through a link that somebody has put there
        try:
            with raw:
                if path.endswith(".gz"):
                    with gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
                        self._write_to(packed)
                else:
                    self._write_to(raw)
            os.replace(temporary, path)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise

    def _write_to(self, binary: Any) -> None:
        text = io.TextIOWrapper(binary, encoding="ascii", newline="\n")
        text.write(_HEADER)
        text.writelines(f"{e.t_us},{e.op},{e.id},{e.bytes},{e.stream}\n" for e in self.events)
        text.detach()  # flushes, and leaves closing to the caller

    def notes(self) -> List[str]:
        """What a reader of the trace should know about how complete it is; empty if nothing."""
        notes = []
        if self.live_at_start:
            notes.append(
                f"{self.live_at_start} blocks were there before the recording began; the trace allocates them first"
            )
        if self.gaps:
            notes.append(
                f"the history has gaps (it was off in between): {self.gaps} times a missing allocation or free was put in"
            )
        if self.refused:
            notes.append(f"the recorded program was refused memory {self.refused} times; those requests are left out")
        return notes


class _PlainUnpickler(pickle.Unpickler):
    """Plain containers, numbers and texts only: nothing is imported and nothing is called."""

    def find_class(self, module: str, name: str) -> Any:
        raise SnapshotError(
            f"the pickle asks for {module}.{name}; a memory snapshot is plain data, so this is not one (and reading it "
            "could run code: it was not read)"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise SnapshotError(
            "the pickle refers to objects outside of it; a memory snapshot is plain data, so this is not one"
        )


def load(source: Source) -> Snapshot:
    """Read a snapshot, and check that it is one.

    Args:
        source: the path of a file that ``torch.cuda.memory._dump_snapshot`` wrote (gzip-compressed or not), an open
            binary file, or what ``torch.cuda.memory._snapshot()`` returned.

    Raises:
        SnapshotError: it is no snapshot, is damaged, or is a pickle of something else.
        OSError: the file cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as file:
            try:
                return _load_file(file)
            except SnapshotError as error:
                raise SnapshotError(f"{os.fspath(source)}: {error}") from error.__cause__
    if not isinstance(source, dict) and hasattr(source, "read"):
        return _load_file(source)
    return _check(source)


def _load_file(file: BinaryIO) -> Snapshot:
    content = file.read()
    if not content:
        raise SnapshotError("the file is empty")
    try:
        if content[:2] == b"\x1f\x8b":
            content = _unpacked(content)
        value = _PlainUnpickler(io.BytesIO(content)).load()
    except SnapshotError:
        raise
    except EOFError as error:
        raise SnapshotError("the file ends too early: it is cut off") from error
    except Exception as error:  # pickle's machine raises nearly every type there is for damaged input
        raise SnapshotError(f"not a pickle, or a damaged one ({type(error).__name__}: {error})") from error
    return _check(value)


_UNPACKED_AT_LEAST = 256 << 20
"""Bytes that a packed file may unpack to, however small it is."""


def _unpacked(content: bytes) -> bytes:
    """A snapshot shrinks to a tenth or so; what grows a thousandfold is none, and may be made to fill the memory."""
    most = _UNPACKED_AT_LEAST + 100 * len(content)
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
        plain = packed.read(most + 1)
    if len(plain) > most:
        raise SnapshotError(f"unpacked it is larger than {most} bytes, {most // len(content)} times what it is packed")
    return plain


def _check(value: Any) -> Snapshot:
    if isinstance(value, list):
        raise SnapshotError(
            "this is a list of segments, as torch.cuda.memory_snapshot() returns, without a history of events; use "
            f"torch.cuda.memory._snapshot() or _dump_snapshot(), and {_HOW_TO_RECORD}"
        )
    if not isinstance(value, dict):
        raise SnapshotError(f"a snapshot is a dict with 'segments' and 'device_traces', not a {type(value).__name__}")
    for key in ("segments", "device_traces"):
        if key not in value:
            raise SnapshotError(f"a snapshot has the key '{key}'; this dict has {sorted(map(str, value))[:8]}")
        if not isinstance(value[key], (list, tuple)):
            raise SnapshotError(f"'{key}' is a {type(value[key]).__name__}, not a list")
    for device, history in enumerate(value["device_traces"]):
        if not isinstance(history, (list, tuple)):
            raise SnapshotError(f"the history of device {device} is a {type(history).__name__}, not a list")
    return value


def devices(snapshot: Source) -> List[int]:
    """The devices whose history has allocations or frees, in order."""
    recorded = load(snapshot)["device_traces"]
    return [
        index
        for index, history in enumerate(recorded)
        if any(isinstance(e, dict) and _action(e) in _ALLOCATION_ACTIONS for e in history)
    ]


def convert(snapshot: Source, *, device: Optional[int] = None) -> Trace:
    """Turn the history of one device into a trace.

    Args:
        snapshot: see :func:`load`.
        device: which device's history; may be left out where only one has any.

    Raises:
        SnapshotError: no snapshot, no history, or several devices to choose from.
    """
    whole = load(snapshot)
    used = devices(whole)
    if not used:
        raise SnapshotError(f"the snapshot has no history of events: {_HOW_TO_RECORD}")
    if device is None:
        if len(used) > 1:
            raise SnapshotError(f"devices {', '.join(map(str, used))} have a history: say which one")
        device = used[0]
    elif device not in used:
        raise SnapshotError(f"device {device} has no history; these have one: {', '.join(map(str, used))}")
    return _Conversion(device).run(whole["device_traces"][device], whole["segments"])


def write(snapshot: Source, path: Union[str, "os.PathLike[str]"], *, device: Optional[int] = None) -> Trace:
    """Convert a snapshot and write the trace to ``path`` (see :meth:`Trace.write`).

    Returns: the trace.
    """
    trace = convert(snapshot, device=device)
    trace.write(path)
    return trace


_ALLOCATION_ACTIONS = frozenset(("alloc", "free_requested", "free_completed"))


@dataclass
class _Block:
    """A block while its life is followed. Its id is given when all blocks are known."""

    bytes: int
    stream: int


class _Conversion:
    """Follows the blocks through one device's history.

    An address is in one of three states: unknown or free (in neither map), held by the program (``held``), or freed
    while a stream still uses it (``waiting``). Every event that does not fit the state shows something that the history
    did not record: before the address is first mentioned that was the time before the recording, later a gap.
    """

    def __init__(self, device: int) -> None:
        self.trace = Trace(device)
        self.streams: Dict[int, int] = {0: 0}
        self.held: Dict[int, _Block] = {}
        self.waiting: Dict[int, _Block] = {}
        self.mentioned: set[int] = set()
        self.at_start: List[Any] = []  # (op, block)
        self.steps: List[Any] = []  # (t_us, op, block)
        self.t_us = 0
        self.completions = True

    def run(self, history: List[Any], segments: Iterable[Any]) -> Trace:
        origin: Optional[int] = None
        # A recording may leave them out (`skip_actions`). Then each free counts as complete at once.
        self.completions = any(isinstance(e, dict) and _action(e) == "free_completed" for e in history)
        for index, entry in enumerate(history):
            where = f"event {index} of device {self.trace.device}"
            if not isinstance(entry, dict):
                raise SnapshotError(f"{where} is a {type(entry).__name__}, not a dict")
            action = _action(entry)
            if action == "oom":
                self.trace.refused += 1
            if action not in _ALLOCATION_ACTIONS:
                continue
            address, size = _number(entry, "addr", where), _number(entry, "size", where)
            stream, time = _number(entry, "stream", where), _number(entry, "time_us", where, default=0)
            origin = time if origin is None else origin
            # The clock of the recording may step back by a little; the order of the events is what counts.
            self.t_us = max(self.t_us, time - origin)
            self._follow(action, address, size, stream)
            self.mentioned.add(address)
        self._look_at(segments)
        return self._finish()

    # --- one event --------------------------------------------------------------------------------------------------

    def _follow(self, action: str, address: int, size: int, stream: int) -> None:
        if action == "alloc":
            self._end_what_was_there(address)
            block = _Block(size, self._stream(stream))
            self.held[address] = block
            self._step("a", block)
        elif action == "free_requested":
            late = self.waiting.pop(address, None)
            if late is not None:  # neither its completion nor the next block's allocation was recorded
                self.trace.gaps += 1
                self._step("c", late)
            held = self.held.pop(address, None)
            block = self._block_before(address, size, stream) if held is None else held
            self._step("f", block)
            if self.completions:
                self.waiting[address] = block
            else:
                self._step("c", block)
        else:
            if address in self.waiting:
                block = self.waiting.pop(address)
            elif address in self.held:  # its request to be freed was not recorded
                block = self.held.pop(address)
                self.trace.gaps += 1
                self._step("f", block)
            else:
                block = self._block_before(address, size, stream, freed=True)
            self._step("c", block)

    def _end_what_was_there(self, address: int) -> None:
        """A new block at ``address``: the one that was there has been freed, seen or not."""
        block = self.held.pop(address, None)
        if block is not None:
            self.trace.gaps += 1
            self._step("f", block)
            self._step("c", block)
            return
        block = self.waiting.pop(address, None)
        if block is not None:
            self.trace.gaps += 1
            self._step("c", block)

    def _block_before(self, address: int, size: int, stream: int, freed: bool = False) -> _Block:
        """The block at ``address`` whose allocation the history did not record."""
        block = _Block(size, self._stream(stream))
        ops = "af" if freed else "a"
        if address in self.mentioned:
            self.trace.gaps += 1
            for op in ops:
                self._step(op, block)
        else:
            self.trace.live_at_start += 1
            self.at_start.extend((op, block) for op in ops)
        return block

    def _stream(self, handle: int) -> int:
        return self.streams.setdefault(handle, len(self.streams))

    def _step(self, op: str, block: _Block) -> None:
        self.steps.append((self.t_us, op, block))

    # --- the end ----------------------------------------------------------------------------------------------------

    def _look_at(self, segments: Iterable[Any]) -> None:
        """Blocks that are live now and of which the history says nothing were there before it, and stay."""
        for index, segment in enumerate(segments):
            where = f"segment {index}"
            if not isinstance(segment, dict):
                raise SnapshotError(f"{where} is a {type(segment).__name__}, not a dict")
            if _number(segment, "device", where, default=0) != self.trace.device:
                continue
            stream = _number(segment, "stream", where, default=0)
            address = _number(segment, "address", where, default=0)
            blocks = segment.get("blocks", ())
            if not isinstance(blocks, (list, tuple)):
                raise SnapshotError(f"the blocks of {where} are a {type(blocks).__name__}, not a list")
            for block in blocks:
                if not isinstance(block, dict):
                    raise SnapshotError(f"a block of {where} is a {type(block).__name__}, not a dict")
                size = _number(block, "size", f"a block of {where}")
                # Older versions do not say where a block begins; blocks tile their segment in order.
                address = _number(block, "address", where, default=address)
                state = block.get("state")
                if state != "inactive" and address not in self.held and address not in self.waiting:
                    requested = _number(block, "requested_size", where, default=size) or size
                    # What is held and what still waits for a stream are the same to a trace that ends here.
                    self._block_before(address, requested, stream)
                address += size

    def _finish(self) -> Trace:
        steps = [(0, op, block) for op, block in self.at_start] + self.steps
        ids: Dict[int, int] = {}
        for time, op, block in steps:
            number = ids.setdefault(id(block), len(ids))
            self.trace.events.append(Event(time, op, number, block.bytes, block.stream))
        self.trace.streams = len(self.streams)
        return self.trace


def _action(entry: Dict[str, Any]) -> str:
    """What an event is; "" if it does not say, or in no words."""
    action = entry.get("action")
    return action if isinstance(action, str) else ""


def _number(entry: Dict[str, Any], key: str, where: str, default: Optional[int] = None) -> int:
    value = entry.get(key, default)
    if value is None:
        raise SnapshotError(f"{where} has no '{key}'")
    if isinstance(value, bool) or not isinstance(value, int):
        raise SnapshotError(f"'{key}' of {where} is {value!r}, not a whole number")
    if value < 0:
        raise SnapshotError(f"'{key}' of {where} is negative: {value}")
    return value
