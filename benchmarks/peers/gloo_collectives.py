"""Collectives of gloo (torch.distributed) between processes: one JSON line per op and size, from rank 0.

  gloo_collectives.py --procs 2 [--ops all_reduce,broadcast] [--sizes 4096] [--seconds 0.5]

The same calls, sizes and rounds as ../collectives.rs. Processes share this host and speak over the loopback device.
"""
import argparse
import json
import os
import socket
import time

OPS = ["all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "all_to_all", "send_recv", "barrier"]


def calls(op, elements, rank, n):
    import torch
    import torch.distributed as dist
    small, large = torch.ones(elements), torch.ones(elements * n)
    parts = list(large.chunk(n))
    last = n - 1

    def ping():
        if rank == 0:
            dist.send(small, last)
            dist.recv(parts[0], last)
        elif rank == last:
            dist.recv(parts[0], 0)
            dist.send(small, 0)

    return {
        "all_reduce": lambda: dist.all_reduce(small, op=dist.ReduceOp.MAX),
        "broadcast": lambda: dist.broadcast(small, 0),
        "reduce": lambda: dist.reduce(small, 0, op=dist.ReduceOp.MAX),
        "all_gather": lambda: dist.all_gather(parts, small),
        "gather": lambda: dist.gather(small, parts if rank == 0 else None, 0),
        "scatter": lambda: dist.scatter(small, parts if rank == 0 else None, 0),
        "all_to_all": lambda: dist.all_to_all_single(parts[0], small),
        "send_recv": ping,
        "barrier": dist.barrier,
    }[op]


def measure(op, size, rank, n, seconds):
    import torch
    import torch.distributed as dist
    call = calls(op, max(size // 4 // n * n, n), rank, n)
    for _ in range(3):
        call()
    begun = time.perf_counter()
    for _ in range(3):
        call()
    each = (time.perf_counter() - begun) / 3
    count = torch.tensor([min(max(int(seconds / 5 / each), 1), 10000)])
    dist.broadcast(count, 0)
    rounds = []
    for _ in range(5):
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(int(count)):
            call()
        rounds.append((time.perf_counter() - begun) / int(count))
    return sorted(rounds)[2] / (2 if op == "send_recv" else 1)  # there and back are two


def worker(rank, a, port):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=a.procs)
    for op in a.ops.split(","):
        if op not in OPS:
            continue
        for size in [0] if op == "barrier" else [int(size) for size in a.sizes.split(",")]:
            seconds = measure(op, size, rank, a.procs, a.seconds)
            if rank == 0:
                print(json.dumps(dict(framework="gloo", op=op, bytes=size, procs=a.procs, seconds=seconds)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--procs", type=int, default=2)
    p.add_argument("--ops", default=",".join(OPS))
    p.add_argument("--sizes", default="4096,1048576,67108864")
    p.add_argument("--seconds", type=float, default=0.5)
    a = p.parse_args()
    import torch.multiprocessing as mp
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(a, port), nprocs=a.procs)


if __name__ == "__main__":
    main()
