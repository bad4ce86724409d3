"""Out of memory"""

import pytest

torch = pytest.importorskip("torch")

import consistency

MIB = 1 << 20
TOO_MUCH = 1 << 50


def bytes_on_device(n):
    return torch.empty(n, dtype=torch.uint8, device="cuda")


def test_class_and_text():
    """A request that cannot be served raises `torch.cuda.OutOfMemoryError` with torch's words"""
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        bytes_on_device(TOO_MUCH)
    text = str(caught.value)
    assert text.startswith("CUDA out of memory. Tried to allocate 1048576.00 GiB")
    assert "GPU 0" in text
    assert isinstance(caught.value, RuntimeError)


def test_an_exabyte():
    """So does one of an exabyte"""
    with pytest.raises(torch.cuda.OutOfMemoryError, match="1EB"):
        bytes_on_device(1 << 60)


def test_nothing_has_changed():
    """A failed request changes nothing and is counted; the next one works"""
    keep = torch.full((MIB,), 7.0, device="cuda")
    before = torch.cuda.memory_stats()
    for _ in range(3):
        with pytest.raises(torch.cuda.OutOfMemoryError):
            bytes_on_device(TOO_MUCH)
    after = torch.cuda.memory_stats()
    for key in ("allocated_bytes.all.current", "requested_bytes.all.current", "allocation.all.current"):
        assert after[key] == before[key]
    assert after["num_ooms"] == before["num_ooms"] + 3
    assert bytes_on_device(8 * MIB).fill_(1).sum().item() == 8 * MIB
    assert keep.mean().item() == 7.0
    consistency.check(torch, before)


def test_memory_fraction(allow):
    """`set_per_process_memory_fraction` is a limit, and can be read and lifted"""
    allow(400 * MIB)
    assert 0 < torch.cuda.get_per_process_memory_fraction() < 1
    small = bytes_on_device(128 * MIB)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        bytes_on_device(512 * MIB)
    assert small.fill_(2).max().item() == 2
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    assert bytes_on_device(512 * MIB).fill_(3).min().item() == 3


def test_fraction_arguments():
    """Fractions outside of 0 to 1 are refused"""
    for bad in (-0.1, 1.1):
        with pytest.raises(ValueError):
            torch.cuda.set_per_process_memory_fraction(bad)
    with pytest.raises(TypeError):
        torch.cuda.set_per_process_memory_fraction(1)


def test_cached_memory_is_no_reason(allow):
    """Cached blocks of other sizes are no reason to be out of memory"""
    allow(640 * MIB)
    pieces = [bytes_on_device(32 * MIB) for _ in range(16)]
    del pieces
    assert bytes_on_device(500 * MIB).fill_(1).max().item() == 1


def test_recovery_in_a_loop(allow):
    """A program that halves its batch after each failure comes through"""
    allow(300 * MIB)
    size, tries = 4096 * MIB, 0
    while True:
        try:
            x = bytes_on_device(size).fill_(1)
            break
        except torch.cuda.OutOfMemoryError:
            size //= 2
            tries += 1
            torch.cuda.empty_cache()
    assert tries == 4 and x.numel() == 256 * MIB


def test_pending_memory_is_no_reason(allow):
    """Memory whose free waits for a stream is waited for before a request fails"""
    side = torch.cuda.Stream()
    allow(320 * MIB)
    x = bytes_on_device(256 * MIB)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        x.fill_(1)
    x.record_stream(side)
    del x
    y = bytes_on_device(256 * MIB).fill_(2)
    torch.cuda.synchronize()
    assert y.min().item() == 2


def test_in_a_backward_pass():
    """From an autograd thread it arrives as itself"""

    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad + bytes_on_device(TOO_MUCH).float()[: grad.numel()]

    x = torch.ones(4, device="cuda", requires_grad=True)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        Greedy.apply(x).sum().backward()


def test_on_a_side_stream():
    """And on a stream of one's own"""
    with torch.cuda.stream(torch.cuda.Stream()):
        with pytest.raises(torch.cuda.OutOfMemoryError):
            bytes_on_device(TOO_MUCH)
        assert bytes_on_device(MIB).fill_(1).max().item() == 1


def test_observers(program):
    """Observers are told of it, once, with the device and the size"""
    out = program("""
        import torch
        torch.zeros(1, device="cuda")
        seen = []
        torch._C._cuda_attach_out_of_memory_observer(lambda *what: seen.append(what))
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            pass
        (device, asked, total, free), = seen
        print(device, asked, total > 0, 0 < free <= total)
    """)
    assert out == f"0 {TOO_MUCH} True True"


def test_many_threads():
    """Threads that fail do not disturb those that do not"""
    import threading

    errors = []

    def fail():
        for _ in range(20):
            try:
                bytes_on_device(TOO_MUCH)
                errors.append("served")
            except torch.cuda.OutOfMemoryError:
                pass

    def work(value):
        for _ in range(50):
            if bytes_on_device(3 * MIB).fill_(value).max().item() != value:
                errors.append("wrong")

    threads = [threading.Thread(target=fail) for _ in range(2)]
    threads += [threading.Thread(target=work, args=(i + 1,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []
