"""Trainer with a callback: torchrun --nproc-per-node 2 examples/with_hf_trainer.py."""

from sklearn.datasets import load_digits
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from sparse_mpi.integrations.hf import SparseCallback

images = load_digits().data.astype(int)  # of 64 numbers from 0 to 16, taken for words
size = {"n_positions": 64, "n_embd": 32, "n_layer": 1, "n_head": 2}
config = GPT2Config(vocab_size=17, bos_token_id=0, eos_token_id=0, **size)
model = GPT2LMHeadModel(config)
args = TrainingArguments(
    "runs/hf",
    max_steps=60,
    per_device_train_batch_size=16,
    learning_rate=0.003,
    max_grad_norm=0.0,  # it would clip late sums, and not the moments below them
    logging_steps=10,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
)
data = [{"input_ids": image, "labels": image} for image in images]
trainer = Trainer(model, args, train_dataset=data, callbacks=[SparseCallback()])
trainer.train()

logs = [log for log in trainer.state.log_history if "loss" in log]
print(
    f"loss {logs[0]['loss']:.3f} to {logs[-1]['loss']:.3f}, "
    f"{logs[-1]['sparse_bytes']:.0f} bytes in a step"
)
print(f"weights add up to {sum(p.double().sum() for p in model.parameters()):.12f}")
