"""Losses and predictions of the ``Trainer`` of transformers, where they are more than the model's own loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("exporter", "command")


def weighing(kind: Any) -> Any:
    """A trainer whose loss weighs classes."""

    class Weighing(kind):
        def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **options: Any) -> Any:
            labels = inputs.pop("labels")
            output = model(**inputs)
            loss = nn.functional.cross_entropy(output.logits, labels, torch.tensor([0.1, 1.0, 3.0]))
            return (loss, output) if return_outputs else loss

    return Weighing


def summed(output: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return 3.0 * nn.functional.cross_entropy(output.logits, labels, reduction="sum") / num_items_in_batch


def share(found: Any) -> dict[str, float]:
    return {"right": float((found.predictions.argmax(-1) == found.label_ids).mean())}


@pytest.mark.parametrize(
    ("way", "given", "options"),
    [
        (weighing, {}, {}),
        (lambda kind: kind, {"compute_loss_func": summed}, {}),
        (lambda kind: kind, {}, {"label_smoothing_factor": 0.2}),
    ],
)
def test_a_trainer_with_another_loss_learns_and_says_what_it_does_without_a_plan(
    way: Any, given: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from graphc.parallel.hugging_face import Trainer

    sizes = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(**sizes, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    tokens = torch.randint(61, (12, 6), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": number % 3} for number, row in enumerate(tokens)]

    def job(kind: Any) -> tuple[list[Any], Tensor]:
        torch.manual_seed(0)
        arguments = transformers.TrainingArguments(
            str(tmp_path), per_device_train_batch_size=4, per_device_eval_batch_size=4, max_steps=4, learning_rate=1e-2, logging_steps=1,
            eval_strategy="steps", eval_steps=2, save_strategy="no", use_cpu=True, report_to=[], disable_tqdm=True, **options,
        )  # fmt: skip
        model = transformers.BertForSequenceClassification(config)
        trainer = way(kind)(model, arguments, train_dataset=rows, eval_dataset=rows[:8], compute_metrics=share, **given)
        trainer.train()
        log = [line.get(name) for line in trainer.state.log_history[:-1] for name in ("loss", "grad_norm", "eval_loss", "eval_right")]
        unlabelled = [{"input_ids": row["input_ids"]} for row in rows[:8]]
        return [number for number in log if number is not None], torch.tensor(trainer.predict(unlabelled).predictions)

    (expected, wanted), (found, said) = job(transformers.Trainer), job(Trainer)
    assert found == pytest.approx(expected, abs=1e-4)
    assert torch.allclose(said, wanted, atol=1e-4)
