"""Memory snapshots in PyTorch's format, made by a small model of an allocator with streams."""

import random


def event(action, addr, size, stream=0, time_us=0):
    return {
        "action": action, "addr": addr, "size": size, "stream": stream, "time_us": 1_700_000_000_000_000 + time_us,
        "compile_context": "N/A", "user_metadata": "", "frames": [],
    }  # fmt: skip


def block(size, state="inactive", requested=None, **more):
    return {
        "size": size,
        "state": state,
        "requested_size": size if requested is None else requested,
        "frames": [],
        **more,
    }


def segment(address, blocks, device=0, stream=0):
    at = address
    for b in blocks:
        b.setdefault("address", at)
        at += b["size"]
    active = sum(b["size"] for b in blocks if b["state"] != "inactive")
    return {
        "device": device, "address": address, "total_size": at - address, "allocated_size": active,
        "active_size": active, "requested_size": active, "stream": stream, "segment_type": "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip


def snapshot(*traces, segments=()):
    return {
        "segments": list(segments),
        "device_traces": [list(t) for t in traces],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1},
        "external_annotations": [],
    }


class Program:
    """A random program and what a whole recording of it is: the history, the segments at the end, and the true trace."""

    UNIT = 1 << 20

    def __init__(self, seed, steps=400, streams=(0, 94123, 94999)):
        rng = random.Random(seed)
        self.history = []
        self.true_lives = []  # [size, stream, allocated at, freed at or None, completed at or None]: indices of events
        self.held, self.waiting, free = {}, {}, list(range(64))
        for step in range(steps):
            time = 10 * step
            kind = rng.random()
            if kind < 0.5 and free:
                address = (1 + free.pop(rng.randrange(len(free)))) * self.UNIT
                size, stream = rng.randrange(1, self.UNIT), rng.choice(streams)
                self.held[address] = len(self.true_lives)
                self.true_lives.append([size, stream, len(self.history), None, None])
                self.history.append(event("alloc", address, size, stream, time))
            elif kind < 0.85 and self.held:
                address = rng.choice(sorted(self.held))
                number = self.held.pop(address)
                life = self.true_lives[number]
                life[3] = len(self.history)
                self.history.append(event("free_requested", address, life[0], life[1], time))
                if rng.random() < 0.6:
                    self._complete(address, number, time, free)
                else:
                    self.waiting[address] = number
            elif self.waiting:
                address = rng.choice(sorted(self.waiting))
                self._complete(address, self.waiting.pop(address), time, free)
            if rng.random() < 0.05:
                self.history.append(event("segment_alloc", 1 << 40, 2 << 20, 0, time))

    def _complete(self, address, number, time, free):
        life = self.true_lives[number]
        life[4] = len(self.history)
        self.history.append(event("free_completed", address, life[0], life[1], time))
        free.append(address // self.UNIT - 1)

    def segments(self):
        """One segment for each unit that is in use at the end."""
        result = []
        for addresses, state in ((self.held, "active_allocated"), (self.waiting, "active_pending_free")):
            for address, number in addresses.items():
                size, stream = self.true_lives[number][:2]
                result.append(segment(address, [block(self.UNIT, state, size)], stream=stream))
        return result
