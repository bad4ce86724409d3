"""CUDA graphs"""

import gc

import pytest

torch = pytest.importorskip("torch")

MIB = 1 << 20


def warm_up(function):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)


def test_capture_and_replay():
    """A captured program replays with new inputs"""
    static = torch.zeros(MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = static + 1
        for _ in range(4):
            y = y * 2
    for value in (0.0, 1.0, 2.5):
        static.fill_(value)
        graph.replay()
        assert y.mean().item() == (value + 1) * 16


def test_memory_of_a_graph_is_its_own():
    """Nobody gets the temporaries of a graph while it lives"""
    static = torch.zeros(MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        big = static.repeat(16) + 1
        y = (big * 3).view(16, -1).sum(0)
        del big
    garbage = []
    for value in range(1, 6):
        garbage += [torch.full((16 * MIB,), float("nan"), device="cuda") for _ in range(2)]
        static.fill_(float(value))
        graph.replay()
        torch.cuda.synchronize()
        assert y.mean().item() == 48.0 * (value + 1)
        assert all(torch.isnan(g[:: MIB // 2]).all() for g in garbage)


def test_pools_of_their_own():
    """Graphs with pools of their own replay in any order, also at the same time"""
    inputs, graphs, outputs = [], [], []
    for i in range(3):
        x = torch.full((MIB,), float(i), device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x + 1).square() * (i + 1)
        inputs.append(x), graphs.append(graph), outputs.append(y)
    for order in ((0, 1, 2), (2, 0, 1), (1, 1, 0), (2, 2, 2)):
        for o in outputs:
            o.zero_()
        streams = [torch.cuda.Stream() for _ in order]
        torch.cuda.synchronize()
        for s, i in zip(streams, order):
            with torch.cuda.stream(s):
                graphs[i].replay()
        torch.cuda.synchronize()
        for i in set(order):
            assert outputs[i].mean().item() == (i + 1) ** 3


def test_a_shared_pool():
    """Graphs that share a pool share its memory"""
    x = torch.ones(8 * MIB, device="cuda")

    def body():
        y = x + 1
        for _ in range(3):
            y = y * 2
        return y.sum()

    warm_up(body)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    first = torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        a = body()
    one = torch.cuda.memory_reserved() - before
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=first.pool()):
        b = body()
    both = torch.cuda.memory_reserved() - before
    assert both < 1.5 * one
    first.replay()
    assert a.item() == 16.0 * 8 * MIB
    second.replay()
    assert b.item() == 16.0 * 8 * MIB


def test_what_a_graph_held_comes_back():
    """The memory of a destroyed graph goes back to the device"""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.ones(64 * MIB, device="cuda") * 2
    graph.replay()
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() >= before + 256 * MIB
    del graph, y
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + 4 * MIB


def test_results_outlive_their_graph():
    """A result stays valid when its graph is gone"""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.ones(4 * MIB, device="cuda") * 3
    graph.replay()
    torch.cuda.synchronize()
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    garbage = [torch.full((4 * MIB,), 9.0, device="cuda") for _ in range(4)]
    assert y.min().item() == y.max().item() == 3.0
    del garbage


def test_side_streams_inside():
    """A capture that forks into other streams, with `record_stream`"""
    x = torch.ones(MIB, device="cuda")
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        a = x + 1
        side.wait_stream(main)
        with torch.cuda.stream(side):
            b = a * 2
            a.record_stream(side)
        del a
        c = torch.full((MIB,), 5.0, device="cuda")
        main.wait_stream(side)
        b.record_stream(main)
        y = b + c
    for value in (1.0, 4.0):
        x.fill_(value)
        graph.replay()
        assert y.mean().item() == (value + 1) * 2 + 5


def test_frees_during_a_capture():
    """Memory from before a capture that is freed while it runs is not lost, nor in the graph"""
    outside = [torch.full((MIB,), float(i), device="cuda") for i in range(8)]
    before = torch.cuda.memory_allocated()
    x = torch.zeros(MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        del outside[::2]
    graph.replay()
    others = [torch.full((MIB,), 9.0, device="cuda") for _ in range(4)]
    graph.replay()
    torch.cuda.synchronize()
    assert y.mean().item() == 1.0 and all(o.min().item() == 9.0 for o in others)
    assert [o.mean().item() for o in outside] == [1.0, 3.0, 5.0, 7.0]
    del y, others, x, outside
    assert torch.cuda.memory_allocated() <= before - 8 * 4 * MIB + 4 * MIB


def test_out_of_memory_in_a_capture():
    """A capture that runs out of memory fails alone: allocating and capturing go on"""
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        with torch.cuda.graph(graph):
            x = torch.ones(MIB, device="cuda")
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    del graph
    x = None
    gc.collect()
    assert torch.full((MIB,), 2.0, device="cuda").mean().item() == 2.0
    again = torch.cuda.CUDAGraph()
    with torch.cuda.graph(again):
        y = torch.ones(MIB, device="cuda") * 7
    again.replay()
    assert y.mean().item() == 7.0 and x is None


def test_other_threads_during_a_capture():
    """Other threads allocate and free while one captures"""
    import threading

    stop, errors = threading.Event(), []

    def work():
        stream = torch.cuda.Stream()
        while not stop.is_set():
            with torch.cuda.stream(stream):
                x = torch.full((MIB,), 3.0, device="cuda")
                stream.synchronize()
                del x

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for i in range(10):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                y = torch.ones(MIB, device="cuda") * i
            graph.replay()
            torch.cuda.current_stream().synchronize()
            if y.mean().item() != i:
                errors.append(i)
            del y, graph
    finally:
        stop.set()
        thread.join()
    assert errors == []


def test_make_graphed_callables():
    """`make_graphed_callables` trains as the eager module does"""
    torch.manual_seed(0)

    def model():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).cuda()

    eager, graphed = model(), model()
    sample = torch.randn(32, 64, device="cuda")
    graphed = torch.cuda.make_graphed_callables(graphed, (sample.clone(),))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (eager, graphed)]
    for step in range(5):
        x = torch.randn(32, 64, device="cuda")
        losses = []
        for m, o in zip((eager, graphed), optimizers):
            o.zero_grad(set_to_none=True)
            loss = m(x).square().mean()
            loss.backward()
            o.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-4), step


def test_two_callables_share():
    """Several callables graphed together"""
    modules = tuple(torch.nn.Linear(64, 64).cuda() for _ in range(2))
    wanted = [m.weight.detach().clone() for m in modules]
    x = torch.randn(16, 64, device="cuda")
    eager = modules[1](modules[0](x)).detach().clone()
    first, second = torch.cuda.make_graphed_callables(modules, ((x.clone(),), (x.clone(),)))
    y = second(first(x))
    assert torch.allclose(y, eager, atol=1e-5)
    assert all(torch.equal(m.weight, w) for m, w in zip(modules, wanted))


def test_whole_network_training():
    """A whole training step in one graph, optimizer included"""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)
    x, target = torch.randn(64, 32, device="cuda"), torch.randn(64, 1, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    warm_up(lambda: [step() for _ in range(3)])
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(30):
        graph.replay()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_statistics_hold():
    """Statistics equal the snapshot with graphs alive"""
    import consistency

    graphs = []
    for i in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.ones((i + 1) * MIB, device="cuda") * 2
        graphs.append((graph, y))
    consistency.check(torch)
    pools = {s["segment_pool_id"] for s in torch.cuda.memory_snapshot()}
    assert {g.pool() for g, _ in graphs} <= {tuple(p) for p in pools}
