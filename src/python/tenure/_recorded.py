"""What the allocator that recorded a memory snapshot had reserved."""

from __future__ import annotations

from typing import Any, Dict, Optional

_GROWS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def reserved_peak(snapshot: Dict[str, Any], device: int) -> Optional[int]:
    """The most bytes that the recording allocator held on ``device`` while the history was on; None if nobody can tell.

    The history is read backwards from what the segments show at its end, so one that begins in mid-program is right, too.
    """
    try:
        segments = [s for s in snapshot["segments"] if s.get("device", 0) == device]
        held = peak = sum(int(s["total_size"]) for s in segments)
        for event in reversed(snapshot["device_traces"][device]):
            held -= _GROWS.get(event.get("action"), 0) * int(event.get("size", 0))
            peak = max(peak, held)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None
    return peak or None
