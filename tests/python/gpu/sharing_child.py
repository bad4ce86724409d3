"""The other process of test_sharing.py: it is named on the command line under which allocator it runs."""

import allocators


def take(allocator, inbox, outbox):
    """Receives tensors, answers with their sums, and adds one to each."""
    import torch

    allocators.install(allocator, **({"share": True} if allocator.startswith("tenure") else {}))
    while True:
        tensor = inbox.get()
        if tensor is None:
            break
        answer = tensor.double().sum().item()
        tensor += 1
        torch.cuda.synchronize()
        outbox.put(answer)
        del tensor
    torch.cuda.ipc_collect()


def give(allocator, inbox, outbox, sizes):
    """Makes tensors and hands them out; they live until it is told to stop."""
    import torch

    allocators.install(allocator, **({"share": True} if allocator.startswith("tenure") else {}))
    tensors = [torch.full((n,), float(i + 1), device="cuda") for i, n in enumerate(sizes)]
    torch.cuda.synchronize()
    for tensor in tensors:
        outbox.put(tensor)
    inbox.get()
