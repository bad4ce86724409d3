"""PyTorch memory snapshots become traces."""

import gzip
import io
import json
import pickle
import random
import subprocess

import pytest

from snapshots import Program, block, event, segment, snapshot
from tenure import trace

MIB = 1 << 20


def lines(made):
    """The events without ids' meaning: `op id bytes stream`."""
    return [f"{e.op} {e.id} {e.bytes} {e.stream}" for e in made.events]


# --- whole recordings ----------------------------------------------------------------------------------------------


def test_a_block_is_allocated_freed_and_completed():
    made = trace.convert(snapshot([
        event("segment_alloc", 4096, 2 * MIB),
        event("alloc", 4096, 1000, time_us=5),
        event("alloc", 8192, 2000, time_us=6),
        event("free_requested", 4096, 1000, time_us=9),
        event("free_completed", 4096, 1000, time_us=12),
        event("alloc", 4096, 500, time_us=13),
    ]))  # fmt: skip
    assert lines(made) == ["a 0 1000 0", "a 1 2000 0", "f 0 1000 0", "c 0 1000 0", "a 2 500 0"]
    assert [e.t_us for e in made.events] == [0, 1, 4, 7, 8]
    assert (made.live_at_start, made.gaps, made.refused, made.streams, made.blocks) == (0, 0, 0, 1, 3)
    assert made.notes() == []


def test_streams_are_numbered_in_order_of_first_use_and_the_default_stream_is_0():
    made = trace.convert(snapshot([
        event("alloc", 512, 1, stream=94001), event("alloc", 1024, 2, stream=0), event("alloc", 1536, 3, stream=17),
        event("alloc", 2048, 4, stream=94001),
    ]))  # fmt: skip
    assert [e.stream for e in made.events] == [1, 0, 2, 1]
    assert made.streams == 3


def test_a_clock_that_steps_back_does_not_make_time_fall():
    made = trace.convert(
        snapshot(
            [
                event("alloc", 512, 1, time_us=50),
                event("alloc", 1024, 1, time_us=49),
                event("alloc", 2048, 1, time_us=60),
            ]
        )
    )
    assert [e.t_us for e in made.events] == [0, 0, 10]


def test_refused_requests_are_counted_and_left_out():
    oom = {**event("oom", 0, 1 << 50), "device_free": 123}
    del oom["addr"]
    made = trace.convert(snapshot([event("alloc", 512, 1), oom]))
    assert lines(made) == ["a 0 1 0"]
    assert made.refused == 1 and "refused" in made.notes()[0]


def test_random_programs_come_out_as_they_went_in():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    program = Program(seed)
    made = trace.convert(snapshot(program.history, segments=program.segments()))
    numbers = {0: 0}
    wanted = []
    for index, entry in enumerate(program.history):
        for number, (size, stream, *times) in enumerate(program.true_lives):
            if index in times:
                numbers.setdefault(stream, len(numbers))
                wanted.append(f"{'afc'[times.index(index)]} {number} {size} {numbers[stream]}")
    assert lines(made) == wanted
    assert (made.live_at_start, made.gaps) == (0, 0)


# --- recordings that begin in mid-program --------------------------------------------------------------------------


def test_a_block_freed_but_never_allocated_was_there_at_the_start():
    made = trace.convert(snapshot([
        event("alloc", 512, 7, time_us=1), event("free_requested", 4096, 100, 5, time_us=2),
        event("free_completed", 4096, 100, 5, time_us=3),
    ]))  # fmt: skip
    assert lines(made) == ["a 0 100 1", "a 1 7 0", "f 0 100 1", "c 0 100 1"]
    assert made.live_at_start == 1 and "before the recording began" in made.notes()[0]


def test_a_block_that_waited_for_a_stream_at_the_start_is_freed_there():
    made = trace.convert(snapshot([event("alloc", 512, 7), event("free_completed", 4096, 100, time_us=3)]))
    assert lines(made) == ["a 0 100 0", "f 0 100 0", "a 1 7 0", "c 0 100 0"]


def test_blocks_that_segments_show_were_there_from_start_to_end():
    held = segment(
        4096, [block(1024, "active_allocated", 1000), block(512), block(2048, "active_pending_free", 1999)], stream=5
    )
    made = trace.convert(snapshot([event("alloc", 1 << 30, 7)], segments=[held]))
    assert lines(made) == ["a 0 1000 1", "a 1 1999 1", "a 2 7 0"]
    assert made.live_at_start == 2


def test_blocks_without_addresses_tile_their_segment():
    held = segment(4096, [block(512, "active_allocated"), block(512, "active_allocated")])
    for b in held["blocks"]:
        del b["address"]
    made = trace.convert(snapshot([event("free_requested", 4096, 512)], segments=[held]))
    # The first one was freed by then and is allocated again; the second one was there all the time.
    assert made.blocks == 3 and made.live_at_start == 2


def test_segments_of_other_devices_are_not_counted():
    made = trace.convert(
        snapshot([event("alloc", 512, 7)], segments=[segment(4096, [block(512, "active_allocated")], device=1)])
    )
    assert made.live_at_start == 0


def test_cut_recordings_hold_at_every_moment_what_the_whole_one_held():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    program = Program(seed, steps=300)
    for cut in (0, 1, 17, 150, 299):
        made = trace.convert(snapshot(program.history[cut:], segments=program.segments()))
        assert made.gaps == 0
        live = 0
        seen = []
        for e in made.events:
            live += e.bytes if e.op == "a" else -e.bytes if e.op == "c" else 0
            seen.append(live)
        true_live = [
            sum(
                size for size, _, start, _, end in program.true_lives if start <= index and (end is None or end > index)
            )
            for index, entry in enumerate(program.history)
            if index >= cut and entry["action"] in ("alloc", "free_requested", "free_completed")
        ]
        # What is inferred comes first; then the two go together, event by event.
        assert seen[len(seen) - len(true_live) :] == true_live


# --- recordings with holes -----------------------------------------------------------------------------------------


def test_an_address_handed_out_twice_was_freed_in_between():
    made = trace.convert(snapshot([event("alloc", 512, 7), event("alloc", 512, 8)]))
    assert lines(made) == ["a 0 7 0", "f 0 7 0", "c 0 7 0", "a 1 8 0"]
    assert made.gaps == 1 and "gaps" in made.notes()[0]


def test_an_address_freed_twice_was_handed_out_in_between():
    free = [event("free_requested", 512, 7), event("free_completed", 512, 7)]
    made = trace.convert(snapshot([event("alloc", 512, 7), *free, *free]))
    assert lines(made) == ["a 0 7 0", "f 0 7 0", "c 0 7 0", "a 1 7 0", "f 1 7 0", "c 1 7 0"]
    assert made.gaps == 1


def test_without_any_completion_each_free_is_complete_at_once():
    made = trace.convert(snapshot([event("alloc", 512, 7), event("free_requested", 512, 7), event("alloc", 512, 8)]))
    assert lines(made) == ["a 0 7 0", "f 0 7 0", "c 0 7 0", "a 1 8 0"]
    assert made.gaps == 0


# --- several devices -----------------------------------------------------------------------------------------------


def test_several_devices_have_to_be_told_apart():
    two = snapshot([], [event("alloc", 512, 7)], [event("alloc", 512, 8)])
    assert trace.devices(two) == [1, 2]
    with pytest.raises(trace.SnapshotError, match="devices 1, 2 have a history"):
        trace.convert(two)
    assert lines(trace.convert(two, device=2)) == ["a 0 8 0"]
    with pytest.raises(trace.SnapshotError, match="device 0 has no history"):
        trace.convert(two, device=0)


# --- what is no snapshot -------------------------------------------------------------------------------------------


class _Evil:
    def __reduce__(self):
        return (print, ("run",))


@pytest.mark.parametrize(
    "value",
    [_Evil(), {"segments": [_Evil()]}, {"device_traces": {1, 2}, "when": __import__("datetime").date(2020, 1, 1)}],
    ids=["bare", "inside", "harmless type"],
)
def test_pickles_that_ask_for_anything_but_plain_data_are_refused(tmp_path, capsys, value):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(trace.SnapshotError, match="plain data") as caught:
        trace.load(path)
    assert str(path) in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "content, why",
    [
        (b"", "empty"),
        (b"t_us,op,id,bytes,stream\n", "not a pickle"),
        (pickle.dumps(snapshot([]))[:-20], "cut off|damaged"),
        (gzip.compress(pickle.dumps(snapshot([])))[:-12], "cut off|damaged"),
        (pickle.dumps([{"address": 1, "blocks": []}]), "list of segments"),
        (pickle.dumps({"a": 1}), "'segments'"),
        (pickle.dumps({"segments": [], "device_traces": 3}), "'device_traces' is a int"),
        (pickle.dumps({"segments": [], "device_traces": [5]}), "history of device 0 is a int"),
        (pickle.dumps("text"), "not a str"),
        (b"\x80\x04Pname\n.", "outside|plain|damaged"),
    ],
)
def test_what_is_no_snapshot_is_refused_with_a_reason(tmp_path, content, why):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    with pytest.raises(trace.SnapshotError, match=why):
        trace.load(path)


def test_what_unpacks_to_much_more_than_a_snapshot_does_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "_UNPACKED_AT_LEAST", 1 << 20)
    path = tmp_path / "snapshot.pickle.gz"
    path.write_bytes(gzip.compress(bytes(8 << 20)))
    with pytest.raises(trace.SnapshotError, match="unpacked it is larger than"):
        trace.load(path)


@pytest.mark.parametrize(
    "history, why",
    [
        ([], "no history of events: call torch.cuda.memory._record_memory_history"),
        ([event("segment_alloc", 512, 7)], "no history"),
        ([{"action": "alloc", "size": 1, "stream": 0}], "event 0 of device 0 has no 'addr'"),
        ([event("alloc", 512, "7")], "'size' of event 0 of device 0 is '7'"),
        ([event("alloc", 512, -7)], "negative"),
        ([event("alloc", 512, 7), 3], "event 1 of device 0 is a int"),
        ([{"action": []}, {"action": {"alloc"}}], "no history"),
    ],
)
def test_histories_that_are_none_are_refused_with_a_reason(history, why):
    with pytest.raises(trace.SnapshotError, match=why):
        trace.convert(snapshot(history))


@pytest.mark.parametrize(
    "bad",
    [3, {"device": 0, "blocks": 7}, {"device": 0, "blocks": [3]}, {"device": 0, "blocks": [{"state": "inactive"}]}],
)
def test_segments_that_are_none_are_refused(bad):
    with pytest.raises(trace.SnapshotError, match="segment 0"):
        trace.convert(snapshot([event("alloc", 512, 7)], segments=[bad]))


# --- files ---------------------------------------------------------------------------------------------------------


def test_snapshots_come_from_files_streams_and_objects(tmp_path):
    whole = snapshot([event("alloc", 512, 7)])
    plain, packed = tmp_path / "a.pickle", tmp_path / "b.pickle.gz"
    plain.write_bytes(pickle.dumps(whole))
    packed.write_bytes(gzip.compress(pickle.dumps(whole)))
    for source in (whole, plain, str(plain), packed, io.BytesIO(pickle.dumps(whole))):
        assert lines(trace.convert(source)) == ["a 0 7 0"]


def test_traces_are_written_plain_and_compressed_and_always_the_same(tmp_path):
    whole = snapshot([event("alloc", 512, 7), event("free_requested", 512, 7)])
    text = "t_us,op,id,bytes,stream\n0,a,0,7,0\n0,f,0,7,0\n0,c,0,7,0\n"
    trace.write(whole, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == text
    trace.write(whole, tmp_path / "a.csv.gz")
    trace.write(whole, tmp_path / "b.csv.gz")
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()).decode() == text
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.csv.gz", "b.csv.gz"]


# --- with `tenure compare` -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 100])
def test_compare_reads_what_was_written_and_sees_the_same_peak(tmp_path, command, cut):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    program = Program(seed)
    path = tmp_path / "program.csv.gz"
    made = trace.write(snapshot(program.history[cut:], segments=program.segments()), path)
    result = subprocess.run(
        [command, "compare", str(path), "--policy", "caching,remap", "--repeat", "1", "--json", "-"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    live = peak = 0
    for e in made.events:
        live += e.bytes if e.op == "a" else -e.bytes if e.op == "c" else 0
        peak = max(peak, live)
    for row in json.loads(result.stdout):
        assert row["events"] == len(made.events)
        assert row["requested_peak"] == peak
        assert row["completed"] is True
