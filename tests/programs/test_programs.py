"""Programs in the form in which authors publish them run unmodified in ordinary cells and compute
the same as one process without a launcher. References in this file give the expected values."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.installed import need
from tests.support.kernel import Notebook
from tests.support.warm import Warm

CLOSE = {
    "rel": 1e-3,
    "abs": 2e-5,
}  # other float32 summation order, and digits that were not printed
PIP = "#!/bin/sh\necho Requirement already satisfied: $*\n"  # no program needs its packages
IN_FRONT = re.compile(r"^\[\d+\] ")  # the rank in front of a printed line


class Programs:
    """A kernel that plays programs one after another, each in its own folder."""

    def __init__(self, pip: Path, warm: Warm) -> None:
        pip.write_text(PIP)
        pip.chmod(0o755)
        self.notebook = Notebook(warm=warm, PATH=f"{pip.parent}:{os.environ['PATH']}")
        self.notebook.ok("%load_ext xla_nb")
        # A program's environment variables must not affect the next program.
        self.notebook.ok("import os, sys, torch_xla\nsys.environment = dict(os.environ)")
        self.lines: list[str] = []

    def play(self, name: str, folder: Path) -> None:
        """Execute the cells of a program; `lines` has the printed lines without their ranks."""
        self.notebook.ok(
            "import os, sys\nos.environ.clear(); os.environ.update(sys.environment)\n%reset -f"
        )
        self.notebook.ok(f"%cd -q {folder}")
        text = Path(__file__).with_name(f"{name}.ipy").read_text()
        cells = re.split(r"(?m)^# %%(?! \[markdown\]).*\n", text)[1:]
        shown = [self.notebook.ok(cell) for cell in cells]
        self.lines = [IN_FRONT.sub("", line) for each in shown for line in each.lines]

    def numbers(self, start: str) -> list[float]:
        """The numbers in the only line that begins with `start`."""
        (line,) = {line for line in self.lines if line.startswith(start)}
        return numbers(line.removeprefix(start))

    def value(self, expression: str) -> object:
        """The value of an expression in the notebook; consists of lists and numbers."""
        return eval(self.notebook.value(expression), {"np": np})


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text)]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, warm_kernels: Warm) -> Iterator[Programs]:
    played = Programs(tmp_path_factory.mktemp("bin") / "pip", warm_kernels)
    # This process keeps running once the first named semaphore has started it.
    played.notebook.ok("from multiprocessing import resource_tracker as r; r.ensure_running()")
    yield played
    played.notebook.close()


@pytest.fixture
def played(
    programs: Programs, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Programs:
    """Plays the program that the test is named after."""
    name = request.node.name.removeprefix("test_")
    programs.play(name, tmp_path_factory.mktemp(name))
    return programs


# ---------------------------------------------------------------- situations from articles


def test_hello_per_core(played):
    torch.manual_seed(1234)
    total = torch.randn(2, 2).sum().item()
    told = [numbers(line) for line in played.lines if line.startswith("index")]
    assert sorted(told) == [[i, 0, i * i, pytest.approx(total, abs=1e-4)] for i in range(8)]


def test_spmd_left_on(played):
    assert played.numbers("world") == [4, 1 + 2 + 3 + 4]


def test_eight_processes(played):
    assert played.numbers("[") == [8 * 10 * k + sum(range(8)) for k in range(4)]


def test_cannot_pickle(played):
    left = (1 - 0.5) * (1 - 0.5 / 2) * (1 - 0.5 / 3)
    assert played.numbers("w =") == [pytest.approx(1.5 * (1 - left), abs=1e-6)]


def test_runtime_initialized(played):
    assert played.numbers("27.0") == []
    assert played.numbers("[0.0") == [9, 18, 27, 18]


def test_kaggle_addresses(played):
    assert played.numbers("sum") == [sum(range(100)), 4]


# ---------------------------------------------------------------- training


def trained(net, batches, optimizer, loss_of, clip=None):
    """The losses of one process; each batch combines the batches of all ranks."""
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_of(net(x), y)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def zeroed(module):
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


def weights(net):
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()]).tolist()


@pytest.mark.slow
def test_download_once(played):
    rng = np.random.RandomState(0)
    x = torch.tensor(rng.randn(256, 6).astype("float32"))
    y = (x[:, 0] > x[:, 1]).long()
    net = zeroed(nn.Linear(6, 2))
    batches = [*zip(x.split(64), y.split(64), strict=True)] * 2
    losses = trained(net, batches, torch.optim.SGD(net.parameters(), lr=0.5), F.cross_entropy)
    means = played.value("[done[r][0] for r in range(8)]")
    assert means == [pytest.approx(losses[-1], **CLOSE)] * 8
    for rank in 0, 7:
        weight = played.value(f"done[{rank}][1].reshape(-1).tolist()")
        assert weight == pytest.approx(net.weight.reshape(-1).tolist(), **CLOSE)
    assert played.value("open('fashionmnist/downloads').read()") == "one\n"


@pytest.mark.slow
def test_mnist_colab(played):
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10), nn.LogSoftmax(1))
    order = torch.randperm(1200, generator=torch.Generator().manual_seed(0))
    batches = [(x[part], y[part]) for part in order.split(200)] * 2
    optimizer = torch.optim.SGD(net.parameters(), lr=0.4, momentum=0.5)
    losses = trained(net, batches, optimizer, F.nll_loss)
    told = [line for line in played.lines if "](3) Loss=" in line]
    found = [float(re.findall(r"Loss=([\d.]+)", line)[0]) for line in told]
    assert np.mean(found[:4]) == pytest.approx(losses[3], abs=1e-3)
    assert np.mean(found[4:]) == pytest.approx(losses[9], abs=1e-3)
    right = (net(x[1200:1600]).argmax(1) == y[1200:1600]).double().mean().item()
    accuracies = [re.findall(r"xla:(\d)\] Accuracy=(.*)", line) for line in played.lines]
    last = dict(found[0] for found in accuracies if found)  # per rank
    assert len(last) == 4
    assert len(set(last.values())) == 1
    assert numbers(last["0"])[0] == pytest.approx(100 * right, abs=0.5)


def test_loader_2022(played):
    told = [line for line in played.lines if line.startswith("| Training")]
    losses = [float(re.findall(r"Loss=([\d.]+)", line)[0]) for line in told]
    # Each step multiplies the distance by -0.2; it is 2 at first.
    by_step = [round((2 * 0.2**step) ** 2, 5) for step in (0, 2, 4, 5, 7, 9)]
    assert sorted(losses) == sorted(by_step * 4)
    assert played.numbers("weight") == [pytest.approx((1 + 2 * 0.2**10) / 6, abs=1e-6)] * 3


@pytest.mark.slow
def test_ddp_pjrt(played):
    torch.manual_seed(42)
    net = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5))
    x, y = torch.sin(torch.arange(400.0)).view(40, 10), torch.cos(torch.arange(200.0)).view(40, 5)
    trained(net, [(x, y)] * 4, torch.optim.SGD(net.parameters(), lr=0.5), F.mse_loss)
    assert played.numbers("sum of weights:") == [pytest.approx(sum(weights(net)), **CLOSE)]


@pytest.mark.slow
def test_ddp_xla(played):
    g = torch.Generator().manual_seed(7)
    x, y = torch.randn(96, 8, generator=g), torch.randint(0, 3, (96,), generator=g)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for epoch in range(3):
        order = torch.randperm(96, generator=torch.Generator().manual_seed(3 + epoch))
        batches = [(x[part], y[part]) for part in order.split(12)]
        mean = np.mean(trained(net, batches, optimizer, F.cross_entropy))
        assert played.numbers(f"epoch {epoch} loss") == [pytest.approx(mean, **CLOSE)]


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


@pytest.mark.slow
def test_fsdp(played):
    torch.manual_seed(5)
    net = nn.Sequential(Block(6), Block(6), nn.Linear(6, 1))
    batches = [torch.sin(torch.arange(48.0) + step).view(8, 6) for step in range(4)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    trained(net, [(x, x.sum(1, keepdim=True)) for x in batches], optimizer, F.mse_loss, clip=0.5)
    found = played.value("torch.cat([p.detach().reshape(-1) for p in whole.parameters()]).tolist()")
    assert found == pytest.approx(weights(net), **CLOSE)


@pytest.mark.slow
def test_zero(played):
    torch.manual_seed(123)
    net = nn.Sequential(nn.Linear(5, 9), nn.GELU(), nn.Linear(9, 1))
    batches = []
    for step in range(5):
        x = torch.randn(16, 5, generator=torch.Generator().manual_seed(100 + step))
        batches.append((x, (x * torch.arange(1.0, 6.0)).sum(-1, keepdim=True)))
    trained(net, batches, torch.optim.Adam(net.parameters(), lr=0.02), F.mse_loss, clip=1.0)
    for rank in range(4):
        found, shard = played.value(
            f"torch.cat([p.reshape(-1) for p in weights[{rank}][0]]).tolist(), weights[{rank}][1]"
        )
        assert found == pytest.approx(weights(net), **CLOSE)
        # A quarter of each parameter's rows, rounded up: of (9, 5), (9,), (1, 9) and (1,).
        assert shard == 3 * 5 + 3 + 1 * 9 + 1


@pytest.mark.slow
def test_accumulate(played):
    data = []
    for rank in range(4):
        torch.manual_seed(rank)
        x = torch.randn(32, 4)
        data.append((x, x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])))
    net = zeroed(nn.Linear(4, 1, bias=False))
    for step in range(4):
        part = slice(step * 8, step * 8 + 8)
        batch = tuple(torch.cat([each[part] for each in of]) for of in zip(*data, strict=True))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1 / (1 + step))
        trained(net, [batch], optimizer, F.mse_loss, clip=2.0)
    assert played.value("res[0][0]") == pytest.approx(weights(net), **CLOSE)
    assert played.value("[r[1] for r in res.values()]") == [pytest.approx(0.1 / 5)] * 4
    assert "same on all: True" in played.lines


class XlasBatchNorm(nn.BatchNorm1d):
    """XLA keeps the biased variance, torch the unbiased one."""

    def forward(self, x):
        out = super().forward(x)
        if self.training:
            self.running_var.data -= self.momentum * (x.var(0) - x.var(0, unbiased=False)).detach()
        return out


@pytest.mark.slow
def test_checkpoint(played):
    torch.manual_seed(99)
    net = nn.Sequential(nn.Linear(3, 4), XlasBatchNorm(4), nn.ReLU(), nn.Linear(4, 1))
    batches = [torch.cos(torch.arange(18.0) * (step + 1)).view(6, 3) for step in range(5)]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = trained(net, [(x, x.sum(1, keepdim=True)) for x in batches], optimizer, F.mse_loss)
    assert played.numbers("step 3 saved, loss") == [pytest.approx(losses[2], **CLOSE)]
    assert played.numbers("step 5 saved, loss") == [pytest.approx(losses[4], **CLOSE)]
    assert played.value("saved['step']") == 3
    assert "True" in played.lines  # xser and xm.save saved the same
    expected = net.eval()(torch.tensor([[0.1, 0.2, 0.3]])).item()
    assert played.numbers("prediction") == [pytest.approx(expected, abs=1e-4)]


@pytest.mark.slow
def test_gan(played):
    torch.manual_seed(999)
    g = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2), nn.Tanh())
    d = nn.Sequential(nn.Linear(2, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1), nn.Sigmoid())
    for linear in g[0], g[2], d[0], d[2]:
        nn.init.normal_(linear.weight.data, 0.0, 0.2)
        nn.init.constant_(linear.bias.data, 0)
    real = torch.randn(64, 2) * 0.1 + torch.tensor([0.5, -0.5])
    noise = torch.randn(64, 2)
    of_d, of_g = (torch.optim.Adam(n.parameters(), lr=0.05, betas=(0.5, 0.999)) for n in (d, g))
    for _ in range(2):
        for x, z in zip(real.split(16), noise.split(16), strict=True):
            fake = g(z)
            of_d.zero_grad()
            (-d(x).log().mean() - (1 - d(fake.detach())).log().mean()).backward()
            of_d.step()
            of_g.zero_grad()
            (-d(fake).log().mean()).backward()
            of_g.step()
    assert played.numbers("mean of fakes") == pytest.approx(g(noise).mean(0).tolist(), abs=1e-3)


@pytest.mark.slow
def test_sweep(played):
    best = {}
    for lr in 0.1, 0.25:
        for momentum in 0.0, 0.5:
            x, speed = np.arange(4) + 5.0, 0.0
            for _ in range(3):
                speed = momentum * speed + np.mean(2 * (x - 2))
                x = x - lr * speed
            assert played.numbers(f"{{'lr': {lr}, 'momentum': {momentum}, 'x':") == [
                pytest.approx(x[0], rel=1e-6)
            ]
            best[abs(x[0] - 2)] = [lr, momentum]
    assert played.numbers("best:") == best[min(best)]


def test_helper_file(played):
    w, b = 0.1, 0.2
    for _ in range(3):
        inputs = np.arange(1, 5)
        out = 3 * w * inputs + b
        w, b = w - 0.01 * np.mean(2 * out * inputs), b - 0.01 * np.mean(2 * out)
    assert played.numbers("weights") == pytest.approx([w, w, w, b], abs=2e-6)
    assert "steps 3" in played.lines


@pytest.mark.slow
def test_sync_batchnorm(played):
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    w, b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
    x = torch.randn(16, 3)
    optimizer = torch.optim.SGD([*net.parameters(), w, b], lr=0.1)
    losses = []
    for _ in range(3):
        parts = [net[0](part) for part in x.chunk(4)]
        means = [torch.stack([part.mean(0), (part * part).mean(0)]) / 4 for part in parts]
        loss = 0
        for rank, part in enumerate(parts):
            # torch_xla gives a rank only the gradient of its own share of a sum.
            shares = [m if at == rank else m.detach() for at, m in enumerate(means)]
            mean, square = sum(shares)
            normed = (part - mean) / torch.sqrt(square - mean**2 + 1e-5) * w + b
            loss = loss + F.mse_loss(net[1:](normed), x.chunk(4)[rank].sum(1, keepdim=True)) / 4
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert played.value("losses") == pytest.approx(losses, **CLOSE)


@pytest.mark.slow
def test_char_rnn(played):
    text = "hello tpu, hello xla, hello world. " * 8
    vocabulary = sorted(set(text))
    ids = torch.tensor([vocabulary.index(c) for c in text])
    x, y = ids[: 4 * 69], ids[1 : 4 * 69 + 1]
    net = nn.Embedding(len(vocabulary), len(vocabulary))
    nn.init.zeros_(net.weight)
    for epoch in range(20):  # noqa: B007 # used after the loop
        trained(net, [(x, y)], torch.optim.SGD(net.parameters(), lr=20.0), F.cross_entropy)
        parts = zip(net(x).split(69), y.split(69), strict=True)
        worst = max(F.cross_entropy(*part).item() for part in parts)
        if worst < 1.0:
            break
    assert 0 < epoch < 19
    told = f"stopped at {epoch} with {worst:.5f}"[:-1]
    assert any(line.startswith(told) and line.endswith("True") for line in played.lines)


@pytest.mark.slow
def test_workers_2021(played):
    from sklearn.model_selection import StratifiedKFold

    x = torch.tensor(np.sin(np.outer(np.arange(1, 97), np.arange(4))) / 2, dtype=torch.float32)
    y = torch.arange(96) % 3
    rows = []
    folds = StratifiedKFold(4, shuffle=True, random_state=719).split(x, y)
    for fold, (rest, _) in zip(range(2), folds, strict=False):
        net = zeroed(nn.Linear(4, 3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
        for epoch in range(2):
            *first, last = zip(x[rest].split(12), y[rest].split(12), strict=True)
            trained(net, first, optimizer, F.cross_entropy)
            masters = F.cross_entropy(net(last[0][::2]), last[1][::2]).item()
            trained(net, [last], optimizer, F.cross_entropy)
            rows.append([fold, epoch, 72, pytest.approx(masters, abs=1e-5)])
    assert played.value("log.values[:, :4].tolist()") == rows


@pytest.mark.slow
def test_bare_pjrt(played):
    # The sum of both weights is multiplied by 1 - 2 * 0.05 * mean(2 * (1, 2, 3, 4) ** 2) = -0.5.
    rank_1 = [(2 * 2 * (-0.5) ** step) ** 2 for step in range(3)]
    (line,) = (line for line in played.lines if line.startswith("4 ["))
    assert numbers(line) == [4, *rank_1, 2 * (-0.5) ** 3]
    assert line.endswith("True")


def descended(rows):
    """The loss, weights and bias after five full-batch gradient steps on `rows` points."""
    x = torch.linspace(-1, 1, 2 * rows).view(rows, 2)
    y = x @ torch.tensor([[2.0], [-3.0]]) + 0.5
    net = zeroed(nn.Linear(2, 1))
    trained(net, [(x, y)] * 5, torch.optim.SGD(net.parameters(), lr=0.1), F.mse_loss)
    loss = F.mse_loss(net(x), y).item()
    return loss, [*net.weight[0].tolist(), net.bias.item()]


def only_with(package):
    """For packages in requirements/libraries.txt, installed by `make test-libraries`."""
    return pytest.mark.skipif(not find_spec(package), reason=f"{package} is not installed")


@only_with("lightning")
@pytest.mark.leaves("processes")  # Lightning's manager, until the next program
def test_lightning_tpu(played):
    loss, weights = descended(64)
    assert played.numbers("val_loss") == [pytest.approx(loss, **CLOSE)]
    assert played.numbers("weights") == pytest.approx(weights, **CLOSE)


@only_with("transformers")
def test_transformers_trainer(played):
    _, weights = descended(32)
    (found,) = {
        repr(ended) for ended in played.value("results.results").values()
    }  # equal on all ranks
    assert numbers(found) == pytest.approx([5, *weights], **CLOSE)


# ---------------------------------------------------------------- results


@pytest.mark.slow
def test_mesh_reduce_metrics(played):
    from sklearn.metrics import roc_auc_score

    rng = np.random.RandomState(11)
    score = rng.rand(160)
    toxic = (score + 0.5 * rng.randn(160) > 0.5)[::5]
    logits = 2 * score[::5] - 1
    loss = np.mean(np.log1p(np.exp(np.where(toxic, -logits, logits))))
    parts = [roc_auc_score(toxic[r::4], logits[r::4]) for r in range(4)]
    expected = loss, roc_auc_score(toxic, logits), np.mean(parts)
    (line,) = (line for line in played.lines if "LOSS" in line)
    assert numbers(line)[1:] == pytest.approx(expected, abs=2e-6)


@pytest.mark.slow
def test_inference(played):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.stack([torch.arange(101.0) / 101, torch.ones(101)], 1)
    mean = torch.softmax(net(x), -1)[:, 1].mean().item()
    assert played.numbers("101 rows, mean") == [pytest.approx(mean, abs=1e-5)]


@pytest.mark.slow
@pytest.mark.leaves("processes")  # the notebook's Manager
def test_folds(played):
    from sklearn.datasets import load_diabetes
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import KFold

    x, y = load_diabetes(return_X_y=True)
    whole = np.zeros(len(x))
    folds = KFold(n_splits=4, shuffle=True, random_state=42).split(x)
    for fold, (rest, held) in enumerate(folds):
        whole[held] = Ridge(alpha=0.5).fit(x[rest], y[rest]).predict(x[held])
        error = np.mean((whole[held] - y[held]) ** 2) ** 0.5
        assert played.numbers(f"fold {fold}: rmse") == [pytest.approx(error, abs=2e-3)]
    assert played.numbers("oof rmse") == [pytest.approx(np.mean((whole - y) ** 2) ** 0.5, abs=2e-3)]


def test_queue_results(played):
    inside = []
    for rank in range(4):
        xy = torch.rand(1000, 2, generator=torch.Generator().manual_seed(1000 + rank))
        inside.append((xy.pow(2).sum(-1) <= 1).sum().item())
    assert f"inside {inside} all {sum(inside)} True" in played.lines


@pytest.mark.slow
def test_contrastive(played):
    weight = torch.cos(torch.arange(15.0)).view(3, 5).requires_grad_()
    z = F.normalize(torch.sin(torch.arange(80.0)).view(16, 5) @ weight.T, dim=-1)
    similar = z @ z.T / 0.5 - 1e9 * torch.eye(16)
    loss = F.cross_entropy(similar, (torch.arange(16) + 8) % 16)
    loss.backward()
    assert played.numbers("loss") == [pytest.approx(loss.item(), abs=1e-5)]
    # torch_xla gives a rank only the gradient of its own loss; their sum is the full gradient.
    found = played.value("grad.reshape(-1).tolist()")
    assert found == pytest.approx(weight.grad.reshape(-1).tolist(), **CLOSE)
    assert any(line.startswith("loss") and line.endswith("True") for line in played.lines)


@pytest.mark.slow
def test_local_sgd(played):
    cores = [torch.zeros(1, 1) for _ in range(4)]
    for step in range(1, 5):
        for core, weight in enumerate(cores):
            weight.requires_grad_()
            x = torch.full((1, 1), core + 1.0)
            out = (x.bfloat16() @ weight.bfloat16().T).float()
            ((out - 8) ** 2).mean().backward()
            cores[core] = (weight - weight.grad / 64).detach()
        if step % 2 == 0:
            cores = [sum(cores) / 4 for _ in range(4)]
    expected = cores[0].item()
    assert played.value("[v for v in r.values()]") == [pytest.approx(expected, abs=1e-5)] * 4


def test_collectives_tour(played):
    assert played.lines == [
        "[6.0, 6.0]",
        str([k + 1.5 for k in range(8)]),
        "[[0.0, 10.0, 20.0, 30.0]]",
        "[2.0, 2.0, 12.0, 12.0] from 0 from 1 from 2 from 3",
    ]


def test_evolution(played):
    w, aim = np.zeros(3), np.array([1.0, -1.0, 0.5])
    for generation in range(4):
        step = np.zeros(3)
        for core in range(8):
            eps = np.random.RandomState(generation * 100 + core).randn(3)
            pair = np.sum((w - 0.1 * eps - aim) ** 2) - np.sum((w + 0.1 * eps - aim) ** 2)
            step += eps * pair
        w = w + 0.05 / (2 * 0.1 * 8) * step
    assert played.value("np.loadtxt('best.txt').tolist()") == pytest.approx(w, **CLOSE)


@pytest.mark.slow
def test_accelerate_nlp(played):
    need("accelerate")
    x = torch.linspace(-1, 1, 64).view(32, 2)
    y = (x @ torch.tensor([[2.0], [-3.0]])) + 0.5
    net = zeroed(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(2):
        trained(net, zip(x.split(16), y.split(16), strict=True), optimizer, F.mse_loss)
        error = F.mse_loss(net(x[:24]), y[:24]).item()
        assert played.numbers(f"epoch {epoch}:") == [24, pytest.approx(error, abs=2e-6)]
    assert played.numbers("bias") == [pytest.approx(net.bias.item(), abs=2e-6)]


def test_capture_and_time(played):
    assert played.lines == [str([(str(core), "6.0") for core in range(4)])]


def test_registry_package(played):
    """Settings in the notebook, a model from the package's registry, and averaged weights."""
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(5))
    y = x[:, :3].argmax(1)
    torch.manual_seed(2021)
    net = nn.Sequential(nn.Linear(6, 10), nn.SiLU(), nn.Linear(10, 3))
    average = [p.detach().clone() for p in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    assert "['mlp_tiny', 'mlp_wide']" in played.lines
    for epoch in range(2):
        order = torch.randperm(64, generator=torch.Generator().manual_seed(2021 + epoch))
        for part in order.split(16):
            (loss,) = trained(net, [(x[part], y[part])], optimizer, F.cross_entropy)
            newest = [p.detach() for p in net.parameters()]
            average = [0.9 * a + 0.1 * p for a, p in zip(average, newest, strict=True)]
        told = f"[exp042] Train: {epoch} Loss:"
        (line,) = [line for line in played.lines if line.startswith(told)]
        assert line.endswith(" SiLU 10")
        assert played.numbers(told) == [pytest.approx(loss, **CLOSE), 10]
    total = sum(each.abs().sum().item() for each in average)
    assert played.numbers("EMA") == [pytest.approx(total, **CLOSE)]


@pytest.mark.slow
def test_tpu_fitter(played):
    """The losses are those of rank 0; the scheduler halves the rate for the third epoch."""
    rs = np.random.RandomState(3)
    x, vx, tx = (torch.tensor(rs.randn(n, 6).astype("float32")) for n in (32, 16, 20))
    smooth = functools.partial(F.cross_entropy, label_smoothing=0.1)
    net = zeroed(nn.Linear(6, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.4)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    results = []
    for rate in (0.4, 0.4, 0.2):
        optimizer.param_groups[0]["lr"], own = rate, []
        for part in order.split(16):
            mine, y = part[::4], (x[:, 0] > 0).long()
            own.append(smooth(net(x[mine]), y[mine]).item())
            trained(net, [(x[part], y[part])], optimizer, smooth)
        results += [np.mean(own), smooth(net(vx[::4]), (vx[::4, 0] > 0).long()).item()]
    log = played.value("open('log.txt').read()")
    told = [line.rpartition(" ")[2] for line in log.splitlines() if line.startswith("[RESULT]")]
    assert list(map(float, told)) == pytest.approx(results, **CLOSE)
    assert {*log.splitlines()} <= {*played.lines}
    assert played.numbers("weights") == pytest.approx(net.weight.view(-1).tolist(), **CLOSE)
    predictions = played.value("submission['toxic'].tolist()")
    assert predictions == pytest.approx(F.softmax(net(tx), 1)[:, 1].tolist(), **CLOSE)
    assert played.value("len(glob('node_submissions/*.csv'))") == 4


@pytest.mark.slow
def test_own_trainer(played):
    """A callback stops training after an epoch; the second fit starts from its weights."""
    x = torch.rand(32, 2, generator=torch.Generator().manual_seed(11)) * 4 - 2
    y = torch.sin(x).sum(1, keepdim=True)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    parts = order.split(8)  # of both ranks
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    losses = []
    for first, second in zip(parts[::2], parts[1::2], strict=True):  # each pair is one step
        losses += [F.mse_loss(net(x[part]), y[part]).item() for part in (first, second)]
        both = torch.cat((first, second))
        trained(net, [(x[both], y[both])], optimizer, F.mse_loss)
    found = played.value(
        "[float(v) for v in open('metrics.csv').read().split('\\n')[1].split(',')]"
    )
    assert found == [0, pytest.approx(np.mean(losses), **CLOSE)]
    assert "steps 2 best checkpoints/epoch=0.ckpt" in played.lines
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    batches = [(x[part], y[part]) for part in parts]
    mean = np.mean(trained(net, batches, optimizer, F.mse_loss))
    assert played.numbers("after second fit") == [pytest.approx(mean, **CLOSE), 4]
    points = net(torch.tensor([[0.5, 1.0], [-1.0, 0.0]])).view(-1).tolist()
    assert played.numbers("predict") == pytest.approx(points, **CLOSE)
    assert played.value("open('downloaded').read()") == "xx"
    for rank in range(2):  # of the second fit, which reopened the file
        log = played.value(f"open('rank_{rank}.log').read()")
        assert log == f"INFO|trainer|start on {rank} of 2\nINFO|trainer|epoch 0\n"


@pytest.mark.leaves("processes")  # the notebook's Manager
@pytest.mark.slow
def test_distill_loggers(played):
    targets = torch.tensor([0] * 16 + [1] * 8)
    shift = np.eye(2, 5)[targets.numpy()] * 2
    x = torch.tensor((np.random.RandomState(21).randn(24, 5) + shift).astype("float32"))
    torch.manual_seed(7)
    teacher = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 2))
    adam = torch.optim.Adam(teacher.parameters(), 0.05)
    trained(teacher, [(x, targets)] * 5, adam, F.cross_entropy)
    student = zeroed(nn.Linear(5, 2))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, weight_decay=1e-3)

    def loss_of(part):
        soft = F.softmax(teacher(x[part]).detach() / 2, -1)
        told = F.kl_div(F.log_softmax(student(x[part]) / 2, -1), soft, reduction="batchmean")
        return 0.7 * 4 * told + 0.3 * F.cross_entropy(student(x[part]), targets[part])

    logs, seen = {0: [], 1: []}, []
    for epoch in range(2):
        picked = {}
        for rank in logs:
            g = torch.Generator().manual_seed(epoch)
            own = torch.randperm(24, generator=g)[rank::2]
            weight = 1.0 / torch.bincount(targets[own]).double()[targets[own]]
            picked[rank] = own[torch.multinomial(weight, 12, True, generator=g)]
            seen.append(picked[rank])
        for step in range(3):
            parts = {rank: picked[rank][4 * step : 4 * step + 4] for rank in logs}
            losses = {rank: loss_of(part) for rank, part in parts.items()}
            optimizer.zero_grad()
            (sum(losses.values()) / 2).backward()
            optimizer.step()
            if step % 2 == 0:
                for rank, loss in losses.items():
                    logs[rank].append([rank, epoch, step, pytest.approx(loss.item(), **CLOSE)])
    counts = torch.bincount(targets[torch.cat(seen)]).tolist()
    assert played.numbers("seen") == counts
    for rank, told in logs.items():
        log = played.value(f"open('train_{rank}.log').read()")
        assert [numbers(line.partition(" - ")[2]) for line in log.splitlines()] == told
    cores = {line.split()[1] for line in played.lines if line.startswith("core ")}
    assert cores == {"0"}  # only its logger writes into the cell
    assert played.value("oof.tolist()") == [
        pytest.approx(row, **CLOSE) for row in F.softmax(student(x), 1).tolist()
    ]
