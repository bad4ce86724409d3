"""The other process of test_sharing.py; it is told under which allocator it runs. What goes wrong in it is its answer."""

import traceback

import allocators


def _answering(work):
    def guarded(allocator, inbox, outbox, *more):
        try:
            allocators.install(allocator)
            work(inbox, outbox, *more)
        except BaseException:
            outbox.put(traceback.format_exc())
            raise

    return guarded


def _take(inbox, outbox):
    import torch

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


def _give(inbox, outbox, sizes):
    import torch

    tensors = [torch.full((n,), float(i + 1), device="cuda") for i, n in enumerate(sizes)]
    torch.cuda.synchronize()
    for tensor in tensors:
        outbox.put(tensor)
    inbox.get()


def take(allocator, inbox, outbox):
    """Receives tensors, answers with their sums, and adds one to each."""
    _answering(_take)(allocator, inbox, outbox)


def give(allocator, inbox, outbox, sizes):
    """Makes tensors and hands them out; they live until it is told to stop."""
    _answering(_give)(allocator, inbox, outbox, sizes)
