"""Rounds of a benchmark's work in pfl's simulation, as many as it is told to run: `run_pfl.py WORK`.

As pfl's guide to fast simulations has it: one process a core with one thread each, and all data in memory. This
program starts the two processes and tells both how many rounds to run; the first of them answers. Runs in the
environment that `make bench-peers` makes for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

PROCESSES = 2


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(PROCESSES):
            # pfl reads rank and addresses from the environment. There is no server at these addresses: see `join`.
            settings = {
                "PFL_WORKER_ADDRESSES": ",".join(["127.0.0.1:0"] * PROCESSES),
                "PFL_WORKER_RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "OMP_NUM_THREADS": "1",
                "PYTHONWARNINGS": "ignore::FutureWarning",  # of torch, about a name that pfl uses
                "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
            }
            process = subprocess.Popen(
                [sys.executable, __file__, *sys.argv[1:], f"{folder}/meeting"],
                env=os.environ | settings,
                stdin=subprocess.PIPE,
                stdout=None if rank == 0 else subprocess.DEVNULL,
                text=True,
                bufsize=1,
            )
            ranks.append(process)
        for line in sys.stdin:
            for process in ranks:
                assert process.stdin is not None
                process.stdin.write(line)
        for process in ranks:
            assert process.stdin is not None
            process.stdin.close()
        return max(abs(process.wait()) for process in ranks)


def join(meeting: str) -> None:
    """Have pfl's processes meet at a file: the server that torch would start listens to the whole network."""
    import torch.distributed as dist

    original = dist.init_process_group
    store = dist.FileStore(meeting, PROCESSES)

    def init(backend: str, init_method: str, rank: int, world_size: int) -> None:
        original(backend=backend, store=store, rank=rank, world_size=world_size)

    dist.init_process_group = init


def simulate(name: str, meeting: str) -> None:
    from turns import Turns, only_answers

    answers = only_answers()
    join(meeting)

    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from torch.nn import functional as F

    from plain import model, normalised
    from work import WORKS, data

    work, turns = WORKS[name], Turns(answers)
    np.random.seed(0)  # noqa: NPY002  pfl draws from this one, and the same in every process
    x, y = (torch.from_numpy(array) for array in data(work))
    per_epoch = work.samples // work.batch_size
    used = per_epoch * work.batch_size  # pfl would make a batch of what is left over; the others drop it
    clients = {k: (x[k * work.samples :][:used], y[k * work.samples :][:used]) for k in range(work.clients)}
    users = FederatedDataset.from_slices(clients, get_user_sampler("minimize_reuse", list(clients)))
    steps = 0

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model(work).to(memory_format=torch.channels_last)

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            nonlocal steps
            steps += 1
            return F.cross_entropy(self.net(normalised(x)), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, object]:
            return {}  # asked for in the first round, whatever the frequency

    class Watch(TrainingProcessCallback):
        """Takes turns, and counts the steps."""

        began = time.perf_counter()

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            nonlocal steps
            assert steps == work.steps * work.per_round // PROCESSES, steps
            steps = 0
            over = turns.over_after(time.perf_counter() - self.began)
            self.began = time.perf_counter()
            return over, Metrics()

    net = Net()
    first = [weights.detach().clone() for weights in net.parameters()]
    trained = FederatedAveraging().run(
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=PyTorchModel(
            net,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        ),
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=10**9,
            evaluation_frequency=10**9,
            train_cohort_size=work.per_round,
            val_cohort_size=None,
        ),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=work.lr,
            local_num_epochs=work.steps // per_epoch,
            local_batch_size=work.batch_size,
        ),
        callbacks=[Watch()],
        send_metrics_to_platform=False,  # it would print them
    )
    now = trained.pytorch_model.parameters()
    parts = torch.stack([(weights.detach() - before).norm() for weights, before in zip(now, first)])
    print(json.dumps({"moved": parts.norm().item()}), file=answers, flush=True)


if __name__ == "__main__":
    if "PFL_WORKER_RANK" in os.environ:
        simulate(*sys.argv[1:])
    else:
        sys.exit(main())
