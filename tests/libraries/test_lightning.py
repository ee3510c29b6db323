"""Lightning's Trainer and Fabric launch ranks from a notebook and train its model."""

import pytest

PROGRAM = """
import lightning as L, torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1)
        self.fails_on = None
    def training_step(self, batch, _):
        if self.global_rank == self.fails_on:
            raise ValueError("boom")
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss
    def validation_step(self, batch, _):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("val", loss, sync_dist=True)
    test_step = validation_step
    def predict_step(self, batch, _):
        return self.net(batch[0])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

generator = torch.Generator().manual_seed(1)
x = torch.randn(256, 4, generator=generator)
y = x @ torch.tensor([[1.0], [2.0], [3.0], [4.0]])
data = DataLoader(TensorDataset(x, y), 16)

def trainer(folder, devices=4, **settings):
    return L.Trainer(accelerator="tpu", devices=devices, default_root_dir=folder, **settings)

# One process, with the samples that Lightning deals out to the ranks.
net = Model().net
optimizer = torch.optim.SGD(net.parameters(), 0.1)
samplers = [DistributedSampler(data.dataset, 4, rank) for rank in range(4)]
for epoch in range(3):
    for sampler in samplers:
        sampler.set_epoch(epoch)
    dealt = torch.tensor([list(sampler) for sampler in samplers])
    for at in range(0, 64, 16):
        batch = dealt[:, at:at + 16].flatten()
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[batch]), y[batch]).backward()
        optimizer.step()
expected = nn.functional.mse_loss(net(x), y).item()
"""


@pytest.fixture(scope="module")
def lightning(notebook, tmp_path_factory):
    notebook.ok(PROGRAM)
    notebook.ok(f"folder = {str(tmp_path_factory.mktemp('lightning'))!r}")
    notebook.ok(
        "model = Model()\n"
        "fitted = trainer(folder, max_epochs=3, logger=CSVLogger(folder, version='one'))\n"
        "fitted.fit(model, data, data)"
    )
    return notebook


def test_fit_trains_the_notebooks_model_like_one_process(lightning):
    assert lightning.value("torch.allclose(model.net.weight, net.weight, atol=1e-5)") == "True"
    assert lightning.value("abs(fitted.callback_metrics['val'].item() - expected) < 1e-5") == "True"


def test_checkpoint_contains_the_trained_weights(lightning):
    lightning.ok("saved = torch.load(fitted.checkpoint_callback.best_model_path)['state_dict']")
    assert lightning.value("torch.equal(saved['net.weight'], model.net.weight)") == "True"


def test_csv_logger_writes_a_line_per_epoch(lightning):
    lightning.ok(
        "import csv\n"
        "with open(folder + '/lightning_logs/one/metrics.csv') as file:\n"
        "    log = list(csv.DictReader(file))"
    )
    counted = "[sum(bool(line[name]) for line in log) for name in ('loss', 'val')]"
    assert lightning.value(counted) == "[3, 3]"


def test_validate_and_test_return_figures_to_the_notebook(lightning):
    lightning.ok("found = trainer(folder, 'auto', logger=False).validate(model, data)")
    assert lightning.value("abs(found[0]['val'] - expected) < 1e-5") == "True"
    lightning.ok("found = trainer(folder, logger=False).test(model, data)")
    assert lightning.value("abs(found[0]['val'] - expected) < 1e-5") == "True"


def test_prediction_writer_saves_each_ranks_predictions(lightning):
    lightning.ok(
        "from lightning.pytorch.callbacks import BasePredictionWriter\n"
        "class Writer(BasePredictionWriter):\n"
        "    def write_on_epoch_end(self, trainer, module, predictions, indices):\n"
        "        predicted = [each.cpu() for each in predictions]\n"
        "        torch.save(predicted, f'{folder}/predicted-{trainer.global_rank}.pt')\n"
        "trainer(folder, logger=False, callbacks=[Writer('epoch')]).predict(model, data)\n"
        "parts = [torch.cat(torch.load(f'{folder}/predicted-{rank}.pt')) for rank in range(4)]\n"
        "whole = torch.stack(parts, 1).flatten(0, 1)"
    )
    assert lightning.value("torch.allclose(whole, model.net(x), atol=1e-5)") == "True"


@pytest.mark.leaves("processes")  # the error's frames keep Lightning's manager alive
def test_failed_rank_raises_in_the_notebook(lightning):
    lightning.ok("broken = Model()\nbroken.fails_on = 2")
    shown = lightning.run("trainer(folder, max_epochs=1, logger=False).fit(broken, data)")
    assert shown.ename == "RunFailed"
    assert "Rank 2 failed" in shown.error
    assert "ValueError: boom" in shown.error


def test_allowed_devices_follow_the_configured_rank_count(lightning):
    lightning.ok("%xla_config n=2")
    lightning.ok("pair = Model()\ntrainer(folder, 2, max_epochs=1, logger=False).fit(pair, data)")
    assert "can only be 'auto', 1, 2" in lightning.run("trainer(folder, 4)").error
    lightning.ok("%xla_config n=None")
    lightning.ok("trainer(folder, 4)")


def test_trainer_accepts_any_device_count_that_can_be_simulated(lightning):
    lightning.ok(
        "class Counts(Model):\n"
        "    def on_train_start(self):\n"
        "        of = self.trainer.world_size\n"
        "        open(f'{folder}/rank-{self.trainer.global_rank}-of-{of}', 'w').close()"
    )
    lightning.ok("eight = Counts()\nimport glob")
    lightning.ok("trainer(folder, 8, max_epochs=1, logger=False).fit(eight, data)")
    found = lightning.value("sorted(glob.glob('rank-*', root_dir=folder))")
    assert found == str([f"rank-{rank}-of-8" for rank in range(8)])
    lightning.ok("%xla_config simulate=v5litepod-4")
    assert "can only be 'auto', 1, 4" in lightning.run("trainer(folder, 8)").error
    lightning.ok("%xla_config simulate=None")


def test_lightning_finds_no_tpu_with_dropin_off(lightning):
    lightning.ok("%xla_config dropin=off")
    try:
        assert "can not run on your system" in lightning.run("trainer(folder, 4)").error
    finally:
        lightning.ok("%xla_config dropin=on")


FABRIC = """
from lightning.fabric import Fabric
def train(fabric, lr):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr))
    loader = fabric.setup_dataloaders(DataLoader(data.dataset, 256 // fabric.world_size))
    for epoch in range(3):
        for inputs, outputs in loader:
            optimizer.zero_grad()
            fabric.backward(nn.functional.mse_loss(net(inputs), outputs))
            optimizer.step()
    fabric.print("trained")
    ranks = fabric.all_gather(torch.tensor([fabric.global_rank], device=fabric.device))
    return ranks.flatten().tolist(), net.weight.detach().cpu()
ranks, weight = Fabric(accelerator="tpu", devices=4).launch(train, lr=0.1)
"""


def test_fabric_launch_trains_and_returns_the_result_of_rank_0(lightning):
    shown = lightning.ok(FABRIC)
    assert [line for line in shown.lines if "trained" in line] == ["[0] trained"]
    assert lightning.value("ranks") == "[0, 1, 2, 3]"
    lightning.ok("_, alone = train(Fabric(accelerator='cpu', devices=1), lr=0.1)")
    assert lightning.value("torch.allclose(weight, alone, atol=1e-5)") == "True"
