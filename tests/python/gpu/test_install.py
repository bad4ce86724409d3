"""Installing"""

import os
import sys

import pytest

torch = pytest.importorskip("torch")

import allocators

pytestmark = pytest.mark.tenure_only


def test_late(program):
    """After torch has used CUDA: old tensors stay valid and are freed where they came from"""
    out = program(
        """
        import gc
        import torch
        old = [torch.full((n,), 3.0, device="cuda") for n in (100, 1 << 20, 1 << 24)]
        side = torch.cuda.Stream()
        allocators = __import__("allocators")
        allocators.install()
        new = [torch.full((n,), 4.0, device="cuda") for n in (100, 1 << 20, 1 << 24)]
        assert all(t.min().item() == 3.0 for t in old) and all(t.min().item() == 4.0 for t in new)
        old[1].record_stream(side)
        held = torch.cuda.memory_allocated()
        del old
        gc.collect()
        assert torch.cuda.memory_allocated() == held, "what the former allocator had is not counted here"
        assert all(t.min().item() == 4.0 for t in new)
        torch.cuda.empty_cache()
        import tenure.torch
        print(tenure.torch.installed(), tenure.torch.stats()["former_allocator"], torch.cuda.get_allocator_backend())
    """,
        install=False,
    )
    installed, former, backend = out.split()
    assert (installed, former) == ("True", "native") and "tenure" in backend


def test_late_with_graphs_and_pools(program):
    """And graphs and pools from before replay, stay valid and die in peace"""
    out = program(
        """
        import gc
        import torch, tenure.torch
        static = torch.zeros(1 << 20, device="cuda")
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.MemPool()
        with torch.cuda.graph(graph):
            y = static + 1
        with torch.cuda.use_mem_pool(pool):
            old = torch.full((1 << 20,), 3.0, device="cuda")
        tenure.torch.install()
        new = torch.full((1 << 22,), 4.0, device="cuda")
        static.fill_(5.0)
        graph.replay()
        print(y.mean().item(), old.mean().item(), new.mean().item())
        try:
            with torch.cuda.use_mem_pool(pool):
                torch.empty(100, device="cuda")
        except RuntimeError as error:
            print("make a new MemPool" in str(error))
        del graph, y, pool, old
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = static + 1
        graph.replay()
        print(y.mean().item(), new.mean().item())
    """,
        install=False,
    )
    assert out.splitlines() == ["6.0 3.0 4.0", "True", "6.0 4.0"]


def test_late_with_a_full_cache(program):
    """What the former allocator has cached is no reason to be out of memory"""
    out = program(
        """
        import torch, tenure.torch
        free = torch.cuda.mem_get_info()[0]
        x = torch.empty(free * 6 // 10, dtype=torch.uint8, device="cuda")
        del x
        torch.cuda.set_per_process_memory_fraction(0.9)
        tenure.torch.install()
        y = torch.empty(free * 6 // 10, dtype=torch.uint8, device="cuda")
        print(y[-1:].fill_(7).item(), torch.cuda.get_per_process_memory_fraction())
    """,
        install=False,
    )
    assert out == "7 0.9"


def test_failed_capture(program):
    """A capture that fails leaves nothing behind: later frees complete, later captures work"""
    out = program(
        """
        import torch
        x = torch.ones(1 << 20, device="cuda")
        side = torch.cuda.Stream()
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(torch.cuda.Stream()):
                try:
                    graph.capture_begin()
                    y = x + 1
                    y.sum().item()
                except RuntimeError:
                    pass
                try:
                    graph.capture_end()
                    print("captured")
                except RuntimeError:
                    print("failed")
            del graph, y
        free = torch.cuda.mem_get_info()[0]
        n = 1 << 28
        for _ in range(3 * free // n):
            t = torch.empty(n, dtype=torch.uint8, device="cuda")
            t.record_stream(side)
            del t
        torch.cuda.synchronize()
        torch.empty(1, device="cuda")
        import tenure.torch
        print(tenure.torch.stats()["capturing"], torch.cuda.memory_stats()["active_bytes.all.current"] < n)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        graph.replay()
        print(y.mean().item())
    """
    )
    assert out.splitlines() == ["failed", "failed", "False True", "2.0"]


def test_twice(program):
    """Twice with the same options is once; with others it is an error that changes nothing"""
    out = program(
        """
        import torch, tenure.torch as t
        t.install(policy="caching", limit="8GiB")
        t.install(policy="caching", limit="8GiB")
        for wrong in (dict(policy="remap"), dict(policy="caching", limit="9GiB"), dict()):
            try:
                t.install(**wrong)
                print("installed", wrong)
            except t.TenureError:
                pass
        print(torch.ones(4, device="cuda").sum().item(), t.installed())
    """,
        install=False,
    )
    assert out == "4.0 True"


def test_wrong_options(program):
    """Wrong options are refused with what is known, and torch's allocator stays"""
    out = program(
        """
        import torch, tenure.torch as t
        for wrong, words in ((dict(policy="best"), "remap"), (dict(no_such_option=3), "no_such_option"),
                             (dict(mark_bytes="4GB"), "4GB"), (dict(share="perhaps"), "share"),
                             (dict(waits="perhaps"), "waits")):
            try:
                t.install(**wrong)
                print("installed", wrong)
            except t.TenureError as error:
                assert words in str(error), error
        try:
            t.install(limit="20GB")
        except ValueError as error:
            assert "20GB" in str(error)
        print(t.installed(), torch.ones(4, device="cuda").sum().item(), torch.cuda.get_allocator_backend())
    """,
        install=False,
    )
    assert out == "False 4.0 native"


def test_limit(program):
    """`limit=` is a hard limit for all of torch on a device"""
    out = program(
        """
        import torch, tenure.torch as t
        t.install(limit="512MiB")
        x = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError as error:
            assert "CUDA out of memory. Tried to allocate" in str(error)
            print("refused", torch.cuda.memory_reserved() <= 512 << 20)
        t.set_limit("1GiB")
        y = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
        print(torch.cuda.memory_reserved() <= 1 << 30, t.stats()["limit"] == 1 << 30)
    """,
        install=False,
    )
    assert out == "refused True\nTrue True"


@pytest.mark.parametrize(
    "policy", ["remap", "caching", "best_fit", "async", "fronted_remap", "fronted_caching", "fronted_best_fit"]
)
def test_policies(program, policy):
    """Every policy trains a model, and its statistics equal its snapshot"""
    out = program(
        """
        import sys
        import torch, tenure.torch as t
        import consistency
        t.install(policy=sys.argv[1])
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        x, target = torch.randn(512, 256, device="cuda"), torch.randn(512, 1, device="cuda")
        losses = []
        for _ in range(20):
            optimizer.zero_grad(set_to_none=True)
            loss = (model(x) - target).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        if sys.argv[1] != "async":  # the driver's pool does not say where its blocks lie
            consistency.check(torch)
        torch.cuda.synchronize()
        print("done")
    """,
        policy,
        install=False,
    )
    assert out == "done"


def test_environment(program, tmp_path):
    """`TENURE_TORCH=1` does it with no change to the program"""
    # A folder as site-packages is: site reads its .pth files when Python starts. This one stands for it.
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(f"import site; site.addsitedir({str(allocators.SOURCE)!r})\n")
    code = """
        import torch
        print(torch.cuda.get_allocator_backend(), torch.ones(4, device="cuda").sum().item())
        try:
            torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
            print("unlimited")
        except torch.cuda.OutOfMemoryError:
            print("limited")
    """
    path = [tmp_path / "site"]
    out = program(
        code, install=False, path=path, TENURE_TORCH=1, TENURE_TORCH_LIMIT="1GiB", TENURE_TORCH_POLICY="caching"
    )
    assert "tenure" in out.splitlines()[0] and out.splitlines()[0].endswith("4.0") and out.splitlines()[1] == "limited"
    assert program(code, install=False, path=path).split() == ["native", "4.0", "unlimited"]


def test_alloc_conf(program):
    """`PYTORCH_ALLOC_CONF` is read: what has a meaning is kept, the rest is a warning and no error"""
    out = program(
        """
        import torch
        print(torch.ones(4, device="cuda").sum().item())
    """,
        PYTORCH_ALLOC_CONF="max_split_size_mb:128,garbage_collection_threshold:0.8,expandable_segments:True",
    )
    assert out == "4.0"


def test_information():
    """`python -m tenure info` names the device, the library and the policies"""
    import json
    import subprocess

    result = subprocess.run(
        [sys.executable, "-m", "tenure", "info", "--json"], capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(allocators.SOURCE), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    information = json.loads(result.stdout)
    assert information["devices"] and information["library"] and "remap" in information["policies"]
    assert information["library_built_for_torch"].split(".")[:2] == torch.__version__.split(".")[:2]
