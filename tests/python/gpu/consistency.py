"""What must hold between torch's memory statistics and its snapshot at every moment."""

POOLS = ("small_pool", "large_pool")
QUANTITIES = (
    "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
    "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
COUNTS = (
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "max_split_size",
)


def all_keys():
    """The keys that torch.cuda.memory_stats() has."""
    keys = {
        f"{q}.{p}.{w}" for q in QUANTITIES for p in ("all", *POOLS) for w in ("current", "peak", "allocated", "freed")
    }
    keys |= {
        f"oversize_{q}.{w}" for q in ("allocations", "segments") for w in ("current", "peak", "allocated", "freed")
    }
    return keys | set(COUNTS)


def totals(segments, device=0):
    """The `current` statistics that a snapshot's segments add up to; checks each segment on the way."""
    sums = {f"{q}.{p}": 0 for q in QUANTITIES for p in ("all", *POOLS)}

    def add(quantity, pool, amount):
        sums[f"{quantity}.all"] += amount
        sums[f"{quantity}.{pool}"] += amount

    for segment in segments:
        if segment["device"] != device:
            continue
        pool = segment["segment_type"] + "_pool"
        blocks = segment["blocks"]
        assert pool in POOLS
        assert sum(b["size"] for b in blocks) == segment["total_size"], "blocks tile their segment"
        at = segment["address"]
        for b in blocks:
            assert b["address"] == at
            at += b["size"]
        allocated = [b for b in blocks if b["state"] == "active_allocated"]
        active = [b for b in blocks if b["state"].startswith("active")]
        assert all(b["state"] in ("active_allocated", "active_pending_free", "inactive") for b in blocks)
        assert sum(b["size"] for b in allocated) == segment["allocated_size"]
        assert sum(b["size"] for b in active) == segment["active_size"]
        assert sum(b["requested_size"] for b in active) == segment["requested_size"]
        if not segment["is_expandable"]:  # torch counts a row of mapped pages neither as a segment nor as split
            add("segment", pool, 1)
        add("reserved_bytes", pool, segment["total_size"])
        add("allocation", pool, len(allocated))
        add("allocated_bytes", pool, segment["allocated_size"])
        add("active", pool, len(active))
        add("active_bytes", pool, segment["active_size"])
        add("requested_bytes", pool, segment["requested_size"])
        if len(blocks) > 1 and not segment["is_expandable"]:
            idle = [b for b in blocks if b["state"] == "inactive"]
            add("inactive_split", pool, len(idle))
            add("inactive_split_bytes", pool, sum(b["size"] for b in idle))
    return sums


def check(torch, before=None):
    """The statistics equal the snapshot, add up, and have only grown since `before` where they count. Returns them."""
    segments = torch.cuda.memory_snapshot()
    stats = torch.cuda.memory_stats()
    for key, total in totals(segments).items():
        assert stats[f"{key}.current"] == total, key
    for quantity in QUANTITIES:
        for pool in ("all", *POOLS):
            key = f"{quantity}.{pool}"
            assert stats[f"{key}.peak"] >= stats[f"{key}.current"] >= 0, key
            if before is not None:
                moved = {
                    what: stats[f"{key}.{what}"] - before[f"{key}.{what}"] for what in ("current", "allocated", "freed")
                }
                assert moved["allocated"] >= 0 and moved["freed"] >= 0, key
                assert moved["current"] == moved["allocated"] - moved["freed"], key
        for what in ("current", "allocated", "freed"):
            assert stats[f"{quantity}.all.{what}"] == sum(stats[f"{quantity}.{p}.{what}"] for p in POOLS), (
                quantity,
                what,
            )
    assert (
        stats["allocated_bytes.all.current"] <= stats["active_bytes.all.current"] <= stats["reserved_bytes.all.current"]
    )
    return stats
