"""Threads and loaders"""

import queue
import threading

import pytest

torch = pytest.importorskip("torch")

MIB = 1 << 20


def run_all(functions):
    errors = []

    def guarded(f):
        try:
            f()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(f,)) for f in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not any(t.is_alive() for t in threads), "a thread hangs"
    if errors:
        raise errors[0]


def test_inference():
    """Eight threads of inference, a stream each, get what one gets"""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(1024, 10)
    ).cuda().eval()  # fmt: skip
    inputs = [torch.randn(4 + i, 3, 48, 48, device="cuda") for i in range(8)]
    with torch.no_grad():
        wanted = [model(x) for x in inputs]
    torch.cuda.synchronize()

    def infer(i):
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(40):
                y = model(inputs[i])
                stream.synchronize()
                assert torch.allclose(y, wanted[i], atol=1e-4)

    run_all([lambda i=i: infer(i) for i in range(8)])


def test_training():
    """Four threads train models of their own"""

    def train(seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, target = torch.randn(128, 64, device="cuda"), torch.randn(128, 1, device="cuda")
        losses = []
        for _ in range(30):
            optimizer.zero_grad(set_to_none=True)
            loss = (model(x) - target).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]

    run_all([lambda s=s: train(s) for s in range(4)])


def test_frees_elsewhere():
    """Tensors made by one thread are freed by another, on whatever stream and device that one is"""
    handed = queue.Queue(maxsize=50)

    def make():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for i in range(300):
                x = torch.full((1000 + 997 * (i % 50),), float(i), device="cuda")
                done = torch.cuda.Event()
                done.record()
                handed.put((i, x, done), timeout=30)
                del x
        handed.put(None, timeout=30)

    def use():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while True:
                item = handed.get(timeout=30)
                if item is None:
                    return
                i, x, done = item
                stream.wait_event(done)
                most = x.max()
                x.record_stream(stream)
                del x, item
                assert most.item() == i

    before = torch.cuda.memory_allocated()
    run_all([make, use])
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_everything_at_once():
    """Statistics, snapshots and emptying the cache while other threads allocate"""
    stop = threading.Event()

    def allocate(seed):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            i = 0
            while not stop.is_set():
                i += 1
                x = torch.full((1 + (i * 7919 * (seed + 1)) % (2 * MIB),), float(seed), device="cuda")
                if i % 20 == 0:
                    assert x[-1].item() == seed
                del x

    def observe():
        try:
            for i in range(60):
                torch.cuda.memory_stats()
                torch.cuda.memory_snapshot()
                if i % 5 == 0:
                    torch.cuda.empty_cache()
                if i % 7 == 0:
                    torch.cuda.reset_peak_memory_stats()
        finally:
            stop.set()

    run_all([observe] + [lambda s=s: allocate(s) for s in range(6)])


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(program, workers):
    """`DataLoader` with pinned memory, with and without worker processes"""
    out = program(
        """
        import sys
        import torch
        from loader_data import Numbers
        if __name__ == "__main__":
            workers = int(sys.argv[1])
            options = {"multiprocessing_context": "spawn"} if workers else {}
            loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, pin_memory=True, num_workers=workers, **options)
            seen = []
            for x, i in loader:
                assert x.is_pinned()
                y = x.to("cuda", non_blocking=True)
                seen += y.amax(1).tolist()
                assert [int(v) for v in seen[-8:]] == i.tolist()
            print(sum(seen))
    """,
        workers,
        fresh=True,
    )
    assert out == str(float(sum(range(64))))


def test_fork_before_cuda(program):
    """A process that forks before it uses CUDA uses it in its children"""
    out = program("""
        import os
        import torch
        child = os.fork()
        if child == 0:
            x = torch.full((1 << 20,), 2.0, device="cuda")
            os._exit(0 if x.mean().item() == 2.0 else 1)
        print(os.waitpid(child, 0)[1])
    """)
    assert out == "0"
