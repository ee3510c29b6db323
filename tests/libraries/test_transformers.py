"""transformers' Trainer on ranks."""

import ast
import os
import subprocess
import sys

PROGRAM = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randint(5, 50, (size, 8), generator=generator)
    def __len__(self):
        return len(self.words)
    def __getitem__(self, at):
        words = self.words[at]
        return {"input_ids": words, "labels": (words[0] > 27).long()}

def train(folder, **settings):
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    ))
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=4, num_train_epochs=2, learning_rate=1e-2,
        optim="sgd", lr_scheduler_type="constant", report_to=[], save_strategy="no", **settings,
    )
    trainer = Trainer(model, arguments, train_dataset=Data(128), eval_dataset=Data(64))
    trained = trainer.train()
    evaluated = trainer.evaluate()
    figures = trained.training_loss, evaluated["eval_loss"]
    return arguments.world_size, arguments.process_index, trained.global_step, *figures
"""
GLOO = (
    PROGRAM
    + """
import sys
folder = sys.argv[1]
found = train(folder, use_cpu=True)
with open(f"{folder}/found-{found[1]}", "w") as file:
    print(found, file=file)
"""
)


def test_four_ranks_train_like_four_gloo_processes(notebook, tmp_path):
    notebook.ok(PROGRAM + "import torch_xla.distributed.xla_multiprocessing as xmp")
    notebook.ok(
        "def _mp_fn(index, folder):\n    return train(folder)\n"
        f"run = xmp.spawn(_mp_fn, args=({str(tmp_path)!r},), nprocs=4, start_method='fork')"
    )
    expected = _with_gloo(tmp_path)
    assert sorted(each[1] for each in expected) == [0, 1, 2, 3]
    for world, rank, steps, *losses in expected:
        assert notebook.value(f"run[{rank}][:3]") == str((world, rank, steps))
        near = f"max(abs(a - b) for a, b in zip(run[{rank}][3:], {losses})) < 1e-4"
        assert notebook.value(near) == "True"


def _with_gloo(folder):
    """Results of torchrun's processes."""
    (folder / "program.py").write_text(GLOO)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    subprocess.run(
        [*launcher, "program.py", str(folder)],
        capture_output=True,
        check=True,
        timeout=200,
        cwd=folder,
        env={**os.environ, "USE_TORCH_XLA": "0", "TMPDIR": str(folder)},
    )
    return [ast.literal_eval((folder / f"found-{rank}").read_text()) for rank in range(4)]
