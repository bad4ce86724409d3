#!/usr/bin/env python3
"""PyTorch programs whose GPU memory behaviour is hard, to measure allocators and to record traces.

Each is a real model (random weights, synthetic data with realistic distributions of shapes) run for a few steps. One
process runs one of them under one allocator and prints one JSON line.

    workloads.py NAME [--steps N] [--allocator ALLOCATOR] [--trace FILE.csv.gz] [--wait]

ALLOCATOR  native, expandable (native with expandable segments), async (cudaMallocAsync), tenure or tenure:POLICY; default:
           native, with whatever PYTORCH_ALLOC_CONF says
--trace    also record the history and write it as a trace for `tenure compare`
--wait     import everything, print "ready", and start at a line on stdin: a runner can import for several processes at
           once and still run them one after another

Needs torchvision (resnet_train, detection_train) and transformers (gpt_*, llm_decode).
"""

import argparse
import importlib
import importlib.util
import json
import os
import pathlib
import random
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "src" / "python"

# As many steps as the traces beside the C++ benchmarks were recorded with, or, where those were few, enough for a median.
STEPS = {
    "resnet_train": 100,
    "gpt_varlen_train": 30,
    "gpt_ckpt_lora_train": 25,
    "llm_decode": 8,
    "detection_train": 40,
    "gnn_train": 200,
    "multistream_prefetch": 200,
}
WARM_UP = 2
IMPORTS = {
    "resnet_train": ["torchvision"],
    "detection_train": ["torchvision"],
    "gpt_varlen_train": ["transformers.models.gpt2.modeling_gpt2"],
    "gpt_ckpt_lora_train": ["transformers.models.gpt2.modeling_gpt2"],
    "llm_decode": ["transformers.models.llama.modeling_llama"],
}
CONFIGURATIONS = {
    "native": None,
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
}
STATISTICS = (
    "allocated_bytes.all.peak", "active_bytes.all.peak", "requested_bytes.all.peak", "reserved_bytes.all.peak",
    "allocation.all.allocated", "segment.all.allocated", "num_alloc_retries", "num_ooms", "num_device_alloc",
    "num_device_free",
)  # fmt: skip


def build_resnet_train(torch):
    import torchvision

    m = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    o = torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (64,), device="cuda")

    def step(i):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(m(x), y)
        o.zero_grad(set_to_none=True)
        loss.backward()
        o.step()
        return loss

    return step


def _gpt(torch, layers=12, width=1024, heads=16, ckpt=False, vocab=50304, ctx=1024):
    from transformers import GPT2Config, GPT2LMHeadModel

    c = GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocab, n_positions=ctx, bos_token_id=0, eos_token_id=0
    )
    m = GPT2LMHeadModel(c).cuda()
    if ckpt:
        m.gradient_checkpointing_enable()
    return m


def build_gpt_varlen_train(torch):
    """Fine-tuning with batches padded to their longest sample: a new shape every step."""
    m = _gpt(torch)
    m.train()
    o = torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True)
    r = random.Random(7)

    def step(i):
        n = min(1024, max(32, int(r.lognormvariate(5.6, 0.6))))
        ids = torch.randint(0, 50257, (8, n), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = m(input_ids=ids, labels=ids).loss
        o.zero_grad(set_to_none=True)
        loss.backward()
        o.step()
        return loss

    return step


def build_gpt_ckpt_lora_train(torch):
    """Activation checkpointing and low-rank adapters: many short-lived big blocks among long-lived small ones."""
    m = _gpt(torch, ckpt=True)
    m.train()
    for p in m.parameters():
        p.requires_grad_(False)
    adapters = []
    for b in m.transformer.h:
        d = b.attn.c_attn.weight.shape
        a = torch.nn.Parameter(torch.randn(d[0], 16, device="cuda") * 0.01)
        z = torch.nn.Parameter(torch.zeros(16, d[1], device="cuda"))
        adapters += [a, z]
        b.attn.c_attn.register_forward_hook(lambda mod, inp, out, a=a, z=z: out + (inp[0] @ a) @ z)
    m.enable_input_require_grads()
    o = torch.optim.AdamW(adapters, lr=1e-4)
    r = random.Random(11)

    def step(i):
        n = min(1024, max(64, int(r.lognormvariate(6.0, 0.5))))
        ids = torch.randint(0, 50257, (16, n), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = m(input_ids=ids, labels=ids).loss
        o.zero_grad(set_to_none=True)
        loss.backward()
        o.step()
        return loss

    return step


def build_llm_decode(torch):
    """Batched generation with a growing key/value cache, requests of random length arriving and leaving."""
    from transformers import LlamaConfig, LlamaForCausalLM

    c = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=8,
        vocab_size=32000,
        max_position_embeddings=4096,
    )
    m = LlamaForCausalLM(c).cuda().to(torch.bfloat16).eval()
    r = random.Random(3)

    @torch.no_grad()
    def step(i):
        b = r.choice([1, 2, 4, 8, 16])
        n = min(1536, max(16, int(r.lognormvariate(5.5, 0.8))))
        g = r.randint(4, 24)
        ids = torch.randint(0, 32000, (b, n), device="cuda")
        out = m(input_ids=ids, use_cache=True)
        past, tok = out.past_key_values, out.logits[:, -1:].argmax(-1)
        del out
        for _ in range(g):
            out = m(input_ids=tok, past_key_values=past, use_cache=True)
            past, tok = out.past_key_values, out.logits[:, -1:].argmax(-1)
        return tok.sum()

    return step


def build_detection_train(torch):
    """Object detection with images of every size: the classic fragmentation workload."""
    import torchvision

    m = (
        torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91)
        .cuda()
        .train()
    )
    o = torch.optim.SGD(m.parameters(), lr=1e-4, momentum=0.9)
    r = random.Random(5)

    def step(i):
        imgs, tgts = [], []
        for _ in range(2):
            h, w = r.randint(300, 1000), r.randint(300, 1000)
            imgs.append(torch.rand(3, h, w, device="cuda"))
            k = r.randint(1, 20)
            x0 = torch.rand(k, 2, device="cuda") * torch.tensor([w * 0.5, h * 0.5], device="cuda")
            b = torch.cat([x0, x0 + 20 + torch.rand(k, 2, device="cuda") * 100], 1)
            tgts.append({"boxes": b, "labels": torch.randint(1, 91, (k,), device="cuda")})
        loss = sum(m(imgs, tgts).values())
        o.zero_grad(set_to_none=True)
        loss.backward()
        o.step()
        return loss

    return step


def build_gnn_train(torch):
    """Graph convolution over sampled neighbourhoods of varying size: gather/scatter temporaries."""
    r = random.Random(13)
    d = 256
    w = [torch.nn.Linear(d, d).cuda() for _ in range(4)]
    o = torch.optim.Adam([p for l in w for p in l.parameters()], lr=1e-3)

    def step(i):
        n = int(r.lognormvariate(10.0, 0.5))
        e = int(n * r.uniform(4, 20))
        x = torch.randn(n, d, device="cuda")
        src = torch.randint(0, n, (e,), device="cuda")
        dst = torch.randint(0, n, (e,), device="cuda")
        for l in w:
            msg = l(x)[src]
            x = torch.relu(torch.zeros_like(x).index_add_(0, dst, msg) / (e / n))
        loss = x.square().mean()
        o.zero_grad(set_to_none=True)
        loss.backward()
        o.step()
        return loss

    return step


def build_multistream_prefetch(torch):
    """A copy stream prefetches batches and record_stream hands them to the compute stream; two compute streams."""
    m = (
        torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU()) for _ in range(6)])
        .cuda()
        .to(torch.bfloat16)
    )
    copy, side = torch.cuda.Stream(), torch.cuda.Stream()
    r = random.Random(17)
    host = torch.randn(8192, 4096).pin_memory()
    state = {}

    def fetch():
        n = r.randint(256, 8192)
        with torch.cuda.stream(copy):
            x = host[:n].to("cuda", non_blocking=True).to(torch.bfloat16)
        return x

    def step(i):
        x = state.pop("x", None)
        if x is None:
            x = fetch()
        torch.cuda.current_stream().wait_stream(copy)
        x.record_stream(torch.cuda.current_stream())
        state["x"] = fetch()
        y = m(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y.record_stream(side)
            z = (y.float() ** 2).mean(0)
            z.record_stream(torch.cuda.default_stream())
        torch.cuda.current_stream().wait_stream(side)
        loss = z.sum() + y.float().mean()
        loss.backward()
        m.zero_grad(set_to_none=True)
        return loss

    return step


WORKLOADS = {k[6:]: v for k, v in list(globals().items()) if k.startswith("build_")}


def choose_allocator(name):
    """Before torch is imported. Returns: what is left to do after that."""
    kind, _, policy = name.partition(":")
    if kind in CONFIGURATIONS:
        if CONFIGURATIONS[kind]:
            os.environ["PYTORCH_ALLOC_CONF"] = CONFIGURATIONS[kind]
        return lambda: None
    if kind != "tenure":
        sys.exit(f"workloads: unknown allocator {name!r}: it may be {', '.join(CONFIGURATIONS)}, tenure, tenure:POLICY")
    if importlib.util.find_spec("tenure") is None:
        sys.path.insert(0, str(SOURCE))

    def install():
        import tenure.torch

        tenure.torch.install(**({"policy": policy} if policy else {}))

    return install


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(WORKLOADS))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--allocator", default="native")
    parser.add_argument("--trace")
    parser.add_argument("--wait", action="store_true")
    arguments = parser.parse_args()

    install = choose_allocator(arguments.allocator)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    for module in IMPORTS.get(arguments.name, ()):
        importlib.import_module(module)
    if arguments.wait:
        print("ready", flush=True)
        if not sys.stdin.readline():
            return 0  # the runner is gone
    started = time.perf_counter()
    install()
    torch.manual_seed(0)
    random.seed(0)
    if arguments.trace:
        torch.cuda.memory._record_memory_history(context=None, stacks="python", max_entries=2_000_000)
    step = WORKLOADS[arguments.name](torch)

    times, losses = [], []
    for i in range(arguments.steps or STEPS[arguments.name]):
        torch.cuda.synchronize()
        before = time.perf_counter()
        loss = step(i)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - before)
        losses.append(float(loss))
    measured = sorted(times[WARM_UP:]) or times
    result = {
        "workload": arguments.name,
        "allocator": arguments.allocator,
        "backend": torch.cuda.get_allocator_backend(),
        "steps": len(times),
        "step_ms": round(1e3 * measured[len(measured) // 2], 3),
        "first_steps_ms": round(1e3 * sum(times[:WARM_UP]), 1),
        "steps_s": round(sum(times), 3),
        "losses": [loss.hex() for loss in losses],
        "last_loss": losses[-1],
    }
    stats = torch.cuda.memory_stats()
    result.update({key: stats.get(key) for key in STATISTICS})
    free, total = torch.cuda.mem_get_info()
    result["device_used"] = total - free
    if arguments.trace:
        if importlib.util.find_spec("tenure") is None:
            sys.path.insert(0, str(SOURCE))
        from tenure import trace

        result["events"] = len(trace.write(torch.cuda.memory._snapshot(), arguments.trace).events)
    result["process_s"] = round(time.perf_counter() - started, 2)
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
